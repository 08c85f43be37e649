"""What bench/clients.py asks of each client: programs that print `ok` or `WRONG` and the name of what they tried.

A Python program sees BASE, the base URL; ROOT, the address; GIVEN, what is too long for a line. A JavaScript one has
`base` and `given`. Both have what nano is asked, a record, and the answer that is right.
"""

from __future__ import annotations

RECORD = "record\\nSend 417 melu to Karomi."
ANSWER = '{"who":"Karomi","qty":417,"item":"melu"}'

HEAD = f"""
import json, os, pathlib, subprocess, sys, tempfile
BASE, ROOT, GIVEN = sys.argv[1], sys.argv[1].removesuffix("/v1"), json.loads(sys.argv[2])
ASKED, ANSWER = "{RECORD}", {ANSWER!r}
USER = [{{"role": "user", "content": ASKED}}]
def ok(name, fine):
    print("ok" if fine else "WRONG", name, flush=True)
def order():
    import pydantic
    return pydantic.create_model("Order", who=(str, ...), qty=(int, ...), item=(str, ...))
"""

IMAGES_PYTHON = """
from openai import BadRequestError, OpenAI
c = OpenAI(base_url=BASE, api_key="none", max_retries=0)
def parts(kind, url):
    return [{"role": "user", "content": [{"type": kind, "image_url": url}]}]
def chat(url, **more):
    turn = parts("image_url", {"url": url})
    return c.chat.completions.create(model=GIVEN["model"], messages=turn, seed=7, max_tokens=16, **more)
one, again, other = (chat(url) for url in (GIVEN["images"][0], GIVEN["images"][0], GIVEN["images"][1]))
ok("chat", one.usage.prompt_tokens == GIVEN["tokens"] and one.choices[0].message.content == GIVEN["answer"])
ok("the same picture", again.choices[0].message.content == one.choices[0].message.content)
ok("another picture", other.choices[0].message.content != one.choices[0].message.content)
s = chat(GIVEN["images"][0], stream=True)
ok("stream", "".join(k.choices[0].delta.content or "" for k in s) == GIVEN["answer"])
r = c.responses.create(model=GIVEN["model"], input=parts("input_image", GIVEN["images"][0]), max_output_tokens=16,
                       extra_body={"seed": 7})
ok("responses", r.output_text == GIVEN["answer"])
try:
    chat("data:image/png;base64,AAAA"); ok("no image", False)
except BadRequestError as e:
    ok("no image", e.param == "messages[0].content[0]")
"""
IMAGES_NODE = """
import OpenAI from "openai";
const c = new OpenAI({ baseURL: base, apiKey: "none", maxRetries: 0 });
const chat = (url, more = {}) => c.chat.completions.create({ model: given.model, seed: 7, max_tokens: 16, ...more,
  messages: [{ role: "user", content: [{ type: "image_url", image_url: { url } }] }] });
const [one, other] = [await chat(given.images[0]), await chat(given.images[1])];
ok("chat", one.usage.prompt_tokens === given.tokens && one.choices[0].message.content === given.answer);
ok("another picture", other.choices[0].message.content !== given.answer);
let said = "";
for await (const k of await chat(given.images[0], { stream: true })) said += k.choices[0]?.delta?.content ?? "";
ok("stream", said === given.answer);
try { await chat("data:image/png;base64,AAAA"); ok("no image", false); }
catch (e) { ok("no image", e.status === 400 && e.param === "messages[0].content[0]"); }
"""

PYTHON = {
    "openai": """
from openai import OpenAI
c = OpenAI(base_url=BASE, api_key="none", max_retries=0)
ok("models", [m.id for m in c.models.list()])
ok("chat", c.chat.completions.create(model="nano", messages=USER, seed=7).choices[0].message.content == ANSWER)
s = c.chat.completions.create(model="nano", messages=USER, seed=7, stream=True)
ok("stream", "".join(k.choices[0].delta.content or "" for k in s) == ANSWER)
ok("suffix", c.completions.create(model="nano", prompt="{", suffix="}", max_tokens=4).choices[0].text)
ok("responses", c.responses.create(model="nano", input=USER[0]["content"]).output_text == ANSWER)
""",
    "instructor": """
import datetime, decimal, enum, instructor, openai, typing
from pydantic import BaseModel, Field
Order = order()
Size = enum.Enum("Size", {"SMALL": "s", "LARGE": "l"})
Card = type("Card", (BaseModel,), {"__annotations__": {"kind": typing.Literal["card"]}, "kind": "card"})
Cash = type("Cash", (BaseModel,), {"__annotations__": {"kind": typing.Literal["cash"], "coins": int}, "kind": "cash"})
class Paid(BaseModel):
    by: typing.Annotated[Card | Cash, Field(discriminator="kind")]
    note: str | int | None = None
class Times(BaseModel):
    when: datetime.datetime
    day: datetime.date
class Prices(BaseModel):
    cost: decimal.Decimal = Field(json_schema_extra={"type": "string", "pattern": "^[0-9]{1,4}[.][0-9]{2}$"})
    mail: str = Field(json_schema_extra={"format": "email"})
class Lists(BaseModel):
    sizes: list[Size] = Field(min_length=1, max_length=3)
    counts: dict[str, int]
    state: typing.Literal["open", 3, None]
class Nested(BaseModel):
    orders: list[Order] = Field(max_length=2)
    last: Order | None
class Tree(BaseModel):
    value: int
    children: list["Tree"] = Field(max_length=2)
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    c = instructor.from_openai(openai.OpenAI(base_url=BASE, api_key="none"), mode=mode)
    ask = {"model": "nano", "messages": USER, "max_retries": 0}
    ok(mode.name, isinstance(c.chat.completions.create(**ask, response_model=Order).qty, int))
    kinds = (Paid, Times, Prices, Lists, Nested, Tree)
    got = [c.chat.completions.create(**ask, response_model=kind, max_tokens=200, seed=1) for kind in kinds]
    ok(f"{mode.name} with {len(kinds)} models", all(map(isinstance, got, kinds)))
c = instructor.from_openai(openai.OpenAI(base_url=BASE, api_key="none"), mode=instructor.Mode.RESPONSES_TOOLS)
o = c.responses.create(model="nano", input=ASKED, response_model=Order, max_retries=0)
ok("RESPONSES_TOOLS", isinstance(o.qty, int))
""",
    "langchain_openai": """
from langchain_openai import ChatOpenAI, OpenAI
Order = order()
c = ChatOpenAI(base_url=BASE, api_key="none", model="nano", max_retries=0)
ok("chat", c.invoke(USER).content == ANSWER)
ok("stream", "".join(k.content for k in c.stream(USER)) == ANSWER)
for method in ("json_schema", "function_calling"):
    ok(method, isinstance(c.with_structured_output(Order, method=method).invoke(USER), Order))
text = OpenAI(base_url=BASE, api_key="none", model="nano", max_retries=0, max_tokens=8)
ok("completions", isinstance(text.invoke("record"), str))
""",
    "litellm": """
import litellm
m = {"model": "openai/nano", "api_base": BASE, "api_key": "none", "num_retries": 0}
said = litellm.completion(messages=USER, **m).choices[0].message
ok("chat", said.content == ANSWER)
again = [*USER, said.model_dump(), *USER]
ok("second turn", litellm.completion(messages=again, **m).choices[0].message.content)
s = litellm.completion(messages=USER, stream=True, **m)
ok("stream", "".join(k.choices[0].delta.content or "" for k in s) == ANSWER)
s = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
f = {"type": "json_schema", "json_schema": {"name": "x", "schema": s}}
ok("schema", json.loads(litellm.completion(messages=USER, response_format=f, **m).choices[0].message.content))
t = litellm.text_completion(prompt="{", suffix="}", max_tokens=4, model="text-completion-openai/nano", api_base=BASE,
                            api_key="none")
ok("suffix", t.choices[0].text)
""",
    "llm": """
home = tempfile.mkdtemp()
pathlib.Path(home, "extra-openai-models.yaml").write_text(GIVEN["connect"]["llm"])
env = {**os.environ, "LLM_USER_PATH": home, "OPENAI_API_KEY": "none"}
def llm(*words):
    run = [sys.executable, "-m", "llm", "-m", "nano", *words, USER[0]["content"]]
    done = subprocess.run(run, env=env, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr[-300:])
    return done.stdout.strip()
ok("stream", llm() == ANSWER)
ok("whole", llm("--no-stream") == ANSWER)
ok("schema", json.loads(llm("--schema", "who, qty int, item")))
""",
    "pydantic_ai_slim": """
import asyncio
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
there = OpenAIProvider(base_url=BASE, api_key="none")
m = OpenAIChatModel("nano", provider=there)
ok("chat", Agent(m).run_sync(ASKED).output == ANSWER)
async def streamed():
    async with Agent(m).run_stream(ASKED) as s:
        return "".join([k async for k in s.stream_text(delta=True)])
ok("stream", asyncio.run(streamed()) == ANSWER)
for kind in (ToolOutput, NativeOutput):
    ok(kind.__name__, Agent(m, output_type=kind(order())).run_sync(ASKED).output.qty == 417)
ok("responses", Agent(OpenAIResponsesModel("nano", provider=there)).run_sync(ASKED).output == ANSWER)
""",
    "openai_agents": """
import asyncio, agents
agents.set_tracing_disabled(True)
reported = []
@agents.function_tool
def send(who: str, qty: int, item: str) -> str:
    reported.append((who, qty, item))
    return "sent"
async def main():
    c = agents.AsyncOpenAI(base_url=BASE, api_key="none", max_retries=0)
    m = agents.OpenAIChatCompletionsModel(model="nano", openai_client=c)
    async def run(**more):
        return (await agents.Runner.run(agents.Agent(**{"name": "a", "model": m} | more), ASKED)).final_output
    ok("chat", await run() == ANSWER)
    s = agents.Runner.run_streamed(agents.Agent(name="a", model=m), ASKED)
    parts = [e.data async for e in s.stream_events() if e.type == "raw_response_event"]
    ok("stream", "".join(p.delta for p in parts if p.type == "response.output_text.delta") == ANSWER)
    ok("output_type", (await run(output_type=order())).qty == 417)
    must = agents.ModelSettings(tool_choice="required")
    said = await run(tools=[send], tool_use_behavior="stop_on_first_tool", model_settings=must)
    ok("a tool called", said == "sent" and reported == [("Karomi", 417, "melu")])
    ok("responses", await run(model=agents.OpenAIResponsesModel(model="nano", openai_client=c)) == ANSWER)
asyncio.run(main())
""",
    "llama_index_llms_openai_like": """
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike
m = {"model": "nano", "api_base": BASE, "api_key": "none", "context_window": 1024, "max_retries": 0}
said = [ChatMessage(role="user", content=ASKED)]
c = OpenAILike(is_chat_model=True, is_function_calling_model=True, **m)
ok("chat", c.chat(said).message.content == ANSWER)
ok("stream", "".join(k.delta for k in c.stream_chat(said)) == ANSWER)
ok("function calling", c.as_structured_llm(order()).chat(said).raw.qty == 417)
c = OpenAILike(is_chat_model=True, should_use_structured_outputs=True, **m)
ok("json_schema", c.as_structured_llm(order()).chat(said).raw.qty == 417)
ok("completions", isinstance(OpenAILike(max_tokens=8, **m).complete("record").text, str))
""",
    "haystack_ai": """
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret
def reply(**more):
    m = {"model": "nano", "api_base_url": BASE, "api_key": Secret.from_token("none"), "max_retries": 0}
    return OpenAIChatGenerator(**m, **more).run([ChatMessage.from_user(ASKED)])["replies"][0]
ok("chat", reply().text == ANSWER)
parts = []
ok("stream", reply(streaming_callback=lambda k: parts.append(k.content)).text == "".join(parts) == ANSWER)
ok("response_format", json.loads(reply(generation_kwargs={"response_format": order()}).text)["qty"] == 417)
tool = Tool(name="send", description="a record", parameters=order().model_json_schema(), function=dict)
(call,) = reply(tools=[tool], generation_kwargs={"tool_choice": "required"}).tool_calls
ok("a tool called", call.arguments == json.loads(ANSWER))
""",
    "smolagents": """
from smolagents import OpenAIModel, Tool, ToolCallingAgent
from smolagents.agents import EMPTY_PROMPT_TEMPLATES
reported = []
class Send(Tool):
    name, description, output_type = "send", "Send it.", "string"
    inputs = {key: {"type": kind, "description": key} for key, kind in
              {"who": "string", "qty": "integer", "item": "string"}.items()}
    def forward(self, who, qty, item):
        reported.append((who, qty, item))
        return "sent"
m = OpenAIModel("nano", api_base=BASE, api_key="none", client_kwargs={"max_retries": 0})
ok("chat", m.generate(USER).content == ANSWER)
ok("stream", "".join(k.content or "" for k in m.generate_stream(USER)) == ANSWER)
(call,) = m.generate(USER, tools_to_call_from=[Send()]).tool_calls
ok("a tool called", json.loads(call.function.arguments) == json.loads(ANSWER))
more = {"prompt_templates": EMPTY_PROMPT_TEMPLATES, "max_steps": 1, "verbosity_level": -1}
ToolCallingAgent(tools=[Send()], model=m, **more).run(ASKED)
ok("ToolCallingAgent, whatever nano tells the tool", len(reported) == 1 and isinstance(reported[0][1], int))
""",
    "dspy": """
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
import typing, dspy, litellm
known = {"litellm_provider": "openai", "mode": "chat", "supports_response_schema": True}
litellm.register_model({"openai/nano": known})
m = dspy.LM("openai/nano", api_base=BASE, api_key="none", num_retries=0, cache=False, engine="litellm")
ok("chat", m(ASKED) == [ANSWER])
class Sort(dspy.Signature):
    text: str = dspy.InputField()
    kind: typing.Literal["order", "other"] = dspy.OutputField()
    sure: bool = dspy.OutputField()
with dspy.context(lm=m, adapter=dspy.JSONAdapter()):
    found = dspy.Predict(Sort)(text=ASKED)
ok("a signature, whatever nano makes of it", found.kind in ("order", "other") and isinstance(found.sure, bool))
""",
    "lm_eval": """
home = pathlib.Path(tempfile.mkdtemp())
(home / "rows.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in GIVEN["rows"]))
def add(name, kind, text, target, metric, **more):
    task = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(home / "rows.jsonl")}},
            "test_split": "test", "output_type": kind, "doc_to_text": text, "doc_to_target": target,
            "target_delimiter": "", "metric_list": [{"metric": metric}], **more}
    (home / f"{name}.yaml").write_text(json.dumps(task))
add("choice", "multiple_choice", "{{prompt}}", "gold", "acc", doc_to_choice="{{choices}}")
add("written", "generate_until", "{{prompt}}", "{{answer}}", "exact_match",
    generation_kwargs={"until": ["\\n"], "max_gen_toks": 48})
add("rolling", "loglikelihood_rolling", "", "{{answer}}", "byte_perplexity")
arguments = f"model=nano,base_url={BASE}/completions,tokenizer_backend=remote,num_concurrent=4,max_length=1024"
run = [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", arguments,
       "--include_path", str(home), "--tasks", "choice", "written", "rolling", "--output_path", str(home / "out")]
env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OPENAI_API_KEY": "none"}
done = subprocess.run(run, env=env, capture_output=True, text=True)
if done.returncode:
    print(done.stderr[-300:])
found = json.loads(next((home / "out").rglob("results_*.json")).read_text())["results"]
count = len(GIVEN["rows"])
ok(f"log-likelihoods: {found['choice']['acc,none']:.0%} of {count} choices", found["choice"]["acc,none"] > 0.9)
ok(f"text: {found['written']['exact_match,none']:.0%} of {count} records", found["written"]["exact_match,none"] > 0.9)
rolling = found["rolling"]["byte_perplexity,none"]
ok(f"rolling: byte perplexity {rolling:.4f}, as the encoder's by hand", abs(rolling / GIVEN["perplexity"] - 1) < 1e-5)
""",
    "guidellm": """
home = pathlib.Path(tempfile.mkdtemp())
run = [str(pathlib.Path(sys.executable).with_name("guidellm")), "run", "--backend", f"kind=openai_http,target={ROOT}",
       "--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8",
       "--tokenizer", f"kind=hf_auto,model={GIVEN['folder']}",
       "--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=10"]
done = subprocess.run(run, env={**os.environ, "HF_HUB_OFFLINE": "1"}, cwd=home, capture_output=True, text=True)
if done.returncode:
    print(done.stderr[-300:])
(reported,) = json.loads((home / "benchmarks.json").read_text())["benchmarks"]
counts = reported["metrics"]["request_totals"]
ok(f"{counts['successful']} requests one after another", counts["successful"] == 10 and not counts["errored"])
""",
    "aider_chat": """
home = tempfile.mkdtemp()
env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
pathlib.Path(home, ".aider.conf.yml").write_text(GIVEN["connect"]["aider"])
words = ["--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--no-analytics",
         "--map-tokens", "0", "--edit-format", "ask"]
for name, kind in (("stream", "--stream"), ("whole", "--no-stream")):
    run = [sys.executable, "-m", "aider", *words, kind, "--message", USER[0]["content"]]
    done = subprocess.run(run, env=env, cwd=home, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    ok(name + ", whatever nano makes of it", done.returncode == 0 and "Tokens:" in done.stdout)
""",
    "schemathesis": """
import re
run = [str(pathlib.Path(sys.executable).with_name("schemathesis")), "run", f"{ROOT}/openapi.json", "--seed", "1",
       "--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
       "--phases", "coverage,fuzzing", "--max-examples", "6", "--continue-on-failure", "--request-timeout", "60",
       "--suppress-health-check", "all", "--max-time", "240", "--no-color"]
done = subprocess.run(run, cwd=tempfile.mkdtemp(), capture_output=True, text=True)
answered, kinds = (set(re.findall(form, done.stdout, re.M)) for form in (r"^\\[(\\d+)\\]", r"^- (ST\\d+)"))
fine = not done.returncode or (kinds == {"ST101"} and answered == {"504"})  # a deadline of no time is a 504
if not fine:
    print(done.stdout[-1000:])
operations, = re.findall(r"Tested: (\\d+)", done.stdout)
requests, = re.findall(r"(\\d+) generated", done.stdout)
ok(f"{requests} requests to the {operations} operations of /openapi.json, no 5xx but 504 for a deadline of no time,"
   " no hang, answers as it says", fine)
""",
}

NODE_HEAD = f"""
import fs from "node:fs";
import os from "node:os";
import path from "node:path";
import {{ spawnSync }} from "node:child_process";
const [base, given] = [process.argv[2], JSON.parse(process.argv[3])], asked = "{RECORD}", answer = {ANSWER!r};
const user = [{{ role: "user", content: asked }}];
const ok = (name, fine) => console.log(fine ? "ok" : "WRONG", name);
const version = (name) => JSON.parse(fs.readFileSync(`node_modules/${{name}}/package.json`)).version;
"""

NODE = {
    "openai": """
import OpenAI from "openai";
const c = new OpenAI({ baseURL: base, apiKey: "none", maxRetries: 0 });
ok("models", (await c.models.list()).data.length > 0);
const done = await c.chat.completions.create({ model: "nano", messages: user, seed: 7 });
ok("chat", done.choices[0].message.content === answer);
let said = "";
for await (const k of await c.chat.completions.create({ model: "nano", messages: user, seed: 7, stream: true }))
  said += k.choices[0]?.delta?.content ?? "";
ok("stream", said === answer);
const schema = { type: "object", properties: { a: { type: "boolean" } }, required: ["a"], additionalProperties: false };
const held = await c.chat.completions.create({ model: "nano", messages: user,
  response_format: { type: "json_schema", json_schema: { name: "x", schema } } });
ok("schema", typeof JSON.parse(held.choices[0].message.content).a === "boolean");
try { await c.models.retrieve("none"); ok("errors", false); }
catch (e) { ok("errors", e.code === "model_not_found" && e.status === 404); }
""",
    "ai": """
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, Output, streamObject, streamText, tool } from "ai";
import { z } from "zod";
const known = { name: "redraft", supportsStructuredOutputs: true };
const there = createOpenAICompatible({ ...known, baseURL: base, apiKey: "none" });
const m = { model: there("nano"), prompt: asked, maxRetries: 0 };
const schema = z.object({ who: z.string(), qty: z.number().int(), item: z.string() });
const right = (found) => JSON.stringify(found) === answer;
ok(`generateText through @ai-sdk/openai-compatible ${version("@ai-sdk/openai-compatible")}`,
  (await generateText(m)).text === answer);
let said = "";
for await (const k of streamText(m).textStream) said += k;
ok("streamText", said === answer);
ok("generateObject", right((await generateObject({ ...m, schema })).object));
const streamed = streamObject({ ...m, schema });
for await (const _ of streamed.partialObjectStream);
ok("streamObject", right(await streamed.object));
ok("Output.object", right((await generateText({ ...m, output: Output.object({ schema }) })).output));
const must = { ...m, tools: { send: tool({ inputSchema: schema }) }, toolChoice: "required" };
ok("a tool called", right((await generateText(must)).toolCalls[0].input));
ok("a tool called in a stream", right((await streamText(must).toolCalls)[0].input));
const text = await generateText({ ...m, model: there.completionModel("nano"), prompt: "record", maxOutputTokens: 8 });
ok("completions", typeof text.text === "string");
""",
    "@langchain/openai": """
import { ChatOpenAI, OpenAI } from "@langchain/openai";
import { z } from "zod";
const m = { model: "nano", apiKey: "none", maxRetries: 0, configuration: { baseURL: base } };
const c = new ChatOpenAI(m);
ok("chat", (await c.invoke(asked)).content === answer);
let said = "";
for await (const k of await c.stream(asked)) said += k.content;
ok("stream", said === answer);
const order = z.object({ who: z.string(), qty: z.number().int(), item: z.string() });
for (const method of ["jsonSchema", "functionCalling"])
  ok(method, (await c.withStructuredOutput(order, { method, name: "order" }).invoke(asked)).qty === 417);
ok("completions", typeof (await new OpenAI({ ...m, maxTokens: 8 }).invoke("record")) === "string");
""",
    "@continuedev/cli": """
const home = fs.mkdtempSync(path.join(os.tmpdir(), "cn"));
fs.writeFileSync(path.join(home, "config.yaml"), given.connect.continue);
const run = [path.resolve("node_modules/.bin/cn"), "-p", "--config", "config.yaml", "--exclude", "*", asked];
const env = { ...process.env, HOME: home, CONTINUE_TELEMETRY_ENABLED: "0" };
const done = spawnSync("node", run, { cwd: home, env, encoding: "utf8", input: "" });
if (done.status) console.log(done.stdout.slice(-300), done.stderr.slice(-300));
ok("cn asks and is answered, whatever nano makes of it", !done.status && done.stdout.trim());
""",
    "@continuedev/openai-adapters": """
import { constructLlmApi } from "@continuedev/openai-adapters";
const signal = new AbortController().signal;
const joined = async (stream) => {
  let said = "";
  for await (const k of stream) said += k.choices[0]?.delta?.content ?? "";
  return said;
};
const gap = { model: "nano", prompt: asked + '\\n{"who":"Karomi","qty":', suffix: ',"item":"melu"}', max_tokens: 4 };
for (const provider of ["openai", "mistral", "inception"]) {
  const c = constructLlmApi({ provider, apiBase: base + "/", apiKey: "none" });
  const said = c.chatCompletionStream({ model: "nano", messages: user, stream: true }, signal);
  ok(`${provider}: chat`, (await joined(said)) === answer);
  ok(`${provider}: a gap`, (await joined(c.fimStream(gap, signal))).length > 0);
}
const c = constructLlmApi({ provider: "inception", apiBase: base + "/", apiKey: "none" });
const sent = (text) => ({ model: "nano", messages: [{ role: "user", content: text }], stream: false });
const file = '{"who":"Karomi",\\n<|code_to_edit|>\\n"qty":4,\\n<|/code_to_edit|>\\n"item":"melu"}';
const edit = sent(file + "<|!@#IS_NEXT_EDIT!@#|>"), streamed = { ...edit, stream: true, max_tokens: 4096 };
ok("inception: an edit", (await c.chatCompletionNonStream({ ...edit }, signal)).choices[0].message.content);
ok("inception: an edit in a stream", (await joined(c.chatCompletionStream({ ...streamed }, signal))).length > 0);
const change = '<|original_code|>\\n{"qty":4}\\n<|/original_code|><|update_snippet|>{"qty":5}<|/update_snippet|>';
const applied = await c.chatCompletionNonStream(sent(change + "<|!@#IS_APPLY!@#|>"), signal);
ok("inception: a change applied", applied.choices[0].message.content.length > 0);
""",
    "opencode-ai": """
const home = fs.mkdtempSync(path.join(os.tmpdir(), "opencode"));
const models = { nano: { tool_call: false, limit: { context: 1024, output: 64 } } };
fs.writeFileSync(path.join(home, "opencode.json"), JSON.stringify({
  provider: { redraft: { npm: "@ai-sdk/openai-compatible", options: { baseURL: base, apiKey: "none" }, models } },
  model: "redraft/nano",
  agent: { title: { disable: true }, plain: { mode: "primary", prompt: "Write the record.", tools: { "*": false } } },
}));
const off = { OPENCODE_DISABLE_AUTOUPDATE: "1", OPENCODE_DISABLE_MODELS_FETCH: "1" };
const run = ["run", "--agent", "plain", "--format", "json", asked];
const there = { cwd: home, env: { ...process.env, ...off, HOME: home, PWD: home }, encoding: "utf8", input: "" };
const done = spawnSync(path.resolve("node_modules/.bin/opencode"), run, there);
const parts = done.stdout.split("\\n").filter((line) => line.startsWith("{")).map((line) => JSON.parse(line));
if (done.status) console.log(done.stdout.slice(-300), done.stderr.slice(-300));
ok("it asks and is answered, whatever nano makes of it", parts.some((p) => p.type === "text" && p.part.text));
""",
}

"""Real clients against a real server: what each of them asked and got, as the record `clients`.

    python scripts/clients.py --record benchmarks/clients.json [--venv FOLDER ...] [--only NAME ...]

Clients are looked for in this environment and in the given ones, because some of them want other versions of the same
libraries. A client that is nowhere is recorded as not tried. Every check runs in a process of its own and prints the
name of each thing that worked; the openai client of JavaScript is tried if --node names a folder whose node_modules
has it.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import torch

import redraft
from redraft.cache import Prefix
from redraft.measure.record import new_record, write_record
from redraft.tasks import task

ROOT = Path(__file__).resolve().parent.parent
RECORD = "record\\nSend 417 melu to Karomi."
ANSWER = '{"who":"Karomi","qty":417,"item":"melu"}'

HEAD = f"""
import json, os, pathlib, subprocess, sys, tempfile
BASE, ROOT, GIVEN = sys.argv[1], sys.argv[1].removesuffix("/v1"), json.loads(sys.argv[2])
USER, ANSWER = [{{"role": "user", "content": "{RECORD}"}}], {ANSWER!r}
def ok(name, fine):
    print("ok" if fine else "WRONG", name, flush=True)
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
import instructor, openai, pydantic
class Order(pydantic.BaseModel):
    who: str
    qty: int
    item: str
for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
    c = instructor.from_openai(openai.OpenAI(base_url=BASE, api_key="none"), mode=mode)
    o = c.chat.completions.create(model="nano", messages=USER, response_model=Order, max_retries=0)
    ok(mode.name, isinstance(o.qty, int))
""",
    "langchain_openai": """
import pydantic
from langchain_openai import ChatOpenAI, OpenAI
class Order(pydantic.BaseModel):
    who: str
    qty: int
    item: str
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
ok("chat", litellm.completion(messages=USER, **m).choices[0].message.content == ANSWER)
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
pathlib.Path(home, "extra-openai-models.yaml").write_text(
    f"- model_id: nano\\n  model_name: nano\\n  api_base: {BASE}\\n  supports_schema: true\\n")
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
(told,) = json.loads((home / "benchmarks.json").read_text())["benchmarks"]
counts = told["metrics"]["request_totals"]
ok(f"{counts['successful']} requests one after another", counts["successful"] == 10 and not counts["errored"])
""",
    "aider_chat": """
home = tempfile.mkdtemp()
env = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
words = ["--model", "openai/nano", "--openai-api-base", BASE, "--openai-api-key", "none", "--no-git", "--yes-always",
         "--no-check-update", "--no-show-model-warnings", "--no-analytics", "--map-tokens", "0", "--edit-format", "ask"]
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
if done.returncode:
    print(done.stdout[-1000:])
operations, = re.findall(r"Tested: (\\d+)", done.stdout)
requests, = re.findall(r"(\\d+) generated", done.stdout)
ok(f"{requests} requests to the {operations} operations of /openapi.json, no 5xx, no hang, answers as it says",
   not done.returncode)
""",
}

SCRIPT = f"""
import OpenAI from "openai";
const base = process.argv[2], user = [{{role: "user", content: "{RECORD}"}}];
const ok = (name, fine) => console.log(fine ? "ok" : "WRONG", name);
const c = new OpenAI({{baseURL: base, apiKey: "none", maxRetries: 0}});
ok("models", (await c.models.list()).data.length > 0);
const done = await c.chat.completions.create({{model: "nano", messages: user, seed: 7}});
ok("chat", done.choices[0].message.content === '{ANSWER}');
let said = "";
for await (const k of await c.chat.completions.create({{model: "nano", messages: user, seed: 7, stream: true}}))
  said += k.choices[0]?.delta?.content ?? "";
ok("stream", said === '{ANSWER}');
const schema = {{type: "object", properties: {{a: {{type: "boolean"}}}}, required: ["a"], additionalProperties: false}};
const held = await c.chat.completions.create({{model: "nano", messages: user,
  response_format: {{type: "json_schema", json_schema: {{name: "x", schema}}}}}});
ok("schema", typeof JSON.parse(held.choices[0].message.content).a === "boolean");
try {{ await c.models.retrieve("none"); ok("errors", false); }}
catch (e) {{ ok("errors", e.code === "model_not_found" && e.status === 404); }}
"""


def main() -> int:
    """Try every client, print, record. The exit code is 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", type=Path, help="write the record to this file")
    parser.add_argument("--venv", type=Path, action="append", default=[], help="another environment to look in")
    parser.add_argument("--only", action="append", choices=[*PYTHON], help="try these, and no others")
    parser.add_argument("--node", type=Path, help="folder with node_modules/openai")
    arguments = parser.parse_args()
    # Schemathesis finds answers that take thousands of steps.
    command = [sys.executable, "-m", "redraft", "serve", "--port", "0", "--quiet", "--max-seconds", "5"]
    found: dict[str, dict[str, Any]] = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        base = server.stdout.readline().strip() + "/v1"
        try:
            given = json.dumps(_given(40))
            for name, code in PYTHON.items():
                if arguments.only and name not in arguments.only:
                    continue
                found[name] = _python(name, code, [base, given], [Path(sys.prefix), *arguments.venv])
            found["openai (JavaScript)"] = _node(arguments.node, base)
        finally:
            server.terminate()
    for name, told in found.items():
        print(f"{name} {told['version']}: {told['said']}")
    tried = {name: told for name, told in found.items() if told["version"]}
    wrong = [name for name, told in tried.items() if told["wrong"]]
    claims = [
        (f"{name} {told['version']} against a server on nano", "all right: " + ", ".join(told["right"]))
        for name, told in tried.items()
        if not told["wrong"]
    ]
    if arguments.record:
        record = new_record("clients", workload={"model": "nano"}, figures=found, summary=claims)
        write_record(record, arguments.record)
    return 1 if wrong else 0


def _given(count: int) -> dict[str, object]:
    """What is too long for a line: records with their answers among wrong ones, and how likely the answers are."""
    engine, rng = redraft.load("nano"), Random(0)
    examples = [example for example, _ in zip(task("records").examples("held_out", 5), range(count), strict=False)]
    rows, nats = [], 0.0
    for example in examples:
        choices = rng.sample([other.answer for other in examples if other is not example], 3)
        choices.insert(gold := rng.randrange(4), example.answer)
        prompt = engine.text.render([{"role": "user", "content": example.prompt}])
        rows.append({"prompt": prompt, "choices": choices, "gold": gold, "answer": example.answer})
        ids = torch.tensor(engine.text.encode(example.answer, bos=True))
        with torch.inference_mode():
            hidden = engine.model.encode(ids, Prefix(engine.model.config.layers, room=len(ids)))
            log_p = torch.log_softmax(engine.model.logits(hidden), dim=-1)
        nats -= float(log_p[torch.arange(len(ids) - 1), ids[1:]].sum())
    perplexity = math.exp(nats / sum(len(example.answer.encode()) for example in examples))
    return {"folder": str(engine.folder), "rows": rows, "perplexity": perplexity}


def _python(name: str, code: str, given: list[str], environments: list[Path]) -> dict[str, object]:
    for folder in environments:
        python = folder / "bin" / "python"
        package = name.replace("_", "-")
        asked = f"import importlib.metadata as m; print(m.version({package!r}))"
        version = subprocess.run([python, "-c", asked], capture_output=True, text=True)
        if version.returncode == 0:
            return _told(version.stdout.strip(), [str(python), "-c", HEAD + code, *given], folder)
    return {"version": None, "said": "not installed, not tried", "right": [], "wrong": False}


def _node(folder: Path | None, base: str) -> dict[str, object]:
    if folder is None:
        return {"version": None, "said": "not installed, not tried", "right": [], "wrong": False}
    script = folder / "check.mjs"
    script.write_text(SCRIPT, encoding="utf-8")
    package = folder / "node_modules" / "openai" / "package.json"
    version = json.loads(package.read_text(encoding="utf-8"))["version"]
    return _told(version, ["node", str(script), base], folder)


def _told(version: str | None, command: list[str], folder: Path) -> dict[str, object]:
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=600)
    lines = done.stdout.splitlines()
    right = [line[3:] for line in lines if line.startswith("ok ")]
    wrong = [line for line in lines if not line.startswith("ok ")] + done.stderr.strip().splitlines()[-1:] * (
        done.returncode != 0
    )
    said = f"{len(right)} right" + (f", wrong: {wrong}" if wrong else "")
    return {"version": version, "said": said, "right": right, "wrong": bool(wrong)}


if __name__ == "__main__":
    sys.exit(main())

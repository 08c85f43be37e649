"""llama.cpp's own endpoints, by what its web page, its server's tests and editors' plugins send."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2

PROMPT = "<|turn>user\nrecord\nSend 417 melu to Karomi.<turn|>\n<|turn>model\n"
SCHEMA = {
    "type": "object",
    "properties": {"who": {"type": "string"}},
    "required": ["who"],
    "additionalProperties": False,
}


def asked(http: httpx2.Client, **body: Any) -> Any:
    reply = http.post("/completion", json={"seed": 7, "n_predict": 32} | body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_completion_is_the_text_of_openai_s_in_llama_cpp_s_form(http: httpx2.Client) -> None:
    known = http.post("/v1/completions", json={"prompt": PROMPT, "seed": 7, "max_tokens": 32}).json()
    done = asked(http, prompt=PROMPT, return_tokens=True, cache_prompt=True, id_slot=-1, samplers=["top_k"])
    assert done["content"] == known["choices"][0]["text"]
    assert (done["stop"], done["stop_type"], done["truncated"]) == (True, "eos", False)
    assert len(done["tokens"]) == done["tokens_predicted"] == known["usage"]["completion_tokens"]
    assert done["tokens_evaluated"] == done["timings"]["prompt_n"] == known["usage"]["prompt_tokens"]
    assert (done["generation_settings"], PROMPT in done["prompt"]) == ({"seed": 7, "n_predict": 32}, True)
    assert asked(http, prompt=PROMPT)["tokens"] == []
    short = asked(http, prompt=PROMPT, n_predict=3)
    assert (short["tokens_predicted"], short["stop_type"]) == (3, "limit")
    for stops in (["417"], ["nowhere", "417"]):
        cut = asked(http, prompt=PROMPT, stop=stops)
        assert (cut["stop_type"], cut["stopping_word"], "417" in cut["content"]) == ("word", "417", False)


def test_a_stream_is_the_same_in_pieces_without_a_mark_at_the_end(http: httpx2.Client) -> None:
    whole = asked(http, prompt=PROMPT)
    reply = http.post("/completion", json={"prompt": PROMPT, "seed": 7, "n_predict": 32, "stream": True})
    *pieces, last = [json.loads(line.removeprefix("data: ")) for line in reply.text.splitlines() if line]
    assert "".join(piece["content"] for piece in pieces) + last["content"] == whole["content"]
    assert [piece["stop"] for piece in pieces] == [False] * len(pieces)
    assert sum(len(piece["tokens"]) for piece in pieces) == last["tokens_predicted"]
    for name in ("stop", "stop_type", "tokens_predicted", "generation_settings", "prompt"):
        assert last[name] == whole[name]


def test_prompts_come_as_text_as_ids_mixed_and_several_at_a_time(http: httpx2.Client) -> None:
    ids = http.post("/tokenize", json={"content": PROMPT, "add_special": True}).json()["tokens"]
    plain = asked(http, prompt=PROMPT)["content"]
    half = len(ids) // 2
    assert asked(http, prompt=ids)["content"] == plain
    assert asked(http, prompt=[*ids[:half], *ids[half:-1], "\n"])["tokens_evaluated"] == len(ids)
    several = asked(http, prompt=[ids, PROMPT])
    assert [(one["index"], one["content"]) for one in several] == [(0, plain), (1, plain)]
    assert len(asked(http, prompt=["record", "sudoku"], n_predict=2)) == 2


def test_a_schema_or_a_grammar_holds_the_answer(http: httpx2.Client) -> None:
    held = asked(http, prompt=PROMPT, json_schema=SCHEMA, stop=["}"])
    assert json.loads(held["content"])["who"]
    assert asked(http, prompt=PROMPT, grammar='start: "a" "a" "b"')["content"] == "aab"
    assert asked(http, prompt=PROMPT, grammar="", n_predict=2)["tokens_predicted"] == 2
    listed = 'root ::= "a"{2,2} item # twice\nitem ::= "-" [x-z]{3} | "-" "b"+ "."'
    assert re.fullmatch(r"aa-([x-z]{3}|b+\.)", asked(http, prompt=PROMPT, grammar=listed, n_predict=24)["content"])
    reply = http.post("/completion", json={"prompt": PROMPT, "grammar": 'root ::= "a" missing'})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "grammar")
    assert "missing" in reply.json()["error"]["message"]


def test_probabilities_have_ids(http: httpx2.Client) -> None:
    done = asked(http, prompt=PROMPT, n_probs=3, n_predict=4, return_tokens=True)
    found = done["completion_probabilities"]
    assert [one["id"] for one in found] == done["tokens"]
    assert all(len(one["top_logprobs"]) == 3 and one["logprob"] <= 0 for one in found)
    for more in ({}, {"logit_bias": {"3": 100}}):  # the second for tokens without text
        sent = {
            "prompt": PROMPT,
            "n_probs": 3,
            "n_predict": 4,
            "canvas": {"width": 4},
            "seed": 7,
            "stream": True,
        } | more
        lines = http.post("/completion", json=sent).text.splitlines()
        parts = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        whole = asked(http, **{**sent, "stream": False, "return_tokens": True})
        for name in ("tokens", "completion_probabilities"):
            assert [row for part in parts[:-1] for row in part.get(name, [])] == whole[name] != []


def test_props_and_slots_say_what_a_client_reads(http: httpx2.Client) -> None:
    props = http.get("/props").json()
    settings = props["default_generation_settings"]
    assert (settings["n_ctx"], props["model_alias"], props["modalities"]) == (
        1024,
        "nano",
        {"vision": False, "audio": False},
    )
    assert "<|turn>" in props["chat_template"]
    slots = http.get("/slots").json()
    assert len(slots) == props["total_slots"] == 64
    assert [slot["is_processing"] for slot in slots] == [False] * 64
    sent_back = settings["params"] | {"seed": 7, "n_predict": 32, "stream": False}
    assert asked(http, prompt=PROMPT, **sent_back)["content"] == asked(http, prompt=PROMPT)["content"]
    assert http.post("/props", json={}).status_code == 405

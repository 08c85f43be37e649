"""Real clients against a real server: what each of them asked and got, as the record `clients`.

    python bench/clients.py --record bench/records/clients.json [--venv FOLDER ...] [--node FOLDER ...]
        [--only NAME ...]
    python bench/clients.py --images FOLDER --record bench/records/clients-images.json [--node FOLDER]

Clients are looked for in this environment and in the given ones, because some of them want other versions of the same
libraries, and those of JavaScript in the node_modules of the given folders. A client that is nowhere is recorded as not
tried. Every check (client_checks.py) runs in a process of its own and prints the name of each thing that worked. Those
of llm, aider and Continue find the server by the lines of `redraft connect`.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from base64 import b64encode
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image

import redraft
from client_checks import HEAD, IMAGES_NODE, IMAGES_PYTHON, NODE, NODE_HEAD, PYTHON
from command import served
from redraft.cache import Prefix
from redraft.cli.connect import TOOLS, Address
from redraft.measure.record import new_record, write_record
from redraft.tasks import task

UNTRIED: dict[str, Any] = {"version": None, "said": "not installed, not tried", "right": [], "wrong": False}


def main() -> int:
    """Try every client, print, record. The exit code is 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", type=Path, help="write the record to this file")
    parser.add_argument("--venv", type=Path, action="append", default=[], help="another environment to look in")
    parser.add_argument("--node", type=Path, action="append", default=[], help="a folder with node_modules to look in")
    names = [*PYTHON, *(f"{name} (JavaScript)" for name in NODE)]
    parser.add_argument("--only", action="append", choices=names, help="try these, and no others")
    parser.add_argument("--images", type=Path, metavar="FOLDER", help="try images alone, on this checkpoint")
    arguments = parser.parse_args()
    if arguments.images is not None:
        return _images(arguments)
    found: dict[str, dict[str, Any]] = {}
    # Schemathesis finds answers that take thousands of steps.
    with served("--model", "nano-sudoku", "--name", "nano", "--max-seconds", "5") as (url, _):
        given = [f"{url}/v1", json.dumps(_given(40) | {"connect": _connect(f"{url}/v1")})]
        for name in arguments.only or names:
            print(f"{name} …", file=sys.stderr, flush=True)
            if name in PYTHON:
                found[name] = _python(name, given, [Path(sys.prefix), *arguments.venv])
            else:
                found[name] = _node(name.removesuffix(" (JavaScript)"), given, arguments.node)
    for name, reported in found.items():
        print(f"{name} {reported['version']}: {reported['said']}")
    tried = {name: reported for name, reported in found.items() if reported["version"]}
    wrong = [name for name, reported in tried.items() if reported["wrong"]]
    claims = [
        (f"{name} {reported['version']} against a server on nano-sudoku", "all right: " + ", ".join(reported["right"]))
        for name, reported in tried.items()
        if not reported["wrong"]
    ]
    if arguments.record:
        record = new_record("clients", workload={"model": "nano-sudoku"}, figures=found, summary=claims)
        write_record(record, arguments.record)
    return 1 if wrong else 0


def _images(arguments: argparse.Namespace) -> int:
    """Both clients of OpenAI with images, on a checkpoint that reads them; what is right is what Python answers."""
    engine, rng = redraft.load(arguments.images, device="cpu"), np.random.default_rng(0)
    pictures = [Image.fromarray(rng.integers(0, 256, (40, 60, 3), np.uint8)) for _ in range(2)]
    turn = [{"role": "user", "content": [{"type": "image", "image": pictures[0]}]}]
    done = engine.generate(turn, seed=7, max_tokens=16)
    given = {"model": arguments.images.name, "answer": done.text, "tokens": done.prompt_tokens}
    given |= {"images": [_url(picture) for picture in pictures]}
    found: dict[str, dict[str, Any]] = {}
    with served(str(arguments.images), "--device", "cpu") as (url, _):
        sent = [f"{url}/v1", json.dumps(given)]
        found["openai"] = _python("openai", sent, [Path(sys.prefix)], IMAGES_PYTHON)
        found["openai (JavaScript)"] = _node("openai", sent, arguments.node, IMAGES_NODE)
    for name, reported in found.items():
        print(f"{name} {reported['version']}: {reported['said']}")
    tried = {name: reported for name, reported in found.items() if reported["version"]}
    claims = [
        (f"images by {name} {reported['version']} against a server", "all right: " + ", ".join(reported["right"]))
        for name, reported in tried.items()
        if not reported["wrong"]
    ]
    if arguments.record:
        workload = {"model": "small, untrained, with a vision tower", "images": 2}
        write_record(new_record("clients-images", workload=workload, figures=found, summary=claims), arguments.record)
    return int(any(reported["wrong"] for reported in tried.values()))


def _url(picture: Image.Image) -> str:
    file = BytesIO()
    picture.save(file, "PNG")
    return f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"


def _given(count: int) -> dict[str, object]:
    """What is too long for a line: records with their answers among wrong ones, and how likely the answers are."""
    engine, rng = redraft.load("nano-sudoku"), Random(0)
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


def _connect(base: str) -> dict[str, str]:
    """What `redraft connect` prints for the tools that it configures."""
    place = Address(base.removesuffix("/v1"), "nano")
    return {name: TOOLS[name].lines(place) for name in ("aider", "continue", "llm")}


def _python(name: str, given: list[str], environments: list[Path], check: str | None = None) -> dict[str, Any]:
    for folder in environments:
        python = folder / "bin" / "python"
        package = name.replace("_", "-")
        asked = f"import importlib.metadata as m; print(m.version({package!r}))"
        version = subprocess.run([python, "-c", asked], capture_output=True, text=True)
        if version.returncode == 0:
            return _reported(
                version.stdout.strip(), [str(python), "-c", HEAD + (check or PYTHON[name]), *given], folder
            )
    return dict(UNTRIED)


def _node(name: str, given: list[str], folders: list[Path], check: str | None = None) -> dict[str, Any]:
    for folder in folders:
        package = folder / "node_modules" / name / "package.json"
        if package.exists():
            script = folder / "check.mjs"
            script.write_text(NODE_HEAD + (check or NODE[name]), encoding="utf-8")
            version = json.loads(package.read_text(encoding="utf-8"))["version"]
            return _reported(version, ["node", str(script.resolve()), *given], folder)
    return dict(UNTRIED)


def _reported(version: str, command: list[str], folder: Path) -> dict[str, object]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=600)
    except subprocess.TimeoutExpired:
        return {"version": version, "said": "no end after 600 s", "right": [], "wrong": True}
    lines = done.stdout.splitlines()
    right = [line[3:] for line in lines if line.startswith("ok ")]
    wrong = [line for line in lines if not line.startswith("ok ")] + done.stderr.strip().splitlines()[-1:] * (
        done.returncode != 0
    )
    said = f"{len(right)} right" + (f", wrong: {wrong}" if wrong else "")
    return {"version": version, "said": said, "right": right, "wrong": bool(wrong or done.returncode or not right)}


if __name__ == "__main__":
    sys.exit(main())

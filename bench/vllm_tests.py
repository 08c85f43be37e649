"""vLLM's entry-point tests against this server: what passed, what failed, and what asks for something that is not here.

    python bench/vllm_tests.py UNPACKED --record bench/records/peers-vllm.json

UNPACKED is a clone of vLLM or its unpacked source distribution. The tests that ask a server over HTTP are copied to a
temporary folder and run there; `vllm_conftest.py` replaces their fixtures, nothing of a test is changed, none is kept.
They are made for released models with adapters, thinking and tools of their own; here they meet nano. The packages
pytest-asyncio, jsonschema, regex and requests have to be installed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from command import served
from peer_tests import report
from redraft.errors import RecordError
from redraft.measure.record import check_place
from redraft.weights.source import locate

TESTS = Path("tests/entrypoints")
ASKED = (
    *("openai/chat_completion", "openai/completion", "openai/responses", "openai/models", "openai/decisions"),
    *("openai/test_chunked_prompt.py", "openai/test_return_token_ids.py", "openai/test_stop_token_ids.py"),
    *("openai/test_tool_choice_content_none.py", "openai/test_return_tokens_as_ids.py"),
    *("serve/tokenize", "serve/instrumentator/test_basic.py", "serve/exception_handling", "serve/middleware"),
)
"""Folders and files whose endpoints are here. The rest is not applicable, for the reason in ELSEWHERE."""

ELSEWHERE: Mapping[str, str] = {
    "anthropic": "Anthropic's interface",
    "cohere": "Cohere's interface",
    "cli": "vLLM's command line",
    "common": "vLLM's command line",
    "generate": "scores and decisions in a form of vLLM's own",
    "launchers": "how vLLM starts and stops",
    "llm": "vLLM's Python interface",
    "multimodal": "images, sounds and videos from the web for a model of images",
    "pooling": "embeddings, classes and ranks",
    "rl": "weights exchanged while the server runs",
    "scale_out": "vLLM's own endpoints for parts of a server",
    "serve": "vLLM's own endpoints and middleware",
    "speech_to_text": "sound",
    "tool_parsers": "parsers for calls of other models",
    "unit_tests": "a class of vLLM's",
    "openai": "a model, a reward or a parser of vLLM's own",
}
NOT_HERE: Mapping[str, str] = {
    r"tool_choice auto|tools auto": "a model that calls tools of its own accord",
    r"enable_thinking|reasoning": "a model that thinks",
    r"gpt_oss|openai_harmony|httpx'|huggingface|on the Hub|fixture '|DownloadError": "files or packages of its own",
    r"context is 1024|8192|max_model_len": "a longer context than nano's",
    r"lora|served_model|VLLM_VERSION|fingerprint|Qwen/": "the model or version that the tests start",
    r"prompt_tokens ==|completion_tokens ==|\.usage ==|tokens\[|== tokens|_Meta|assert 4 >= 5": "its own tokens",
    r"\.lower\(\)|\"312\"|'312'|\"QED\"|'30' in|\"30\"|re\.(search|fullmatch)|science fair": "its own model's words",
}
"""A pattern of the line that failed or of its error: what it asks for that is not a matter of the server."""


def main() -> int:
    """Run, print, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("unpacked", type=Path, help="a clone of vLLM, or its unpacked source distribution")
    parser.add_argument("--model", default="nano", help="the model that is asked (default: nano)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="also write the record to this file")
    arguments = parser.parse_args()
    if arguments.record is not None:
        check_place(arguments.record)
    if not (arguments.unpacked / TESTS).is_dir():
        raise RecordError(f"{arguments.unpacked} has no {TESTS}; unpack vLLM's sources there")
    workload = {"model": arguments.model, "tests": str(TESTS), "version": _version(arguments.unpacked)}
    what = f"vLLM's own entry-point tests against a server on {arguments.model}"
    report("peers-vllm", what, dict(outcomes(arguments.unpacked, arguments.model)), workload, arguments.record)
    return 0


def outcomes(unpacked: Path, model: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Of each test that asks a server, and of each other file."""
    asked = []
    for path in sorted((unpacked / TESTS).rglob("test_*.py")):
        name = path.relative_to(unpacked / TESTS).as_posix()
        if not name.startswith(ASKED):
            why = ELSEWHERE.get(name.partition("/")[0], "something of vLLM's own")
            yield f"{name} (all)", {"outcome": "not applicable", "why": f"it asks for {why}"}
        elif not re.search(r"RemoteOpenAIServer|client: ", path.read_text(encoding="utf-8")):
            yield f"{name} (all)", {"outcome": "not applicable", "why": "it asks a class of vLLM's, and no server"}
        else:
            asked.append(name)
    with tempfile.TemporaryDirectory() as place:
        for case in ET.parse(_run(unpacked, Path(place), asked, model)).getroot().iter("testcase"):
            where = case.get("classname", "").removeprefix("tests.entrypoints.")
            yield f"{where}::{case.get('name')}", _outcome(case)


def _run(unpacked: Path, place: Path, asked: list[str], model: str) -> Path:
    """Run pytest on copies against a server of ours; returns its report."""
    shutil.copytree(unpacked / TESTS, place / TESTS)
    (place / "tests" / "__init__.py").touch()
    (place / "tests" / "entrypoints" / "conftest.py").unlink()
    shutil.copy(Path(__file__).with_name("vllm_conftest.py"), place / "conftest.py")
    with served("--model", model, "--name", model, "--alias", "*") as (url, _):
        flags = ["-q", "-p", "no:cacheprovider", "-o", "addopts=", "--timeout=120", f"--junitxml={place / 'found.xml'}"]
        flags += ["--rootdir", str(place), "--continue-on-collection-errors"]
        path = os.pathsep.join(filter(None, (str(place), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"PEER_URL": url, "PEER_MODEL": str(locate(model)), "PYTHONPATH": path}
        files = [str(TESTS / name) for name in asked]
        subprocess.run([sys.executable, "-m", "pytest", *flags, *files], cwd=place, env=environment, check=False)
    return place / "found.xml"


def _outcome(case: Any) -> dict[str, str]:
    """What came of one test, and why."""
    wrong = next((one for kind in ("failure", "error") if (one := case.find(kind)) is not None), None)
    if (skipped := case.find("skipped")) is not None:
        return {"outcome": "not applicable", "why": f"it asks for {skipped.get('message', '')}"}
    if wrong is None:
        return {"outcome": "passed", "why": ""}
    lines = re.findall(r"^>\s+(.*)$", wrong.text or "", re.MULTILINE)
    line = lines[0] if lines else (wrong.get("message") or "").partition("\n")[0]
    said = (wrong.get("message") or "").partition("\n")[0]
    why = next((why for pattern, why in NOT_HERE.items() if re.search(pattern, f"{line} {said}")), None)
    if why is not None:
        return {"outcome": "not applicable", "why": f"it asks for {why}: {line} ({said:.200})"}
    return {"outcome": "failed", "why": f"{line} ({said:.300})"}


def _version(unpacked: Path) -> str:
    """The release, where the folder says so."""
    place = unpacked / "PKG-INFO"
    found = re.search(r"^Version: (.*)$", place.read_text(encoding="utf-8"), re.MULTILINE) if place.exists() else None
    return found[1] if found else "a clone"


if __name__ == "__main__":
    sys.exit(main())

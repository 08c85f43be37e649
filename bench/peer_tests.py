"""llama.cpp's server tests against this server: what passed, what failed, and what asks for something that is not here.

    python bench/peer_tests.py UNPACKED --record bench/records/peers-llamacpp.json

UNPACKED is a clone of llama.cpp, or an unpacked source distribution of llama-cpp-python, which has one inside. Its
tests are copied to a temporary folder and run there as they are, in their own mode for a server that runs already:
nothing of a test is changed, and none is kept. A failed test is recorded with the line that failed. Where that line
asks for the words or token counts of the tests' own model, or for how their server was started, the test is not
applicable; a wrong status always counts as failed.
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
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from command import served
from redraft.errors import RecordError
from redraft.measure.record import check_place, new_record, write_record

TESTS = Path("tools/server/tests")
ASKED = ("basic", "chat_completion", "compat_oai_responses", "completion", "infill", "security", "tokenize")
"""Files whose endpoints are here. Another file is not applicable, for the reason in ELSEWHERE."""

ELSEWHERE: Mapping[str, str] = {
    "anthropic": "Anthropic's interface",
    "audio": "audio",
    "embedding": "embeddings",
    "rerank": "reranking",
    "lora": "adapters exchanged while the server runs",
    "slot": "slots that are saved and loaded",
    "ctx_shift": "a context that slides",
    "spec": "a draft model",
    "router": "several models behind one server",
    "sleep": "a server that unloads its model",
    "vision": "a model of images that has to be downloaded",
    "mtmd": "a model of images that has to be downloaded",
    "tool": "models that have to be downloaded, or tools that the server runs",
    "template": "templates given when the server starts",
    "ignore_eos": "templates given when the server starts",
    "proxy": "a proxy for tools",
    "mcp": "a proxy for tools",
    "gcp": "a cloud's own interface",
    "vertex": "a cloud's own interface",
}
NOT_HERE: Mapping[str, str] = {
    r"match_regex|re_content": "the words of the tests' own model",
    r"n_prompt|n_predicted|prompt_n|predicted_n|tokens_cached": "token counts of the tests' own model",
    r"system_fingerprint|\.gguf|model_alias|build_info": "the name of the tests' own build or model",
    r"server\.(n_|seed|chat_template|model_tags)|__verbose|<s>|no_webui|no_ui": "how the tests start their server",
}
"""A pattern of the line that failed: what it asks for that no other server has."""


def main() -> int:
    """Run, print, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("unpacked", type=Path, help="a clone of llama.cpp, or what has one inside")
    parser.add_argument("--record", type=Path, metavar="FILE", help="also write the record to this file")
    arguments = parser.parse_args()
    if arguments.record is not None:
        check_place(arguments.record)
    folder = next(
        (path for path in (arguments.unpacked, *arguments.unpacked.rglob("llama.cpp")) if (path / TESTS).is_dir()), None
    )
    if folder is None:
        raise RecordError(f"{arguments.unpacked} has no {TESTS}; unpack llama.cpp's sources there")
    workload = {"model": "nano-sudoku", "tests": str(TESTS), "files": len(list((folder / TESTS).glob("unit/*.py")))}
    what = "llama.cpp's own server tests against a server on nano-sudoku"
    report("peers-llamacpp", what, dict(outcomes(folder / TESTS)), workload, arguments.record)
    return 0


def report(
    name: str, what: str, figures: dict[str, dict[str, str]], workload: dict[str, Any], file: Path | None
) -> None:
    """Print why tests failed and how many did, and keep it as a record if there is a file for it."""
    counts = Counter(one["outcome"] for one in figures.values())
    said = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "not applicable"))
    for test, one in figures.items():
        if one["outcome"] == "failed":
            print(f"{test}: {one['why']}")
    record = new_record(name, workload=workload, figures=figures, summary=[(what, said)])
    print(record)
    if file is not None:
        write_record(record, file)


def outcomes(tests: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Of each test of the files that are asked, and of each other file."""
    for path in sorted((tests / "unit").glob("test_*.py")):
        name = path.stem.removeprefix("test_")
        if name not in ASKED:
            why = next((why for part, why in ELSEWHERE.items() if part in name), "something of llama.cpp's own")
            yield f"{path.stem} (all)", {"outcome": "not applicable", "why": f"it asks for {why}"}
    with tempfile.TemporaryDirectory() as place:
        copied = Path(place) / "tests"
        shutil.copytree(tests, copied)
        (copied / "wget.py").write_text('"""Imported by the tests, for models that are not downloaded here."""\n')
        for case in ET.parse(_run(copied, Path(place) / "found.xml")).getroot().iter("testcase"):
            yield f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}", _outcome(case)


def _run(copied: Path, report: Path) -> Path:
    """Run pytest on the copies against a server of ours; returns its report."""
    with served("--model", "nano-sudoku", "--name", "nano", "--alias", "*") as (url, _):
        files = [f"unit/test_{name}.py" for name in ASKED if (copied / "unit" / f"test_{name}.py").exists()]
        flags = ["-q", "-p", "no:cacheprovider", "-o", "addopts=", "-m", "not slow", f"--junitxml={report}"]
        environment = os.environ | {
            "DEBUG_EXTERNAL": "1",
            "PORT": url.rpartition(":")[2],
            "PYTHONPATH": f"{copied}:{os.environ.get('PYTHONPATH', '')}",
        }
        subprocess.run([sys.executable, "-m", "pytest", *flags, *files], cwd=copied, env=environment, check=False)
    return report


def _outcome(case: Any) -> dict[str, str]:
    """What came of one test, and why."""
    wrong = next((one for kind in ("failure", "error") if (one := case.find(kind)) is not None), None)
    if case.find("skipped") is not None:
        return {"outcome": "not applicable", "why": "it is skipped where it comes from"}
    if wrong is None:
        return {"outcome": "passed", "why": ""}
    lines = re.findall(r"^>\s+(.*)$", wrong.text or "", re.MULTILINE)
    line = lines[-1] if lines else (wrong.get("message") or "").partition("\n")[0]
    why = next((why for pattern, why in NOT_HERE.items() if re.search(pattern, line)), None)
    why = None if "status_code" in line else why
    if why is not None:
        return {"outcome": "not applicable", "why": f"it asks for {why}: {line}"}
    said = (wrong.get("message") or "").partition("\n")[0]
    return {"outcome": "failed", "why": f"{line} ({said:.200})"}


if __name__ == "__main__":
    sys.exit(main())

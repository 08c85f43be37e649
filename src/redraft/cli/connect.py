"""`redraft connect`: the lines that point another tool at a server of ours."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from redraft.cli.common import Commands, command, print_json
from redraft.cli.serve import PORT
from redraft.errors import RequestError, RunError

EPILOG = """The lines go to stdout; what else to do goes to stderr. With --write they are added to the tool's own file,
a copy of which is kept beside it as FILE.before-redraft; nothing is written if they are there already.

examples:
  redraft connect openai
  redraft connect llm --write
  redraft connect continue --url http://gpu.lan:8642 --name my-model"""


@dataclass(frozen=True)
class Place:
    """A server, and what its model is called there."""

    url: str
    name: str

    @property
    def base(self) -> str:
        """The base URL of OpenAI's clients."""
        return f"{self.url}/v1"


@dataclass(frozen=True)
class Tool:
    """How one tool is told. `file`, in the home folder, is where the lines belong; `merge` adds them to it."""

    lines: Callable[[Place], str]
    file: str | None = None
    merge: Callable[[str, Place], str] | None = None
    note: str = ""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "connect", "print the lines that point another tool here", run, epilog=EPILOG)
    parser.add_argument("tool", choices=sorted(TOOLS), metavar="TOOL", help=", ".join(sorted(TOOLS)))
    parser.add_argument("--url", default=f"http://127.0.0.1:{PORT}", help="of the server (default: that of serve)")
    parser.add_argument("--name", default="nano", metavar="NAME", help="of the model there (default: nano)")
    parser.add_argument("--write", action="store_true", help="add the lines to the tool's own file")


def run(arguments: argparse.Namespace) -> int:
    """Print, or write."""
    tool, place = TOOLS[arguments.tool], Place(arguments.url.rstrip("/"), arguments.name)
    if not place.url.startswith(("http://", "https://")):
        raise RequestError(f"--url is {arguments.url!r}; it must begin with http:// or https://")
    if not place.name.strip():
        raise RequestError(f"--name is {place.name!r}; give what the server calls its model (see /v1/models)")
    path = None if tool.file is None else Path.home() / tool.file
    if arguments.write:
        if path is None or tool.merge is None:
            raise RequestError(f"{arguments.tool} has no file that can be written here; copy the lines")
        _write(path, tool.merge, place)
    if arguments.json:
        print_json({"tool": arguments.tool, "file": None if path is None else str(path), "lines": tool.lines(place)})
        return 0
    if not arguments.write:
        print(tool.lines(place))
    if path is not None:
        print(f"redraft: {'written to' if arguments.write else 'these belong in'} {path}", file=sys.stderr)
    if tool.note:
        print(f"redraft: {tool.note}", file=sys.stderr)
    return 0


def _write(path: Path, merge: Callable[[str, Place], str], place: Place) -> None:
    """Add the lines, a copy of the old file beside it. Raises RequestError and RunError."""
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        after = merge(before, place)
        if after == before:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        if before:
            path.with_name(path.name + ".before-redraft").write_text(before, encoding="utf-8")
        beside = path.with_name(path.name + ".new")
        beside.write_text(after, encoding="utf-8")
        os.replace(beside, path)
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"{path} cannot be written: {error}") from None


def _merge_json(before: str, more: Mapping[str, object]) -> str:
    """Objects joined, level by level. Raises RequestError where the file has comments or something else in the way."""
    try:
        found = json.loads(before) if before.strip() else {}
    except ValueError as error:
        raise RequestError(f"the file is not plain JSON ({error}); copy the lines by hand") from None
    if not isinstance(found, dict):
        raise RequestError(f"the file holds a {type(found).__name__}; copy the lines by hand")
    return json.dumps(_joined(found, more), indent=2, ensure_ascii=False) + "\n"


def _joined(one: Mapping[str, object], two: Mapping[str, object]) -> dict[str, object]:
    found = dict(one)
    for key, value in two.items():
        inner = found.get(key)
        found[key] = _joined(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return found


def _append(lines: Callable[[Place], str]) -> Callable[[str, Place], str]:
    """Lines at the end of a file, once."""

    def merge(before: str, place: Place) -> str:
        added = lines(place).strip()
        return (
            before if added in before else before + ("" if before.endswith("\n") or not before else "\n") + added + "\n"
        )

    return merge


def _llm(place: Place) -> str:
    return f"""- model_id: {place.name}
  model_name: {place.name}
  api_base: {place.base}
  supports_schema: true"""


def _aider(place: Place) -> str:
    return f"openai-api-base: {place.base}\nopenai-api-key: none\nmodel: openai/{place.name}"


def _continue(place: Place) -> str:
    return f"""name: redraft
version: 1.0.0
schema: v1
models:
  - name: redraft
    provider: openai
    model: {place.name}
    apiBase: {place.base}
    roles: [chat, edit, apply]
  - name: redraft infill
    provider: mistral
    model: {place.name}
    apiBase: {place.base}/
    roles: [autocomplete]"""


def _zed(place: Place) -> dict[str, object]:
    model = {"name": place.name, "max_tokens": 1024, "capabilities": {"tools": False}}
    return {
        "language_models": {"openai_compatible": {"redraft": {"api_url": place.base, "available_models": [model]}}},
        "edit_predictions": {
            "provider": "open_ai_compatible_api",
            "open_ai_compatible_api": {
                "api_url": f"{place.base}/completions",
                "model": place.name,
                "prompt_format": "qwen",
                "max_output_tokens": 64,
            },
        },
    }


def _vim(place: Place) -> str:
    return f"let g:llama_config = {{ 'endpoint_fim': '{place.url}/infill', 'n_predict': 32 }}"


TOOLS: Mapping[str, Tool] = {
    "aider": Tool(_aider, ".aider.conf.yml", _append(_aider)),
    "continue": Tool(_continue, ".continue/config.yaml", note="if it is there, add only what stands under `models`"),
    "llama.vim": Tool(_vim, ".vimrc", _append(_vim)),
    "llm": Tool(_llm, ".config/io.datasette.llm/extra-openai-models.yaml", _append(_llm)),
    "openai": Tool(
        lambda place: f"export OPENAI_BASE_URL={place.base}\nexport OPENAI_API_KEY=none",
        note="for every program that uses OpenAI's own libraries",
    ),
    "zed": Tool(
        lambda place: json.dumps(_zed(place), indent=2),
        ".config/zed/settings.json",
        lambda before, place: _merge_json(before, _zed(place)),
    ),
}

"""`redraft connect`: the lines that point another tool at a server of ours."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from redraft.cli.common import Commands, command, note, print_json
from redraft.cli.serve import PORT
from redraft.errors import RequestError

EPILOG = """The lines go to stdout; the file they belong in goes to stderr. No file is written.

examples:
  redraft connect openai
  redraft connect llm >> ~/.config/io.datasette.llm/extra-openai-models.yaml
  redraft connect continue --url http://gpu.lan:8642 --name my-model"""

URL = re.compile(r"https?://(?:[\w.-]+|\[[\da-fA-F:.]+\])(?::\d{1,5})?(?:/[\w.~%@:+=-]*)*", re.ASCII)
"""Of letters that no shell, YAML or Vim takes for anything else."""
YAML_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
"""Plain words that YAML 1.1 reads as a boolean or null."""


@dataclass(frozen=True)
class Address:
    """A server, and what its model is called there."""

    url: str
    name: str

    @property
    def base(self) -> str:
        """The base URL of OpenAI's clients."""
        return f"{self.url}/v1"


@dataclass(frozen=True)
class ToolSettings:
    """The lines that configure one tool, and the file in the home folder where they belong."""

    lines: Callable[[Address], str]
    file: str | None = None
    note: str = ""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "connect", "print the lines that point another tool here", run, epilog=EPILOG)
    parser.add_argument("tool", choices=sorted(TOOLS), metavar="TOOL", help=", ".join(sorted(TOOLS)))
    parser.add_argument("--url", default=f"http://127.0.0.1:{PORT}", help="of the server (default: that of serve)")
    parser.add_argument(
        "--model", "--name", dest="name", default="nano", metavar="NAME", help="of the model there (default: nano)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print them."""
    tool, place = TOOLS[arguments.tool], Address(arguments.url.rstrip("/"), arguments.name)
    if not URL.fullmatch(place.url):
        raise RequestError(f"--url is {arguments.url!r}; write it as http://host:port or https://host/path")
    if not place.name.strip() or not place.name.isprintable():
        raise RequestError(f"--name is {place.name!r}; give what the server calls its model (see /v1/models)")
    if arguments.json:
        print_json({"tool": arguments.tool, "file": tool.file, "lines": tool.lines(place)})
        return 0
    print(tool.lines(place))
    if tool.file is not None:
        note(f"these lines belong in ~/{tool.file}")
    if tool.note:
        note(tool.note)
    return 0


def _yaml(text: str) -> str:
    """A text as YAML reads it: as it is, or in quotes where it would be something else."""
    plain = re.fullmatch(r"[A-Za-z][\w./-]*", text, re.ASCII) and text.lower() not in YAML_WORDS
    return text if plain else json.dumps(text, ensure_ascii=False)


def _llm(place: Address) -> str:
    return f"""- model_id: {_yaml(place.name)}
  model_name: {_yaml(place.name)}
  api_base: {place.base}
  supports_schema: true"""


def _aider(place: Address) -> str:
    return f"openai-api-base: {place.base}\nopenai-api-key: none\nmodel: {_yaml(f'openai/{place.name}')}"


def _continue(place: Address) -> str:
    return f"""name: redraft
version: 1.0.0
schema: v1
models:
  - name: redraft
    provider: openai
    model: {_yaml(place.name)}
    apiBase: {place.base}
    roles: [chat, edit, apply]
  - name: redraft infill
    provider: mistral
    model: {_yaml(place.name)}
    apiBase: {place.base}/
    roles: [autocomplete]"""


def _zed(place: Address) -> dict[str, object]:
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


def _vim(place: Address) -> str:
    return f"let g:llama_config = {{ 'endpoint_fim': '{place.url}/infill', 'n_predict': 32 }}"


TOOLS: Mapping[str, ToolSettings] = {
    "aider": ToolSettings(_aider, ".aider.conf.yml"),
    "continue": ToolSettings(
        _continue, ".continue/config.yaml", note="if it exists, add only what stands under `models`"
    ),
    "llama.vim": ToolSettings(_vim, ".vimrc"),
    "llm": ToolSettings(_llm, ".config/io.datasette.llm/extra-openai-models.yaml"),
    "openai": ToolSettings(
        lambda place: f"export OPENAI_BASE_URL={place.base}\nexport OPENAI_API_KEY=none",
        note="for every program that uses OpenAI's own libraries",
    ),
    "zed": ToolSettings(
        lambda place: json.dumps(_zed(place), indent=2),
        ".config/zed/settings.json",
        note="if it exists, merge these objects into it",
    ),
}

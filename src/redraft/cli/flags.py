"""The flags that several verbs share, each declared once: those of an answer come from the table in options.py.

A verb's own `--help` shows the everyday ones; `redraft help sampling` and `redraft help model` show all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redraft.errors import RequestError
from redraft.options import GROUPS, Option, Options, option_table

KINDS: Mapping[str, type] = {"int": int, "float": float, "str": str}


@dataclass(frozen=True)
class Flag:
    """One shared flag. `brief` is for a verb's own help, `full` for the topic's; `everyday` ones are in both."""

    name: str
    full: str
    brief: str = ""
    group: str = ""
    everyday: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)

    def add(self, parser: argparse._ActionsContainer, text: str) -> None:
        """Declare it with this help."""
        parser.add_argument(self.name, help=text, **self.settings)


def _sampling_flag(one: Option) -> Flag:
    settings: dict[str, Any] = {"default": None}
    if one.kind == "bool":
        settings = {"action": "store_true"}
    elif one.kind == "bool | None":
        settings |= {"action": argparse.BooleanOptionalAction}
    elif one.kind.startswith("tuple"):
        settings = {"action": "append", "default": [], "metavar": one.unit}
    elif one.choices:
        settings |= {"choices": one.choices}
    else:
        settings |= {"type": KINDS[one.kind.split(" ")[0]], "metavar": one.unit, "default": one.default}
    brief = one.help.partition(";")[0].partition(". ")[0]
    default = f" (default: {one.default:g})" if one.kind in ("int", "float") else ""
    return Flag(one.flag, one.help + default, brief, one.group, one.group == "everyday", settings)


SAMPLING = tuple(_sampling_flag(one) for one in option_table() if one.flag)
FIELDS: Mapping[str, str] = {one.flag: one.name for one in option_table() if one.flag}
"""The field of `Options` that a flag sets."""

MODEL = (
    Flag(
        "--model",
        'a checkpoint: "nano" or "nano-sudoku" (in the package), a folder, or a repository name in the local cache'
        " (default: nano)",
        '"nano", "nano-sudoku", a folder, or the name of a pulled repository (default: nano)',
        everyday=True,
        settings={"default": "nano"},
    ),
    Flag(
        "--device",
        "where to run: auto, cpu, cuda, cuda:1 (default: auto, which is cuda where a GPU can be used, else cpu)",
        "cpu, cuda or cuda:1 (default: cuda if usable)",
        everyday=True,
        settings={"default": "auto"},
    ),
    Flag(
        "--dtype",
        "number format (default: auto, as the checkpoint is stored). In float32 on a CPU an answer is the same alone"
        " and in a batch",
        settings={"default": "auto", "choices": ("auto", "float32", "bfloat16")},
    ),
    Flag(
        "--threads",
        "processor threads (default: as many as there are idle cores)",
        settings={"type": int, "metavar": "N"},
    ),
    Flag(
        "--offload",
        "keep experts in the processor's memory, for a GPU with too little of its own",
        settings={"choices": ("experts",)},
    ),
    Flag(
        "--no-graphs",
        "on a GPU, launch every step anew; without it the steps of up to eight canvases are repeated as one CUDA graph",
        settings={"action": "store_true"},
    ),
)
PACKING = (
    Flag(
        "--plan",
        "pack the matrices: int8, int4, int4-g64, int8-e8, int4-g64-e8, fp8, nvfp4, nvfp4-experts (default: as stored)",
        "pack the matrices: int8, int4, fp8, nvfp4 (default: as stored)",
        everyday=True,
        settings={"metavar": "NAME"},
    ),
    Flag("--adapter", "a LoRA adapter in PEFT's layout, merged into the weights", settings={"metavar": "FOLDER"}),
)

BACKEND = (
    Flag(
        "--backend",
        "ask another server that speaks OpenAI's interface; flags that its interface has no field for are refused",
        "ask a server with OpenAI's interface instead",
        everyday=True,
        settings={"choices": ("openai",)},
    ),
    Flag("--base-url", "where it is, as http://127.0.0.1:8642/v1", settings={"metavar": "URL"}),
    Flag(
        "--api-key-env",
        "the environment variable that holds its API key (default: no key is sent)",
        settings={"metavar": "NAME"},
    ),
    Flag("--timeout", "limit per answer (default: 600)", settings={"type": float, "metavar": "SEC"}),
)


class _Model(argparse.Action):
    """A checkpoint, by its flag or in its place among the words; two that differ are refused."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        given = getattr(namespace, "model_given", values)
        if given != values:
            raise argparse.ArgumentError(None, f"two models were given, {given!r} and {values!r}; leave one out")
        namespace.model = namespace.model_given = values


def named_model(parser: argparse.ArgumentParser, text: str, *, default: str | None = "nano") -> None:
    """`--model`, and the same as a positional word."""
    # Suppressed: a word that is not there would write its default over the flag's value.
    parser.add_argument("model", nargs="?", action=_Model, default=argparse.SUPPRESS, metavar="MODEL", help=text)
    parser.add_argument("--model", action=_Model, default=default, metavar="MODEL", help="the same as a flag")


def need_model(arguments: argparse.Namespace) -> str:
    """The model that was named, for a verb that assumes none. Raises RequestError."""
    if arguments.model is None:
        raise RequestError("no model was named; give one, as google/diffusiongemma-26B-A4B-it")
    return str(arguments.model)


def model_flags(parser: argparse.ArgumentParser, *, positional: bool = False, plan: bool = False) -> None:
    """Which model, where, in which numbers; `plan` where matrices may be changed on the way in."""
    group = parser.add_argument_group("model (all flags: redraft help model)")
    if positional:
        named_model(parser, MODEL[0].full)
    for flag in (*MODEL[int(positional) :], *(PACKING if plan else ())):
        flag.add(group, flag.brief if flag.everyday else argparse.SUPPRESS)


def backend_flags(parser: argparse.ArgumentParser) -> None:
    """Another server that is asked instead of a model here."""
    group = parser.add_argument_group("another server (all flags: redraft help backend)")
    for flag in BACKEND:
        flag.add(group, flag.brief if flag.everyday else argparse.SUPPRESS)


def sampling_flags(
    parser: argparse.ArgumentParser, only: Collection[str] = (), own: Mapping[str, str] | None = None
) -> None:
    """The options of an answer, or `only` some, by name; `own` has a verb's own help for some of them."""
    own = own or {}
    group = parser.add_argument_group("sampling (all flags: redraft help sampling)" if not only else "sampling")
    for flag in SAMPLING:
        name = FIELDS[flag.name]
        if not only:
            shown = flag.everyday or name in own
            flag.add(group, own.get(name, flag.brief) if shown else argparse.SUPPRESS)
        elif name in only:
            flag.add(group, own.get(name, flag.brief))


def options_of(arguments: argparse.Namespace) -> Options:
    """What the flags of a verb say of its answers; what has no flag there is left as it is."""
    given: dict[str, Any] = {}
    for flag, name in FIELDS.items():
        value = getattr(arguments, flag.removeprefix("--").replace("-", "_"), None)
        if value is not None:
            given[name] = tuple(value) if isinstance(value, list) else value
    return Options(**given)


def experts_of(arguments: argparse.Namespace) -> str:
    """The `experts` of `redraft.load`."""
    return "host" if arguments.offload else "device"


def add_topic(parser: argparse.ArgumentParser, topic: str) -> None:
    """Every flag of a topic with its whole help."""
    for flag in {"model": (*MODEL, *PACKING), "backend": BACKEND}.get(topic, ()):
        flag.add(parser, flag.full)
    if topic != "sampling":
        return
    for group, title in GROUPS.items():
        flags = [flag for flag in SAMPLING if flag.group == group]
        container = parser.add_argument_group(title.lower()) if flags else parser
        for flag in flags:
            flag.add(container, flag.full)


TOPICS: Mapping[str, str] = {
    "sampling": "the flags of an answer, which generate, json, chat, fill, infill and edit take",
    "model": "the flags that say which model runs where; the --help of a verb names those that it takes",
    "backend": "the flags of generate, eval, bench and run that ask another server",
}
"""What `redraft help` explains beside the verbs."""

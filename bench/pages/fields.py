"""The fields of the server's requests, for docs/server.md: read off the models that check them."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator

from redraft.server import document
from redraft.server.canvas import CanvasBody, Place
from redraft.server.fim.edits import EditBody
from redraft.server.fim.infill import Fim, InfillHole
from redraft.server.fim.llamacpp import LlamaCompletion
from redraft.server.http.body import Body
from redraft.server.limits import BOUNDS
from redraft.server.openai.decisions import ChoiceQuestion, Decisions, Predicate, ScoreQuestion
from redraft.server.openai.fields import CanvasOptions, Chat, Completion, Sampling, StreamOptions, StructuredOutputs
from redraft.server.openai.response_fields import Responses

SHARED = "Every endpoint that answers"
PAGES: dict[str, type[Body]] = {
    SHARED: Sampling,
    "`canvas`, in any of them": CanvasOptions,
    "`stream_options`, in any of them": StreamOptions,
    "`POST /v1/chat/completions`": Chat,
    "`structured_outputs`": StructuredOutputs,
    "`POST /v1/completions`": Completion,
    "`POST /v1/responses`": Responses,
    "`POST /v1/fim/completions`": Fim,
    "`POST /infill`": InfillHole,
    "`POST /completion`": LlamaCompletion,
    "`POST /v1/edit/completions`": EditBody,
    "`POST /v1/canvas`": CanvasBody,
    "One of `pins` or `given` of a canvas": Place,
    "One of `segments` of a canvas": document.Segment,
    "`hole` of a segment": document.DocumentHole,
    "`revise` of a segment": document.Revision,
    "`POST /v1/decisions`": Decisions,
    "One of `questions`: a predicate": Predicate,
    "Or a choice": ChoiceQuestion,
    "Or a score": ScoreQuestion,
}


def tables() -> str:
    """A list of fields for each kind of request."""
    return "\n\n".join("\n".join(_table(name, model)) for name, model in PAGES.items())


def bounds() -> str:
    """Every bound on a field, in the order of the table in the code."""
    kinds = {"entries": " entries", "characters": " characters", "levels": " levels", "bytes": " bytes", "value": ""}
    rows = [
        f"| {bound.what} | {_number(bound.least)} to {_number(bound.most)}{kinds[bound.kind]} |"
        for bound in BOUNDS.values()
    ]
    return "\n".join(["| what | from, to |", "|---|---|", *rows])


def _number(value: float) -> str:
    """As people write it."""
    for power in (63, 64, 31, 20):
        for less in (0, 1):
            if abs(value) == 2**power - less:
                return f"{'-' if value < 0 else ''}2^{power}{'-1' if less else ''}"
    return f"{value:,.0f}"


def _table(name: str, model: type[Body]) -> Iterator[str]:
    yield from (f"### {name}", "")
    shared = set(Sampling.model_fields) if name != SHARED and issubclass(model, Sampling) else set()
    rows = [(field.alias or key, field) for key, field in model.model_fields.items() if key not in shared]
    if shared:
        yield from ("Beside the fields above:", "")
    yield from ("| field | takes | what it does |", "|---|---|---|")
    for key, field in rows:
        need = " (required)" if field.is_required() else ""
        reported = field.description or (
            Sampling.model_fields[key].description if key in Sampling.model_fields else None
        )
        yield f"| `{key}`{need} | {_kind(field.annotation)} | {(reported or '').replace('|', '&#124;')} |"
    inert = sorted(model.inert - (Sampling.inert if shared else frozenset()))
    if inert:
        yield from ("", f"No effect, and named in `x-ignored-fields`: {_listed(inert)}.")
    neutral = {key: values for key, values in model.neutral.items() if not shared or key not in Sampling.neutral}
    if neutral:
        said = [
            f"`{key}`" + (f" ({', '.join(map(_json, values))})" if values else "") for key, values in neutral.items()
        ]
        yield from ("", f"Refused by name, but for null and the value in brackets: {', '.join(said)}.")


def _listed(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kind(annotation: object) -> str:
    """A type in words."""
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(_kind(one) for one in inside if one is not type(None)))
    if origin is typing.Annotated:
        return _kind(inside[0])
    if origin is typing.Literal:
        return ", ".join(f"`{one}`" for one in inside)
    if origin is list:
        return f"list of {_kind(inside[0])}"
    if origin is dict or annotation is dict:
        return "object"
    names = {str: "text", int: "integer", float: "number", bool: "true or false"}
    return names.get(annotation, "object") if isinstance(annotation, type) else "anything"

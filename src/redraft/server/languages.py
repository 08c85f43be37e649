"""What language an answer has to be in: a response format, a structured output, or the arguments of a tool."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redraft.constrain.language import Source
from redraft.constrain.sources import choices_source, grammar_source, regex_source, schema_source
from redraft.server.ask import bounded
from redraft.server.refusal import Refusal, unsupported
from redraft.server.schema import Chat, Completion, NamedTool, ResponseFormat, StructuredOutputs, Tool
from redraft.server.settings import Limits

ANY_OBJECT = {"type": "object"}


@dataclass(frozen=True)
class Choice:
    """Which tools an answer may or must call. `must` names the one to call; several are told apart by an envelope."""

    tools: tuple[Tool, ...] = ()
    forced: bool = False

    @property
    def only(self) -> str | None:
        """The one tool that has to be called."""
        return self.tools[0].function.name if self.forced and len(self.tools) == 1 else None

    def source(self) -> Source | None:
        """The language of a forced call: arguments, or an envelope that names the tool, too."""
        if not self.forced:
            return None
        if self.only is not None:
            return schema_source(parameters(self.tools[0]))
        return schema_source({"anyOf": [envelope(tool) for tool in self.tools]})


def choice_of(body: Chat) -> Choice:
    """The tools of a request. Raises Refusal for a choice that cannot be."""
    tools, chosen = tuple(body.tools or ()), body.tool_choice
    if not tools:
        if chosen not in (None, "none", "auto"):
            raise Refusal(400, "tool_choice was sent without tools; send them", param="tool_choice")
        return Choice()
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise Refusal(400, f"tools has two of one name ({', '.join(names)}); rename one", param="tools")
    if chosen == "none":
        return Choice()
    if isinstance(chosen, NamedTool):
        wanted = tuple(tool for tool in tools if tool.function.name == chosen.function.name)
        if not wanted:
            said = f"tool_choice names {chosen.function.name!r}; the tools are {', '.join(names)}"
            raise Refusal(400, said, param="tool_choice")
        return Choice(wanted, forced=True)
    return Choice(tools, forced=chosen == "required")


def source_of(body: Chat | Completion, limits: Limits) -> Source | None:
    """The language of the answer, if one was asked for. Raises Refusal and ConstraintError."""
    found = [_format(body.response_format, limits), structured(body.structured_outputs, limits)]
    given = [source for source in found if source is not None]
    if len(given) > 1:
        message = "response_format and structured_outputs were both sent; send one"
        raise Refusal(400, message, param="structured_outputs")
    return given[0] if given else None


def parameters(tool: Tool) -> dict[str, Any]:
    """The schema of a tool's arguments."""
    return tool.function.parameters or {"type": "object", "properties": {}, "additionalProperties": False}


def envelope(tool: Tool) -> dict[str, Any]:
    """The schema of a call of one tool among several."""
    properties = {"name": {"const": tool.function.name}, "arguments": parameters(tool)}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def called(tools: Sequence[Tool], name: str, arguments: object) -> bool:
    """Whether a call is one of these tools', with arguments that its schema allows."""
    from jsonschema_rs import validator_for

    tool = next((tool for tool in tools if tool.function.name == name), None)
    return tool is not None and bool(validator_for(parameters(tool)).is_valid(arguments))


def _format(wanted: ResponseFormat | None, limits: Limits) -> Source | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return schema_source(ANY_OBJECT)
    if wanted.json_schema is None or wanted.json_schema.schema_ is None:
        raise Refusal(400, "response_format.json_schema has no schema; send one", param="response_format")
    return schema_source(json.loads(bounded("response_format", json.dumps(wanted.json_schema.schema_), limits)))


def structured(wanted: StructuredOutputs | None, limits: Limits) -> Source | None:
    """The language that one of its fields names. Raises Refusal and ConstraintError."""
    if wanted is None:
        return None
    given = sorted(wanted.model_fields_set)
    if len(given) != 1:
        said = " and ".join(given) or "nothing"
        raise unsupported("structured_outputs", f"structured_outputs holds {said}; it must hold one of its fields")
    if wanted.json_ is not None:
        text = wanted.json_ if isinstance(wanted.json_, str) else json.dumps(wanted.json_)
        return schema_source(bounded("structured_outputs", text, limits))
    if wanted.regex is not None:
        return regex_source(bounded("structured_outputs", wanted.regex, limits))
    if wanted.choice is not None:
        bounded("structured_outputs", "".join(wanted.choice), limits)
        return choices_source(wanted.choice)
    return grammar_source(bounded("structured_outputs", wanted.grammar or "", limits))

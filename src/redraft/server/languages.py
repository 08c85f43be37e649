"""What language an answer has to be in: a response format, a structured output, or the arguments of a tool."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from redraft.constraints.compile.tool_calls import CLOSE, OPEN, QUOTE, calls_source
from redraft.constraints.language import Source
from redraft.constraints.sources import choices_source, grammar_source, regex_source, schema_source
from redraft.constraints.validation import validator_of
from redraft.errors import ConstraintError
from redraft.server.ask import Held
from redraft.server.refusal import Refusal, refusal_of, unsupported
from redraft.server.schema import Chat, Completion, NamedTool, ResponseFormat, StructuredOutputs, Tool
from redraft.server.settings import Limits
from redraft.text import Text

ANY_OBJECT = {"type": "object"}
MANNERS = {"fence": "json_", "any_case": "choice"}
"""How an answer may be written: the field of a structured output, and the one that it goes with."""


@dataclass(frozen=True)
class Choice:
    """Which tools an answer may or, if it is `forced`, must call; of several an envelope names the one."""

    tools: tuple[Tool, ...] = ()
    forced: bool = False

    @property
    def only(self) -> str | None:
        """The one tool that has to be called."""
        return self.tools[0].function.name if self.forced and len(self.tools) == 1 else None

    def source(self) -> Source:
        """The language of a forced call: arguments, or an envelope that names the tool, too."""
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


def check_tools(choice: Choice, text: Text) -> None:
    """Raise Refusal where the model is to decide about calls and its checkpoint cannot show or write any."""
    marked = all(text.tokenizer.token_to_id(mark) is not None for mark in (OPEN, CLOSE, QUOTE))
    if choice.tools and not choice.forced and not (text.knows_tools and marked):
        message = "tool_choice auto needs a chat template that knows tools, which this checkpoint lacks; name the tool"
        raise unsupported("tool_choice", message)


def held_to(body: Chat, choice: Choice, limits: Limits, thinking: tuple[int, int] | None) -> Held | None:
    """What the answer of a conversation is held to: a format, a call that is forced, or text with calls that may be.

    Where a stop string may cut the text, calls are left free and only read: what is none is told as text. Thinking is
    marked by two tokens. Raises Refusal.
    """
    asked = source_of(body, limits)
    if choice.forced and asked is not None:
        raise Refusal(400, "a tool has to be called and a format was sent, too; send one", param="response_format")
    try:
        if choice.forced:
            return Held(choice.source(), "tools", thinking)
        if choice.tools and not (body.stop and asked is None):
            tools = {tool.function.name: parameters(tool) for tool in choice.tools}
            content = None if asked is None else asked.source
            source = calls_source(tools, several=body.parallel_tool_calls is not False, content=content)
            return Held(source, "tools", content=content)
    except ConstraintError as error:
        raise refusal_of(error, field="tools") from None
    return asked and replace(asked, marks=thinking)


def source_of(body: Chat | Completion, limits: Limits) -> Held | None:
    """The format of the answer, if one was asked for. Raises Refusal."""
    found = [_format(body.response_format, limits), structured(body.structured_outputs, limits)]
    given = [held for held in found if held is not None]
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
    tool = next((tool for tool in tools if tool.function.name == name), None)
    return tool is not None and validator_of(parameters(tool)).is_valid(arguments)


def _format(wanted: ResponseFormat | None, limits: Limits) -> Held | None:
    field = "response_format"
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Held(schema_source(ANY_OBJECT), field)
    if wanted.json_schema is None or wanted.json_schema.schema_ is None:
        raise Refusal(400, "response_format.json_schema has no schema; send one", param=field)
    return Held(schema_source(json.loads(_bounded(field, json.dumps(wanted.json_schema.schema_), limits))), field)


def structured(wanted: StructuredOutputs | None, limits: Limits) -> Held | None:
    """What one of its fields asks for. Raises Refusal."""
    if wanted is None:
        return None
    field = "structured_outputs"
    given = sorted(wanted.model_fields_set - MANNERS.keys())
    if len(given) != 1:
        said = " and ".join(given) or "nothing"
        raise unsupported(field, f"structured_outputs holds {said}; it must hold one of json, regex, choice, grammar")
    for manner, of in MANNERS.items():
        if getattr(wanted, manner) and of not in given:
            raise unsupported(f"{field}.{manner}", f"{manner} goes with {of.rstrip('_')}; leave it out")
    try:
        return Held(_structured(wanted, limits), field)
    except ConstraintError as error:
        raise refusal_of(error, field=field) from None


def _structured(wanted: StructuredOutputs, limits: Limits) -> Source:
    field = "structured_outputs"
    if wanted.json_ is not None:
        text = wanted.json_ if isinstance(wanted.json_, str) else json.dumps(wanted.json_)
        return schema_source(_bounded(field, text, limits), fence=bool(wanted.fence))
    if wanted.regex is not None:
        return regex_source(_bounded(field, wanted.regex, limits))
    if wanted.choice is not None:
        _bounded(field, "".join(wanted.choice), limits)
        return choices_source(wanted.choice, any_case=bool(wanted.any_case))
    return grammar_source(_bounded(field, wanted.grammar or "", limits))


def _bounded(what: str, text: str, limits: Limits) -> str:
    """A schema or expression as it came, if it is not too long."""
    if len(text) > limits.constraint_bytes:
        raise Refusal(400, f"{what} has {len(text)} characters; at most {limits.constraint_bytes}", param=what)
    return text

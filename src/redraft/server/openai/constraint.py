"""What an answer is held to: a response format, a structured output, or the arguments of a tool."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from redraft.constraints.compile.tool_calls import CLOSE, OPEN, QUOTE, THOUGHT, ContentLanguage, calls_source
from redraft.constraints.language import Language, Source
from redraft.constraints.sources import copying, schema_source, source_of
from redraft.constraints.validation import verdicts
from redraft.errors import ConstraintError
from redraft.operations.engine import Engine
from redraft.operations.verbatim import copied_or_free
from redraft.server.http.errors import ApiError, api_error, unsupported
from redraft.server.openai.fields import Chat, Completion, NamedTool, ResponseFormat, StructuredOutputs, Tool
from redraft.text import Text

ANY_OBJECT = {"type": "object"}
MANNERS = {"fence": "json_", "compact": "json_", "disable_any_whitespace": "json_", "any_case": "choice"}
"""How an answer may be written: the field of a structured output, and the one that it goes with."""


@dataclass(frozen=True)
class Constraint:
    """What an answer is held to, and the field that asks for it. With `thinking` the answer follows some; `content` is
    the format of an answer that calls no tool. Strings are copied out of the text `copied` where that makes nothing
    else harder."""

    source: Source
    field: str
    thinking: bool = False
    content: Source | None = None
    copied: str | None = None

    def language(self, engine: Engine, max_tokens: int | None) -> Language:
        """Compiled for an engine and answers of so many tokens. Raises ConstraintError."""
        if self.copied is not None:
            return copied_or_free(engine, self.source, self.copied, max_tokens)
        plain = engine.language(self.source)
        if self.content is not None and self.content.kind == "schema":
            call, closing = (engine.text.tokenizer.token_to_id(mark) for mark in (OPEN, THOUGHT))
            schema = json.loads(self.content.text)
            return ContentLanguage(plain.source, plain.layout, plain.checked, schema, call, closing)
        return plain


def copied(constraint: Constraint | None, text: str, *, wanted: bool) -> Constraint | None:
    """The same with strings that are parts of a text, if it is a schema; without `wanted`, where that makes nothing
    else harder."""
    if constraint is None or constraint.source.kind != "schema":
        return constraint
    return replace(constraint, source=copying(constraint.source, text)) if wanted else replace(constraint, copied=text)


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
    """The tools of a request. Raises ApiError for a choice that cannot be."""
    tools, chosen = tuple(body.tools or ()), body.tool_choice
    if not tools:
        if chosen not in (None, "none", "auto"):
            raise ApiError(400, "tool_choice was sent without tools; send them", param="tool_choice")
        return Choice()
    names = [tool.function.name for tool in tools]
    if len(set(names)) < len(names):
        raise ApiError(400, f"tools has two of one name ({', '.join(names)}); rename one", param="tools")
    if chosen == "none":
        return Choice()
    if isinstance(chosen, NamedTool):
        wanted = tuple(tool for tool in tools if tool.function.name == chosen.function.name)
        if not wanted:
            said = f"tool_choice names {chosen.function.name!r}; the tools are {', '.join(names)}"
            raise ApiError(400, said, param="tool_choice")
        return Choice(wanted, forced=True)
    return Choice(tools, forced=chosen == "required")


def check_tools(choice: Choice, text: Text, *, returned: bool) -> Choice:
    """The tools that the model decides about. Raises ApiError where its checkpoint can neither show nor mark a call.

    With `returned`, where the conversation ends in what a tool has returned, there are none instead: libraries that
    forced the call leave the next turn to the model, and no call is what a model chooses that cannot make any.
    """
    marked = all(text.tokenizer.token_to_id(mark) is not None for mark in (OPEN, CLOSE, QUOTE))
    if not choice.tools or choice.forced or (text.knows_tools and marked):
        return choice
    if returned:
        return Choice()
    message = "tool_choice auto needs a chat template that knows tools, which this checkpoint lacks; name the tool"
    raise unsupported("tool_choice", message)


def constraint_of(body: Chat, choice: Choice, *, thinking: bool) -> Constraint | None:
    """What the answer to a conversation is held to: a format, a forced call, or text with calls that may be made.

    A forced call is all of the answer, so a format has nothing to hold. Where a stop string may cut the text, calls are
    left free and only read; text that is no call is content. With `thinking` the answer follows some. Raises ApiError.
    """
    wanted = format_of(body)
    try:
        if choice.forced:
            return Constraint(choice.source(), "tools", thinking)
        if choice.tools and not (body.stop and wanted is None):
            tools = {tool.function.name: parameters(tool) for tool in choice.tools}
            content = None if wanted is None else wanted.source
            source = calls_source(tools, several=body.parallel_tool_calls is not False, content=content)
            return Constraint(source, "tools", content=content)
    except ConstraintError as error:
        raise api_error(error, field="tools") from None
    return None if wanted is None else replace(wanted, thinking=thinking)


def format_of(body: Chat | Completion) -> Constraint | None:
    """The format of the answer, if one was asked for. Raises ApiError."""
    found = [_format(body.response_format), structured(body.structured_outputs)]
    found += [_held("json_schema", schema=body.json_schema), _held("grammar", grammar=body.grammar or None)]
    given = [one for one in found if one is not None]
    if len(given) > 1:
        message = f"{' and '.join(one.field for one in given)} were sent together; send one"
        raise ApiError(400, message, param=given[-1].field)
    return given[0] if given else None


def parameters(tool: Tool) -> dict[str, Any]:
    """The schema of a tool's arguments."""
    return tool.function.parameters or {"type": "object", "properties": {}, "additionalProperties": False}


def envelope(tool: Tool) -> dict[str, Any]:
    """The schema of a call of one tool among several. `#` in a reference stays the tool's own schema."""
    own = {"$id": f"urn:tool:{quote(tool.function.name, safe='')}"} | parameters(tool)
    properties = {"name": {"const": tool.function.name}, "arguments": own}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def called(tools: Sequence[Tool], name: str, arguments: object) -> bool:
    """Whether a call is one of these tools', with arguments that its schema allows."""
    tool = next((tool for tool in tools if tool.function.name == name), None)
    return tool is not None and not verdicts(parameters(tool), arguments)


def _format(wanted: ResponseFormat | None) -> Constraint | None:
    field = "response_format"
    if wanted is None:
        return None
    schema = wanted.schema_
    if wanted.type == "text":
        if schema is not None or wanted.json_schema is not None:
            raise unsupported(field, f"{field} has a schema and the type text; let its type be json_schema")
        return None
    if schema is not None and wanted.json_schema is not None and wanted.json_schema.schema_ is not None:
        raise ApiError(400, f"{field}.schema and {field}.json_schema were sent together; send one", param=field)
    if schema is None and wanted.json_schema is not None:
        schema = wanted.json_schema.schema_
    if schema is None and wanted.type == "json_schema":
        raise ApiError(400, "response_format.json_schema has no schema; send one", param=field)
    return Constraint(schema_source(ANY_OBJECT if schema is None else schema), field)


def structured(wanted: StructuredOutputs | None) -> Constraint | None:
    """What one of its fields asks for. Raises ApiError."""
    if wanted is None:
        return None
    field = "structured_outputs"
    given = sorted(wanted.model_fields_set - MANNERS.keys())
    if len(given) != 1:
        said = " and ".join(name.removesuffix("_") for name in given) or "nothing"  # as they were sent
        raise unsupported(field, f"structured_outputs holds {said}; it must hold one of json, regex, choice, grammar")
    for manner, of in MANNERS.items():
        if getattr(wanted, manner) and of not in given:
            raise unsupported(f"{field}.{manner}", f"{manner} goes with {of.rstrip('_')}; leave it out")
    return _held(
        field,
        schema=wanted.json_,
        regex=wanted.regex,
        choices=wanted.choice,
        grammar=wanted.grammar,
        fence=bool(wanted.fence),
        compact=bool(wanted.compact or wanted.disable_any_whitespace),
        any_case=bool(wanted.any_case),
    )


def _held(field: str, **given: Any) -> Constraint | None:
    """What a field asks for, by the arguments of `source_of`. Raises ApiError."""
    try:
        source = source_of(**given)
    except ConstraintError as error:
        raise api_error(error, field=field) from None
    return None if source is None else Constraint(source, field)

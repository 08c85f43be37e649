"""What clients may send to `POST /v1/responses`, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from redraft.server.http.body import BOOKKEEPING, Body, Flag, Name, Schema, Seed, Share, Str, Tokens
from redraft.server.limits import within
from redraft.server.openai.fields import (
    Alternatives,
    CanvasOptions,
    Declared,
    Named,
    Parts,
    Steps,
    Temperature,
    TemplateOptions,
)


class Item(Body):
    """One turn of the input."""

    inert = frozenset({"id", "status", "phase"})

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Str | Parts


class CallItem(Body):
    """A call that was made."""

    inert = frozenset({"id", "status"})

    type: Literal["function_call"]
    call_id: Name
    name: Name
    arguments: Str = "{}"


class OutputItem(Body):
    """What a call returned."""

    inert = frozenset({"id", "status"})

    type: Literal["function_call_output"]
    call_id: Name
    output: Str | Parts


class ThoughtItem(Body):
    """What was thought in an earlier turn. Templates show a model none of it."""

    inert = frozenset({"id", "status", "summary", "content", "encrypted_content"})

    type: Literal["reasoning"]


def _form(item: Any) -> str:
    """Which form an item is read as; the names are none that could be a field's."""
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    return "form-message" if kind is None else f"form-{kind}"


AnyItem = Annotated[
    Annotated[Item, Tag("form-message")]
    | Annotated[CallItem, Tag("form-function_call")]
    | Annotated[OutputItem, Tag("form-function_call_output")]
    | Annotated[ThoughtItem, Tag("form-reasoning")],
    Discriminator(_form),
]


class Format(Body):
    """The form of the answer."""

    inert = frozenset({"description", "strict"})

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = Field(default=None, description="returned with the answer")
    schema_: Schema | None = Field(default=None, alias="schema")


class TextOptions(Body):
    """About the text of the answer."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"verbosity": ("medium",)}

    format: Format | None = None


class Reasoning(Body):
    """About thinking."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"summary": ("auto",), "generate_summary": ()}

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None


class FunctionTool(Declared):
    """A function that the model may call."""

    type: Literal["function"]


class FunctionChoice(Named):
    """The one function to call."""

    type: Literal["function"]


LOGPROBS: Literal["message.output_text.logprobs"] = "message.output_text.logprobs"
Extra = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
"""What may be included: log-probabilities, and parts of outputs that there are none of here."""


class Responses(Body):
    """`POST /v1/responses`."""

    inert: ClassVar[frozenset[str]] = BOOKKEEPING | {"stream_options"}
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "access_programs": (),
        "background": (False,),
        "conversation": (),
        "context_management": (),
        "image": (),
        "max_tool_calls": (),
        "moderation": (),
        "previous_response_id": (),
        "prompt": (),
    }

    model: Name | None = None
    input: Str | Annotated[list[AnyItem], within("messages")] = Field(
        description="a text, or turns of text and images, calls and what they returned"
    )
    instructions: Str | None = Field(default=None, description="a system turn in front")
    max_output_tokens: Annotated[Tokens, Field(ge=1)] | None = Field(
        default=None, description="most tokens to answer with"
    )
    temperature: Temperature | None = Field(default=None, description="as in chat")
    top_p: Share | None = Field(default=None, description="as in chat")
    seed: Seed | None = Field(default=None, description="as in chat")
    stream: Flag | None = Field(default=None, description="named events")
    text: TextOptions | None = Field(default=None, description="format: text, json_object or json_schema")
    tools: Annotated[list[FunctionTool], within("tools")] | None = Field(
        default=None, description="functions it may call; as in chat, without the object `function`"
    )
    tool_choice: Literal["none", "auto", "required"] | FunctionChoice | None = Field(
        default=None, description="as in chat"
    )
    parallel_tool_calls: Flag | None = Field(default=None, description="as in chat")
    truncation: Literal["auto", "disabled"] | None = Field(
        default=None, description="auto: turns are left out, the oldest first, until the rest fits the context"
    )
    include: Annotated[list[Extra], within("calls")] | None = Field(
        default=None, description=f"{LOGPROBS}; the others are without effect: there are no such outputs here"
    )
    top_logprobs: Alternatives | None = Field(default=None, description="with them: and this many of the likeliest")
    reasoning: Reasoning | None = Field(default=None, description="effort: as reasoning_effort in chat")
    top_k: Annotated[int, Field(strict=True), within("top_k")] | None = Field(default=None, description="as in chat")
    chat_template_kwargs: TemplateOptions | None = Field(default=None, description="enable_thinking")
    max_steps: Steps | None = Field(default=None, description="as in chat")
    canvas: CanvasOptions | None = Field(default=None, description="as in chat")

    @property
    def ignored(self) -> list[str]:
        """Fields that were sent and have no effect, as paths."""
        return sorted([*super().ignored, *(["include"] if set(self.include or ()) - {LOGPROBS} else [])])

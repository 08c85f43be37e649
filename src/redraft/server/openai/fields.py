"""What clients may send to the endpoints that answer, field by field. JSON stops here.

docs/server.md lists these fields with their descriptions; bench/generate.py writes the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from redraft.options import described
from redraft.server.http.body import (
    Biases,
    Body,
    Flag,
    Int,
    Milliseconds,
    Name,
    Real,
    Schema,
    Seed,
    Share,
    Stops,
    Str,
    TokenIds,
    Tokens,
)
from redraft.server.http.errors import ApiError
from redraft.server.limits import short, within
from redraft.server.openai.others import ECHOED, INERT, INSTEAD, NEUTRAL

Penalty = Annotated[Real, within("penalty")]
Steps = Annotated[Int, within("steps")]
Width = Annotated[Int, within("position")]
Rules = Annotated[list[Annotated[str, Field(strict=True), within("rule")]], within("rules")]
Alternatives = Annotated[Int, within("top_logprobs")]
Pattern = Annotated[str, Field(strict=True), within("constraint")]
Prompts = Annotated[list[Str], within("prompts")]
Temperature = Annotated[Real, within("temperature")]
Strength = Annotated[
    Share | None, Field(description="share of it that starts as noise (0.5, or 1 with an instruction)")
]
Slack = Annotated[Tokens | None, Field(description="tokens it may grow or shrink by (0, or any with an instruction)")]
Most = Annotated[Tokens | None, BeforeValidator(lambda sent: None if sent == -1 else sent)]
"""A number of tokens, of which llama.cpp's clients write "no limit" as -1."""


def option_field(name: str, more: str = "") -> Any:
    """A field that may be left out, with the description of its option (`redraft.options`)."""
    return Field(default=None, description="; ".join(filter(None, (described(name), more))))


class StreamOptions(Body):
    """What else a stream has."""

    inert = frozenset({"include_obfuscation"})

    include_usage: Flag | None = Field(default=None, description="a last chunk with the usage and no choices")
    continuous_usage_stats: Flag | None = Field(
        default=None, description="with include_usage: the usage so far in every chunk"
    )


class CanvasOptions(Body):
    """What only a diffusion model has; one object, so that no name can clash with a client's."""

    width: Width | None = option_field("canvas")
    preset: Name | None = Field(default=None, description="sampler rules: reference, fast or flow; else as served")
    end_aware: Flag | None = option_field("end_aware")
    accept: Rules | None = option_field("accept")
    cooling: Steps | None = option_field("cooling")
    min_effort: Share | None = option_field("min_effort")
    causal: Flag | None = option_field("causal")
    draw: Flag | None = option_field("draw")
    stream: Flag | None = Field(default=None, description="every step as a key `canvas` of a stream's chunks")
    ask_fields: Flag | None = Field(
        default=None, description="in chat, with a JSON Schema: ask for its fields of the last turn; by default of nano"
    )
    verbatim: Flag | None = Field(
        default=None,
        description="where fields are asked for: copy strings word for word, and hold choices, dates, times and decimal"
        " numbers to those that the text states; by default of nano",
    )
    read_back: Flag | None = Field(
        default=None,
        description="where fields are asked for: read the answer a second time, from left to right, take that way's"
        " answer if it is likelier, and name `guesses`; by default of nano, and not with canvas.stream",
    )


class Sampling(Body):
    """Fields that every endpoint which answers takes."""

    inert: ClassVar[frozenset[str]] = INERT
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = NEUTRAL
    instead: ClassVar[Mapping[str, str]] = INSTEAD

    model: Name | None = Field(default=None, description="the name `/v1/models` gives; left out, the one there is")
    max_tokens: Most | None = option_field("max_tokens", "-1 as if left out")
    min_tokens: Tokens | None = option_field("min_tokens")
    ignore_eos: Flag | None = Field(default=None, description="no end before max_tokens")
    temperature: Temperature | None = option_field("temperature")
    top_p: Share | None = option_field("top_p")
    top_k: Annotated[Int, within("top_k")] | None = option_field("top_k", "0 or -1 for all")
    n: Annotated[Int, within("n")] | None = Field(default=None, description="answers to each prompt, seeds counting up")
    seed: Seed | None = option_field("seed")
    stop: Annotated[str, Field(strict=True), within("stop")] | Stops | None = Field(
        default=None, description="texts that end the answer, at most 16; not in it"
    )
    stream: Flag | None = Field(default=None, description="server-sent events, text as it becomes certain")
    stream_options: StreamOptions | None = Field(default=None, description="with stream; its fields are below")
    logit_bias: Biases | None = option_field("logit_bias", "an object of them")
    presence_penalty: Penalty | None = option_field("presence_penalty")
    frequency_penalty: Penalty | None = option_field("frequency_penalty")
    repetition_penalty: Penalty | None = option_field("repetition_penalty")
    bad_words: Annotated[list[Name], within("bad_words")] | None = Field(
        default=None, description="texts of one token each that must not occur"
    )
    effort: Share | None = option_field("effort")
    max_steps: Steps | None = option_field("steps")
    entropy_bound: Annotated[Real, within("nats")] | None = option_field("entropy_bound")
    deadline_ms: Annotated[Milliseconds, Field(gt=0)] | None = option_field("deadline_sec")
    target_ms: Milliseconds | None = option_field("target_ms")
    canvas: CanvasOptions | None = Field(default=None, description="what only a canvas has; its fields are below")


class Part(Body):
    """A piece of a message's content. Those of an earlier response may come back as they were."""

    inert = ECHOED

    type: Literal["text", "input_text", "output_text"] = "text"
    text: Str


Data = Annotated[str, Field(strict=True), within("image")]


class ImageUrl(Body):
    """Where an image is."""

    inert = frozenset({"detail"})

    url: Data


class ImagePart(Body):
    """An image in a user's message: a data URL, or a URL of a host that the server allows."""

    inert = ECHOED | {"detail"}

    type: Literal["image_url", "input_image"]
    image_url: Data | ImageUrl

    @property
    def url(self) -> str:
        """The URL in either form."""
        return self.image_url if isinstance(self.image_url, str) else self.image_url.url


def _kind(part: Any) -> str:
    """Which form a part is read as; the names are none that could be a field's."""
    kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", None)
    return "image-part" if kind in ("image_url", "input_image") else "text-part"


AnyPart = Annotated[Annotated[Part, Tag("text-part")] | Annotated[ImagePart, Tag("image-part")], Discriminator(_kind)]
Parts = Annotated[list[AnyPart], within("parts")]
Content = str | Sequence[Part | ImagePart]
"""What a message says."""


def text_of(content: Content | None, param: str = "messages") -> str:
    """A content as one text. Raises ApiError for an image, which the endpoint does not read there."""
    if content is None or isinstance(content, str):
        return content or ""
    if any(isinstance(part, ImagePart) for part in content):
        raise ApiError(400, "an image was sent where text alone is read; leave it out", param=param)
    return "".join(part.text for part in content if isinstance(part, Part))


class Function(Body):
    """The function of a call that was made."""

    inert = ECHOED

    name: Name
    arguments: Str = "{}"


class Call(Body):
    """A tool call in an assistant's message."""

    inert = (ECHOED - {"id"}) | {"index"}

    id: Name = ""
    type: Literal["function"] = "function"
    function: Function


class Message(Body):
    """One turn."""

    inert = ECHOED
    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {"audio": (), "function_call": (), "images": ([],)}

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Str | Parts | None = None
    name: Name | None = None
    tool_calls: Annotated[list[Call], within("calls")] | None = None
    tool_call_id: Name | None = None

    @property
    def text(self) -> str:
        """The content as one text."""
        return text_of(self.content)


Turns = Annotated[list[Message], within("messages")]


class JsonSchema(Body):
    """A schema with a name."""

    inert = frozenset({"name", "description", "strict"})

    schema_: Schema | bool | None = Field(default=None, alias="schema", description="the schema itself")


class ResponseFormat(Body):
    """What form the answer has."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Schema | bool | None = Field(default=None, alias="schema", description="the schema, as some send it")


class StructuredOutputs(Body):
    """What language the answer is in; one of the first four."""

    json_: Schema | Pattern | None = Field(default=None, alias="json", description="a JSON Schema")
    regex: Pattern | None = Field(default=None, description="a regular expression for the whole answer")
    choice: Annotated[list[Pattern], within("choices"), BeforeValidator(short)] | None = Field(
        default=None, description="texts of which the answer is one"
    )
    grammar: Pattern | None = Field(default=None, description="a grammar, whose rule `start` the answer is")
    fence: Flag | None = Field(default=None, description="with json: it may stand in a Markdown code block")
    compact: Flag | None = Field(default=None, description="with json: no spaces or line breaks outside its strings")
    disable_any_whitespace: Flag | None = Field(default=None, description="the same, as vLLM calls it")
    any_case: Flag | None = Field(default=None, description="with choice: small and capital letters are alike")


class Declared(Body):
    """What a tool is."""

    inert = frozenset({"strict", "cache_control"})

    name: Annotated[str, Field(strict=True), within("tool")]
    description: Str | None = None
    parameters: Schema | None = None


class Tool(Body):
    """A function that the model may call."""

    inert = frozenset({"cache_control"})

    type: Literal["function"] = "function"
    function: Declared


class Named(Body):
    """A function by name."""

    name: Name


class NamedTool(Body):
    """The one tool to call."""

    type: Literal["function"] = "function"
    function: Named


class Prediction(Body):
    """Text that the answer is likely to resemble."""

    type: Literal["content"] = "content"
    content: Str | Parts


class TemplateOptions(Body):
    """Options of the chat template."""

    enable_thinking: Flag | None = None


class Chat(Sampling):
    """`POST /v1/chat/completions`."""

    neutral: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **Sampling.neutral,
        "add_generation_prompt": (True,),
        "add_special_tokens": (True, False),
        "audio": (),
        "best_of": (1,),
        "continue_final_message": (False,),
        "documents": ([],),
        "echo": (False,),
        "function_call": ("none",),
        "functions": ([],),
        "include_reasoning": (True,),
        "modalities": (["text"],),
        "moderation": (),
        "verbosity": ("medium",),
        "web_search_options": (),
    }

    messages: Turns = Field(description="the conversation; content is text, or parts: text and images")
    max_completion_tokens: Tokens | None = Field(default=None, ge=1, description="the newer name of max_tokens")
    response_format: ResponseFormat | None = Field(default=None, description="text, json_object or json_schema")
    structured_outputs: StructuredOutputs | None = Field(default=None, description="json, regex, choice or grammar")
    json_schema: Schema | None = Field(default=None, description="a JSON Schema, as llama.cpp takes it")
    grammar: Pattern | None = Field(default=None, description="a grammar in Lark's notation or in GBNF")
    tools: Annotated[list[Tool], within("tools")] | None = Field(default=None, description="functions it may call")
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = Field(
        default=None, description="none, auto, required or one"
    )
    parallel_tool_calls: Flag | None = Field(
        default=None, description="false: at most one call; a forced one is always alone"
    )
    logprobs: Flag | None = Field(default=None, description="log-probabilities of the answer's tokens")
    top_logprobs: Alternatives | None = Field(default=None, description="and of this many of the likeliest")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        default=None, description="thinking: off for none and minimal, else on; refused where the model has none"
    )
    prediction: Prediction | None = Field(default=None, description="the canvas starts from this text")
    parse_special: Flag | None = Field(
        default=None, description="true: special tokens that messages spell become tokens; otherwise they stay text"
    )
    chat_template_kwargs: TemplateOptions | None = Field(default=None, description="enable_thinking")


class Completion(Sampling):
    """`POST /v1/completions`."""

    prompt: Str | Prompts | TokenIds | Annotated[list[TokenIds], within("prompts")] = Field(
        description="text or token ids, one or several"
    )
    suffix: Str | None = Field(default=None, description="text behind the answer: the answer fills the hole")
    echo: Flag | None = Field(default=None, description="the prompt in front of the answer; with logprobs, theirs, too")
    logprobs: Alternatives | None = Field(
        default=None, description="log-probabilities, and of this many of the likeliest"
    )
    best_of: Annotated[Int, within("n")] | None = Field(default=None, description="refused unless equal to n")
    response_format: ResponseFormat | None = Field(default=None, description="as in chat")
    structured_outputs: StructuredOutputs | None = Field(default=None, description="json, regex, choice or grammar")
    json_schema: Schema | None = Field(default=None, description="a JSON Schema, as llama.cpp takes it")
    grammar: Pattern | None = Field(default=None, description="a grammar in Lark's notation or in GBNF")

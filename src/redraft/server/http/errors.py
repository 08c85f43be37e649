"""Every answer but a 200, in OpenAI's form: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any

from pydantic import BaseModel, ValidationError

from redraft.errors import (
    INPUT_ERRORS,
    BusyError,
    CallerError,
    ConfigError,
    ConstraintError,
    DeadlineError,
    RedraftError,
    UnsatisfiedError,
    WeightsError,
    as_request_error,
    did_you_mean,
)
from redraft.options import option_table

TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
    501: "not_implemented_error",
    502: "server_error",
    503: "unavailable_error",
    504: "timeout_error",
}
GONE = 499
"""The status of a request whose client has left, for the log."""

RENAMED = {one.name: one.http for one in option_table() if one.http} | {"thinking": "reasoning_effort"}
"""The engine's word: the field of a request."""

SENT_AS: Mapping[str, Sequence[str]] = {
    "max_tokens": ("max_completion_tokens", "max_output_tokens", "n_predict"),
    "messages": ("prompt", "input", "input_prefix", "segments", "content"),
    "seed": ("random_seed",),
    "effort": ("target_ms",),
    "response_format": ("text.format", "structured_outputs", "segments"),
    "tool_choice": ("tools",),
    "reasoning_effort": ("reasoning.effort", "chat_template_kwargs.enable_thinking"),
    "deadline_ms": ("t_max_predict_ms",),
    "entropy_bound": ("canvas.accept",),
    "seed_canvas": ("pins", "given", "prediction"),
    "min_tokens": ("ignore_eos",),
}
"""A field: what else a client may have sent in its place."""

KINDS = ("str", "int", "float", "bool")  # in the path of a field that takes several, the one that was tried

NAMED = re.compile(
    r"(\w+(?:\[\d+\]\.\w+\[\d+\])?)(?:\[\d+\])? (?:is|has|holds|puts|names|of token|was given|needs|or|and)\b"
)

BOTH = re.compile(r"(\S+ and )(\w+) were both given")
RULES = re.compile(r"(?:no )?acceptance rule|the (?:confidence|Frechet|margin|stability) ")
READ = re.compile(r"the (?:prompt|text|messages) |\S*chat_template")
"""How errors begin that name no field: those of acceptance rules, and of what the model reads."""


class ApiError(Exception):
    """An answer other than the one asked for. `param` names the field, `code` is for programs, the message for people.

    `retry_sec` becomes Retry-After; without it there is none, for what can only fail again.
    """

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None, retry_sec: int = 0
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.retry_sec = status, message, param, code, retry_sec

    def __reduce__(self) -> tuple[Callable[[], ApiError], tuple[()]]:
        """Made anew in another process."""
        param, code, retry_sec = self.param, self.code, self.retry_sec
        return partial(ApiError, self.status, self.message, param=param, code=code, retry_sec=retry_sec), ()

    @property
    def body(self) -> dict[str, Any]:
        """The JSON of the answer, and of a stream's last chunk."""
        kind = TYPES.get(self.status, "invalid_request_error")
        message, param = (None if text is None else _plain(text) for text in (self.message, self.param))
        return {"error": {"message": message, "type": kind, "param": param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """Headers that belong to it."""
        found = {"retry-after": str(self.retry_sec)} if self.retry_sec else {}
        # Behind a body of two lengths nobody can say where the next request begins (RFC 9112, 6.1).
        found |= {"connection": "close"} if self.code == "two_lengths" else {}
        return found | ({"www-authenticate": "Bearer"} if self.status == 401 else {})


FAILED = ApiError(500, "the server failed; the log has its kind", code="internal_error")


def unsupported(param: str, message: str) -> ApiError:
    """A field, or a value of one, that cannot be honoured."""
    return ApiError(400, message, param=param, code="unsupported_parameter")


def unknown_field(field: str, known: Iterable[str]) -> ApiError:
    """A field that an endpoint does not have."""
    field = field[:200]
    meant = did_you_mean(field.rpartition(".")[2], known) or "; leave it out (docs/server.md lists the fields)"
    return unsupported(field, f"{field} is not a field of this endpoint{meant}")


def api_error(error: RedraftError, *, field: str | None = None) -> ApiError:
    """An error of the engine's as an answer; `field` names what asked for a constraint."""
    message = str(error).removeprefix("seed_canvas.")  # whose pins and given tokens are fields of their own over HTTP
    if isinstance(error, BusyError):
        return ApiError(503, message, code="queue_full", retry_sec=1)
    if isinstance(error, UnsatisfiedError):
        return ApiError(422, message[:2000], code="constraint_unsatisfied")
    if isinstance(error, DeadlineError):
        late = "the prompt was read" if "the prompt" in message else "there was a valid answer"
        return ApiError(504, f"the time was up before {late}; raise deadline_ms", code="deadline")
    if isinstance(error, ConfigError | WeightsError):  # of files of this machine, which no request has a part in
        return ApiError(500, "a part of this server's model cannot be read; the log says why", code="engine_failed")
    if not isinstance(error, CallerError):
        return ApiError(500, _harmless(error), code="engine_failed")
    if "the model's context is" in message:
        return ApiError(400, message, param="messages", code="context_length_exceeded")
    if isinstance(error, ConstraintError):
        return ApiError(400, message, param=field or "response_format", code="invalid_schema")
    named = NAMED.match(message)
    param = None if named is None else RENAMED.get(named[1], named[1])
    if param is not None and named is not None and named[1] != "deadline_sec":  # that one's value is in seconds
        message = param + message[named.end(1) :]
    if both := BOTH.match(message):
        message = f"{both[1]}{RENAMED.get(both[2], both[2])}{message[both.end(2) :]}"
    if param is None:
        param = "canvas.accept" if RULES.match(message) else "messages" if READ.match(message) else None
    return ApiError(400, message, param=param, code="unsupported_parameter" if "not supported" in message else None)


def sent_name(field: str, sent: Container[str]) -> str:
    """The name under which a client sent a field: endpoints share their checks, and each spells some in its own way."""
    others = () if field in sent else SENT_AS.get(field, ())
    return next((one for one in others if one.partition(".")[0] in sent), field)


def as_sent(refusal: ApiError, body: BaseModel) -> ApiError:
    """A refusal that names what was sent; what remedies say of `max_tokens`, too."""
    message, param, sent = refusal.message, refusal.param, body.model_fields_set
    for field in {re.split(r"\W", param or "")[0], "max_tokens", "min_tokens", "seed_canvas", "deadline_ms"} - {""}:
        name = sent_name(field, sent)
        message = re.sub(rf"\b{field}\b", name, message)
        param = param and re.sub(rf"^{field}\b", name, param)
    if param and refusal.param == "reasoning_effort":  # which the engine knows as yes or no
        with suppress(AttributeError):
            message = message.replace(f"{param} is True", f"{param} is {attrgetter(param)(body)!r}", 1)
    return ApiError(refusal.status, message, param=param, code=refusal.code, retry_sec=refusal.retry_sec)


def kind_of(error: BaseException) -> str:
    """What the log says of a failure: its kind, and all of it where the model's own files are at fault."""
    if isinstance(error, ConfigError | WeightsError):
        return f"{type(error).__name__}: {error}"
    return type(error.__cause__ or error).__name__


def _harmless(error: RedraftError) -> str:
    """The message of a failure. Other libraries' errors may describe this machine, so they are not repeated."""
    ours = error.__cause__ is None or isinstance(error.__cause__, RedraftError)
    return str(error) if ours else "the engine failed while this request was running; ask again"


def refusal_of(error: Exception, *, local: bool = False) -> ApiError:
    """The answer to whatever work on a request raised: a mistake of its input as such, anything else as a failure.

    HTTP's routes and streams and a batch's rows all answer with it. With `local` it may name the model's files.
    """
    match error:
        case ConfigError() | WeightsError() if local:
            return ApiError(500, str(error), code="engine_failed")
        case ApiError():
            return error
        case RedraftError():
            return api_error(error)
        case ValidationError():
            return body_error(error.errors())
        case RuntimeError() if "start new thread" in str(error):
            return ApiError(503, "no more threads can be started here; try again soon", code="queue_full", retry_sec=1)
    return api_error(as_request_error(error)) if isinstance(error, INPUT_ERRORS) else FAILED


def _plain(text: str) -> str:
    """A text that may quote what is no valid Unicode, as Unicode."""
    return text.encode(errors="backslashreplace").decode()


def _shown(value: object) -> str:
    """A value, or what there is to say of a large one."""
    return _brief(value, 3)[:100]


def _brief(value: object, levels: int) -> str:
    """As Python prints it, but for what takes long to print."""
    if isinstance(value, list | dict) and (len(value) > 9 or not levels):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)}"
    if isinstance(value, list):
        return f"[{', '.join(_brief(one, levels - 1) for one in value)}]"
    if isinstance(value, dict):
        pairs = (f"{_brief(name, 0)}: {_brief(one, levels - 1)}" for name, one in value.items())
        return f"{{{', '.join(pairs)}}}"
    return f"{value[:100] if isinstance(value, str | bytes) else value!r}"


Path = Sequence[str | int]


def body_error(errors: Sequence[Any], fields_at: Callable[[Path], Iterable[str]] = lambda _: ()) -> ApiError:
    """The error for a body, of all its mistakes: too many entries, else the deepest one, of these an unknown field.

    `fields_at` returns the names of the fields beside a path.
    """
    error = max(errors, key=lambda one: (one["type"] == "too_long", len(one["loc"]), one["type"] == "extra_forbidden"))
    kind, context, loc = error["type"], error.get("ctx", {}), error["loc"]
    strange = len(loc) - 1 if kind == "extra_forbidden" else len(loc)  # an unknown field is named as it came
    path = [
        part
        for i, part in enumerate(loc)
        if i == strange or isinstance(part, int) or (part.isidentifier() and part not in KINDS)
    ]
    field = ".".join(map(str, path))
    if kind == "union_tag_not_found":  # what says which of several forms is meant
        field, kind = f"{field}.{context['discriminator'][1:-1]}", "missing"
    if kind == "union_tag_invalid":
        tag, known = (context[name].replace("form-", "") for name in ("tag", "expected_tags"))
        return unsupported(f"{field}.type", f"{field}.type is {tag!r:.100}; it is one of {known}")
    if kind == "extra_forbidden":
        return unknown_field(field, fields_at(loc))
    if kind == "unsupported":
        field = ".".join(filter(None, [field, context["field"]]))
        return unsupported(field, error["msg"])
    what, param = field or "the body", field or None
    if kind == "missing":
        return ApiError(400, f"{what} is missing", param=param, code="missing_required_parameter")
    said = _shown(error["input"])
    return ApiError(400, f"{what} is {said}: {error['msg']}", param=param, code="invalid_value")

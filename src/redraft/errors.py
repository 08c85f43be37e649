"""Every error redraft raises on purpose.

    RedraftError                  one line: what is wrong, the value received, what to do
    ├── CallerError               exit 2: the call, a file or a flag has to change
    │   ├── ConfigError           a config file says something this code does not support
    │   ├── WeightsError          stored tensors are missing, damaged, surplus or of another shape
    │   ├── TextError             a tokenizer or chat template is missing or does not fit its config
    │   ├── RequestError          a generation request contradicts itself or the model's limits
    │   │   └── ConstraintError   a schema, pattern, grammar or template cannot be kept, or no text would keep it
    │   ├── RecipeError           a training recipe or data row cannot be used
    │   ├── RecordError           a benchmark record is missing, damaged or of another kind
    │   └── TraceError            a trace is missing, damaged or of another version
    └── RunError                  exit 1: the call was right, the run failed (disk full, network, a bug of ours)
        ├── BusyError             the queue is full; the same call may go through later
        ├── DeadlineError         the deadline passed before there was a valid answer
        └── UnsatisfiedError      no answer passed its checks; the error has the best attempt

`assert` is for our own mistakes and never reports a caller's mistake.
"""

import difflib
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple

T = TypeVar("T")
Given = TypeVarTuple("Given")


class RedraftError(Exception):
    """Base of all errors. `str(error)` is one line."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class CallerError(RedraftError):
    """The caller has to change something."""

    exit_code = 2


class ConfigError(CallerError):
    """A config file says something this code does not support."""


class WeightsError(CallerError):
    """Stored tensors are missing, damaged, surplus or of another shape."""


class TextError(CallerError):
    """A tokenizer or chat template is missing or does not fit its config."""


class RequestError(CallerError):
    """A generation request contradicts itself or the model's limits."""


class ConstraintError(RequestError):
    """A schema, pattern, grammar or template cannot be kept, or no text would keep it."""


class RecipeError(CallerError):
    """A training recipe or data row cannot be used."""


class RecordError(CallerError):
    """A benchmark record is missing, damaged or of another kind."""


class TraceError(CallerError):
    """A trace is missing, damaged or of another version."""


class RunError(RedraftError):
    """The call was right and the run failed all the same."""


class BusyError(RunError):
    """The queue is full; the same call may go through later."""


class DeadlineError(RunError):
    """The deadline passed before there was a valid answer."""


class UnsatisfiedError(RunError):
    """No answer passed its checks. `attempt` is the best text, `reasons` are the checks that it fails."""

    def __init__(self, attempt: str, reasons: list[str]) -> None:
        failed = "; ".join(reasons)[:300]
        super().__init__(f"the answer does not pass its checks ({failed}); try another seed, or say so in the prompt")
        self.attempt, self.reasons = attempt, reasons

    def __reduce__(self) -> tuple[type, tuple[str, list[str]]]:
        """Made anew in another process: a pool of processes that cannot do so waits for ever."""
        return UnsatisfiedError, (self.attempt, self.reasons)


INPUT_ERRORS = (OverflowError, RecursionError, UnicodeError, MemoryError)
"""What Python raises while it works on input that is too large, nests too deep, or is no Unicode."""


def as_request_error(error: BaseException) -> RequestError:
    """One of them as the caller's mistake."""
    words = ("has a number that is too large", "nests too deep", "is no valid Unicode", "takes too much memory")
    what = next(said for kind, said in zip(INPUT_ERRORS, words, strict=True) if isinstance(error, kind))
    return RequestError(f"something in the request {what} ({str(error)[:200] or type(error).__name__})")


@contextmanager
def input_errors() -> Iterator[None]:
    """Within this they are RequestErrors. For work on a caller's input, and on nothing else."""
    try:
        yield
    except INPUT_ERRORS as error:
        raise as_request_error(error) from error


def as_failure(error: Exception) -> RedraftError:
    """What went wrong with one of many, as an error in its place, whatever it is: the others go on."""
    if isinstance(error, RedraftError):
        return error
    failed = RunError(f"the program failed: {type(error).__name__}: {error}")
    failed.__cause__ = error  # so that a traceback can be shown
    return failed


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory ran out; torch on a CPU and CUDA's libraries have no type for it."""
    words = (
        "bad_alloc",
        "outofmemoryerror",
        "out of memory",
        "not enough memory",
        "can't allocate memory",
        "alloc_failed",
    )
    # By its name, as torch is not imported here.
    said = f"{type(error).__name__}: {error}".lower() if isinstance(error, RuntimeError) else ""
    return isinstance(error, MemoryError) or any(word in said for word in words)


def awaited(work: Callable[[*Given], T], *given: *Given) -> T:
    """What some work returns whose result is awaited. No future takes a StopIteration: who waits would wait for ever,
    so it becomes a RuntimeError."""
    try:
        return work(*given)
    except StopIteration as error:
        raise RuntimeError("an iterator came to its end where none should") from error


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the name that was probably meant, or an empty string."""
    names, given = list(known), str(given)[:100]  # a longer one was no slip
    near = difflib.get_close_matches(given.lower(), names, n=1, cutoff=0.65)
    return f"; did you mean {near[0]!r}?" if near and near[0] != given else ""


def refuse_nan(numbers: Iterable[float]) -> None:
    """Raise RunError if a number is NaN: the whole result is then meaningless, and JSON would hide it as null."""
    if any(map(math.isnan, numbers)):
        raise RunError(
            "the network's numbers overflow to NaN, so its tokens mean nothing; check the weights, or use float32"
        )


def shown_number(value: object) -> str:
    """A number for a message; one of thousands of digits cannot be written in tens."""
    return f"{hex(value):.20}…" if isinstance(value, int) and value.bit_length() > 256 else str(value)

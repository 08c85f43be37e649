"""What goes wrong with a request to another server, and whose fault it may be."""

from __future__ import annotations

from redraft.errors import RedraftError, RequestError, RunError

RETRIED, TRIES = (408, 429, 500, 502, 503, 504), 4
LATE = 504
"""The status of a request that had no answer in time, which no server has sent."""


class StatusError(RedraftError):
    """A server that can be reached did not answer one request; with its status."""

    def __init__(self, message: str, status: int = LATE) -> None:  # with a default, so that it travels
        super().__init__(message)
        self.status = status


class RefusedError(StatusError, RequestError):
    """It refused the request, and would again."""


class FailedError(StatusError, RunError):
    """It failed at the request, also when it was tried again."""


class LateError(FailedError):
    """There was no answer in time."""


class BrokenError(RunError):
    """No whole answer came, or none of OpenAI's form: by the request's fault or the server's; with a row's status."""

    def __init__(self, message: str, status: int = 502) -> None:
        super().__init__(message)
        self.status = status


class AbsentError(BrokenError):
    """Nothing took the connection."""


class StrangeError(BrokenError):
    """What came is not of OpenAI's interface."""


class LongError(BrokenError):
    """An answer has more bytes than are read."""


MISTAKEN = (RefusedError, AbsentError, StrangeError)  # as in the call: no server that never answered is waited for


def is_passing(status: int) -> bool:
    """Whether what a server says with a status may be otherwise the next time."""
    return status in RETRIED or status >= 500


def is_busy(status: int, after: str) -> bool:
    """Whether a server that answers with a status, and perhaps says `after` how many seconds, is asked too much."""
    return status == 429 or (status in (503, 529) and after != "")


def refused(status: int, said: str) -> StatusError:
    """A status other than 200 as an error of ours."""
    said = f"{said}; look at the URL" if status < 400 else said
    return (FailedError if is_passing(status) else RefusedError)(said, status)


def is_own(status: int) -> bool:
    """Whether a refusal is of one request, whatever a server says to others; of 403 and its like only others tell."""
    return 400 <= status < 500 and status not in (401, 402, 403, 404, 405, 408, 429)

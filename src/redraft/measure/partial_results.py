"""Measurements one by one, where a failure of one does not lose the others: time on a rented device is dear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from redraft.errors import RunError


@dataclass
class PartialResults:
    """Rows of what was timed, and the reason for what was not. A failure or an interrupt loses only its part."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    is_cut: bool = False

    def take(self, what: str, measure: Callable[[], list[dict[str, Any]]]) -> None:
        """Add the rows of `measure`. After an interrupt nothing more is run; one before any rows is raised."""
        if self.is_cut:
            return
        try:
            self.rows += measure()
        except KeyboardInterrupt:
            if not self.rows:
                raise
            self.failed[what], self.is_cut = "interrupted", True
        except Exception as error:  # torch, Triton's compiler and drivers share no narrower class
            self.failed[what] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"

    def figures(self) -> dict[str, Any]:
        """For the record. Raises RunError if nothing could be timed."""
        if not self.rows:
            raise RunError(f"nothing could be timed on this device; {next(iter(self.failed.items()), 'nothing fits')}")
        return {"timed": self.rows, "failed": self.failed}

"""The exceptions that speak to the user."""

from __future__ import annotations

from typing import Any


class PartitaError(ValueError):
    """Input that the user can mend; the command line prints it and exits with 2."""


class NoPlanError(PartitaError):
    """The search ended without a plan, by time or by an interrupt; one may exist.

    `summary` is the object that `partita plan --json` prints: status "unknown", the bound, what was searched.
    """

    def __init__(self, message: str, summary: dict[str, Any], interrupted: bool = False) -> None:
        super().__init__(message)
        self.summary, self.interrupted = summary, interrupted

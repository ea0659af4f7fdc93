"""Exceptions for users."""

from typing import Any


class PartitaError(ValueError):
    """Wrong input; the command line prints the message and exits with 2."""


class DoesNotFitError(PartitaError):
    """A plan written by hand needs more memory than a device has, or all plans that were searched do.

    The command line prints the message with its lines.
    """


class NoPlanError(PartitaError):
    """The search ended without a plan, by its time limit or an interrupt; a plan may exist.

    `summary` is the object that `partita plan --json` prints: status "unknown", the bound, what was searched.
    """

    def __init__(self, message: str, summary: dict[str, Any], interrupted: bool = False) -> None:
        super().__init__(message)
        self.summary, self.interrupted = summary, interrupted

"""Work done by this thread, in seconds of a typical core: a clock that does not depend on how busy the machine is.

Limits on parts of an elimination are of work, so that the same search ends with the same answer everywhere. What takes
time calls `spend` with an estimate. CP-SAT's deterministic time is the model.
"""

from threading import local

CALL = 5e-5  # of numpy, a few times, from Python
ENTRY = 7e-10  # of a table, read or written
PAIR = 1e-7  # of labels, joined
LINEAR_PROGRAM = 4e-3  # of some dozens of cuts
_GRAIN = 2.0**36  # parts of a second: sums of them are exact, so a difference does not depend on earlier work


class _Spent(local):
    seconds = 0.0


_spent = _Spent()


def spend(seconds: float) -> None:
    """Add to the work of this thread."""
    _spent.seconds += round(seconds * _GRAIN) / _GRAIN


def spent() -> float:
    """The work of this thread so far."""
    return _spent.seconds

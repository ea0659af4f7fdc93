"""Linear and mixed-integer programs solved by scipy's HiGHS, in this process or a child process.

HiGHS cannot be interrupted from Python. Long solves run in a child process, killed on an interrupt or at the deadline.
The child reads requests from stdin and writes outcomes to stdout; this file is also its program, and therefore imports
only numpy and scipy. HiGHS prints a line of its own to standard output whatever its options are, which goes to standard
error instead.
"""

from __future__ import annotations

import math
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_SMALL = 50_000  # matrix entries up to which a program is tried in this process first
_MOMENT = 1.0  # seconds it may take here
_EXACT = {"mip_rel_gap": 0.0, "presolve": False}  # presolve has cut off optima (1.12); programs are reduced already
_GRACE = 2.0  # seconds HiGHS may overrun its time limit before it is killed


class _Diverted:
    """How many calls have file descriptor 1 lead to standard error, and where it led before."""

    def __init__(self) -> None:
        self.calls, self.kept, self.lock = 0, -1, Lock()


_DIVERTED = _Diverted()


@contextmanager
def output_to_stderr() -> Iterator[None]:
    """Redirect what libraries write to standard output to standard error, also what C still holds in its buffer.

    Several threads may be inside at a time. Nothing is redirected where either is closed.
    """
    state = _DIVERTED
    with state.lock:
        if not state.calls:
            _flush()
            with suppress(OSError):
                state.kept = os.dup(1)
                os.dup2(2, 1)
        state.calls += 1
    try:
        yield
    finally:
        with state.lock:
            state.calls -= 1
            if not state.calls and state.kept >= 0:
                _flush()
                os.dup2(state.kept, 1)
                os.close(state.kept)
                state.kept = -1


def _flush() -> None:
    """Write what C holds for standard output; Python's own part is flushed by who writes it."""
    import ctypes

    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)


class End(Enum):
    """How HiGHS ended."""

    SOLVED = "solved"
    INFEASIBLE = "infeasible"
    STOPPED = "stopped"  # by the time limit, or a failure


@dataclass(frozen=True, slots=True, eq=False)
class LinearProgram:
    """min cost·z with below z <= limits, equal z = right and 0 <= z <= upper (None: 1); z[:whole] are integers."""

    cost: Floats
    equal: csr_array
    right: Floats
    below: csr_array
    limits: Floats
    whole: int = 0
    upper: Floats | None = None


@dataclass(frozen=True, slots=True, eq=False)
class HighsOutcome:
    """A point (or None), its objective, a bound, and for linear programs the dual prices of both kinds of rows."""

    end: End
    point: Floats | None = None
    objective: float = math.inf
    bound: float = -math.inf
    equal: Floats | None = None
    below: Floats | None = None


def run(program: LinearProgram, seconds: float = math.inf) -> HighsOutcome:
    """Solve in this process; only the time limit stops it."""
    if seconds <= 0:
        return HighsOutcome(End.STOPPED)
    return _mixed(program, seconds) if program.whole else _linear(program, seconds)


def good_point(program: LinearProgram, gap: float, nodes: int, seconds: float = math.inf) -> Floats | None:
    """A point of a mixed-integer program about that `gap` from the best, or the best after so many nodes, if any."""
    return _mixed(program, seconds, {"mip_rel_gap": gap, "node_limit": nodes, "presolve": True}).point


def near_best(program: LinearProgram, gap: float, nodes: int, seconds: float = math.inf) -> HighsOutcome:
    """The outcome of a mixed-integer program once its bound is within that `gap`, or after so many nodes."""
    return _mixed(program, seconds, _EXACT | {"mip_rel_gap": gap, "node_limit": nodes})


def _linear(program: LinearProgram, seconds: float, presolve: bool = True) -> HighsOutcome:
    from scipy.optimize import linprog

    more: dict[str, Any] = {"A_eq": program.equal, "b_eq": program.right}
    if len(program.limits):
        more |= {"A_ub": program.below, "b_ub": program.limits}
    more["options"] = {"time_limit": min(seconds, 1e6), "presolve": presolve}
    if program.upper is not None:
        more["bounds"] = np.stack([np.zeros(len(program.cost)), program.upper], axis=1)
    found: Any = linprog(program.cost, **more, method="highs-ds")
    if found.status == 2 and presolve:
        return _linear(program, seconds, presolve=False)
    if found.status != 0:
        return HighsOutcome(End.INFEASIBLE if found.status == 2 else End.STOPPED)
    prices = -np.asarray(found.ineqlin.marginals) if len(program.limits) else np.zeros(0)
    return HighsOutcome(End.SOLVED, found.x, found.fun, found.fun, np.asarray(found.eqlin.marginals), prices)


def _mixed(program: LinearProgram, seconds: float, options: Mapping[str, float] | None = None) -> HighsOutcome:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csc_array, vstack

    columns = len(program.cost)
    whole = np.arange(columns) < program.whole
    rows = vstack([program.equal, program.below]) if len(program.limits) else program.equal
    least = np.concatenate([program.right, np.full(len(program.limits), -np.inf)])
    given: Any = {"time_limit": min(seconds, 1e6), **(_EXACT if options is None else options)}
    with output_to_stderr():
        found = milp(
            program.cost,
            integrality=whole.astype(np.uint8),
            bounds=Bounds(np.zeros(columns), np.ones(columns) if program.upper is None else program.upper),
            constraints=LinearConstraint(csc_array(rows), least, np.concatenate([program.right, program.limits])),
            options=given,
        )
    if found.status == 2:
        return HighsOutcome(End.INFEASIBLE)
    bound = -math.inf if found.mip_dual_bound is None else float(found.mip_dual_bound)
    end = End.SOLVED if found.status == 0 else End.STOPPED
    return HighsOutcome(end, found.x, math.inf if found.x is None else float(found.fun), bound)


class Highs:
    """Solves programs one by one: integer ones, which may overrun any time limit, and long ones in a child process.

    Leaving the context kills the child.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._until = math.inf
        self._cancelled = False

    def __enter__(self) -> Highs:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def solve(self, program: LinearProgram, seconds: float = math.inf) -> HighsOutcome:
        """Solve a program within `seconds`."""
        if seconds <= 0 or self._cancelled:
            return HighsOutcome(End.STOPPED)
        began = time.perf_counter()
        if not program.whole and program.equal.nnz + program.below.nnz <= _SMALL:
            outcome = run(program, min(seconds, _MOMENT))
            if outcome.end is not End.STOPPED or seconds <= _MOMENT:
                return outcome
        try:
            self.ask(program, began + seconds - time.perf_counter())
            outcome = self.answer()
        except BaseException:  # an interrupt: the next program must not get this one's answer
            self.stop()
            raise
        if outcome.end is End.STOPPED:
            self.stop()  # it may still be busy
        return outcome

    def ask(self, program: LinearProgram, seconds: float) -> None:
        """Send a program to the child; one at a time."""
        if self._process is None:
            # In its own session: the terminal's interrupt is for this process only.
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        if self._cancelled:
            self._process.kill()
        self._until = time.perf_counter() + seconds
        into, fields = self._process.stdin, {name: getattr(program, name) for name in LinearProgram.__slots__}
        assert into is not None
        with suppress(BrokenPipeError):  # it died: `answer` says so
            pickle.dump((fields, self._until - time.perf_counter()), into)
            into.flush()

    def answer(self, seconds: float = math.inf) -> HighsOutcome:
        """The child's answer within `seconds` (default: its time limit); STOPPED if there is none."""
        process, until = self._process, min(self._until + _GRACE, time.perf_counter() + seconds)
        assert process is not None and process.stdout is not None
        while not select.select([process.stdout], [], [], max(0.0, min(until - time.perf_counter(), 3600.0)))[0]:
            if time.perf_counter() >= until:
                return HighsOutcome(End.STOPPED)
        try:
            fields = pickle.load(process.stdout)
        except (EOFError, pickle.UnpicklingError):  # it died, usually out of memory
            self.stop()
            return HighsOutcome(End.STOPPED)
        return HighsOutcome(End(fields.pop("end")), **fields)

    def cancel(self) -> None:
        """Stop the current solve and reject further ones; callable from another thread."""
        self._cancelled = True
        process = self._process
        if process is not None:
            process.kill()  # `answer` notices

    def stop(self) -> None:
        """Kill the child."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Solve requests until the input ends."""
    while True:
        try:
            fields, seconds = pickle.load(requests)
        except EOFError:
            return
        outcome = run(LinearProgram(**fields), seconds)
        reply: dict[str, Any] = {name: getattr(outcome, name) for name in HighsOutcome.__slots__}
        pickle.dump(reply | {"end": outcome.end.value}, answers)
        answers.flush()


def _end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (Linux)."""
    import ctypes

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    _end_with_parent()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep libraries' prints out of the answers
    _serve(sys.stdin.buffer, answers)

"""Linear and mixed-integer programs for HiGHS, the one that scipy carries: solved here, or in a process of their own.

HiGHS does not listen to Python while it runs. What may take long runs in a child process, which an interrupt of this
one, or its time, ends. The child reads requests from its input and writes outcomes to its output; it imports only
numpy and scipy, so this file is also the child's program.
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
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_SMALL = 50_000  # entries of a matrix up to which it is tried in this process first
_MOMENT = 1.0  # seconds that it may take there
_GRACE = 2.0  # seconds that HiGHS may overrun its time before the process is ended


class End(Enum):
    """How HiGHS ended."""

    SOLVED = "solved"
    INFEASIBLE = "infeasible"
    STOPPED = "stopped"  # by its time, or by its own trouble


@dataclass(frozen=True, slots=True, eq=False)
class LinearProgram:
    """min cost·z with below z <= limits, equal z = right and 0 <= z <= 1; z[:whole] are whole numbers."""

    cost: Floats
    equal: csr_array
    right: Floats
    below: csr_array
    limits: Floats
    whole: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """A point (None where there is none), its objective, a bound, and the prices of both kinds of rows (programs
    without whole numbers)."""

    end: End
    point: Floats | None = None
    objective: float = math.inf
    bound: float = -math.inf
    equal: Floats | None = None
    below: Floats | None = None


def run(program: LinearProgram, seconds: float = math.inf) -> Outcome:
    """The program's outcome, in this process: nothing but its end or its time ends it."""
    if seconds <= 0:
        return Outcome(End.STOPPED)
    return _mixed(program, seconds) if program.whole else _linear(program, seconds)


def _linear(program: LinearProgram, seconds: float, presolve: bool = True) -> Outcome:
    from scipy.optimize import linprog

    more: dict[str, Any] = {"A_eq": program.equal, "b_eq": program.right}
    if len(program.limits):
        more |= {"A_ub": program.below, "b_ub": program.limits}
    more["options"] = {"time_limit": min(seconds, 1e6), "presolve": presolve}
    found: Any = linprog(program.cost, **more, method="highs-ds")
    if found.status == 2 and presolve:
        return _linear(program, seconds, presolve=False)
    if found.status != 0:
        return Outcome(End.INFEASIBLE if found.status == 2 else End.STOPPED)
    prices = -np.asarray(found.ineqlin.marginals) if len(program.limits) else np.zeros(0)
    return Outcome(End.SOLVED, found.x, found.fun, found.fun, np.asarray(found.eqlin.marginals), prices)


def _mixed(program: LinearProgram, seconds: float) -> Outcome:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csc_array, vstack

    columns = len(program.cost)
    whole = np.arange(columns) < program.whole
    rows = vstack([program.equal, program.below]) if len(program.limits) else program.equal
    least = np.concatenate([program.right, np.full(len(program.limits), -np.inf)])
    found = milp(
        program.cost,
        integrality=whole.astype(np.uint8),
        bounds=Bounds(np.zeros(columns), np.ones(columns)),
        constraints=LinearConstraint(csc_array(rows), least, np.concatenate([program.right, program.limits])),
        # Its presolve has cut off optima of such programs (1.12); ours is done before.
        options={"time_limit": min(seconds, 1e6), "mip_rel_gap": 0.0, "presolve": False},
    )
    if found.status == 2:
        return Outcome(End.INFEASIBLE)
    bound = -math.inf if found.mip_dual_bound is None else float(found.mip_dual_bound)
    end = End.SOLVED if found.status == 0 else End.STOPPED
    return Outcome(end, found.x, math.inf if found.x is None else float(found.fun), bound)


class Highs:
    """Solves one program after another; those with whole numbers, which may overrun any time, and those that take more
    than a moment in a child process.

    Leaving the block ends the process at once.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._until = math.inf
        self._cancelled = False

    def __enter__(self) -> Highs:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def solve(self, program: LinearProgram, seconds: float = math.inf) -> Outcome:
        """The program's outcome within so many seconds."""
        if seconds <= 0 or self._cancelled:
            return Outcome(End.STOPPED)
        began = time.perf_counter()
        if not program.whole and program.equal.nnz + program.below.nnz <= _SMALL:
            outcome = run(program, min(seconds, _MOMENT))
            if outcome.end is not End.STOPPED or seconds <= _MOMENT:
                return outcome
        self.ask(program, began + seconds - time.perf_counter())
        outcome = self.answer()
        if outcome.end is End.STOPPED:
            self.stop()  # it may be busy still
        return outcome

    def ask(self, program: LinearProgram, seconds: float) -> None:
        """Start on a program; one at a time."""
        if self._process is None:
            # Apart from the terminal, whose interrupt is for this process alone.
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

    def answer(self, seconds: float = math.inf) -> Outcome:
        """What it answers within so many seconds (all that it was given); STOPPED where that is nothing."""
        process, until = self._process, min(self._until + _GRACE, time.perf_counter() + seconds)
        assert process is not None and process.stdout is not None
        while not select.select([process.stdout], [], [], max(0.0, min(until - time.perf_counter(), 3600.0)))[0]:
            if time.perf_counter() >= until:
                return Outcome(End.STOPPED)
        try:
            fields = pickle.load(process.stdout)
        except (EOFError, pickle.UnpicklingError):  # it died, perhaps in the middle: out of memory, as a rule
            self.stop()
            return Outcome(End.STOPPED)
        return Outcome(End(fields.pop("end")), **fields)

    def cancel(self) -> None:
        """From another thread: end what is being solved, and solve nothing more."""
        self._cancelled = True
        process = self._process
        if process is not None:
            process.kill()  # `answer` sees its end

    def stop(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Solve what comes until the input ends."""
    while True:
        try:
            fields, seconds = pickle.load(requests)
        except EOFError:
            return
        outcome = run(LinearProgram(**fields), seconds)
        reply: dict[str, Any] = {name: getattr(outcome, name) for name in Outcome.__slots__}
        pickle.dump(reply | {"end": outcome.end.value}, answers)
        answers.flush()


def _end_with_parent() -> None:
    """Let the kernel end this process with the one that started it (Linux)."""
    import ctypes

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


if __name__ == "__main__":
    _end_with_parent()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    _serve(sys.stdin.buffer, answers)

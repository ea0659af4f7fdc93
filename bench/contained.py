"""One solve in its own process, so that a crash, a lack of memory or a solver that hangs ends only that solve.

    python -m partita.bench.contained REQUEST.json     writes the answer into a file that the request names

The process enforces its own limit: it interrupts itself some time after the limit, and after as long again the
system's alarm kills it, whatever the solver is doing.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..model.errors import PartitaError

PATIENCE = 0.1
"""Share of the limit, at least LEAST seconds, after which a solver is interrupted; after as much again it is ended."""
LEAST = 2.0
START = 60.0
"""Seconds for what comes before a limited solve: the start, the instance, the libraries."""
SHARE = 0.75
"""Of the machine's memory, for one process."""

ENDED = {
    signal.SIGALRM: ("late", "did not stop by itself"),
    signal.SIGKILL: ("killed", "by the system, perhaps for its memory"),
}


@dataclass(frozen=True, slots=True)
class Request:
    """Solve the instance in `file` by `solver` within `seconds`; "NAME whole" solves it without parts.

    `whole`: seconds count from the start of the process, as for a user who types the command; otherwise from the call
    of the solver, after a small network has loaded its libraries.
    """

    file: str
    solver: str
    seconds: float
    whole: bool


def contained(request: Request, folder: Path) -> dict[str, Any]:
    """The answer to a request: status, objective, bound, assignment, seconds, cpu_s, proof, words, memory_mib.

    Without an answer, the status says how the process ended: refused, error, memory, late, killed or crashed.
    """
    written, answer, output = folder / "request.json", folder / "answer.json", folder / "said.txt"
    answer.unlink(missing_ok=True)
    started = time.time()
    written.write_text(json.dumps(asdict(request) | {"started": started, "answer": str(answer)}))
    with output.open("wb") as log:
        command = [sys.executable, "-m", f"{__package__}.contained", str(written)]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(request.seconds + 3 * _patience(request.seconds) + START)
        except subprocess.TimeoutExpired:
            code = -signal.SIGALRM
        finally:  # also when the benchmark is interrupted; and what the solver started ends with it
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if answer.exists():
        found: dict[str, Any] = json.loads(answer.read_text())
        return found
    status, words = _ended(code, output.read_text(errors="replace").strip())
    return _without(status, words) | {"seconds": time.time() - started}


def _ended(code: int, output: str) -> tuple[str, str]:
    """How a process ended that left no answer."""
    last = output.splitlines()[-1].strip() if output else ""
    if "bad_alloc" in output or "MemoryError" in output:
        return "memory", last
    if code >= 0:
        return "crashed", last or f"exit code {code}"
    number = signal.Signals(-code)
    return ENDED.get(number, ("crashed", f"{number.name} {last}".strip()))


def _without(status: str, words: str) -> dict[str, Any]:
    nothing = dict.fromkeys(("objective", "bound", "assignment", "cpu_s", "proof", "memory_mib"))
    return {"status": status, "words": words} | nothing


def _patience(seconds: float) -> float:
    return max(LEAST, PATIENCE * seconds)


# In the process


def main(path: str) -> None:
    """Answer the request in a file."""
    given = json.loads(Path(path).read_text())
    started, answer = given.pop("started"), Path(given.pop("answer"))
    request = Request(**given)
    try:
        found = _solve(request, started)
    except MemoryError as error:
        found = _without("memory", str(error))
    except KeyboardInterrupt:
        found = _without("late", "did not answer an interrupt")
    except Exception as error:  # whatever the solver raises is its answer
        found = _without("error", f"{type(error).__name__}: {error}")
    signal.alarm(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from here on the answer is only written
    found = {"seconds": time.time() - started} | found
    found["memory_mib"] = _peak_mib()
    partial = answer.with_suffix(".part")
    partial.write_text(json.dumps(found))
    partial.replace(answer)


def _solve(request: Request, started: float) -> dict[str, Any]:
    _limit_memory()
    if request.whole:
        _limit_time(request.seconds - (time.time() - started))
    from ..formulation.network.contest import Contest
    from ..solvers.backends.instance import read_instance, seconds_left
    from ..solvers.decomposition.decomposed import Decomposed
    from ..solvers.protocol import Limits, Status, solver

    name, _, whole = request.solver.partition(" ")
    backend, instance = solver(name), read_instance(request.file)
    network = instance.network() if isinstance(instance, Contest) else instance
    if not request.whole:
        _warm(backend)
        _limit_time(request.seconds)
        started = time.time()
    solve, busy = backend.whole if whole and isinstance(backend, Decomposed) else backend.solve, _cpu_seconds()
    try:
        if not backend.accepts(network):
            return _without("refused", "does not accept it")
        found = solve(network, Limits(seconds_left(request.seconds, time.time() - started)))
    except PartitaError as refusal:
        return _without("refused", str(refusal))
    return {
        "status": found.status.value,
        "objective": found.objective,
        "bound": None if found.status is Status.INFEASIBLE else found.bound,
        "assignment": None if found.assignment is None else [int(option) for option in found.assignment],
        "seconds": time.time() - started,
        "cpu_s": _cpu_seconds() - busy,
        "proof": None if found.proof is None else asdict(found.proof),
        "words": f"{found.source}: {found.words}" if found.words else found.source,
    }


def _warm(backend: Any) -> None:
    """Load a solver's libraries and compiled loops with tiny networks."""
    from ..solvers.protocol import Limits
    from .families import TIGHTNESS, Family, network

    for tightness in TIGHTNESS:
        small = network(Family("chords", 6, 2, 3, tightness))
        if backend.accepts(small):
            backend.solve(small, Limits(5.0))


def _cpu_seconds() -> float:
    """Of this process and its children; on Linux, of those that still run too."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parent, *rest = stat.read_text().rpartition(")")[2].split()[1:]
            if int(parent) == os.getpid():
                total += (int(rest[9]) + int(rest[10])) / os.sysconf("SC_CLK_TCK")
    return total


def _peak_mib() -> float:
    """Peak memory of this process. The system's usage counter would start at the parent's."""
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def _limit_memory() -> None:
    most = int(SHARE * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _limit_time(seconds: float) -> None:
    """Interrupt this process some time after `seconds`, and end it after as long again."""
    patience = _patience(seconds)
    interrupt = threading.Timer(seconds + patience, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.daemon = True
    interrupt.start()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts without it
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds + 2 * patience)


if __name__ == "__main__":
    main(sys.argv[1])

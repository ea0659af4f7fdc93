"""Solving instance files: cost networks, and instances of the IOPDDL contest."""

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...formulation.network.contest import Contest
from ...formulation.network.network import INFINITE, Network
from ...formulation.network.network_file import read_network
from ...model.errors import PartitaError
from ...model.files import check_file_writable, read_json, write_atomically
from ...model.garbage_collection import without_collection
from ..budget import UNLIMITED, Budget
from ..protocol import Limits, Progress, Solution, solver

_REST = 0.02, 3.0  # share of the time limit, and most seconds, kept for starting, checking the answer and writing it


@without_collection()  # the parsed JSON is large and short-lived
def read_instance(path: Path | str) -> Contest | Network:
    """Read a `.json` or `.json.gz` file; raises PartitaError that says what is wrong, and where."""
    data = read_json(path)
    return Contest.from_json(data) if isinstance(data, dict) and "problem" in data else read_network(data)


def solve_instance(
    path: Path | str,
    budget: Budget = UNLIMITED,
    output: Path | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Solve the instance in a file; returns what `partita solve --json` prints.

    The time limit includes reading. The assignment is checked against the instance as read, then written to the file
    `output`. Raises PartitaError for an unusable file or solver.
    """
    started, name = time.perf_counter(), budget.solver
    if output is not None:
        check_file_writable(output)
    backend, instance = solver(name), read_instance(path)
    network = instance.network() if isinstance(instance, Contest) else instance
    if not backend.accepts(network):
        why = ": its numbers are too large to add up exactly" if name == "auto" else "; `--solver auto` may"
        raise PartitaError(f"{name} cannot solve {path}{why}")
    read = time.perf_counter() - started
    left = seconds_left(budget.seconds, read)
    answer = backend.solve(network, Limits(left, progress=progress, gap=budget.gap))
    summary = _summary(answer) | {"seconds": time.perf_counter() - started, "seconds_reading": read}
    if answer.assignment is None:
        return summary
    if isinstance(instance, Contest):
        verdict = instance.evaluate(answer.assignment)
        if not verdict.feasible or verdict.cost != answer.objective:
            why = verdict.why or f"it costs {verdict.cost}, not {answer.objective}"
            raise PartitaError(f"the answer of {name} does not hold on {path}: {why}")
        summary["evaluated"] = verdict.cost
    if output is None:
        return summary
    if isinstance(instance, Contest):
        instance.write(output, answer.assignment)
    else:
        write_atomically(output, f"{summary['assignment']}\n")
    return summary | {"output": str(output)}


def seconds_left(limit: float, spent: float) -> float:
    """A solver's share of a time limit, so that its answer is written in time."""
    return max(0.0, limit - min(_REST[0] * limit, _REST[1]) - spent)


def _summary(answer: Solution) -> dict[str, Any]:
    return {
        "status": answer.status.value,
        "objective": answer.objective,
        "bound": answer.bound if -INFINITE < answer.bound < INFINITE else None,
        "gap": answer.gap,
        "seconds": answer.seconds,
        "source": answer.source,
        "words": answer.words,
        "proof": None if answer.proof is None else asdict(answer.proof),
        "assignment": None if answer.assignment is None else [int(option) for option in answer.assignment],
    }

"""The numbers of a machine that may be wrong, by their paths (`levels.0.bandwidth`), and machines with others."""

from collections.abc import Iterator, Mapping, Sequence
from math import inf, prod
from typing import Any

from .machine import Machine
from .number_errors import DEFAULT_ERROR

COUNTS = ("size", "units", "transaction_bytes")
"""Numbers that say what the machine is: they have no error."""
STATED = ("memory_bytes",)
"""Numbers that a driver reports to the byte: they have the error that is stated, if any."""
SHARES = ("hidden_share", "scatter_share", "matmul_efficiency", "attention_efficiency")
"""Numbers that are at most 1."""
LESS_IS_BETTER = ("latency_ns", "wait_ns", "launch_ns", "host_ns", "step_ns", "reserved_bytes")
"""Numbers of which less makes no step longer; of every other, more."""


def uncertain(machine: Machine) -> dict[str, float]:
    """The paths of all numbers that may be wrong and may matter, each with its error.

    What joins a single unit, and the bandwidth of a wired level, is never used.
    """
    found = {path: DEFAULT_ERROR for path in numbers(machine) if _name(path) not in (*COUNTS, *STATED)}
    known = {path for path in numbers(machine) if _name(path) not in COUNTS}
    found |= {path: error for path, error in machine.errors.items() if path in known}
    levels = tuple(enumerate(machine.levels))
    alone = tuple(f"levels.{index}." for index, level in levels if level.size == 1)
    wired = {f"levels.{index}.bandwidth" for index, level in levels if level.wiring is not None}
    return {path: error for path, error in found.items() if not path.startswith(alone) and path not in wired}


def numbers(machine: Machine) -> dict[str, float]:
    """All numbers of a machine above 0, by their paths, but for measured kernels."""
    data = machine.to_json()
    return dict(_numbers({**data, "errors": None, "device": {**data["device"], "kernels": None}}))


def moved(machine: Machine, path: str, factor: float) -> Machine:
    """The machine with the number at a path multiplied; a whole number stays one, and a share at most 1."""
    return _multiplied(machine, {path: factor})


def _multiplied(machine: Machine, factors: Mapping[str, float]) -> Machine:
    """The machine with several numbers multiplied at once, by their paths."""
    data = machine.to_json()
    for path, factor in factors.items():
        *parents, name = path.split(".")
        at: Any = data
        for key in parents:
            at = at[int(key) if isinstance(at, list) else key]
        number = at[name] * factor
        at[name] = round(number) if isinstance(at[name], int) else min(number, 1.0 if name in SHARES else inf)
    return Machine.from_json(data)


def improves(path: str, factor: float) -> bool:
    """True if no step gets longer when the number at the path is multiplied by the factor."""
    return (factor > 1) != (_name(path) in LESS_IS_BETTER)


def blended(machines: Sequence[Machine]) -> Machine | None:
    """The machine whose numbers are the geometric means of several; None if these do not have the same ones."""
    found = [numbers(machine) for machine in machines]
    for other in found:
        if other.keys() != found[0].keys() or any(other[p] != found[0][p] for p in other if _name(p) in COUNTS):
            return None
    factors: dict[str, float] = {}
    for path, own in found[0].items():
        if any(other[path] != own for other in found):
            factors[path] = prod(other[path] ** (1 / len(found)) for other in found) / own
    return _multiplied(machines[0], factors)


def _name(path: str) -> str:
    return path.rpartition(".")[2]


def _numbers(item: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """The path and the value of every number above 0 in JSON; pairs of units, which are tuples, are none."""
    pairs = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
    for key, found in pairs:
        yield from _numbers(found, f"{path}.{key}" if path else str(key))
    if isinstance(item, int | float) and not isinstance(item, bool) and item:
        yield path, item

"""How the search for the cheapest reduction program grows with devices and levels, compared with P²'s enumeration.

One reduction of 100 MB over all devices of a machine whose links are four times as fast on every next level inwards.
`programs` and `enumerate_s`: all valid programs of at most five steps, found on the devices themselves as P² (MLSys
2022) does, and priced. For many devices they are found on two devices a level, which gives the same programs; for more
than three levels they are too many. `optimal_s`: the first question, with nothing kept from others. `cpsat_s`, `z3_s`:
the same optimum on boolean states, None where it was not proved in the time. `flat_ms`, `enumerated_ms`, `optimal_ms`:
the times of one all-reduce, of the best program enumerated and of the optimum.
"""

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..formulation.placement.placement import of_rows
from ..formulation.reduction import enumeration
from ..formulation.reduction import optimal as search
from ..formulation.reduction.cost import program_price
from ..formulation.reduction.encoding import encode_programs
from ..formulation.reduction.program import Reduction, flat
from ..formulation.reduction.statuses import graph
from ..model.machine.machine import Level, Machine
from ..solvers.protocol import Status
from ..solvers.reduction.exact_program import solve_by_cpsat, solve_by_z3
from .cases import Row, Tell, each

BYTES = 10**8
SECONDS = 120.0  # for a solver of boolean states
MOST_MEMBERS = 64  # enumerated on as many devices
MOST_ENUMERATED = 3  # levels
GROWTH = (
    (8,),
    (64,),
    (2, 8),
    (4, 16),
    (16, 64),
    (64, 1024),
    (2, 4, 4),
    (8, 8, 16),
    (16, 64, 64),
    (4, 8, 8, 16),
    (8, 16, 16, 32),
    (4, 4, 8, 8),
    (8, 8, 8, 8, 16),
)
SMALL = ((8,), (2, 8), (8, 8, 16))


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """One row for every hierarchy; seconds are wall time. `small` leaves out what takes minutes."""
    cases = each(SMALL if small else GROWTH, only, tell, _name)
    return [{"case": _name(hierarchy)} | measure(hierarchy, 2 if small else 3) for hierarchy in cases]


def _name(hierarchy: tuple[int, ...]) -> str:
    return f"{math.prod(hierarchy)} devices, {'x'.join(map(str, hierarchy))}"


def tree(hierarchy: Sequence[int]) -> Machine:
    """Switches on every level: 10 GB/s and 14 us outermost, every next level four times as fast and twice as near."""
    levels = (Level(f"level {i}", size, 10e9 * 4**i, 14000 / 2**i) for i, size in enumerate(hierarchy))
    return Machine("tree", tuple(levels), Machine.load("gcp-a100").device)


def measure(hierarchy: tuple[int, ...], solved: int = 3) -> Row:
    """The row of a hierarchy; with more than `solved` levels no solver of boolean states runs."""
    machine, levels = tree(hierarchy), len(hierarchy)
    reduction = Reduction(of_rows([hierarchy]), (0,))
    for kept in (graph, search._paths_of, search._envelope, enumeration._programs):
        kept.cache_clear()
    best, optimal_s = _timed(lambda: search.optimal(machine, reduction, BYTES))
    count, enumerated, enumerate_s = None, None, None
    if levels <= MOST_ENUMERATED:
        (count, enumerated), enumerate_s = _timed(lambda: _enumerated(machine, reduction))
    seconds: list[float | None] = [None, None]
    if levels <= solved:
        question = encode_programs(machine, reduction, BYTES)
        for i, solve in enumerate((solve_by_cpsat, solve_by_z3)):
            answer, taken = _timed(functools.partial(solve, question, SECONDS))
            seconds[i] = taken if answer.status is Status.OPTIMAL else None
    return {
        "levels": levels,
        "programs": count,
        "enumerate_s": enumerate_s,
        "optimal_s": optimal_s,
        "cpsat_s": seconds[0],
        "z3_s": seconds[1],
        "flat_ms": program_price(machine, reduction, flat(hierarchy)).ns(BYTES) / 1e6,
        "enumerated_ms": None if enumerated is None else enumerated / 1e6,
        "optimal_ms": best.ns / 1e6,
    }


def _enumerated(machine: Machine, reduction: Reduction) -> tuple[int, int]:
    """How many valid programs there are, and the ns of the cheapest."""
    sizes = reduction.sizes
    found = enumeration.programs(len(sizes), sizes=sizes if math.prod(sizes) <= MOST_MEMBERS else None)
    return len(found), min(program_price(machine, reduction, program).ns(BYTES) for program in found)


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    return work(), time.perf_counter() - start

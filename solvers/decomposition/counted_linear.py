"""A counted program as a linear program, and rid of the costs that the linear program's dual prices explain."""

import math
from dataclasses import dataclass

import numpy as np

from ..elimination.kernels import Floats
from ..wide.highs import LinearProgram, run
from ..wide.integer import RANGE
from .counted import CountedProgram, Row, Terms

_LONGEST = 1e4  # of what is added to a window, in an objective's unit: HiGHS has excluded optima where it was 1e6
_UNIT = 1 << 10  # reduced costs are integers in units of this share of a ns


def unit_of(program: CountedProgram) -> float:
    """The ns that one unit of the objective stands for, so that no cost exceeds `RANGE` units, and nothing added to a
    window exceeds `_LONGEST`."""
    windows = (rows for column, rows in program.maxima.items() if program.cost[column])
    added = max((amount for rows in windows for row in rows for amount, _ in row.terms), default=0)
    return max(1.0, max(map(abs, program.cost), default=0) / RANGE, added / _LONGEST)


def linear(program: CountedProgram, scale: float = 1.0, whole: bool = False) -> LinearProgram:
    """The program for HiGHS: costs and windows in units of `scale` ns, inequalities and τ in units of their limits.

    In ns and bytes, maxima would range up to 10^10, where HiGHS has excluded optima. With `whole`, all columns but
    maxima are integers.
    """
    from scipy.sparse import csr_array

    size = _sizes(program, scale)

    def matrix(rows: list[Row], unit: Floats) -> csr_array:
        at = np.repeat(np.arange(len(rows)), [len(row.terms) for row in rows])
        columns = [column for row in rows for _, column in row.terms]
        amounts = np.array([amount for row in rows for amount, _ in row.terms], np.float64) * size[columns] / unit[at]
        return csr_array((amounts, (at, columns)), shape=(len(rows), len(program.cost)))

    equal, below = ([row for row in program.rows if row.equal is same] for same in (True, False))
    limits, unit = np.array([row.right for row in below], np.float64), _units(program, below, size)
    return LinearProgram(
        cost=np.array(program.cost, np.float64) * size / scale,
        equal=matrix(equal, np.ones(len(equal))),
        right=np.array([row.right for row in equal], np.float64),
        below=matrix(below, unit),
        limits=limits / unit,
        whole=len(program.cost) - len(program.maxima) if whole else 0,
        upper=np.array(program.upper, np.float64) / size,
    )


def _sizes(program: CountedProgram, scale: float) -> Floats:
    """What one unit of each column stands for: `scale` ns of a window, the whole capacity of τ, 1 of the others."""
    found = np.ones(len(program.cost))
    for column in program.maxima:
        found[column] = scale if program.cost[column] else max(1, program.upper[column])
    return found


def _units(program: CountedProgram, rows: list[Row], size: Floats) -> Floats:
    """A positive number of the size of each row's limit; that of its maximum, if it is for one."""
    of = {id(row): size[column] for column, own in program.maxima.items() for row in own}
    return np.array([of.get(id(row), max(1.0, abs(row.right))) for row in rows], np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class Equations:
    """Integers z, `low` <= z <= `upper`: Σ amount · z is the right side of every row; Σ `cost` · z <= `budget`."""

    low: list[int]
    upper: list[int]
    rows: list[tuple[Terms, int]]
    cost: list[int]
    budget: int


def below(program: CountedProgram, budget: int, seconds: float = math.inf) -> Equations:
    """The solutions of cost up to `budget`, by reduced costs; the program's columns come first.

    Every inequality gets a slack. An equation times any number may be subtracted from the cost; the linear program's
    dual prices, rounded, leave costs that are hardly negative, so that the budget bounds columns and propagates.
    """
    upper, cost = list(program.upper), [_UNIT * c for c in program.cost]
    rows: list[tuple[Terms, int]] = []
    budget *= _UNIT
    for row, price in zip(program.rows, _prices(program, seconds), strict=True):
        terms, right = row.terms, row.right
        if not row.equal:
            divisor = math.gcd(*(amount for amount, _ in terms)) or 1
            terms, right = [(amount // divisor, column) for amount, column in terms], right // divisor
            price *= divisor
            terms.append((1, len(upper)))
            upper.append(max(0, right - sum(min(0, amount) * upper[column] for amount, column in terms[:-1])))
            cost.append(0)
        rows.append((terms, right))
        whole = round(_UNIT * price)
        budget -= whole * right
        for amount, column in terms:
            cost[column] -= whole * amount
    room = budget - sum(c * most for c, most in zip(cost, upper, strict=True) if c < 0)
    low = [max(0, most - room // -c) if c < 0 else 0 for c, most in zip(cost, upper, strict=True)]
    upper = [min(most, room // c) if c > 0 else most for c, most in zip(cost, upper, strict=True)]
    return Equations(low, upper, rows, cost, budget)


def _prices(program: CountedProgram, seconds: float) -> list[float]:
    """A dual price of every row, in ns; 0 if the linear program has no solution or takes too long."""
    outcome = run(linear(program), seconds)
    if outcome.equal is None or outcome.below is None:
        return [0.0] * len(program.rows)
    unit = _units(program, [row for row in program.rows if not row.equal], _sizes(program, 1.0))
    below = iter((-outcome.below / unit).tolist())
    equal = iter(outcome.equal.tolist())
    return [next(equal) if row.equal else next(below) for row in program.rows]

"""A counted program as a linear program, and rid of the costs that the linear program's dual prices explain."""

import math
from dataclasses import dataclass

import numpy as np

from ..elimination.kernels import Floats
from ..wide.highs import LinearProgram, run
from .counted import CountedProgram, Row, Terms

_UNIT = 1 << 10  # reduced costs are integers in units of this share of a ns


def linear(program: CountedProgram, scale: float = 1.0, whole: bool = False) -> LinearProgram:
    """The program for HiGHS: costs in units of `scale` ns, inequalities in units of their limits."""
    from scipy.sparse import csr_array

    def matrix(rows: list[Row], unit: Floats) -> csr_array:
        at = np.repeat(np.arange(len(rows)), [len(row.terms) for row in rows])
        terms = [term for row in rows for term in row.terms]
        amounts = np.array([amount for amount, _ in terms], np.float64) / unit[at]
        return csr_array((amounts, (at, [column for _, column in terms])), shape=(len(rows), len(program.cost)))

    equal, below = ([row for row in program.rows if row.equal is same] for same in (True, False))
    limits, unit = np.array([row.right for row in below], np.float64), _units(below)
    return LinearProgram(
        cost=np.array(program.cost, np.float64) / scale,
        equal=matrix(equal, np.ones(len(equal))),
        right=np.array([row.right for row in equal], np.float64),
        below=matrix(below, unit),
        limits=limits / unit,
        whole=len(program.cost) if whole else 0,
        upper=np.array(program.upper, np.float64),
    )


def _units(rows: list[Row]) -> Floats:
    """A positive number of the size of each row's limit."""
    return np.maximum(1.0, np.abs(np.array([row.right for row in rows], np.float64)))


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
    below = iter((-outcome.below / _units([row for row in program.rows if not row.equal])).tolist())
    equal = iter(outcome.equal.tolist())
    return [next(equal) if row.equal else next(below) for row in program.rows]

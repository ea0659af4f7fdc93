"""MILP: parts of a network as mixed-integer programs by HiGHS (`wide/polytope.py`); wide networks as a whole."""

import math

import numpy as np

from ..decomposition.counted import CountedProgram, Decode
from ..decomposition.counted_linear import linear, unit_of
from ..decomposition.decomposed import Decomposed
from ..decomposition.narrowing import Narrow
from ..protocol import Search, Solution
from ..wide.highs import End, Highs
from ..wide.integer import HIDDEN, close, lower_bound
from ..wide.solve_reduced import solve_reduced
from ..wide.substitution import Reduced

_MOST_PAIRS = 1_000_000  # entries after reduction; the linear program of more takes minutes


class MILP(Decomposed):
    """HiGHS on the parts of a network; wide networks after reduction, as linear and mixed-integer programs."""

    def __init__(self) -> None:
        self.part_solver = _Parts()


class _Parts:
    """HiGHS under the decomposition."""

    name, title, most = "milp", "HiGHS", 4_000

    def __init__(self) -> None:
        self.highs = Highs()

    def prove(self, part: Narrow, least: int, until: float) -> int:
        assert part.reparametrized is not None
        return lower_bound(part.reparametrized, until, self.highs)

    def count(self, program: CountedProgram, search: Search, decode: Decode, known_to: int) -> bool:
        scale = unit_of(program)
        while True:
            outcome = self.highs.solve(linear(program, scale, whole=True), search.left)
            if outcome.end is End.INFEASIBLE:
                return True
            if outcome.bound > -1e15:
                proved = search.network.constant + math.ceil((outcome.bound - HIDDEN) * scale)
                search.raise_bound(min(proved, known_to, search.ceiling))
            if outcome.point is None:
                return False
            point: list[int] = np.round(outcome.point).astype(np.int64).tolist()
            if program.cut_cycles(point.__getitem__):
                continue
            assignment = decode(point.__getitem__)
            if assignment is not None:
                search.offer(assignment)
            return search.bound >= min(known_to, search.ceiling)

    def whole(self, search: Search) -> Solution:
        return solve_reduced(search, _solve)


def _solve(search: Search, small: Reduced) -> Solution:
    if len(small.flat.table) > _MOST_PAIRS:
        return search.finish(f"too large for one program: {len(small.flat.table)} pairs")
    return close(search, small)

"""MILP: parts of a network as mixed-integer programs by HiGHS (`wide/polytope.py`); wide networks as a whole."""

from ..decomposition.decomposed import Decomposed
from ..decomposition.narrowing import Narrow
from ..elimination.circuit import Circuit
from ..elimination.memory_price import Price
from ..protocol import Search, Solution
from ..wide.highs import Highs
from ..wide.integer import close, lower_bound
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

    def close(self, circuit: Circuit, best: Price, search: Search) -> Solution:
        return self.whole(search)

    def whole(self, search: Search) -> Solution:
        return solve_reduced(search, _solve)


def _solve(search: Search, small: Reduced) -> Solution:
    if len(small.flat.table) > _MOST_PAIRS:
        return search.finish(f"too large for one program: {len(small.flat.table)} pairs")
    return close(search, small)

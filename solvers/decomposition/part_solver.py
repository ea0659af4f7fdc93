"""What a backend must be able to do to solve networks by their parts."""

from typing import Protocol

from ..elimination.circuit import Circuit
from ..elimination.memory_price import Price
from ..protocol import Search, Solution
from .narrowing import Narrow


class PartSolver(Protocol):
    """A backend under the decomposition; `title` is its name in words.

    `most`: about how many options and pairs of a part it takes.
    """

    name: str
    title: str
    most: int

    def prove(self, part: Narrow, least: int, until: float) -> int:
        """A lower bound on the part's solutions: `least` or more once none is cheaper; until `until` (perf_counter)."""
        ...

    def close(self, circuit: Circuit, best: Price, search: Search) -> Solution:
        """Solve a network whose capacities bind, given the best price."""
        ...

    def whole(self, search: Search) -> Solution:
        """Solve a network as a whole: one too wide to be split."""
        ...

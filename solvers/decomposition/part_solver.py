"""What a backend must be able to do to solve networks by their parts."""

from typing import Protocol

from ..protocol import Search, Solution
from .counted import CountedProgram, Decode
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

    def count(self, program: CountedProgram, search: Search, decode: Decode, known_to: int) -> bool:
        """Offer the program's solutions below the search's ceiling, best last; True if none better is proved to exist.

        The program holds every solution of cost below `known_to`, so its bound holds for the network up to there.
        """
        ...

    def whole(self, search: Search) -> Solution:
        """Solve a network as a whole: one too wide to be split."""
        ...

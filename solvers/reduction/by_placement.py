"""A backend on joint networks: small ones as they are, large ones by their split at the placement.

The placement is the variable that all others hang on. For one of its options the others leave the network of that
placement, which a backend that works on parts of networks splits further; each gets the best cost so far as its cutoff.
"""

import time
from dataclasses import dataclass, field, replace
from weakref import WeakValueDictionary

from ...formulation.network.network import INFINITE, Network
from ...formulation.reduction.joint_encoding import JointEncoding
from ..protocol import NO_LIMITS, Limits, Solution, Solver, Status
from ..search.memory_limits import without_limit

WHOLE = ("auto", "elimination")
"""Backends that get every joint network whole."""
MOST_PAIRS = 20_000
"""Entries of all edges of a network that any backend gets whole."""


@dataclass
class ByPlacement:
    """The backend `solver` on joint networks that were `told`; other networks it gets as they are."""

    solver: Solver
    told: WeakValueDictionary[int, JointEncoding] = field(default_factory=WeakValueDictionary)
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.solver.name

    @property
    def kept(self) -> int:
        """How many answers the cache gave."""
        return getattr(self.solver, "kept", 0)

    def tell(self, encoding: JointEncoding) -> None:
        """Remember what a network is made of: also without its memory limit it has these variables."""
        self.told[id(encoding.network.variables)] = encoding

    def accepts(self, network: Network) -> bool:
        """True if the backend accepts the network."""
        return self.solver.accepts(network)

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        """The best assignment found within the limits, and a proved bound."""
        encoding = self.told.get(id(network.variables))
        small = sum(e.cost.size for e in network.edges) <= MOST_PAIRS
        if encoding is None or len(encoding.members) == 1 or small or self.name in WHOLE:
            return self.solver.solve(network, limits)
        return self._split(encoding, network, limits)

    def _split(self, encoding: JointEncoding, network: Network, limits: Limits) -> Solution:
        """The best of all placements."""
        start, cutoff, bound = time.perf_counter(), limits.cutoff, INFINITE
        best: Solution | None = None
        for number, member in enumerate(encoding.members):
            limited = network.capacities == encoding.network.capacities
            left = max(0.0, limits.seconds - (time.perf_counter() - start)) / (len(encoding.members) - number)
            own = replace(limits, seconds=left, cutoff=cutoff, progress=None)
            found = self.solver.solve(member.network if limited else without_limit(member.network), own)
            nothing_below = found.status is Status.INFEASIBLE and cutoff is not None
            bound = min(bound, own.ceiling(None) if nothing_below else found.bound)
            cheaper = found.objective is not None and (best is None or found.objective < _cost(best))
            if best is None or cheaper or best.status is Status.INFEASIBLE:  # which says nothing of the others
                best = found
                if found.assignment is not None:
                    best = replace(found, assignment=encoding.lifted(number, found.assignment))
            cutoff = min((x for x in (cutoff, found.objective) if x is not None), default=None)
        assert best is not None
        seconds = time.perf_counter() - start
        if best.objective is None:
            status = Status.INFEASIBLE if bound >= INFINITE else Status.UNKNOWN
            return replace(best, status=status, bound=bound, seconds=seconds)
        bound = min(bound, best.objective)
        status = Status.OPTIMAL if bound == best.objective else Status.FEASIBLE
        return replace(best, status=status, bound=bound, seconds=seconds)


def _cost(answer: Solution) -> int:
    return INFINITE if answer.objective is None else answer.objective

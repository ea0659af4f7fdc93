"""The default solver: elimination bounds and prunes; programs take over where label lists grow too long.

Label lists finish most networks. Where they grow too long, small networks are tried as linear and mixed-integer
programs. Then CP-SAT solves the pruned network, with one count per label of a chain's copy (`cp_program.py`). Slacks
grow as in elimination, so that the program only holds what can be part of a solution within the slack. Networks too
wide for elimination go to `wide/portfolio.py`.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from ...formulation.network.network import Network
from ..elimination.circuit import Circuit
from ..elimination.labels import LabelBounds, Listing, enumerate_labels
from ..elimination.memory_price import Price, search_within, sweep
from ..elimination.order import TooWideError, compile_network, restrict
from ..elimination.tables import Tables
from ..elimination.transient_memory import has_extras, solve_transient, without_extras
from ..protocol import NO_LIMITS, PRICED, STOPPED, Limits, Search, Solution, Status
from ..wide.portfolio import solve_flat, try_programs
from ..wide.solve_reduced import reducible
from .cp_program import CopyLabels, build, trail
from .cpsat import CpSatPlain, run, solve_whole
from .elimination import close_by_labels

_FEW_LABELS, _LABELS = 1 << 13, 1 << 18  # per table, under several capacities and under one, which sorts them
_COLUMNS = 1 << 15  # labels per chain in a program


class Auto:
    """Exact for every network whose totals are exact in floats, unless stopped by the time limit."""

    name = "auto"

    def accepts(self, network: Network) -> bool:
        """True if the totals are exact in floats, or fit 64 bits, so that reduction may make them exact."""
        with suppress(TooWideError):
            if compile_network(network).exact:
                return True
        plain = without_extras(network) if has_extras(network) else network
        return reducible(plain)

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        """The best assignment found within the limits, and a proved bound."""
        search = Search(network, limits, self.name)
        return search.run(lambda: self._solve(search))

    def _solve(self, search: Search) -> Solution:
        network = search.network
        if has_extras(network):
            answer = solve_transient(search, self.solve)
            unfinished = not (search.done or search.limits.quick or answer.status is Status.INFEASIBLE)
            return solve_whole(search) if unfinished and CpSatPlain().accepts(network) else answer
        try:
            circuit = compile_network(network)
        except TooWideError:
            return solve_flat(search)
        if not circuit.exact:  # perhaps in 64 bits
            return solve_flat(search)
        best = sweep(circuit, search)
        if best is None:
            return search.finish("no solution, at any price of memory", infeasible=True)
        if search.done or search.limits.quick:
            return _with_words(search.finish("" if search.done else PRICED), "prices", search)
        limit = _FEW_LABELS if len(network.capacities) > 1 else _LABELS
        lists = partial(close_by_labels, circuit, best, search, limit)
        programs = partial(try_programs, search)
        for part, close in (("label lists", lists), ("programs", programs)):
            solution = close()
            if solution is not None and (search.done or solution.status is Status.INFEASIBLE):
                return _with_words(solution, part, search)
        count = partial(_count_within, circuit, best, search)
        return search_within(circuit, best, search, count, ("counting", "CP-SAT"))


def _with_words(solution: Solution, part: str, search: Search) -> Solution:
    """The solution; if it has no words yet, they name the part that proved it, or the time limit."""
    words = f"proved by {part}" if search.bound >= search.ceiling else STOPPED
    return solution if solution.words else replace(solution, words=words)


def _count_within(circuit: Circuit, best: Price, search: Search, through: Tables, reach: int) -> bool:
    """Offer the best solution of cost up to `reach` and below the ceiling, if any; True if the search was complete."""
    max_total = best.max_total(circuit, reach)
    small = restrict(circuit, through, max_total)
    if small is None:
        return True
    tops = small.copies
    bounds = LabelBounds(np.array(best.price), max_total, _COLUMNS, search.until)
    listing = enumerate_labels(small, bounds, tops or (0,))
    chains = [
        CopyLabels(c.boundaries[0], c.boundaries[-1], len(c), labels.at, labels.time, use=labels.use)
        for c, labels in zip(search.network.chains, [listing.slots[top] for top in tops], strict=True)
    ]
    rest = sorted(small.below([small.root], stop=tops))
    factors = [small.factors[slot] for slot in rest if slot < len(small.factors)]
    variables = {v for f in factors for v in f.scope} | {v for c in chains for v in (c.first, c.last)}
    size = {v: len(small.kept[small.domain[v]]) for v in variables}
    program = build(factors, size, search.network.capacities, chains)

    def decode(picks: dict[int, int], counts: list[list[int]]) -> tuple[int, ...] | None:
        walks = []
        for labels, ns in zip(chains, counts, strict=True):
            walk, missed = trail(picks[labels.first], labels.ends, ns)
            if missed:
                return None
            walks.append(walk)
        return _assemble(listing, picks, walks)

    return run(program, search, decode, reach + 1)


def _assemble(listing: Listing, picks: dict[int, int], walks: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The assignment given by options outside of chains, and by each chain's labels in order."""
    circuit = listing.circuit
    for chain, one, walk in zip(circuit.network.chains, circuit.copies, walks, strict=True):
        for i, label in enumerate(walk):
            picks = picks | {chain.boundaries[i + 1]: int(listing.slots[one].at[1, label])}
    starts = [(one, label, i) for one, walk in zip(circuit.copies, walks, strict=True) for i, label in enumerate(walk)]
    return circuit.assemble(starts, listing.choose, picks)

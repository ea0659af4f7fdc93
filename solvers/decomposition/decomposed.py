"""A solver that hands a backend the parts of a network, and adds up what it proves.

1. *Price*: elimination finds a price per byte and solutions (`elimination/memory_price.py`). A bound above the cutoff
   ends the search: most networks that planning asks for are excluded so, and no backend is needed. One that is equal to
   it, as of the network that gave the cutoff, is for the backend to prove.
2. *Parts*: at that price the network is split (`parts.py`); each different part is narrowed (`narrowing.py`), and the
   backend proves its optimum. The sum is the bound: that of elimination does not count towards an optimum.
3. *Close*: where capacities bind, the price leaves a gap. A short search by label lists finds a solution; the backend
   proves the rest of the gap on what elimination leaves of the whole, with one count per label of a chain's copy
   (`counted.py`), or solves the whole if copies have too many labels.

Transient memory of switches adds a search over its largest value around these steps (`transient_memory.py`).
"""

from contextlib import suppress
from dataclasses import replace
from functools import partial

from ...formulation.network.network import INFINITE, Network
from ..elimination.circuit import Circuit
from ..elimination.factors import dense, network_factors, reachable
from ..elimination.label_search import close_by_labels
from ..elimination.memory_price import Price, search_within, sweep
from ..elimination.order import TooWideError, compile_network
from ..elimination.transient_memory import has_extras, has_maxima, plainest, solve_maxima, without_extras
from ..protocol import INTERRUPTED, NO_LIMITS, PRICED, STOPPED, Limits, OutOfTimeError, Proof, Search, Solution, Status
from ..wide.solve_reduced import reducible
from .counted import Value, build, count_within, is_small
from .narrowing import narrowed
from .part_solver import PartSolver
from .parts import Problem, priced, problems

_SHARE = 0.25  # of the time left: the most for one part
_DIVE, _MOMENT = 0.1, 1.0  # share of the time left, or at least seconds, for a first solution where capacities bind
_FEW_LABELS = 1 << 13  # per table of that


class Decomposed:
    """Exact for networks of small width, through the backend `part_solver`; wider ones it solves whole."""

    part_solver: PartSolver

    @property
    def name(self) -> str:
        return self.part_solver.name

    def accepts(self, network: Network) -> bool:
        """True if elimination can price the network, or its totals fit 64 bits, so that the backend may solve it."""
        try:
            if compile_network(network).exact:
                return True
        except TooWideError:
            pass
        return not has_extras(network) and reducible(plainest(network))

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        """The best assignment found within the limits, and a proved bound."""
        search = Search(network, limits, self.name)
        return search.run(lambda: self._maxima(search) if has_maxima(network) else self._solve(search))

    def whole(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        """As `solve`, by the backend alone, without prices and parts: what these are compared with."""
        search = Search(network, limits, self.name)
        return search.run(lambda: self.part_solver.whole(search))

    def _maxima(self, search: Search) -> Solution:
        """Solve a network with windows or transient memory; what its bound needs is proved by the backend."""
        inner = Search(search.network, replace(search.limits, seconds=search.left), self.name)
        answer = inner.run(lambda: solve_maxima(inner, self.solve))
        if answer.assignment is not None:
            search.offer(answer.assignment)
        search.prices = answer.prices
        if search.network.windows:
            return self._with_windows(search, inner, answer)
        by_prices = answer.words == "proved by prices" and answer.bound == self._to_prove(search)
        if not by_prices or search.limits.quick:
            search.raise_bound(answer.bound - by_prices)
            search.proof = inner.proof or Proof(self.name)
            return search.finish(PRICED if by_prices else answer.words, infeasible=answer.status is Status.INFEASIBLE)
        plain = without_extras(search.network)
        if any(answer.prices):  # the price is of groups of switches, not of the capacities
            search.raise_bound(answer.bound)
            search.proof = Proof(self.name)
            return search.finish(answer.words)
        self.prove(search, plain, (0.0,) * len(plain.capacities))
        return search.finish(self._words(search))

    def _with_windows(self, search: Search, inner: Search, answer: Solution) -> Solution:
        """The answer of prices and lists; a small network that they leave open is for the backend as a whole."""
        infeasible = answer.status is Status.INFEASIBLE
        search.proof = inner.proof or Proof(self.name)
        if not infeasible:
            search.raise_bound(answer.bound)
        if is_small(search.network) and not (
            infeasible or search.done or search.limits.quick or answer.words == INTERRUPTED
        ):
            return self._counted(search)
        return search.finish(answer.words, infeasible=infeasible)

    def _counted(self, search: Search) -> Solution:
        """Solve the network by the backend as one program, of which windows are rows."""
        size = {v: len(variable.cost) for v, variable in enumerate(search.network.variables)}
        program = build(network_factors(dense(search.network)), size, reachable(search.network).capacities)

        def decode(value: Value) -> tuple[int, ...]:
            return tuple(pick for _, pick in sorted(program.read(value)[0].items()))

        if not self.part_solver.count(program, search, decode, INFINITE):
            return search.finish(STOPPED if search.left <= 0 else "too large for one program")
        infeasible = search.objective is None and search.limits.cutoff is None
        search.raise_bound(search.ceiling)
        return search.finish(f"proved by {self.part_solver.title}", infeasible=infeasible)

    def _solve(self, search: Search) -> Solution:
        try:
            circuit = compile_network(search.network)
        except TooWideError:
            return self.part_solver.whole(search)
        if not circuit.exact:
            return self.part_solver.whole(search)
        best = self._priced(circuit, search)
        if isinstance(best, Solution):
            return best
        try:
            if best.bound < search.ceiling:
                self._dive(circuit, best, search)
            if best.bound < search.ceiling:
                return self._close(circuit, best, search)
            self.prove(search, search.network, best.price)
        except TooWideError:
            return self.part_solver.whole(search)
        return search.finish(self._words(search)) if search.done else self._instead(search)

    def _priced(self, circuit: Circuit, search: Search) -> Price | Solution:
        """The best price, with its solutions offered; or the answer, if no backend is needed for it."""
        inner = Search(search.network, replace(search.limits, progress=None, seconds=search.left), self.name)
        try:
            best = sweep(circuit, inner)
        finally:
            if inner.assignment is not None:
                search.offer(inner.assignment)
            search.prices = inner.prices
        if best is None:
            return search.finish("no solution, at any price of memory", infeasible=True)
        claimed = inner.bound == self._to_prove(search)
        quick = search.limits.quick or (search.objective is not None and inner.done)
        if search.limits.quick or (not claimed and (quick or inner.bound >= search.ceiling)):
            search.raise_bound(inner.bound - claimed)
            return search.finish("excluded by prices" if search.objective is None and search.done else PRICED)
        search.raise_bound(inner.bound - claimed)  # that no solution costs as little is for the backend to prove
        return best

    def _dive(self, circuit: Circuit, best: Price, search: Search) -> None:
        """Offer what label lists find above the bound of the best price in a short time."""
        seconds = min(search.left, max(_MOMENT, _DIVE * search.left))
        dive = Search(search.network, replace(search.limits, progress=None, seconds=seconds), self.name)
        with suppress(OutOfTimeError):  # what the lists prove is left for the backend
            close_by_labels(circuit, best, dive, _FEW_LABELS)
        if dive.assignment is not None:
            search.offer(dive.assignment)
        # A tight price proves the solution without any search: leave the proof to the backend.
        if search.objective is not None and search.bound >= search.objective:
            search.bound = search.objective - 1

    def _close(self, circuit: Circuit, best: Price, search: Search) -> Solution:
        """Solve a network whose capacities bind, given the best price."""
        count = partial(count_within, circuit, best, search, self.part_solver.count)
        answer = search_within(circuit, best, search, count, ("counting", self.part_solver.title))
        unfinished = not (search.done or answer.status is Status.INFEASIBLE)
        return self.part_solver.whole(search) if unfinished else answer

    def _instead(self, search: Search) -> Solution:
        """Solve the whole network where the backend has not finished the parts: reduction may."""
        proof, words, search.proof = search.proof, self._words(search), None
        answer = self.part_solver.whole(search)
        if search.done or answer.words == INTERRUPTED:
            return answer
        search.proof = proof
        return search.finish(words)

    @staticmethod
    def _to_prove(search: Search) -> int | None:
        """The cost that the backend is to prove least, if it is; a quick search excludes what only ties a cutoff."""
        cutoff = None if search.limits.quick else search.limits.cutoff
        return min((cost for cost in (search.objective, cutoff) if cost is not None), default=None)

    def prove(self, search: Search, network: Network, price: tuple[float, ...]) -> None:
        """Raise the bound by what the backend proves of the parts of the network at a price."""
        relaxed = priced(network, price)
        found = problems(relaxed, search.until)
        if found is None:
            search.raise_bound(search.ceiling)
            return
        total, search.proof = relaxed.constant, Proof(self.name)
        for problem in found:
            bound, proof = self._prove_part(problem, search)
            total += bound * problem.count
            search.proof = search.proof.and_of(proof)
        search.raise_bound(total)

    def _prove_part(self, problem: Problem, search: Search) -> tuple[int, Proof]:
        """A bound on a part's problem, and what was left of it for the backend."""
        part = narrowed(problem.network, problem.least, self.part_solver.most, search.until)
        if part.flat is None:
            return problem.least, Proof(self.name, 0, part.variables, 0)
        try:
            until = min(search.until, search.started + search.seconds + max(1.0, _SHARE * search.left))
            bound = self.part_solver.prove(part, problem.least, until)
        except OutOfTimeError:
            bound = -INFINITE
        return min(max(bound, part.bound), problem.least), Proof(self.name, 1, part.variables, part.left)

    def _words(self, search: Search) -> str:
        if search.bound < search.ceiling:
            return STOPPED if search.left <= 0 else f"{self.part_solver.title} proved too little of the parts"
        if search.objective is not None and search.bound < search.objective:
            return "within the requested gap"
        return f"proved by {self.part_solver.title} on parts"

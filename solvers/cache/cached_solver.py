"""A solver that remembers: what it answered before, in this process or any other, is not solved again.

What was asked with other limits is used as far as it holds: a proof always, an assignment and a bound where they are as
close as is asked now. Otherwise the solver goes on from them: only what is better than the assignment is wanted, and
what was proved stays proved. No assignment is used before it is evaluated.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from ...formulation.network.network import INFINITE, Network, evaluate
from ..protocol import INTERRUPTED, NO_LIMITS, NO_MEMORY, STOPPED, Limits, Progress, Solution, Solver, Status
from .digest import asked_of
from .store import Record, Store

KEPT = "kept"
"""The words of an answer that several kept ones make together."""
_NOTHING = Solution(Status.UNKNOWN, None, None, -INFINITE, 0.0, "")


class Cached:
    """`solver` with a `store` of its answers; `kept` counts those that were not solved again."""

    def __init__(self, solver: Solver, store: Store) -> None:
        self.solver, self.store = solver, store
        self.name = solver.name
        self.kept = 0

    def accepts(self, network: Network) -> bool:
        """True if the solver does."""
        return self.solver.accepts(network)

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        """What is kept, where that is enough; else what the solver makes of it, which is kept from now on."""
        began = time.perf_counter()
        key = asked_of(self.solver, network)
        known, enough = _recalled(self.store.read(key), limits)
        if not _holds(network, known):
            self.store.forget(key)
            known, enough = _NOTHING, False
        if enough:
            self.kept += 1
            answer = replace(known, seconds=time.perf_counter() - began)
            if limits.progress is not None:
                limits.progress(Progress(answer.objective, answer.bound, answer.seconds))
            return answer
        mine = _tightened(limits, known, began)
        found = self.solver.solve(network, mine)
        answer = _joined(known, found, mine)
        if answer.assignment is not None or answer.bound > -INFINITE:
            self.store.write(key, _part(limits), _record(answer, _proved(answer, mine), limits))
        return answer


def _recalled(records: Mapping[str, Record], limits: Limits) -> tuple[Solution, bool]:
    """What records say together, and whether that is enough; the answer to the same question is, as it was."""
    same = records.get(_part(limits))
    if same is not None and _stands(same, limits):
        return _solution(same), True
    answers = [_stated(_solution(r), r["proved"]) for _, r in sorted(records.items())]
    known = replace(reduce(_better, answers, _NOTHING), words=KEPT)
    return known, known.bound >= limits.ceiling(known.objective)


def _stands(record: Record, limits: Limits) -> bool:
    """True if the same question would be answered no better now."""
    answer, allowed = _solution(record), record["allowed"]
    if answer.bound >= limits.ceiling(answer.objective) or (limits.quick and record["ended"]):
        return True
    return allowed is None or allowed >= limits.seconds


def _holds(network: Network, answer: Solution) -> bool:
    """True if an answer's assignment, if it has one, costs what it says, and no bound says otherwise."""
    if answer.assignment is None:
        return True
    if len(answer.assignment) != len(network.variables) or answer.objective is None or answer.bound > answer.objective:
        return False
    if any(not 0 <= x < len(v.cost) for x, v in zip(answer.assignment, network.variables, strict=True)):
        return False
    verdict = evaluate(network, answer.assignment)
    return verdict.feasible and verdict.cost == answer.objective


def _tightened(limits: Limits, known: Solution, began: float) -> Limits:
    """What is left to ask where something is known: the time, a cutoff, and news with what is known."""

    def progress(p: Progress) -> None:
        assert limits.progress is not None
        best = min((x for x in (p.incumbent, known.objective) if x is not None), default=None)
        limits.progress(Progress(best, max(p.bound, known.bound), time.perf_counter() - began))

    return replace(
        limits,
        seconds=max(0.0, limits.seconds - (time.perf_counter() - began)),
        cutoff=min((x for x in (limits.cutoff, known.objective) if x is not None), default=None),
        progress=None if limits.progress is None else progress,
    )


def _joined(known: Solution, found: Solution, limits: Limits) -> Solution:
    """What is known after a solver went on; without anything known before, its answer as it is."""
    if known.objective is None and found.bound >= known.bound:
        return found
    best = _better(known, _stated(found, _proved(found, limits)))
    best = _stated(best, min(best.bound, _cost(best)))
    return replace(best, seconds=found.seconds, source=found.source, words=found.words)


def _better(one: Solution, other: Solution) -> Solution:
    """The cheaper assignment and the higher bound of two answers."""
    return _stated(other if _cost(other) < _cost(one) else one, max(one.bound, other.bound))


def _stated(answer: Solution, bound: int) -> Solution:
    """The same with another bound, and the status that this means."""
    if answer.objective is None:
        status = Status.INFEASIBLE if bound >= INFINITE else Status.UNKNOWN
    else:
        status = Status.OPTIMAL if bound == answer.objective else Status.FEASIBLE
    return replace(answer, bound=bound, status=status)


def _cost(answer: Solution) -> int:
    return INFINITE if answer.objective is None else answer.objective


def _proved(answer: Solution, limits: Limits) -> int:
    """The bound; where a solver found nothing below a cutoff, that is all that is taken for proved."""
    below = answer.status is Status.INFEASIBLE and limits.cutoff is not None
    return limits.ceiling(None) if below else answer.bound


# Records


def _part(limits: Limits) -> str:
    """What was asked, but for the time."""
    effort = "rough" if limits.rough else "quick" if limits.quick else "close"
    return f"gap {limits.gap} cutoff {limits.cutoff} {effort}"


def _record(answer: Solution, proved: int, limits: Limits) -> Record:
    stopped = answer.words in (INTERRUPTED, NO_MEMORY)
    allowed = answer.seconds if stopped else limits.seconds
    return {
        "status": answer.status.value,
        "assignment": None if answer.assignment is None else [int(x) for x in answer.assignment],
        "objective": answer.objective,
        "bound": answer.bound,
        "proved": proved,
        "source": answer.source,
        "words": answer.words,
        "ended": not stopped and STOPPED not in answer.words,
        "allowed": None if math.isinf(allowed) else allowed,  # seconds
    }


def _solution(record: Record) -> Solution:
    assignment = record["assignment"]
    return Solution(
        status=Status(record["status"]),
        assignment=None if assignment is None else tuple(assignment),
        objective=record["objective"],
        bound=record["bound"],
        seconds=0.0,
        source=record["source"],
        words=record["words"],
    )

"""A solver with a cache: networks solved before, in any process, are not solved again.

Answers under other limits are reused: proofs always, an assignment and bound if they meet the current gap. Otherwise
the solver continues from them, with the assignment's cost as cutoff. Cached assignments are evaluated before use.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import reduce

from ...formulation.network.network import INFINITE, Network, evaluate
from ..protocol import INTERRUPTED, NO_LIMITS, NO_MEMORY, STOPPED, Limits, Progress, Proof, Solution, Solver, Status
from .digest import solve_key
from .store import Record, Store

CACHED = "cached"
"""Words of an answer merged from several cached ones."""
_NOTHING = Solution(Status.UNKNOWN, None, None, -INFINITE, 0.0, "")


class Cached:
    """`solver` with a `store` of its answers; `kept` counts cache hits."""

    def __init__(self, solver: Solver, store: Store) -> None:
        self.solver, self.store = solver, store
        self.name = solver.name
        self.kept = 0

    def accepts(self, network: Network) -> bool:
        """True if the solver accepts the network."""
        return self.solver.accepts(network)

    def solve(self, network: Network, limits: Limits = NO_LIMITS) -> Solution:
        """The cached answer if it suffices; else the solver's, which is cached."""
        began = time.perf_counter()
        key = solve_key(self.solver, network)
        known, enough = _known_answer(self.store.read(key), limits)
        if not _is_valid(network, known):
            self.store.forget(key)
            known, enough = _NOTHING, False
        if enough:
            self.kept += 1
            answer = replace(known, seconds=time.perf_counter() - began)
            if limits.progress is not None:
                limits.progress(Progress(answer.objective, answer.bound, answer.seconds))
            return answer
        mine = _remaining(limits, known, began)
        found = self.solver.solve(network, mine)
        answer = _merged(known, found, mine)
        if answer.assignment is not None or answer.bound > -INFINITE:
            self.store.write(key, _effort_key(limits), _record(answer, _proved(answer, mine), limits))
        return answer


def _known_answer(records: Mapping[str, Record], limits: Limits) -> tuple[Solution, bool]:
    """The merged answer of the records, and True if it suffices; a record of the same limits is returned unchanged."""
    same = records.get(_effort_key(limits))
    if same is not None and _suffices(same, limits):
        return _solution(same), True
    answers = [_with_bound(_solution(r), r["proved"]) for _, r in sorted(records.items())]
    known = replace(reduce(_better, answers, _NOTHING), words=CACHED)
    return known, known.bound >= limits.ceiling(known.objective)


def _suffices(record: Record, limits: Limits) -> bool:
    """True if solving again within these limits would not improve the record."""
    answer, allowed = _solution(record), record["allowed"]
    if answer.bound >= limits.ceiling(answer.objective) or (limits.quick and record["ended"]):
        return True
    return allowed is None or allowed >= limits.seconds


def _is_valid(network: Network, answer: Solution) -> bool:
    """True if an answer has no assignment, or a feasible one of the stated cost, not below the bound."""
    if answer.assignment is None:
        return True
    if len(answer.assignment) != len(network.variables) or answer.objective is None or answer.bound > answer.objective:
        return False
    if any(not 0 <= x < len(v.cost) for x, v in zip(answer.assignment, network.variables, strict=True)):
        return False
    verdict = evaluate(network, answer.assignment)
    return verdict.feasible and verdict.cost == answer.objective


def _remaining(limits: Limits, known: Solution, began: float) -> Limits:
    """The limits given a known answer: remaining time, cutoff, and progress merged with it."""

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


def _merged(known: Solution, found: Solution, limits: Limits) -> Solution:
    """Merge a known answer with the solver's; the solver's alone if the known one adds nothing."""
    if known.objective is None and found.bound >= known.bound:
        return found
    best = _better(known, _with_bound(found, _proved(found, limits)))
    best = _with_bound(best, min(best.bound, _cost(best)))
    return replace(best, seconds=found.seconds, source=found.source, words=found.words)


def _better(one: Solution, other: Solution) -> Solution:
    """The cheaper assignment and the higher bound of two answers."""
    return _with_bound(other if _cost(other) < _cost(one) else one, max(one.bound, other.bound))


def _with_bound(answer: Solution, bound: int) -> Solution:
    """The answer with another bound, and the status that follows."""
    if answer.objective is None:
        status = Status.INFEASIBLE if bound >= INFINITE else Status.UNKNOWN
    else:
        status = Status.OPTIMAL if bound == answer.objective else Status.FEASIBLE
    return replace(answer, bound=bound, status=status)


def _cost(answer: Solution) -> int:
    return INFINITE if answer.objective is None else answer.objective


def _proved(answer: Solution, limits: Limits) -> int:
    """The bound that an answer proves; infeasible below a cutoff proves only the cutoff."""
    below = answer.status is Status.INFEASIBLE and limits.cutoff is not None
    return limits.ceiling(None) if below else answer.bound


# Records


def _effort_key(limits: Limits) -> str:
    """The limits without the time, as the part of a key."""
    effort = "rough" if limits.rough else "quick" if limits.quick else "close"
    enough = "" if limits.enough >= INFINITE else f" enough {limits.enough}"
    return f"gap {limits.gap} cutoff {limits.cutoff} {effort}{enough}"


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
        "proof": None if answer.proof is None else asdict(answer.proof),
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
        proof=Proof(**record["proof"]) if record.get("proof") else None,
    )

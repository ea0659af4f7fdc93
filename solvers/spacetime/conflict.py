"""Why a plan would wait for ever: the smallest set of orders and needs that no order of the tasks respects.

Happens-before is difference logic: every event has an integer time t, and

    t[b] > t[a]              an order, for every a of its first and b of its second operators
    ∨_p t[task] > t[p]       a need, for any one p of its producers

Constraints conflict exactly where some events, at least one, all wait for one another: the earliest of them could never
happen. The smallest such conflict, and of several that with the fewest orders, is a shortest circle where every wait
has one producer; where some have several it is

    x[e]  event e never happens;  y[c]  the order or need c is one of the conflict;  u[w]  the wait w of it never ends
    min  Σ y[c]
    s.t. (1) ∨_e x[e]
         (2) x[e] → ∨ u[w]                           over the waits w of e
         (3) u[w] → y[c] ∧ x[p]                      ∀ producers p of w, which c says
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeAlias

from ...formulation.spacetime.graph import Order
from ...formulation.spacetime.order import Precedences, Wait
from ...formulation.spacetime.tasks import Need

Constraint: TypeAlias = Need | Order
EFFORT = 10.0
"""CP-SAT's deterministic time for a smallest conflict: about seconds, but the same answer every time."""
_SECONDS = 10.0  # in which Z3 confirms that a conflict is one


@dataclass(frozen=True, slots=True)
class Conflict:
    """Waits that never end; `proved`: no smaller set of orders and needs conflicts."""

    waits: tuple[Wait, ...]
    proved: bool

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The orders and needs, each once."""
        return tuple(dict.fromkeys(wait.source for wait in self.waits))


def smallest(waits: Sequence[Wait], stuck: Collection[int], effort: float = EFFORT) -> Conflict:
    """The smallest set of orders and needs that conflict, from the events that no order reaches.

    Where needs have several producers, `effort` ends the search; what has been found by then is a conflict, of which
    nothing can be left out, but there may be a smaller one.
    """
    inner = closed(waits, stuck)
    conflict = Conflict(cycle(inner), True)
    if any(len(wait.producers) > 1 for wait in inner):
        conflict = minimum(inner, conflict.waits, effort)
    assert conflict.waits and not feasible(conflict.waits), "a conflict that is none"
    return Conflict(in_turn(conflict.waits), conflict.proved)


def closed(waits: Sequence[Wait], stuck: Collection[int]) -> list[Wait]:
    """The waits within a set of events, of those for which others of them wait."""
    inner = [wait for wait in waits if wait.task in stuck and all(p in stuck for p in wait.producers)]
    while True:
        useful = {p for wait in inner for p in wait.producers}
        left = [wait for wait in inner if wait.task in useful]
        if len(left) == len(inner):
            return inner
        inner = left


def starts(waits: Sequence[Wait]) -> list[int]:
    """The events of orders: one is in every conflict, for what is computed never needs itself, however it is cut."""
    return sorted({wait.task for wait in waits if not wait.count})


def _scale(waits: Sequence[Wait]) -> int:
    """What a need weighs: more than all orders together weigh above needs."""
    return 1 + len(starts(waits))


def _weight(source: Constraint, scale: int) -> int:
    """Of conflicts of one size that with the fewest orders says best who is to blame."""
    return scale + isinstance(source, Order)


# Where every wait has one producer


def cycle(waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """The cheapest circle of waits with one producer, by Dijkstra's algorithm; empty if there is none."""
    after, scale = dict[int, list[Wait]](), _scale(waits)
    for wait in waits:
        if len(wait.producers) == 1:
            after.setdefault(wait.producers[0], []).append(wait)
    best, cost = tuple[Wait, ...](), (len(waits) + 1) * scale
    for start in starts(waits):
        found = _round(start, after, scale, cost)
        if found:
            best, cost = found, sum(wait.count * _weight(wait.source, scale) for wait in found)
    return best


def _round(start: int, after: Mapping[int, Sequence[Wait]], scale: int, below: int) -> tuple[Wait, ...]:
    """The cheapest way from an event back to itself of less than `below`; empty if there is none."""
    came, least, heap = dict[int, Wait](), dict[int, int](), list[tuple[int, int]]()
    spent, event = 0, start
    while event != start or not spent:
        for wait in after.get(event, ()):
            step = spent + wait.count * _weight(wait.source, scale)
            if step < least.get(wait.task, below):
                came[wait.task], least[wait.task] = wait, step
                heappush(heap, (step, wait.task))
        if not heap:
            return ()
        spent, event = heappop(heap)
    way = [came[start]]
    while way[-1].producers[0] != start:
        way.append(came[way[-1].producers[0]])
    return tuple(reversed(way))


# Where some have several


def minimum(waits: Sequence[Wait], known: Sequence[Wait] = (), effort: float = EFFORT) -> Conflict:
    """The smallest conflict by CP-SAT, the program at the top of this file; `known` is one to begin with."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    events = sorted({wait.task for wait in waits})
    sources = dict.fromkeys(wait.source for wait in waits)
    x = {event: model.new_bool_var(f"x[{event}]") for event in events}
    y = {source: model.new_bool_var(f"y[{at}]") for at, source in enumerate(sources)}
    u = [model.new_bool_var(f"u[{at}]") for at in range(len(waits))]
    waiting: dict[int, list[cp_model.IntVar]] = defaultdict(list)
    for wait, endless in zip(waits, u, strict=True):
        waiting[wait.task].append(endless)
        for implied in (y[wait.source], *(x[producer] for producer in wait.producers)):
            model.add_implication(endless, implied)  # (3)
    for event in events:
        model.add_bool_or([*waiting[event], x[event].negated()])  # (2)
    model.add_bool_or([x[event] for event in starts(waits)])  # (1)
    scale = _scale(waits)
    model.minimize(sum(_weight(source, scale) * taken for source, taken in y.items()))
    for wait, endless in zip(waits, u, strict=True) if known else ():
        model.add_hint(endless, wait in known)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # the same answer every time
    solver.parameters.random_seed = 1
    solver.parameters.max_deterministic_time = effort
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Conflict(tuple(known) or tuple(irreducible(waits)), False)
    held = irreducible([wait for wait, endless in zip(waits, u, strict=True) if solver.value(endless)])
    return Conflict(tuple(held), status == cp_model.OPTIMAL)


def irreducible(waits: Sequence[Wait]) -> list[Wait]:
    """A conflict within waits that conflict, of which no order and no need can be left out."""
    left = endless(waits)
    for source in dict.fromkeys(wait.source for wait in left):
        left = endless([wait for wait in left if wait.source != source]) or left
    return left


def endless(waits: Sequence[Wait]) -> list[Wait]:
    """Those of some waits that never end, if these are all there are; empty if they do not conflict."""
    waiting: dict[int, list[int]] = defaultdict(list)
    unended: dict[int, int] = defaultdict(int)
    for number, wait in enumerate(waits):
        unended[wait.task] += 1
        for producer in wait.producers:
            waiting[producer].append(number)
    free = [producer for producer in waiting if not unended[producer]]
    ended = set[int]()
    while free:
        for number in waiting[free.pop()]:
            if number not in ended:
                ended.add(number)
                task = waits[number].task
                unended[task] -= 1
                free += [] if unended[task] else [task]
    return closed(waits, {event for event, left in unended.items() if left})


# By difference logic


def feasible(waits: Sequence[Wait]) -> bool:
    """True if events have times at which each follows one producer of each of its waits: by Z3, within 10 s.

    Told in other words too, what comes after the event of an order: a wait all of whose producers do. It follows, but
    Z3 makes no differences of its own, and without these it would try one circle after the other, of which there are
    as many as choices of producers.
    """
    import z3

    from ..backends.z3_thread import checked

    context = z3.Context()
    events = {event for wait in waits for event in (wait.task, *wait.producers)}
    t = {event: z3.Int(f"t[{event}]", context) for event in sorted(events)}
    solver = z3.SolverFor("QF_IDL", ctx=context)
    for wait in waits:
        later = [t[wait.task] - t[producer] >= 1 for producer in wait.producers]
        solver.add(z3.Or(later))
        for start in starts(waits) if len(later) > 1 else ():
            before = [t[start] - t[producer] >= 1 for producer in wait.producers]
            solver.add(z3.Or(*before, t[wait.task] - t[start] >= 1))
    return checked(solver, time.perf_counter() + _SECONDS) == "sat"


# In words


def in_turn(waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """The waits of a conflict one after the other: from an order to who waits for it, and on to who waits for them."""
    after: dict[int, list[Wait]] = defaultdict(list)
    for wait in waits:
        for producer in wait.producers:
            after[producer].append(wait)
    found, seen = dict[Wait, None](), set[int]()
    stack = sorted(starts(waits), reverse=True)
    while stack:
        event = stack.pop()
        if event not in seen:
            seen.add(event)
            found |= dict.fromkeys(after[event])
            stack += [wait.task for wait in reversed(after[event])]
    return tuple(found)


def told(given: Precedences, conflict: Conflict) -> tuple[str, ...]:
    """Every order and need of a conflict in the plan's own words."""
    return tuple(_told(given, conflict, source) for source in conflict.constraints)


def _told(given: Precedences, conflict: Conflict, source: Constraint) -> str:
    ops = given.tasks.ops
    if isinstance(source, Need):
        makers = [op.name for op in source.producers]
        more = f" or {len(makers) - 2} more" if len(makers) > 2 else ""
        return f"{source}, from {' or '.join(dict.fromkeys(makers[:2]))}{more}"
    of = [wait for wait in conflict.waits if wait.source == source]
    first = next(ops[wait.producers[0]].name for wait in of if not wait.count)
    second = [ops[wait.task].name for wait in of if wait.count]
    more = f" and {len(second) - 1} more" if len(second) > 1 else ""
    return f"op_order at {source.where}: {first} before {second[0]}{more}"

"""Why a plan deadlocks: the smallest set of orders and needs that no task order satisfies.

Happens-before is difference logic: every event has an integer time t, and

    t[b] > t[a]              an order, for every a of its first and b of its second operators
    ∨_p t[task] > t[p]       a need, for any one p of its producers

Constraints conflict exactly if a non-empty set of events all wait for one another: the earliest could never happen. If
every wait has one producer, the smallest conflict (ties: fewest orders) is a shortest cycle; otherwise it is

    x[e]  event e never happens;  y[c]  order or need c is in the conflict;  u[w]  wait w never ends
    min  Σ y[c]
    s.t. (1) ∨_e x[e]
         (2) x[e] → ∨ u[w]                           over the waits w of e
         (3) u[w] → y[c] ∧ x[p]                      ∀ producers p of w, where w comes from c
"""

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeAlias

from ...formulation.spacetime.graph import Order
from ...formulation.spacetime.order import Precedences, Wait
from ...formulation.spacetime.site import told
from ...formulation.spacetime.tasks import Need

Constraint: TypeAlias = Need | Order
EFFORT = 10.0
"""CP-SAT's deterministic time limit for a smallest conflict, roughly in seconds."""
_SECONDS = 10.0  # Z3's time limit to confirm a conflict


@dataclass(frozen=True, slots=True)
class Conflict:
    """Waits that never end; `proved`: no smaller conflict exists."""

    waits: tuple[Wait, ...]
    proved: bool

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        """The orders and needs, each once."""
        return tuple(dict.fromkeys(wait.source for wait in self.waits))


def smallest(waits: Sequence[Wait], stuck: Collection[int], effort: float = EFFORT) -> Conflict:
    """The smallest conflicting set of orders and needs among the stuck events.

    If needs have several producers, the search ends after `effort`; the result is then irreducible but possibly not the
    smallest.
    """
    inner = closed(waits, stuck)
    conflict = Conflict(cycle(inner), True)
    if any(len(wait.producers) > 1 for wait in inner):
        conflict = minimum(inner, conflict.waits, effort)
    assert conflict.waits and not feasible(conflict.waits), "not a conflict"
    return Conflict(in_turn(conflict.waits), conflict.proved)


def closed(waits: Sequence[Wait], stuck: Collection[int]) -> list[Wait]:
    """The waits within a set of events, restricted to events that others of them wait for."""
    inner = [wait for wait in waits if wait.task in stuck and all(p in stuck for p in wait.producers)]
    while True:
        useful = {p for wait in inner for p in wait.producers}
        left = [wait for wait in inner if wait.task in useful]
        if len(left) == len(inner):
            return inner
        inner = left


def starts(waits: Sequence[Wait]) -> list[int]:
    """The events of orders: every conflict contains one, since dependencies alone are acyclic."""
    return sorted({wait.task for wait in waits if not wait.count})


def _scale(waits: Sequence[Wait]) -> int:
    """The weight of a need: large enough that orders only break ties."""
    return 1 + len(starts(waits))


def _weight(source: Constraint, scale: int) -> int:
    """Weight of an order or need; of equally small conflicts the one with the fewest orders is clearest."""
    return scale + isinstance(source, Order)


# One producer per wait


def cycle(waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """The cheapest cycle of waits with one producer, by Dijkstra's algorithm; empty if there is none."""
    after, scale = dict[int, list[Wait]](), _scale(waits)
    for wait in waits:
        if len(wait.producers) == 1:
            after.setdefault(wait.producers[0], []).append(wait)
    best, cost = tuple[Wait, ...](), (len(waits) + 1) * scale
    for start in starts(waits):
        found = _cycle_through(start, after, scale, cost)
        if found:
            best, cost = found, sum(wait.count * _weight(wait.source, scale) for wait in found)
    return best


def _cycle_through(start: int, after: Mapping[int, Sequence[Wait]], scale: int, below: int) -> tuple[Wait, ...]:
    """The cheapest cycle through an event with a cost under `below`; empty if there is none."""
    last, least, heap = dict[int, Wait](), dict[int, int](), list[tuple[int, int]]()
    spent, event = 0, start
    while event != start or not spent:
        for wait in after.get(event, ()):
            step = spent + wait.count * _weight(wait.source, scale)
            if step < least.get(wait.task, below):
                last[wait.task], least[wait.task] = wait, step
                heappush(heap, (step, wait.task))
        if not heap:
            return ()
        spent, event = heappop(heap)
    path = [last[start]]
    while path[-1].producers[0] != start:
        path.append(last[path[-1].producers[0]])
    return tuple(reversed(path))


# Several producers per wait


def minimum(waits: Sequence[Wait], known: Sequence[Wait] = (), effort: float = EFFORT) -> Conflict:
    """The smallest conflict by CP-SAT, by the program at the top of this file; `known`: a conflict used as hint."""
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
    """An irreducible conflict: no order or need can be removed."""
    left = endless(waits)
    for source in dict.fromkeys(wait.source for wait in left):
        left = endless([wait for wait in left if wait.source != source]) or left
    return left


def endless(waits: Sequence[Wait]) -> list[Wait]:
    """The waits that never end; empty if there is no conflict."""
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


# Difference logic


def feasible(waits: Sequence[Wait]) -> bool:
    """True if Z3 finds event times that satisfy all waits, within 10 s.

    Redundant clauses state that a task follows an order's event if all producers of one of its waits do. Without them
    Z3 would enumerate cycles, as many as there are choices of producers.
    """
    import z3

    from ..backends.z3_thread import checked

    context = z3.Context()
    events = {event for wait in waits for event in (wait.task, *wait.producers)}
    t = {event: z3.Int(f"t[{event}]", context) for event in sorted(events)}
    solver = z3.SolverFor("QF_IDL", ctx=context)
    for wait in waits:
        follows = [t[wait.task] - t[producer] >= 1 for producer in wait.producers]
        solver.add(z3.Or(follows))
        for start in starts(waits) if len(follows) > 1 else ():
            before = [t[start] - t[producer] >= 1 for producer in wait.producers]
            solver.add(z3.Or(*before, t[wait.task] - t[start] >= 1))
    return checked(solver, time.perf_counter() + _SECONDS) == "sat"


# Messages


def in_turn(waits: Sequence[Wait]) -> tuple[Wait, ...]:
    """The waits of a conflict in order: from an order to its waiting tasks, then to theirs."""
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


def described(given: Precedences, conflict: Conflict) -> tuple[str, ...]:
    """One message per order and need of a conflict, and per meeting through which it goes."""
    ops = given.tasks.ops
    told_of = [_described(given, conflict, source) for source in conflict.constraints]
    passed = {p for wait in conflict.waits for p in wait.producers} & {wait.task for wait in conflict.waits}
    return *told_of, *(str(given.tasks.meetings[ops[event]]) for event in sorted(passed & given.together.keys()))


def _described(given: Precedences, conflict: Conflict, source: Constraint) -> str:
    if isinstance(source, Need):
        makers = [op.name for op in source.producers]
        more = f" or {len(makers) - 2} more" if len(makers) > 2 else ""
        return f"{source}, from {' or '.join(dict.fromkeys(makers[:2]))}{more}"
    of = [wait for wait in conflict.waits if wait.source == source]
    first = next(given.at(wait.producers[0], source.first).name for wait in of if not wait.count)
    second = [given.at(wait.task, source.second).name for wait in of if wait.count]
    more = f" and {len(second) - 1} more" if len(second) > 1 else ""
    return told(source.where, f"{first} before {second[0]}{more}")

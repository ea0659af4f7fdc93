"""Pipeline schedules found and proved optimal by CP-SAT, compared with the named ones.

Every case is a pipeline with memory and an objective. `named_ns`: the best schedule with a name that fits the memory,
`named` says which. `found_ns`: what CP-SAT found; `bound_ns`: what no schedule goes below; `proved`: they are equal.
Uniform pipelines are solved without a named schedule, the others start from the best of them. `peak`: bytes
of the fullest device, where a micro-batch takes 1 on a stage unless the case says otherwise. A case of 1F1B is proved
twice: by the bound of one device, and by CP-SAT from the constraints alone, which refutes a makespan of 1 ns less.

A steady case stands for any number of micro-batches: `found_ns`, `bound_ns` and `named_ns` are those of `FAR`, and
`proved` says that no schedule at all is shorter for any number from `least` on. `fused` cases hold the recomputation as
a task of its own against one that waits for the gradient (SuperScaler, Figure 15): `named_ns` is that of the latter.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..formulation.pipeline import orders
from ..formulation.pipeline.evaluate import TimedOrders, evaluate
from ..formulation.pipeline.orders import Orders
from ..formulation.pipeline.problem import (
    Problem,
    Stage,
    bidirectional,
    chunked,
    interlaced_pipeline,
    pipeline,
    repeated,
)
from ..formulation.pipeline.steady import repetitions
from ..solvers.protocol import Status
from ..solvers.schedule.cpsat import OBJECTIVES, fitting, refuted, solve
from ..solvers.schedule.steady import steady
from .cases import Row, Tell, each

SECONDS = 20.0
"""For each case."""
FAR = 64
"""The number of micro-batches at which a steady schedule is shown."""
Named = Mapping[str, Callable[[int], Orders]]
"""Orders by their name and the number of micro-batches."""


@dataclass(frozen=True)
class Case:
    """A pipeline, its named schedules, and the objective."""

    name: str
    problem: Problem
    micros: int
    named: Named
    objective: str = "makespan"
    warm: bool = True  # the solver starts from the named schedules
    refute: bool = False  # CP-SAT refutes a ns less from the constraints alone
    steady: bool = False  # for any number of repetitions
    against: tuple[Problem, Orders] | None = None  # what to compare with instead of the named: it waits for gradients
    improved: bool = False  # to compare with the best that CP-SAT finds from there


PLAIN, SPLIT = Stage(1000, 2000), Stage(1000, 1000, 1000)
UNEVEN = {
    "slow first": (Stage(2000, 4000), PLAIN, PLAIN, PLAIN),
    "slow second": (PLAIN, Stage(2000, 4000), PLAIN, PLAIN),
    "slow last": (PLAIN, PLAIN, PLAIN, Stage(2000, 4000)),
    "growing": tuple(Stage(1000 + 250 * s, 2000 + 500 * s) for s in range(4)),
    "measured": tuple(Stage(f, b) for f, b in ((1235, 2346), (1535, 2946), (1035, 2146), (1435, 2746))),
}


def memory_of_1f1b(stages: int) -> list[int]:
    """The bytes of 1F1B: S - s micro-batches on stage s."""
    return [stages - s for s in range(stages)]


def unsplit(stages: int) -> Named:
    """The named schedules of one unsplit stage a device."""
    return {"1f1b": partial(orders.one_f_one_b, stages), "gpipe": partial(orders.gpipe, stages)}


def zero(stages: int) -> Named:
    """Zero-bubble."""
    once = partial(orders.zero_bubble, stages)
    return {"zb-h1": once, "zb-h2": partial(once, doubled=True)}


def forwards(stages: int) -> Named:
    """Several forwards a backward."""
    mixed = partial(orders.three_f_one_b, stages)
    return {"3f1b": mixed, "3f1b in turn": partial(mixed, in_turn=True)}


def split(stage: Stage) -> Stage:
    """The stage with its backward in two."""
    half = stage.backward_ns // 2
    return replace(stage, backward_ns=half, weight_ns=stage.backward_ns - half)


def uniform(sizes: Sequence[tuple[int, int]]) -> Iterator[Case]:
    """Equal stages: nothing beats 1F1B unsplit; zero-bubble and interleaving are found."""
    for S, K in sizes:
        yield Case(f"1f1b, {S} stages, {K}", pipeline([PLAIN] * S, K), K, unsplit(S), warm=False, refute=True)
        capped = pipeline([PLAIN] * S, K, room=memory_of_1f1b(S))
        yield Case(f"1f1b in its memory, {S} stages, {K}", capped, K, unsplit(S), warm=False)
        if K % 4 == 0:
            once, twice = (pipeline([SPLIT] * S, K, room) for room in (S, 2 * S))
            yield Case(f"split, {S} stages, {K}", once, K, zero(S), warm=False)
            yield Case(f"split, twice the memory, {S} stages, {K}", twice, K, zero(S), "period", warm=False)
        if K % S == 0:
            chunks, named = chunked([PLAIN] * 2 * S, S, K), {"interleaved": partial(orders.interleaved, S)}
            yield Case(f"two chunks, {S} devices, {K}", chunks, K, named, warm=False)


def uneven(micros: Sequence[int]) -> Iterator[Case]:
    """Stages of different lengths: with any memory, in that of 1F1B, with transfers, and split."""
    for name, stages in UNEVEN.items():
        S, halves = len(stages), [split(stage) for stage in stages]
        for K in micros:
            yield Case(f"{name}, {K}", pipeline(stages, K), K, unsplit(S))
            yield Case(f"{name} in 1f1b's memory, {K}", pipeline(stages, K, memory_of_1f1b(S)), K, unsplit(S))
            slow = pipeline(stages, K, S, lag_ns=500)
            yield Case(f"{name} with transfers, {K}", slow, K, unsplit(S))
            yield Case(f"{name}, split, {K}", pipeline(halves, K, S), K, zero(S))
            yield Case(f"{name}, split, twice the memory, {K}", pipeline(halves, K, 2 * S), K, zero(S), "period")


INPUT = Stage(400, 600, activation_bytes=0)
"""An embedding on all devices."""


def special(sizes: Sequence[tuple[int, int]]) -> Iterator[Case]:
    """Pipelines in two directions, several forwards, and embeddings on all devices."""
    for S, K in sizes:
        if S % 2 == 0:
            both = bidirectional([PLAIN] * S, K)
            yield Case(f"two directions, {S} stages, {K}", both, K, {"chimera": partial(orders.chimera, S)})
        passes = repeated([PLAIN] * S, K, room=S)
        yield Case(f"three forwards, {S} stages, {K}", passes, K, forwards(S))
        shared = interlaced_pipeline([INPUT, *[PLAIN] * S], (0,), K, [S] * S)
        yield Case(f"embedding, {S} stages, {K}", shared, K, {"interlaced": partial(orders.interlaced, S)})


EMBEDDING = Stage(50, 50, activation_bytes=0)
AGAIN = Stage(1000, 2000, recompute_ns=1000, activation_bytes=8, input_bytes=1)


def recomputed(sizes: Sequence[tuple[int, int]]) -> Iterator[Case]:
    """The interlaced pipeline with recomputation: as tasks, against the same pipeline with fused ones (IL-block)."""
    for S, K in sizes:
        own, fused = (
            interlaced_pipeline([EMBEDDING, *[stage] * S], (0,), K) for stage in (AGAIN, replace(AGAIN, fused=True))
        )
        named, block = {"interlaced": partial(orders.interlaced, S, recompute=True)}, orders.interlaced(S, K)
        yield Case(f"recompute as a task, {S} stages, {K}", own, K, named, against=(fused, block))
        case = f"recompute as a task, beside the best fused, {S} stages, {K}"
        yield Case(case, own, K, named, against=(fused, block), improved=True)


def many(stages: Sequence[int]) -> Iterator[Case]:
    """Any number of micro-batches."""
    for S in stages:
        plain = pipeline([PLAIN] * S, 1, memory_of_1f1b(S))
        yield Case(f"steady 1f1b, {S} stages", plain, 1, unsplit(S), steady=True)
        yield Case(f"steady split, {S} stages", pipeline([SPLIT] * S, 1, S), 1, zero(S), steady=True)
        passes = repeated([PLAIN] * S, 1, room=S)
        mixed = {"3f1b": forwards(S)["3f1b"]}  # in turn there is no middle that repeats
        yield Case(f"steady three forwards, {S} stages", passes, 1, mixed, steady=True)
        shared = interlaced_pipeline([INPUT, *[PLAIN] * S], (0,), 1, [2 * S] * S)
        named = {"interlaced": partial(orders.interlaced, S)}
        yield Case(f"steady embedding, twice the memory, {S} stages", shared, 1, named, steady=True)
    for name, own in UNEVEN.items():
        S = len(own)
        yield Case(f"steady {name}", pipeline(own, 1, memory_of_1f1b(S)), 1, unsplit(S), steady=True)


def cases(small: bool) -> list[Case]:
    """All cases, or those of a few seconds."""
    if small:
        return [*uniform([(2, 4), (3, 6)]), *uneven([4]), *special([(2, 4)]), *recomputed([(2, 4)]), *many([2])]
    sizes = [(S, K) for S in range(2, 9) for K in range(4, 17)]
    others = (2, 4), (3, 6), (4, 8), (4, 16)
    return [*uniform(sizes), *uneven([4, 8, 16]), *special(others), *recomputed(others), *many([2, 4, 8])]


def run(small: bool, only: Sequence[str], tell: Tell, time_limit: float = SECONDS) -> list[Row]:
    """A row for every case, in ns; `time_limit` is that of each."""
    return [measure(case, time_limit) for case in each(cases(small), only, tell)]


def totals(rows: Sequence[Row]) -> Row:
    """How many cases there are, in how many no schedule is shorter, in how many a named one is or none was found."""
    saved = [row["less"] for row in rows if row["named_ns"] is not None]
    return {
        "cases": len(rows),
        "proved": sum(row["proved"] for row in rows),
        "worse_than_named": sum(less is None or less < 0 for less in saved),
        "better_than_named": sum(less is not None and less > 0 for less in saved),
    }


def measure(case: Case, seconds: float) -> Row:
    """The row of a case."""
    name, ns = _best(case, seconds)
    found = _steady(case, seconds) if case.steady else _solved(case, seconds)
    less = None if ns is None or found["found_ns"] is None else 1 - found["found_ns"] / ns
    return {"case": case.name, "objective": case.objective, "named": name, "named_ns": ns, "less": less} | found


def _best(case: Case, seconds: float) -> tuple[str | None, int | None]:
    """The best named schedule that fits the memory, or that to compare with, and its ns."""
    if case.against is not None:
        fused, block = case.against
        if case.improved:
            return "best fused", solve(fused, known=[block], seconds=seconds).objective_ns
        return "il-block", evaluate(fused, block).makespan_ns
    problem, micros = (repetitions(case.problem, FAR), FAR) if case.steady else (case.problem, case.micros)
    value = OBJECTIVES[case.objective][1]
    fits = {name: fitting(problem, schedule(micros)) for name, schedule in case.named.items()}
    values = {name: value(schedule) for name, schedule in fits.items() if schedule is not None}
    name = min(values, key=values.__getitem__, default=None)
    return name, None if name is None else values[name]


def _solved(case: Case, seconds: float) -> Row:
    known = [schedule(case.micros) for schedule in case.named.values()] if case.warm else []
    answer = solve(case.problem, case.objective, known, seconds)
    proved = answer.status is Status.OPTIMAL
    if case.refute and proved and answer.objective_ns is not None:
        proved = refuted(case.problem, answer.objective_ns - 1, seconds)
    schedule: TimedOrders | None = answer.schedule
    return {
        "found_ns": answer.objective_ns,
        "bound_ns": answer.bound_ns,
        "proved": proved,
        "bubble": schedule and (schedule.bubble if case.objective == "makespan" else schedule.period_bubble),
        "peak": schedule and max(schedule.peak_bytes),
        "least": None,
        "seconds": answer.seconds,
    }


def _steady(case: Case, seconds: float) -> Row:
    answer = steady(case.problem, case.named.values(), seconds)
    whole, found = repetitions(case.problem, FAR), answer.steady
    schedule = None if found is None else evaluate(whole, found.orders(FAR))
    return {
        "found_ns": schedule and schedule.makespan_ns,
        "bound_ns": found and found.floor.makespan_ns(FAR),
        "proved": found is not None and found.always_shortest,
        "bubble": schedule and schedule.bubble,
        "peak": schedule and max(schedule.peak_bytes),
        "least": found and found.least,
        "seconds": answer.seconds,
    }

"""Steps on this machine: predicted after `partita profile`, and measured.

On a CPU, eight small models in ten configurations each on as many ranks as there are cores, and in some on one rank and
on four; with GPUs, six models of 110 to 400 million parameters in mixed bfloat16 on one GPU and on all. All
configurations of a model and a number of ranks run in the same ranks in turn, after each round of the profile. `ratio`
is predicted by measured seconds of a round, the median of the rounds; `predicted_s` and `measured_s` are medians too.
`rank` is the place of a configuration among the measured ones of its model; the one that is predicted to be the fastest
is `chosen`.

Of GPUs also: the peak of the memory of tensors, predicted and measured; `busy`, the share of a step in which kernels
run; and how often the host waits for the device in a step.

Constant MFU takes all steps to reach the same share of the peak, the one with the least median error.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from ..codegen.plan.plan import Plan
from ..codegen.pricing.on_machine import on_machine
from ..codegen.pricing.plan_price import plan_price
from ..codegen.profile.cases import ROUNDS
from ..codegen.profile.fit import machine_of
from ..codegen.profile.local import Local, local, visible
from ..codegen.profile.profile import measure
from ..codegen.profile.timing import Timing
from ..codegen.verification.launch import LaunchError, torchrun
from ..model.errors import PartitaError
from ..model.machine.machine import Machine
from ..model.machine.roofline import both_ways_flops
from ..solvers.cache.store import Record
from .cases import GIB, Row, Tell, chosen
from .known_plans import graph_of
from .local_cases import DATA, TEN, Case, Configuration, cases, small_cases
from .step_times import Job, read_times, spread
from .training_runs import constant_mfu_error

WITHIN = 0.2
RUN_S = 0.25
"""A run has steps for so many seconds: ranks wait for each other before and after it, which training does not."""
AMONG = 2
"""The chosen configuration should be among so many fastest."""
SECONDS = 500.0
OF_GPUS = ("predicted_gib", "measured_gib", "memory_ratio", "busy", "waits")
MEMORY_WITHIN = 0.1


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """A row for every configuration of every case."""
    rows: list[Row] = []
    here = local()
    for case in chosen(small_cases(here) if small else cases(here), only):
        tell(case.name)
        try:
            found = list(_measured(case, here, tell))
        except (PartitaError, LaunchError) as error:
            found = [_row(case, DATA) | {"why": str(error)}]
        for row in found:
            tell(_line(row))
        rows += found
    return rows


def _row(case: Case, configuration: Configuration) -> Row:
    empty = dict.fromkeys(("predicted_s", "measured_s", "spread", "ratio", "rank", "chosen", "flops", *OF_GPUS))
    return {"model": case.model, "ranks": case.ranks, "configuration": configuration.name, **empty, "why": ""}


def _measured(case: Case, here: Local, tell: Tell) -> Iterator[Row]:
    """Plan all configurations on the machine as measured; then profile it again, and run them after each round of that.

    A round's prices are of its own measurements: the machine may be faster in some minutes than in others.
    """
    usual = Machine.load("cpu", nodes=case.ranks).without_memory_limit()
    graph = graph_of(case.model, case.samples)

    def measured(plans: Sequence[Plan], rounds: int, again: bool = False) -> Mapping[str, Record]:
        records, _ = measure(here, case.ranks, plans, rounds=rounds, again=again, tell=lambda words: tell(str(words)))
        return records

    def machine(records: Mapping[str, Record]) -> Machine:
        return machine_of(here, case.ranks, records.values())

    known = measured([case.planned(graph, configuration, usual) for configuration in case.configurations], 1)
    plans = [case.planned(graph, configuration, machine(known)) for configuration in case.configurations]
    predicted: list[list[float]] = [[] for _ in plans]
    seconds: list[list[list[float]]] = [[] for _ in plans]
    with tempfile.TemporaryDirectory(prefix="partita-local-") as name:
        fastest = min(plan_price(plan).objective_ns for plan in plans) / 1e9
        job = _job(case, here, plans, max(case.steps, ceil(RUN_S / fastest)), Path(name))
        for done in range(ROUNDS):
            before, known = known if done else {}, measured(plans, done + 1, again=not done)
            on = machine(since(before, known))
            prices = [plan_price(on_machine(plan, on)) for plan in plans]
            times = _steps(case, here, job)
            for number, (price, new) in enumerate(zip(prices, times, strict=True)):
                predicted[number].append(price.objective_ns / 1e9)
                seconds[number].append(new["seconds"])
    runs = [[*chain.from_iterable(own)] for own in seconds]
    steps = [*map(median, runs)]
    order, fastest = sorted(steps), min(map(median, predicted))
    flops = sum(both_ways_flops(graph, i) for i, node in enumerate(graph.nodes) if node.inputs)
    for number, configuration in enumerate(case.configurations):
        own = median(predicted[number])
        ratios = (ns / median(of) for ns, of in zip(predicted[number], seconds[number], strict=True))
        yield (
            _row(case, configuration)
            | {
                "predicted_s": own,
                "measured_s": steps[number],
                "spread": spread(runs[number]),
                "ratio": median(ratios),
                "rank": order.index(steps[number]) + 1,
                "chosen": own == fastest,
                "flops": flops / case.ranks,
            }
            | (_on_gpu(prices[number].memory_bytes, times[number]) if here.device == "cuda" else {})
        )


def since(before: Mapping[str, Record], known: Mapping[str, Record]) -> dict[str, Record]:
    """The records of a profile, each with the times measured since `before`; with its old times if there are none."""
    found: dict[str, Record] = {}
    for part, record in known.items():
        old = before[part]["windows"] if part in before else {}
        new = {name: Timing(tuple(of[len(old.get(name, ())) :] or of)) for name, of in record["windows"].items()}
        found[part] = {**record, "times": {name: [time.ns, time.spread] for name, time in new.items()}}
    return found


def _job(case: Case, here: Local, plans: Sequence[Plan], steps: int, folder: Path) -> Path:
    """The job with runs of so many steps of the plans' programs, which are written into a folder."""
    for number, plan in enumerate(plans):
        plan.emit(folder / f"{number}.py")
    forms = [{"program": f"{number}.py"} for number in range(len(plans))]
    return Job(case.model, case.samples, forms, case.rounds, steps, device=here.device).write(folder)


def _steps(case: Case, here: Local, job: Path) -> Sequence[Mapping[str, Any]]:
    """Times of the steps of a job's programs, which the same ranks run in turn."""
    worker = f"module:{__package__}.step_times"
    torchrun(worker, case.ranks, [str(job)], timeout=SECONDS, environment=visible(here, case.ranks))
    return read_times(job.parent)


def _on_gpu(predicted_bytes: int, times: Mapping[str, Any]) -> Row:
    """What the trace of a form says, beside the memory that is predicted."""
    own = (predicted_bytes / GIB, times["peak"] / GIB, predicted_bytes / times["peak"])
    return dict(zip(OF_GPUS, (*own, times["trace"]["busy"], times["trace"]["waits"]), strict=True))


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """How near the predictions are, and whether the configurations predicted to be fastest are."""
    known = [row for row in rows if row["ratio"] is not None]
    picks = [row for row in known if row["chosen"] and sum(_alike(row, other) for other in known) >= len(TEN)]
    errors = [abs(row["ratio"] - 1) for row in known]
    return {
        "runs": len(rows),
        "not_run": len(rows) - len(known),
        "median_abs_error": median(errors) if errors else None,
        "within_20": sum(error <= WITHIN for error in errors),
        **_totals_of_gpus([row for row in known if row["busy"] is not None]),
        "choices": len(picks),
        "among_two_fastest": sum(row["rank"] <= AMONG for row in picks),
        "constant_mfu_median_abs_error": constant_mfu_error(known),
    }


def _totals_of_gpus(rows: Sequence[Row]) -> dict[str, Any]:
    if not rows:
        return {}
    return {
        "memory_within_10": sum(abs(row["memory_ratio"] - 1) <= MEMORY_WITHIN for row in rows),
        "least_busy": min(row["busy"] for row in rows),
        "most_waits": max(row["waits"] for row in rows),
    }


def _alike(row: Row, other: Row) -> bool:
    return (row["model"], row["ranks"]) == (other["model"], other["ranks"])


def _line(row: Row) -> str:
    what = f"{row['model']}, {row['ranks']} ranks, {row['configuration']}"
    if row["ratio"] is None:
        return f"{what}: {row['why']}"
    mark = " (chosen)" if row["chosen"] else ""
    line = (
        f"{what}: {row['predicted_s'] * 1e3:,.1f} ms predicted, {row['measured_s'] * 1e3:,.1f} measured, "
        f"{row['ratio']:.2f}, place {row['rank']}{mark}, runs {row['spread']:.0%} apart"
    )
    if row["busy"] is None:
        return line
    memory = f"{row['predicted_gib']:.2f} GiB predicted, {row['measured_gib']:.2f} measured"
    return f"{line}; {memory}; {row['busy']:.1%} busy, {row['waits']:g} waits of the host"

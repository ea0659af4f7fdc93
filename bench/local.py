"""Steps on this machine: predicted after `partita profile`, and measured.

On a CPU, eight small models in ten configurations each on as many ranks as there are cores, and in some on one rank and
on four; with GPUs, six models of 110 to 400 million parameters in mixed bfloat16 on one GPU and on all. All
configurations of a model and a number of ranks run in the same ranks in turn. `ratio` is predicted by
measured seconds, the median of the rounds. `rank` is the place of a configuration among the measured ones of its
model; the one that is predicted to be the fastest is `chosen`.

Of GPUs also: the peak of the memory of tensors, predicted and measured; `busy`, the share of a step in which kernels
run; and how often the host waits for the device in a step.

Constant MFU takes all steps to reach the same share of the peak, the one with the least median error.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ..codegen.plan.plan import Plan
from ..codegen.planner.plan_graph import plan_graph
from ..codegen.pricing.plan_price import plan_price
from ..codegen.profile.fit import machine_of
from ..codegen.profile.local import Local, local, visible
from ..codegen.profile.profile import measure
from ..codegen.verification.launch import LaunchError, torchrun
from ..formulation.parallelism import Parallelism
from ..formulation.search_space import SearchSpace
from ..model.errors import PartitaError
from ..model.graph.pcg import PCG
from ..model.machine.machine import Machine
from ..model.machine.roofline import both_ways_flops
from ..model.training import Training
from ..solvers.budget import Budget
from ..solvers.executors import Serial, usable_cores
from .cases import GIB, Row, Tell, chosen
from .known_plans import graph_of
from .step_times import Job, read_times, spread
from .training_runs import constant_mfu_error

WITHIN = 0.2
AMONG = 2
"""The chosen configuration should be among so many fastest."""
SECONDS = 500.0
OF_GPUS = ("predicted_gib", "measured_gib", "memory_ratio", "busy", "waits")
MEMORY_WITHIN = 0.1


@dataclass(frozen=True, slots=True)
class Configuration:
    """Sizes of parallelism for a number of ranks: those of data parallelism are what the others leave."""

    name: str
    tp: int = 1
    stages: int = 1
    micro_batches: int = 1
    zero: int = 0
    recompute: str = "none"

    def space(self, ranks: int) -> SearchSpace:
        """What it leaves to the search. PartitaError: it does not divide the ranks."""
        dp, rest = divmod(ranks, self.tp * self.stages)
        if rest:
            raise PartitaError(f"{self.name} does not divide {ranks} ranks")
        return SearchSpace(
            parallelism=Parallelism(dp=dp, tp=self.tp, zero=self.zero),
            stages=self.stages,
            micro_batches=self.micro_batches,
            recompute=self.recompute,
            offload=False,
            bundles=False,
        )


DATA = Configuration("data parallel")
SPLIT = Configuration("tensor parallel", tp=2)
SHARDED = Configuration("fully sharded", zero=3)
TEN = (
    DATA,
    SPLIT,
    SHARDED,
    Configuration("ZeRO-1", zero=1),
    Configuration("data parallel, 2 micro-batches", micro_batches=2),
    Configuration("data parallel, 4 micro-batches", micro_batches=4),
    Configuration("data parallel, recomputed", recompute="full"),
    Configuration("2 stages, 2 micro-batches", stages=2, micro_batches=2),
    Configuration("2 stages, 4 micro-batches", stages=2, micro_batches=4),
    Configuration("2 stages, 8 micro-batches", stages=2, micro_batches=8),
)
FOUR = (DATA, SHARDED, Configuration("tensor by 2, data by 2", tp=2))


@dataclass(frozen=True, slots=True)
class Case:
    """A model, with so many samples a step, on a number of ranks in some configurations."""

    model: str
    ranks: int
    configurations: tuple[Configuration, ...]
    samples: int = 8
    rounds: int = 7
    steps: int = 1
    dtype: str = "float32"

    @property
    def name(self) -> str:
        return f"{self.model}: {self.ranks} ranks"


NAMES = ("gpt", "llama", "gpt, narrow", "llama, narrow", "gpt, wide", "llama, wide", "bert", "mlp")
SAMPLES: Mapping[str, int] = {"mlp": 256}
ON_GPU: Mapping[str, int] = {
    "gpt, 124M": 16,
    "gpt, 124M, dropout 0.1": 16,
    "gpt, 354M": 8,
    "llama, 268M": 16,
    "bert, 110M": 32,
    "mlp, 400M": 8192,
}
"""Samples a GPU and step of the models that GPUs run."""
ALONE = (DATA, Configuration("4 micro-batches", micro_batches=4))
RECOMPUTED = tuple(Configuration(f"{mode} recomputation", recompute=mode) for mode in ("selective", "full"))


def cases(here: Local) -> tuple[Case, ...]:
    """Every model on one rank, on as many as there are cores or GPUs, and on a CPU on four."""
    if here.device == "cuda":
        several = {here.devices: TEN} if here.devices > 1 else {}
        return tuple(
            Case(model, ranks, configurations, samples * ranks, steps=5, dtype="mixed-bfloat16")
            for model, samples in ON_GPU.items()
            for ranks, configurations in ({1: (*ALONE, *RECOMPUTED)} | several).items()
        )
    own = 2 if usable_cores() < 4 else 4
    kinds = {1: ALONE, 4: FOUR, own: TEN}
    return tuple(
        Case(model, ranks, configurations, SAMPLES.get(model, 8))
        for model in NAMES
        for ranks, configurations in sorted(kinds.items())
    )


def small_cases(here: Local) -> tuple[Case, ...]:
    """A tiny one, on two ranks if there are so many."""
    ranks = min(here.devices, 2)
    return (Case("gpt, tiny", ranks, TEN[:2] if ranks > 1 else ALONE, samples=4, rounds=1, steps=1),)


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
    """Profile the kernels of all configurations, plan them on the machine as measured, and run them."""
    usual = Machine.load("cpu", nodes=case.ranks).without_memory_limit()
    graph = graph_of(case.model, case.samples)
    plans = [_planned(graph, case, configuration, usual) for configuration in case.configurations]
    records, _ = measure(here, case.ranks, plans, tell=lambda words: tell(str(words)))
    machine = machine_of(here, case.ranks, records.values())
    plans = [_planned(graph, case, configuration, machine) for configuration in case.configurations]
    prices = [plan_price(plan) for plan in plans]
    predicted = [price.objective_ns / 1e9 for price in prices]
    with tempfile.TemporaryDirectory(prefix="partita-local-") as name:
        folder = Path(name)
        for number, plan in enumerate(plans):
            plan.emit(folder / f"{number}.py")
        forms = [{"program": f"{number}.py"} for number in range(len(plans))]
        job = Job(case.model, case.samples, forms, case.rounds, case.steps, device=here.device).write(folder)
        worker = f"module:{__package__}.step_times"
        torchrun(worker, case.ranks, [str(job)], timeout=SECONDS, environment=visible(here, case.ranks))
        times = read_times(folder)
    seconds = [each["seconds"] for each in times]
    steps = [median(each) for each in seconds]
    order = sorted(steps)
    flops = sum(both_ways_flops(graph, i) for i, node in enumerate(graph.nodes) if node.inputs)
    for number, configuration in enumerate(case.configurations):
        yield (
            _row(case, configuration)
            | {
                "predicted_s": predicted[number],
                "measured_s": steps[number],
                "spread": spread(seconds[number]),
                "ratio": predicted[number] / steps[number],
                "rank": order.index(steps[number]) + 1,
                "chosen": predicted[number] == min(predicted),
                "flops": flops / case.ranks,
            }
            | (_on_gpu(prices[number].memory_bytes, times[number]) if here.device == "cuda" else {})
        )


def _on_gpu(predicted_bytes: int, times: Mapping[str, Any]) -> Row:
    """What the trace of a form says, beside the memory that is predicted."""
    own = (predicted_bytes / GIB, times["peak"] / GIB, predicted_bytes / times["peak"])
    return dict(zip(OF_GPUS, (*own, times["trace"]["busy"], times["trace"]["waits"]), strict=True))


def _planned(graph: PCG, case: Case, configuration: Configuration, machine: Machine) -> Plan:
    training = Training(case.samples, case.dtype)
    return plan_graph(graph, machine, training, configuration.space(case.ranks), Budget(executor=Serial(), gap=0.01))


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

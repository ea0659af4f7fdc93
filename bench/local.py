"""Steps on this machine: predicted after `partita profile`, and measured.

Eight small models in ten configurations each on as many ranks as there are cores, and in some on one rank and on four.
All configurations of a model and a number of ranks run in the same gloo ranks in turn. `ratio` is predicted by
measured seconds, the median of the rounds. `rank` is the place of a configuration among the measured ones of its
model; the one that is predicted to be the fastest is `chosen`.

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
from ..codegen.profile.local import local
from ..codegen.profile.profile import measure
from ..codegen.verification.launch import LaunchError, torchrun
from ..formulation.parallelism import Parallelism
from ..formulation.search_space import SearchSpace
from ..model.errors import PartitaError
from ..model.machine.machine import Machine
from ..model.machine.roofline import both_ways_flops
from ..model.training import Training
from ..solvers.budget import Budget
from ..solvers.executors import Serial, usable_cores
from .cases import Row, Tell, chosen
from .known_plans import graph_of
from .step_times import Job, read_times, spread
from .training_runs import constant_mfu_error

WITHIN = 0.2
AMONG = 2
"""The chosen configuration should be among so many fastest."""
SECONDS = 500.0


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

    @property
    def name(self) -> str:
        return f"{self.model}: {self.ranks} ranks"


NAMES = ("gpt", "llama", "gpt, narrow", "llama, narrow", "gpt, wide", "llama, wide", "bert", "mlp")
SAMPLES: Mapping[str, int] = {"mlp": 256}


def cases() -> tuple[Case, ...]:
    """Every model on one rank, on as many as there are cores, and on four."""
    own = 2 if usable_cores() < 4 else 4
    kinds = {1: (DATA, Configuration("4 micro-batches", micro_batches=4)), 4: FOUR, own: TEN}
    return tuple(
        Case(model, ranks, configurations, SAMPLES.get(model, 8))
        for model in NAMES
        for ranks, configurations in sorted(kinds.items())
    )


SMALL = (Case("gpt, tiny", 2, TEN[:2], samples=4, rounds=1, steps=1),)


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """A row for every configuration of every case."""
    rows: list[Row] = []
    for case in chosen(SMALL if small else cases(), only):
        tell(case.name)
        try:
            found = list(_measured(case, tell))
        except (PartitaError, LaunchError) as error:
            found = [_row(case, DATA) | {"why": str(error)}]
        for row in found:
            tell(_line(row))
        rows += found
    return rows


def _row(case: Case, configuration: Configuration) -> Row:
    empty = dict.fromkeys(("predicted_s", "measured_s", "spread", "ratio", "rank", "chosen", "flops"))
    return {"model": case.model, "ranks": case.ranks, "configuration": configuration.name, **empty, "why": ""}


def _measured(case: Case, tell: Tell) -> Iterator[Row]:
    """Profile the kernels of all configurations, plan them on the machine as measured, and run them."""
    usual = Machine.load("cpu", nodes=case.ranks).without_memory_limit()
    here = local("cpu")
    plans = [_planned(case, configuration, usual) for configuration in case.configurations]
    records, _ = measure(here, case.ranks, plans, tell=lambda words: tell(str(words)))
    machine = machine_of(here, case.ranks, records.values())
    plans = [_planned(case, configuration, machine) for configuration in case.configurations]
    predicted = [plan_price(plan).objective_ns / 1e9 for plan in plans]
    with tempfile.TemporaryDirectory(prefix="partita-local-") as name:
        folder = Path(name)
        for number, plan in enumerate(plans):
            plan.emit(folder / f"{number}.py")
        forms = [{"program": f"{number}.py"} for number in range(len(plans))]
        job = Job(case.model, case.samples, forms, case.rounds, case.steps).write(folder)
        torchrun(f"module:{__package__}.step_times", case.ranks, [str(job)], timeout=SECONDS)
        seconds = [each["seconds"] for each in read_times(folder)]
    steps = [median(each) for each in seconds]
    order = sorted(steps)
    graph = graph_of(case.model, case.samples)
    flops = sum(both_ways_flops(graph, i) for i, node in enumerate(graph.nodes) if node.inputs)
    for number, configuration in enumerate(case.configurations):
        yield _row(case, configuration) | {
            "predicted_s": predicted[number],
            "measured_s": steps[number],
            "spread": spread(seconds[number]),
            "ratio": predicted[number] / steps[number],
            "rank": order.index(steps[number]) + 1,
            "chosen": predicted[number] == min(predicted),
            "flops": flops / case.ranks,
        }


def _planned(case: Case, configuration: Configuration, machine: Machine) -> Plan:
    graph, training = graph_of(case.model, case.samples), Training(case.samples)
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
        "choices": len(picks),
        "among_two_fastest": sum(row["rank"] <= AMONG for row in picks),
        "constant_mfu_median_abs_error": constant_mfu_error(known),
    }


def _alike(row: Row, other: Row) -> bool:
    return (row["model"], row["ranks"]) == (other["model"], other["ranks"])


def _line(row: Row) -> str:
    what = f"{row['model']}, {row['ranks']} ranks, {row['configuration']}"
    if row["ratio"] is None:
        return f"{what}: {row['why']}"
    mark = " (chosen)" if row["chosen"] else ""
    return (
        f"{what}: {row['predicted_s'] * 1e3:,.1f} ms predicted, {row['measured_s'] * 1e3:,.1f} measured, "
        f"{row['ratio']:.2f}, place {row['rank']}{mark}, runs {row['spread']:.0%} apart"
    )

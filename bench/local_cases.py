"""What `bench local` runs: models in configurations of parallelism, on a CPU or on GPUs."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..codegen.plan.plan import Plan
from ..codegen.planner.plan_graph import plan_graph
from ..codegen.profile.local import Local
from ..formulation.parallelism import Parallelism
from ..formulation.search_space import SearchSpace
from ..model.errors import PartitaError
from ..model.graph.pcg import PCG
from ..model.machine.machine import Machine
from ..model.training import Training
from ..solvers.budget import Budget
from ..solvers.executors import Serial, usable_cores


@dataclass(frozen=True, slots=True)
class Configuration:
    """Sizes of parallelism; data parallelism takes the ranks that the others leave."""

    name: str
    tp: int = 1
    stages: int = 1
    micro_batches: int = 1
    zero: int = 0
    recompute: str = "none"

    def space(self, ranks: int) -> SearchSpace:
        """The search space with these sizes fixed. PartitaError: they do not divide the ranks."""
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
    """A model, with so many samples a step, on a number of ranks in some configurations.

    `rounds`: how often all configurations are run between two rounds of the profile.
    """

    model: str
    ranks: int
    configurations: tuple[Configuration, ...]
    samples: int = 8
    rounds: int = 8
    steps: int = 1
    dtype: str = "float32"

    @property
    def name(self) -> str:
        return f"{self.model}: {self.ranks} ranks"

    def planned(self, graph: PCG, configuration: Configuration, machine: Machine) -> Plan:
        """The best plan of its graph in a configuration."""
        training, space = Training(self.samples, self.dtype), configuration.space(self.ranks)
        return plan_graph(graph, machine, training, space, Budget(executor=Serial(), gap=0.01))


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

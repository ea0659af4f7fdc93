"""The source of a program, and the facts about it that several features need."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ....model.graph.buffer_updates import updated
from ....model.graph.layout import is_split
from ....model.graph.sparse_tables import sparse_tables
from ....model.machine.precision import Precision, precision
from ....model.operators.elementwise import KINDS
from ...plan.plan import Plan
from ...plan.table_spread import spread_axis
from ...pricing.axis_groups import Group, axis_groups, summed_over
from ..common.conversions import Used, local_part
from .constructors import reduces_behind, trained
from .mesh import all_steps, disordered, table
from .model_classes import ModelClasses


@dataclass(frozen=True)
class Collectives:
    """Communication: the primitives that a program calls, and the collectives over levels that they consist of."""

    programs: bool  # some collective takes several steps, on levels of the machine
    collectives: frozenset[str]
    resting: bool  # some ranks take no part in some step
    disordered: bool  # some all-reduce leaves its chunks in another order
    primitives: frozenset[str]
    in_steps: frozenset[str]  # those that take several steps behind what is computed
    uneven: bool  # some parts are of unequal size


@dataclass(frozen=True)
class StorageFeatures:
    """How ranks store weights."""

    cut: bool  # in parts
    placed: bool  # some at one coordinate of an axis only
    ranged: bool  # some at a range of coordinates only
    joined: str  # the argument that names the tensors which a weight joins; "": none does
    factors: bool  # a dim of some weight is given by its factors
    spread: bool  # columns of some tables are spread over an axis
    sparse: bool  # some tables have sparse gradients
    frozen: bool  # some have no gradient
    running: bool  # some are statistics that forward updates


@dataclass(frozen=True)
class Synchronization:
    """How gradients are synchronized, and where the states of the optimizer are."""

    sharded: bool  # ranks update shares of some weights
    all_sharded: bool  # ... of all
    scattered: bool  # ranks accumulate shares of some gradients
    offloaded: bool  # the states of some weights are on the host
    alone: bool  # some gradients need no sum
    reduced: bool  # some gradients are all-reduced
    separate: bool  # accumulated gradients or states are in other memory than the weights
    behind: bool  # sums over ranks begin during backward


@dataclass(frozen=True)
class Emission:
    """A plan, its stages (itself without a pipeline), and the writers of their classes after these have been written.

    `classes` is their text, `shares` that of this rank's inputs, `reading` the axes over which ranks read different
    samples; `pipeline` is what templates know of a pipeline.
    """

    plan: Plan
    stages: Sequence[Plan]
    modules: Sequence[ModelClasses]
    used: Used
    classes: str
    mesh_lines: Sequence[str]
    shares: Sequence[str] = ()
    reading: Sequence[str] = ()
    pipeline: dict[str, Any] | None = None

    @property
    def groups(self) -> Sequence[Group]:
        return axis_groups(self.plan)

    @property
    def accumulates(self) -> bool:
        """True if a step has several micro-batches."""
        return self.stages[0].micro_batches > 1

    @property
    def has_dropout(self) -> bool:
        return not self.used.helpers.isdisjoint(("dropout", "attend", "drawing", *KINDS))

    @property
    def precision(self) -> Precision:
        return precision(self.plan.dtype)

    @property
    def scales_loss(self) -> bool:
        return self.plan.dtype == "mixed-float16"

    @property
    def divisors(self) -> Sequence[dict[str, Any]]:
        """The counts that the last stage needs before its first forward."""
        return self.modules[-1].divisors

    @cached_property
    def recomputation_modes(self) -> frozenset[str]:
        return frozenset[str]().union(*(module.modes for module in self.modules))

    @cached_property
    def programs(self) -> Sequence[str]:
        """The table of collectives that take several steps."""
        return table(self.groups)

    @cached_property
    def storage(self) -> StorageFeatures:
        weights = [
            (node, choice)
            for plan in self.stages
            for node, choice in zip(plan.graph.nodes, plan.choices, strict=True)
            if node.op in ("parameter", "buffer")
        ]
        joined = max(module.joined_argument for module in self.modules)
        split = any(is_split(letter) for _, choice in weights for letter in choice.output)
        return StorageFeatures(
            cut=bool(joined) or split or self.used.placed,
            placed=self.used.placed,
            ranged=any(plan.ranges for plan in self.stages),
            joined=joined,
            factors=any(module.factors for module in self.modules),
            spread=any(spread_axis(p, i) is not None for p in self.stages for i in range(len(p.graph.nodes))),
            sparse=any(sparse_tables(plan.graph) for plan in self.stages),
            frozen=any(not node.gradient for node, _ in weights),
            running=any(updated(plan.graph) for plan in self.stages),
        )

    @cached_property
    def synchronization(self) -> Synchronization:
        weights = [(plan, index) for plan in self.stages for index in trained(plan)]
        choices = [plan.choices[index] for plan, index in weights]
        kinds = {_synchronized(plan, index) for plan, index in weights}
        separate = any(plan.separate_states for plan in self.stages)
        sharded = "sharded" in kinds or separate
        return Synchronization(
            sharded=sharded,
            all_sharded=all(module.all_sharded for module in self.modules) and sharded,
            scattered=any(choice.sharded_gradients for choice in choices),
            offloaded=any(choice.offloaded for choice in choices),
            alone="alone" in kinds,
            reduced="reduced" in kinds,
            separate=separate,
            behind=reduces_behind(self.plan),
        )

    @cached_property
    def collectives(self) -> Collectives:
        used, sharded, behind = self.used, self.synchronization.sharded, self.synchronization.behind
        primitives, in_steps = set(used.primitives), self._in_steps
        if sharded or "positions" in used.helpers or "pad" in primitives:
            primitives |= {"cut"}
        if sharded and (self.programs or self.synchronization.separate):
            primitives |= {"gather"}
        if sharded and not behind and (self.programs or self.synchronization.scattered):
            primitives |= {"scatter_sum"}
        if self.programs and ((self.synchronization.reduced and not behind) or "all_reduce" in primitives):
            primitives |= {"add_up"}
        kinds = {"gather": "all_gather", "scatter_sum": "reduce_scatter", "add_up": "all_reduce"}
        steps = all_steps(self.groups)
        tied = self.pipeline is not None and self.pipeline["tied"]
        return Collectives(
            programs=bool(self.programs),
            collectives=frozenset(
                {kinds[name] for name in (primitives | in_steps) & kinds.keys()}
                | {step.collective.value for step in steps}
                | ({"all_gather", "reduce_scatter"} if used.gathers else set())
                | ({"all_gather", "reduce_scatter"} if sharded else set())
            ),
            resting=tied or any(step.zero for step in steps) or any(group.among for group in self.groups),
            disordered=disordered(self.groups),
            primitives=frozenset(primitives),
            in_steps=in_steps,
            uneven=used.uneven or any(map(_uneven_weights, self.stages)),
        )

    @property
    def _in_steps(self) -> frozenset[str]:
        """The primitives that run behind others, of which some take several steps."""
        found, states = set[str](), self.synchronization
        if self.used.gathers and (self.programs or self.used.several_axes):
            found |= {"gather", "scatter_sum"}
        if self.programs and states.behind:
            found |= {"scatter_sum"} if states.sharded else set()
            found |= {"add_up"} if states.reduced else set()
        return frozenset(found)


def _synchronized(plan: Plan, index: int) -> str:
    """How a weight's gradient is summed: `sharded` (reduce-scatter), `reduced` (all-reduce), or `alone` (not)."""
    if not summed_over(plan, index):
        return "alone"
    return "sharded" if plan.choices[index].sharded_states else "reduced"


def _uneven_weights(plan: Plan) -> bool:
    """True if some weight or input is stored in parts of different sizes."""
    for index, (node, choice) in enumerate(zip(plan.graph.nodes, plan.choices, strict=True)):
        if node.op in ("parameter", "buffer", "input"):
            local = local_part(plan, index, choice.output)
            if any(isinstance(s, str) for s in local.shape()):
                return True
    return False

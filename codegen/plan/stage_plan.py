"""The fields of a plan for one graph on one mesh, without its checks and the methods that need other modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...formulation.placement.placement import Placement
from ...model.graph.atoms import atoms
from ...model.graph.layout import Layout
from ...model.graph.pcg import PCG
from ...model.machine.collective_price import CollectivePrice
from ...model.machine.machine import Machine
from ...model.machine.precision import precision
from .axis_names import axis_names
from .choice import Choice, letter_text

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class StagePlan:
    """One choice per node of `graph` (shapes at one micro-batch, global over ranks), unchecked; see `Plan`."""

    graph: PCG
    machine: Machine
    placement: Placement
    micro_batches: int
    choices: tuple[Choice, ...]
    dtype: str = "float32"
    optimizer: str = "adamw"
    model: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    module: tuple[nn.Module, Any] | None = field(default=None, compare=False, repr=False)
    recompute: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] | None = field(default=None, compare=False, repr=False)
    in_flight: int = 1
    transfer: CollectivePrice | None = None

    @property
    def ranks(self) -> int:
        return self.placement.devices

    @property
    def batch(self) -> int:
        """Samples in one step: over all ranks and micro-batches."""
        return self.graph.batch * self.micro_batches

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """A name for every mesh axis, by what it mostly splits: data, tensor, sequence."""
        return self.names or axis_names(len(self.placement.sizes), ((self.graph, self.choices),))

    @property
    def separate_states(self) -> bool:
        """True if accumulated gradients or optimizer states lie elsewhere than the weights, or have another dtype."""
        return precision(self.dtype).copied or any(c.sharded_gradients or c.offloaded for c in self.choices)

    def layout_text(self, node: int, layout: Layout) -> str:
        """A layout in words of this plan's axes: `data:S(0) tensor:P`, `@1` at coordinate 1; R is left out."""
        known, beside = atoms(self.graph)[node], self.choices[node].beside
        words = [letter_text(known, x) for x in layout]
        for axis, coordinate in beside:
            words[axis] = f"@{coordinate}"
        return " ".join(f"{a}:{word}" for a, word in zip(self.axes, words, strict=True) if word != "R") or "R"

"""From a model to its graph, and what its weights begin with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...model.graph.pcg import PCG
from ...model.initial_values import InitialValues
from ...model.training import Training, parse_batch_dim
from ..emission.common.defaults import SEED

if TYPE_CHECKING:
    from torch import nn

    from ...model.capture.objective import TrainedModule


def captured(reference: str, training: Training, *, small: bool) -> tuple[PCG, TrainedModule]:
    """The graph of a model, and what was captured. Raises PartitaError."""
    from ...model.capture.capture import capture
    from ...model.capture.fixed_buffers import fixed_buffers, set_buffers
    from ...model.capture.initial import constructed
    from ...model.capture.load import load_model

    built = load_model(reference, small=small, sequence=training.sequence)
    shapes = {name: x.shape for name, x in fixed_buffers(built.module).items() if x.is_meta}
    if shapes:  # their values belong to the program
        build = _builder(reference, small=small, sequence=training.sequence)
        set_buffers(built.module, constructed(build, shapes, SEED))
    graph = capture(
        built.module,
        built.inputs,
        batch=max(training.batch, 2),
        allow_unknown=training.allow_unknown,
        statistics=training.statistics,
        dropout=training.dropout,
        loss=training.loss or built.loss,
        batch_dim=parse_batch_dim(training.batch_dim),
    )
    return graph, built


def constructor_values(reference: str, graph: PCG, *, small: bool, sequence: int | None) -> InitialValues:
    """The initial values of a graph's weights after torch.manual_seed(SEED), as emitted programs begin."""
    from ...model.capture.initial import constructed

    return constructed(_builder(reference, small=small, sequence=sequence), graph.originals, SEED)


def _builder(reference: str, *, small: bool, sequence: int | None) -> Callable[[], nn.Module]:
    from ...model.capture.load import load_module

    return lambda: load_module(reference, small=small, sequence=sequence, device="cpu")[0]


def captured_module(module: nn.Module, inputs: Any, **options: Any) -> tuple[PCG, InitialValues]:
    """The graph of a live module (`options` are those of `capture`), and the values that it has."""
    from ...model.capture.capture import capture
    from ...model.capture.initial import values_of

    graph = capture(module, inputs, **options)
    return graph, values_of(module, graph.originals)

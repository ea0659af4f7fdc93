"""Capture: from an nn.Module and example inputs to a PCG, by torch.export, without computing or copying weights."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.export.graph_signature import InputKind
from torch.nn.parameter import is_lazy

from ..errors import PartitaError
from ..graph.buffer_updates import STATISTICS, check_updates
from ..graph.builder import Builder
from ..graph.pcg import PCG
from .aten import TABLE
from .batch_guess import refuse_failed_guess, refuse_wrong_guess
from .buffer_changes import BufferChanges
from .custom_functions import CustomFunctions
from .equal_layers import equal_layers
from .exporting import export, runs_with
from .finish import finished
from .fixed_buffers import fixed_buffers
from .gradients import check_hooks
from .held_tensors import all_buffers, carried
from .inputs import BatchDim, Inputs
from .literals import has_values, literal, written
from .objective import Loss, Objective, TrainedModule, check_loss
from .opaque_calls import opaque_call
from .repeated_calls import Repeating
from .translation import Index, Translation, dtype_name


def capture(
    module: nn.Module,
    inputs: Any,
    *,
    batch: int | None = None,
    allow_unknown: bool = True,
    statistics: str = "batch",
    loss: Loss = None,
    batch_dim: BatchDim = None,
    dropout: str = "torch",
) -> PCG:
    """The graph of `module` at micro-batches of `batch` samples (default: as many as the examples have, at least 2).

    `inputs`: arguments of `module.forward`, a tuple or a dict; their values do not matter. They may be on meta, as may
    the module, which is not changed. `batch_dim`: the dim of every input that counts samples, or a dict by the names of
    inputs, None for those without samples. Of inputs that it leaves out dim 0 counts samples if it is as large as that
    of the first one; this guess is checked, by the module at another batch (`batch_guess`). The loss is the only
    floating scalar that the module returns, or of several the one named `loss`. `loss` says which it is otherwise: a
    function of the output, or "projection", which projects each floating tensor of the output on fixed noise and takes
    the sum, to check a module that has no loss (`objective`). `statistics`: what batch norms in training normalize over
    (their batch counter is left out). `dropout`: what draws its masks, `torch` or `counters`; from counters, attention
    with dropout is written out, since no fused kernel takes a mask. Raises PartitaError that names the operator, the
    module and the line of what has no translation; with `allow_unknown` a pure operator without one is opaque: it is
    split along the dims in which it is found to be independent, by running it on small tensors, and whole along the
    others.
    """
    if not isinstance(module, nn.Module):
        raise PartitaError(f"capture needs a torch.nn.Module, not {type(module).__name__}")
    if statistics not in STATISTICS:
        raise PartitaError(f"statistics {statistics!r}: choose from {', '.join(STATISTICS)}")
    lazy = next((name for name, weight in module.state_dict(keep_vars=True).items() if is_lazy(weight)), None)
    if lazy is not None:
        raise PartitaError(f"{lazy!r} has no shape yet: call the module once before capture")
    check_hooks(module)
    check_loss(loss)
    found = Inputs.of(module, inputs, batch_dim)
    samples = max(2, found.batch) if batch is None else batch
    if samples < 1:
        raise PartitaError(f"batch {batch} is not positive")
    model, layers = TrainedModule(module, inputs, loss), equal_layers(module)

    def graph(layers: Mapping[str, int], found: Inputs = found) -> PCG:
        return _captured(model, found, samples, layers, allow_unknown, statistics, dropout=dropout)

    def runs(found: Inputs, batch: int) -> bool:
        return runs_with(model, layers, found, batch)

    try:
        try:
            made = graph(layers)
        except PartitaError:
            if not layers:
                raise
            made = graph({})  # other errors are raised again
    except PartitaError:
        refuse_failed_guess(found, samples, runs)
        raise
    refuse_wrong_guess(found, made, runs, lambda other: graph({}, other))
    return made


def _captured(
    model: TrainedModule,
    inputs: Inputs,
    batch: int,
    layers: Mapping[str, int],
    allow_unknown: bool,
    statistics: str,
    *,
    dropout: str = "torch",
) -> PCG:
    """The graph, with equal `layers` translated from one trace; raises PartitaError also where that is impossible."""
    module, functions = model.module, CustomFunctions()
    program, found = export(model, inputs, batch, layers, functions)
    builder = Builder(batch)
    unknown = opaque_call if allow_unknown else None
    rules = {**TABLE, **functions.rules}
    translation = (Repeating if layers else Translation)(rules, builder, unknown, statistics, dropout)
    changes = BufferChanges(program.graph, program.graph_signature.input_specs, translation)
    if layers and changes.changed:
        raise PartitaError("buffers that change are known only if all layers are traced")
    changed = {(spec.target or "").removeprefix("module.") for _, spec in changes.changed}
    fixed = {name: x for name, x in fixed_buffers(module).items() if name not in changed and has_values(x)}
    fixed = {name: x for name, x in fixed.items() if bool(x.isfinite().all())}
    given = _sources(program, builder, module, inputs, fixed)
    sources = [changes.read(*pair) for pair in zip(program.graph.find_nodes(op="placeholder"), given, strict=True)]
    known = _known_buffers(builder, module).items()
    translation.known.buffers = {i: values for i, values in known if i not in changes.buffers}
    translation.known.loaded = _loaded_buffers(builder)
    results = translation.run(program.graph, sources)
    loss = changes.stored(_loss(builder, results, found))
    check_updates(builder.nodes)
    if model.loss is None and not _reads(builder, loss):
        raise PartitaError(
            f"{found.words}, the scalar that {type(module).__name__}.forward returns, depends on no input, so it is no "
            "loss: give loss=lambda out: ..."
        )
    return finished(builder, loss, _aliases(module), translation.limits)


def _sources(
    program: torch.export.ExportedProgram,
    builder: Builder,
    module: nn.Module,
    inputs: Inputs,
    fixed: Mapping[str, torch.Tensor],
) -> list[Index]:
    """Inputs, parameters, buffers and small constants, one node for each placeholder; `fixed` buffers are constants."""
    tensors = {name.removeprefix("module."): t for name, t in (*program.state_dict.items(), *program.constants.items())}
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers, registered = all_buffers(module), dict(module.named_buffers(remove_duplicate=False))
    first, persistent = _first_names(module), _persistent(module)
    made: dict[str, int] = {}
    order = iter(zip(inputs.names, inputs.shapes(builder.batch), inputs.tensors, inputs.batch_dims, strict=True))
    nodes: list[Index] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            name, shape, tensor, batch_dim = next(order)
            _check_real(f"input {name!r}", tensor)
            nodes.append(Index(builder.input(name, shape, dtype_name(tensor.dtype), batch_dim)))
            continue
        target = (spec.target or "").removeprefix("module.")
        weight = parameters.get(target, buffers.get(target))
        if weight is None or (target in buffers and target not in registered):  # an attribute is a buffer if it must be
            number = literal(builder, target, tensors[target]) if weight is None else written(builder, target, weight)
            if number is not None:
                nodes.append(number)
                continue
            assert weight is not None
        name = first[id(weight)]
        if name in fixed:
            nodes.append(literal(builder, name, fixed[name]))
            continue
        _check_real(f"{'parameter' if target in parameters else 'buffer'} {name!r}", weight)
        if name not in made:
            dtype = dtype_name(weight.dtype)
            if target in parameters:
                made[name] = builder.parameter(name, weight.shape, dtype, weight.requires_grad)
            else:
                path = name.rpartition(".")[0]
                known = {} if name in persistent else {"persistent": False}
                made[name] = builder.add("buffer", shape=weight.shape, name=name, dtype=dtype, path=path, **known)
        nodes.append(Index(made[name]))
    return nodes


def _check_real(what: str, tensor: torch.Tensor) -> None:
    """Raise PartitaError for complex tensors that programs would have to load, send and update."""
    if tensor.is_complex():
        raise PartitaError(
            f"the {what} holds complex numbers: hold torch.view_as_real(x), and read it with torch.view_as_complex"
        )


def _state(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """All parameters and buffers, tied ones under each of their names."""
    return [*module.named_parameters(remove_duplicate=False), *all_buffers(module).items()]


def _first_names(module: nn.Module) -> dict[int, str]:
    """The first name of every parameter and buffer, by its identity."""
    return {id(tensor): name for name, tensor in reversed(_state(module))}


def _known_buffers(builder: Builder, module: nn.Module) -> dict[int, torch.Tensor]:
    """Buffer -> its tensor, where it has values."""
    buffers = all_buffers(module)
    found = {i: buffers[node.name] for i, node in enumerate(builder.nodes) if node.op == "buffer"}
    return {i: value for i, value in found.items() if value.device.type == "cpu" and has_values(value)}


def _persistent(module: nn.Module) -> set[str]:
    """The first names of the parameters and buffers that a checkpoint of the module carries."""
    known = carried(module)
    return {name for identity, name in _first_names(module).items() if identity in known}


def _loaded_buffers(builder: Builder) -> frozenset[int]:
    """The buffers that a checkpoint of the module carries, whose values may therefore be others."""
    return frozenset(i for i, n in enumerate(builder.nodes) if n.op == "buffer" and n.get("persistent", True))


def _reads(builder: Builder, loss: int) -> bool:
    """True if the loss depends on an input."""
    reached = {loss}
    for index in reversed(range(loss + 1)):
        if index in reached:
            reached.update(builder.nodes[index].inputs)
    return any(builder.nodes[index].op == "input" for index in reached)


def _loss(builder: Builder, results: Sequence[Any], found: Objective) -> int:
    """The loss; results that are not a loss are projected and added up."""
    if not found.projected:
        (loss,) = results
        return loss if not builder.nodes[loss].shape else builder.add("view", int(loss), shape=(), name="loss")
    total: int | None = None
    for position, result in enumerate(results):
        term = builder.add("projection", int(result), shape=(), name="projection", site=position)
        total = term if total is None else builder.add("add", total, term, shape=(), name="loss")
    assert total is not None
    return total


def _aliases(module: nn.Module) -> list[tuple[str, str]]:
    """(alias, name of the node) of tied parameters and buffers."""
    first, kinds = _first_names(module), (module.named_parameters, module.named_buffers)
    state = [pair for tensors in kinds for pair in tensors(remove_duplicate=False)]
    return [(name, first[id(tensor)]) for name, tensor in state if first[id(tensor)] != name]

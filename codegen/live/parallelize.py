"""A live module trained by a plan in the user's own loop, on the ranks of a running job.

The emitted program does the work, as a module in memory. Here the parameters of the user's module become this rank's
parts of them, under their own names, and a call of the module runs the program.
"""

from __future__ import annotations

import itertools
import sys
import warnings
from dataclasses import replace
from types import ModuleType
from typing import NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ...model.capture.exporting import without_memory
from ...model.capture.held_tensors import all_buffers
from ...model.capture.objective import GIVEN, Loss
from ...model.errors import PartitaError
from ...model.graph.sparse_tables import sparse_tables
from ...model.machine.precision import precision
from ..plan.plan import Plan
from .arguments import Arguments
from .outputs import Form
from .parallel import Forward, Parallel
from .parts import Names

_numbers = itertools.count()


def parallelize(plan: Plan, module: nn.Module, *, local: bool = False, loss: Loss = None) -> Parallel:
    """Let this rank train its part of `module` by a plan; make the optimizer afterwards, over `module.parameters()`.

    In place: parameters hold this rank's parts (nothing of other pipeline stages), and `module(...)` returns what it
    returned, as far as the plan computes it: the loss over the whole batch, other tensors as None. Its gradients are
    those of the whole batch, so that `loss.backward(); optimizer.step()` with any elementwise optimizer is a step of
    the unsharded module. Batches are whole, or with `local` the samples that this rank reads (`Parallel.samples`).
    `loss` is needed where the plan was made with a function of the output, and has been loaded from a file since.
    Raises PartitaError for a module without values or with other parameters than planned, and for a plan that a loop
    cannot run: with stale weights, scaled losses, master copies of weights, or tables spread in pieces.
    """
    names = _names(plan)
    _check(plan)
    _check_module(plan, module, names)
    if loss is None and plan.module is not None:
        loss = plan.module.loss
    if loss is None and plan.model.get("loss") == GIVEN:
        raise PartitaError("the plan was made with a function of the output as its loss: give it again as `loss=`")
    if any(choice.sharded_states for part in plan.stages for choice in part.choices) and dist.get_rank() == 0:
        warnings.warn(
            "the plan shards optimizer states, which the loop's own optimizer does not: they take more memory",
            stacklevel=3,
        )
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    form = Form(without_memory(module, mode), mode, loss)
    inputs = [part.graph.nodes[i].name for part in plan.stages for i in part.graph.of("input")]
    example = plan.module and plan.module.inputs
    arguments = Arguments(type(module).__name__, module.forward, inputs, example)
    return Parallel(module, _program(_unsharded(plan)), arguments, form, local=local, names=names)


def _names(plan: Plan) -> Names:
    """The names of all planned tensors in the module, each with its first one."""
    graphs = [part.graph for part in plan.stages]
    nodes = [graph.nodes[i] for graph in graphs for op in ("parameter", "buffer") for i in graph.of(op)]
    found = {name: name for node in nodes for name in node.originals}
    return found | {alias: name for alias, name in plan.graph.aliases if name in found}


def _check_module(plan: Plan, module: nn.Module, names: Names) -> None:
    """Refuse a module that is not as planned, on all ranks alike and before it is changed."""
    if isinstance(module.forward, Forward):
        raise PartitaError(
            f"this {type(module).__name__} is parallelized already: load its whole_state() into a new one"
        )
    parameters = dict(module.named_parameters(remove_duplicate=False))
    known: dict[str, Tensor] = {**parameters, **all_buffers(module)}
    empty = next((name for name, tensor in known.items() if tensor.is_meta), None)
    if empty is not None:
        raise PartitaError(f"{empty!r} is on the meta device: give the module its values, or train the emitted program")
    _check_constants(plan, module)
    if lacking := sorted(names.keys() - known.keys()):
        raise PartitaError(f"{type(module).__name__} has no {lacking[0]}, which is planned: plan this module")
    graphs = [part.graph for part in plan.stages]
    trained = {
        name: n.gradient for g in graphs for i in g.of("parameter") for n in [g.nodes[i]] for name in n.originals
    }
    first: dict[int, str] = {}
    for name in names.keys() & parameters.keys():
        given, original = parameters[name], names[name]
        if given.requires_grad != trained.get(original, False):
            state = "trained" if trained.get(original) else "frozen"
            raise PartitaError(f"{name!r} is planned as {state}: plan the module as it is trained")
        if first.setdefault(id(given), original) != original:
            raise PartitaError(
                f"{name!r} and {first[id(given)]!r} are one parameter, but planned as two: plan this module"
            )


def _check_constants(plan: Plan, module: nn.Module) -> None:
    """Refuse a module with other values in a small buffer that no checkpoint has: the plan has them as constants."""
    buffers = dict(module.named_buffers(remove_duplicate=False))
    for node in (node for part in plan.stages for node in part.graph.nodes if node.op == "constant"):
        buffer = buffers.get(node.name)
        if buffer is None or buffer.numel() != len(node["values"]):
            continue
        planned = torch.tensor(node["values"], dtype=torch.float64)
        narrow = [torch.finfo(x).eps for x in (buffer.dtype, torch.float32) if buffer.is_floating_point()]
        if not torch.allclose(buffer.detach().flatten().cpu().double(), planned, rtol=4 * max(narrow, default=0.0)):
            raise PartitaError(f"{node.name!r} has other values than planned, where it is a constant: plan this module")


def _check(plan: Plan) -> None:
    if not dist.is_initialized():
        raise PartitaError("parallelize needs the ranks of a running job: call torch.distributed.init_process_group")
    if plan.schedule.double_buffered:
        raise PartitaError(
            f"schedule {plan.schedule.name!r} updates weights inside of a run: train the emitted program"
        )
    if plan.schedule.by_operators:
        raise PartitaError(
            f"schedule {plan.schedule.name!r}: its program runs operator by operator, which no module of a loop can: "
            "train the emitted program, or plan with schedule='1f1b'"
        )
    if plan.dtype == "mixed-float16" or precision(plan.dtype).copied:
        raise PartitaError(
            f"a plan in {plan.dtype} scales its loss or keeps master copies of weights in its own optimizer: train the "
            "emitted program, or plan in float32, mixed-bfloat16 or pure-bfloat16"
        )
    if any(part.graph.of("projection") for part in plan.stages):
        raise PartitaError("the plan trains a random projection, not a loss: plan a module that returns one, or loss=")
    sparse = [node for part in plan.stages for node in map(part.graph.nodes.__getitem__, sparse_tables(part.graph))]
    if any(len(node.originals) > 1 for node in sparse):
        raise PartitaError("joined tables with sparse gradients have no parameters of their own: use the program")
    if any(choice.at for part in plan.stages for choice in part.choices):
        raise PartitaError("the plan spreads columns of tables over ranks: train the emitted program")


def _unsharded(plan: Plan) -> Plan:
    """The plan with gradients and states as whole as the weights."""
    if plan.size > 1:
        return replace(plan, stages=tuple(map(_unsharded, plan.stages)))  # type: ignore[call-arg]
    whole = (replace(c, sharded_states=False, sharded_gradients=False, offloaded=False) for c in plan.choices)
    return replace(plan, choices=tuple(whole))


def _program(plan: Plan) -> ModuleType:
    """The emitted program, imported from memory; it raises PartitaError where a file would end.

    Buffers that a source lacks keep the values that the user's module has.
    """
    program = ModuleType(f"partita_live_{next(_numbers)}")
    program.__file__ = f"{program.__name__}.py"
    if plan.compile:  # which imports what it compiles
        sys.modules[program.__name__] = program
    exec(compile(plan.emit(), program.__file__, "exec"), program.__dict__)

    def refuse(why: str) -> NoReturn:
        raise PartitaError(why)

    program.__dict__.update(refuse=refuse, initialize=lambda model: None)
    return program

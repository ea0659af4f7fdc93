"""PyTorch's own parallelizations of a small model, each as a training step that does what an emitted one does.

The mean loss over the whole batch is returned, as a tensor; the gradient is clipped by its whole norm; AdamW with the
emitted defaults, in its fused form; no decay of weights with one dim; the same schedule of the learning rate.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ..codegen.emission.common.defaults import BETAS, CLIP_NORM, EPS, LEARNING_RATE, WEIGHT_DECAY, schedule
from ..model.zoo import gpt
from .step_models import StepModel

Step: TypeAlias = Callable[[int], Any]
"""One training step; its number gives the learning rate. Returns the mean loss over the whole batch."""

DDP, ZERO = "DDP", "DDP, ZeroRedundancyOptimizer"
RESHARD, KEEP = "fully_shard", "fully_shard, not resharded"
TENSOR = "parallelize_module"


def rival_step(name: str, model: StepModel, samples: int, compiled: bool = False) -> Step:
    """The step of one rank of the running job on the batch of the model; with `compiled` layers are compiled.

    ValueError: no rival has this name.
    """
    module = model.module()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if compiled:
        for layer in layers_of(module):
            layer.compile()
    if name in (DDP, ZERO):
        trained: nn.Module = DistributedDataParallel(module, gradient_as_bucket_view=True)
    elif name in (RESHARD, KEEP):
        for layer in layers_of(module):
            fully_shard(layer, mesh=mesh, reshard_after_forward=name == RESHARD)
        fully_shard(module, mesh=mesh)  # in place
        trained = module
    elif name == TENSOR:
        trained = _tensor_parallel(module, model, mesh)
    else:
        raise ValueError(f"no rival is named {name!r}")
    return _step(trained, model, samples, name)


def layers_of(module: nn.Module) -> Iterable[nn.Module]:
    """The layers of a model, or of an emitted one."""
    return module.get_submodule("layers").children()


def _tensor_parallel(module: nn.Module, model: StepModel, mesh: Any) -> nn.Module:
    """Matrices of layers split by columns, then by rows; each rank has some of the heads."""
    styles: dict[str, ParallelStyle] = {
        name: RowwiseParallel() if row.startswith("i") else ColwiseParallel() for name, row in model.split.items()
    }
    for attention in module.modules():
        if isinstance(attention, gpt.Attention):  # its rows are queries, keys and values: every rank needs some of each
            for part in (attention.qkv.weight, attention.qkv.bias):
                parts = part.data.view(3, mesh.size(), -1, *part.shape[1:])
                part.data = parts.transpose(0, 1).flatten(0, 2).contiguous()
            attention.heads //= mesh.size()
    return parallelize_module(module, mesh, styles)


def _step(trained: nn.Module, model: StepModel, samples: int, name: str) -> Step:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    batch = model.batch(samples)
    if name != TENSOR:
        share = samples // ranks
        batch = {key: x.narrow(0, rank * share, share) for key, x in batch.items()}
    weights = list(trained.parameters())
    optimizer = _optimizer(weights, name == ZERO)

    def step(number: int) -> Tensor:
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * schedule(number)
        optimizer.zero_grad()
        loss = trained(**batch)
        loss.backward()
        _clip(weights)
        optimizer.step()
        total: Tensor = loss.detach()
        if name != TENSOR:
            dist.all_reduce(total)
            total = total / ranks
        return total

    return step


def _optimizer(weights: Sequence[nn.Parameter], shared: bool) -> torch.optim.Optimizer:
    """Groups of weights that decay and of those that do not, distributed ones apart."""
    alike: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for weight in weights:
        alike.setdefault((weight.dim() > 1, isinstance(weight, DTensor)), []).append(weight)
    groups = [
        {"params": group, "weight_decay": WEIGHT_DECAY["adamw"] if decays else 0.0}
        for (decays, _), group in alike.items()
    ]
    options: dict[str, Any] = {"lr": LEARNING_RATE, "betas": BETAS, "eps": EPS, "fused": True}
    if shared:
        return ZeroRedundancyOptimizer(groups, torch.optim.AdamW, parameters_as_bucket_view=True, **options)
    return torch.optim.AdamW(groups, **options)


def _clip(weights: Iterable[nn.Parameter]) -> None:
    """Clip by the norm of the whole gradient, parts of which may be split over the ranks."""
    grads = {kind: [w for w in weights if isinstance(w, DTensor) is kind] for kind in (False, True)}
    norms = []
    for kind, alike in grads.items():
        if alike:
            norm = get_total_norm([w.grad for w in alike if w.grad is not None], foreach=True)
            norms.append(norm.full_tensor() if kind and isinstance(norm, DTensor) else norm)
    total = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    for alike in grads.values():
        if alike:
            clip_grads_with_norm_(alike, CLIP_NORM, total, foreach=True)

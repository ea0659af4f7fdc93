"""Batch norm: in training with statistics of the batch, in evaluation with constant buffers."""

import torch
from torch import nn

from ...errors import PartitaError
from ..translation import A, Index, Rule, T, Value


class _OneRank(nn.modules.batchnorm._BatchNorm):
    """A SyncBatchNorm on one rank."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        """Accept any number of dims."""


def stop_counting(module: nn.Module) -> None:
    """Stop batch norms from counting batches, an in-place addition that nothing depends on.

    Raises PartitaError for a cumulative average, which does depend on it.
    """
    for name, part in module.named_modules():
        if not isinstance(part, nn.modules.batchnorm._BatchNorm):
            continue
        if part.training and part.track_running_stats and part.momentum is None:
            raise PartitaError(
                f"{name or 'the module'!r} averages its running statistics over all batches (momentum=None), "
                "which is not supported; give it a momentum"
            )
        if isinstance(part, nn.SyncBatchNorm):
            part.__class__ = _OneRank  # type: ignore[assignment]
        part.num_batches_tracked = None


def _batch_norm(t: T, a: A) -> Value:
    if not a["training"]:
        return _frozen(t, a)
    operands = {"mean": a.get("running_mean"), "var": a.get("running_var"), "w": a["weight"], "bias": a["bias"]}
    given = {name: x for name, x in operands.items() if x is not None}
    if any(t.at(x).op != "buffer" for name, x in given.items() if name in ("mean", "var")):
        raise t.refusal("a batch norm whose running statistics are not buffers of the module")
    x, site, like = a["input"], t.norms, a.get("like", t.like)
    t.norms += 1
    rest: A = {"like": like, "momentum": a["momentum"], "eps": a["eps"], "site": site}
    if t.statistics == "local":
        return t.add("local_batch_norm", x, *given.values(), operands=("x", *given), **rest)
    sums = t.add("moments", x, shape=(2, t.shape(x)[1]), statistics=t.statistics, site=site)
    return t.add("batch_norm", x, sums, *given.values(), operands=("x", "s", *given), **rest)


def _frozen(t: T, a: A) -> Index:
    """x times a factor plus a shift per channel, both computed from the buffers."""
    x, mean, variance, weight, bias = (a[k] for k in ("input", "running_mean", "running_var", "weight", "bias"))
    shape = t.shape(mean)
    factor = t.add("rsqrt", t.add("shift", variance, shape=shape, value=a["eps"]), shape=shape)
    factor = factor if weight is None else t.add("mul", factor, weight, shape=shape)
    shift = t.add("neg", t.add("mul", mean, factor, shape=shape), shape=shape)
    shift = shift if bias is None else t.add("add", bias, shift, shape=shape)
    sizes = (*shape, *[1] * (len(t.shape(x)) - 2))
    scaled = t.add("mul", x, t.view(factor, sizes), shape=t.shape(x))
    return t.add("add", scaled, t.view(shift, sizes), shape=t.shape(x))


def _functional(t: T, a: A) -> Value:
    """The functional form, in graphs with other in-place changes: it returns the buffers that it was given."""
    y = _batch_norm(t, a | {"like": t.like[0]})
    return [y, None, None, a.get("running_mean"), a.get("running_var")]


def _native(t: T, a: A) -> Value:
    """A kernel that writes its running statistics, without its schema saying so; without the statistics it returns."""
    training = a.get("training", True)
    if training and a["running_mean"] is not None:
        raise t.refusal("a kernel of batch norms that writes its running statistics unseen", "call F.batch_norm")
    return [_batch_norm(t, a | {"like": t.like[0], "training": training}), *[None] * (len(t.like) - 1)]


TABLE: dict[str, Rule] = {
    **dict.fromkeys(["native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_batch_norm_with_update"], _native),
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit_functional": _functional,
    "_native_batch_norm_legit": _functional,
    "_native_batch_norm_legit_no_training": lambda t, a: _functional(t, a | {"training": False}),
}

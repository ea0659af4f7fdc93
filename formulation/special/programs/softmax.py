"""Softmax over a split dim."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, name-defined"
# ruff: noqa: F821  the emitted program defines the rest

import torch
import torch.distributed as dist

# --- copied from here ---


class Softmax(torch.autograd.Function):
    """Softmax or log-softmax over a split dim. Keeps the result."""

    @staticmethod
    def forward(ctx, x, dim, axis, logarithm):
        largest = x.amax(dim, keepdim=True).to(torch.promote_types(x.dtype, torch.float32)).contiguous()
        dist.all_reduce(largest, op=dist.ReduceOp.MAX, group=axis.group)
        y = x - largest
        if logarithm:
            y -= all_reduce(y.exp().sum(dim, keepdim=True), axis).log()
        else:
            y = y.exp_()
            y /= all_reduce(y.sum(dim, keepdim=True), axis)
        ctx.dim, ctx.axis, ctx.logarithm, y = dim, axis, logarithm, y.to(x.dtype)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        wide = torch.promote_types(y.dtype, torch.float32)
        y, of_x = (y.to(wide).exp(), grad.to(wide)) if ctx.logarithm else (y.to(wide), grad.to(wide) * y)
        of_x = of_x - y * all_reduce(of_x.sum(ctx.dim, keepdim=True), ctx.axis)
        return of_x.to(grad.dtype), None, None, None


def sharded_softmax(x, dim, axis, logarithm=False):
    """Softmax or log-softmax over `dim`, which is split."""
    return Softmax.apply(x, dim, axis, logarithm)

"""Normalizations over split dims."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, name-defined"
# ruff: noqa: F821  the emitted program defines the rest

import math

import torch

# --- copied from here ---


class Normalize(torch.autograd.Function):
    """(x - mean) / deviation * w + bias over split `dims` with `count` values on all ranks of the axes.

    One all-reduce sums the statistics: the mean and the mean of squares, in float64, since their difference counts.
    Unless `centred`, only the root of the mean square. Keeps x and the statistics.
    """

    @staticmethod
    def forward(ctx, x, w, bias, dims, over, form):
        (count, axes), (eps, centred) = over, form
        y = x.to(torch.promote_types(x.dtype, torch.float32))
        share, mean = math.prod([x.shape[d] for d in dims]) / count, torch.zeros((), dtype=y.dtype, device=x.device)
        if centred:
            variance, mean = (t.double() for t in torch.var_mean(y, dims, correction=0, keepdim=True))
            mean, square = add_over(torch.stack((mean, variance + mean.square())) * share, axes)
            variance = (square - mean.square()).clamp(min=0)
        else:
            variance = add_over(y.square().mean(dims, keepdim=True) * share, axes)
        mean, scale = mean.to(y.dtype), (variance + eps).rsqrt().to(y.dtype)
        ctx.save_for_backward(x, w, bias, mean, scale)
        ctx.dims, ctx.count, ctx.axes, ctx.centred = dims, count, axes, centred
        y = (y - mean).mul_(scale)
        y = y if w is None else y.mul_(w)
        return (y if bias is None else y.add_(bias)).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        x, w, bias, mean, scale = ctx.saved_tensors
        grad = grad.to(scale.dtype)
        y = (x.to(scale.dtype) - mean).mul_(scale)
        of_w = None if w is None else (grad * y).sum_to_size(w.shape).to(w.dtype)
        of_bias = None if bias is None else grad.sum_to_size(bias.shape).to(bias.dtype)
        grad = grad if w is None else grad * w
        sums = [(grad * y).sum(ctx.dims, keepdim=True), *([grad.sum(ctx.dims, keepdim=True)] if ctx.centred else [])]
        slope, *offset = add_over(torch.stack(sums) / ctx.count, ctx.axes)
        of_x = grad - y.mul_(slope)
        of_x = (of_x.sub_(offset[0]) if offset else of_x).mul_(scale)
        return of_x.to(x.dtype), of_w, of_bias, None, None, None


def add_over(x, axes):
    """The sum over the ranks of several axes."""
    for axis in axes:
        x = all_reduce(x, axis)
    return x


def normalize(x, normalized, count, axes, eps, w=None, bias=None, centred=True):
    """Layer norm (`centred`) or RMS norm over the last `normalized` dims, of `count` values on all ranks."""
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return Normalize.apply(x, w, bias, tuple(range(-normalized, 0)), (count, axes), (eps, centred))


def normalize_groups(x, channels, count, axes, eps, w=None, bias=None):
    """Group norm over space and groups of `channels` of this rank's channels (-1: all), of `count` values."""
    groups = (1, -1) if channels < 0 else (-1, channels)
    x = x.unflatten(1, groups)
    w, bias = (t if t is None else t.view(*groups, *[1] * (x.dim() - 3)) for t in (w, bias))
    return Normalize.apply(x, w, bias, tuple(range(2, x.dim())), (count, axes), (eps, True)).flatten(1, 2)

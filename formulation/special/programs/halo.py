"""Halo exchange: rows of other ranks' parts, for windows that slide along a split dim."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, no-any-return, name-defined"

import torch
import torch.distributed as dist

# --- copied from here ---


def rows_by_rank(size, axis):
    """Start and stop of every rank's part of `size` rows."""
    step = -(-size // axis.size)
    return [(rank * step, min(size, (rank + 1) * step)) for rank in range(axis.size)]


def overlap(one, other):
    """Start and length of the intersection of two ranges."""
    start = min(max(one[0], other[0]), one[1])
    return start, max(0, min(one[1], other[1]) - start)


def fetch_rows(x, dim, axis, have, want):
    """The rows that this rank wants, from the ranks that have them; `have` and `want` are the ranges of all ranks."""
    mine, row = have[axis.index], x.numel() // x.shape[dim]
    sent = [x.narrow(dim, start - mine[0], length) for start, length in (overlap(mine, other) for other in want)]
    counts = [row * overlap(other, want[axis.index])[1] for other in have]
    kept, sent[axis.index], counts[axis.index] = sent[axis.index], x.narrow(dim, 0, 0), 0
    received = x.new_empty(sum(counts))
    flat = torch.cat([rows.flatten() for rows in sent])
    dist.all_to_all_single(received, flat, counts, [rows.numel() for rows in sent], group=axis.group)
    rows = [part.view(*x.shape[:dim], -1, *x.shape[dim + 1 :]) for part in received.split(counts)]
    rows[axis.index] = kept
    return rows


class Halo(torch.autograd.Function):
    """The rows along `dim` that this rank wants; rows outside the whole tensor are `value`.

    Gradients go back to the rank that has the row, and are added up there.
    """

    @staticmethod
    def forward(ctx, x, dim, axis, have, want, value):
        ctx.dim, ctx.axis, ctx.have, ctx.want = dim, axis, have, want
        start, stop = want[axis.index]
        size = have[-1][1]

        def beyond(length):
            return x.new_full((*x.shape[:dim], max(0, length), *x.shape[dim + 1 :]), value)

        before, after = beyond(min(stop, 0) - start), beyond(stop - max(start, size))
        return torch.cat((before, *fetch_rows(x, dim, axis, have, want), after), dim)

    @staticmethod
    def backward(ctx, grad):
        dim, mine = ctx.dim, ctx.have[ctx.axis.index]
        total = grad.new_zeros(*grad.shape[:dim], mine[1] - mine[0], *grad.shape[dim + 1 :])
        for rows, want in zip(fetch_rows(grad, dim, ctx.axis, ctx.want, ctx.have), ctx.want, strict=True):
            start, length = overlap(mine, want)
            total.narrow(dim, start - mine[0], length).add_(rows)
        return total, None, None, None, None, None


def halo(x, dim, axis, sizes, reach, step=1, per=1, value=0.0):
    """The rows along `dim` that this rank's part of the output reads; `sizes`: rows of the whole input and output.

    With `reach` (first, last), row i of the output reads rows (step * i + first) // per to (step * i + last) // per.
    Rows beyond the input are `value`, or left out if that is None.
    """
    (size, made), (first, last) = sizes, reach
    want = [
        ((step * start + first) // per, (step * (stop - 1) + last) // per + 1)
        for start, stop in rows_by_rank(made, axis)
    ]
    if value is None:
        want = [(max(start, 0), min(stop, size)) for start, stop in want]
    return Halo.apply(x, dim, axis, rows_by_rank(size, axis), want, 0.0 if value is None else value)


def crop(y, dim, axis, size, per, first, shift=0):
    """This rank's part of `size` rows of an output computed on the rows of `halo`: `per` rows each, less `shift`."""
    start, length = axis.part(size)
    return y.narrow(dim, start + shift - per * max((start + first) // per, 0), length)

"""Look-ups in a table whose rows are split, on the ranks that have them."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, no-any-return"

import torch
import torch.distributed as dist
import torch.nn.functional as F

# --- copied from here ---


def exchange_rows(x, sent, received, axis):
    """Send `sent[r]` rows of `x` to each rank r, in order, and receive `received[r]` from it."""
    rows = x.new_empty(sum(received), *x.shape[1:])
    dist.all_to_all_single(rows, x.contiguous(), received, sent, group=axis.group)
    return rows


class RowsBack(torch.autograd.Function):
    """Sends rows to the ranks that requested them, and their gradients back."""

    @staticmethod
    def forward(ctx, x, sent, received, axis):
        ctx.reverse = received, sent, axis
        return exchange_rows(x, sent, received, axis)

    @staticmethod
    def backward(ctx, grad):
        return exchange_rows(grad, *ctx.reverse), None, None, None


def owned_rows(ids, table, axis, rows, sparse=False, dtype=None):
    """Look up this rank's ids in a table of `rows` rows, on the ranks that have them."""
    share = -(-rows // axis.size)
    owner = ids.flatten() // share
    order = owner.argsort(stable=True)
    counts = torch.bincount(owner, minlength=axis.size)
    requested = torch.empty_like(counts)
    dist.all_to_all_single(requested, counts, group=axis.group)
    sent, received = torch.stack((counts, requested)).tolist()
    wanted = exchange_rows(ids.flatten()[order], sent, received, axis)
    found = F.embedding(wanted - axis.index * share, table, sparse=sparse).to(dtype or table.dtype)
    mine = RowsBack.apply(found, received, sent, axis)
    return mine.new_empty(mine.shape).index_copy(0, order, mine).unflatten(0, ids.shape)


def owned_bags(ids, weights, table, axis, rows, sparse=False, dtype=None):
    """Sums of such rows over bags of ids, weighted if there are weights."""
    found = owned_rows(ids, table, axis, rows, sparse, dtype)
    return found.sum(1) if weights is None else (found * weights.unsqueeze(-1)).sum(1)

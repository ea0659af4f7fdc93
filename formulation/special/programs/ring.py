"""Ring attention: keys and values pass from rank to rank."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F

# --- copied from here ---


def ring_send(x, axis):
    """Start sending `x` to the next rank: the tensor arriving from the previous one, and handles to wait for."""
    arriving = torch.empty_like(x)
    after, before = (dist.get_global_rank(axis.group, (axis.index + i) % axis.size) for i in (1, -1))
    messages = [dist.P2POp(dist.isend, x, after, axis.group), dist.P2POp(dist.irecv, arriving, before, axis.group)]
    return arriving, dist.batch_isend_irecv(messages)


def ring_receive(message):
    arriving, works = message
    for work in works:
        work.wait()
    return arriving


def ring_blocks(k, v, axis, keys):
    """(first key, block of keys beside values) of every rank, this one's first; the next block arrives meanwhile."""
    block = torch.cat((k, v), -1).reshape(-1, k.shape[-2], k.shape[-1] + v.shape[-1])
    block = F.pad(block, [0, 0, 0, -(-keys // axis.size) - k.shape[-2]])  # messages of equal size
    for i in range(axis.size):
        first = (axis.index - i) % axis.size * block.shape[1]
        coming = ring_send(block, axis) if i + 1 < axis.size else None
        yield first, block[:, : keys - first]
        block = ring_receive(coming) if coming else block


def ring_scores(q, k, first, start, repeat, causal, most=2**24):
    """(rows, number of keys that they attend to, scores) for chunks of the rows of queries, of `most` scores each.

    Keys have positions from `first` on, queries from `start` on, each position `repeat` times.
    """
    step = max(1, most // (len(q) * k.shape[1]))
    for i in range(0, q.shape[1], step):
        rows = slice(i, min(i + step, q.shape[1]))
        last = start + (rows.stop - 1) // repeat
        count = min(k.shape[1], last + 1 - first) if causal else k.shape[1]
        if count < 1:
            continue
        scores = q[:, rows] @ k[:, :count].mT
        if causal and first + count - 1 > start + i // repeat:
            places = start + torch.arange(i, rows.stop, device=q.device) // repeat
            hidden = torch.arange(first, first + count, device=q.device) > places[:, None]
            scores.masked_fill_(hidden, -math.inf)
        yield rows, count, scores


def ring_rows(x, repeat):
    """Queries of heads that share keys as rows of one matrix: [.., heads * repeat, s, d] as [heads, s * repeat, d]."""
    return x.reshape(-1, repeat, *x.shape[-2:]).transpose(1, 2).flatten(1, 2)


def ring_heads(x, repeat, shape):
    """The inverse of `ring_rows`."""
    return x.unflatten(1, (-1, repeat)).transpose(1, 2).reshape(shape)


class RingAttention(torch.autograd.Function):
    """Attention of this rank's queries; keys, values and their gradients pass round the ring (Liu et al., 2023).

    A rank keeps its own part of all tensors, and the logarithm of each query's sum of exponentials.
    """

    @staticmethod
    def forward(ctx, q, k, v, axis, lengths, form):
        (queries, keys), (causal, scale) = lengths, form
        repeat = q.shape[:-2].numel() // k.shape[:-2].numel()
        ctx.axis, ctx.keys, ctx.scale, ctx.place = axis, keys, scale, (axis.part(queries)[0], repeat, causal)
        rows, width, wide = ring_rows(q * scale, repeat), q.shape[-1], torch.promote_types(q.dtype, torch.float32)
        y = rows.new_zeros(*rows.shape[:2], v.shape[-1], dtype=wide)
        total = y.new_zeros(*y.shape[:2], 1)
        top = torch.full_like(total, torch.finfo(wide).min)
        for first, block in ring_blocks(k, v, axis, keys):
            for i, count, scores in ring_scores(rows, block[..., :width], first, *ctx.place):
                largest = torch.maximum(top[:, i], scores.amax(-1, keepdim=True))
                fade = (top[:, i] - largest).exp()
                weights = (scores - largest).exp_()  # float32 at least
                total[:, i] = total[:, i] * fade + weights.sum(-1, keepdim=True)
                y[:, i] = y[:, i] * fade + weights.to(v.dtype) @ block[:, :count, width:]
                top[:, i] = largest
        y = ring_heads((y / total).to(q.dtype), repeat, (*q.shape[:-1], v.shape[-1]))
        if y.dim() > 3:  # heads inside positions, as in PyTorch: joining them is a view, so y is kept once
            y = y.transpose(-3, -2).contiguous().transpose(-3, -2)
        ctx.save_for_backward(q, k, v, y, top + total.log())
        return y

    @staticmethod
    def backward(ctx, grad):
        q, k, v, y, logarithm = ctx.saved_tensors
        repeat, width, wide = ctx.place[1], q.shape[-1], logarithm.dtype
        rows, grads = ring_rows(q * ctx.scale, repeat), ring_rows(grad, repeat)
        inner = ring_rows((grad.to(wide) * y).sum(-1, keepdim=True), repeat)
        of_rows = torch.zeros_like(rows, dtype=wide)
        mine = moving = None  # gradients of keys beside values: of this rank's own, and of the block that is here
        for first, block in ring_blocks(k, v, ctx.axis, ctx.keys):
            size = -(-ctx.keys // ctx.axis.size)
            change = block.new_zeros(len(block), size, block.shape[-1], dtype=wide)
            for i, count, scores in ring_scores(rows, block[..., :width], first, *ctx.place):
                weights = (scores - logarithm[:, i]).exp_()
                change[:, :count, width:] += weights.to(q.dtype).mT @ grads[:, i]
                weights = weights.mul_(grads[:, i] @ block[:, :count, width:].mT - inner[:, i]).to(q.dtype)
                change[:, :count, :width] += weights.mT @ rows[:, i]
                of_rows[:, i] += weights @ block[:, :count, :width]
            if mine is None:
                mine = change
            else:
                moving = ring_send(change if moving is None else change + ring_receive(moving), ctx.axis)
        of_keys, of_values = (mine + ring_receive(moving))[:, : k.shape[-2]].to(k.dtype).split((width, v.shape[-1]), -1)
        of_queries = ring_heads((of_rows * ctx.scale).to(q.dtype), repeat, q.shape)
        return of_queries, of_keys.reshape(k.shape), of_values.reshape(v.shape), None, None, None


def ring_attention(q, k, v, axis, queries, keys, causal=False, scale=None):
    """Attention of `queries` queries to `keys` keys in all, both split over the ranks."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    return RingAttention.apply(q, k, v, axis, (queries, keys), (causal, scale))

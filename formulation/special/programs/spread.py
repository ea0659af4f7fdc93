"""Look-ups in tables that are spread over an axis."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, no-any-return"

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F

# --- copied from here ---


class Spread:
    """Tables of one width, spread over an axis: every coordinate has some columns.

    `tables`: name -> rows. `pieces`: for each coordinate (table, first column, column after the last). Pieces consist
    of units of equal width; this rank's part of the weight has its units one below the other.
    """

    def __init__(self, tables, width, pieces, axis):
        self.tables, self.width, self.axis = tables, width, axis
        self.unit = math.gcd(width, *(column for own in pieces for _, *columns in own for column in columns))
        self.columns = [sum(stop - start for _, start, stop in own) for own in pieces]
        names, firsts = list(tables), dict(zip(tables, before(tables.values()), strict=True))
        own = [(name, column) for name, a, b in pieces[axis.index] for column in range(a, b, self.unit)]
        places = before(tables[name] for name, _ in own)
        self.units = [(name, column, place) for (name, column), place in zip(own, places, strict=True)]
        self.rows = sum(tables[name] for name, _ in own)
        self.numbers = [names.index(name) for name, _ in own]
        # Ids count from the first row of the first table.
        self.offsets = [place - firsts[name] for name, _, place in self.units]
        # All pieces in the order of the tables: coordinate, and the range among its columns.
        found = []
        for coordinate, own in enumerate(pieces):
            for (name, start, stop), place in zip(own, before(stop - start for _, start, stop in own), strict=True):
                found.append((names.index(name), start, coordinate, place, place + stop - start))
        self.pieces = [piece[2:] for piece in sorted(found)]

    def shares(self, samples):
        """The number of samples of each coordinate after the exchange."""
        share = -(-samples // self.axis.size)
        return [max(0, min(share, samples - index * share)) for index in range(self.axis.size)]

    def of_ranks(self, flat, samples):
        """A flat tensor as one part [samples, columns] for each coordinate."""
        parts = flat.split([samples * columns for columns in self.columns])
        return [part.view(samples, columns) for part, columns in zip(parts, self.columns, strict=True)]


def before(counts):
    """The sum of the counts before each."""
    total, sums = 0, []
    for count in counts:
        sums.append(total)
        total += count
    return sums


class ToSamples(torch.autograd.Function):
    """From all samples with this rank's columns to its own samples with all columns: one all-to-all each way."""

    @staticmethod
    def forward(ctx, x, spread):
        shares, columns = spread.shares(len(x)), x.shape[1]
        own = shares[spread.axis.index]
        received = x.new_empty(own * sum(spread.columns))
        sizes = [own * count for count in spread.columns], [share * columns for share in shares]
        dist.all_to_all_single(received, x.flatten(), *sizes, group=spread.axis.group)
        parts = spread.of_ranks(received, own)
        ctx.spread, ctx.shape, ctx.sizes = spread, x.shape, sizes
        return torch.cat([parts[coordinate][:, start:stop] for coordinate, start, stop in spread.pieces], 1)

    @staticmethod
    def backward(ctx, grad):
        spread, (received, sent) = ctx.spread, ctx.sizes
        flat = grad.new_empty(sum(received))
        parts = spread.of_ranks(flat, len(grad))
        pieces = grad.split([stop - start for _, start, stop in spread.pieces], 1)
        for (coordinate, start, stop), piece in zip(spread.pieces, pieces, strict=True):
            parts[coordinate][:, start:stop] = piece
        back = grad.new_empty(sum(sent))
        dist.all_to_all_single(back, flat, sent, received, group=spread.axis.group)
        return back.view(ctx.shape), None


def unit_ids(ids, spread):
    """Rows of this rank's part of the weight, [samples, units, ...], for ids [samples, tables, ...]."""
    numbers = torch.tensor(spread.numbers, device=ids.device)
    offsets = torch.tensor(spread.offsets, device=ids.device)
    return ids.index_select(1, numbers) + offsets.view(-1, *[1] * (ids.dim() - 2))


def spread_rows(ids, table, sparse=False, dtype=None):
    """Look up ids [samples, tables] of all samples in this rank's columns, and get its own samples with all columns."""
    spread = table.spread
    found = F.embedding(unit_ids(ids, spread), table, sparse=sparse).to(dtype or table.dtype)
    return ToSamples.apply(found.flatten(1), spread).unflatten(1, (-1, spread.width))


def spread_bags(ids, table, sparse=False, dtype=None):
    """Sums of rows of spread tables over bags of ids, [samples * tables, bag]."""
    spread, samples = table.spread, len(ids) // len(table.spread.tables)
    own = unit_ids(ids.unflatten(0, (samples, -1)), spread)
    found = F.embedding_bag(own.flatten(0, 1), table, mode="sum", sparse=sparse).to(dtype or table.dtype)
    return ToSamples.apply(found.view(samples, -1), spread).view(-1, spread.width)

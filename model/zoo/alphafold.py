"""AlphaFold 2's evoformer with recycling (Jumper et al., Nature'21, supplement 1.6 to 1.10).

Sizes are those of SuperScaler's table 2 for 128 sequences of 256 residues. Its hidden size and heads are those of the
alignment (MSA). The pair representation is 128 wide for the smallest, as in AlphaFold, and 512, 384 and 384 for the
others, its heads are 32 wide, and the outer product takes 32 channels in the smallest and 64 in the others: that is
88 M, 0.95, 2.4 and 3.2 billion parameters. Projections of the same input are one matrix. As in SuperScaler's model
there is no structure module, template, extra alignment or dropout; outputs are masked residues and distances.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .entry import Entry, Input, superscaler

RESIDUES = 23
"""Kinds of an entry of an alignment: 20 amino acids, unknown, gap, masked."""

BINS = 64
"""Distances between two residues are predicted in as many bins."""

REACH = 32
"""Offsets along the chain beyond this count as this."""


class Attention(nn.Module):
    """Gated attention along the last dim but one of [batch, line, place, channel]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkvg = nn.Linear(width, 4 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """`bias` is [batch, place, place, heads], the same for every line."""
        q, k, v, gate = self.qkvg(x).unflatten(-1, (4, self.heads, -1)).permute(3, 0, 1, 4, 2, 5)
        mask = None if bias is None else bias.permute(0, 3, 1, 2)[:, None]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask) * gate.sigmoid()
        result: Tensor = self.output(y.transpose(2, 3).flatten(-2))
        return result


class RowAttention(nn.Module):
    """Algorithm 7: the residues of a sequence look at each other, with a bias from the pairs."""

    def __init__(self, width: int, heads: int, pair_width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Sequential(nn.LayerNorm(pair_width), nn.Linear(pair_width, heads, bias=False))
        self.attention = Attention(width, heads)

    def forward(self, m: Tensor, z: Tensor) -> Tensor:
        result: Tensor = self.attention(self.norm(m), self.bias(z))
        return result


class ColumnAttention(nn.Module):
    """Algorithm 8: the entries of all sequences for one residue look at each other."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads)

    def forward(self, m: Tensor) -> Tensor:
        result: Tensor = self.attention(self.norm(m).transpose(1, 2)).transpose(1, 2)
        return result


class TriangleAttention(nn.Module):
    """Algorithms 13 and 14: edges that start (or, transposed, end) at one residue look at each other."""

    def __init__(self, width: int, heads: int, ending: bool) -> None:
        super().__init__()
        self.ending = ending
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Linear(width, heads, bias=False)
        self.attention = Attention(width, heads)

    def forward(self, z: Tensor) -> Tensor:
        z = self.norm(z)
        z = z.transpose(1, 2) if self.ending else z
        y: Tensor = self.attention(z, self.bias(z))
        return y.transpose(1, 2) if self.ending else y


class TriangleProduct(nn.Module):
    """Algorithms 11 and 12: an edge from the two others of every triangle, both outgoing or both incoming."""

    def __init__(self, width: int, incoming: bool) -> None:
        super().__init__()
        self.equation = "bkic,bkjc->bijc" if incoming else "bikc,bjkc->bijc"
        self.norm = nn.LayerNorm(width)
        self.edges = nn.Linear(width, 4 * width)
        self.product_norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)

    def forward(self, z: Tensor) -> Tensor:
        z = self.norm(z)
        edges, gates = self.edges(z).chunk(2, -1)
        a, b = (edges * gates.sigmoid()).chunk(2, -1)
        y = self.output(self.product_norm(torch.einsum(self.equation, a, b)))
        result: Tensor = y * self.gate(z).sigmoid()
        return result


class OuterProduct(nn.Module):
    """Algorithm 10: products of every two columns of the alignment, averaged over its sequences."""

    def __init__(self, width: int, inner: int, pair_width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.columns = nn.Linear(width, 2 * inner)
        self.output = nn.Linear(inner * inner, pair_width)

    def forward(self, m: Tensor) -> Tensor:
        a, b = self.columns(self.norm(m)).chunk(2, -1)
        y = torch.einsum("bsic,bsjd->bijcd", a, b / m.shape[1])
        result: Tensor = self.output(y.flatten(-2))
        return result


class Transition(nn.Module):
    """Algorithms 9 and 15: a perceptron, four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(F.relu(self.up(self.norm(x))))
        return result


class Evoformer(nn.Module):
    """One block of algorithm 6.

    Alignment m [batch, sequence, residue, channel], pairs z [batch, residue, residue, channel].
    """

    def __init__(self, width: int, heads: int, pair_width: int, pair_heads: int, outer: int) -> None:
        super().__init__()
        self.rows = RowAttention(width, heads, pair_width)
        self.columns = ColumnAttention(width, heads)
        self.transition = Transition(width)
        self.outer = OuterProduct(width, outer, pair_width)
        self.outgoing = TriangleProduct(pair_width, incoming=False)
        self.incoming = TriangleProduct(pair_width, incoming=True)
        self.starting = TriangleAttention(pair_width, pair_heads, ending=False)
        self.ending = TriangleAttention(pair_width, pair_heads, ending=True)
        self.pair_transition = Transition(pair_width)

    def forward(self, m: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        m = m + self.rows(m, z)
        m = m + self.columns(m)
        m = m + self.transition(m)
        z = z + self.outer(m)
        z = z + self.outgoing(z)
        z = z + self.incoming(z)
        z = z + self.starting(z)
        z = z + self.ending(z)
        return m, z + self.pair_transition(z)


class Embedder(nn.Module):
    """Algorithms 3 and 4: alignment and pairs from the entries; the first sequence is the target."""

    offsets: Tensor

    def __init__(self, residues: int, width: int, pair_width: int) -> None:
        super().__init__()
        self.entry = nn.Embedding(RESIDUES, width)
        self.target = nn.Embedding(RESIDUES, width)
        self.left = nn.Embedding(RESIDUES, pair_width)
        self.right = nn.Embedding(RESIDUES, pair_width)
        self.offset = nn.Embedding(2 * REACH + 1, pair_width)
        place = torch.arange(residues)
        offsets = (place[:, None] - place).clamp(-REACH, REACH) + REACH
        self.register_buffer("offsets", offsets, persistent=False)

    def forward(self, alignment: Tensor) -> tuple[Tensor, Tensor]:
        target = alignment[:, 0]
        m = self.entry(alignment) + self.target(target)[:, None]
        z = self.left(target)[:, :, None] + self.right(target)[:, None] + self.offset(self.offsets)
        return m, z


class AlphaFold(nn.Module):
    """Masked residues and distances, after `passes` of the same blocks; only the last pass has a gradient.

    A pass hands on the first row of the alignment and the pairs, which are normalized and added to the embedding
    (algorithms 2 and 32); the first pass gets zeros.
    """

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        pair_width: int,
        pair_heads: int,
        outer: int,
        residues: int,
        passes: int = 3,
    ) -> None:
        super().__init__()
        self.passes = passes
        self.embedder = Embedder(residues, width, pair_width)
        self.row_norm = nn.LayerNorm(width)
        self.pair_norm = nn.LayerNorm(pair_width)
        self.layers = nn.ModuleList(Evoformer(width, heads, pair_width, pair_heads, outer) for _ in range(layers))
        self.masked_scores = nn.Linear(width, RESIDUES)
        self.distance_scores = nn.Linear(pair_width, BINS)

    def forward(self, alignment: Tensor, masked: Tensor, distances: Tensor) -> Tensor:
        """[batch, sequence, residue] twice and [batch, residue, residue]; `masked` is -100 where nothing is masked."""
        m0, z0 = self.embedder(alignment)
        m, z = torch.zeros_like(m0), torch.zeros_like(z0)
        for i in range(self.passes):
            with torch.set_grad_enabled(i == self.passes - 1):
                m, z = self.recycle(m0, z0, m[:, 0], z)
                for layer in self.layers:
                    m, z = layer(m, z)
        masked_loss = F.cross_entropy(self.masked_scores(m).flatten(0, 2), masked.flatten())
        scores = self.distance_scores(z)
        scores = scores + scores.transpose(1, 2)
        return 2.0 * masked_loss + 0.3 * F.cross_entropy(scores.flatten(0, 2), distances.flatten())

    def recycle(self, m: Tensor, z: Tensor, row: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """The embedding (m, z) with what the pass before found."""
        first = m[:, :1] + self.row_norm(row)[:, None]
        return torch.cat((first, m[:, 1:]), 1), z + self.pair_norm(pairs)


SIZES = ("layers", "width", "heads", "pair_width", "pair_heads", "outer", "sequences", "residues")


def _alphafold(layers: int, width: int, heads: int, pair_width: int, outer: int, nodes: int) -> Entry:
    return superscaler(
        AlphaFold,
        dict(zip(SIZES, (layers, width, heads, pair_width, pair_width // 32, outer, 128, 256), strict=True)),
        dict(zip(SIZES, (2, 24, 6, 16, 4, 4, 6, 8), strict=True)),
        {
            "alignment": Input(("sequences", "residues"), integer=True),
            "masked": Input(("sequences", "residues"), integer=True),
            "distances": Input(("residues", "residues"), integer=True),
        },
        batch=128,
        nodes=nodes,
    )


ENTRIES = {
    "alphafold2-87m": _alphafold(48, 256, 8, 128, 32, 1),
    "alphafold2-930m": _alphafold(64, 512, 16, 512, 64, 1),
    "alphafold2-2.4b": _alphafold(96, 1024, 32, 384, 64, 2),
    "alphafold2-3.2b": _alphafold(128, 1024, 32, 384, 64, 4),
}

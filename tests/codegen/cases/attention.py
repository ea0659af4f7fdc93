"""Attention: causal or not, with masks, and with fewer keys than queries."""

from partita.model.graph.builder import Builder

from .build import BATCH, Build, Cases, leaf, weight


def attention(causal: bool, mask: tuple[int, ...] = (), heads: int = 2, groups: int = 2) -> Build:
    """`heads` query heads and `groups` key heads of 5 positions; the mask is learned and added to the scores."""

    def build(b: Builder) -> int:
        shape = (BATCH, heads, 5, 4)
        given = [leaf(b, *shape), *(leaf(b, BATCH, groups, 5, 4) for _ in "kv"), *([weight(b, *mask)] if mask else [])]
        grouped = {"grouped": True} if groups != heads else {}
        return b.add("attention", *given, shape=shape, causal=causal, scale=None, **grouped)

    return build


def boolean_mask(b: Builder) -> int:
    """Which keys a sample has."""
    shape = (BATCH, 2, 5, 4)
    mask = b.add(
        "compare", b.input("t", (BATCH, 1, 1, 5)), shape=(BATCH, 1, 1, 5), dtype="bool", relation="lt", value=1.5
    )
    return b.add("attention", *(leaf(b, *shape) for _ in "qkv"), mask, shape=shape, causal=False, scale=0.4)


CASES: Cases = {
    "attention": (
        attention(causal=False),
        attention(causal=True),
        attention(causal=False, mask=(5, 5)),
        attention(causal=True, heads=6, groups=2),
        attention(causal=False, mask=(4, 5, 5), heads=4, groups=2),
        attention(causal=False, mask=(BATCH, 1, 5, 5), heads=4, groups=1),
        boolean_mask,
    ),
}

"""Operators that move elements without computing."""

from partita.model.graph.builder import Builder

from .build import BATCH, Build, Cases, leaf, unary, weight


def view(before: tuple[int, ...], after: tuple[int, ...]) -> Build:
    return lambda b: b.add("view", leaf(b, *before), shape=after)


def part_of_heads(b: Builder) -> int:
    """A part of two heads of the four that were joined: its dim has two atoms."""
    joined = b.add("view", leaf(b, BATCH, 5, 4, 6), shape=(BATCH, 5, 24))
    return b.add("part", joined, shape=(BATCH, 5, 12), dim=2, of=2, number=1)


def detach(b: Builder) -> int:
    return b.add("detach", leaf(b, BATCH, 5), shape=(BATCH, 5), gradient=False)


CASES: Cases = {
    "contiguous": (unary("contiguous"),),
    "view": (
        view((BATCH, 5, 4), (BATCH, 20)),
        view((BATCH, 12), (BATCH, 3, 4)),
        view((BATCH, 4, 6), (BATCH * 4, 6)),
        view((BATCH, 6, 10), (BATCH, 4, 15)),
        view((BATCH, 1, 5), (BATCH, 5)),
    ),
    "permute": (
        lambda b: b.add("permute", leaf(b, BATCH, 5, 4), shape=(4, BATCH, 5), dims=(2, 0, 1)),
        lambda b: b.add("permute", leaf(b, BATCH, 5, 4), shape=(BATCH, 4, 5), dims=(0, 2, 1)),
    ),
    "expand": (
        lambda b: b.add("expand", leaf(b, BATCH, 1, 4), shape=(BATCH, 5, 4)),
        lambda b: b.add("expand", weight(b, 5, 1), shape=(3, 5, 4)),
    ),
    "slice": (
        lambda b: b.add("slice", leaf(b, BATCH, 7, 4), shape=(BATCH, 3, 4), dim=1, start=1, stop=7, step=2),
        lambda b: b.add("slice", leaf(b, BATCH, 7), shape=(3, 7), dim=0, start=3, stop=6, step=1),
    ),
    "part": (
        lambda b: b.add("part", leaf(b, BATCH, 12), shape=(BATCH, 4), dim=1, of=3, number=2),
        lambda b: b.add("part", leaf(b, BATCH, 10, 4), shape=(BATCH, 5, 4), dim=1, of=2, number=0),
        lambda b: b.add("part", weight(b, 12, 5), shape=(6, 5), dim=0, of=2, number=1),
        part_of_heads,
    ),
    "cat": (
        lambda b: b.add("cat", leaf(b, BATCH, 5), leaf(b, BATCH, 4), leaf(b, BATCH, 3), shape=(BATCH, 12), dim=1),
        lambda b: b.add("cat", leaf(b, BATCH, 5), weight(b, 3, 5), shape=(BATCH + 3, 5), dim=0),
    ),
    "pad": (
        lambda b: b.add("pad", leaf(b, BATCH, 5, 4), shape=(BATCH, 5, 7), pad=(1, 2), mode="constant", value=0.0),
        lambda b: b.add(
            "pad", leaf(b, BATCH, 5, 4), shape=(BATCH, 8, 3), pad=(0, -1, 1, 2), mode="constant", value=0.5
        ),
        lambda b: b.add("pad", leaf(b, BATCH, 5, 4), shape=(BATCH, 5, 6), pad=(1, 1), mode="reflect", value=0.0),
        lambda b: b.add("pad", leaf(b, BATCH, 5, 4), shape=(BATCH, 5, 7), pad=(3, 0), mode="circular", value=0.0),
    ),
    "roll": (unary("roll", dims=(1,), shifts=(2,)), unary("roll", dims=(2, 1), shifts=(-1, 7))),
    "flip": (unary("flip", dims=(1, 2)), unary("flip", dims=(2,))),
    "detach": (detach,),
}

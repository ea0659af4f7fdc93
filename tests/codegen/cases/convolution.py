"""Convolutions of 1 to 3 spatial dims, and their transposes."""

from typing import Any

from partita.model.graph.builder import Builder

from .build import BATCH, Build, Cases, leaf, weight


def convolution(
    channels: tuple[int, int], taps: tuple[int, ...], shape: tuple[int, ...], bias: bool = True, **attributes: Any
) -> Build:
    """From the first of `channels` to the second, over places 6 x 5 (x 4), to `shape`; attributes override defaults."""
    (into, out), rank = channels, len(taps)
    op = "conv_transpose" if "output_padding" in attributes else "conv"
    plain = {"stride": (1,) * rank, "padding": (0,) * rank, "dilation": (1,) * rank, "groups": 1}

    def build(b: Builder) -> int:
        groups = attributes.get("groups", 1)
        kernel = (out, into // groups, *taps) if op == "conv" else (into, out // groups, *taps)
        given = [leaf(b, BATCH, into, *(6, 5, 4)[:rank]), weight(b, *kernel), *([weight(b, out)] if bias else [])]
        return b.add(op, *given, shape=(BATCH, out, *shape), **plain | attributes)

    return build


CASES: Cases = {
    "conv": (
        convolution((4, 6), (3, 3), (4, 3)),
        convolution((4, 6), (3, 2), (3, 2), bias=False, stride=(2, 2), padding=(1, 0), groups=2),
        convolution((6, 12), (3, 3), (6, 5), padding="same", groups=6),
        convolution((8, 8), (2,), (4,), dilation=(2,), groups=4),
        convolution((5, 10), (2,), (5,), groups=5),
        convolution((3, 2), (2, 1, 3), (5, 5, 2)),
    ),
    "conv_transpose": (
        convolution((4, 6), (2, 2), (12, 10), stride=(2, 2), output_padding=(0, 0)),
        convolution((6, 4), (3, 3), (12, 10), stride=(2, 2), padding=(1, 1), output_padding=(1, 1), groups=2),
        convolution((4, 8), (2,), (7,), bias=False, output_padding=(0,), groups=4),
    ),
}

"""Pooling and resampling of the last dims."""

from typing import Any

from partita.model.graph.builder import Builder

from .build import BATCH, Build, Cases, leaf


def over_space(op: str, before: tuple[int, ...], after: tuple[int, ...], **attributes: Any) -> Build:
    """Four channels, then space."""
    return lambda b: b.add(op, leaf(b, BATCH, 4, *before), shape=(BATCH, 4, *after), **attributes)


def pool(op: str, before: tuple[int, ...], after: tuple[int, ...], kernel: tuple[int, ...], **attributes: Any) -> Build:
    plain: dict[str, Any] = {"stride": kernel, "padding": (0,) * len(kernel), "ceil_mode": False}
    plain |= {"dilation": (1,) * len(kernel)} if op == "max_pool" else {"count_include_pad": True}
    return over_space(op, before, after, kernel_size=kernel, **plain | attributes)


def resampled(before: tuple[int, ...], after: tuple[int, ...], mode: str, **attributes: Any) -> Build:
    plain: dict[str, Any] = {"size": None, "scale_factor": None, "align_corners": None}
    return over_space("interpolate", before, after, mode=mode, **plain | attributes)


def sampled(b: Builder) -> int:
    """Places of a grid, some of them outside."""
    x, grid = leaf(b, BATCH, 2, 3, 4), leaf(b, BATCH, 3, 2, 2)
    modes = {"interpolation_mode": 0, "padding_mode": 1, "align_corners": False}
    return b.add("grid_sample", x, grid, shape=(BATCH, 2, 3, 2), **modes)


CASES: Cases = {
    "grid_sample": (sampled,),
    "max_pool": (
        pool("max_pool", (6, 5), (3, 3), (2, 2), ceil_mode=True),
        pool("max_pool", (7,), (4,), (3,), stride=(2,), padding=(1,)),
        pool("max_pool", (6, 5), (2, 3), (3, 2), stride=(2, 1), dilation=(2, 2), padding=(1, 0)),
    ),
    "avg_pool": (
        pool("avg_pool", (6, 5), (6, 5), (3, 3), stride=(1, 1), padding=(1, 1), count_include_pad=False),
        pool("avg_pool", (4, 4), (2, 2), (2, 2), divisor_override=3),
        pool("avg_pool", (5,), (3,), (2,), ceil_mode=True),
    ),
    "adaptive_max_pool": (over_space("adaptive_max_pool", (6, 5), (2, 3), output_size=(2, 3)),),
    "adaptive_avg_pool": (
        over_space("adaptive_avg_pool", (6, 5), (2, 3), output_size=(2, 3)),
        over_space("adaptive_avg_pool", (2, 3, 4), (1, 2, 2), output_size=(1, 2, 2)),
    ),
    "interpolate": (
        resampled((3, 2), (6, 4), "nearest", scale_factor=(2.0, 2.0)),
        resampled((3, 2), (5, 4), "bilinear", size=(5, 4), align_corners=True),
        resampled((4,), (6,), "linear", scale_factor=(1.5,)),
    ),
}

"""Halo exchange: windows slide along a split dim, and ranks send each other the rows that their windows read.

Apart from these rows, convolutions, their transposes, pooling and resampling are local along space (Dryden et al.,
IPDPS'19). Input and output lie in ordinary parts, so a rank may need rows of any other rank, and may hold rows that it
does not read itself. Dims on different axes are exchanged one after the other, which includes the corners.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import Any, TypeAlias

from ...model.graph.builder import Builder
from ...model.graph.layout import Action, chunk
from ...model.graph.pcg import Node
from ..strategies.row import Row
from .example_inputs import scaled_input
from .registry import PROGRAMS, Message, Part, Situation, Special, Splits, register_strategy

Range: TypeAlias = tuple[int, int]
"""Start and stop."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What an operator with `size` rows of input and `made` rows of output reads along one dim.

    Row i of the output reads the input's rows from (step * i + first) // per to (step * i + last) // per. The input is
    padded with `value` (None: not at all). Applied to the rows from r on, the operator makes the output's rows from
    per * r - shift on. A part may end with up to `spare` - 1 rows that no window reads.
    """

    size: int
    made: int
    first: int
    last: int
    step: int = 1
    per: int = 1
    shift: int = 0
    value: float | None = 0.0
    spare: int = 1


@dataclass(frozen=True, slots=True)
class Exchange:
    """The exchange that a reach needs on some number of ranks.

    `moves`: some rank reads rows that it does not hold; `crops`: some rank makes rows that are not its own. `rows`: the
    most that a rank reads, `sent`: the most that one sends or receives.
    """

    moves: bool
    crops: bool
    rows: int
    sent: int


@lru_cache(maxsize=4096)
def exchange(reach: Reach, ranks: int) -> Exchange:
    """The exchange of a reach on `ranks` ranks."""
    have, made = ([chunk(size, ranks, r) for r in range(ranks)] for size in (reach.size, reach.made))
    want = [_rows_of(reach, *part) for part in made]
    given = [sum(_common(a, b) for r, b in enumerate(want) if r != s) for s, a in enumerate(have)]
    taken = [sum(_common(a, b) for s, a in enumerate(have) if r != s) for r, b in enumerate(want)]
    moves = any(a[0] != b[0] or not 0 <= a[1] - b[1] < reach.spare for a, b in zip(have, want, strict=True))
    longer = reach.last - reach.first
    crops = reach.value is None and any(
        reach.per * b[0] - reach.shift != c[0] or reach.per * (b[1] - b[0]) + longer != c[1] - c[0]
        for b, c in zip(want, made, strict=True)
    )
    return Exchange(moves, crops, max(b - a for a, b in want), max(*given, *taken))


def _rows_of(reach: Reach, start: int, stop: int) -> Range:
    first = (reach.step * start + reach.first) // reach.per
    last = (reach.step * (stop - 1) + reach.last) // reach.per + 1
    return (first, last) if reach.value is not None else (max(first, 0), min(last, reach.size))


def _common(a: Range, b: Range) -> int:
    return max(0, min(a[1], b[1]) - max(a[0], b[0]))


# Reaches by operator, along spatial dim `d` from `size` to `made` rows; None if the dim cannot be split.


def _taps(node: Node, kernel: int, d: int) -> int:
    """Rows from the first to the last of a window."""
    return (kernel - 1) * int(node.get("dilation", (1,) * 3)[d])


def _conv(node: Node, kernel: int, d: int, size: int, made: int) -> Reach | None:
    last = _taps(node, kernel, d)
    first = -(last // 2 if node["padding"] == "same" else node["padding"][d])
    stride = node["stride"][d]
    return Reach(size, made, first, first + last, stride, spare=stride)


def _conv_transpose(node: Node, kernel: int, d: int, size: int, made: int) -> Reach | None:
    """Row j contributes to row i if i = stride * j - padding + tap: the windows of a convolution, transposed."""
    last, stride, padding = _taps(node, kernel, d), node["stride"][d], node["padding"][d]
    if last < stride - 1 or node["output_padding"][d] > padding:  # rows that no input row contributes to
        return None
    return Reach(size, made, padding - last + stride - 1, padding, per=stride, shift=padding, value=None)


def _max_pool(node: Node, kernel: int, d: int, size: int, made: int) -> Reach | None:
    first, stride = -node["padding"][d], node["stride"][d]
    spare = 1 if node["ceil_mode"] else stride
    return Reach(size, made, first, first + _taps(node, kernel, d), stride, value=-inf, spare=spare)


def _avg_pool(node: Node, kernel: int, d: int, size: int, made: int) -> Reach | None:
    """Only if every window is divided by the same number, also at the borders."""
    stride, padding = node["stride"][d], node["padding"][d]
    beyond = (made - 1) * stride + kernel > size + 2 * padding
    if node.get("divisor_override") is None and (beyond or (padding and not node["count_include_pad"])):
        return None
    return Reach(size, made, -padding, kernel - 1 - padding, stride, spare=1 if node["ceil_mode"] else stride)


def _interpolate(node: Node, kernel: int, d: int, size: int, made: int) -> Reach | None:
    """By whole factors only."""
    factor, mode = made // size, node["mode"]
    scale = node["scale_factor"]
    if made % size or node["align_corners"] or (scale and scale[d] != factor):
        return None
    if mode == "nearest" and factor & (factor - 1):  # products with 1 / factor may be rounded across a whole number
        return None
    before, after = {"nearest": (0, 0), "nearest-exact": (0, 0), "bicubic": (1, 2)}.get(mode, (0, 1))
    middle = 0 if mode.startswith("nearest") else factor // 2
    return Reach(size, made, -middle - before * factor, after * factor - middle, per=factor, value=None)


_REACHES: dict[str, Callable[[Node, int, int, int, int], Reach | None]] = {
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "max_pool": _max_pool,
    "avg_pool": _avg_pool,
    "interpolate": _interpolate,
}


def spatial_rank(node: Node) -> int:
    """The number of (last) dims along which windows slide."""
    return len(node["kernel_size"]) if "kernel_size" in dict(node.attributes) else len(node.shape) - 2


def reach_of(node: Node, sources: Sequence[Node], d: int) -> Reach | None:
    """The reach along spatial dim `d`; None where the operator cannot be split there."""
    rank = spatial_rank(node)
    kernel = node.get("kernel_size") or (sources[1].shape[2:] if len(sources) > 1 else (1,) * rank)
    before, after = sources[0].shape[-rank:], node.shape[-rank:]
    if node.get("padding") == "same" and any(_taps(node, k, i) % 2 for i, k in enumerate(kernel)):
        return None  # uneven padding, which no number but only `same` can express
    if node.op == "interpolate" and any(_interpolate(node, 1, i, before[i], after[i]) is None for i in range(rank)):
        return None  # sizes of parts differ from those of the whole, so all dims need factors
    return _REACHES[node.op](node, kernel[d], d, before[d], after[d])


def _rows(at: Situation) -> Iterator[Row]:
    """One for each spatial dim that is one atom; index notation splits pointwise windows already."""
    rank = spatial_rank(at.node)
    for d in range(rank):
        reach, letters = reach_of(at.node, at.sources, d), (at.split(0, d - rank), at.split(-1, d - rank))
        pointwise = reach is not None and at.node.op in ("conv", "conv_transpose") and _is_pointwise(reach)
        if reach is None or pointwise or letters[0] is None or letters[1] is None:
            continue
        weights = tuple(at.whole(i) for i in range(1, len(at.sources)))
        yield Row((letters[0], *weights), letters[1], (f"s{d}", 0), "halo")


def _is_pointwise(reach: Reach) -> bool:
    return reach.first == reach.last == 0 and reach.step == reach.per == 1


def _exchange_of(part: Part) -> tuple[Reach, Exchange, int]:
    """The reach and exchange of a part, and the bytes of a row of its input."""
    assert part.row.index is not None
    reach = reach_of(part.node, part.sources, int(part.row.index[0][1:]))
    assert reach is not None, part.node
    return reach, exchange(reach, part.ranks), part.bytes(0) // -(-reach.size // part.ranks)


def _messages(part: Part) -> Iterator[Message]:
    """One exchange of the rows of both sides, and a copy of what is read; backward the same, added to zeros."""
    (_, found, row), back = _exchange_of(part), part.sources[0].gradient
    if found.moves:
        yield Message(Action.SEND, found.sent * row)
        yield Message(Action.PAD, found.rows * row)
    if found.moves and back:
        yield Message(Action.SEND, found.sent * row, backward=True)
        yield Message(Action.PAD, part.bytes(0), backward=True, times=2)
    if found.crops:
        yield Message(Action.PAD, part.bytes(-1), backward=True)


def _kept(part: Part) -> int:
    """The rows that are read, instead of the input."""
    _, found, row = _exchange_of(part)
    return found.rows * row if found.moves and part.node.op != "interpolate" else 0


def _copies(part: Part) -> tuple[str, ...]:
    return ("x",) if _exchange_of(part)[1].moves else ()


def _work(part: Part) -> float:
    """The largest share of the output (of a transposed convolution: of the rows read) over that of the input."""
    reach, found, _ = _exchange_of(part)
    share = -(-reach.size // part.ranks)
    if part.node.op == "conv_transpose":
        return found.rows / share
    return (-(-reach.made // part.ranks) / reach.made) / (share / reach.size)


def _offered(batch: int, devices: int) -> bool:
    """If samples divide over all devices, splitting them costs the same without an exchange."""
    return batch % devices > 0


def _emit(site: Any, names: Sequence[str], splits: Splits) -> str:
    """The operator's own line on the rows that it reads, without padding along split dims."""
    node, rank, x, crops = site.node, spatial_rank(site.node), names[0], list[str]()
    dims = [int(row.index[0][1:]) for _, row in splits if row.index is not None]
    for d, (axis, _) in zip(dims, splits, strict=True):
        reach = reach_of(node, site.sources, d)
        assert reach is not None, node
        needed, where = exchange(reach, site.sizes[axis]), f"{len(node.shape) - rank + d}, {site.axes[axis]}"
        if needed.moves:
            sizes, rows = (reach.size, reach.made), (reach.first, reach.last)
            x = f"halo({x}, {where}, {sizes}, {rows}{_options(reach)})"
        if needed.crops:
            shift = f", {reach.shift}" if reach.shift else ""
            crops.append(f"{where}, {reach.made}, {reach.per}, {reach.first}{shift}")
    line: str = site.own(replace(node, attributes=_local(site, dims)), [x, *names[1:]])
    for crop in crops:
        line = f"crop({line}, {crop})"
    return line


def _options(reach: Reach) -> str:
    steps = "".join(f", {k}={n}" for k, n in (("step", reach.step), ("per", reach.per)) if n != 1)
    return steps + {None: ", value=None", 0.0: ""}.get(reach.value, ", value=-math.inf")


def _local(site: Any, dims: Sequence[int]) -> tuple[tuple[str, Any], ...]:
    """The attributes of a node whose input is already padded along `dims`."""
    given, rank = dict(site.node.attributes), spatial_rank(site.node)
    if site.node.op == "interpolate":
        factors = zip(site.node.shape[-rank:], site.sources[0].shape[-rank:], strict=True)
        return tuple((given | {"size": None, "scale_factor": tuple(float(m // n) for m, n in factors)}).items())
    if given["padding"] == "same":
        taps = site.sources[1].shape[2:]
        given["padding"] = tuple(_taps(site.node, k, d) // 2 for d, k in enumerate(taps))
    for name in {"padding", "output_padding"} & given.keys():
        given[name] = tuple(0 if d in dims else size for d, size in enumerate(given[name]))
    return tuple(given.items())


def _window(
    op: str, before: tuple[int, ...], after: tuple[int, ...], taps: tuple[int, ...], groups: int = 1, **attributes: Any
) -> Callable[[Builder], int]:
    """Windows of `taps` over `before` rows, with four channels; `attributes` override the defaults."""
    rank, of_weights = len(before), op.startswith("conv")
    plain: dict[str, Any] = {"padding": (0,) * rank, "stride": (1,) * rank if of_weights else taps}
    if of_weights:
        plain |= {"groups": groups, "dilation": (1,) * rank}
    elif op != "interpolate":
        plain |= {"kernel_size": taps, "ceil_mode": False}
        plain |= {"dilation": (1,) * rank} if op == "max_pool" else {"count_include_pad": True}
    else:
        plain = {"size": None, "scale_factor": None, "align_corners": None}

    def example(b: Builder) -> int:
        x = scaled_input(b, 6, 4, *before, dims=rank + 1)
        weights = [b.parameter("w", (4, 4 // groups, *taps)), b.parameter("bias", (4,))] if of_weights else []
        return b.add(op, x, *weights, shape=(6, 4, *after), **plain | attributes)

    return example


register_strategy(
    Special(
        "halo",
        tuple(_REACHES),
        _rows,
        _messages,
        _emit,
        program=PROGRAMS / "halo.py",
        work=_work,
        kept=_kept,
        copies=_copies,
        several=True,
        offered=_offered,
        unoffered="halos where samples divide evenly",
        examples=(
            _window("conv", (23, 13), (23, 13), (3, 3), padding=(1, 1)),
            _window("conv", (29,), (15,), (7,), groups=2, stride=(2,), padding=(3,)),
            _window("conv", (31,), (16,), (1,), stride=(2,)),
            _window("conv", (19,), (19,), (3,), padding=(2,), dilation=(2,)),
            _window("conv", (22,), (15,), (8,)),
            _window("conv", (16, 3, 4), (16, 3, 4), (3, 1, 3), groups=4, padding="same"),
            _window("conv_transpose", (15,), (30,), (2,), stride=(2,), output_padding=(0,)),
            _window("conv_transpose", (15,), (30,), (3,), 2, stride=(2,), padding=(1,), output_padding=(1,)),
            _window("conv_transpose", (8, 5), (16, 10), (4, 2), stride=(2, 2), padding=(1, 0), output_padding=(0, 0)),
            _window("max_pool", (29,), (15,), (3,), stride=(2,), padding=(1,)),
            _window("max_pool", (16, 5), (8, 3), (2, 2), ceil_mode=True),
            _window("avg_pool", (23,), (23,), (3,), stride=(1,), padding=(1,)),
            _window("interpolate", (15,), (30,), (), mode="nearest", scale_factor=(2.0,)),
            _window("interpolate", (8, 3), (24, 6), (), mode="bilinear", size=(24, 6)),
        ),
    )
)

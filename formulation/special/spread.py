"""Look-ups in joined tables that are spread over an axis: each coordinate has whole tables, or columns of some.

A coordinate looks up all samples in its columns; one exchange gives every rank its own samples with all columns, and
one brings the gradients back. Hybrid-parallel DLRM (Naumov et al., 2019) does this with whole tables, TorchRec with
table-wise and column-wise sharding; here a solver balances the load, and a table may span several coordinates.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from ...model.graph.builder import Builder
from ...model.graph.dtypes import ITEMSIZE
from ...model.graph.joined_tables import table_rows
from ...model.graph.layout import Action, P, R, S
from ..strategies.row import Row
from .example_inputs import integer_input
from .registry import PROGRAMS, Message, Part, Situation, Special, Splits, register_strategy
from .table_spread import CoordinateLoad

_ID = ITEMSIZE["int64"]


def _rows(at: Situation) -> Iterator[Row]:
    """Ids of joined tables are [samples, tables], for bags with one more dim.

    A parameter that joins tables is spread if its layout is P: the sum over the coordinates is the whole, since no two
    coordinates have the same columns.
    """
    (table, ids, *weights), bags = at.sources, at.node.op == "embedding_bag"
    tables = len(table_rows(table))
    sizes, batch = at.inputs[1].sizes, at.inputs[1].batch
    if not tables or weights or batch != {0} or sizes[1:2] != (tables,):
        return
    if len(ids.shape) == 2 and len(sizes) == 2 + (bags and ids.shape[-1] > 1):
        yield Row((P, R), S(0), ("@spread", 0), "spread")


def _samples(part: Part) -> int:
    """All samples of a micro-batch."""
    ids = part.sources[1].shape
    return prod(ids) // (len(table_rows(part.sources[0])) * _bag(part))


def _bag(part: Part) -> int:
    return int(part.sources[1].shape[-1]) if part.node.op == "embedding_bag" else 1


def _largest(part: Part) -> CoordinateLoad:
    """The largest load of a coordinate."""
    assert part.spread is not None
    return part.spread.largest


def _width(part: Part) -> int:
    """Columns of all tables together."""
    rows, width = table_rows(part.sources[0]), part.sources[0].shape[1]
    return len(rows) * width


def _messages(part: Part) -> Iterator[Message]:
    """The ids of units, then columns: the rank that sends or receives most decides. Columns are put in order."""
    samples, (columns, _, units) = _samples(part), _largest(part)
    own = -(-samples // part.ranks) * _width(part) * part.item
    sent = max(samples * columns * part.item, own)
    yield Message(Action.PAD, samples * units * _bag(part) * _ID)
    yield Message(Action.EXCHANGE, sent)
    yield Message(Action.PAD, own)
    if part.sources[0].gradient:
        yield Message(Action.PAD, own, backward=True)
        yield Message(Action.EXCHANGE, sent, backward=True)


def _work(part: Part) -> float:
    return _largest(part).columns / _width(part)


def _kept(part: Part) -> int:
    """The ids of all units."""
    return _samples(part) * _largest(part).units * _bag(part) * _ID


def _emit(site: Any, names: Sequence[str], splits: Splits) -> str:
    table, ids = names
    arguments = [ids, table, *(["sparse=True"] if site.node.get("sparse") else [])]
    if site.node.get("sparse") and site.mixed:
        arguments.append("dtype=self.dtype")
    return f"{'spread_bags' if site.node.op == 'embedding_bag' else 'spread_rows'}({', '.join(arguments)})"


# Examples


def _joined(b: Builder, rows: tuple[int, ...], width: int) -> int:
    tables = tuple((f"tables.{i}.weight", count) for i, count in enumerate(rows))
    return b.parameter("tables.weight", (sum(rows), width), tables=tables)


def _ids(b: Builder, shape: tuple[int, ...], rows: tuple[int, ...]) -> int:
    """Ids [samples, tables, ...], counted from the first row of the first table."""
    along = (len(rows), *(1 for _ in shape[2:]))
    ids = integer_input(b, shape, min(rows))
    first = tuple(sum(rows[:i]) for i in range(len(rows)))
    offsets = b.add("constant", shape=along, dtype="int64", name="offsets", values=first)
    return b.add("add", ids, offsets, shape=shape, dtype="int64", name="numbers")


def _example(b: Builder) -> int:
    """Four tables of 6 columns: on 3 ranks one table and a third each, on 4 ranks one table each."""
    rows = (7, 3, 11, 5)
    return b.add("embedding", _joined(b, rows, 6), _ids(b, (6, 4), rows), shape=(6, 4, 6))


def _example_sparse(b: Builder) -> int:
    rows = (4, 9, 3)
    return b.add("embedding", _joined(b, rows, 4), _ids(b, (6, 3), rows), shape=(6, 3, 4), sparse=True)


def _example_bags(b: Builder) -> int:
    rows = (4, 9, 3)
    ids = b.add("view", _ids(b, (6, 3, 2), rows), shape=(18, 2), dtype="int64")
    return b.add("embedding_bag", _joined(b, rows, 4), ids, shape=(18, 4), sparse=True)


register_strategy(
    Special(
        "spread",
        ("embedding", "embedding_bag"),
        _rows,
        _messages,
        _emit,
        program=PROGRAMS / "spread.py",
        work=_work,
        kept=_kept,
        copies=("ids",),
        exclusive=True,
        examples=(_example, _example_sparse, _example_bags),
    )
)

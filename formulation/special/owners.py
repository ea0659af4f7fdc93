"""Look-ups in a table whose rows are split, by an exchange of ids: every rank keeps its own samples.

Every id goes to the rank that has its row, and the row comes back, as in Megatron-LM's and TorchRec's row-wise tables.
The strategy from index notation (`ids`) instead looks up all ids on every rank, with zeros for the rows of other ranks.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from math import ceil, prod
from typing import Any

from ...model.graph.builder import Builder
from ...model.graph.dtypes import ITEMSIZE
from ...model.graph.joined_tables import table_rows
from ...model.graph.layout import Action, S, chunk
from ..strategies.row import Row
from .example_inputs import integer_input, scaled_input
from .registry import PROGRAMS, Message, Part, Situation, Special, Splits, register_strategy

_ID = ITEMSIZE["int64"]


def _rows(at: Situation) -> Iterator[Row]:
    """Only if the table's rows are one atom and the ids have a batch dim."""
    letter, (table, _, *weights) = at.split(0, 0), at.sources
    if letter is None or table.op != "parameter" or not at.inputs[1].batch:
        return
    samples = S(min(at.inputs[1].batch))  # the same atom in the result, whose first dims are those of the ids
    yield Row((letter, samples, *(samples for _ in weights)), samples, ("@owners", 0), "owners")


@lru_cache(maxsize=1024)
def largest_share(tables: tuple[int, ...], ranks: int) -> Fraction:
    """The largest share of the look-ups that one rank answers, if every joined table gets equally many ids.

    Ids are uniform within a table. Rank j has chunk j of the rows of all tables, one table after the other, so small
    tables lie on few ranks, which answer more than an even share. `tables`: the number of rows of each.
    """
    total = sum(tables)
    shares = []
    for rank in range(ranks):
        start, stop = chunk(total, ranks, rank)
        first, answered = 0, Fraction(0)
        for rows in tables:
            answered += Fraction(max(0, min(stop, first + rows) - max(start, first)), rows)
            first += rows
        shares.append(answered / len(tables))
    return max(shares)


def _share(part: Part) -> Fraction:
    table = part.sources[0]
    return largest_share(table_rows(table) or table.shape[:1], part.ranks)


def _answered(part: Part) -> int:
    """The look-ups of the rank that answers most."""
    return ceil(_share(part) * part.ranks * prod(part.inputs[1]))


def _messages(part: Part) -> Iterator[Message]:
    """Counts, ids, then rows; ids are sorted by rank, and rows put back into the order of the ids."""
    own, width = prod(part.inputs[1]), part.inputs[0][1] * part.item
    most = max(own, _answered(part))
    yield Message(Action.PAD, own * _ID, times=2)
    yield Message(Action.EXCHANGE, part.ranks * _ID)
    yield Message(Action.EXCHANGE, most * _ID)
    yield Message(Action.EXCHANGE, most * width)
    yield Message(Action.PAD, own * width, times=1 + (part.node.op == "embedding_bag"))
    if part.sources[0].gradient:
        yield Message(Action.PAD, own * width, backward=True)
        yield Message(Action.EXCHANGE, most * width, backward=True)


def _kept(part: Part) -> int:
    """The received ids, the order of the rank's own, and rows whose weights are trained."""
    rows = prod(part.inputs[1]) * part.inputs[0][1] * part.item
    weighted = len(part.sources) > 2 and part.sources[2].gradient
    return (prod(part.inputs[1]) + _answered(part)) * _ID + rows * weighted


def _emit(site: Any, names: Sequence[str], splits: Splits) -> str:
    ((axis, _),) = splits
    table, ids, *weights = names
    function = "owned_bags" if site.node.op == "embedding_bag" else "owned_rows"
    arguments = [ids, *weights, table, site.axes[axis], str(site.sources[0].shape[0])]
    if function == "owned_bags" and not weights:
        arguments.insert(1, "None")
    if site.node.get("sparse"):
        arguments += ["sparse=True", *(["dtype=self.dtype"] if site.mixed else [])]
    return f"{function}({', '.join(arguments)})"


# Examples


def _example(b: Builder) -> int:
    """23 rows and, on 4 ranks, 6 samples split unevenly."""
    return b.add("embedding", b.parameter("table", (23, 3)), integer_input(b, (6, 5), 23), shape=(6, 5, 3))


def _example_sparse(b: Builder) -> int:
    table, ids = b.parameter("table", (9, 4)), integer_input(b, (6, 2), 9)
    return b.add("embedding", table, ids, shape=(6, 2, 4), sparse=True)


def _example_frozen(b: Builder) -> int:
    """The table is frozen; the weights of the bags have gradients."""
    table, ids = b.parameter("table", (11, 4), trainable=False), integer_input(b, (6, 3), 11)
    return b.add("embedding_bag", table, ids, scaled_input(b, 6, 3), shape=(6, 4))


def _example_bags(b: Builder) -> int:
    table, ids = b.parameter("table", (11, 4)), integer_input(b, (6, 3), 11)
    return b.add("embedding_bag", table, ids, scaled_input(b, 6, 3), shape=(6, 4))


def _example_sums(b: Builder) -> int:
    table, ids = b.parameter("table", (10, 4)), integer_input(b, (6, 3), 10)
    return b.add("embedding_bag", table, ids, shape=(6, 4), sparse=True)


register_strategy(
    Special(
        "owners",
        ("embedding", "embedding_bag"),
        _rows,
        _messages,
        _emit,
        program=PROGRAMS / "owners.py",
        work=lambda part: float(_share(part)),
        kept=_kept,
        copies=("ids",),
        examples=(_example, _example_sparse, _example_frozen, _example_bags, _example_sums),
    )
)

"""Look-ups: in tables, along a dim, and bags of them."""

from partita.model.graph.builder import Builder

from .build import BATCH, Build, Cases, leaf, weight


def embedding(b: Builder) -> int:
    ids = b.add("input", name="ids", shape=(BATCH, 5), dtype="int64", batch_dim=0, high=9)
    return b.add("embedding", weight(b, 9, 4), ids, shape=(BATCH, 5, 4))


def bag(weighted: bool) -> Build:
    def build(b: Builder) -> int:
        ids = b.add("input", name="ids", shape=(BATCH, 4), dtype="int64", batch_dim=0, high=9)
        weights = [leaf(b, BATCH, 4)] if weighted else []
        return b.add("embedding_bag", weight(b, 9, 4), ids, *weights, shape=(BATCH, 4))

    return build


def look_up(op: str, dim: int, shape: tuple[int, ...], y: tuple[int, ...], table: bool = False) -> Build:
    """Ids of some shape into a dim of a tensor of the batch, or of a weight."""

    def build(b: Builder) -> int:
        x = weight(b, 5, 6, 4) if table else leaf(b, BATCH, 6, 4)
        high = b.nodes[x].shape[dim]
        batch_dim = 0 if shape[:1] == (BATCH,) else None
        ids = b.add("input", name="ids", shape=shape, dtype="int64", batch_dim=batch_dim, high=high)
        return b.add(op, x, ids, shape=y, dim=dim)

    return build


def of_all(b: Builder) -> int:
    """Every sample has ids of its own into one matrix."""
    ids = b.add("input", name="ids", shape=(BATCH, 3, 4), dtype="int64", batch_dim=0, high=6)
    return b.add("gather", weight(b, 1, 6, 4), ids, shape=(BATCH, 3, 4), dim=1)


def integers(op: str) -> Build:
    """A look-up of integers, without gradient."""

    def build(b: Builder) -> int:
        ids = b.add("input", name="ids", shape=(BATCH, 4), dtype="int64", batch_dim=0, high=4)
        return b.add(op, ids, ids, shape=(BATCH, 4), dtype="int64", dim=1)

    return build


def joined(op: str, bag: int, *rows: int) -> Build:
    """Stacked tables, and ids of each sample in all of them."""

    def build(b: Builder) -> int:
        tables = tuple((f"tables.{i}.weight", count) for i, count in enumerate(rows))
        table = b.parameter("tables.weight", (sum(rows), 4), tables=tables)
        shape, first = (BATCH, len(rows), bag), tuple(sum(rows[:i]) for i in range(len(rows)))
        ids = b.add("input", name="ids", shape=shape, dtype="int64", batch_dim=0, high=min(rows))
        offsets = b.add("constant", shape=(len(rows), 1), dtype="int64", name="offsets", values=first)
        ids = b.add("add", ids, offsets, shape=shape, dtype="int64")
        if op == "embedding":
            ids = b.add("view", ids, shape=(BATCH, len(rows)), dtype="int64")
            return b.add(op, table, ids, shape=(BATCH, len(rows), 4))
        ids = b.add("view", ids, shape=(BATCH * len(rows), bag), dtype="int64")
        return b.add(op, table, ids, shape=(BATCH * len(rows), 4))

    return build


CASES: Cases = {
    "embedding": (embedding, joined("embedding", 1, 4, 7, 3)),
    "embedding_bag": (bag(weighted=False), bag(weighted=True), joined("embedding_bag", 2, 5, 3)),
    "gather": (
        look_up("gather", 1, (BATCH, 3, 4), (BATCH, 3, 4)),
        look_up("gather", 2, (5, 6, 3), (5, 6, 3), table=True),
        look_up("gather", 1, (BATCH, 3, 1), (BATCH, 3, 4)),
        of_all,
        integers("gather"),
    ),
    "index": (
        look_up("index", 1, (3,), (BATCH, 3, 4)),
        look_up("index", 2, (3, 5), (BATCH, 6, 3, 5)),
        look_up("index", 0, (BATCH, 3), (BATCH, 3, 6, 4), table=True),
        look_up("index", 1, (), (5, 4), table=True),
        look_up("index", 0, (3,), (3, 6, 4)),
    ),
}

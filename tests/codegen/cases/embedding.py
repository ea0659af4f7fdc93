"""Look-ups: in tables, along a dim, and bags of them."""

from partita.model.pcg import Builder

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


def integers(op: str) -> Build:
    """What is looked up has no gradient, and is a number."""

    def build(b: Builder) -> int:
        ids = b.add("input", name="ids", shape=(BATCH, 4), dtype="int64", batch_dim=0, high=4)
        return b.add(op, ids, ids, shape=(BATCH, 4), dtype="int64", dim=1)

    return build


CASES: Cases = {
    "embedding": (embedding,),
    "embedding_bag": (bag(weighted=False), bag(weighted=True)),
    "gather": (
        look_up("gather", 1, (BATCH, 3, 4), (BATCH, 3, 4)),
        look_up("gather", 2, (5, 6, 3), (5, 6, 3), table=True),
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

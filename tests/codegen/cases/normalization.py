"""Normalizations and softmax."""

from partita.model.graph.builder import Builder

from .build import BATCH, Build, Cases, leaf, unary, weight


def norm(op: str, operands: tuple[str, ...]) -> Build:
    def build(b: Builder) -> int:
        given = [leaf(b, BATCH, 5, 4), *(weight(b, 4) for _ in operands[1:])]
        return b.add(op, *given, shape=(BATCH, 5, 4), normalized=1, eps=1e-5, operands=operands)

    return build


def group_norm(groups: int, weights: int, *space: int) -> Build:
    def build(b: Builder) -> int:
        given = [leaf(b, BATCH, 6, *space), *(weight(b, 6) for _ in range(weights))]
        return b.add("group_norm", *given, shape=(BATCH, 6, *space), groups=groups, eps=1e-5)

    return build


CASES: Cases = {
    "layer_norm": (
        norm("layer_norm", ("x", "w", "bias")),
        norm("layer_norm", ("x", "bias")),
        norm("layer_norm", ("x",)),
    ),
    "group_norm": (
        group_norm(3, 2, 3, 2),
        group_norm(1, 2, 4),
        group_norm(6, 1, 3, 2),
        group_norm(2, 0, 3),
    ),
    "rms_norm": (norm("rms_norm", ("x", "w")), norm("rms_norm", ("x",))),
    "softmax": (unary("softmax", dim=1), unary("softmax", dim=2)),
    "log_softmax": (unary("log_softmax", dim=2),),
}

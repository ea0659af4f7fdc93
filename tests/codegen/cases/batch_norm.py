"""Batch norm and the moments that it reads."""

from partita.model.graph.builder import Builder

from .build import BATCH, Build, Cases, leaf, weight


def batch_norm(op: str, operands: tuple[str, ...], *rest: int) -> Build:
    """A batch norm of 4 channels; `op` is the operator under test: `moments` is read by a batch norm too."""

    def build(b: Builder) -> int:
        shape = (BATCH, 4, *rest)
        x = leaf(b, *shape)
        running = [b.add("buffer", shape=(4,), name=name) for name in operands if name in ("mean", "var")]
        affine = [weight(b, 4) for name in operands if name in ("w", "bias")]
        if op == "local_batch_norm":
            return b.add(op, x, *running, *affine, shape=shape, operands=operands, momentum=0.1, eps=1e-5, site=0)
        s = b.add("moments", x, shape=(2, 4), statistics="batch", site=0)
        if op == "moments":
            return s
        return b.add(op, x, s, *running, *affine, shape=shape, operands=operands, momentum=0.1, eps=1e-5, site=0)

    return build


CASES: Cases = {
    "moments": (batch_norm("moments", ()), batch_norm("moments", (), 5, 3)),
    "batch_norm": (
        batch_norm("batch_norm", ("x", "s", "mean", "var", "w", "bias"), 5),
        batch_norm("batch_norm", ("x", "s", "mean", "var")),
        batch_norm("batch_norm", ("x", "s", "w"), 3, 2),
        batch_norm("batch_norm", ("x", "s", "bias")),
    ),
    "local_batch_norm": (
        batch_norm("local_batch_norm", ("x", "mean", "var", "w", "bias"), 5),
        batch_norm("local_batch_norm", ("x", "w", "bias"), 3, 2),
    ),
}

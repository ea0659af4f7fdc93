"""Losses: of classes, of probabilities, and of elements."""

from typing import Any

from partita.model.graph.builder import Builder

from .build import BATCH, Build, Cases, leaf, weight


def classified(op: str, reduction: str, weighted: bool = False, deep: bool = False, **attributes: Any) -> Build:
    """`deep`: several labels a sample."""

    def build(b: Builder) -> int:
        rest = (3,) if deep else ()
        x = leaf(b, BATCH, 5, *rest)
        t = b.add("input", name="labels", shape=(BATCH, *rest), dtype="int64", batch_dim=0, high=5)
        extra = [b.parameter("class_weights", (5,), trainable=False)] if weighted else []
        shape = (BATCH, *rest) if reduction == "none" else ()
        return b.add(op, x, t, *extra, shape=shape, reduction=reduction, **{"ignore_index": -100} | attributes)

    return build


def soft(reduction: str, weighted: bool = False, deep: bool = False, **attributes: Any) -> Build:
    """Probabilities as targets, with a gradient."""

    def build(b: Builder) -> int:
        shape = (BATCH, 5, *((3,) if deep else ()))
        t = b.add("softmax", leaf(b, *shape), shape=shape, dim=1)
        extra = [b.parameter("class_weights", (5,), trainable=False)] if weighted else []
        y = (BATCH, *shape[2:]) if reduction == "none" else ()
        return b.add("cross_entropy", leaf(b, *shape), t, *extra, shape=y, reduction=reduction, **attributes)

    return build


def pointwise(op: str, reduction: str, weights: tuple[str, ...] = (), squash: str = "", **attributes: Any) -> Build:
    """`squash` brings input and target into the range that is asked of them; weights are broadcast."""

    def build(b: Builder) -> int:
        shape = (BATCH, 5, 4)
        given = [leaf(b, *shape), b.input("t", shape)]
        if squash:
            given = [b.add(squash, x, shape=shape) for x in given]
        given += [b.input(b.name("scales"), shape[2 - k :], batch_dim=None) for k in range(len(weights))]
        named = {"operands": ("x", "t", *weights)} if weights else {}
        return b.add(op, *given, shape=shape if reduction == "none" else (), reduction=reduction, **named | attributes)

    return build


def ctc(b: Builder) -> int:
    """Some samples have fewer steps than labels: infinite losses, which count as zero."""
    x = b.add("permute", leaf(b, BATCH, 7, 5), shape=(7, BATCH, 5), dims=(1, 0, 2))
    t, steps, labels = (
        b.add("input", name=name, shape=shape, dtype="int64", batch_dim=0, high=high)
        for name, shape, high in (("t", (BATCH, 3), 5), ("steps", (BATCH,), 8), ("labels", (BATCH,), 4))
    )
    x = b.add("log_softmax", x, shape=(7, BATCH, 5), dim=2)
    return b.add("ctc_loss", x, t, steps, labels, shape=(BATCH,), blank=4, zero_infinity=True)


CASES: Cases = {
    "ctc_loss": (ctc,),
    "cross_entropy": (
        classified("cross_entropy", "mean"),
        classified("cross_entropy", "sum"),
        classified("cross_entropy", "mean", weighted=True),
        classified("cross_entropy", "mean", weighted=True, deep=True, label_smoothing=0.2),
        classified("cross_entropy", "none", deep=True, label_smoothing=0.1),
        soft("mean", weighted=True, deep=True),
        soft("none", label_smoothing=0.1),
    ),
    "nll_loss": (
        classified("nll_loss", "mean", weighted=True),
        classified("nll_loss", "none", deep=True, ignore_index=2),
    ),
    "mse_loss": (
        lambda b: b.add("mse_loss", leaf(b, BATCH, 5), leaf(b, BATCH, 5), shape=(), reduction="mean"),
        lambda b: b.add("mse_loss", leaf(b, BATCH, 5), b.input("t", (BATCH, 5)), shape=(), reduction="sum"),
        lambda b: b.add("mse_loss", weight(b, 5, 4), weight(b, 5, 4), shape=(), reduction="mean"),
    ),
    "l1_loss": (pointwise("l1_loss", "mean"),),
    "smooth_l1_loss": (pointwise("smooth_l1_loss", "mean", beta=0.3), pointwise("smooth_l1_loss", "none", beta=1.0)),
    "huber_loss": (pointwise("huber_loss", "sum", delta=0.4),),
    "kl_div": (
        pointwise("kl_div", "batchmean", squash="sigmoid", log_target=False),
        pointwise("kl_div", "mean", log_target=True),
    ),
    "binary_cross_entropy": (
        pointwise("binary_cross_entropy", "mean", squash="sigmoid"),
        pointwise("binary_cross_entropy", "sum", ("weight",), squash="sigmoid"),
    ),
    "binary_cross_entropy_with_logits": (
        pointwise("binary_cross_entropy_with_logits", "mean", ("weight", "pos_weight")),
        pointwise("binary_cross_entropy_with_logits", "none", ("pos_weight",)),
    ),
    "projection": (lambda b: b.add("projection", leaf(b, BATCH, 5, 4), shape=(), site=3),),
}

"""Cross entropy of logits whose classes are split: no rank ever has all logits of a sample (Megatron-LM's).

The ranks agree on the largest logit of each sample, then add up exponentials and the one logit that the label names.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from ...model.graph.builder import Builder
from ...model.graph.dtypes import FLOATS
from ...model.graph.layout import Action, R
from ..strategies.row import Row
from .registry import PROGRAMS, Message, Part, Situation, Special, Splits, register_strategy


def _rows(at: Situation) -> Iterator[Row]:
    """Labels, not probabilities; no weights of classes, no smoothing."""
    logits, labels = at.sources[:2]
    plain = labels.dtype not in FLOATS and len(at.sources) == 2 and not at.node.get("label_smoothing", 0.0)
    letter = at.split(0, 1) if len(logits.shape) > 1 else None
    if plain and letter is not None:
        yield Row((letter, R), R, ("classes", 0), "vocabulary")


def _messages(part: Part) -> Iterator[Message]:
    """One number of every sample, then two."""
    samples = prod(part.inputs[1]) * max(part.items[0], 4)
    yield Message(Action.SUM, samples)
    yield Message(Action.SUM, 2 * samples)


def _emit(site: Any, names: Sequence[str], splits: Splits) -> str:
    """The losses of all samples; adding them up and dividing is as of any loss."""
    ((axis, _),) = splits
    ignored = site.node.get("ignore_index", -100)
    classes = site.sources[0].shape[1]
    return f"vocabulary_cross_entropy({names[0]}, {names[1]}, {site.axes[axis]}, {classes}, {ignored})"


def _example(b: Builder) -> int:
    x = b.add("mul", b.input("x", (6, 23, 3)), b.parameter("scale", (23, 3)), shape=(6, 23, 3))
    t = b.add("input", name="labels", shape=(6, 3), dtype="int64", batch_dim=0, high=23)
    return b.add("cross_entropy", x, t, shape=(), reduction="mean", ignore_index=4)


register_strategy(
    Special(
        "vocabulary",
        ("cross_entropy",),
        _rows,
        _messages,
        _emit,
        program=PROGRAMS / "vocabulary.py",
        primitives=("all_reduce",),
        examples=(_example,),
    )
)

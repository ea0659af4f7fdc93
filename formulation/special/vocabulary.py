"""Cross entropy of logits whose classes are split (Megatron-LM): no rank ever has all logits of a sample.

The ranks agree on the largest logit of each sample, then add up the exponentials and the logit of the label.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from ...model.graph.builder import Builder
from ...model.graph.dtypes import FLOATS
from ...model.graph.layout import Action, R
from ..strategies.row import Row
from .example_inputs import integer_input, scaled_input
from .registry import PROGRAMS, Message, Part, Situation, Special, Splits, register_strategy


def _rows(at: Situation) -> Iterator[Row]:
    """Only for labels (not probabilities), without class weights and label smoothing."""
    logits, labels = at.sources[:2]
    plain = labels.dtype not in FLOATS and len(at.sources) == 2 and not at.node.get("label_smoothing", 0.0)
    letter = at.split(0, 1) if len(logits.shape) > 1 else None
    if plain and letter is not None:
        yield Row((letter, R), R, ("classes", 0), "vocabulary")


def _messages(part: Part) -> Iterator[Message]:
    """One number a sample, then two."""
    samples = prod(part.inputs[1]) * max(part.items[0], 4)
    yield Message(Action.SUM, samples)
    yield Message(Action.SUM, 2 * samples)


def _emit(site: Any, names: Sequence[str], splits: Splits) -> str:
    """The loss of each sample; the reduction is that of any loss."""
    ((axis, _),) = splits
    ignored = site.node.get("ignore_index", -100)
    classes = site.sources[0].shape[1]
    return f"vocabulary_cross_entropy({names[0]}, {names[1]}, {site.axes[axis]}, {classes}, {ignored})"


def _example(b: Builder) -> int:
    x, labels = scaled_input(b, 6, 23, 3, dims=2), integer_input(b, (6, 3), 23, "labels")
    return b.add("cross_entropy", x, labels, shape=(), reduction="mean", ignore_index=4)


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

"""Batch norms: counts are of the whole batch, and statistics are computed in at least float32."""

from __future__ import annotations

from collections.abc import Sequence

from ....model.operators.batch_norm import values_per_channel
from ....model.operators.operator import operator
from .operator_calls import OperatorCall, Rule


def _moments(call: OperatorCall, names: Sequence[str]) -> str:
    call.used.helpers.add("moments")
    return f"moments({names[0]})"


def _batch_norm(call: OperatorCall, names: Sequence[str]) -> str:
    """The helper of that name, given sums over all ranks and the number of values on all ranks."""
    call.used.helpers.add("batch_norm")
    given = dict(zip(call.node["operands"], names, strict=True))
    options = [f"eps={call.node['eps']!r}"]
    if "mean" in given:
        options += [f"running=({given['mean']}, {given['var']})", f"momentum={call.node['momentum']!r}"]
    options += [f"{word}={given[name]}" for name, word in (("w", "weight"), ("bias", "bias")) if name in given]
    return f"batch_norm({given['x']}, {given['s']}, {values_per_channel(call.sources[0])}, {', '.join(options)})"


def _local_batch_norm(call: OperatorCall, names: Sequence[str]) -> str:
    """In mixed precision weights have the dtype of the statistics, not of the input."""
    entry = operator("local_batch_norm")
    assert callable(entry.emit)
    wide = [
        f"{text}.float()" if call.mixed and name in ("w", "bias") else text
        for name, text in zip(call.node["operands"], names, strict=True)
    ]
    return entry.emit(call.node, wide)


RULES: dict[str, Rule] = {"moments": _moments, "batch_norm": _batch_norm, "local_batch_norm": _local_batch_norm}

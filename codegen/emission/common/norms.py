"""Batch norms: what they count is global, and what they compute in is float32 at least."""

from __future__ import annotations

from collections.abc import Sequence

from ....model.operators.batch_norm import values_per_channel
from ....model.operators.operator import operator
from .call_sites import Rule, Site


def _moments(site: Site, names: Sequence[str]) -> str:
    site.used.helpers.add("moments")
    return f"moments({names[0]})"


def _batch_norm(site: Site, names: Sequence[str]) -> str:
    """The helper of that name: by sums over all ranks, of as many values as all ranks have."""
    site.used.helpers.add("batch_norm")
    given = dict(zip(site.node["operands"], names, strict=True))
    options = [f"eps={site.node['eps']!r}"]
    if "mean" in given:
        options += [f"running=({given['mean']}, {given['var']})", f"momentum={site.node['momentum']!r}"]
    options += [f"{word}={given[name]}" for name, word in (("w", "weight"), ("bias", "bias")) if name in given]
    return f"batch_norm({given['x']}, {given['s']}, {values_per_channel(site.sources[0])}, {', '.join(options)})"


def _local_batch_norm(site: Site, names: Sequence[str]) -> str:
    """In mixed precision weights are of the statistics' dtype, whatever that of the input."""
    entry = operator("local_batch_norm")
    assert callable(entry.emit)
    wide = [
        f"{text}.float()" if site.mixed and name in ("w", "bias") else text
        for name, text in zip(site.node["operands"], names, strict=True)
    ]
    return entry.emit(site.node, wide)


RULES: dict[str, Rule] = {"moments": _moments, "batch_norm": _batch_norm, "local_batch_norm": _local_batch_norm}

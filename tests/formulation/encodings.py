"""Encodings with the fields of their options and stage as keywords."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from partita.formulation.encoding.encode import encode
from partita.formulation.encoding.encoding import Encoding
from partita.formulation.encoding.encoding_options import EncodingOptions, StageContext
from partita.formulation.placement.placement import Placement
from partita.formulation.search_space import SearchSpace
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine


def encoded_with(pcg: PCG, machine: Machine, placement: Placement, **keywords: Any) -> Encoding:
    """`encode`, each keyword going where it belongs; `fixed` maps nodes to their rows."""
    fix = tuple((name, ",".join(rows)) for name, rows in keywords.pop("fixed", {}).items())
    names = [name for name in ("bundles", "offload", "overlap", "compile") if name in keywords]
    space = SearchSpace(fix=fix, **{name: keywords.pop(name) for name in names})
    options, stage = (
        {f.name: keywords.pop(f.name) for f in fields(kind) if f.name in keywords}
        for kind in (EncodingOptions, StageContext)
    )
    made = EncodingOptions(space, **options)
    return encode(pcg, machine, placement, options=made, stage=StageContext(**stage), **keywords)

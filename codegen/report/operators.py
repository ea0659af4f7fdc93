"""`partita show MODEL --operators`: the operators of a model, as plans written by hand find and split them."""

from __future__ import annotations

from typing import Any

from ...formulation.spacetime.listing import COLUMNS, Listed, listing, table
from ...model.graph.random_numbers import from_counters
from ...model.training import Training
from ..planner.named_model import captured

NUMBERED = '; dim 0 as in split(("NAME", 0), n), its factor 0.1 as ("NAME", 0, 1)'
SECTIONS = ("inputs", "parameters", "operators")


def operators_of(reference: str, training: Training, *, small: bool) -> dict[str, Any]:
    """The inputs, parameters and operators (`Listed`) of a model, and its batch. PartitaError: no such model."""
    pcg = from_counters(captured(reference, training, small=small)[0])
    found: dict[str, list[Listed]] = {section: [] for section in SECTIONS}
    for entry in listing(pcg):
        found[{"input": "inputs", "parameter": "parameters"}.get(entry.operator, "operators")].append(entry)
    return {"model": reference, "batch": pcg.batch, **found}


def operators_json(found: dict[str, Any]) -> dict[str, Any]:
    """The output of `partita show MODEL --operators --json`."""
    return found | {section: [entry.to_json() for entry in found[section]] for section in SECTIONS}


def operators_text(found: dict[str, Any]) -> str:
    """A table in three sections; equal layers are told once."""
    lines = [f"{found['model']}, batch {found['batch']}; {COLUMNS}"]
    for section in SECTIONS:
        own = found[section]
        if own:
            note = "" if section == "operators" else NUMBERED
            lines += ["", f"{len(own)} {section}{note}", *(f"  {line}" for line in table(own))]
    return "\n".join(lines)

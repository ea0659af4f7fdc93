"""Space-time plans that were kept in a folder: shown, and their programs verified."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...model.cost import optimizer_states
from ...model.errors import PartitaError
from ...model.files import read_json, write_atomically
from ...model.pcg import PCG

if TYPE_CHECKING:
    from torch import nn

KIND, FORMAT = "space-time", 1


def is_space_time(folder: Path) -> bool:
    """Whether a folder holds a space-time plan."""
    file = folder / "plan.json"
    if not file.is_file():
        return False
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return False  # whoever reads it next says what is wrong
    return isinstance(found, Mapping) and found.get("kind") == KIND


def show(folder: Path, trace: Path | None = None) -> str:
    """A kept plan in words; also its timeline written to `trace`."""
    found = _kept(folder)
    if trace is not None:
        try:
            text = (folder / "trace.json").read_text()
        except OSError as error:
            raise PartitaError(f"cannot read {folder / 'trace.json'}: {error.strerror}") from error
        write_atomically(trace, text)
    return str(found["words"])


def verify(folder: Path, ranks: int | None = None, level: str = "threads") -> dict[str, Any]:
    """Run the program of a kept plan beside the unsharded module."""
    from ..verification.verify import run, trial

    found = _kept(folder)
    pcg, devices = PCG.from_json(found["graph"]), int(found["summary"]["devices"])
    if ranks is not None and ranks != devices:
        raise PartitaError(f"this plan is for {devices} ranks, not {ranks}: check it again with --devices {ranks}")
    path = folder / "program.py"
    if not path.is_file():
        raise PartitaError(f"there is no program.py in {folder}: `partita check -o DIR` writes one beside its plan")
    module, inputs = module_of(found["model"])
    made = trial(path, pcg, module, inputs, devices, pcg.batch, str(found["optimizer"]))
    return run([made], level)[0]


def _kept(folder: Path) -> Mapping[str, Any]:
    found: Mapping[str, Any] = read_json(folder / "plan.json")
    for key, kind in (("summary", Mapping), ("graph", Mapping), ("model", Mapping), ("words", str), ("optimizer", str)):
        if not isinstance(found, Mapping) or not isinstance(found.get(key), kind):
            raise PartitaError(f"{folder / 'plan.json'}: {key!r} is missing or malformed")
    if found.get("format") != FORMAT:
        raise PartitaError(
            f"{folder / 'plan.json'} is of format {found.get('format')}, this is for {FORMAT}: check it anew"
        )
    optimizer_states(found["optimizer"])
    if not isinstance(found["summary"].get("devices"), int):
        raise PartitaError(f"{folder / 'plan.json'}: its summary does not say how many devices")
    return found


def module_of(model: Mapping[str, Any]) -> tuple[nn.Module, Any]:
    """The module of a saved plan with example inputs, with weights. Raises PartitaError where it is not said how."""
    from ...model.load import load_module

    if not (model.get("reference") and isinstance(model["reference"], str)):
        raise PartitaError("the plan does not say how to build its module: give verify the module and its inputs")
    return load_module(model["reference"], small=bool(model.get("small")), sequence=model.get("sequence"), device="cpu")

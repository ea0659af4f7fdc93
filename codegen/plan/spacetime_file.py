"""Saved space-time plans."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ...model.errors import PartitaError
from ...model.files import write_atomically
from ...model.graph.graph_file import graph_from_json, graph_to_json
from ...model.graph.pcg import PCG
from ...model.initial_values import InitialValues
from ...model.optimizers import optimizer_states

KIND, FORMAT = "space-time", 1
_PARTS = {"summary": Mapping, "graph": Mapping, "model": Mapping, "words": str, "optimizer": str}


@dataclass(frozen=True)
class SavedSpaceTimePlan:
    """The plan.json of a space-time plan. Raises PartitaError if it is malformed."""

    content: Mapping[str, Any]
    module: None = None  # not saved

    def __post_init__(self) -> None:
        for key, kind in _PARTS.items():
            if not isinstance(self.content.get(key), kind):
                raise PartitaError(f"{key!r} is missing or malformed")
        if self.content.get("format") != FORMAT:
            raise PartitaError(
                f"format {self.content.get('format')}; this version reads format {FORMAT}: run `partita check` again"
            )
        optimizer_states(self.optimizer)
        if not isinstance(self.content["summary"].get("devices"), int):
            raise PartitaError("its summary lacks the number of devices")

    @cached_property
    def pcg(self) -> PCG:
        return graph_from_json(self.content["graph"])

    @property
    def ranks(self) -> int:
        return int(self.content["summary"]["devices"])

    @property
    def batch(self) -> int:
        return self.pcg.batch

    @property
    def optimizer(self) -> str:
        return str(self.content["optimizer"])

    @property
    def model(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.content["model"]
        return found

    @cached_property
    def initial(self) -> InitialValues | None:
        """How weights begin, if that is known."""
        return InitialValues.from_json(self.content["initial"]) if "initial" in self.content else None

    def __str__(self) -> str:
        return str(self.content["words"])


def text_of(content: Mapping[str, Any], pcg: PCG, initial: InitialValues | None) -> str:
    """The text of a plan.json: its parts, the graph, and how weights begin."""
    known = {"initial": initial.to_json()} if initial else {}
    return json.dumps({"kind": KIND, "format": FORMAT, **content, "graph": graph_to_json(pcg), **known}) + "\n"


def copy_trace(folder: Path, trace: Path) -> None:
    """Copy the timeline of a saved plan to `trace`."""
    try:
        text = (folder / "trace.json").read_text()
    except OSError as error:
        raise PartitaError(f"cannot read {folder / 'trace.json'}: {error.strerror}") from error
    write_atomically(trace, text)

"""`partita show`: a saved plan explained, all from one list of priced items."""

import json
from pathlib import Path

from ...model.errors import PartitaError
from ...model.files import write_atomically
from ..plan.plan_file import load_any
from ..plan.spacetime_file import SavedSpaceTimePlan, copy_trace
from .facts import facts
from .text import text


def show(folder: Path | str, html: Path | None = None, trace: Path | None = None) -> str:
    """Explain the plan in `folder`; also write a page to `html` and a Perfetto timeline to `trace` where given.

    A space-time plan has only its description and a timeline. Raises PartitaError if there is no plan, if it is
    malformed, or if a file cannot be written.
    """
    plan = load_any(folder)
    if isinstance(plan, SavedSpaceTimePlan):
        if html is not None:
            raise PartitaError(f"{folder} holds a space-time plan: it has a --trace, no page")
        if trace is not None:
            copy_trace(Path(folder), trace)
        return str(plan)
    found = facts(plan)
    if html is not None:
        from .page import page

        write_atomically(html, page(found))
    if trace is not None:
        from .trace import timeline

        write_atomically(trace, json.dumps(timeline(found), allow_nan=False) + "\n")
    return text(found)


def show_graph(folder: Path | str, as_json: bool = False) -> str:
    """The PCG of the plan in `folder` with its parallel operators (Unity, section 3), as text or JSON."""
    plan = load_any(folder)
    if isinstance(plan, SavedSpaceTimePlan):
        raise PartitaError(f"{folder} holds a space-time plan: it has a program and a --trace, no PCG")
    if plan.size > 1:
        raise PartitaError(
            f"{folder} holds a pipelined plan: its stages are graphs of their own, there is no PCG of all"
        )
    graph = plan.parallel_graph()
    return json.dumps(graph.to_json(), allow_nan=False) if as_json else str(graph)

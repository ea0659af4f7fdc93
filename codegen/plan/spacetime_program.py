"""The program of a space-time plan: validated, ordered and materialized; of a loop, from its template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ...formulation.spacetime.graph import Graph
from ...formulation.spacetime.loop import Irregular, expanded, loop_of, template
from ...formulation.spacetime.looped import Looped, looped, once
from ...formulation.spacetime.materialize import materialize
from ...formulation.spacetime.materialized import Materialized
from ...formulation.spacetime.order import Completed
from ...formulation.spacetime.slot_order import in_one_order
from ...formulation.spacetime.tasks import tasks
from ...model.garbage_collection import without_collection
from ...model.machine.machine import Machine
from .delegation import call


def one_by_one(reason: str) -> str:
    """The line of a plan whose micro-batches have operators of their own."""
    return f"micro-batches one by one, since they differ in more than their number: {reason}"


@without_collection()
def emitted(
    looped: Looped, expanded: Callable[[], Looped] | None, summary: Sequence[str], options: Mapping[str, Any]
) -> str:
    """The text of a program; `expanded` makes that of micro-batches one by one, where a loop has no text."""
    try:
        return str(call("emit_space_time", looped, summary=summary, **options))
    except Irregular as error:
        assert expanded is not None, "only a loop can be irregular"
        return str(call("emit_space_time", expanded(), summary=[*summary, one_by_one(str(error))], **options))


@dataclass(frozen=True, slots=True)
class Programs:
    """Makes programs of plans on a machine; `communication` and `dtype` as for `materialize`."""

    machine: Machine
    ranks: int
    communication: str
    dtype: str

    @without_collection()
    def of(self, graph: Graph) -> Looped:
        """The program of all micro-batches; a loop whose micro-batches are not alike is expanded."""
        loop = loop_of(graph)
        try:
            small = template(graph, loop) if loop else None
            if small is None:
                return self.expanded(graph)
            completed = in_one_order(self._validated(small.graph), small)
            return looped(completed, self._materialized(completed), small)
        except Irregular as error:  # what they are alike in does not suffice: each has its own operators
            return replace(self.expanded(graph), irregular=str(error))

    def expanded(self, graph: Graph) -> Looped:
        """The program with operators for every micro-batch."""
        loop = loop_of(graph)
        return once(self._materialized(self._validated(expanded(graph, loop) if loop else graph)))

    @without_collection()
    def later(self, graph: Graph) -> Callable[[], Looped]:
        """Makes `expanded` of the graph as it is now."""
        return partial(self.expanded, graph.copy())

    def _validated(self, graph: Graph) -> Completed:
        from ...solvers.spacetime.validate import validate

        return validate(tasks(graph), self.ranks)

    def _materialized(self, completed: Completed) -> Materialized:
        return materialize(completed, self.machine, communication=self.communication, dtype=self.dtype)

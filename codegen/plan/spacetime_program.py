"""The program of a space-time plan: validated, ordered and materialized; of a loop, from its template."""

from __future__ import annotations

from dataclasses import dataclass

from ...formulation.spacetime.graph import Graph
from ...formulation.spacetime.loop import expanded, loop_of, template
from ...formulation.spacetime.looped import Irregular, Looped, looped, once
from ...formulation.spacetime.materialize import materialize
from ...formulation.spacetime.materialized import Materialized
from ...formulation.spacetime.order import Completed
from ...formulation.spacetime.tasks import tasks
from ...model.machine.machine import Machine


@dataclass(frozen=True, slots=True)
class Programs:
    """Makes programs of plans on a machine; `communication` and `dtype` as for `materialize`."""

    machine: Machine
    ranks: int
    communication: str
    dtype: str

    def of(self, graph: Graph) -> Looped:
        """The program of all micro-batches; a loop whose micro-batches are not alike is expanded."""
        loop = loop_of(graph)
        small = template(graph, loop) if loop else None
        if small is not None:
            try:
                return looped(*self._materialized(small.graph), small)
            except Irregular:
                pass  # what they are alike in does not suffice: each has its own operators
        return self.expanded(graph)

    def expanded(self, graph: Graph) -> Looped:
        """The program with operators for every micro-batch."""
        loop = loop_of(graph)
        return once(self._materialized(expanded(graph, loop) if loop else graph)[1])

    def _materialized(self, graph: Graph) -> tuple[Completed, Materialized]:
        from ...solvers.spacetime.validate import validate

        completed = validate(tasks(graph), self.ranks)
        made = materialize(completed, self.machine, communication=self.communication, dtype=self.dtype)
        return completed, made

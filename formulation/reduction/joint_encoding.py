"""One cost network for several placements of a mesh: the placement is a variable beside the strategies.

It is the direct sum of the networks of all placements (`network.direct_sum`), whose choice is the placement. The
reduction programs can be variables too (`program_variables`), each joined to the placement.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from ..encoding.encoding import Encoding
from ..network.direct_sum import DirectSum, direct_sum
from .program_variables import ProgramVariable, program_variables

PLACEMENT = "placement"
"""The name of the variable whose option p is the p-th placement."""


@dataclass(frozen=True)
class JointEncoding(Encoding):
    """The network of several placements, `members` those of each alone; other fields are the first member's.

    The variables of `collectives` come last.
    """

    members: tuple[Encoding, ...]
    sum: DirectSum
    collectives: tuple[ProgramVariable, ...]

    def chosen(self, assignment: Sequence[int]) -> tuple[Encoding, tuple[int, ...]]:
        """The placement's own encoding, and the assignment of its network."""
        number, own = self.sum.chosen(assignment)
        return self.members[number], own

    def lifted(self, number: int, assignment: Sequence[int]) -> tuple[int, ...]:
        """The assignment of this network for one of a member's network, with its cheapest programs."""
        starts = (0 if start is None else start[number] for start in self.sum.starts)
        own = (x + start for x, start in zip(assignment, starts, strict=True))
        return (*own, number, *(one.cheapest[number] for one in self.collectives))

    def programs(self, assignment: Sequence[int]) -> tuple[dict[str, Any], ...]:
        """What runs for every collective and range of payloads, as JSON."""
        number, taken = assignment[self.sum.choice], assignment[self.sum.choice + 1 :]
        return tuple(one.to_json(number, option) for one, option in zip(self.collectives, taken, strict=True))


def joint_encoding(members: Sequence[Encoding], programs: bool = False) -> JointEncoding:
    """The joint network of encodings of one graph, with equal options, on placements of one mesh.

    Their axes may be in different orders. `programs`: with a variable for the reduction program of every collective.
    ValueError: the networks differ in more than their options and tables.
    """
    joined, first = direct_sum([member.network for member in members], PLACEMENT), members[0]
    placements = [member.placement for member in members]
    collectives = program_variables(first.machine, placements) if programs else ()
    network, count = joined.network, len(joined.network.variables)
    network = replace(
        network,
        variables=(*network.variables, *(one.variable(len(network.capacities)) for one in collectives)),
        edges=(*network.edges, *(one.edge(joined.choice, count + k) for k, one in enumerate(collectives))),
    )
    given = {field.name: getattr(first, field.name) for field in fields(Encoding)} | {"network": network}
    return JointEncoding(**given, members=tuple(members), sum=joined, collectives=collectives)

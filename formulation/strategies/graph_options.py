"""The options of every node of a graph on one mesh, restricted to what is fixed."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ...model.errors import PartitaError
from ...model.graph.atoms import atoms
from ...model.graph.joined_tables import table_rows
from ...model.graph.origin import origin
from ...model.graph.pcg import PCG
from ...model.machine.precision import Precision
from ...model.machine.roofline import Roofline
from ...model.operators.operator import operator
from ..parallelism import Role
from ..search_space import SearchSpace
from ..special.heuristic_spread import heuristic_spread
from ..special.table_spread import TableSpreader
from .fusion import fused_operands
from .operator_options import OperatorOptions, operator_options
from .role_rows import allowed_rows
from .strategy import ANY, row_names
from .transitions import Transitions

__all__ = ["GraphOptions", "OperatorOptions", "OptionsMemo"]


@dataclass
class OptionsMemo:
    """The options of nodes met so far; `numbers` maps what they depend on to their place in `options`.

    `both_ways`: the first axis of the mesh is that of the two directions of a pipeline.
    """

    options: list[OperatorOptions] = field(default_factory=list)
    numbers: dict[object, int] = field(default_factory=dict)
    both_ways: bool = False


class GraphOptions:
    """The options of every node of a graph on one mesh; equal nodes share theirs.

    Graphs of one batch may share `memo`, and stages of one graph `numbers_of_whole`, numbers by its indices. Nodes
    that `space` fixes have one row per mesh axis, see `row_names`; `ANY` leaves an axis open. Others take the rows that
    its parallelism allows on each axis. Looking up a node raises PartitaError if a name is not one of its rows, or if
    it has no legal option.
    """

    def __init__(
        self,
        pcg: PCG,
        transitions: Transitions,
        roofline: Roofline,
        precision: Precision,
        space: SearchSpace,
        spread_tables: TableSpreader = heuristic_spread,
        *,
        memo: OptionsMemo,
        numbers_of_whole: dict[int, int],
    ) -> None:
        self.pcg, self.transitions, self.roofline, self.precision = pcg, transitions, roofline, precision
        self.fixed, self.spread_tables = space.fixed, spread_tables
        self.memo, self.numbers_of_whole = memo, numbers_of_whole
        self.fused = fused_operands(pcg) if roofline.compiled else {}
        self.parallelism, self.roles = space.parallelism, space.parallelism.roles(transitions.axes, memo.both_ways)
        self.numbers: dict[int, int] = {}

    @property
    def axes(self) -> tuple[int, ...]:
        return self.transitions.axes

    def of(self, node: int) -> OperatorOptions:
        return self.memo.options[self.number(node)]

    def number(self, node: int) -> int:
        """A number that equal nodes share."""
        if node not in self.numbers:
            part, named = origin(self.pcg).part, self.pcg.nodes[node]
            if part is None or operator(named.op).transfer or named.name in self.fixed:
                self.numbers[node] = self._number(node)
            else:
                place = part[1][node]
                if place not in self.numbers_of_whole:
                    self.numbers_of_whole[place] = self._number(node)
                self.numbers[node] = self.numbers_of_whole[place]
        return self.numbers[node]

    def _number(self, index: int) -> int:
        node, known = self.pcg.nodes[index], atoms(self.pcg)
        given, fused = self.fixed.get(node.name), self.fused.get(index, frozenset())
        # The call site of a dropout tells it from others, as does what is handed on, but costs nothing: equal layers
        # stay equal.
        attributes = tuple(a for a in node.attributes if a[0] not in ("site", "peer"))
        sources = ((i, self.pcg.nodes[i]) for i in node.inputs)
        key: tuple[object, ...] = (
            node.op, attributes, node.shape, node.dtype, node.gradient, known[index], given, fused,
            tuple((n.op == "parameter", known[i], n.dtype, n.gradient, table_rows(n)) for i, n in sources),
        )  # fmt: skip
        allowed = None if given is not None else self._allowed(index)
        if allowed is not None:
            key = (*key, allowed.tobytes())
        if key not in self.memo.numbers:
            args = self.pcg, index, self.transitions, self.roofline, self.precision, self.spread_tables
            found = operator_options(*args, every=given is not None, fused=fused)
            if given is not None:
                found = self._restrict(index, found, given)
            if allowed is not None and len(found):
                found = self._by_roles(index, found, allowed)
            if not len(found):
                raise PartitaError(f"{node.op} {node.name!r} has no legal strategy on mesh {self.axes}")
            self.memo.numbers[key] = len(self.memo.options)
            self.memo.options.append(found)
        return self.memo.numbers[key]

    def _allowed(self, index: int) -> npt.NDArray[np.bool_] | None:
        """[axes, 2, rows]: the rows that an axis of each role may and should take; None if no axis has a role."""
        if all(role is Role.FREE for role in self.roles):
            return None
        by_positions = self.parallelism.sequence_parallel
        return np.array([allowed_rows(self.pcg, index, role, by_positions) for role in self.roles])

    def _by_roles(self, index: int, found: OperatorOptions, allowed: npt.NDArray[np.bool_]) -> OperatorOptions:
        axes = range(len(self.axes))
        keep, preferred = np.logical_and.reduce([allowed[axis, :, found.choice[:, axis]].T for axis in axes])
        keep = preferred if preferred.any() else keep
        if not keep.any():
            node = self.pcg.nodes[index]
            raise PartitaError(
                f"{node.op} {node.name!r} has no strategy on mesh {self.axes} that {self.parallelism} allows"
            )
        return found.only(keep)

    def _restrict(self, index: int, found: OperatorOptions, given: tuple[str, ...]) -> OperatorOptions:
        names = row_names(self.pcg, index)
        node = self.pcg.nodes[index]
        if len(given) != len(self.axes) or not set(given) <= {ANY, *names}:
            raise PartitaError(
                f"{node.name!r} cannot be fixed to {','.join(given)}: give {len(self.axes)} of {', '.join(names)}, "
                f"one for each axis of mesh {'x'.join(map(str, self.axes))}"
            )
        chosen = [axis for axis, name in enumerate(given) if name != ANY]
        keep = (found.choice[:, chosen] == np.array([names.index(given[axis]) for axis in chosen])).all(axis=1)
        if not keep.any():
            why = "copies of its table would add up their sparse gradients, or " if node.get("sparse") else ""
            raise PartitaError(
                f"{node.name!r} cannot be fixed to {','.join(given)}: {why}the split leaves a rank empty"
            )
        return found.only(keep)

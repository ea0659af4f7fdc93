"""The options of operators on one mesh: one row per axis, with the time and the memory that each takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ...model.errors import PartitaError
from ...model.graph.atoms import Atoms, atoms
from ...model.graph.dtypes import ITEMSIZE
from ...model.graph.joined_tables import table_rows
from ...model.graph.layout import B, Layout, P, S, smallest_part
from ...model.graph.origin import origin
from ...model.graph.pcg import PCG
from ...model.machine.precision import Precision
from ...model.machine.roofline import Roofline
from ...model.operators.operator import operator
from ..parallelism import ANY_PARALLELISM, Parallelism, Role
from ..special import Situation, special_strategy
from ..special.heuristic_spread import heuristic_spread
from ..special.table_spread import TableSpreader
from .fusion import fused_operands
from .mesh_node import MeshNode
from .option_costs import LOSS_TRANSIENTS, OptionCosts
from .role_rows import allowed_rows
from .row import Row
from .special_options import SpecialRows
from .strategy import row_names, rows
from .transitions import Codes, Space, Transitions, space

Array = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class OperatorOptions:
    """Options of a node: `choice[o, axis]` is a row, `inputs[i][o]` and `output[o]` are layout codes.

    `time_ns` is of one micro-batch, forward and backward, `forward_ns` its forward alone; `calls` [2, o] are those of
    the framework in forward, and in backward. `kept_bytes` is what the operator itself keeps for backward (its output
    or mask; kept inputs belong to the edges), `transient_bytes` what it holds at the turn to backward only. `saves[i]`:
    input i is kept, except by the options in `copied[i]`; `items[i]` are the bytes of an element. `saves_output[o]`:
    what is kept stands for the output.
    """

    rows: tuple[Row, ...]
    choice: npt.NDArray[np.int16]
    inputs: tuple[Codes, ...]
    output: Codes
    input_spaces: tuple[Space, ...]
    output_space: Space
    time_ns: Array
    forward_ns: Array
    calls: Array
    kept_bytes: Array
    transient_bytes: Array
    saves: tuple[bool, ...]
    copied: tuple[npt.NDArray[np.bool_], ...]
    items: tuple[int, ...]
    saves_output: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.output)

    def only(self, keep: npt.NDArray[np.bool_]) -> "OperatorOptions":
        """Some of the options."""
        inputs, copied = tuple(codes[keep] for codes in self.inputs), tuple(those[keep] for those in self.copied)
        arrays: dict[str, Any] = {
            name: getattr(self, name)[keep]
            for name in ("choice", "output", "time_ns", "forward_ns", "kept_bytes", "transient_bytes", "saves_output")
        }
        return replace(self, inputs=inputs, copied=copied, calls=self.calls[:, keep], **arrays)


def operator_options(
    pcg: PCG,
    node: int,
    transitions: Transitions,
    roofline: Roofline,
    precision: Precision,
    spread_tables: TableSpreader = heuristic_spread,
    *,
    every: bool = False,
    fused: frozenset[int] = frozenset(),
) -> OperatorOptions:
    """All options of a node: every product of rows whose splits leave no rank empty.

    `every`: also rows of special strategies that are not offered. `fused`: operands that need not be read (`fusion`).
    """
    axes, known, this = transitions.axes, atoms(pcg), pcg.nodes[node]
    sources = tuple(pcg.nodes[i] for i in this.inputs)
    spaces = tuple(space(axes, known[i].sizes) for i in (*this.inputs, node))
    at = MeshNode(
        this, sources, rows(pcg, node), spaces, transitions, roofline=roofline, precision=precision, fused=fused
    )
    situation = Situation(this, sources, tuple(known[i] for i in this.inputs), known[node])
    specials = SpecialRows(at, situation, spread_tables)
    choice = np.array(list(product(range(len(at.rows)), repeat=len(axes))), dtype=np.int16)
    letters = np.array([[*row.inputs, row.output] for row in at.rows], dtype=np.int64)  # [rows, operands]
    codes = [letters[choice, operand] @ s.weights for operand, s in enumerate(spaces)]
    legal = _legal(at, situation, codes)
    if not every:
        devices = transitions.machine.devices
        offered = [not row.special or special_strategy(row.special).offered(pcg.batch, devices) for row in at.rows]
        legal &= np.array(offered)[choice].all(axis=1)
    for option in np.flatnonzero(np.logical_and(legal, specials.among(choice))):
        legal[option] = specials.fits(choice[option], [int(c[option]) for c in codes])
    choice, codes = choice[legal], [c[legal] for c in codes]
    costs = OptionCosts(at, choice, codes, specials)
    forward_ns, time_ns = costs.times_ns()
    saved, is_loss = costs.entry.kept(this, sources), this.op in LOSS_TRANSIENTS
    saves_output = bool({"y", "noise"} & {*saved}) or (this.gradient and is_loss)
    return OperatorOptions(
        rows=at.rows,
        choice=choice,
        inputs=tuple(codes[:-1]),
        output=codes[-1],
        input_spaces=spaces[:-1],
        output_space=spaces[-1],
        time_ns=time_ns,
        forward_ns=forward_ns,
        calls=costs.calls(),
        kept_bytes=costs.kept_bytes(),
        transient_bytes=costs.transient_bytes(),
        saves=tuple(name in saved for name in costs.entry.named(this)),
        copied=tuple(costs.copied),
        # Losses compute in float32 at least, and keep that copy.
        items=tuple(ITEMSIZE["float32"] if is_loss and i < 4 else i for i in costs.items),
        saves_output=np.full(len(choice), saves_output),
    )


def _legal(at: MeshNode, situation: Situation, codes: Sequence[Codes]) -> npt.NDArray[np.bool_]:
    """The options that leave no rank empty, and that the operator can run."""
    legal = np.logical_and.reduce([s.is_legal[c] for s, c in zip(at.spaces, codes, strict=True)])
    if at.node.get("sparse"):  # the table is read as it is stored, and sparse gradients are not added up over ranks
        legal &= ~at.spaces[0].has(codes[0], B).any(axis=1)
        if not table_rows(at.sources[0]):
            legal &= ~at.spaces[0].has(codes[0], P).any(axis=1)
    if at.node.op == "local_batch_norm":  # one value has no variance
        layouts = (at.spaces[0].layout(int(code)) for code in codes[0])
        legal &= [least_values(situation.inputs[0], layout, at.transitions.axes) > 1 for layout in layouts]
    found: npt.NDArray[np.bool_] = legal
    return found


def least_values(x: Atoms, layout: Layout, axes: tuple[int, ...]) -> int:
    """The fewest values of a channel (dim 1) on a rank."""
    parts = {a: tuple(n for letter, n in zip(layout, axes, strict=True) if letter == S(a)) for a in range(len(x.sizes))}
    return prod(smallest_part(x.sizes[a], parts[a]) for a in parts if a not in x.of_dim(1))


@dataclass
class OptionsMemo:
    """The options of nodes met so far; `numbers` maps what they depend on to their place in `options`."""

    options: list[OperatorOptions] = field(default_factory=list)
    numbers: dict[object, int] = field(default_factory=dict)


class GraphOptions:
    """The options of every node of a graph on one mesh; equal nodes share theirs.

    Graphs of one batch may share `memo`, and stages of one graph `numbers_of_whole`, numbers by its indices. `fixed`
    names strategies of nodes: one row per mesh axis, see `row_names`. Other nodes take the rows that `parallelism`
    allows on each axis. Looking up a node raises PartitaError if a name is not one of its rows, or if it has no legal
    option.
    """

    def __init__(
        self,
        pcg: PCG,
        transitions: Transitions,
        roofline: Roofline,
        precision: Precision,
        fixed: Mapping[str, tuple[str, ...]],
        spread_tables: TableSpreader = heuristic_spread,
        *,
        parallelism: Parallelism = ANY_PARALLELISM,
        memo: OptionsMemo,
        numbers_of_whole: dict[int, int],
    ) -> None:
        self.pcg, self.transitions, self.roofline, self.precision = pcg, transitions, roofline, precision
        self.fixed, self.spread_tables, self.memo, self.numbers_of_whole = fixed, spread_tables, memo, numbers_of_whole
        self.fused = fused_operands(pcg) if roofline.compiled else {}
        self.parallelism, self.roles = parallelism, parallelism.roles(transitions.axes)
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
            raise PartitaError(f"{node.op} {node.name!r} cannot be divided as {self.parallelism} wants it")
        return found.only(keep)

    def _restrict(self, index: int, found: OperatorOptions, given: tuple[str, ...]) -> OperatorOptions:
        names = row_names(self.pcg, index)
        node = self.pcg.nodes[index]
        if len(given) != len(self.axes) or not set(given) <= set(names):
            raise PartitaError(
                f"{node.name!r} cannot be fixed to {','.join(given)}: give {len(self.axes)} of {', '.join(names)}, "
                f"one for each axis of mesh {'x'.join(map(str, self.axes))}"
            )
        keep = (found.choice == np.array([names.index(name) for name in given])).all(axis=1)
        if not keep.any():
            why = "copies of its table would add up their sparse gradients, or " if node.get("sparse") else ""
            raise PartitaError(
                f"{node.name!r} cannot be fixed to {','.join(given)}: {why}the split leaves a rank empty"
            )
        return found.only(keep)

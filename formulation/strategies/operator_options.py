"""The options of operators on one mesh: one row per axis, with the time and the memory that each takes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from ...model.graph.atoms import Atoms, atoms
from ...model.graph.dtypes import ITEMSIZE
from ...model.graph.joined_tables import table_rows
from ...model.graph.layout import B, Layout, P, S, smallest_part
from ...model.graph.pcg import PCG
from ...model.machine.precision import Precision
from ...model.machine.roofline import Roofline
from ..special import Situation, special_strategy
from ..special.heuristic_spread import heuristic_spread
from ..special.table_spread import TableSpreader
from .mesh_node import MeshNode
from .option_costs import LOSS_TRANSIENTS, OptionCosts
from .row import Row
from .special_options import SpecialRows
from .strategy import rows
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

"""The options of operators on one mesh: one row per axis, with the time and the memory that each takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...model.errors import PartitaError
from ...model.graph.atoms import Atoms, atoms
from ...model.graph.dtypes import ITEMSIZE
from ...model.graph.joined_tables import table_rows
from ...model.graph.layout import B, Layout, P, S, atom_of, is_split, largest_part, smallest_part
from ...model.graph.origin import origin
from ...model.graph.pcg import PCG
from ...model.machine.precision import Precision
from ...model.machine.roofline import Roofline, backward_factor
from ...model.operators.operator import operator
from ..pipeline.stage_transfers import messages
from ..special import Situation, part_of, special_rows_fit, special_strategy
from ..special.level_spread import level_spread
from ..special.table_spread import TableSpread, TableSpreader
from .row import Row
from .strategy import row_names, rows
from .transitions import Codes, Space, Transitions, space

Array = npt.NDArray[np.int64]

LOSS_TRANSIENTS = {"cross_entropy": 1}
"""Operators at the turn from forward to backward, when all activations live: copies of their input that come on top."""


@dataclass(frozen=True, eq=False)
class OperatorOptions:
    """Options of a node: `choice[o, axis]` is a row, `inputs[i][o]` and `output[o]` are layout codes.

    `time_ns` is of one micro-batch, forward and backward, `forward_ns` its forward alone; `kept_bytes` what the
    operator itself keeps for backward (its output or mask; kept inputs belong to the edges), `transient_bytes` what it
    takes at the turn to backward only. `saves[i]` says whether
    input i is kept, but for the options in `copied[i]`, `items[i]` the bytes of an element, `saves_output[o]` whether
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
        return replace(self, inputs=inputs, copied=copied, **arrays)


def operator_options(
    pcg: PCG,
    node: int,
    transitions: Transitions,
    roofline: Roofline,
    precision: Precision,
    balance: TableSpreader = level_spread,
    every: bool = False,
) -> OperatorOptions:
    """All options of a node: every product of rows whose splits leave no rank empty; `balance` spreads tables.

    `every`: with those of special strategies that are not worth it too.
    """
    axes = transitions.axes
    found, known, this = rows(pcg, node), atoms(pcg), pcg.nodes[node]
    sources = tuple(pcg.nodes[i] for i in this.inputs)
    input_spaces = tuple(space(axes, known[i].sizes) for i in this.inputs)
    output_space = space(axes, known[node].sizes)
    choice = np.array(list(product(range(len(found)), repeat=len(axes))), dtype=np.int16)
    letters = np.array([[*row.inputs, row.output] for row in found], dtype=np.int64)  # [rows, operands]
    spaces = (*input_spaces, output_space)
    codes = [letters[choice, operand] @ s.weights for operand, s in enumerate(spaces)]
    legal = np.logical_and.reduce([s.is_legal[c] for s, c in zip(spaces, codes, strict=True)])
    if this.get("sparse"):  # the table is read as it is stored, and sparse gradients are not added up over ranks
        legal &= ~spaces[0].has(codes[0], B).any(axis=1)
        if not table_rows(sources[0]):
            legal &= ~spaces[0].has(codes[0], P).any(axis=1)
    if this.op == "local_batch_norm":  # one value has no variance
        source = known[this.inputs[0]]
        legal &= [least_values(source, spaces[0].layout(int(code)), axes) > 1 for code in codes[0]]
    specials = _Specials(pcg, node, transitions, precision, found, spaces, balance)
    if not every:
        devices = transitions.machine.devices
        worth = [not row.special or special_strategy(row.special).worth(pcg.batch, devices) for row in found]
        legal &= np.array(worth)[choice].all(axis=1)
    for option in np.flatnonzero(np.logical_and(legal, specials.among(choice))):
        legal[option] = specials.fits(choice[option], [int(c[option]) for c in codes])
    choice, codes = choice[legal], [c[legal] for c in codes]
    *inputs, output = codes

    # Arithmetic shrinks with every split index, memory traffic with what each tensor holds locally.
    entry = operator(this.op)
    shares = _shares(found, choice, axes, input_spaces, output_space)
    share, made = np.prod([np.ones(len(choice)), *shares.values()], axis=0), np.zeros(len(choice), dtype=np.int64)
    if entry.split is not None:
        for name, part in shares.items():
            for value in np.unique(part[part < 1]):
                more, elements = entry.split(this, sources, name, float(value))
                share[part == value] *= more
                made[part == value] += elements
    copied = [np.zeros(len(choice), dtype=bool) for _ in sources]
    sent = np.zeros((3, len(choice)), dtype=np.int64)  # ns forward and backward, bytes kept
    stored = [s.numel[c] for s, c in zip(input_spaces, inputs, strict=True)]
    for option in np.flatnonzero(specials.among(choice)):
        cost = specials.cost(choice[option], [int(c[option]) for c in codes])
        sent[:, option], share[option] = cost.amounts, share[option] * cost.work
        for operand in cost.copied:
            copied[operand][option] = True
        if cost.spread is not None:
            stored[0][option] = cost.spread.largest.elements
    items = tuple(precision.itemsize(s.dtype) for s in sources)
    traffic = output_space.numel[output] * precision.itemsize(this.dtype)
    looked_up = entry.looked_up(this, sources)
    for i, (s, c, item) in enumerate(zip(input_spaces, inputs, items, strict=True)):
        if looked_up and i == looked_up[0]:  # what is looked up, not the table
            # The rows of a sparse table are cast after the look-up: they are read, written and read again before.
            apart = precision.compute != precision.master
            once = 3 * ITEMSIZE[precision.master] if this.get("sparse") and apart else item
            traffic = traffic + looked_up[1] * share * once
        else:
            traffic = traffic + s.numel[c] * item
    work = entry.work(this, sources) * share
    forward = time = np.zeros(len(choice), dtype=np.int64)
    if entry.passes:
        forward = time = roofline.ns(work, traffic * entry.passes)
        if this.gradient:
            moved = 2 * traffic * entry.passes
            if entry.scratch is not None:
                moved = moved + 2 * entry.scratch(this, sources) * share * precision.itemsize(this.dtype)
            time = time + roofline.ns(work * backward_factor(this, sources, entry.matmul), moved)
            if entry.masked:  # priced as the activation's own backward
                own = output_space.numel[output] * 1.0
                time = time + roofline.ns(own, 4 * own * precision.itemsize(this.dtype))
    if entry.transfer:  # the value one way, its gradient the other
        forward = transitions.transfer.ns_array(output_space.numel[output] * precision.itemsize(this.dtype))
        time = forward * (1 + this.gradient)
    dense = this.gradient and not this.get("sparse")
    if dense and looked_up and sources[looked_up[0]].gradient:  # the gradient of the table is zeroed, then added to
        table = looked_up[0]
        time = time + roofline.memory_ns(stored[table] * items[table] * 1.0)
    forward, time, kept = forward + sent[0], time + sent[0] + sent[1] * this.gradient, sent[2] * this.gradient
    if this.gradient and made.any():
        kept = kept + made * items[0]
    saved = entry.kept(this, sources)
    for name in saved:
        if name == "y":
            kept = kept + output_space.numel[output] * precision.itemsize(this.dtype)
        elif name in ("mask", "noise"):
            item = items[0] if name == "noise" else ITEMSIZE["bool"]
            kept = kept + input_spaces[0].numel[inputs[0]] * item
        elif name == "indices":
            kept = kept + output_space.numel[output] * ITEMSIZE["int64"]
    transient = np.zeros(len(choice), dtype=np.int64)
    for _ in range(LOSS_TRANSIENTS.get(this.op, 0)):
        item = ITEMSIZE["float32"] + (items[0] if precision.narrow else 0)
        transient = transient + input_spaces[0].numel[inputs[0]] * item
    if entry.transfer:
        transient = messages(this.gradient) * output_space.numel[output] * precision.itemsize(this.dtype)
    names = entry.named(this)
    # Losses compute in float32 at least, and keep that copy.
    kept_items = tuple(ITEMSIZE["float32"] if this.op in LOSS_TRANSIENTS and i < 4 else i for i in items)
    return OperatorOptions(
        found,
        choice,
        tuple(inputs),
        output,
        input_spaces,
        output_space,
        time,
        forward,
        kept,
        transient,
        tuple(n in saved for n in names),
        tuple(copied),
        kept_items,
        np.full(len(choice), bool({"y", "noise"} & {*saved}) or (this.gradient and this.op in LOSS_TRANSIENTS)),
    )


def least_values(x: Atoms, layout: Layout, axes: tuple[int, ...]) -> int:
    """The fewest values of a channel (dim 1) that a rank has."""
    parts = {a: tuple(n for letter, n in zip(layout, axes, strict=True) if letter == S(a)) for a in range(len(x.sizes))}
    return prod(smallest_part(x.sizes[a], parts[a]) for a in parts if a not in x.of_dim(1))


def _shares(
    found: tuple[Row, ...],
    choice: npt.NDArray[np.int16],
    axes: tuple[int, ...],
    input_spaces: tuple[Space, ...],
    output_space: Space,
) -> dict[str, npt.NDArray[np.float64]]:
    """By index, the largest share of what it counts that one rank has, per option; of the work it has their product."""
    shares: dict[str, npt.NDArray[np.float64]] = {}
    for number, row in enumerate(found):
        if row.index is None or row.index[0].startswith("@"):  # every rank looks up all ids among its rows
            continue
        letter, owner = next(
            (x, s) for x, s in zip((*row.inputs, row.output), (*input_spaces, output_space), strict=True) if is_split(x)
        )
        size = owner.sizes[atom_of(letter)]
        mask = (choice == number) @ (1 << np.arange(len(axes)))
        parts = [tuple(axes[a] for a in range(len(axes)) if m >> a & 1) for m in range(1 << len(axes))]
        share = np.array([largest_part(size, p) / size for p in parts])[mask]
        shares[row.index[0]] = shares.get(row.index[0], 1.0) * share
    return shares


class _Cost(NamedTuple):
    """Of one option's special rows: ns forward and backward and bytes kept, more work, operands kept in other forms.

    `spread`: of joined tables, where they are the first operand.
    """

    amounts: tuple[int, int, int]
    work: float
    copied: tuple[int, ...]
    spread: TableSpread | None


class _Specials:
    """The special rows among the rows of a node."""

    def __init__(
        self,
        pcg: PCG,
        node: int,
        transitions: Transitions,
        precision: Precision,
        found: tuple[Row, ...],
        spaces: tuple[Space, ...],
        balance: TableSpreader,
    ) -> None:
        known, this = atoms(pcg), pcg.nodes[node]
        sources = tuple(pcg.nodes[i] for i in this.inputs)
        self.situation = Situation(this, sources, tuple(known[i] for i in this.inputs), known[node])
        self.found, self.spaces, self.transitions = found, spaces, transitions
        self.items = tuple(precision.itemsize(s.dtype) for s in sources)
        self.item = precision.itemsize(this.dtype)
        self.special = np.array([bool(row.special) for row in found])
        self.balance = balance

    def among(self, choice: npt.NDArray[np.int16]) -> npt.NDArray[np.bool_]:
        """The options with a special row."""
        return np.asarray(self.special[choice].any(axis=1), dtype=np.bool_)

    def _layouts(self, codes: Sequence[int]) -> tuple[tuple[Layout, ...], Layout]:
        *inputs, output = (s.layout(c) for s, c in zip(self.spaces, codes, strict=True))
        return tuple(inputs), output

    def fits(self, choice: npt.NDArray[np.int16], codes: Sequence[int]) -> bool:
        inputs, output = self._layouts(codes)
        sizes, taken = self.transitions.axes, [self.found[r] for r in choice]
        spreads = (self._spread(row, n) for row, n in zip(taken, sizes, strict=True) if n > 1 and self._spreads(row))
        return None not in spreads and special_rows_fit(taken, inputs, output, sizes)

    def _spreads(self, row: Row) -> bool:
        """Whether a row asks for joined tables that are spread."""
        return bool(row.special) and row.inputs[0] == P and bool(table_rows(self.situation.sources[0]))

    def _spread(self, row: Row, ranks: int) -> TableSpread | None:
        table = self.situation.sources[0]
        return self.balance(table_rows(table), table.shape[1], ranks) if self._spreads(row) else None

    def cost(self, choice: npt.NDArray[np.int16], codes: Sequence[int]) -> _Cost:
        inputs, output = self._layouts(codes)
        sizes, sums, work, copied = self.transitions.axes, [0, 0, 0], 1.0, set[str]()
        spread = None
        for axis, row in enumerate(self.found[r] for r in choice):
            if not row.special or sizes[axis] == 1:
                continue
            entry = special_strategy(row.special)
            here = self._spread(row, sizes[axis])
            part = part_of(self.situation, row, sizes[axis], inputs, output, sizes, self.items, self.item, here)
            spread = spread or here
            for message in entry.messages(part):
                ns = self.transitions.step_ns(axis, message.action, message.size_bytes)
                sums[message.backward] += ns * message.times
            sums[2] = max(sums[2], entry.kept(part))
            work *= entry.work(part)
            copied.update(entry.copied(part))
        names = operator(self.situation.node.op).named(self.situation.node)
        operands = tuple(k for k, name in enumerate(names) if name in copied)
        return _Cost((sums[0], sums[1], sums[2]), work, operands, spread)


@dataclass
class OptionsMemo:
    """The options of nodes met so far; `numbers` maps what they depend on to their place in `options`."""

    options: list[OperatorOptions] = field(default_factory=list)
    numbers: dict[object, int] = field(default_factory=dict)


class GraphOptions:
    """The options of every node of a graph on one mesh; equal nodes share theirs.

    Graphs of one batch may share `memo`, and stages of one graph `numbers_of_whole`, numbers by its indices. `fixed`
    names strategies of nodes: one row per mesh axis, see `row_names`. PartitaError, when a node is asked for: a name
    that is no row of it, no legal option.
    """

    def __init__(
        self,
        pcg: PCG,
        transitions: Transitions,
        roofline: Roofline,
        precision: Precision,
        fixed: Mapping[str, tuple[str, ...]],
        spread_tables: TableSpreader = level_spread,
        *,
        memo: OptionsMemo,
        numbers_of_whole: dict[int, int],
    ) -> None:
        self.pcg, self.transitions, self.roofline, self.precision = pcg, transitions, roofline, precision
        self.fixed, self.spread_tables, self.memo, self.numbers_of_whole = fixed, spread_tables, memo, numbers_of_whole
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
        wish = self.fixed.get(node.name)
        # The call site of a dropout tells it from others, as does what is handed on, but costs nothing: equal layers
        # stay equal.
        attributes = tuple(a for a in node.attributes if a[0] not in ("site", "peer"))
        sources = ((i, self.pcg.nodes[i]) for i in node.inputs)
        key = (
            node.op, attributes, node.shape, node.dtype, node.gradient, known[index], wish,
            tuple((n.op == "parameter", known[i], n.dtype, n.gradient, table_rows(n)) for i, n in sources),
        )  # fmt: skip
        if key not in self.memo.numbers:
            args = self.pcg, index, self.transitions, self.roofline, self.precision, self.spread_tables
            found = operator_options(*args, every=wish is not None)
            if wish is not None:
                found = self._restrict(index, found, wish)
            if not len(found):
                raise PartitaError(f"{node.op} {node.name!r} has no legal strategy on mesh {self.axes}")
            self.memo.numbers[key] = len(self.memo.options)
            self.memo.options.append(found)
        return self.memo.numbers[key]

    def _restrict(self, index: int, found: OperatorOptions, wish: tuple[str, ...]) -> OperatorOptions:
        names = row_names(self.pcg, index)
        node = self.pcg.nodes[index]
        if len(wish) != len(self.axes) or not set(wish) <= set(names):
            raise PartitaError(
                f"{node.name!r} cannot be fixed to {','.join(wish)}: give {len(self.axes)} of {', '.join(names)}, "
                f"one for each axis of mesh {'x'.join(map(str, self.axes))}"
            )
        keep = (found.choice == np.array([names.index(w) for w in wish])).all(axis=1)
        if not keep.any():
            why = "copies of its table would add up their sparse gradients, or " if node.get("sparse") else ""
            raise PartitaError(f"{node.name!r} cannot be fixed to {','.join(wish)}: {why}the split leaves a rank empty")
        return found.only(keep)

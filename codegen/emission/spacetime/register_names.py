"""Names of registers: the store and key of a tensor on a device, and when it leaves the store."""

from collections import Counter
from collections.abc import Mapping

from ....formulation.spacetime.mask import GRADIENT, UPDATED, VALUE, Box
from ....formulation.spacetime.materialized import Accumulate, Register, Run, Slice, reads, writes
from ....formulation.spacetime.op import Phase
from ..common.rolled_lines import quoted
from .data_flow import Flow, Lane, numbered
from .segments import Arranged, arrange

STORES = {VALUE: "v", GRADIENT: "g", UPDATED: "u"}
"""The stores of values, gradients, and new weights; weights from other devices are in `w`."""


def lane_text(lane: Lane) -> str:
    """The end of the keys of a micro-batch's tensors."""
    return "".join(f", {numbered(label, number)}" for label, number in lane)


class Registers:
    """The registers of one device while its statements are written.

    A register has its name while it is live: its last read takes it out of its store, or a statement after it
    (`handed`). `left`: the remaining reads of every register; None while they are being counted.
    """

    def __init__(self, flow: Flow, shapes: Mapping[Register, tuple[int, ...]]) -> None:
        self.flow, self.shapes = flow, shapes
        self.arranged: Arranged = arrange(flow)
        self.totals: dict[int, Register] = {}  # by parameter: the last, of all micro-batches
        for instruction in flow.instructions:
            if isinstance(instruction, Accumulate):
                self.totals[instruction.total.tensor.node] = instruction.total
        self.handed: dict[Register, bool] = {}  # what leaves its store by a statement of its own: whether at the end
        self.boxes: dict[int, list[Box]] = {}
        self.kept: Counter[int] = Counter()  # by parameter: how many boxes are kept here
        self.left: Counter[Register] | None = None
        self.lane: dict[Register, Lane] = {}
        self.forget_all()
        self._stored()

    def forget_all(self) -> None:
        """Forget all names."""
        self.named: dict[Register, str] = {}
        self.live: dict[str, set[str]] = {store: set() for store in "vgwu"}
        self.alias: dict[Register, Register] = {}
        self.reads: Counter[Register] = Counter()
        self.dropped: list[Register] = []  # of those handed on, what leaves after the statement that is being written
        self.dropped_last: list[Register] = []  # what leaves after all micro-batches

    def find_lanes(self) -> None:
        """Find the lane of every register: that of its writer, else what those of its readers have in common.

        So a constant that all micro-batches read belongs to none of them.
        """
        flow = self.flow
        of = {op: segment.lane for segment in self.arranged.segments for op in segment.ops}
        for place, instruction in enumerate(flow.instructions):
            if flow.phase(place) is not None:
                self.lane.update(dict.fromkeys(writes(instruction), of[flow.op(place)]))
            elif isinstance(instruction, Run | Accumulate):
                self.lane.update(dict.fromkeys(writes(instruction), ()))
        written = {*self.lane}
        for place in reversed(range(len(flow.instructions))):
            if flow.phase(place) is not None:
                lane: Lane | None = of[flow.op(place)]
            else:
                lane = next((self.lane[r] for r in writes(flow.instructions[place]) if r in self.lane), None)
            for register in reads(flow.instructions[place]):
                if lane is not None and register not in written:
                    common = self.lane.get(register, lane)
                    self.lane[register] = common if common == lane else tuple(own for own in common if own in lane)
        for instruction in flow.instructions:
            known = [self.lane[r] for r in reads(instruction) if r in self.lane]
            for register in writes(instruction):
                self.lane.setdefault(register, known[0] if known else ())

    def _stored(self) -> None:
        """Number the boxes of parameters as the model does: those kept here come first."""
        for phase in (Phase.STORE, Phase.UPDATE):
            ops = [run.op for run in self.flow.instructions if isinstance(run, Run) and run.op.phase is phase]
            for op in sorted(ops, key=lambda op: op.mask(None).box):
                known, box = self.boxes.setdefault(op.node, []), op.mask(None).box
                if box not in known:
                    known.append(box)
                    self.kept[op.node] += phase is Phase.STORE

    def name(self, register: Register) -> str:
        """The key of a register in its store, unique until its last read."""
        if register not in self.named:
            store, node = self.store(register), register.tensor.node
            if store in ("w", "u") and self.is_kept(register):
                self.named[register] = self.box_name(node, register.mask.box)
                return self.named[register]
            name = self.flow.pcg.nodes[node].name
            count = 1
            while (key := quoted(name, count) + lane_text(self.lane[register])) in self.live[store]:
                count += 1
            self.live[store].add(key)
            self.named[register] = key
        return self.named[register]

    def box_name(self, node: int, box: Box) -> str:
        """The name of a part of a parameter that is kept or updated here."""
        count = self.boxes[node].index(box) + 1
        return quoted(self.flow.pcg.nodes[node].name, count, always=self.kept[node] > 1)

    def store(self, register: Register) -> str:
        """Weights have a store of their own."""
        return "w" if self.flow.graph.of_parameter(register.tensor) else STORES.get(register.tensor.kind, "v")

    def is_kept(self, register: Register) -> bool:
        makers = [self.flow.instructions[p] for p in self.flow.writers[register]]
        return any(isinstance(m, Run) and m.op.phase in (Phase.STORE, Phase.UPDATE) for m in makers)

    def put(self, register: Register) -> str:
        """The place where a register is written."""
        return f"{self.store(register)}[{self.name(register)}]"

    def use(self, register: Register) -> str:
        """The expression that reads a register; the last read takes it out of its store, or has it `dropped`."""
        register = self.alias.get(register, register)
        store, name, last = self.store(register), self.name(register), self.is_last_read(register)
        if self.is_kept(register):
            if name not in self.live[store]:
                return f"{store}[{name}]"
            return f"run.model.parts[{name}]" if store == "w" else f"run.model.new({name})"  # what came has this name
        if last and register in self.handed:
            (self.dropped_last if self.handed[register] else self.dropped).append(register)
        if not last or register in self.handed:
            return f"{store}[{name}]"
        self.forget(register)
        return f"{store}.take({name})"

    def is_last_read(self, register: Register) -> bool:
        """Count a read; True if it is known to be the last."""
        self.reads[register] += 1
        if self.left is not None:
            self.left[register] -= 1
        return self.left is not None and self.left[register] <= 0

    def forget(self, register: Register) -> None:
        self.live[self.store(register)].discard(self.named.pop(register))

    def from_store(self, register: Register) -> Register | None:
        """The stored parameter that a register is a slice of."""
        makers = [self.flow.instructions[p] for p in self.flow.writers[register]]
        match makers:
            case [Run()]:
                return register
            case [Slice(source=source)]:
                return self.from_store(source)
        return None

    def is_copied(self, register: Register) -> bool:
        """True for a part of a stored parameter along an inner factor of a dim: a copy, not a view."""
        stored = self.from_store(register)
        if stored is None:
            return False
        atoms = self.flow.graph.atoms[register.tensor.node]
        moved = {a for a, edge in enumerate(register.mask.box) if edge != stored.mask.box[a]}
        return any(moved & {*atoms.of_dim(dim)[1:]} for dim in range(len(atoms.dims)))

    def for_update(self, register: Register) -> bool:
        """True if only an update reads a register."""
        readers = [self.flow.instructions[p] for p in self.flow.readers[register]]
        updates = [isinstance(reader, Run) and reader.op.phase is Phase.UPDATE for reader in readers]
        return register.tensor.kind == VALUE and bool(updates) and all(updates)

"""Builds a materialized program: places instructions in the total order, after the registers they read."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import TypeAlias

from .aligned import GroupPattern
from .graph import Graph
from .mask import ALL, GRADIENT, Addends, Box, Mask, PTensor, cells, meet
from .materialized import (
    Accumulate,
    Add,
    Collective,
    Instruction,
    Join,
    Materialized,
    Pad,
    Receive,
    Register,
    Run,
    Send,
    Slice,
    Transfer,
    Zeros,
    reads,
)
from .op import Op, Phase
from .tasks import Tasks, Via

Place: TypeAlias = tuple[int, int]
"""(task, 0 before / 1 with / 2 after it); events at one place keep the order of creation."""

BEFORE, WITH, AFTER = range(3)
START: Place = (-1, AFTER)

_Dims: TypeAlias = tuple[range, ...]

_Event: TypeAlias = tuple[Place, dict[int, Instruction]]

Part: TypeAlias = tuple[Box, Register]
"""A register that holds the value, or an addend of it, in a box."""


class EventBuilder:
    """Collects events; an event lies no earlier than those that create the registers it reads.

    Places follow the order of tasks, so an event of several devices has one number in the total order. `together`: by
    task, the last of those that run at the same time on other devices.
    """

    def __init__(self, graph: Graph, together: Sequence[int]) -> None:
        self.graph, self.together = graph, together
        self.events: list[_Event] = []
        self.ready: dict[int, Place] = {}  # by number of the register
        self.shapes: dict[Register, tuple[int, ...]] = {}
        self._shapes: dict[int, tuple[_Dims, dict[Box, tuple[int, ...]]]] = {}  # by node: of its parts by box
        self._alike: dict[_Dims, dict[Box, tuple[int, ...]]] = {}  # the same of nodes with equal dims
        self._runs: dict[int, dict[int, Instruction]] = {}  # by place
        self._own: set[int] = set()  # numbers of the registers that transfers or copies made, each for one reader
        self._sent: set[int] = set()  # numbers of those that came in messages of another device, whole or in part

    def register(self, device: int, tensor: PTensor, mask: Mask, via: Via, ready: Place) -> Register:
        """A new register, created by the event at `ready`."""
        made = Register(len(self.ready), device, tensor, mask, via)
        self.ready[made.number] = ready
        self.shapes[made] = self._shape(tensor.node, mask.box)
        return made

    def _shape(self, node: int, box: Box) -> tuple[int, ...]:
        if node not in self._shapes:
            known = self.graph.atoms[node]
            dims = tuple(known.of_dim(dim) for dim in range(len(known.dims)))
            self._shapes[node] = dims, self._alike.setdefault(dims, {})
        dims, found = self._shapes[node]
        if box not in found:
            found[box] = tuple(prod(box[atom][1] - box[atom][0] for atom in atoms) for atoms in dims)
        return found[box]

    def after(self, registers: Sequence[Register], floor: Place) -> Place:
        """The first place, from `floor` on, at which all registers are ready."""
        return max([floor, *(_soon(self.ready[r.number]) for r in registers)])

    def run(self, at: int, run: Run) -> None:
        """Run a task at its place, with those that it meets there."""
        op = run.op
        assert op.device is not None
        assert all(self.ready[r.number] < (at, WITH) and r.device == op.device for r in run.reads), op
        if at not in self._runs:
            self.events.append(((at, WITH), self._runs.setdefault(at, {})))
        self._runs[at][op.device] = run

    # On one device

    def slice(self, source: Register, box: Box, floor: Place, copied: bool = False) -> Register:
        """The part of a register in a box."""
        if box == source.mask.box:
            return source
        mask = Mask(box, source.mask.addends)
        made = self._made(mask, source.via, [source], floor, lambda t: Slice(t, source, copied))
        if copied:
            self._own.add(made.number)
        return made

    def zeros(self, device: int, tensor: PTensor, box: Box, place: Place, omitted: bool = False) -> Register:
        made = self.register(device, tensor, Mask(box), None, place)
        self.events.append((place, {device: Zeros(made, omitted)}))
        return made

    def add(self, sources: Sequence[Register], floor: Place) -> Register:
        """The sum of registers with one box."""
        if len(sources) == 1:
            return sources[0]
        mask, via = combined(sources)
        return self._made(mask, via, sources, floor, lambda t: Add(t, tuple(sources)))

    def join(self, box: Box, sources: Sequence[Register], floor: Place) -> Register:
        """Concatenate registers whose boxes form a grid over `box`, in row-major order."""
        if len(sources) == 1:
            return sources[0]
        mask, via = combined(sources)
        return self._made(Mask(box, mask.addends), via, sources, floor, lambda t: Join(t, tuple(sources)))

    def accumulate(self, sources: Sequence[Register]) -> Register:
        """The in-place sum of registers with one box, each added once it is ready on all devices.

        So transfers of what a task computes come before its gradient is accumulated, on every device alike.
        """
        mask, via = combined(sources)
        device, tensor = sources[0].device, sources[0].tensor
        sources = sorted(sources, key=lambda r: self._later(self.ready[r.number]))
        places = [self._later(self.ready[source.number]) for source in sources]
        total = self.register(device, tensor, mask, via, places[-1])
        for number, (place, source) in enumerate(zip(places, sources, strict=True)):
            self.events.append((place, {device: Accumulate(total, source, number == 0)}))
        return total

    def _later(self, place: Place) -> Place:
        """The first place after an event at `place`, and after the same tasks of other devices."""
        task, side = place
        return (self.together[task], AFTER) if side == WITH else _soon(place)

    def _made(
        self,
        mask: Mask,
        via: Via,
        sources: Sequence[Register],
        floor: Place,
        instruction: Callable[[Register], Instruction],
    ) -> Register:
        place = self.after(sources, floor)
        device = sources[0].device
        made = self.register(device, sources[0].tensor, mask, via, place)
        if not self._sent.isdisjoint(source.number for source in sources):
            self._sent.add(made.number)
        self.events.append((place, {device: instruction(made)}))
        return made

    def assemble(self, device: int, tensor: PTensor, box: Box, parts: Sequence[Part], floor: Place) -> Register:
        """The value in a box: parts joined and added up, zeros elsewhere."""
        by_box: dict[Box, list[Register]] = {}
        for inner, register in parts:
            by_box.setdefault(inner, []).append(self.slice(register, inner, floor))
        layers: list[dict[Box, Register]] = []
        for inner, registers in by_box.items():
            layer = next((x for x in layers if all(meet(inner, other) is None for other in x)), None)
            if layer is None:
                layers.append(layer := {})
            sums = self.graph.of_parameter(tensor, GRADIENT) and self._own.issuperset(r.number for r in registers)
            several = sums and len(registers) > 1
            layer[inner] = self.accumulate(registers) if several else self.add(registers, floor)
        whole = [self._tiled(device, tensor, box, layer, floor) for layer in layers]
        return self.add(whole, floor) if whole else self.zeros(device, tensor, box, floor)

    def _padded(self, box: Box, source: Register, floor: Place) -> Register:
        """A part among zeros."""
        return self._made(Mask(box, source.mask.addends), source.via, [source], floor, lambda t: Pad(t, source))

    def _tiled(self, device: int, tensor: PTensor, box: Box, layer: Mapping[Box, Register], floor: Place) -> Register:
        """Disjoint boxes as one register, joined over the grid of their borders, or one among zeros."""
        if box in layer:
            return layer[box]
        if len(layer) == 1:
            return self._padded(box, next(iter(layer.values())), floor)
        tiles = []
        for cell in cells(box, layer):
            register = next((register for inner, register in layer.items() if meet(cell, inner) is not None), None)
            tiles.append(self.slice(register, cell, floor) if register else self.zeros(device, tensor, cell, floor))
        return self.join(box, tiles, floor)

    # Between devices

    def send(self, source: Register, to: int, floor: Place) -> Register:
        """A copy of a register on another device."""
        place = self.after([source], floor)
        made = self.register(to, source.tensor, source.mask, source.via, place)
        self._own.add(made.number)
        self._sent.add(made.number)
        self.events.append((place, {source.device: Send(0, source, to), to: Receive(0, made, source.device)}))
        return made

    def collective(
        self, pattern: GroupPattern, sources: Mapping[int, Register], boxes: Mapping[int, Box], floor: Place
    ) -> dict[int, Register]:
        """A collective; `boxes`: the part of each device afterwards, without which it keeps its register.

        Those of gradients of parameters come after those of activations that the same task computes, on all devices.
        If the plan waits, devices do for activations, unless they are on their way from another stage.
        """
        place = self.after(list(sources.values()), floor)
        mask, via = combined(list(sources.values()))
        tensor = next(iter(sources.values())).tensor
        if self.graph.of_parameter(tensor, GRADIENT):
            place = max([place, *(self._later(self.ready[source.number]) for source in sources.values())])
        made, event = dict[int, Register](), dict[int, Instruction]()
        cuts, here = _cuts(pattern, sources, boxes), self._sent.isdisjoint(source.number for source in sources.values())
        waits = self.graph.waits and here and tensor.node not in self.graph.kept
        for device in pattern.group:
            box = boxes.get(device)
            new = sources[device] if box is None else self.register(device, tensor, Mask(box, mask.addends), via, place)
            source = sources.get(device)
            event[device] = Collective(
                0, pattern.kind, pattern.group, source, new, atoms=pattern.atoms, cuts=cuts, waits=waits
            )
            made[device] = new
            self._own.add(new.number)
            if not here:
                self._sent.add(new.number)
        self.events.append((place, event))
        return made

    def program(self, tasks: Tasks, order: Sequence[Op], turns: Mapping[Op, int]) -> Materialized:
        """The program of all events, ordered by place. `turns`: which part of its node on its device a task is, from 0.

        If the plan waits, what a device sends to another of one micro-batch, in one phase, is one message, unless one
        of its tensors is read before the last of them is there.
        """
        devices: list[list[Instruction]] = [[] for _ in range(tasks.devices)]
        steps: list[list[int]] = [[] for _ in devices]
        events = sorted(self.events, key=lambda event: event[0])
        if self.graph.waits:
            self._join(events, [own for own in self._messages(events, order, turns) if len(own) > 1])
            events.sort(key=lambda event: event[0])
        for step, (_, event) in enumerate(events):
            for device, instruction in event.items():
                if isinstance(instruction, Transfer):
                    instruction.key = step
                devices[device].append(instruction)
                steps[device].append(step)
        places = tuple(place for place, _ in events)
        return Materialized(
            tasks, tuple(map(tuple, devices)), tuple(map(tuple, steps)), self.shapes, tuple(order), places
        )

    def _join(self, events: list[_Event], messages: Iterable[Sequence[int]]) -> None:
        """Send all of a message once the last of its tensors is there, after the same tasks of other devices.

        So the messages of the ranks of a stage are still together. A message of which a tensor is read before is left.
        """
        first: dict[int, Place] = {}  # by number of a register, where it is read first
        for place, event in events:
            for register in (register for x in event.values() for register in reads(x)):
                first.setdefault(register.number, place)
        for message in messages:
            (task, _), _ = events[message[-1]]
            place = self.together[task], AFTER
            transfers = [(at, x) for at in message for x in events[at][1].values()]
            if any(first.get(x.target.number, place) < place for _, x in transfers if isinstance(x, Receive)):
                continue
            for at, x in transfers:
                assert isinstance(x, Send | Receive), x
                x.more = at != message[-1]
                events[at] = place, events[at][1]

    def _messages(
        self, events: Sequence[_Event], order: Sequence[Op], turns: Mapping[Op, int]
    ) -> Iterator[tuple[int, ...]]:
        """The numbers of events that send tensors in one message, of several."""
        going: dict[Hashable, list[int]] = defaultdict(list)
        inside: dict[int, Hashable] = {}  # by number of a register that a message brings
        for at, ((task, _), event) in enumerate(events):
            for register in (register for x in event.values() for register in reads(x)):
                yield tuple(going.pop(inside.pop(register.number, None), ()))
            for device, x in event.items():
                if isinstance(x, Send) and task >= 0 and x.source.tensor.node not in self.graph.kept:
                    key = device, x.to, order[task].phase is Phase.FORWARD, turns[order[task]]
                    going[key].append(at)
                    inside |= {own.target.number: key for own in event.values() if isinstance(own, Receive)}
        yield from map(tuple, going.values())


def _cuts(
    pattern: GroupPattern, sources: Mapping[int, Register], boxes: Mapping[int, Box]
) -> tuple[tuple[int, ...], ...]:
    """The sizes of the parts of a collective along each of its atoms, if some are unequal."""
    before = {device: register.mask.box for device, register in sources.items()}
    sides = [boxes] if pattern.kind == "reduce_scatter" else [before, boxes]  # of an all-to-all both are cut
    cuts = tuple(
        tuple(side[device][atom][1] - side[device][atom][0] for device in pattern.group)
        for atom, side in zip(pattern.atoms, sides, strict=False)
    )
    return cuts if any(len({*sizes}) > 1 for sizes in cuts) else ()


def combined(registers: Sequence[Register]) -> tuple[Mask, Via]:
    """Mask and via of a sum or join: the box of the first, the share from the first addend to the last."""
    vias = {register.via for register in registers}
    shares = [register.mask.addends for register in registers]
    share: Addends = (min(start for start, _ in shares), max(stop for _, stop in shares))
    return Mask(registers[0].mask.box, share if len(vias) == 1 else ALL), vias.pop() if len(vias) == 1 else None


def _soon(place: Place) -> Place:
    """The first place right after an event at `place`."""
    task, side = place
    return (task, BEFORE) if side == BEFORE else (task, AFTER)

"""What every device of a plan does, one instruction after another: the plan with its communication materialized.

Registers hold parts of pTensors on one device. All instructions of all devices are numbered in one total order that
fits every dependency; a collective, or a send with its receive, is the same `key` on all devices that take part. Since
every device starts its transfers in the order of keys and waits only for what comes earlier, none waits for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from .mask import Mask, PTensor
from .op import Op
from .tasks import Tasks, Via


@dataclass(frozen=True, slots=True)
class Register:
    """A tensor on a device: which part of which pTensor it holds. `number` tells registers of a program apart."""

    number: int
    device: int
    tensor: PTensor
    mask: Mask
    via: Via = None

    def __hash__(self) -> int:
        return self.number


@dataclass(frozen=True, slots=True)
class Run:
    """A task: `reads` has a register for every vTensor of `op.reads`, in their order.

    After them come the parameters that backward fetches again because its device does not keep them (`tasks.reads_of`):
    pTensor and mask of the register say which operand that is. `writes` has a register for every vTensor of
    `op.writes`; None where nobody reads it.
    """

    op: Op
    reads: tuple[Register, ...]
    writes: tuple[Register | None, ...]


@dataclass(frozen=True, slots=True)
class Zeros:
    """`target` is zero: addends that another reader takes."""

    target: Register


@dataclass(frozen=True, slots=True)
class Slice:
    """`target` is the part of `source` that its mask says."""

    target: Register
    source: Register


@dataclass(frozen=True, slots=True)
class Join:
    """`target` is put together from parts whose boxes tile its box (a grid over its atoms)."""

    target: Register
    sources: tuple[Register, ...]


@dataclass(frozen=True, slots=True)
class Add:
    """`target` is the sum of registers with its box."""

    target: Register
    sources: tuple[Register, ...]


@dataclass(frozen=True, slots=True)
class Accumulate:
    """`source` is added to `total` in place, which is `source` itself the first time (`first`).

    Only gradients of parameters are; what an operator hands on to several inputs is never changed.
    """

    total: Register
    source: Register
    first: bool


@dataclass(frozen=True, slots=True)
class Collective:
    """One device's share of a collective of `group` (ordered ranks).

    `kind` is all_reduce, all_gather (along `atoms[0]`), reduce_scatter (along `atoms[0]`), all_to_all (what is split
    along `atoms[0]` becomes split along `atoms[1]`), or broadcast (from `group[0]`, whose target is its source; the
    others have no source). Part k along the atom is member k's, in the register's own range.
    """

    key: int
    kind: str
    group: tuple[int, ...]
    source: Register | None
    target: Register
    atoms: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Send:
    """`source` goes to the device `to`."""

    key: int
    source: Register
    to: int


@dataclass(frozen=True, slots=True)
class Receive:
    """`target` comes from the device `of`."""

    key: int
    target: Register
    of: int


Transfer: TypeAlias = Collective | Send | Receive
"""What other devices take part in."""

Instruction: TypeAlias = Run | Zeros | Slice | Join | Add | Accumulate | Transfer


def reads(instruction: Instruction) -> tuple[Register, ...]:
    """The registers that an instruction reads; the total that it adds to is not among them."""
    match instruction:
        case Run():
            return instruction.reads
        case Join() | Add():
            return instruction.sources
        case Slice() | Accumulate() | Send():
            return (instruction.source,)
        case Collective():
            return () if instruction.source is None else (instruction.source,)
    return ()


def writes(instruction: Instruction) -> tuple[Register, ...]:
    """The registers that an instruction makes or adds to."""
    match instruction:
        case Run():
            return tuple(register for register in instruction.writes if register is not None)
        case Accumulate():
            return (instruction.total,)
        case Collective(source=source, target=target) if source == target:
            return ()  # who sends a broadcast
        case Send():
            return ()
    return (instruction.target,)


def waits_for(instruction: Instruction) -> tuple[Register, ...]:
    """The registers that must be there before an instruction starts."""
    added = isinstance(instruction, Accumulate) and not instruction.first
    return (*reads(instruction), *writes(instruction)) if added else reads(instruction)


def ready_after(instruction: Instruction) -> tuple[Register, ...]:
    """The registers that are there when an instruction has ended; of who sends a broadcast its own."""
    return (instruction.target,) if isinstance(instruction, Collective) else writes(instruction)


@dataclass(frozen=True, slots=True)
class Materialized:
    """The instructions of every device, in order; `steps` gives every instruction's place in the total order."""

    tasks: Tasks
    devices: tuple[tuple[Instruction, ...], ...]
    steps: tuple[tuple[int, ...], ...]
    shapes: Mapping[Register, tuple[int, ...]]  # of tensors, by dims

"""A materialized plan: the instructions of every device, communication included.

Registers hold parts of pTensors on one device. All instructions are numbered in one total order that respects the
dependencies; a collective, or a send with its receive, has the same `key` on all its devices. Every device starts its
transfers in the order of keys and waits only for earlier ones, so there is no deadlock.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from .mask import UPDATED, Mask, PTensor
from .meetings import Meeting
from .op import Op, Phase
from .tasks import Tasks, Via


@dataclass(slots=True, eq=False)  # of these and of instructions there are many, and frozen ones take longer to make
class Register:
    """A tensor on a device: a part of a pTensor. `number` is unique within a program."""

    number: int
    device: int
    tensor: PTensor
    mask: Mask
    via: Via = None


@dataclass(slots=True, eq=False)
class Run:
    """A task. `reads`: a register for every vTensor of `op.reads`, then the parameters that backward fetches again
    (`tasks.reads_of`), identified by pTensor and mask. `writes`: a register for every vTensor of `op.writes`, None if
    unread. `meeting`: those with which it exchanges data while it runs; they are one event, like a collective.
    """

    op: Op
    reads: tuple[Register, ...]
    writes: tuple[Register | None, ...]
    meeting: Meeting | None = None


@dataclass(slots=True, eq=False)
class Zeros:
    """`target` is zero: another reader takes the addends.

    `omitted`: all that reads the zeros adds them to another operand, and gives that one instead.
    """

    target: Register
    omitted: bool = False


@dataclass(slots=True, eq=False)
class Pad:
    """`target` is `source` in its box, and zero elsewhere: other readers take the rest."""

    target: Register
    source: Register


@dataclass(slots=True, eq=False)
class Slice:
    """`target` is the part of `source` given by its mask: a view of it, or `copied`, so that the rest is freed."""

    target: Register
    source: Register
    copied: bool = False


@dataclass(slots=True, eq=False)
class Join:
    """`target` is the concatenation of `sources`, whose boxes tile its box (a grid over its atoms)."""

    target: Register
    sources: tuple[Register, ...]


@dataclass(slots=True, eq=False)
class Add:
    """`target` is the sum of `sources`, which have its box."""

    target: Register
    sources: tuple[Register, ...]


@dataclass(slots=True, eq=False)
class Accumulate:
    """`source` is added to `total` in place; the first time (`first`) `total` is `source` itself.

    Used for gradients of parameters only: other gradients may be shared between several inputs.
    """

    total: Register
    source: Register
    first: bool


@dataclass(slots=True, eq=False)
class Collective:
    """One device's share of a collective of `group` (ordered ranks).

    `kind` is all_reduce, all_gather (along `atoms[0]`), reduce_scatter (along `atoms[0]`), all_to_all (from split along
    `atoms[0]` to split along `atoms[1]`), broadcast (from `group[0]`, whose target is its source; the others have no
    source), or reduce (to `group[0]`; the target of the others is their source). Member k has part k along the atom,
    within the register's own range. `cuts`: if the parts along an atom are unequal, by atom the sizes of all of them.
    `waits`: devices wait for it before they compute on.
    """

    key: int
    kind: str
    group: tuple[int, ...]
    source: Register | None
    target: Register
    atoms: tuple[int, ...] = ()
    cuts: tuple[tuple[int, ...], ...] = ()
    waits: bool = False


@dataclass(slots=True, eq=False)
class Send:
    """Send `source` to the device `to`, in one message with the next one to it if `more`."""

    key: int
    source: Register
    to: int
    more: bool = False


@dataclass(slots=True, eq=False)
class Receive:
    """Receive `target` from the device `of`, in one message with the next one of it if `more`."""

    key: int
    target: Register
    of: int
    more: bool = False


Transfer: TypeAlias = Collective | Send | Receive
"""Instructions that involve other devices."""

Instruction: TypeAlias = Run | Zeros | Pad | Slice | Join | Add | Accumulate | Transfer


def communicates(instruction: Instruction) -> bool:
    """True if other devices take part in an instruction."""
    return isinstance(instruction, Transfer) or (isinstance(instruction, Run) and instruction.meeting is not None)


def reads(instruction: Instruction) -> tuple[Register, ...]:
    """The registers that an instruction reads, except the total of an accumulation."""
    match instruction:
        case Run():
            return instruction.reads
        case Join() | Add():
            return instruction.sources
        case Pad() | Slice() | Accumulate() | Send():
            return (instruction.source,)
        case Collective():
            return () if instruction.source is None else (instruction.source,)
    return ()


def writes(instruction: Instruction) -> tuple[Register, ...]:
    """The registers that an instruction creates or adds to."""
    match instruction:
        case Run():
            return tuple(register for register in instruction.writes if register is not None)
        case Accumulate():
            return (instruction.total,)
        case Collective(source=source, target=target) if source == target:
            return ()  # the root of a broadcast, a member of a reduce
        case Send():
            return ()
    return (instruction.target,)


def identities(instructions: Iterable[Instruction]) -> dict[Op, Register]:
    """The additions of a device, as forward operators, that give one operand as it is; the zeros omitted by each."""
    found, zeros = dict[Op, Register](), set[Register]()
    for instruction in instructions:
        match instruction:
            case Zeros(target, omitted=True):
                zeros.add(target)
            case Run(op, read):
                for register in zeros.intersection(read):
                    found[op.forward or op] = register
    return found


def uses_updates(instruction: Instruction) -> bool:
    """True if an instruction moves or keeps what updates have written."""
    if isinstance(instruction, Run):
        return instruction.op.phase is Phase.KEEP
    return any(register.tensor.kind == UPDATED for register in (*reads(instruction), *writes(instruction)))


def follows_norm(instruction: Instruction) -> bool:
    """True if it runs after the norm of all gradients, by which updates are clipped: updates, and what uses them."""
    return uses_updates(instruction) or (isinstance(instruction, Run) and instruction.op.phase is Phase.UPDATE)


def waits_for(instruction: Instruction) -> tuple[Register, ...]:
    """The registers that must be ready before an instruction starts."""
    added = isinstance(instruction, Accumulate) and not instruction.first
    return (*reads(instruction), *writes(instruction)) if added else reads(instruction)


def ready_after(instruction: Instruction) -> tuple[Register, ...]:
    """The registers that are ready once an instruction has ended, the source of a broadcast included."""
    sent = isinstance(instruction, Collective) and instruction.kind == "broadcast"
    return (*reads(instruction), *writes(instruction)) if sent else writes(instruction)


@dataclass(frozen=True, slots=True)
class Materialized:
    """The instructions of every device, in order, and their places in the total order (`steps`)."""

    tasks: Tasks
    devices: tuple[tuple[Instruction, ...], ...]
    steps: tuple[tuple[int, ...], ...]
    shapes: Mapping[Register, tuple[int, ...]]  # per dim of the tensor
    order: tuple[Op, ...] = ()  # all tasks
    places: tuple[tuple[int, int], ...] = ()  # by step: the task at which it lies, and on which side of it

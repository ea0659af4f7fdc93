"""Placements of a mesh with the number of their reduction programs and the time of the best (P²)."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...model.errors import PartitaError
from ...model.machine.machine import Machine
from ..placement.placement import Placement, arrangements, check_reduced
from .cost import program_price
from .enumeration import programs
from .hierarchies import Synthesis
from .optimal import Best, optimal
from .program import DEFAULT_LIMIT, NUMBERINGS, Numbering, Reduction, ReductionProgram, flat, step_text

ALGORITHMS = {"ring": "nccl-ring", "tree": "nccl-tree", "gloo": "gloo"}
"""Cost profiles by their names in the paper's tables and on the command line."""

DEFAULT_BYTES = 10 * 2**29 * 4
"""Ten float32 tensors of 2 GiB on every device: the payload of P²'s measurements."""

LARGEST = 2**60

MOST_COUNTED = 4
"""Most levels for which programs are counted by enumeration; five take minutes."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """One placement: number of valid programs (None over `MOST_COUNTED` levels), flat all-reduce (ns), best program."""

    placement: Placement
    programs: int | None
    allreduce_ns: int
    best: Best


def ranking(
    machine: Machine,
    axes: Sequence[int],
    reduced: Sequence[int],
    size_bytes: int = DEFAULT_BYTES,
    profile: str | None = None,
    limit: int = DEFAULT_LIMIT,
    numbering: Numbering = "levels",
) -> tuple[Ranked, ...]:
    """All placements of the axes on a machine, for a reduction of `size_bytes` per device over the axes in `reduced`.

    `profile`: a cost profile, by default the machine's; programs have at most `limit` collectives; `numbering`: what
    numbers the members of a group (`program.NUMBERINGS`). PartitaError: axes whose product is not the number of
    devices, an empty reduction or an unknown axis, negative or too many bytes, a limit that admits no program.
    """
    placements = arrangements(machine.hierarchy, axes)
    over = check_reduced(axes, reduced)
    check_bytes(size_bytes)
    if limit < 1:
        raise PartitaError(f"a limit of {limit} collectives admits no program: the shortest is one all-reduce; give 1")
    return tuple(_ranked(machine, Reduction(p, over, numbering), size_bytes, profile, limit) for p in placements)


def check_bytes(size_bytes: int) -> None:
    """PartitaError unless 0 <= size_bytes <= LARGEST."""
    if size_bytes < 0:
        raise PartitaError(f"a reduction of {size_bytes} bytes: 0 or more are needed")
    if size_bytes > LARGEST:
        raise PartitaError(f"a reduction of more than {LARGEST:,} bytes; give fewer")


def profile_of(algorithm: str | None) -> str | None:
    """The cost profile of an algorithm (None: the machine's own). PartitaError: an unknown one."""
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise PartitaError(f"unknown algorithm {algorithm!r:.60}; choose from {', '.join(ALGORITHMS)}")
    return None if algorithm is None else ALGORITHMS[algorithm]


def numbering_of(name: str) -> Numbering:
    """The numbering of members by its name. PartitaError: an unknown one."""
    found = next((numbering for numbering in NUMBERINGS if numbering == name), None)
    if found is None:
        raise PartitaError(f"unknown numbering {name!r:.60}; choose from {', '.join(NUMBERINGS)}")
    return found


def synthesis_of(name: str, numbering: Numbering) -> Synthesis:
    """The synthesis of a name. PartitaError: an unknown one, one that takes no numbering of members."""
    if name not in list(Synthesis):
        raise PartitaError(f"unknown synthesis {name!r:.60}; choose from {', '.join(Synthesis)}")
    if name != Synthesis.LEVELS and numbering != "levels":
        raise PartitaError(f"--numbering {numbering} is for --synthesis levels; {name} has an order of its own")
    return Synthesis(name)


def _ranked(machine: Machine, reduction: Reduction, size_bytes: int, profile: str | None, limit: int) -> Ranked:
    levels = len(reduction.sizes)
    count = len(programs(levels, limit)) if levels <= MOST_COUNTED else None
    flat_ns = program_price(machine, reduction, flat(reduction.sizes), profile).ns(size_bytes)
    return Ranked(
        reduction.placement, count, flat_ns, optimal(machine, reduction, size_bytes, "all_reduce", profile, limit)
    )


def words(program: ReductionProgram, reduction: Reduction, machine: Machine) -> tuple[str, ...]:
    """One description per step; members numbered by axes have digits for levels, the most significant first."""
    names = [machine.levels[level].name for level in reduction.machine_levels]
    if reduction.numbering == "axes":
        names = [f"digit {number}" for number in range(1, len(names) + 1)]
    return tuple(step_text(step, names) for step in program)

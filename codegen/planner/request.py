"""What the command line asks for: a plan's inputs, checked before anything slow begins."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...model.errors import PartitaError
from ...model.graph.buffer_updates import STATISTICS
from ...model.graph.segments import MODES
from ...model.machine.precision import PRECISIONS

if TYPE_CHECKING:
    from ...model.machine.machine import Machine

DTYPES = ("float64", "float32", "float16", "bfloat16", *(name for name in PRECISIONS if "-" in name))
OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero-bubble", "2bw")
ALL_SCHEDULES = ("1f1b", "zero-bubble", "interleaved")
"""What `all` stands for: GPipe is never better than 1F1B, and 2BW is another way of training."""

RECOMPUTE = {"auto": MODES, **{mode: (mode,) for mode in MODES}}
"""The modes among which each segment's is chosen."""

MAX_DEVICES = 1 << 20
MAX_LEVELS = 8
MAX_AXES = 3
MAX_WORKERS = 1024
MAX_COUNT = 1 << 31  # of samples, tokens, micro-batches


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """One `partita plan`; None leaves a choice to the model, the machine or the search.

    `machine` or `hierarchy` must be given; both together mean that machine's devices and links in that hierarchy.
    `mesh` fixes the axes' sizes, not their placement; `mapping` names a placement. `time_limit` is in seconds; a plan
    proved within the share `gap` of the optimum ends the search. `fix` holds (node, strategy) pairs. `save_network` is
    where the cost network goes, as soon as there is one. `rewrite`: by the planner's rules, or by those of a file,
    `rules`, which are proved first; `rewrite_limits` are rounds and e-nodes. `cache`: the folder of the store, "none",
    or None for the usual one. `stages` of a pipeline ("auto": whatever is best), `chunks` of them on every device, run
    in the order of `schedule`; `workers` are processes that search (None: one for every core). `dtype` may name
    several, joined by commas, as may `schedule`: the fastest is taken. `offload`: whether states may be on the host;
    None: where nothing fits without. Raises PartitaError on what cannot be meant; that the names of model, machine,
    mapping, solver and nodes exist is checked where they are known.
    """

    model: str
    small: bool = False
    machine: str | None = None
    nodes: int | None = None
    hierarchy: tuple[int, ...] | None = None
    mesh: tuple[int, ...] | None = None
    batch: int | None = None
    sequence: int | None = None
    dtype: str | None = None
    optimizer: str | None = None
    solver: str = "auto"
    time_limit: float | None = None
    gap: float = 0.0
    fix: tuple[tuple[str, str], ...] = ()
    allow_unknown: bool = False
    statistics: str = "batch"
    micro_batches: int | None = None
    save_network: str | None = None
    mapping: str | None = None
    rewrite: bool = False
    rules: str | None = None
    rewrite_limits: tuple[int, int] = (4, 20_000)
    recompute: str = "auto"
    cache: str | None = None
    stages: str | int = "auto"
    schedule: str = "auto"
    chunks: int = 1
    workers: int | None = None
    offload: bool | None = None

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise PartitaError("the model's name is empty")
        _check_machine(self.machine, self.nodes, self.hierarchy)
        for option, count in (
            ("--batch", self.batch),
            ("--sequence", self.sequence),
            ("--micro-batches", self.micro_batches),
        ):
            if count is not None:
                _check_count(option, count, MAX_COUNT)
        if self.mesh is not None and self.mapping is not None:
            raise PartitaError("--mesh and --mapping both fix the axes; give one of them")
        if self.mesh is not None:
            _check_sizes("--mesh", self.mesh, MAX_AXES)
        if self.mesh is not None and len(self.mesh) > 1 and 1 in self.mesh:
            raise PartitaError(f"--mesh {_times(self.mesh)}: an axis of size 1 splits nothing; leave it out")
        stages = check_stages(self.stages) or 1
        if (
            self.mesh is not None
            and self.hierarchy is not None
            and math.prod(self.mesh) * stages != math.prod(self.hierarchy)
        ):
            raise PartitaError(
                f"--mesh {_times(self.mesh)} has {math.prod(self.mesh)} ranks"
                + (f" in each of {stages} stages" if stages > 1 else "")
                + f", --hierarchy {_times(self.hierarchy)} has {math.prod(self.hierarchy)} devices"
            )
        if self.chunks > 1 and self.stages in (1, "1"):
            raise PartitaError(f"--chunks {self.chunks} are stages of a pipeline, which --stages 1 excludes")
        dtypes = [] if self.dtype is None else self.dtype.split(",")
        for option, choice, choices in (
            *(("--dtype", dtype.strip(), DTYPES) for dtype in dtypes),
            ("--optimizer", self.optimizer, OPTIMIZERS),
            ("--statistics", self.statistics, STATISTICS),
            ("--recompute", self.recompute, tuple(RECOMPUTE)),
        ):
            if choice is not None and choice not in choices:
                raise PartitaError(f"{option} {choice!r}: choose from {', '.join(choices)}")
        if self.batch is not None and self.micro_batches is not None and self.batch % self.micro_batches:
            raise PartitaError(f"--batch {self.batch} does not divide into --micro-batches {self.micro_batches}")
        check_seconds(self.time_limit)
        check_gap(self.gap)
        check_schedules(self.schedule, self.chunks)
        if self.workers is not None:
            _check_count("--workers", self.workers, MAX_WORKERS)
        fixed: dict[str, str] = {}
        for name, strategy in self.fix:
            if fixed.setdefault(name, strategy) != strategy:
                raise PartitaError(f"--fix {name}: both {fixed[name]!r} and {strategy!r}")


def parse_sizes(option: str, text: str) -> tuple[int, ...]:
    """Sizes joined by `x` (or commas), outermost first.

    >>> parse_sizes("--mesh", "2x4")
    (2, 4)
    """
    if not re.fullmatch(r"[0-9]{1,9}([x,][0-9]{1,9})*", text, re.ASCII):
        raise PartitaError(f"{option} {text!r}: sizes joined by x are needed, such as 2x4")
    return tuple(int(size) for size in re.split("[x,]", text))


def parse_axes(option: str, text: str) -> tuple[int, ...]:
    """Numbers joined by commas, none if the text is empty.

    >>> parse_axes("--reduce", "0,2")
    (0, 2)
    """
    if not re.fullmatch(r"([0-9]{1,9}(,[0-9]{1,9})*)?", text, re.ASCII):
        raise PartitaError(f"{option} {text!r}: numbers of axes, from 0, joined by commas are needed, such as 0,2")
    return tuple(int(axis) for axis in text.split(",") if axis)


def parse_fix(texts: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """NAME=STRATEGY pairs, split at the first `=`.

    >>> parse_fix(["h.0.mlp=split b"])
    (('h.0.mlp', 'split b'),)
    """
    pairs = []
    for text in texts:
        name, equals, strategy = (part.strip() for part in text.partition("="))
        if not (name and equals and strategy):
            raise PartitaError(f"--fix {text!r}: NAME=STRATEGY is needed")
        pairs.append((name, strategy))
    return tuple(pairs)


def machine_for(name: str | None, nodes: int | None, hierarchy: tuple[int, ...] | None) -> Machine:
    """A preset or file with as many nodes, or its devices and links in another hierarchy; without a name an ad hoc one.

    PartitaError: neither or both of nodes and hierarchy say how many devices there are, sizes that no machine has.
    """
    from ...model.machine.machine import Machine

    _check_machine(name, nodes, hierarchy)
    if name is None:
        assert hierarchy is not None
        return Machine.adhoc(hierarchy)
    machine = Machine.load(name, nodes=nodes)
    if hierarchy is None:
        return machine
    if len(hierarchy) != len(machine.levels):
        raise PartitaError(f"--hierarchy has {len(hierarchy)} levels, machine {machine.name} has {len(machine.levels)}")
    levels = tuple(replace(level, size=size) for level, size in zip(machine.levels, hierarchy, strict=True))
    return replace(machine, levels=levels)


def _check_machine(name: str | None, nodes: int | None, hierarchy: tuple[int, ...] | None) -> None:
    if name is None and hierarchy is None:
        raise PartitaError("give --machine NAME or --hierarchy, such as --hierarchy 2x4")
    if nodes is not None and hierarchy is not None:
        raise PartitaError("--nodes and --hierarchy both say how many devices there are; give one of them")
    if nodes is not None:
        _check_count("--nodes", nodes, MAX_DEVICES)
    if hierarchy is not None:
        _check_sizes("--hierarchy", hierarchy, MAX_LEVELS)


def check_seconds(time_limit: float | None) -> float | None:
    """`time_limit` itself, if it is None or a positive finite number."""
    if time_limit is not None and not 0 < time_limit < math.inf:
        raise PartitaError(f"--time-limit {time_limit}: a positive number of seconds is needed")
    return time_limit


def check_stages(stages: str | int) -> int | None:
    """The number of stages; None for `auto`."""
    if stages == "auto":
        return None
    if not str(stages).isdecimal():
        raise PartitaError(f"--stages {stages}: auto, or a whole number from 1 is needed")
    _check_count("--stages", int(stages), MAX_DEVICES)
    return int(stages)


def check_schedules(schedule: str, chunks: int) -> tuple[tuple[str, int], ...]:
    """The schedules that are named, or that `auto` or `all` stand for, each once, with the stages of every device.

    Of several, interleaved has 2 on each where `chunks` does not say it.
    """
    _check_count("--chunks", chunks, MAX_DEVICES)
    auto = ("interleaved" if chunks > 1 else "1f1b",)
    words = [word.strip() for word in schedule.split(",") if word.strip()]
    found = tuple(dict.fromkeys(x for word in words for x in {"auto": auto, "all": ALL_SCHEDULES}.get(word, (word,))))
    if not found:
        raise PartitaError("no schedule is named")
    for name in found:
        if name not in SCHEDULES:
            raise PartitaError(f"--schedule {name!r}: choose from auto, all, {', '.join(SCHEDULES)}")
    many = max(chunks, 2) if len(found) > 1 else chunks
    if ("interleaved" in found) != (many > 1) and (chunks > 1 or len(found) == 1):
        raise PartitaError(
            f"--schedule {schedule} with --chunks {chunks}: interleaved has 2 or more, the others have 1"
        )
    return tuple((name, many if name == "interleaved" else 1) for name in found)


def check_recompute(recompute: str) -> tuple[str, ...]:
    """The modes among which each segment's is chosen."""
    if recompute not in RECOMPUTE:
        raise PartitaError(f"recompute {recompute!r}: choose from {', '.join(RECOMPUTE)}")
    return RECOMPUTE[recompute]


def check_gap(gap: float) -> float:
    """`gap` itself, if it is a share from 0 to less than 1."""
    if not 0 <= gap < 1:
        raise PartitaError(f"--gap {gap}: a share from 0 to less than 1 is needed, such as 0.01")
    return gap


def _check_count(option: str, count: int, limit: int) -> None:
    if not 1 <= count <= limit:
        raise PartitaError(f"{option} {count}: a whole number from 1 to {limit} is needed")


def _check_sizes(option: str, sizes: tuple[int, ...], most: int) -> None:
    if not 1 <= len(sizes) <= most:
        raise PartitaError(f"{option} {_times(sizes)}: 1 to {most} sizes are needed, not {len(sizes)}")
    for size in (*sizes, math.prod(sizes)):
        _check_count(f"{option} {_times(sizes)}: size", size, MAX_DEVICES)


def _times(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))

"""What is searched: meshes, micro-batches, pipelines, recomputation, offloading, rewriting; and what is fixed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..model.errors import PartitaError
from ..model.graph.segments import IN_PARTS, MODES
from ..model.options import (
    MAX_DEVICES,
    check_choice,
    check_count,
    check_sizes,
    option,
    parse_names,
    parse_sizes,
    times,
)
from .decisions import UNDECIDED, Decisions
from .parallelism import ANY_PARALLELISM, Parallelism
from .pipeline.schedule import ALL, ONE_F_ONE_B, UNEQUAL, requested, schedule_named, schedule_names
from .rewriting.saturation_limits import DEFAULT_LIMITS, SaturationLimits

if TYPE_CHECKING:
    from ..model.machine.machine import Machine
    from .substitution.rule import Rule

RECOMPUTE = {
    "auto": MODES,
    "all": (*MODES, *IN_PARTS),
    **{mode: (mode,) for mode in MODES},
    "parts": ("full", *IN_PARTS),
}
"""Choice -> the modes among which each segment's is chosen."""

JOINT = ("placement", "reductions")
"""What one network can choose besides strategies."""

MAX_AXES = 3


def parse_mesh(text: str) -> tuple[int, ...]:
    """Sizes of up to MAX_AXES axes: 2x4."""
    mesh = parse_sizes("--mesh", text)
    check_sizes("--mesh", mesh, MAX_AXES)
    return mesh


def parse_stages(stages: str | int) -> int | None:
    """The number of stages; None for `auto`."""
    if stages == "auto":
        return None
    if not str(stages).isdecimal():
        raise PartitaError(f"--stages {stages}: auto, or a whole number from 1 is needed")
    return int(stages)


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


@dataclass(frozen=True, slots=True)
class Start:
    """A partial plan that a search completes: what it decides is fixed, but for what is to be loosened.

    `plan`: the file of a hand-written plan, the file or folder of a planner's plan, or either plan as a value.
    `loosen`: names or patterns of operators and modules whose decisions are dropped.
    """

    plan: Any = field(
        default=None,
        metadata=option(
            str,
            "A plan, hand-written or saved: what it decides is fixed, the rest is planned.",
            "--start",
            metavar="FILE",
        ),
    )
    loosen: str | Sequence[str] = field(
        default=(),
        metadata=option(
            str,
            "Operators or modules that the --start plan does not decide: layers.3,layers.*.up.",
            metavar="NAMES",
            parse=parse_names,
            default=None,
        ),
    )

    def __post_init__(self) -> None:
        names = parse_names(self.loosen) if isinstance(self.loosen, str) else tuple(self.loosen)
        object.__setattr__(self, "loosen", names)
        wrong = next((name for name in names if not isinstance(name, str)), None)
        if wrong is not None:
            raise PartitaError(f"--loosen {wrong!r:.60}: names of operators or modules are needed")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """The plans among which the best is sought; None leaves a choice to the search.

    `mesh` fixes the axes' sizes, not their placement; `mapping` names a placement (`formulation.placement.mappings`).
    `stages` of a pipeline (1: no pipeline), `chunks` virtual stages per device, run in the order of `schedule`: a name,
    `auto` (1F1B or, with chunks, interleaved), `all` (both and zero-bubble), or several joined by commas, of which the
    fastest is taken (`each_schedule`); with `auto` and `all` interlaced and 3F1B pipelines are tried
    too where they may pay.
    `unequal_stages`: stages may have unequally many devices, each with a mesh of its own; only such pipelines are then
    searched.
    `overlap`: communication runs while layers compute, in the program and in its price. `compile`: the program compiles
    its blocks, and the kernels of layers are priced as fused.
    `recompute`: a mode for every segment; `auto`, the best of `MODES` for each; `all`, the best of these and of
    `IN_PARTS`; `parts`, full recomputation, in one piece or in as many parts as is best.
    `offload`: optimizer states may be in the host's memory wherever that is faster; None: as True, but for a
    configuration that is given (`price`). `joint`: names among `JOINT` that are variables of one network per mesh
    and number of micro-batches, for plans without a pipeline. `rules`: choose among all rewritings by them too, as
    far as `saturation` goes. `fix` holds pairs of a name, or a pattern, and rows (`strategies/named_rows.py`). Without
    `bundles` no branches run side by side. `start` is a partial plan to complete; a search has its decisions as fixes
    and as what these cannot say, `decided`.
    PartitaError: a value out of range, an unknown name, or options that contradict each other.
    """

    mesh: tuple[int, ...] | None = field(
        default=None,
        metadata=option(str, "Sizes of the mesh's axes; their placement stays free: 8x8.", parse=parse_mesh),
    )
    mapping: str | None = field(
        default=None, metadata=option(str, "Axes and their placement: unity-2d, or a registered mapping.")
    )
    offload: bool | None = field(
        default=None,
        metadata=option(
            bool,
            "Optimizer states in host memory wherever that is faster (the default), or never.",
            "--offload/--no-offload",
        ),
    )
    fix: tuple[tuple[str, str], ...] = field(
        default=(),
        metadata=option(
            list[str],
            "Fix the strategy of an operator, or of all that a pattern matches: layers.*.up=batch,column; repeatable.",
            metavar="NAME=ROW",
            parse=parse_fix,
            default=None,
        ),
    )
    micro_batches: int | None = field(default=None, metadata=option(int, "Number of micro-batches."))
    stages: int | None = field(
        default=None,
        metadata=option(
            str,
            "Pipeline stages: a number or auto (1: no pipeline).",
            "--stages",
            "--pp",
            parse=parse_stages,
            default="auto",
        ),
    )
    unequal_stages: bool = field(
        default=False,
        metadata=option(
            bool, "Stages may have unequally many devices, each with a mesh of its own.", "--unequal-stages"
        ),
    )
    schedule: str = field(
        default="auto", metadata=option(str, f"Pipeline schedule: auto, all, {', '.join(schedule_names())}.")
    )
    chunks: int = field(default=1, metadata=option(int, "Virtual stages per device (interleaved 1F1B)."))
    overlap: bool = field(
        default=True,
        metadata=option(
            bool,
            "Communicate while computing, in the program and its price, or one after the other.",
            "--overlap/--no-overlap",
        ),
    )
    compile: bool = field(
        default=False,
        metadata=option(
            bool, "Compile the program's blocks by torch.compile, and price them so.", "--compile/--no-compile"
        ),
    )
    recompute: str = field(
        default="auto",
        metadata=option(str, f"Activation checkpointing of layers: {', '.join(RECOMPUTE)}."),
    )
    joint: tuple[str, ...] = field(
        default=(),
        metadata=option(
            str,
            "Let one network per mesh choose its placement and reduction programs: placement,reductions.",
            metavar="WHAT",
            parse=parse_names,
            default=None,
        ),
    )
    stages_at: tuple[str, ...] = field(
        default=(),
        metadata=option(
            str,
            "Where stages after the first begin: modules or operators, layers.8,layers.16,norm.",
            metavar="NAMES",
            parse=parse_names,
            default=None,
        ),
    )
    parallelism: Parallelism = ANY_PARALLELISM
    rules: tuple[Rule, ...] = ()
    saturation: SaturationLimits = DEFAULT_LIMITS
    bundles: bool = True
    start: Start | None = None
    decided: Decisions = UNDECIDED

    def __post_init__(self) -> None:
        check_count("--micro-batches", self.micro_batches)
        check_count("--stages", self.stages, MAX_DEVICES)
        check_choice("--recompute", self.recompute, RECOMPUTE)
        if self.mesh is not None and self.mapping is not None:
            raise PartitaError("--mesh and --mapping both fix the axes; give one of them")
        if self.mesh is not None and len(self.mesh) > 1 and 1 in self.mesh:
            raise PartitaError(f"--mesh {times(self.mesh)}: an axis of size 1 splits nothing; leave it out")
        if self.mapping is not None:
            self.check_unpipelined("--mapping")
        if self.unequal_stages:
            self._check_unequal()
        self.parallelism.check_sizes()
        if self.parallelism.fixes_axes and (self.mesh is not None or self.mapping is not None or self.joint):
            raise PartitaError(f"{self.parallelism} fixes the axes; leave out --mesh, --mapping and --joint")
        parts = len(self.stages_at) + 1
        if self.stages_at and (self.stages or 0) * self.chunks != parts:
            of = f"of {self.chunks} chunks each " if self.chunks > 1 else ""
            raise PartitaError(f"--stages-at {','.join(self.stages_at)} needs --stages N {of}that make {parts} in all")
        self._check_joint()
        if self.compile:
            self._check_compiled()
        if self.chunks > 1 and self.stages == 1:
            raise PartitaError("--chunks needs a pipeline: add --stages N")
        assert self.schedules
        fixed: dict[str, str] = {}
        for name, strategy in self.fix:
            if fixed.setdefault(name, strategy) != strategy:
                raise PartitaError(f"--fix {name}: both {fixed[name]!r} and {strategy!r}")

    def _check_unequal(self) -> None:
        """PartitaError: options that fix what unequal stages choose for themselves, or schedules that they lack."""
        if self.stages == 1:
            raise PartitaError("--unequal-stages needs a pipeline: leave out --stages 1")
        fixing = {
            "--mesh": self.mesh,
            "--mapping": self.mapping,
            str(self.parallelism): self.parallelism.given,
            "--stages-at": self.stages_at,
            "--joint": self.joint,
        }
        given = next((option for option, wanted in fixing.items() if wanted), None)
        if given is not None:
            raise PartitaError(f"--unequal-stages: every stage has a mesh and cuts of its own; leave out {given}")
        for name, _ in self.schedules:
            schedule_named(name).with_unequal_stages()

    def _check_compiled(self) -> None:
        """PartitaError: options for which blocks cannot be compiled."""
        if self.rules:
            raise PartitaError("--compile: what fuses in rewritten graphs is not priced; leave out --rewrite")
        if self.recompute == "selective":
            raise PartitaError("--compile: a compiled layer is recomputed whole; give --recompute full, none or auto")
        for name, _ in self.schedules:
            schedule_named(name).check_compiled()

    def _check_joint(self) -> None:
        """PartitaError: unknown or repeated names, or options that leave no placement to choose."""
        for name in self.joint:
            check_choice("--joint", name, JOINT)
        if not self.joint:
            return
        named = f"--joint {','.join(self.joint)}"
        if "placement" not in self.joint or len({*self.joint}) < len(self.joint):
            raise PartitaError(f"{named}: placement, or placement,reductions, is needed")
        if self.mapping is not None:
            raise PartitaError(f"--mapping {self.mapping} fixes the placement, which {named} would choose")
        self.check_unpipelined("--joint")

    @property
    def free(self) -> SearchSpace:
        """Every plan of the captured graph that a search has if no option is given, but for pipelines tried beside."""
        return SearchSpace(offload=self.offload or None, schedule=ONE_F_ONE_B.name)

    @property
    def modes(self) -> tuple[str, ...]:
        """The recomputation modes among which each segment's is chosen; compiled ones are recomputed whole."""
        wanted = {*RECOMPUTE[self.recompute], *self.decided.modes}
        return tuple(mode for mode in RECOMPUTE["all"] if mode in wanted and (mode != "selective" or not self.compile))

    def may_recompute(self, segment: str, mode: str) -> bool:
        """True if a segment may have a mode: the one decided for it, or of those of the other segments."""
        if not self.decided.layers:
            return True
        decided = self.decided.recomputed.get(segment)
        return mode in RECOMPUTE[self.recompute] if decided is None else mode == decided

    @property
    def in_parts(self) -> bool:
        """True if layers may be computed in parts of their samples."""
        return not IN_PARTS.keys().isdisjoint(self.modes)

    @property
    def fixed(self) -> Mapping[str, tuple[str, ...]]:
        """Node -> the names of its rows, one per mesh axis."""
        return {name: tuple(part.strip() for part in text.split(",")) for name, text in self.fix}

    @property
    def fixes_axes(self) -> bool:
        """True if the mesh's axes are given."""
        return self.mesh is not None or self.mapping is not None or self.parallelism.fixes_axes

    @property
    def fixes_placement(self) -> bool:
        """True if it is given where the mesh's axes lie, by sizes of parallelism or a partial plan."""
        return self.parallelism.fixes_axes or self.decided.placement is not None

    @property
    def schedules(self) -> tuple[tuple[str, int], ...]:
        """The schedules named, each once, with its chunks; of several, interleaved has at least two."""
        check_count("--chunks", self.chunks, MAX_DEVICES)
        return requested(self.schedule, self.chunks, UNEQUAL if self.unequal_stages else ALL)

    @property
    def leaves_schedule_open(self) -> bool:
        """True if no schedule is named, or all are, so that others than those that the words stand for may be tried."""
        return self.chunks == 1 and not {"auto", "all"}.isdisjoint(word.strip() for word in self.schedule.split(","))

    @property
    def wants_all_schedules(self) -> bool:
        """True if all schedules are asked for."""
        return self.leaves_schedule_open and "all" in (word.strip() for word in self.schedule.split(","))

    def each_schedule(self) -> tuple[SearchSpace, ...]:
        """This space with each of its schedules."""
        return tuple(replace(self, schedule=name, chunks=chunks) for name, chunks in self.schedules)

    def counts(self, batch: int) -> tuple[int, ...]:
        """The numbers of micro-batches of a batch, in which every rank of `--dp` has samples if the batch has as many.

        PartitaError: the one that is fixed does not divide the batch.
        """
        given = self.parallelism.count(batch)
        if given is not None:
            if self.micro_batches not in (None, given):
                raise PartitaError(
                    f"--micro-batches {self.micro_batches}, but {self.parallelism} cuts a batch of {batch} into {given}"
                )
            return (given,)
        if self.micro_batches is None:
            ranks = min(self.parallelism.dp or 1, batch)
            return tuple(count for count in range(1, batch // ranks + 1) if batch % count == 0)
        if batch % self.micro_batches:
            raise PartitaError(f"--batch {batch} does not divide into --micro-batches {self.micro_batches}")
        return (self.micro_batches,)

    def sizes(self, devices: int) -> tuple[int, ...] | None:
        """Sizes of the axes on the `devices` of a stage; None if they are free. PartitaError: they do not fit."""
        return self.parallelism.sizes(devices) if self.parallelism.fixes_axes else self.mesh

    def check_devices(self, devices: int) -> None:
        """PartitaError unless the mesh, in every stage, has as many ranks as the machine has devices."""
        stages = self.stages or 1
        if self.parallelism.fixes_axes:
            if devices % stages:
                raise PartitaError(f"{devices} devices do not divide into {stages} stages")
            self.sizes(devices // stages)
        if self.mesh is not None and math.prod(self.mesh) * stages != devices:
            each = f" in each of {stages} stages" if stages > 1 else ""
            raise PartitaError(
                f"--mesh {times(self.mesh)} has {math.prod(self.mesh)} ranks{each}, the machine has {devices} devices"
            )

    def offloads(self, machine: Machine) -> bool:
        """True if optimizer states may be in the host's memory."""
        return self.offload is not False and machine.device.host_bandwidth is not None

    def hides_messages(self, machine: Machine) -> bool:
        """True if messages between stages travel while the stages compute."""
        return self.overlap and machine.hides_messages

    def check_unpipelined(self, option: str) -> None:
        """PartitaError if the space has pipelines only, for which an option has no meaning."""
        if self.stages is not None and self.stages > 1:
            raise PartitaError(f"{option} is for plans without a pipeline; leave out --stages {self.stages}")


EVERYTHING = SearchSpace()
"""Nothing is fixed; the graph is not rewritten."""

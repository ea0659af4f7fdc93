"""A machine: a hierarchy of levels and the device at its leaves (see docs/machines.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import PartitaError
from ..files import kept_folder
from ..json_values import number, rate, title, whole
from ..wording import did_you_mean
from .kernel_times import KernelTimes
from .number_errors import ASSUMED
from .wiring import Wiring

HIDDEN_PARTS = 10_000
"""A `hidden_share` counts in parts of this."""
LOCAL = "local"
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Whole = TypeVar("Whole", int, "npt.NDArray[np.int64]")

PRESETS = Path(__file__).resolve().parent / "presets"
PROFILES = ("nccl-ring", "nccl-tree", "nccl-nvls", "gloo")
"""Algorithms of collectives, as `collective_patterns` describes them."""

LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "nccl": ("nccl-ring", "nccl-tree"),
    "nccl-sharp": ("nccl-ring", "nccl-tree", "nccl-nvls"),
    **{p: (p,) for p in PROFILES},
}
"""What a machine's collectives run -> the profiles of which the cheapest for a payload is taken, as NCCL does."""

MAX_DEVICES = 2**24  # keeps byte counts times device counts far inside 64 bits
UNLIMITED_BYTES = 1 << 50  # of a device on which everything fits


@dataclass(frozen=True, slots=True)
class Level:
    """`size` equal units under one unit of the next outer level, joined by one network.

    `bandwidth` is that of one unit towards its siblings in collectives, bytes/s per direction, shared by all devices
    below the unit; `latency_ns` is paid per message. `wiring`: how the units are joined, if not by a switch.
    `scatter_share`: the share of the bandwidth that all-gathers and reduce-scatters reach. `wait_ns`: what each further
    rank of a group that crosses the level adds to a collective for which kernels wait, since ranks are never on time.
    """

    name: str
    size: int
    bandwidth: float
    latency_ns: float
    wiring: Wiring | None = None
    scatter_share: float = 1.0
    wait_ns: float = 0.0

    def carrying(self, kind: str) -> Level:
        """The level with the bandwidth that a collective of this kind reaches."""
        if self.scatter_share == 1.0 or kind not in ("all_gather", "reduce_scatter"):
            return self
        wiring = self.wiring and self.wiring.divided(1 / self.scatter_share)
        return replace(self, bandwidth=self.bandwidth * self.scatter_share, scatter_share=1.0, wiring=wiring)


@dataclass(frozen=True, slots=True)
class Device:
    """One rank's processor: memory in bytes, memory bandwidth in bytes/s, `peak` in FLOP/s by dtype.

    `reserved_bytes`: context and communication buffers; `matmul_efficiency`: the share of the peak that large matrix
    products reach; `launch_ns`: what a kernel takes besides its work; `host_bandwidth`: between the device and the
    host's memory, bytes/s in each direction (None: unknown); `host_ns`: what the host needs to issue a call of the
    framework (0: the host is not modelled, as where it is the device); `attention_efficiency`: the share of the peak
    that fused attention reaches (None: as other products); `step_ns`: what a step takes besides kernels and messages;
    `kernels`: measured times, which count instead of the roofline;
    `transaction_bytes`: the least that memory moves for bytes that lie apart (1: bytes alone count).
    """

    name: str
    memory_bytes: int
    reserved_bytes: int
    memory_bandwidth: float
    peak: Mapping[str, float] = field(hash=False)
    matmul_efficiency: float
    launch_ns: float
    host_bandwidth: float | None = None
    host_ns: int = 0
    attention_efficiency: float | None = None
    step_ns: int = 0
    kernels: tuple[KernelTimes, ...] = field(default=(), hash=False)
    transaction_bytes: int = 1

    @property
    def capacity_bytes(self) -> int:
        """Memory that a plan may use."""
        return self.memory_bytes - self.reserved_bytes

    def flops(self, dtype: str) -> float:
        """FLOP/s that matrix products of `dtype` reach; PartitaError if the device has no peak for it."""
        if dtype not in self.peak:
            raise PartitaError(f"device {self.name} has no peak for {dtype}; it has {', '.join(sorted(self.peak))}")
        return self.peak[dtype] * self.matmul_efficiency

    def work_factor(self, op: str) -> float:
        """How many FLOPs of large matrix products take as long as one of this operator."""
        special = op == "attention" and self.attention_efficiency is not None
        return self.matmul_efficiency / (self.attention_efficiency or 1.0) if special else 1.0

    def touched(self, row_bytes: Whole) -> Whole:
        """What memory moves for a row of so many bytes that lies apart from others: whole transactions."""
        return -(-row_bytes // self.transaction_bytes) * self.transaction_bytes


@dataclass(frozen=True)
class Machine:
    """Levels, outermost first, and the device at the leaves; `collectives`: the library's algorithms, in LIBRARIES.

    `hidden_share`: the share of a message's time that kernels beside it do not lose; below 1 where cores that compute
    carry it, as gloo's in one computer.
    `errors`: by how much its numbers may be wrong, as shares, where that differs from the default; no price depends on
    them (`machine_numbers`).
    """

    name: str
    levels: tuple[Level, ...]
    device: Device
    collectives: str = "nccl-ring"
    errors: Mapping[str, float] = field(default_factory=dict, compare=False)
    hidden_share: float = 1.0

    def __post_init__(self) -> None:
        if not self.levels:
            raise PartitaError(f"machine {self.name} has no levels")
        if self.collectives not in LIBRARIES:
            raise PartitaError(
                f"machine {self.name}: unknown collectives {self.collectives!r:.60} (known: {', '.join(LIBRARIES)})"
            )
        names = [level.name for level in self.levels]
        if len(set(names)) < len(names):
            raise PartitaError(f"machine {self.name} names a level twice: {', '.join(names)}")
        for level in self.levels:
            if isinstance(level.size, bool) or not isinstance(level.size, int) or level.size < 1:
                raise PartitaError(f"level {level.name} of {self.name} has size {level.size!r}; a size is 1 or more")
            if level.wiring is not None:
                level.wiring.check(f"level {level.name} of {self.name}", level.size)
        if self.devices > MAX_DEVICES:
            raise PartitaError(f"machine {self.name} has {self.devices:,} devices; the most is {MAX_DEVICES:,}")
        if not 0 < self.hidden_share <= 1:
            raise PartitaError(f"machine {self.name}: hidden_share {self.hidden_share} is not above 0 and at most 1")
        if self.device.capacity_bytes <= 0:
            raise PartitaError(
                f"device {self.device.name} reserves {self.device.reserved_bytes} of {self.device.memory_bytes} bytes"
            )

    @property
    def hides_messages(self) -> bool:
        """True if messages between stages are priced as hidden: more than half of a message hides behind kernels."""
        return self.hidden_share > 0.5

    def busy_ns(self, traffic_ns: Whole) -> Whole:
        """What kernels lose to a message of so many ns that travels beside them."""
        return traffic_ns - traffic_ns * round(self.hidden_share * HIDDEN_PARTS) // HIDDEN_PARTS

    @cached_property
    def hierarchy(self) -> tuple[int, ...]:
        """Sizes of the levels, outermost first."""
        return tuple(level.size for level in self.levels)

    @cached_property
    def devices(self) -> int:
        """Number of ranks."""
        return math.prod(self.hierarchy)

    @cached_property
    def node_level(self) -> int:
        """The level whose units are computers: the one named `node`, else the second-innermost (-1: none)."""
        names = [level.name for level in self.levels]
        return names.index("node") if "node" in names else len(names) - 2

    def devices_below(self, level: int) -> int:
        """Devices in one unit of `level`; they share the unit's link."""
        return math.prod(self.hierarchy[level + 1 :])

    def per_device_bandwidth(self, level: int) -> float:
        """A device's share of its unit's link at `level`, bytes/s, when all devices below the unit send at once."""
        return self.levels[level].bandwidth / self.devices_below(level)

    def latency_ns(self, level: int) -> float:
        """Time of an empty message on `level`."""
        return self.levels[level].latency_ns

    def carrying(self, kind: str) -> Machine:
        """The machine with the bandwidths that a collective of this kind reaches."""
        levels = tuple(level.carrying(kind) for level in self.levels)
        return self if levels == self.levels else replace(self, levels=levels)

    def without_memory_limit(self) -> Machine:
        """This machine with devices on which everything fits."""
        return replace(self, device=replace(self.device, memory_bytes=UNLIMITED_BYTES))

    @property
    def limited(self) -> bool:
        """False after `without_memory_limit`."""
        return self.device.memory_bytes < UNLIMITED_BYTES

    def with_nodes(self, nodes: int) -> Machine:
        """This machine with `nodes` units on its outermost level."""
        return replace(self, levels=(replace(self.levels[0], size=nodes), *self.levels[1:]))

    @classmethod
    def load(cls, name_or_path: str | Path, nodes: int | None = None) -> Machine:
        """A preset by name, or a machine file by path (anything with a slash, a .yaml ending, or a Path).

        `local` is this machine as `partita profile` measured it, with `nodes` ranks or as it did last. Of others
        `nodes` replaces the size of the outermost level. Raises PartitaError for an unknown name or a wrong file.
        """
        from .machine_file import read  # imports pydantic and yaml, which are slow to import

        path = local_file(nodes) if name_or_path == LOCAL else _find(name_or_path)
        data = read(path)
        try:
            machine = cls.from_json(data)
        except ValueError as error:
            raise PartitaError(f"{path}: {error}") from None
        return machine if nodes is None else machine.with_nodes(nodes)

    @classmethod
    def adhoc(cls, hierarchy: tuple[int, ...]) -> Machine:
        """A machine of A100-80GB devices with these level sizes, for `--hierarchy 2x4`.

        The innermost level is a DGX A100's NVSwitch, the next its network; on every level further out a device has
        half the bandwidth of the one below at the same latency (an oversubscribed tree).
        """
        if not hierarchy:
            raise PartitaError("a hierarchy needs at least one level")
        base = cls.load("dgx-a100")
        shares = [base.per_device_bandwidth(1), base.per_device_bandwidth(0)]
        names = ADHOC_NAMES.get(len(hierarchy)) or tuple(f"level{i}" for i in range(len(hierarchy)))
        levels = []
        for index, (name, size) in enumerate(zip(names, hierarchy, strict=True)):
            out = len(hierarchy) - 1 - index  # levels between this one and the devices
            share = shares[0] if out == 0 else shares[1] / 2 ** (out - 1)
            latency = base.latency_ns(0 if out else 1)
            levels.append(Level(name, size, share * math.prod(hierarchy[index + 1 :]), latency))
        assumed = {f"levels.{i}.{name}": ASSUMED for i in range(len(levels)) for name in ("bandwidth", "latency_ns")}
        of_device = {path: error for path, error in base.errors.items() if path.startswith("device.")}
        name = "adhoc-" + "x".join(map(str, hierarchy))
        return cls(name, tuple(levels), base.device, errors=assumed | of_device)

    def to_json(self) -> dict[str, Any]:
        """The machine as in a machine file, without sources."""
        return {
            "name": self.name,
            "levels": [_level_json(level) for level in self.levels],
            "device": _device_json(self.device),
            "collectives": self.collectives,
            **({"errors": dict(self.errors)} if self.errors else {}),
            **({} if self.hidden_share == 1 else {"hidden_share": self.hidden_share}),
        }

    @classmethod
    def from_json(cls, data: Any) -> Machine:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError for malformed data."""
        if not isinstance(data["levels"], list):
            raise ValueError(f"{data['levels']!r:.60} is not a list")
        levels = tuple(map(_level, data["levels"]))
        # Plans of older versions name no collectives.
        collectives = title(data.get("collectives", cls.collectives))
        errors = {title(path): _error(share) for path, share in data.get("errors", {}).items()}
        if "overlaps" in data:
            raise ValueError("overlaps is hidden_share now: profile the machine, or plan, again")
        hidden = rate(data.get("hidden_share", cls.hidden_share))
        return cls(title(data["name"]), levels, _device(data["device"]), collectives, errors, hidden)


def stage_machine(machine: Machine, row: tuple[int, ...]) -> Machine:
    """The part of a machine that one pipeline stage has; `row` divides each level.

    The pipeline's coordinate is the most significant one on every level, so a stage has adjacent units. Stages in one
    unit share its link evenly, as all communicate at once: a collective inside one stage costs as much as those of all
    stages at once on the whole machine. If a wired level is divided, the result is a lower bound (see `Wiring.part`).
    Raises PartitaError for a row that does not divide the levels.
    """
    if len(row) != len(machine.levels) or any(f < 1 or n % f for n, f in zip(machine.hierarchy, row, strict=True)):
        raise PartitaError(
            f"a pipeline over {row} units does not fit the hierarchy {machine.hierarchy} of {machine.name}"
        )
    stages = math.prod(row)
    if stages == 1:
        return machine
    levels = []
    for depth, (level, factor) in enumerate(zip(machine.levels, row, strict=True)):
        inside = math.prod(row[depth + 1 :])  # stages that share the link of a unit
        wiring = level.wiring and level.wiring.part(level.size, factor).divided(inside)
        levels.append(replace(level, size=level.size // factor, bandwidth=level.bandwidth / inside, wiring=wiring))
    return replace(machine, name=f"{machine.name}, a stage of {stages}", levels=tuple(levels))


ADHOC_NAMES = {1: ("gpu",), 2: ("node", "gpu"), 3: ("rack", "node", "gpu")}


def local_file(ranks: int | None, *, missing: bool = False) -> Path:
    """The file of this machine with so many ranks, None: the newest; one that is `missing` is not refused."""
    folder = kept_folder() / "machines"
    if ranks is None:
        found = sorted(folder.glob(f"{LOCAL}-*.yaml"), key=lambda file: file.stat().st_mtime)
    else:
        file = folder / f"{LOCAL}-{ranks}.yaml"
        found = [file] if missing or file.is_file() else []
    if not found:
        how = "" if ranks is None else f" --ranks {ranks}"
        raise PartitaError(
            f"machine {LOCAL} is not measured{' with so many ranks' * bool(how)}: run partita profile{how}"
        )
    return found[-1]


def machines() -> list[str]:
    """Names of the presets, sorted."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def _find(name_or_path: str | Path) -> Path:
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or "/" in text or text.endswith((".yaml", ".yml")):
        return Path(text)
    if text in machines():
        return PRESETS / f"{text}.yaml"
    hint = did_you_mean(text, machines())
    raise PartitaError(
        f"unknown machine {text[:60]!r}{hint} (known: {', '.join(machines())}, {LOCAL}; or a path to a .yaml file)"
    )


def _given(part: Level | Device) -> dict[str, Any]:
    """The fields that differ from their defaults."""
    values = ((f, getattr(part, f.name)) for f in fields(part))
    return {f.name: value for f, value in values if value != f.default}


def _device_json(device: Device) -> dict[str, Any]:
    kernels = {"kernels": [times.to_json() for times in device.kernels]} if device.kernels else {}
    return _given(device) | {"peak": dict(device.peak)} | kernels


def _level_json(level: Level) -> dict[str, Any]:
    return _given(level) | ({} if level.wiring is None else {"wiring": level.wiring.to_json()})


def _error(share: Any) -> float:
    if not rate(share) < 1:
        raise ValueError(f"error {share!r:.60} is not a share above 0 and below 1")
    return float(share)


def _level(data: Any) -> Level:
    return Level(
        title(data["name"]),
        data["size"],  # which Machine checks
        rate(data["bandwidth"]),
        number(data["latency_ns"]),
        Wiring.from_json(data["wiring"]) if "wiring" in data else None,
        scatter_share=rate(data.get("scatter_share", 1.0)),
        wait_ns=number(data.get("wait_ns", 0.0)),
    )


def _kernels(data: Any) -> tuple[KernelTimes, ...]:
    found = tuple(map(KernelTimes.from_json, data.get("kernels", ())))
    known = set[tuple[str, ...]]()
    for times in found:
        of = times.op, times.dtype, times.phase
        if of in known:
            raise ValueError(f"kernel times of {' '.join(of)} are listed twice")
        if times.dtype not in data["peak"]:
            raise ValueError(f"kernel times of {' '.join(of)}, but the device has no peak for {times.dtype}")
        known.add(of)
    return found


def _device(data: Any) -> Device:
    return Device(
        name=title(data["name"]),
        memory_bytes=whole(data["memory_bytes"]),
        reserved_bytes=whole(data["reserved_bytes"]),
        memory_bandwidth=rate(data["memory_bandwidth"]),
        peak={title(dtype): rate(flops) for dtype, flops in data["peak"].items()},
        matmul_efficiency=rate(data["matmul_efficiency"]),
        launch_ns=number(data["launch_ns"]),
        host_bandwidth=rate(data["host_bandwidth"]) if "host_bandwidth" in data else None,
        host_ns=whole(number(data.get("host_ns", 0))),
        step_ns=whole(number(data.get("step_ns", 0))),
        attention_efficiency=rate(data["attention_efficiency"]) if "attention_efficiency" in data else None,
        kernels=_kernels(data),
        transaction_bytes=whole(rate(data.get("transaction_bytes", 1))),
    )

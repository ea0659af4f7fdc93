"""Reduction programs on an emulated network: predicted and measured seconds and bytes on the wire.

Real gloo ranks in network namespaces run emitted files: every program of a reduction over all ranks (of three levels a
sample of the 825), and for every placement of a smaller mesh the flat all-reduce and the planner's program.

Predictions are `program_price`'s with the profile gloo, for a machine whose links carry the shaped rate less what
TCP/IP and Ethernet add. Loopback and latency are the preset cpu's, measured with 4 ranks: here the messages of all
ranks share what those four got together, for the same cores copy them. They matter little where the network is the
limit. A program is network-bound if NETWORK_BOUND of its predicted time is bytes on shaped links. `other_load` is the
load average before the ranks start: above the number of cores, the processors are the limit and not the links. With
`ring` a ring of messages takes the place of gloo's reduce-scatter, which sends as much as an all-reduce; it costs what
nccl-ring says.
"""

import json
import math
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..codegen.emission.reduction import emit
from ..formulation.placement.placement import Placement, arrangements, of_rows
from ..formulation.reduction.cost import step_price, with_shares
from ..formulation.reduction.enumeration import programs
from ..formulation.reduction.optimal import optimal
from ..formulation.reduction.program import Collective, Reduction, ReductionProgram, Step, flat, groups
from ..model.errors import PartitaError
from ..model.machine.collective_patterns import PATTERNS
from ..model.machine.collective_price import FREE, CollectivePrice
from ..model.machine.link_kinds import SharedMedium
from ..model.machine.machine import Level, Machine
from ..model.machine.wiring import Wiring
from .cases import Row, Tell, each
from .emulated import Emulation, emulated, refusal, run_ranks

NAMES = ("rack", "node", "rank")
SHORT = {"all_reduce": "AR", "reduce_scatter": "RS", "all_gather": "AG", "reduce": "R", "broadcast": "B"}
NETWORK_BOUND, WITHIN = 0.8, 0.15
ROUNDS = 3
"""All programs run once a round, and the fastest round counts: other work on the computer disturbs one, not all."""

NEAR, AGAIN = 1.15, 9
"""Programs that take at most NEAR times what the fastest does run in AGAIN rounds more, to tell which one it is."""

SECONDS = 1200.0
MOST = 60
"""Programs measured of one reduction; of more, a sample from the lowest to the highest predicted cost."""


@dataclass(frozen=True, slots=True)
class Case:
    """A network, and the bytes that every rank holds; `mesh`: the smaller one, reduced over its first axis."""

    name: str
    network: Emulation
    size_bytes: int
    mesh: tuple[int, ...]
    ring: bool = False
    most: int = MOST


MB = 10**6
CASES = (
    Case("2x4 100 Mbit/s", Emulation((2, 4), (100e6,)), 2 * MB, (2, 4)),
    Case("2x4 200 Mbit/s", Emulation((2, 4), (200e6,)), 4 * MB, (2, 4)),
    Case("4x4 100 Mbit/s", Emulation((4, 4), (100e6,)), 2 * MB, (4, 4)),
    Case("4x4 200 Mbit/s", Emulation((4, 4), (200e6,)), 4 * MB, (4, 4)),
    Case("2x2x2 50, 100 Mbit/s", Emulation((2, 2, 2), (50e6, 100e6)), 2 * MB, (2, 4), most=24),
    Case("2x4 100 Mbit/s, ring", Emulation((2, 4), (100e6,)), 2 * MB, (2, 4), ring=True),
)
SMALL = (Case("2x2 100 Mbit/s", Emulation((2, 2), (100e6,)), MB // 2, (2, 2), most=6),)


@dataclass(frozen=True, slots=True)
class EmittedFile:
    """One emitted file: programs of one reduction by their names, and which of them the planner takes."""

    reduction: Reduction
    programs: dict[str, ReductionProgram]
    picked: str


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """Run every case; times in ms, bytes in MB of all nodes together. PartitaError: no network can be emulated here."""
    cases = each(SMALL if small else CASES, only, tell)
    why = refusal()
    if why is not None:
        raise PartitaError(f"no network can be emulated: {why}")
    return [row for case in cases for row in measure(case)]


def measure(case: Case) -> list[Row]:
    """One row per placement and program, the placements in their order, their programs from the fastest on."""
    machine = described(case.network)
    whole = Reduction(of_rows([case.network.sizes]), (0,))
    smaller = [Reduction(p, (0,)) for p in arrangements(case.network.sizes, case.mesh)]
    load = os.getloadavg()[0]
    runs = [_every(case, machine, whole), *(_chosen(case, machine, reduction) for reduction in smaller)]
    measured = _measured(case, machine, runs)
    rows = []
    for one, found in zip(runs, measured, strict=True):
        mine = [_row(case, machine, one, name, found) for name in one.programs]
        rows += sorted(({**row, "other_load": load} for row in mine), key=lambda row: row["measured_ms"])
    return rows


def described(network: Emulation) -> Machine:
    """The network as a machine: rates of links by what frames leave for data; loopback is what cores copy for all."""
    cpu = Machine.load("cpu")
    copied = cpu.devices * cpu.levels[0].bandwidth / network.nodes  # every node's share of what the cores can do
    latency = cpu.latency_ns(0) * network.ranks / cpu.devices
    bandwidths = [*(rate / 8 / network.wire_bytes for rate in network.rates), copied]
    wirings = [*(None for _ in network.rates), Wiring((SharedMedium(copied),))]
    names = NAMES[-len(network.sizes) :]
    levels = tuple(
        Level(name, size, bandwidth, latency, wiring)
        for name, size, bandwidth, wiring in zip(names, network.sizes, bandwidths, wirings, strict=True)
    )
    return Machine(f"emulated {'x'.join(map(str, network.sizes))}", levels, cpu.device, "gloo")


def _every(case: Case, machine: Machine, reduction: Reduction) -> EmittedFile:
    """The enumerated programs, or a sample of them, with the flat and the planner's."""
    chosen = _chosen(case, machine, reduction)
    names = machine_names(machine, reduction)
    found = sorted(
        programs(len(reduction.sizes)), key=lambda p: price(machine, reduction, p, case.ring).ns(case.size_bytes)
    )
    if len(found) > case.most:
        found = [found[i * (len(found) - 1) // (case.most - 1)] for i in range(case.most)]
    return replace(chosen, programs=chosen.programs | {notation(p, names): p for p in found})


def _chosen(case: Case, machine: Machine, reduction: Reduction) -> EmittedFile:
    profile = "nccl-ring" if case.ring else machine.collectives
    best = optimal(machine, reduction, case.size_bytes, profile=profile).program
    names = machine_names(machine, reduction)
    picked = notation(best, names)
    return EmittedFile(reduction, {notation(flat(reduction.sizes), names): flat(reduction.sizes), picked: best}, picked)


def machine_names(machine: Machine, reduction: Reduction) -> list[str]:
    """Names of the reduction's levels."""
    return [machine.levels[level].name for level in reduction.machine_levels]


def notation(program: ReductionProgram, names: Sequence[str]) -> str:
    """`RS(rank) AR(node) AG(rank)`; a step in which only first members take part: `AR(node, first rank)`."""
    return " ".join(
        f"{SHORT[s.collective]}({'+'.join(names[i] for i in s.levels)}{''.join(f', first {names[i]}' for i in s.zero)})"
        for s in program
    )


def _measured(case: Case, machine: Machine, runs: Sequence[EmittedFile]) -> list[Row]:
    """What the ranks report of every run, in one start: the fastest round of every program."""
    with tempfile.TemporaryDirectory(prefix="partita-network-") as name, emulated(case.network) as nodes:
        folder = Path(name)
        job = []
        for number, one in enumerate(runs):
            file = f"reduction_{number}.py"
            (folder / file).write_text(emit(one.programs, one.reduction, machine))
            job.append({"file": file, "bytes": case.size_bytes, "ring": case.ring})
        (folder / "job.json").write_text(json.dumps({"rounds": ROUNDS, "near": NEAR, "again": AGAIN, "runs": job}))
        run_ranks(case.network, nodes, ["-m", f"{__package__}.ranks", str(folder / "job.json")], SECONDS)
        rounds = json.loads((folder / "results.json").read_text())
    return [
        {name: min((r[name] for r in of_run if name in r), key=_seconds) for name in of_run[0]}
        for of_run in zip(*rounds, strict=True)
    ]


def _seconds(found: Row) -> float:
    return float(found["seconds"])


# Predictions


def profile_of(step: Step, ring: bool) -> str:
    return "nccl-ring" if ring and step.collective is Collective.REDUCE_SCATTER else "gloo"


def price(machine: Machine, reduction: Reduction, program: ReductionProgram, ring: bool) -> CollectivePrice:
    """`program_price` where gloo runs all steps, or all but the reduce-scatters."""
    steps = with_shares(program, reduction.sizes)
    return sum((step_price(machine, reduction, s, share, profile_of(s, ring)) for s, share in steps), FREE)


def wire_bytes(
    network: Emulation, reduction: Reduction, program: ReductionProgram, size_bytes: int, ring: bool
) -> float:
    """What all nodes send to others, headers and acknowledgements included: every message of every group by itself."""
    members = reduction.members() // network.per_node
    hosts = len(network.sizes) - 1
    total = 0.0
    for step, share in with_shares(program, reduction.sizes):
        across = sum(reduction.machine_levels[level] < hosts for level in step.levels)
        phases = PATTERNS[profile_of(step, ring)][step.collective](reduction.sizes[step.first : step.last + 1], across)
        for group in groups(step, reduction.sizes):
            nodes = members[:, list(group)]
            for phase in phases:
                apart = nodes[:, phase.shape.source] != nodes[:, phase.shape.target]
                total += share * phase.share * float((apart * phase.shape.share).sum())
    return total * size_bytes * network.wire_bytes


def _row(case: Case, machine: Machine, one: EmittedFile, name: str, found: Row) -> Row:
    program, seconds = one.programs[name], found[name]["seconds"]
    line = price(machine, one.reduction, program, case.ring)
    shaped = [replace(level, latency_ns=0.0) for level in machine.levels[:-1]]
    inside = Level(machine.levels[-1].name, machine.levels[-1].size, sys.float_info.max, 0.0)
    wire = price(replace(machine, levels=(*shaped, inside)), one.reduction, program, case.ring).ns_per_byte
    fastest = min(run["seconds"] for run in found.values())
    predicted = line.ns(case.size_bytes) / 1e9
    return {
        "case": case.name,
        "placement": _matrix(one.reduction.placement),
        "program": name,
        "predicted_ms": predicted * 1e3,
        "measured_ms": seconds * 1e3,
        "ratio": predicted / seconds,
        "wire_mb": wire_bytes(case.network, one.reduction, program, case.size_bytes, case.ring) / 1e6,
        "sent_mb": found[name]["sent_bytes"] / 1e6,
        "over_flat": found[next(iter(one.programs))]["seconds"] / seconds,
        "over_fastest": seconds / fastest,
        "network_bound": wire * case.size_bytes >= NETWORK_BOUND * predicted * 1e9,
        "picked": name == one.picked,
    }


def _matrix(placement: Placement) -> str:
    return " ".join("[" + " ".join(map(str, row)) + "]" for row in placement.matrix)


def summary(rows: Sequence[Row]) -> list[Row]:
    """A row per case: how near the predictions are, what the planner's choice of program and of placement is worth."""
    return [_total([row for row in rows if row["case"] == name]) for name in dict.fromkeys(r["case"] for r in rows)]


def _total(rows: Sequence[Row]) -> Row:
    bound = [row for row in rows if row["network_bound"]]
    ratios = [row["ratio"] for row in bound]
    whole = [row for row in rows if row["placement"] == rows[0]["placement"]]
    picked = next(row for row in whole if row["picked"])
    placed = [row for row in rows if row["placement"] != rows[0]["placement"] and row["picked"]]
    best, worst = (pick(placed, key=lambda row: row["predicted_ms"]) for pick in (min, max))
    return {
        "case": rows[0]["case"],
        "other_load": rows[0]["other_load"],
        "network_bound": len(bound),
        f"within_{WITHIN:.0%}": sum(abs(ratio - 1) <= WITHIN for ratio in ratios),
        "lowest": min(ratios, default=None),
        "mean": math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None,
        "highest": max(ratios, default=None),
        "picked": picked["program"],
        "of_fastest": picked["over_fastest"],
        "over_flat": picked["over_flat"],
        "worst_placement": worst["placement"],
        "over_best": worst["measured_ms"] / best["measured_ms"],
        "predicted_over_best": worst["predicted_ms"] / best["predicted_ms"],
    }

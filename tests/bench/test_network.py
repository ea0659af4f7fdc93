"""The emulated network: what is predicted for it, that it runs emitted programs, and that nothing of it is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from partita.bench import BENCHES, bench, text
from partita.bench import emulated as network_module
from partita.bench.emulated import PREFIX, Emulation, emulated, refusal, run_ranks
from partita.bench.network import CASES, SMALL, described, notation, price, summary, wire_bytes
from partita.formulation.placement.placement import of_rows
from partita.formulation.reduction.cost import program_price
from partita.formulation.reduction.enumeration import programs
from partita.formulation.reduction.program import Collective, Reduction, ReductionProgram, Step, flat
from partita.model.errors import PartitaError
from partita.model.machine.link_kinds import SharedMedium

AR, RS, AG, R, B = (
    Collective.ALL_REDUCE,
    Collective.REDUCE_SCATTER,
    Collective.ALL_GATHER,
    Collective.REDUCE,
    Collective.BROADCAST,
)
TWO_BY_FOUR = Emulation((2, 4), (100e6,))
ALL = Reduction(of_rows([(2, 4)]), (0,))
HIERARCHICAL = (Step(RS, 1, 1), Step(AR, 0, 0), Step(AG, 1, 1))

WHY = refusal()
needs_network = pytest.mark.skipif(WHY is not None, reason=f"no network can be emulated here: {WHY}")


# Predictions, which need no network


def test_machine() -> None:
    network = Emulation((2, 2, 2), (50e6, 100e6))
    machine = described(network)
    assert [level.name for level in machine.levels] == ["rack", "node", "rank"]
    assert [level.bandwidth * 8 * network.wire_bytes for level in machine.levels[:2]] == pytest.approx([50e6, 100e6])
    inside = machine.levels[2].wiring
    assert inside is not None
    (shared,) = inside.of_kind(SharedMedium)
    assert shared.bandwidth == pytest.approx(0.8e9)  # a node's quarter of what the preset's four ranks have together
    assert (machine.collectives, machine.hierarchy) == ("gloo", (2, 2, 2))


@pytest.mark.parametrize(
    ("program", "ring", "share"),
    [
        (flat((2, 4)), False, 2 * 2 * 7 / 8),  # a ring of 8 leaves each node once
        (HIERARCHICAL, False, 2 * 4 * 1 / 4),  # four rings of two over a quarter each
        ((Step(RS, 0, 1), Step(AG, 0, 1)), False, 2 * 3 * 7 / 8),  # gloo's reduce-scatter is an all-reduce
        ((Step(RS, 0, 1), Step(AG, 0, 1)), True, 2 * 2 * 7 / 8),
        ((Step(AR, 0, 0), Step(AR, 1, 1)), False, 2 * 4),
        ((Step(R, 1, 1), Step(AR, 0, 0, (1,)), Step(B, 1, 1)), False, 2),
    ],
)
def test_wire_bytes(program: ReductionProgram, ring: bool, share: float) -> None:
    """All nodes' together, in units of what a rank holds."""
    assert wire_bytes(TWO_BY_FOUR, ALL, program, 1000, ring) == pytest.approx(share * 1000 * TWO_BY_FOUR.wire_bytes)


def test_what_stays_in_a_node_sends_nothing() -> None:
    inside = Reduction(of_rows([(1, 4), (2, 1)]), (0,))
    assert wire_bytes(TWO_BY_FOUR, inside, flat((4,)), 1000, False) == 0


def test_price_is_the_planners() -> None:
    machine = described(TWO_BY_FOUR)
    for program in programs(2):
        ours, planners = price(machine, ALL, program, False), program_price(machine, ALL, program)
        assert ours.ns(10**6) == pytest.approx(planners.ns(10**6), abs=2)


def test_notation_tells_programs_apart() -> None:
    assert notation(HIERARCHICAL, ("node", "rank")) == "RS(rank) AR(node) AG(rank)"
    assert notation((Step(AR, 0, 0, (1,)),), ("node", "rank")) == "AR(node, first rank)"
    every = programs(3)
    assert len({notation(program, ("rack", "node", "rank")) for program in every}) == len(every)


def test_cases() -> None:
    assert len({case.name for case in (*CASES, *SMALL)}) == len(CASES) + len(SMALL)
    assert "network" in BENCHES
    with pytest.raises(PartitaError, match="no case has nowhere"):
        bench("network", only=("nowhere",))


def test_refused_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/sbin/{tool}")
    with pytest.raises(PartitaError, match="no network can be emulated: only root"):
        bench("network", small=True)


def test_refused_without_the_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool: None if tool == "tc" else f"/sbin/{tool}")
    with pytest.raises(PartitaError, match="tc of iproute2 not found"), emulated(TWO_BY_FOUR):
        pass


def test_refused_by_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: str, namespace: str | None = None) -> None:
        raise PartitaError(f"`{command}` failed: Operation not permitted")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool: f"/sbin/{tool}")
    monkeypatch.setattr(network_module, "_do", refuse)
    assert "Operation not permitted" in str(refusal())


def row(**changes: object) -> dict[str, object]:
    common = {"case": "c", "placement": "[2 4]", "program": "p", "predicted_ms": 90.0, "measured_ms": 100.0}
    flags = {
        "ratio": 0.9,
        "over_flat": 1.0,
        "over_fastest": 2.0,
        "network_bound": True,
        "picked": False,
        "other_load": 0.5,
    }
    return common | flags | changes


def test_summary() -> None:
    rows = [
        row(program="best", picked=True, over_fastest=1.03, over_flat=1.5),
        row(ratio=0.5),
        row(ratio=0.1, network_bound=False),
        row(placement="[1 4]", picked=True, measured_ms=10.0, predicted_ms=5.0, network_bound=False),
        row(placement="[2 2]", picked=True, measured_ms=200.0, predicted_ms=150.0),
    ]
    (total,) = summary(rows)
    assert (total["network_bound"], total["within_15%"], total["lowest"], total["highest"]) == (3, 2, 0.5, 0.9)
    assert (total["picked"], total["of_fastest"], total["over_flat"]) == ("best", 1.03, 1.5)
    assert (total["worst_placement"], total["over_best"], total["predicted_over_best"]) == ("[2 2]", 20.0, 30.0)


# The network itself


def namespaces() -> list[str]:
    """Those of this process, and of processes that it started."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    return [line.split()[0] for line in listed.splitlines() if line.startswith(f"{PREFIX}-")]


@needs_network
def test_emitted_programs_run_as_predicted() -> None:
    """Wire bytes are exact; time on a busy machine is only bounded from below, by the links."""
    result = bench("network", small=True)
    whole = [r for r in result["rows"] if r["placement"] == "[2 2]"]
    assert sum(r["picked"] for r in whole) == 1 and len(whole) >= 6
    for r in result["rows"]:
        assert r["sent_mb"] == pytest.approx(r["wire_mb"], rel=0.1, abs=0.05)
        # Two nodes at 12.5 MB/s; a link that was idle lets a burst pass at once.
        assert r["measured_ms"] > 0.8 * r["wire_mb"] / 2 / 12.5 * 1e3
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert text(result).splitlines()[0] == "$ partita bench network --small"
    (total,) = result["summary"]
    assert total["network_bound"] >= 6 and total["over_best"] > 2
    assert not [name for name in namespaces() if f"-{os.getpid()}-" in name]


@needs_network
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_after_an_error(error: type[BaseException]) -> None:
    with pytest.raises(error), emulated(Emulation((2, 2, 1), (50e6, 100e6))) as nodes:
        assert set(nodes) <= set(namespaces()) and len(nodes) == 4
        raise error
    assert not set(nodes) & set(namespaces())


HOLD = """
import sys, time
from partita.bench.emulated import Emulation, emulated
with emulated(Emulation((2, 1), (100e6,))) as nodes:
    print(*nodes, flush=True)
    time.sleep(60)
"""


def started() -> tuple[subprocess.Popen[str], set[str]]:
    process = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, set(process.stdout.readline().split())


@needs_network
@pytest.mark.usefixtures("hears_interrupts")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_after_a_signal(number: signal.Signals) -> None:
    process, nodes = started()
    assert len(nodes) == 2 and nodes <= set(namespaces())
    process.send_signal(number)
    process.communicate(timeout=30)
    assert not nodes & set(namespaces())


@needs_network
def test_the_next_run_removes_what_a_killed_one_left() -> None:
    process, nodes = started()
    process.kill()
    process.communicate(timeout=30)
    assert nodes and nodes <= set(namespaces())
    with emulated(Emulation((2, 1), (100e6,))):
        assert not nodes & set(namespaces())


@needs_network
def test_a_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text("import os, time\nif os.environ['RANK'] == '1':\n    raise SystemExit('lost')\ntime.sleep(60)\n")
    start = time.monotonic()
    network = Emulation((2, 2), (100e6,))
    with emulated(network) as nodes:
        with pytest.raises(RuntimeError, match=r"rank 1 ended with exit code 1\nlost"):
            run_ranks(network, nodes, [str(script)], 50)
        left = [subprocess.run(["ip", "netns", "pids", n], capture_output=True, text=True).stdout for n in nodes]
    assert left == ["", ""] and time.monotonic() - start < 30


@needs_network
def test_ranks_that_take_too_long(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text("import time\ntime.sleep(60)\n")
    network = Emulation((2, 1), (100e6,))
    with emulated(network) as nodes, pytest.raises(RuntimeError, match="not done in 1 s"):
        run_ranks(network, nodes, [str(script)], 1)

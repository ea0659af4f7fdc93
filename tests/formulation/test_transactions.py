"""Rows that are looked up cost whole transactions of memory, in both pricers; never more than the whole table."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from math import ceil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from partita import PartitaError
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.stage_price import stage_price
from partita.formulation.search_space import SearchSpace
from partita.formulation.special.table_spread import row_columns, unit_widths
from partita.formulation.strategies.node_floors import floors_ns
from partita.formulation.weights.storage import spread_bytes
from partita.model.capture.capture import capture
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine
from partita.model.machine.precision import precision
from partita.model.operators.operator import operator
from partita.model.training import Training
from partita.solvers.backends.table_spread import balanced

BATCH, ROWS, WIDTH = 4096, 10**6, 16


class Rows(nn.Module):
    """One row of a table for every sample."""

    def __init__(self, rows: int, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, WIDTH, sparse=sparse)

    def forward(self, ids: Tensor) -> Tensor:
        loss: Tensor = self.table(ids).square().mean()
        return loss


class Picked(nn.Module):
    """Single elements of rows that are computed: every second column."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = (x * self.scale)[:, torch.arange(0, 64, 2)].square().mean()
        return loss


@cache
def graph(rows: int = ROWS, sparse: bool = True) -> PCG:
    with torch.device("meta"):
        module = Rows(rows, sparse)
    return capture(module, (torch.zeros(BATCH, dtype=torch.long, device="meta"),), batch=BATCH)


def machine(transaction_bytes: int, devices: int = 8) -> Machine:
    base = Machine.load("dgx-a100")
    device = replace(base.device, transaction_bytes=transaction_bytes)
    return replace(base, levels=(replace(base.levels[1], size=devices),), device=device)


def planned(on: Machine, pcg: PCG, strategy: str = "e", dtype: str = "float32") -> Plan:
    (lookup,) = (node.name for node in pcg.nodes if node.op in ("embedding", "index"))
    space = SearchSpace(mesh=on.hierarchy, fix=((lookup, strategy),), stages=1, micro_batches=1)
    plan = plan_graph(pcg, on, Training(BATCH, dtype, "sgd"), space)
    assert stage_price(plan).objective_ns == plan.report["objective_ns"]
    return plan


def forward_bytes(plan: Plan) -> float:
    """What the look-up's kernel moves."""
    (item,) = (
        item
        for item in stage_price(plan).items
        if item.kind in ("embedding", "index") and item.phase == "forward" and item.part == "compute"
    )
    device = plan.machine.device
    return (item.ns - device.launch_ns) * device.memory_bandwidth / 1e9


@pytest.mark.parametrize(
    ("transaction_bytes", "strategy", "moved"),
    [(1, "e", 8), (32, "e", 32), (64, "e", 64), (1, "R", 64), (48, "R", 96), (32, "ids", 64)],
)
def test_a_row_costs_whole_transactions(transaction_bytes: int, strategy: str, moved: int) -> None:
    """A rank has 2 of 16 columns, all, or all of an eighth of the rows; it reads ids of 8 bytes, and writes rows."""
    plan = planned(machine(transaction_bytes), graph(), strategy)
    own = 8 if strategy == "e" else 64
    assert forward_bytes(plan) == pytest.approx(
        BATCH * (moved + 8 + own), abs=plan.machine.device.memory_bandwidth / 1e9
    )


@pytest.mark.parametrize("transaction_bytes", [1, 32])
def test_the_update_of_rows_costs_them_too(transaction_bytes: int) -> None:
    plan = planned(machine(transaction_bytes), graph())
    (item,) = (item for item in stage_price(plan).items if item.kind == "update")
    size = 5 * BATCH * (max(8, transaction_bytes) + 8)
    assert item.ns == ceil(size / plan.machine.device.memory_bandwidth * 1e9)
    assert plan.report["memory_bytes"] == planned(machine(1), graph()).report["memory_bytes"]


def test_a_cast_moves_the_rows_alone_twice_more() -> None:
    """The rows of a sparse table are float32 and cast after the look-up: written and read side by side."""
    plan = planned(machine(32), graph(), dtype="mixed-bfloat16")
    assert forward_bytes(plan) == pytest.approx(
        BATCH * (32 + 2 * 8 + 8 + 4), abs=plan.machine.device.memory_bandwidth / 1e9
    )


@pytest.mark.parametrize("sparse", [True, False])
def test_both_pricers_agree_where_the_table_is_the_limit(sparse: bool) -> None:
    """Of 100 rows of 8 bytes no more than 800 bytes come from memory, but no less than what is looked up counts."""
    plan = planned(machine(512), graph(100, sparse))
    assert forward_bytes(plan) == pytest.approx(BATCH * (8 + 8 + 8), abs=plan.machine.device.memory_bandwidth / 1e9)


def test_elements_that_lie_close_cost_no_more_than_their_tensor() -> None:
    pcg = capture(Picked(), (torch.zeros(BATCH, 64),), batch=BATCH)
    (node,) = (node for node in pcg.nodes if node.op == "index")
    found = operator("index").looked_up(node, tuple(pcg.nodes[i] for i in node.inputs))
    assert found == (0, BATCH * 32, ())
    plan = planned(machine(32, 1), pcg, "R")
    size = BATCH * 4 * (64 + 32) + 32 * 8
    assert forward_bytes(plan) == pytest.approx(size, abs=plan.machine.device.memory_bandwidth / 1e9)


@pytest.mark.parametrize("strategy", ["R", "e", "ids"])
def test_floors_stay_below(strategy: str) -> None:
    on, pcg = machine(64), graph(ROWS, False)
    (index,) = pcg.of("embedding")
    floor = floors_ns(pcg, on, on.devices, precision("float32"))[0][index]
    plan = planned(on, pcg, strategy)
    own = [item.ns for item in stage_price(plan).items if item.node == index and item.part == "compute"]
    assert 0 < floor <= sum(own)


def test_parts_of_a_row_never_move_less_than_the_row() -> None:
    """So a device with the bandwidth of all is a lower bound (`merged_device`)."""
    devices = [machine(transaction_bytes).device for transaction_bytes in (1, 32, 48)]
    for device, width, parts in product(devices, range(1, 70, 3), range(1, 9)):
        assert parts * device.touched(4 * -(-width // parts)) >= device.touched(4 * width) >= 4 * width


def test_units_are_as_wide_as_a_transaction() -> None:
    """26 tables of 128 columns on 24 ranks: 35 units of 4 columns would move as much as 35 of 8."""
    assert unit_widths(26, 128, 24)[0] == 4
    assert unit_widths(26, 128, 24, row=8)[0] == 16
    assert [
        row_columns(machine(t).device, precision(d), sparse=False) for t, d in ((1, "float32"), (32, "float32"))
    ] == [1, 8]
    narrow = machine(32).device, precision("mixed-bfloat16")
    assert row_columns(*narrow, sparse=False) == 16
    assert row_columns(*narrow, sparse=True) == 8  # such rows are read as they are stored


def test_units_of_spread_tables_cost_transactions() -> None:
    spread = balanced((50, 70, 90), 8, 4)
    assert spread is not None
    each = spread.unit * 4
    device = machine(32).device
    for moved, own in ((each, None), (device.touched(each), device)):
        assert spread_bytes(spread, 30, precision("float32"), own) == 10 * spread.largest.units * (moved + 8)


def test_a_machine_file_counts_whole_bytes(tmp_path: Path) -> None:
    preset = (Path(__file__).parents[2] / "model" / "machine" / "presets" / "dgx-a100.yaml").read_text()
    assert Machine.load("dgx-a100").device.transaction_bytes == 32 and Machine.load("cpu").device.transaction_bytes == 1
    file = tmp_path / "half.yaml"
    file.write_text(preset.replace("transaction_bytes: {value: 32", "transaction_bytes: {value: 31.5"))
    with pytest.raises(PartitaError, match=r"device\.transaction_bytes\.value: .*whole"):
        Machine.load(file)

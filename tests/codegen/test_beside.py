"""Branches side by side: planned, priced twice, emitted, run beside the whole module, saved and read back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import partita
from partita.codegen.plan.choice import Choice
from partita.codegen.plan.plan import Plan
from partita.codegen.pricing.stage_price import stage_price
from partita.formulation.bundles.bundles import inside
from partita.formulation.network.checks import check_network


class Branchy(nn.Module):
    """Branches of unequal depth between two layers; `shared`: they read one tensor, else inputs of their own."""

    def __init__(
        self,
        widths: Sequence[int] = (6, 4, 10),
        depths: Sequence[int] = (1, 3, 2),
        norm: bool = False,
        join: str = "cat",
    ) -> None:
        super().__init__()
        self.join = join
        self.stem = nn.Linear(8, 12)
        self.branches = nn.ModuleList(
            nn.Sequential(*(part for k in range(depth) for part in self.layer(12 if k == 0 else width, width, norm)))
            for width, depth in zip(widths, depths, strict=True)
        )
        self.head = nn.Linear(sum(widths) if join == "cat" else widths[0], 5)

    @staticmethod
    def layer(inputs: int, outputs: int, norm: bool) -> list[nn.Module]:
        return [nn.Linear(inputs, outputs), *([nn.BatchNorm1d(outputs)] if norm else []), nn.ReLU()]

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        found = [branch(x) for branch in self.branches]
        if self.join == "cat":
            y = torch.cat(found, 1)
        elif self.join == "stack":
            y = torch.stack(found, 1).mean(1)
        else:
            y = sum(found[1:], found[0] + x if self.join == "residual" else found[0])
        return self.head(y).square().mean()


class Nested(nn.Module):
    """A branch that branches itself."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(8, 6)
        self.plain = nn.Linear(6, 4)
        self.inner = nn.ModuleList([nn.Linear(6, 4), nn.Linear(6, 8)])
        self.before = nn.Linear(6, 6)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        y = torch.tanh(self.before(x))
        inner = torch.cat([torch.tanh(layer(y)) for layer in self.inner], 1)
        return self.head(torch.cat((torch.tanh(self.plain(x)), inner), 1)).square().mean()


def slow_kernels(hierarchy: tuple[int, ...], **changes: Any) -> partita.Machine:
    """A machine on which every kernel takes long: fewer of them on each device pay."""
    machine = partita.Machine.adhoc(hierarchy)
    return replace(machine, device=replace(machine.device, launch_ns=200_000, **changes))


def planned(module: nn.Module, hierarchy: tuple[int, ...], batch: int, **options: Any) -> Plan:
    machine = options.pop("machine", None) or slow_kernels(hierarchy)
    options = {"stages": 1, "micro_batches": 1} | options
    return partita.optimize(module, (torch.zeros(max(batch, 2), 8),), machine, batch=batch, **options)


@pytest.mark.parametrize(
    ("module", "hierarchy", "mesh", "batch"),
    [
        (Branchy(), (3,), None, 7),  # parts of the batch are uneven
        (Branchy((12, 12, 12), join="add"), (3,), None, 4),
        (Branchy((12, 12, 12), join="residual"), (2,), None, 3),  # what enters is added at one coordinate
        (Branchy((12, 12), (1, 2), join="residual"), (4,), None, 4),  # and is all that one has
        (Branchy((6, 6), (2, 2), join="stack"), (2,), None, 4),
        (Branchy((6, 4, 10, 3), (1, 3, 2, 2)), (4,), None, 4),
        (Branchy(), (4,), None, 3),  # a coordinate without branches, and one without samples: gathered whole
        (Branchy(), (8,), (8,), 2),
        (Branchy((12, 12), (1, 2), norm=True, join="add"), (2, 2), (2, 2), 4),  # statistics over the other axis
        (Nested(), (3,), None, 6),
    ],
)
def test_side_by_side(module: nn.Module, hierarchy: tuple[int, ...], mesh: tuple[int, ...] | None, batch: int) -> None:
    plan = planned(module, hierarchy, batch, mesh=mesh)
    assert plan.bundles
    assert stage_price(plan).objective_ns == plan.report["objective_ns"]
    without = plan.report["without_bundles"]
    assert without["status"] == "optimal"
    assert plan.report["objective_ns"] < without["objective_ns"]
    assert plan.verify()["ok"], plan.verify()["failure"]


class Losses(nn.Module):
    """Losses of several heads, whose divisors are those of the whole batch, and a penalty, added up or stacked."""

    def __init__(self, stacked: bool = False) -> None:
        super().__init__()
        self.stacked, self.stem = stacked, nn.Linear(8, 8)
        self.heads = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)) for _ in range(2))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        first, second = (nn.functional.cross_entropy(head(x), labels, ignore_index=1) for head in self.heads)
        if self.stacked:
            return torch.stack((first, second)).mean()
        return first + 0.5 * second + 0.1 * self.stem.weight.square().sum()


@pytest.mark.parametrize(
    ("hierarchy", "micro_batches", "stacked"), [((2,), 1, False), ((3,), 2, False), ((3,), 1, True)]
)
def test_losses_side_by_side(hierarchy: tuple[int, ...], micro_batches: int, stacked: bool) -> None:
    inputs, machine = (torch.randn(12, 8), torch.arange(12) % 3), slow_kernels(hierarchy)
    plan = partita.optimize(Losses(stacked), inputs, machine, batch=12, micro_batches=micro_batches, stages=1)
    assert plan.bundles
    assert plan.verify()["ok"], plan.verify()["failure"]


def test_a_sum_is_no_slower_than_a_cat() -> None:
    """It needs no exchange, and leaves less to the head."""
    steps = [planned(Branchy((12, 12), (2, 2), join=join), (2,), 4).report["objective_ns"] for join in ("cat", "add")]
    assert steps[1] < steps[0]


class Uneven(nn.Module):
    """Towers of unequal depth that are added up."""

    def __init__(self, depths: Sequence[int]) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(*(part for _ in range(depth) for part in (nn.Linear(32, 32), nn.Tanh()))) for depth in depths
        )
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(sum((tower(x) for tower in self.towers[1:]), self.towers[0](x))).square().mean()


@pytest.mark.parametrize(("depths", "shares", "micro_batches"), [((4, 2), (4, 2), 2), ((3, 2, 1), (3, 2, 1), 1)])
def test_unequal_towers_get_unequal_shares(
    depths: Sequence[int], shares: tuple[int, ...], micro_batches: int, tmp_path: Path
) -> None:
    """On six devices, where launches and work both count: priced twice, saved, run beside the module."""
    device = partita.Machine.adhoc((6,)).device
    device = replace(device, launch_ns=20_000, peak={k: v / 3e4 for k, v in device.peak.items()})
    machine = replace(partita.Machine.adhoc((6,)), device=device)
    options: dict[str, Any] = {"mesh": (6,), "micro_batches": micro_batches, "stages": 1, "batch": 24 * micro_batches}
    plan = partita.optimize(Uneven(depths), (torch.zeros(24, 32),), machine, **options)
    (join,) = plan.bundles
    assert plan.choices[join].shares == shares
    assert sorted({stop - start for _, start, stop in plan.range_of.values()}) == sorted({*shares} - {1})
    price = stage_price(plan)
    assert (price.objective_ns, price.memory_bytes) == (plan.report["objective_ns"], plan.report["memory_bytes"])
    assert plan.report["status"] == "optimal"
    assert plan.report["objective_ns"] < plan.report["without_bundles"]["objective_ns"]
    assert plan.report["bundles"][0]["shares"] == [*shares]
    plan.save(tmp_path)
    assert Plan.load(tmp_path).choices == plan.choices
    assert ":@0.." in str(plan)
    assert plan.verify()["ok"], plan.verify()["failure"]
    for wrong, message in (
        ((5, 5, 5)[: len(shares)], "overlap"),
        ((4,), "shares"),
        ((0, 1, 1)[: len(shares)], "shares"),
    ):
        choices = list(plan.choices)
        choices[join] = replace(choices[join], shares=wrong)
        with pytest.raises(partita.PartitaError, match=message):
            replace(plan, choices=tuple(choices))


class Gated(nn.Module):
    """A tower whose ReLU, which rules can fuse, is read twice, and another tower."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first, second, other = self.layers
        y = torch.relu(first(x))
        return (y * second(y) + other(torch.tanh(x))).square().mean()


def test_towers_with_alternatives_have_ranges() -> None:
    """The alternative that a range does not take is no read of it."""
    options: dict[str, Any] = {"mesh": (3,), "micro_batches": 1, "stages": 1, "rewrite": True, "workers": 1}
    plan = partita.optimize(Gated(), (torch.zeros(6, 4),), partita.Machine.adhoc((3,)), batch=6, **options)
    assert plan.report["status"] == "optimal" and plan.report["rewritten"]


class Labelled(nn.Module):
    """Branches, and a target, so that the order of samples matters; `kind` says what is odd about a branch."""

    def __init__(self, kind: str = "") -> None:
        super().__init__()
        self.kind, self.stem, self.head = kind, nn.Linear(8, 8), nn.Linear(8, 3)
        self.branches = nn.ModuleList(nn.Sequential(nn.Linear(8, 4), nn.Tanh(), nn.Linear(4, 4)) for _ in range(2))
        self.more = nn.ModuleList(nn.Linear(8, 4) for _ in range(2))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = torch.tanh(self.stem(x))
        first, second = (branch(x) for branch in self.branches)
        x = torch.cat((first, second.detach() if self.kind == "detached" else second), 1)
        if self.kind == "two":
            x = torch.cat([torch.relu(layer(x)) for layer in self.more], 1)
        return nn.functional.mse_loss(self.head(x), y)


def test_a_weight_may_be_added_to_the_branches() -> None:
    class Updated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.table = nn.Linear(6, 6), nn.Linear(6, 6), nn.Parameter(torch.ones(5, 6))

        def forward(self, x: Tensor, ids: Tensor) -> Tensor:
            table = self.table.index_add(0, ids, self.right(x.sin()))
            return table.square().sum() + self.left(x).sum()

    inputs = torch.zeros(8, 6), torch.zeros(8, dtype=torch.int64)
    assert partita.optimize(Updated(), inputs, partita.Machine.adhoc((2,)), workers=1).verify()["ok"]


@pytest.mark.parametrize(("mesh", "kind"), [((2, 2), ""), ((4, 2), "two"), ((3,), "detached")])
def test_samples_keep_their_order(mesh: tuple[int, ...], kind: str) -> None:
    """Parts of parts of a batch, whichever axis the branches lie on; backward is the same on all ranks."""
    inputs = torch.zeros(12, 8), torch.zeros(12, 3)
    plan = partita.optimize(Labelled(kind), inputs, slow_kernels(mesh), batch=12, mesh=mesh)
    assert len(plan.bundles) == 1 + (kind == "two")
    assert plan.verify()["ok"], plan.verify()["failure"]


def test_less_memory_places_branches_otherwise() -> None:
    """All ways to place branches that may be best are options: with less memory another one is taken."""
    module = Branchy((40, 30, 20, 10), (1, 2, 3, 3))
    free = planned(module, (2,), 4)
    device = free.machine.device
    bytes_ = int(free.report["memory_bytes"] * 0.98) + device.reserved_bytes
    machine = replace(free.machine, device=replace(device, memory_bytes=bytes_))
    plan = planned(module, (2,), 4, machine=machine)
    assert plan.bundles and plan.choices != free.choices
    assert free.report["objective_ns"] <= plan.report["objective_ns"]
    assert plan.report["memory_bytes"] <= machine.device.capacity_bytes
    assert stage_price(plan).memory_bytes == plan.report["memory_bytes"]
    assert plan.verify()["ok"]


@pytest.mark.parametrize(
    "module", [Branchy((6, 4, 10, 3), (1, 3, 2, 2)), Branchy((12, 12, 12), (1, 3, 2), join="residual")]
)
def test_no_other_places_are_cheaper(module: nn.Module) -> None:
    """What is called optimal is so among all ways to place the branches."""
    plan = planned(module, (2,), 4)
    ((join, bundle),) = plan.bundles.items()
    axis = plan.choices[join].joins[0]
    for places in product(range(2), repeat=len(bundle.ends)):
        choices = list(plan.choices)
        choices[join] = replace(choices[join], joins=(axis, *places))
        for i, place in inside(bundle, places):
            choices[i] = replace(choices[i], beside=((axis, place),))
        assert stage_price(replace(plan, choices=tuple(choices))).objective_ns >= plan.report["objective_ns"]


def test_a_bundle_inside_another_over_a_second_axis() -> None:
    """Samples that cannot be split leave two axes to branches."""
    plan = planned(Nested(), (2, 2), 1, mesh=(2, 2))
    found = plan.bundles
    assert len(found) == 2
    assert {len(choice.beside) for choice in plan.choices} == {0, 1, 2}
    assert stage_price(plan).objective_ns == plan.report["objective_ns"]
    assert plan.verify()["ok"], plan.verify()["failure"]


def test_what_is_said() -> None:
    plan = planned(Branchy(), (2,), 4)
    (told,) = plan.report["bundles"]
    places = told["places"]
    assert set(places.values()) == {0, 1}
    assert max(told["beside_ns"], told["in_turn_ns"] - told["beside_ns"]) == told["beside_ns"]
    text = str(plan)
    assert "side by side" in text and ":@0" in text and ":@1" in text
    program = plan.emit()
    assert program.count("side_by_side([") + program.count("side_by_side(\n") == 1
    assert "parallel branches over" in program


def test_it_does_not_pay_where_kernels_are_free() -> None:
    """With launches at no cost, splitting the batch is as good and sends less."""
    machine = partita.Machine.adhoc((2,))
    plan = planned(Branchy(), (2,), 64, machine=replace(machine, device=replace(machine.device, launch_ns=0)))
    assert not plan.bundles
    assert "bundles" not in plan.report


def test_without_bundles_is_the_same_network_less_some_options() -> None:
    graph = partita.capture(Branchy(), (torch.zeros(4, 8),), batch=4)
    from partita.formulation.encoding.encode import encode
    from partita.formulation.encoding.encoding_options import EncodingOptions
    from partita.formulation.placement.placement import placements
    from partita.formulation.search_space import SearchSpace
    from partita.solvers.protocol import solver

    machine = slow_kernels((2,))
    (place,) = placements((2,), mesh=(2,))
    both, plain = (
        encode(graph, machine, place, options=EncodingOptions(SearchSpace(bundles=with_them)))
        for with_them in (True, False)
    )
    check_network(both.network)
    assert not plain.bundled and both.bundled
    for variable, further in both.bundled.items():
        a, b = both.network.variables[variable], plain.network.variables[variable]
        assert len(a.cost) == len(b.cost) + len(further)
        assert (a.cost[: len(b.cost)] == b.cost).all()
    objectives = [
        [solver(name).solve(encoding.network).objective for name in ("auto", "cpsat", "milp")]
        for encoding in (both, plain)
    ]
    assert len(set(objectives[0])) == len(set(objectives[1])) == 1
    assert objectives[0][0] < objectives[1][0]


def test_a_plan_file_says_where_branches_are(tmp_path: Path) -> None:
    plan = planned(Branchy(), (2,), 4)
    plan.save(tmp_path)
    assert Plan.load(tmp_path).choices == plan.choices
    data = json.loads((tmp_path / "plan.json").read_text())
    (cat,) = (name for name, choice in data["choices"].items() if choice.get("joins"))
    inside = next(name for name, choice in data["choices"].items() if choice.get("beside"))
    for name, field, value, message in (
        (cat, "joins", [0, 0, 5, 1], "no such coordinates"),
        (cat, "joins", [7, 0, 1, 1], "no such coordinates"),
        (cat, "joins", [], "without a bundle"),
        (cat, "joins", [0, 1], "without a bundle"),
        (inside, "joins", [0, 1, 0, 1], "cannot be split there"),
        (inside, "beside", [], "without a bundle"),
        (inside, "beside", [[0, 7]], "without a bundle"),
        (inside, "beside", "x", "not a list"),
        (inside, "beside", [[1, 2, 3]], "too many values"),
    ):
        wrong = json.loads(json.dumps(data))
        wrong["choices"][name][field] = value
        with pytest.raises(partita.PartitaError, match=message):
            Plan.from_json(wrong)


def test_what_is_inside_may_not_be_split(tmp_path: Path) -> None:
    plan = planned(Branchy(), (2,), 4)
    bundle = next(iter(plan.bundles.values()))
    index = next(i for i in bundle.nodes if plan.graph.nodes[i].op == "linear")
    split = Choice(((3,), (1,), (1,)), (3,), beside=plan.choices[index].beside)
    with pytest.raises(partita.PartitaError, match="must be whole there"):
        replace(plan, choices=tuple(split if i == index else c for i, c in enumerate(plan.choices)))

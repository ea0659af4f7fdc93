"""Axes that span levels of the machine: what their collectives cost, what the program runs, and what it adds up."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from partita.codegen.plan.choice import Choice
from partita.codegen.plan.plan import Plan
from partita.codegen.planner.context import Context
from partita.codegen.planner.plan_graph import plan_graph
from partita.codegen.pricing.axis_groups import axis_groups
from partita.codegen.pricing.stage_price import stage_price
from partita.codegen.report.facts import facts
from partita.codegen.report.text import text
from partita.codegen.verification.threads import run_threads
from partita.codegen.verification.worker import load_program
from partita.formulation.encoding.encode import encode
from partita.formulation.encoding.encoding_options import EncodingOptions
from partita.formulation.placement.placement import Placement, distinct, of_rows, placements
from partita.formulation.reduction.optimal import CheapestPrograms, cheapest_programs
from partita.formulation.reduction.program import Collective, ReductionProgram, Step
from partita.formulation.reduction.statuses import KINDS
from partita.formulation.search_space import SearchSpace
from partita.formulation.strategies.row import Row
from partita.formulation.strategies.strategy import rows
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.graph.layout import B, S
from partita.model.graph.pcg import PCG, SOURCES
from partita.model.machine.collective_price import CollectivePrice
from partita.model.machine.machine import Machine
from partita.model.training import Training
from partita.solvers.protocol import solver

from ..levels import some

HIERARCHIES = ((2, 2), (2, 3), (2, 2, 2))
SIZES = (1, 5, 12, 24, 1000)


def machine_of(hierarchy: tuple[int, ...], latency: float = 1.0) -> Machine:
    """Latencies are multiplied, so that programs change at other payloads; links to the outside are slow."""
    base = Machine.adhoc(hierarchy)
    last = len(hierarchy) - 1
    levels = (
        replace(level, latency_ns=level.latency_ns * latency, bandwidth=level.bandwidth / 20 ** (last - i))
        for i, level in enumerate(base.levels)
    )
    return replace(base, levels=tuple(levels), device=replace(base.device, launch_ns=base.device.launch_ns * latency))


class Perceptron(nn.Module):
    """Weights of sizes that few numbers of ranks divide."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 7)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(self.down(torch.relu(self.up(x))), target)


@cache
def perceptron() -> PCG:
    return capture(Perceptron(), (torch.zeros(24, 6), torch.zeros(24, 7)), batch=24)


# What the functions of a program do


def of_all_kinds(hierarchy: tuple[int, ...], machine: Machine, force: Callable[..., Plan]) -> Plan:
    """A plan in which one axis over the whole machine gathers, scatters and sums, each waited for."""
    for seed in range(100):
        drawn = force(perceptron(), (math.prod(hierarchy),), random.Random(seed))
        plan = replace(drawn, machine=machine, placement=of_rows([hierarchy]), overlap=False)
        kinds = {item.kind for item in stage_price(plan).items}
        if {"all-reduce", "reduce-scatter", "all-gather"} <= kinds:
            return plan
    raise AssertionError("no such plan was drawn")


def works(program: Any, name: str, kinds: tuple[str, ...] = KINDS) -> Callable[[int], None]:
    """What every rank checks: each collective on integers, split along either dim, under every program of its table."""

    def check(rank: int) -> None:
        axis = getattr(program.Mesh(), name)
        for kind in kinds:
            for _, steps in axis.programs[kind]:
                axis.programs = {kind: [(0, steps)]}
                for size in SIZES:
                    addends = [torch.arange(3.0 * size).view(3, size).double() * (m + 1) for m in range(axis.size)]
                    total = sum(addends, torch.zeros(3, size).double())
                    mine = addends[axis.index].clone()
                    if kind == "all_reduce":
                        assert torch.equal(program.all_reduce(mine, axis), total), (rank, steps, size)
                        assert torch.equal(mine, addends[axis.index])
                        continue
                    many = (total[:, :, None] + torch.arange(axis.size)).flatten(1).double()  # divides
                    for whole, dim in ((many, 1), (many.T, 0)):
                        part = whole.chunk(axis.size, dim)[axis.index]
                        if kind == "all_gather":
                            assert torch.equal(program.gather(part, dim, axis), whole), (rank, steps, size, dim)
                        else:
                            given = whole * (axis.index + 1)
                            wanted = part * sum(range(1, axis.size + 1))
                            assert torch.equal(program.scatter_sum(given, dim, axis), wanted), (rank, steps, size, dim)
            axis.programs = program.PROGRAMS[name]

    return check


def works_in_steps(program: Any, name: str, kind: str) -> Callable[[int], None]:
    """What every rank checks: two sums under way at once, whose steps are taken in turn, under every program."""

    def check(rank: int) -> None:
        axis = getattr(program.Mesh(), name)
        for _, steps in axis.programs[kind]:
            axis.programs = {kind: [(0, steps)]}
            for size in SIZES:
                flats = [torch.arange(1.0 * size * axis.size) * (axis.index + k) for k in range(2)]
                totals = [torch.arange(1.0 * size * axis.size) * sum(range(k, axis.size + k)) for k in range(2)]
                if kind == "all_reduce":
                    sums = [program.Steps(program.add_up_in_steps(flat, axis), "gradients") for flat in flats]
                else:
                    sums = [program.Steps(program.scatter_in_steps(flat, [axis]), "gradients") for flat in flats]
                for each in [*sums, *sums]:  # by one step, in turn
                    each.go_on()
                made = [each.wait() for each in sums]
                if kind == "all_reduce":
                    assert all(map(torch.equal, flats, totals)), (rank, steps, size)
                else:
                    mine = [total.chunk(axis.size)[axis.index] for total in totals]
                    assert all(map(torch.equal, made, mine)), (rank, steps, size)
        axis.programs = program.PROGRAMS[name]

    return check


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=lambda h: "x".join(map(str, h)))
def test_every_program_in_steps(hierarchy: tuple[int, ...], sharded: bool, tmp_path: Path) -> None:
    plan = data_parallel(of_rows([hierarchy]), machine_of(hierarchy), sharded)
    plan.emit(tmp_path / "program.py")
    program, (name,) = load_program(tmp_path / "program.py"), plan.axes
    run_threads(works_in_steps(program, name, "reduce_scatter" if sharded else "all_reduce"), plan.ranks, timeout=60)


@pytest.mark.parametrize("latency", [0.01, 1.0])
@pytest.mark.parametrize("hierarchy", HIERARCHIES, ids=lambda h: "x".join(map(str, h)))
def test_every_program_of_every_kind(
    hierarchy: tuple[int, ...], latency: float, force: Callable[..., Plan], tmp_path: Path
) -> None:
    plan = of_all_kinds(hierarchy, machine_of(hierarchy, latency), force)
    plan.emit(tmp_path / "program.py")
    program = load_program(tmp_path / "program.py")
    (name,) = plan.axes
    assert set(program.PROGRAMS[name]) == set(KINDS)
    run_threads(works(program, name), plan.ranks, timeout=60)


AR, RS, AG, RE, BC = Collective
ROOTED: tuple[ReductionProgram, ...] = (
    (Step(RE, 1, 1), Step(AR, 0, 0, (1,)), Step(BC, 1, 1)),
    (Step(RE, 0, 1), Step(BC, 0, 1)),
    (Step(RE, 1, 1), Step(RE, 0, 0, (1,)), Step(BC, 0, 0, (1,)), Step(BC, 1, 1)),
    (Step(RS, 1, 1), Step(RE, 0, 0), Step(BC, 0, 0), Step(AG, 1, 1)),
)
RESTING: tuple[ReductionProgram, ...] = (
    (Step(RE, 1, 2), Step(AR, 0, 0, (1, 2)), Step(BC, 1, 1, (2,)), Step(BC, 2, 2)),
    (Step(AR, 1, 2), Step(AR, 0, 0, (2,)), Step(BC, 2, 2)),
    (Step(RS, 2, 2), Step(AR, 1, 1), Step(RS, 0, 0, (1,)), Step(AG, 0, 0, (1,)), Step(BC, 1, 1), Step(AG, 2, 2)),
    (Step(RE, 2, 2), Step(RS, 0, 0, (2,)), Step(AR, 1, 1, (2,)), Step(BC, 2, 2), Step(AG, 0, 0)),
)
PERMUTED: tuple[ReductionProgram, ...] = (
    (Step(RS, 0, 1), Step(AG, 0, 0), Step(AG, 1, 1)),
    (Step(RS, 1, 1), Step(RS, 0, 0), Step(AG, 0, 1)),
    (Step(RS, 1, 1), Step(RS, 0, 0), Step(AG, 1, 1), Step(AG, 0, 0)),
)


@pytest.mark.parametrize(
    ("hierarchy", "programs"),
    [*product([(2, 3), (3, 2)], [ROOTED, PERMUTED]), *product([(2, 2, 2), (2, 3, 2)], [RESTING])],
)
def test_programs_that_few_envelopes_have_add_up_too(
    hierarchy: tuple[int, ...],
    programs: tuple[ReductionProgram, ...],
    force: Callable[..., Plan],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With roots, with ranks that rest, and with chunks gathered in another order than they were scattered in."""
    lines = tuple(CollectivePrice(float(i), 10.0 - i) for i in range(len(programs)))
    monkeypatch.setattr(
        "partita.codegen.pricing.axis_groups.cheapest_programs", lambda *_: CheapestPrograms(lines, programs)
    )
    plan = of_all_kinds(hierarchy, machine_of(hierarchy), force)
    plan.emit(tmp_path / "program.py")
    program = load_program(tmp_path / "program.py")
    run_threads(works(program, plan.axes[0], ("all_reduce",)), plan.ranks, timeout=60)
    data_parallel(of_rows([hierarchy]), plan.machine, sharded=False).emit(tmp_path / "behind.py")
    behind = load_program(tmp_path / "behind.py")
    run_threads(works_in_steps(behind, plan.axes[0], "all_reduce"), plan.ranks, timeout=60)


def test_ranks_rest_where_the_program_that_is_paid_says_so(judge: Callable[..., Any], tmp_path: Path) -> None:
    """With gloo's collectives a reduce over two levels is undone level by level, by ever more ranks."""
    base = Machine.adhoc((2, 2, 2))
    links = zip(base.levels, (0.0, 250.0, 250.0), (0.001, 0.1, 1.0), strict=True)
    levels = tuple(replace(x, latency_ns=ns, bandwidth=x.bandwidth * rate) for x, ns, rate in links)
    machine = replace(base, levels=levels, collectives="gloo", device=replace(base.device, launch_ns=250.0))
    plan = data_parallel(of_rows([(2, 2, 2)]), machine, sharded=False)
    judge(plan)
    plan.emit(tmp_path / "program.py")
    program = load_program(tmp_path / "program.py")
    (axis,) = plan.axes
    steps = next(s for start, s in reversed(program.PROGRAMS[axis]["all_reduce"]) if start <= (6 + 7) * 10 * 8)
    assert steps == [
        ("reduce", "node+gpu"),
        ("all_reduce", "rack of first node+gpu"),
        ("broadcast", "node of first gpu"),
        ("broadcast", "gpu"),
    ]
    assert "all-reduce over racks (first node, gpu)" in text(facts(plan))

    def check(rank: int) -> None:
        known = getattr(program.Mesh(), axis).levels
        assert (known["rack of first node+gpu"].group is None) == (rank % 4 != 0)
        assert (known["node of first gpu"].group is None) == (rank % 2 != 0)

    run_threads(check, plan.ranks, timeout=60)


# Whole programs


@pytest.mark.parametrize("seed", some(range(3)))
@pytest.mark.parametrize("latency", [1e-4, 1.0])
@pytest.mark.parametrize(
    "placement",
    [
        of_rows([(2, 2)]),
        of_rows([(2, 3)]),
        of_rows([(2, 2, 2)]),
        of_rows([(1, 2), (2, 1)]),
        of_rows([(2, 2), (1, 2)]),
        of_rows([(1, 2), (2, 2)]),
        of_rows([(2, 1, 2), (1, 2, 1)]),
        of_rows([(2, 1, 1), (1, 1, 2), (1, 2, 1)]),
    ],
    ids=lambda p: "-".join("x".join(map(str, row)) for row in p.matrix),
)
def test_random_plans_train_as_the_whole_graph(
    placement: Placement, latency: float, seed: int, force: Callable[..., Plan], judge: Callable[..., Any]
) -> None:
    drawn = force(perceptron(), placement.sizes, random.Random(seed), micro_batches=1 + seed % 2)
    judge(replace(drawn, machine=machine_of(placement.hierarchy, latency), placement=placement))


def data_parallel(placement: Placement, machine: Machine, sharded: bool) -> Plan:
    """Samples over all axes, weights whole, their gradients summed over all axes at once."""
    graph, n = perceptron(), len(placement.sizes)
    choices = []
    for index, node in enumerate(graph.nodes):
        if node.op in SOURCES:
            row = Row((), B if node.op == "parameter" else S(0))
        else:
            row = next(row for row in rows(graph, index) if row.inputs[0] == S(0))
        choices.append(Choice(tuple((x,) * n for x in row.inputs), (row.output,) * n))
        if sharded and node.op == "parameter":
            choices[-1] = replace(choices[-1], sharded_states=True)
    return Plan(graph, machine, placement, 1, tuple(choices), "float64")


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("latency", [1e-4, 1.0])
@pytest.mark.parametrize("matrix", [((2, 1), (1, 2)), ((1, 2), (2, 1)), ((1, 2, 2), (2, 1, 1)), ((2, 3),)])
def test_gradients_are_summed_over_all_axes_at_once(
    matrix: tuple[tuple[int, ...], ...], latency: float, sharded: bool, judge: Callable[..., Any]
) -> None:
    placement = of_rows(matrix)
    plan = data_parallel(placement, machine_of(placement.hierarchy, latency), sharded)
    judge(plan)
    group = axis_groups(plan)[-1]
    assert group.axes == tuple(range(len(matrix)))
    assert set(group.programs) <= ({"reduce_scatter", "all_gather"} if sharded else {"all_reduce"})
    program = plan.emit()
    assert f"summed={group.name}" in program
    assert ("PROGRAMS" in program) == bool(group.programs)
    if not sharded:
        assert [[c for c, _ in group.steps(p)] for p in group.programs["all_reduce"].programs][-1] == [
            *["reduce_scatter"] * (len(group.levels) - 1), "all_reduce", *["all_gather"] * (len(group.levels) - 1),
        ]  # fmt: skip


def test_sums_take_their_steps_while_backward_goes_on(tmp_path: Path) -> None:
    """Of four buckets, each summed in three steps: with every gradient another begins, and those before go on."""
    data_parallel(of_rows([(2, 2)]), machine_of((2, 2), 1e-4), sharded=False).emit(tmp_path / "program.py")
    program: Any = load_program(tmp_path / "program.py")
    program.BUCKET = 1
    begin, found = program.begin_step, [0]

    def begun(*arguments: Any, **options: Any) -> Any:
        found[-1] += torch.distributed.get_rank() == 0
        return begin(*arguments, **options)

    program.begin_step = begun

    def rank(number: int) -> None:
        mesh = program.Mesh()
        model = program.Model(mesh)
        optimizer = program.make_optimizer(model, mesh)
        for w in model.parameters():
            w.data.fill_(0.1)
            if number == 0:
                w.register_post_accumulate_grad_hook(lambda _: found.append(0))
        program.train_step(model, optimizer, program.synthetic(0), mesh, 0)

    run_threads(rank, 4, timeout=60)
    assert found == [1, 2, 3, 3, 3], "steps up to each gradient, and after backward"


@pytest.mark.parametrize("sharded", [False, True])
def test_an_axis_on_one_level_stays_simple(sharded: bool) -> None:
    program = data_parallel(of_rows([(4,)]), machine_of((4,)), sharded).emit()
    for word in ("PROGRAMS", "programs", "levels", "add_up", "def run", "make_group", "Steps"):
        assert word not in program, word


def test_only_what_is_used_is_written() -> None:
    """Sums that are cut and gathered in order need no numbers of levels; long lines are broken."""
    plan = data_parallel(of_rows([(2, 2, 1), (1, 1, 2)]), machine_of((2, 2, 2)), sharded=False)
    program = plan.emit()
    assert "def add_up_in_steps" in program
    for word in ("def order", " of first ", "def gather", "def scatter", "def add_up(", "part.group is not None"):
        assert word not in program, word
    assert max(map(len, program.splitlines())) <= 120


def test_levels_whose_names_become_one_are_told_apart() -> None:
    machine = machine_of((2, 2, 2))
    named = zip(machine.levels, ("level1", "a b", "a.b"), strict=True)
    machine = replace(machine, levels=tuple(replace(level, name=name) for level, name in named))
    group = axis_groups(data_parallel(of_rows([(2, 2, 2)]), machine, sharded=False))[-1]
    assert group.levels == {"level0": 2, "level1": 2, "level2": 2}


# Prices


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("latency", [0.01, 1.0])
@pytest.mark.parametrize("hierarchy", HIERARCHIES)
def test_the_program_that_runs_is_the_one_that_is_paid(hierarchy: tuple[int, ...], latency: float, kind: Any) -> None:
    """At and around every threshold the step that `starts` names has the least line; arrays say the same."""
    known = cheapest_programs(machine_of(hierarchy, latency), of_rows([hierarchy]), (0,), kind)
    assert known.starts[0] == 0
    assert list(known.starts) == sorted(known.starts)
    sizes = sorted({max(0, start + d) for start in known.starts for d in (-2, -1, 0, 1, 10**6)} | {0, 2**34})
    least = {size: min(line.ns(size) for line in known.prices) for size in sizes}
    for size in sizes:
        assert known.at(size).ns(size) == least[size], size
    arrays = [line.ns_array(np.array(sizes)) for line in known.prices]
    assert np.minimum.reduce(arrays).tolist() == list(least.values())
    flat = cheapest_programs(machine_of(hierarchy, latency), of_rows([hierarchy]), (0,), kind, flat=True)
    assert flat.is_flat
    assert all(least[size] <= flat.prices[0].ns(size) for size in sizes)


@pytest.mark.parametrize("latency", [1e-3, 1.0])
@pytest.mark.parametrize("mesh", [(8,), (4, 2), (2, 4), (2, 2, 2)])
def test_both_prices_agree_where_axes_span_levels(mesh: tuple[int, ...], latency: float) -> None:
    """`plan_graph` compares the network's price with that of the plan, whatever is chosen."""
    plan = plan_graph(
        perceptron(), machine_of((2, 2, 2), latency), Training(24, "float32", "adamw"), SearchSpace(mesh=mesh, stages=1)
    )
    assert stage_price(plan).objective_ns == plan.report["objective_ns"]


# A language model on slow links


@cache
def language_model() -> PCG:
    module, inputs = load_module("gpt2")
    return capture(module, inputs, batch=8, dropout="counters")


def two_nodes(slower: float) -> Machine:
    """Two nodes of four devices; links between nodes so many times slower than a DGX A100's."""
    base = Machine.load("dgx-a100", nodes=2)
    node, gpu = base.levels
    return replace(base, levels=(replace(node, bandwidth=node.bandwidth / slower), replace(gpu, size=4)))


@cache
def best(slower: float) -> Plan:
    return plan_graph(
        language_model(),
        two_nodes(slower),
        Training(8, "mixed-bfloat16", "adamw"),
        SearchSpace(stages=1, overlap=False),  # sharded weights over both levels suit either otherwise
        context=Context({"reference": "gpt2"}),
    )


def test_slow_links_change_the_placement() -> None:
    fast, slow = best(1), best(10)
    assert fast.report["gap"] == slow.report["gap"] == 0
    assert fast.placement.matrix != slow.placement.matrix


def test_slow_links_change_the_programs() -> None:
    fast, slow = (
        {kind: known.programs for kind, known in group.programs.items()}
        for group in (max(axis_groups(best(slower)), key=lambda group: len(group.levels)) for slower in (1, 10))
    )
    assert fast["reduce_scatter"] != slow["reduce_scatter"]
    assert [len(program) for program in slow["reduce_scatter"]] == [2]
    said = text(facts(best(10)))
    assert "PROGRAMS" in said
    assert "reduce-scatter over gpus, reduce-scatter over nodes" in said
    assert "programs    " in best(10).emit().partition("import")[0]


@pytest.mark.parametrize("slower", [1, 10, 100])
def test_programs_are_never_slower_than_flat_collectives(slower: float) -> None:
    """The optimum of every placement with one axis over both levels, or an axis for each."""
    machine, found = two_nodes(slower), []
    for place in distinct((*placements(machine.hierarchy, mesh=(8,)), *placements(machine.hierarchy, mesh=(4, 2)))):
        programs, flat = (
            solver("elimination").solve(
                encode(
                    language_model(),
                    machine,
                    place,
                    dtype="mixed-bfloat16",
                    optimizer="adamw",
                    options=EncodingOptions(SearchSpace(overlap=False), flat=flat),
                ).network
            )
            for flat in (False, True)
        )
        assert programs.objective is not None
        assert flat.objective is not None
        assert programs.objective <= flat.objective
        found.append((programs.objective, flat.objective))
    assert min(a for a, _ in found) <= min(b for _, b in found)
    assert any(a < b for a, b in found)

"""Segments that may run again: what the network offers, and that its optimum is that of all modes enumerated."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from math import inf

import pytest

from partita.codegen.plan.plan import Plan
from partita.codegen.planner.decode import choices
from partita.codegen.pricing.stage_price import stage_price
from partita.formulation.encoding.encode import encode
from partita.formulation.encoding.encoding import Encoding
from partita.formulation.encoding.encoding_options import EncodingOptions
from partita.formulation.network.checks import check_network
from partita.formulation.network.network import evaluate
from partita.formulation.network.network_file import network_json
from partita.formulation.placement.placement import Placement, of_rows
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.errors import PartitaError
from partita.model.graph.batch import with_batch
from partita.model.graph.builder import Builder
from partita.model.graph.pcg import PCG
from partita.model.graph.segments import MODES, segments
from partita.model.machine.machine import Machine
from partita.model.training import Training
from partita.solvers.protocol import Status, solver
from partita.solvers.search.planning_problem import PlanningProblem
from partita.solvers.search.search import search

from ..levels import exhaustive

ALONE, PAIR = of_rows([(1,)]), of_rows([(2,)])
SPACE = SearchSpace(offload=False)


def blocks(widths: tuple[int, ...], batch: int = 8, mask: bool = False) -> PCG:
    """Residual blocks of these widths: norm, up, gelu, down, add; `mask`: each adds something that nobody keeps."""
    b = Builder(batch)
    x = b.add("linear", b.input("x", (batch, 8)), b.parameter("first", (16, 8)), shape=(batch, 16))
    more = b.add("neg", x, shape=(batch, 16)) if mask else -1
    for i, width in enumerate(widths):
        path, whole = f"layers.{i}", (batch, 16)
        h = b.add("rms_norm", x, b.parameter(f"{path}.norm", (16,)), shape=whole, normalized=1, eps=1e-5, path=path)
        h = b.add("linear", h, b.parameter(f"{path}.up", (width, 16)), shape=(batch, width), path=path)
        h = b.add("gelu", h, shape=(batch, width), approximate="none", path=path)
        h = b.add("linear", h, b.parameter(f"{path}.down", (16, width)), shape=whole, path=path)
        h = b.add("add", h, more, shape=whole, path=path) if mask else h
        x = b.add("add", x, h, shape=whole, path=path)
    y = b.add("linear", x, b.parameter("last", (4, 16)), shape=(batch, 4))
    return b.build(b.add("cross_entropy", y, b.input("t", (batch,), "int64"), shape=(), reduction="mean"))


def machine(placement: Placement) -> Machine:
    return Machine.adhoc(placement.hierarchy)


@cache
def encoded(pcg: PCG, placement: Placement, modes: tuple[str, ...] = MODES, capacity: int | None = None) -> Encoding:
    options = EncodingOptions(SPACE, recompute=modes, capacity_bytes=capacity)
    return encode(pcg, machine(placement), placement, options=options)


def test_every_segment_has_a_variable_inside_its_copy_of_the_chain() -> None:
    found = encoded(blocks((64, 64, 64, 64)), PAIR)
    assert [*found.recompute] == ["layers.0", "layers.1", "layers.2", "layers.3"]
    (chain,) = found.network.chains
    _, *alike = found.recompute.values()  # the first layer hides no traffic, so that it is not in the chain
    assert [z in copy for z, copy in zip(alike, chain.copies, strict=True)] == [True] * 3
    check_network(found.network)


def test_without_modes_nothing_changes() -> None:
    plain = encode(blocks((64, 64)), machine(PAIR), PAIR, options=EncodingOptions(SPACE))
    none = encoded(blocks((64, 64)), PAIR, ("none",))
    assert network_json(plain.network) == network_json(none.network) and not none.recompute


def test_what_no_other_reader_keeps_says_itself_whether_it_is_kept() -> None:
    """Sums keep nothing of what they read; a segment that runs again needs it, and several need it once."""
    found = encoded(blocks((32, 32), mask=True), ALONE)
    hub, table = found.hubs[next(i for i, n in enumerate(found.pcg.nodes) if n.op == "neg")]
    assert len(found.network.variables[hub].cost) == 2 * len(table.codes)
    kept = {}
    for modes in product((0, 1), repeat=2):
        assignment = [0] * len(found.network.variables)
        assignment[hub] = len(table.codes)
        for z, mode in zip(found.recompute.values(), modes, strict=True):
            assignment[z] = mode
        kept[modes] = stage_price(plan_of(found, found.settled(assignment))).memory["activations"]
        assert kept[modes] == evaluated(found, found.settled(assignment), "activations")
        assignment[hub] = 0
        assert evaluate(found.network, assignment).feasible == (not any(modes))
    size = 8 * 16 * 4
    assert kept[1, 0] - kept[0, 0] == kept[1, 1] - kept[0, 1] + size


def evaluated(found: Encoding, assignment: tuple[int, ...], part: str) -> int:
    """Bytes of a part of the memory, by the network: what it uses without the other parts."""
    reserved = found.machine.device.capacity_bytes - found.network.capacities[0]
    memory = stage_price(plan_of(found, assignment)).memory
    others = sum(size for name, size in memory.items() if name != part)
    return evaluate(found.network, assignment).use[0] + reserved - others


def plan_of(found: Encoding, assignment: tuple[int, ...]) -> Plan:
    made = choices(found, assignment)
    return Plan(
        found.pcg, found.machine, found.placement, 1, made, "float32", "adam", recompute=found.recomputed(assignment)
    )


@pytest.mark.parametrize("searched", [MODES, ("none", "full", "2 parts", "4 parts")])
def test_the_optimum_is_that_of_all_modes_enumerated(searched: tuple[str, ...]) -> None:
    """On one device nothing else is chosen: the price, which shares no table with the network, judges every mode."""
    graph = blocks((16, 96, 48))
    names = [segment.name for segment in segments(graph)]
    found = encoded(graph, ALONE)
    plain = choices(found, [0] * len(found.network.variables))
    every = []
    for modes in product(searched, repeat=len(names)):
        again = {name: mode for name, mode in zip(names, modes, strict=True) if mode != "none"}
        cost = stage_price(Plan(graph, found.machine, ALONE, 1, plain, "float32", "adam", recompute=again))
        every.append((cost.memory_bytes, cost.objective_ns))
    least, most = min(every)[0], max(every)[0]
    answers = set()
    for capacity in [least - 1, *range(least, most + 1, (most - least) // 7)]:
        best = min((ns for size, ns in every if size <= capacity), default=inf)
        answer = solver("auto").solve(encoded(graph, ALONE, searched, capacity).network)
        assert (answer.objective or inf) == best, capacity
        assert answer.status is (Status.INFEASIBLE if best == inf else Status.OPTIMAL)
        answers.add(best)
    assert len(answers) > 4


@exhaustive
def test_a_search_over_micro_batches_finds_the_best_of_all_modes() -> None:
    """With few micro-batches what a segment computes fits again only; what enters it is all that must be kept."""
    graph = blocks((64, 96), batch=16)
    names, device = [segment.name for segment in segments(graph)], machine(ALONE).device
    every = []
    for k, modes in product((1, 2, 4), product(MODES, repeat=2)):
        part = with_batch(graph, 16 // k)
        found = encoded(part, ALONE, ("none",))
        again = {name: mode for name, mode in zip(names, modes, strict=True) if mode != "none"}
        plain = choices(found, [0] * len(found.network.variables))
        cost = stage_price(Plan(part, found.machine, ALONE, k, plain, "float32", "adam", recompute=again))
        every.append((cost.memory_bytes, cost.objective_ns, k, again))
    recomputing = 0
    for capacity in sorted({size for size, *_ in every})[::4]:
        small = replace(machine(ALONE), device=replace(device, memory_bytes=capacity, reserved_bytes=0))
        problem = PlanningProblem(graph, small, Training(16, "float32", "adam"), (ALONE,), (1, 2, 4), SPACE)
        _, best, k, again = min((e for e in every if e[0] <= capacity), key=lambda e: e[1])
        assert k in problem.fits()
        found = search(problem, solver("auto"))
        assert (found.status, found.objective) == (Status.OPTIMAL, best)
        recomputing += bool(again)
    assert recomputing > 1
    tight = replace(machine(ALONE), device=replace(device, memory_bytes=min(every)[0] - 1, reserved_bytes=0))
    nothing = search(
        PlanningProblem(graph, tight, Training(16, "float32", "adam"), (ALONE,), (1, 2, 4), SPACE),
        solver("auto"),
    )
    assert (nothing.status, nothing.objective) == (Status.INFEASIBLE, None)


def test_recomputation_makes_room_for_a_better_plan() -> None:
    """On two devices: with all modes never worse than with one, and better where memory is short."""
    graph = blocks((64, 64), batch=64)
    free = solver("auto").solve(encoded(graph, PAIR, ("none",)).network)
    assert free.objective == solver("auto").solve(encoded(graph, PAIR).network).objective
    better = 0
    for capacity in range(40_000, 130_000, 15_000):
        costs = {
            modes: solver("auto").solve(encoded(graph, PAIR, modes, capacity).network).objective or inf
            for modes in (("none",), ("full",), ("selective",), MODES)
        }
        single = min(cost for modes, cost in costs.items() if modes != MODES)
        assert costs[MODES] <= single
        better += costs[MODES] < costs["none",]
    assert better


@pytest.mark.parametrize("modes", [(), ("none", "none"), ("partial",)])
def test_unknown_modes_are_refused(modes: tuple[str, ...]) -> None:
    with pytest.raises(PartitaError, match="recomputation"):
        encoded(blocks((16,)), ALONE, modes)


def test_a_segment_is_recomputed_or_in_parallel_branches() -> None:
    """Both are offered together, and the optimum is that of the better one where each excludes the other."""
    module, inputs = load_module("candle-uno", small=True)
    graph = capture(module, inputs, batch=8)
    both, alone = (
        encode(graph, machine(PAIR), PAIR, options=EncodingOptions(SearchSpace(bundles=bundles), modes))
        for bundles, modes in ((True, MODES), (True, ("none",)))
    )
    check_network(both.network)
    assert len(both.recompute) == 6 and both.bundled
    found = [solver("auto").solve(encoding.network).objective for encoding in (both, alone)]
    assert found[0] == found[1]  # memory is ample

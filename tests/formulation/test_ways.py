"""Networks of graphs with several ways to compute their nodes, beside every choice of ways as a graph of its own."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import product
from math import prod

import pytest

from partita.codegen.plan.plan import Plan
from partita.codegen.planner.rewritten_graph import decided, taken_graph
from partita.codegen.pricing.stage_price import stage_price
from partita.formulation.encoding.encode import encode
from partita.formulation.encoding.encoding import Encoding
from partita.formulation.encoding.encoding_options import EncodingOptions
from partita.formulation.network.network import Network, evaluate
from partita.formulation.placement.placement import Placement, placements
from partita.formulation.rewriting.rules import planner_rules
from partita.formulation.rewriting.saturate import SaturationLimits, rewritings
from partita.formulation.rewriting.union import Union
from partita.formulation.search_space import SearchSpace
from partita.formulation.substitution.text import parse_rules, write_rule
from partita.formulation.weights.fixed_memory import largest_weight
from partita.formulation.weights.storage import transient_buffers
from partita.model.graph.atoms import atoms
from partita.model.graph.builder import Builder
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine
from partita.model.machine.precision import precision
from partita.solvers.protocol import Limits, Solution, Status, solver

from ..levels import some

BATCH, WIDTH = 12, 12
MOST = 40  # choices of ways that are encoded one by one


@dataclass(frozen=True)
class Case:
    """A machine, a placement on it, and how training goes."""

    machine: Machine
    placement: Placement
    micro_batches: int = 1
    dtype: str = "float32"
    optimizer: str = "adam"
    bundles: bool = True

    def encoding(self, graph: PCG, capacity: int | None = None) -> Encoding:
        return encode(
            graph, self.machine, self.placement, micro_batches=self.micro_batches, dtype=self.dtype,
            optimizer=self.optimizer,
            options=EncodingOptions(SearchSpace(bundles=self.bundles), capacity_bytes=capacity),
        )  # fmt: skip


def case_of(sizes: tuple[int, ...], rng: random.Random, **wishes: object) -> Case:
    """Kernels that are launched at once or not, so that sizes or their number matter."""
    machine = Machine.adhoc(sizes)
    quick = rng.choice((0.0, 50.0, machine.device.launch_ns))
    device = replace(machine.device, launch_ns=quick, memory_bandwidth=machine.device.memory_bandwidth / 1000)
    peak = {dtype: rate / 10 ** rng.randint(3, 7) for dtype, rate in device.peak.items()}
    levels = tuple(replace(level, latency_ns=rng.choice((0, 100, level.latency_ns))) for level in machine.levels)
    machine = replace(machine, device=replace(device, peak=peak), levels=levels)
    return replace(Case(machine, placements(sizes, mesh=sizes)[0]), **wishes)


def solved(network: Network) -> Solution:
    answer = solver("auto").solve(network, Limits(seconds=60))
    assert answer.status in (Status.OPTIMAL, Status.INFEASIBLE), answer
    return answer


def choices_of(graph: PCG) -> Iterator[PCG]:
    """Every choice of ways as a graph of its own; none that holds a weight twice."""
    seen = set()
    for pick in product(*graph.members.values()):
        taken, numbers = taken_graph(graph, dict(zip(graph.members, pick, strict=True)))
        held = [name for i in taken.of("parameter") for name in taken.nodes[i].originals]
        if frozenset(numbers) not in seen and len({*held}) == len(held):
            seen.add(frozenset(numbers))
            yield taken


def number_of_choices(graph: PCG) -> int:
    return prod(map(len, graph.members.values()))


def best_of_all(graph: PCG, case: Case, capacity: int | None = None) -> int | None:
    """The least that any choice costs; `capacity` is what is left after what is always held.

    A weight that is larger than every captured one needs larger buffers.
    """
    found, largest = [], largest_weight(graph)
    buffers = transient_buffers(case.placement.devices, case.micro_batches) * precision(case.dtype).itemsize("float32")
    for taken in choices_of(graph):
        network = case.encoding(taken).network
        excess = sum(max(0, taken.nodes[i].numel - largest) for i in taken.of("parameter"))
        network = network if capacity is None else replace(network, capacities=(capacity - buffers * excess,))
        found.append(solved(network).objective)
    return min((cost for cost in found if cost is not None), default=None)


def agrees(graph: PCG, case: Case, shares: tuple[float, ...]) -> Mapping[str, int]:
    """The network's optimum is that of all choices, with all memory and with a share of what it then uses."""
    found = case.encoding(graph)
    free = solved(found.network)
    assert free.assignment is not None and free.objective is not None
    assert free.objective == best_of_all(graph, case)
    assert free.objective <= (solved(case.encoding(plain_of(graph)).network).objective or 0)
    confirm(found, free, case)
    (used,) = evaluate(found.network, free.assignment).use
    bound = 0
    for share in shares:
        capacity = int(used * share)
        tight = replace(found, network=replace(found.network, capacities=(capacity,)))
        answer = solved(tight.network)
        assert answer.objective == best_of_all(graph, case, capacity), (share, answer)
        if answer.objective is not None:
            confirm(tight, answer, case)
            bound += answer.objective > free.objective
    return {"choices": number_of_choices(graph), "bound": bound}


def plain_of(graph: PCG) -> PCG:
    return taken_graph(graph, {node: node for node in graph.members})[0]


def confirm(found: Encoding, answer: Solution, case: Case) -> None:
    """The plan costs what the network says, and holds no more."""
    assert answer.assignment is not None
    taken, choices = decided(found, answer.assignment)
    plan = Plan(taken, case.machine, case.placement, case.micro_batches, choices, case.dtype, case.optimizer)
    price = stage_price(plan)
    assert price.objective_ns == answer.objective, [n.name for n in taken.nodes]
    (used,) = evaluate(found.network, answer.assignment).use
    held = case.machine.device.capacity_bytes - case.encoding(found.pcg).network.capacities[0]
    assert price.memory_bytes <= used + held
    if largest(taken) == largest(found.pcg):
        assert price.memory_bytes == used + held


def largest(graph: PCG) -> int:
    return max(graph.nodes[i].numel for i in graph.of("parameter"))


class Drawn:
    """A small graph at random: layers, fusions, merges, sums and concatenations, with several readers."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.b = rng, Builder(BATCH)
        self.rank = rng.choice((2, 3))
        lead = (BATCH, 4)[: self.rank - 1]
        self.lead = lead
        self.x = self.b.input("x", (*lead, WIDTH))
        self.live: list[int] = []

    def width(self, x: int) -> int:
        return self.b.nodes[x].shape[-1]

    def linear(self, x: int, width: int, bias: bool | None = None) -> int:
        number = len(self.b.nodes)
        w = self.b.parameter(f"l{number}.weight", (width, self.width(x)))
        bias = self.rng.random() < 0.5 if bias is None else bias
        more = [self.b.parameter(f"l{number}.bias", (width,))] if bias else []
        name = f"l{number}"
        return self.b.add("linear", x, w, *more, shape=(*self.lead, width), name=name, path=name)

    def unary(self, x: int, op: str = "") -> int:
        op = op or self.rng.choice(("relu", "gelu", "tanh"))
        given = {"approximate": "none"} if op == "gelu" else {}
        return self.b.add(op, x, shape=self.b.nodes[x].shape, **given)

    def pick(self) -> int:
        """Something that was made, mostly what nothing has read yet."""
        return (
            self.live.pop(self.rng.randrange(len(self.live))) if self.rng.random() < 0.7 else self.rng.choice(self.live)
        )

    def fused(self) -> int:
        return self.unary(self.linear(self.source(), WIDTH), "relu")

    def merged(self) -> int:
        x, bias, equal = self.source(), self.rng.random() < 0.5, self.rng.random() < 0.7
        count = self.rng.choice((2, 2, 3))
        found = [self.linear(x, WIDTH if equal or k else 2 * WIDTH, bias) for k in range(count)]
        if not equal:
            found[0] = self.linear(self.unary(found[0]), WIDTH)
        y = found[0]
        for other in found[1:]:
            y = self.both(self.rng.choice(("mul", "add", "sub")), y, other)
        return y

    def both(self, op: str, a: int, c: int) -> int:
        return self.b.add(op, a, c, shape=self.b.nodes[a].shape)

    def joined(self) -> int:
        a, c = self.source(), self.source()
        y = self.b.add("cat", a, c, shape=(*self.lead, self.width(a) + self.width(c)), dim=self.rank - 1)
        return self.linear(y, WIDTH)

    def row(self) -> int:
        return self.linear(self.linear(self.source(), 2 * WIDTH, False), WIDTH, False)

    def added(self) -> int:
        if self.rng.random() < 0.5:
            return self.both("add", self.source(), self.source())
        x = self.source()
        return self.both("add", self.linear(x, WIDTH, False), self.linear(x, WIDTH, False))

    def shared_weight(self) -> int:
        w = self.b.parameter(f"s{len(self.b.nodes)}.weight", (WIDTH, WIDTH))
        those = [self.b.add("linear", self.source(), w, shape=(*self.lead, WIDTH)) for _ in range(2)]
        return self.both("add", *those)

    def source(self) -> int:
        return self.pick() if self.live else self.x

    def graph(self, steps: int) -> PCG:
        self.live = [self.linear(self.x, WIDTH)] if self.rng.random() < 0.7 else [self.x]
        kinds = (
            self.fused,
            self.merged,
            self.joined,
            self.row,
            self.added,
            self.shared_weight,
            lambda: self.unary(self.source()),
        )
        for _ in range(steps):
            self.live.append(self.rng.choice(kinds)())
        y, *others = self.live
        for other in others:
            y = self.both("add", y, other)
        if y == self.x:
            y = self.linear(y, WIDTH)
        target = self.b.input("target", self.b.nodes[y].shape)
        return self.b.build(self.b.add("mse_loss", y, target, shape=(), reduction="mean", name="loss"))


def drawn(seed: int, steps: int = 3) -> tuple[PCG, random.Random]:
    """A graph with at most MOST choices of ways, by rules taken at random."""
    for attempt in range(100):
        rng = random.Random(f"{seed} {attempt}")
        graph = Drawn(rng).graph(rng.randint(1, steps))
        rules = [rule for rule in planner_rules() if "linear" in write_rule(rule) and rng.random() < 0.5]
        found = rewritings(graph, rules, SaturationLimits(rounds=rng.randint(1, 3))).graph
        if 1 < number_of_choices(found) <= MOST:
            return found, rng
    raise AssertionError("no graph of few choices")


def fuzz(seed: int) -> Mapping[str, int]:
    graph, rng = drawn(seed)
    sizes = rng.choice(((4,), (2, 2), (3, 2), (2,)))
    case = case_of(
        sizes, rng, micro_batches=rng.choice((1, 2)), dtype=rng.choice(("float32", "mixed-bfloat16")),
        optimizer=rng.choice(("sgd", "adam")), bundles=rng.random() < 0.5,
    )  # fmt: skip
    return agrees(graph, case, (0.95, 0.85, 0.7))


@pytest.mark.parametrize("seed", some(range(6), 2))
def test_the_optimum_is_that_of_all_choices(seed: int) -> None:
    fuzz(seed)


def layers(count: int, rng: random.Random) -> PCG:
    """Equal layers with a fusion, a merge of two and a residual each; in all by all rules."""
    drawn = Drawn(rng)
    y = drawn.linear(drawn.x, WIDTH, True)
    merge, fuse = rng.choice(((True, True), (True, False), (False, True)))
    for _ in range(count):
        before = y
        if fuse:
            y = drawn.unary(drawn.linear(y, 2 * WIDTH, True), "relu")
            y = drawn.linear(y, WIDTH, False)
        if merge:
            y = drawn.both("mul", drawn.linear(y, WIDTH, True), drawn.linear(y, WIDTH, True))
        y = drawn.both("add", before, y)
    target = drawn.b.input("target", drawn.b.nodes[y].shape)
    graph = drawn.b.build(drawn.b.add("mse_loss", y, target, shape=(), reduction="mean", name="loss"))
    return rewritings(graph, planner_rules()).graph


@pytest.mark.parametrize(("seed", "sizes"), some([(0, (4,)), (1, (2, 2)), (2, (2, 2)), (3, (3, 2)), (4, (4,))], 2))
def test_equal_layers_are_solved_once(seed: int, sizes: tuple[int, ...]) -> None:
    """As the whole network is; with all memory and with less."""
    rng = random.Random(seed)
    graph = layers(4, rng)
    network = case_of(sizes, rng, optimizer="adam").encoding(graph).network
    assert len(network.chains) == 1 and len(network.chains[0]) >= 2
    free = solved(network)
    assert free.assignment is not None
    (used,) = evaluate(network, free.assignment).use
    for share in (1.0, 0.9, 0.8):
        tight = replace(network, capacities=(int(used * share),))
        assert solved(tight).objective == solved(replace(tight, chains=())).objective


TURNED = parse_rules("""
relu to permute-relu:
    x[n, m]
    y = relu(x)
  =>
    y = permute(relu(permute(x, dims=(1, 0))), dims=(1, 0))

add to permute-add:
    x[n, m], y[n, m]
    z = add(x, y)
  =>
    z = permute(add(permute(x, dims=(1, 0)), permute(y, dims=(1, 0))), dims=(1, 0))

two permutations:
    x[n, m]
    y = permute(permute(x, dims=(1, 0)), dims=(1, 0))
  =>
  outputs y = x

relu of what is negated twice:
    x[n, m]
    y = relu(x)
  =>
    y = relu(neg(neg(x)))
""")


def beside(rng: random.Random) -> PCG:
    """Branches of one tensor, with all kinds of alternatives inside and across, and their concatenation or sum."""
    drawn = Drawn(rng)
    y = drawn.linear(drawn.x, WIDTH, True)
    ends = []
    for _ in range(rng.choice((2, 3))):
        end = y
        for _ in range(rng.choice((1, 2))):
            end = drawn.unary(drawn.linear(end, WIDTH, rng.random() < 0.5), rng.choice(("relu", "tanh")))
        ends.append(end)
    if rng.random() < 0.5:
        y = drawn.b.add("cat", *ends, shape=(*drawn.lead, WIDTH * len(ends)), dim=drawn.rank - 1)
    else:
        y = reduce(partial(drawn.both, "add"), ends)
    y = drawn.linear(y, WIDTH)
    target = drawn.b.input("target", drawn.b.nodes[y].shape)
    graph = drawn.b.build(drawn.b.add("mse_loss", y, target, shape=(), reduction="mean", name="loss"))
    rules = [rule for rule in planner_rules() if "fuse" in rule.name or rng.random() < 0.2]
    rules += [rule for rule in TURNED if drawn.rank == 2 and rng.random() < 0.5]
    return rewritings(graph, rules, SaturationLimits(rounds=rng.choice((1, 2)))).graph


def branches(seed: int) -> bool:
    """Whether the best plan runs branches side by side; it is never worse than without them, or without other ways."""
    rng = random.Random(seed)
    while not 1 < number_of_choices(graph := beside(rng)) <= MOST:
        pass
    case = case_of(rng.choice(((2,), (3,), (4,), (2, 2))), rng)
    case = replace(case, machine=replace(case.machine, device=replace(case.machine.device, launch_ns=200_000)))
    found = case.encoding(graph)
    joint = solved(found.network)
    assert joint.objective is not None and joint.assignment is not None
    confirm(found, joint, case)
    alone = solved(replace(case, bundles=False).encoding(graph).network).objective
    plain = solved(case.encoding(plain_of(graph)).network).objective
    assert alone is not None and plain is not None
    assert joint.objective <= min(alone, plain)
    assert joint.objective == best_of_all(graph, case)
    return joint.objective < alone


@pytest.mark.parametrize("seed", [4, 6, 11, 15, 18, 19, 24, 25])
def test_branches_side_by_side_in_any_way(seed: int) -> None:
    branches(seed)


# The union of rewritings


def two_layers() -> tuple[PCG, list[int]]:
    """Two layers with a ReLU each, the second of which has a bias; and the nodes of linears and ReLUs."""
    b = Builder(BATCH)
    x, nodes = b.input("x", (BATCH, WIDTH)), []
    for k in range(2):
        more = [b.parameter("l1.bias", (WIDTH,))] * k
        x = b.add("linear", x, b.parameter(f"l{k}.weight", (WIDTH, WIDTH)), *more, shape=(BATCH, WIDTH), path=f"l{k}")
        nodes += [x, b.add("relu", x, shape=(BATCH, WIDTH))]
        x = nodes[-1]
    return b.build(b.add("projection", x, shape=(), site=0)), nodes


def test_ways_that_read_what_is_computed_from_them_are_dropped() -> None:
    graph, (_, relu, second, last) = two_layers()
    union = Union(graph)
    union.add_alternative(union.add("linear_relu", graph.nodes[second].inputs), last)
    union.add_alternative(union.add("tanh", (last,)), relu)
    made = union.build()
    assert union.dropped == 1
    assert [(made.nodes[a].op, made.nodes[c].op) for a, c in made.alternatives] == [("linear_relu", "relu")]


def test_ways_that_read_each_other_are_not_both_taken() -> None:
    b = Builder(BATCH)
    x = b.input("x", (BATCH, WIDTH))
    one, other = (b.add("linear", x, b.parameter(n, (WIDTH, WIDTH)), shape=(BATCH, WIDTH)) for n in "vw")
    y = b.add("add", one, other, shape=(BATCH, WIDTH))
    union = Union(b.build(b.add("projection", y, shape=(), site=0)))
    union.add_alternative(union.add("neg", (one,)), other)
    union.add_alternative(union.add("neg", (other,)), one)
    assert len(union.build().alternatives) == 1 and union.dropped == 1


def test_a_graph_without_fitting_ways_stays_as_it_is() -> None:
    graph, (first, relu, *_) = two_layers()
    union = Union(graph)
    union.add_alternative(union.add("slice", (first,), [("dim", 1), ("start", 0), ("step", 1), ("stop", 4)]), relu)
    assert union.build() is graph and union.dropped == 1


def test_dims_are_not_cut_finer() -> None:
    """Parts of a tensor of the graph would cut its dim in two, and its layouts mean something else."""
    graph, (first, relu, second, last) = two_layers()
    union = Union(graph)
    halves = [union.add("part", (first,), [("dim", 1), ("number", n), ("of", 2)]) for n in range(2)]
    swapped = union.add("cat", [halves[1], halves[0]], [("dim", 1)])
    union.add_alternative(swapped, relu)
    union.add_alternative(union.add("linear_relu", graph.nodes[second].inputs), last)
    made = union.build()
    assert [made.nodes[a].op for a, _ in made.alternatives] == ["linear_relu"] and union.dropped == 1
    place = {node.name: i for i, node in enumerate(made.nodes)}
    assert all(atoms(made)[place[node.name]] == atoms(graph)[i] for i, node in enumerate(graph.nodes))


def test_names_are_unique() -> None:
    """Also where what is made has no path, as weights outside of modules."""
    for seed in range(8):
        graph, _ = drawn(seed)
        names = [node.name for node in graph.nodes]
        assert len({*names}) == len(names) and all(names)


def test_limits_of_saturation_are_hit_and_said() -> None:
    graph = layers(3, random.Random(1))
    graph = plain_of(graph)
    assert rewritings(graph, planner_rules(), SaturationLimits(rounds=1)).limits_hit == ("rounds",)
    assert rewritings(graph, planner_rules(), SaturationLimits(nodes=3)).limits_hit == ("nodes",)
    assert rewritings(graph, planner_rules(), SaturationLimits(seconds=0.0)).limits_hit == ("seconds",)
    assert rewritings(graph, planner_rules()).limits_hit == ()


def test_views_are_no_alternatives_and_what_they_lose_is_said() -> None:
    """Nothing is, if a view shows what the same operator computes of the same tensor up to views."""
    graph, _ = two_layers()
    found = rewritings(graph, TURNED[:1], SaturationLimits(rounds=1))
    assert found.graph is graph and found.limits_hit == ("rounds",)
    other = parse_rules(write_rule(TURNED[0]).replace("permute(relu(", "permute(tanh("))
    found = rewritings(graph, other, SaturationLimits(rounds=1))
    assert found.graph is graph and found.limits_hit == ("rounds", "views")


def test_operators_that_are_kept() -> None:
    graph, (first, relu, _, last) = two_layers()
    names = [graph.nodes[i].name for i in (first, relu)]
    every = rewritings(graph, planner_rules()).graph
    assert {every.nodes[c].name for _, c in every.alternatives} == {graph.nodes[i].name for i in (relu, last)}
    for name in names:
        made = rewritings(graph, planner_rules(), kept=[name]).graph
        assert [made.nodes[c].name for _, c in made.alternatives] == [graph.nodes[last].name]

"""Networks to solve: a synthetic transformer on a mesh, and the truth by brute force."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from partita.formulation.network.network import INFINITE, Chain, Edge, Network, Variable, evaluate
from partita.solvers.backends import auto

# Letters of a tensor's layout per mesh axis, and how a linear operator maps them: name, input, output, weight split.
LAYOUT = "RBSHPX"
LINEAR = ("RR-", "BB-", "SS-", "RHc", "HPr", "PP-", "XX-", "HXr")
POINTWISE = ("RR-", "BB-", "SS-", "HH-", "XX-")
NORM = ("RR-", "BB-", "SS-", "XX-")
ATTENTION = ("RR-", "BB-", "HH-", "XX-")
WEIGHT = "rzfcdk"  # replicated, ZeRO-1, FSDP; split, by columns or rows, and kept also in low precision
# What one axis charges for changing a letter, in units of the tensor's gather; P is a sum that is due.
MOVE = {"R": {}, "P": {"R": 2.0, "S": 1.0, "B": 1.0, "H": 1.0, "X": 1.0}}
SPEED = (1.0, 2.5, 9.0)  # the axes, from the fastest


def _move(a: str, b: str) -> float:
    if a == b:
        return 0.0
    if b == "P":
        return float("inf")
    if a == "P":
        return MOVE["P"][b]
    return 0.0 if a == "R" else 1.0 if b == "R" else 0.6


def transformer(
    layers: int, axes: int = 3, size: int = 4, memory: float = 0.5, chain: bool = True, jitter: float = 0.0
) -> Network:
    """A transformer of equal layers on a mesh of `axes` axes: domains of 6^axes layouts and 8^axes strategies.

    `memory` is the capacity, as a fraction of the way from the least memory to a plan's of median uses. `jitter` spoils
    the regularity of times and bytes by up to that fraction, alike in all layers.
    """
    rng = np.random.default_rng(0)
    layouts = ["".join(p) for p in product(LAYOUT, repeat=axes)]
    move = np.array([[_move(a, b) for b in LAYOUT] for a in LAYOUT])

    def conversion(sources: list[str], targets: list[str], units: float) -> np.ndarray:
        """Σ over the axes, dearer where the tensor is less split by the other axes."""
        total = np.zeros((len(sources), len(targets)))
        for axis in range(axes):
            i = [LAYOUT.index(s[axis]) for s in sources]
            j = [LAYOUT.index(t[axis]) for t in targets]
            total = total + move[np.ix_(i, j)] * SPEED[axis] * units
        return np.where(np.isinf(total), INFINITE, spoil(np.nan_to_num(total, posinf=0)))

    def operator(kinds: tuple[str, ...]) -> tuple[list[str], list[str], list[str]]:
        picks = list(product(kinds, repeat=axes))
        return tuple(["".join(k[part] for k in p) for p in picks] for part in range(3))  # type: ignore[return-value]

    ops = {
        "linear": operator(LINEAR),
        "point": operator(POINTWISE),
        "norm": operator(NORM),
        "attn": operator(ATTENTION),
    }
    weights = ["".join(p) for p in product(WEIGHT, repeat=axes)]

    def spoil(values: np.ndarray) -> np.ndarray:
        return (values * (1 + jitter * rng.random(values.shape))).astype(np.int64)

    def option_costs(name: str, time: np.ndarray, use: np.ndarray) -> Variable:
        return Variable(name, spoil(time), spoil(use)[:, None])

    def op_variable(name: str, kind: str, flops: float, kept: float) -> Variable:
        sources, targets, _ = ops[kind]
        split = np.array([size ** sum(c not in "RP" for c in t) for t in targets], float)
        work = np.array(
            [
                size ** sum(a != "R" or b == "H" for a, b in zip(s, t, strict=True))
                for s, t in zip(sources, targets, strict=True)
            ],
            float,
        )
        return option_costs(name, flops / work + 1000, kept / split)

    def weight_variable(name: str, params: float) -> Variable:
        share = {"r": 1.0, "z": 0.5, "f": 1 / size, "c": 1 / size, "d": 1 / size, "k": 1.1 / size}
        cost = [
            sum({"z": 1.1, "f": 2.0}.get(c, 1.0 if c == "r" else 0.0) * SPEED[a] for a, c in enumerate(w))
            for w in weights
        ]
        use = [np.prod([share[c] for c in w]) * 18 * params for w in weights]
        return option_costs(name, np.array(cost) * params / 50, np.array(use))

    def fits(kind: str) -> np.ndarray:
        allowed = {"-": "rzf", "c": "ck", "r": "d"}
        splits = ops[kind][2]
        return np.array(
            [
                [0 if all(w in allowed[s] for s, w in zip(ss, ww, strict=True)) else INFINITE for ww in weights]
                for ss in splits
            ]
        )

    def layout_variable(name: str) -> Variable:
        return Variable(name, np.zeros(len(layouts), np.int64), np.zeros((len(layouts), 1), np.int64))

    tables: dict[tuple[str, str, float], np.ndarray] = {}

    def link(source: str, target: str, units: float) -> np.ndarray:
        sides = [ops[k][side] if k in ops else layouts for k, side in ((source, 1), (target, 0))]
        return tables.setdefault((source, target, units), conversion(*sides, units))

    h, unit = 1.0e9, 2.0e6
    recipe = [  # name, kind, flops, kept, parameters, inputs
        ("norm1", "norm", 1e6, h / 200, 0, ("in",)), ("hub1", "hub", 0, 0, 0, ("norm1",)),
        ("q", "linear", 4e8, h / 200, 1e7, ("hub1",)), ("k", "linear", 4e8, h / 200, 1e7, ("hub1",)),
        ("v", "linear", 4e8, h / 200, 1e7, ("hub1",)), ("attn", "attn", 2e8, h / 100, 0, ("q", "k", "v")),
        ("o", "linear", 4e8, h / 200, 1e7, ("attn",)), ("add1", "point", 1e6, 0, 0, ("in", "o")),
        ("hub2", "hub", 0, 0, 0, ("add1",)), ("norm2", "norm", 1e6, h / 200, 0, ("hub2",)),
        ("hub3", "hub", 0, 0, 0, ("norm2",)), ("gate", "linear", 1e9, h / 100, 3e7, ("hub3",)),
        ("up", "linear", 1e9, h / 100, 3e7, ("hub3",)), ("act", "point", 1e6, h / 100, 0, ("gate", "up")),
        ("down", "linear", 1e9, h / 200, 3e7, ("act",)), ("add2", "point", 1e6, 0, 0, ("hub2", "down")),
    ]  # fmt: skip
    fit = fits("linear")
    shared = {n: layout_variable(n) if k == "hub" else op_variable(n, k, f, m) for n, k, f, m, _, _ in recipe}
    shared |= {f"{n}.weight": weight_variable(n, p) for n, _, _, _, p, _ in recipe if p}
    kind_of = {n: k for n, k, *_ in recipe} | {"in": "hub"}
    variables: list[Variable] = []
    edges: list[Edge] = []

    def add(v: Variable) -> int:
        variables.append(v)
        return len(variables) - 1

    def tie(u: int, v: int, table: np.ndarray) -> None:
        edges.append(Edge(u, v, table))

    embedding = add(weight_variable("embedding.weight", 1e8))
    embed = add(op_variable("embed", "linear", 1e6, h / 100))
    tie(embed, embedding, fit)
    boundaries, copies = [add(layout_variable("b0"))], []
    tie(embed, boundaries[0], link("linear", "hub", unit))
    for i in range(layers):
        at = {"in": boundaries[-1]}
        for name, _, _, _, params, inputs in recipe:
            at[name] = add(shared[name])
            for source in inputs:
                tie(at[source], at[name], link(kind_of[source], kind_of[name], unit))
            if params:
                at[f"{name}.weight"] = add(shared[f"{name}.weight"])
                tie(at[name], at[f"{name}.weight"], fit)
        boundaries.append(add(layout_variable(f"b{i + 1}")))
        tie(at["add2"], boundaries[-1], link("point", "hub", unit))
        copies.append(tuple(v for n, v in at.items() if n != "in"))
    norm = add(op_variable("norm", "norm", 1e6, h / 100))
    head = add(op_variable("head", "linear", 3e9, h / 10))
    loss = add(op_variable("loss", "point", 1e6, h / 10))
    tie(boundaries[-1], norm, link("hub", "norm", unit))
    tie(norm, head, link("norm", "linear", unit))
    tie(head, embedding, fit)
    tie(head, loss, link("linear", "point", unit))
    least = sum(int(v.use.min()) for v in variables)
    most = sum(int(np.median(v.use)) for v in variables)
    capacity = int(least + memory * (most - least))
    chains = (Chain(tuple(boundaries), tuple(copies)),) if chain else ()
    return Network(tuple(variables), tuple(edges), (capacity,), 12345, chains)


def brute_force(network: Network) -> int | None:
    """The least cost of a feasible assignment, by trying all."""
    verdicts = (evaluate(network, x) for x in product(*(range(len(v.cost)) for v in network.variables)))
    return min((v.cost for v in verdicts if v.feasible), default=None)


@pytest.fixture(scope="session")
def make_transformer() -> Callable[..., Network]:
    return transformer


@pytest.fixture(scope="session")
def truth() -> Callable[[Network], int | None]:
    return brute_force


def random_network(seed: int) -> Network:
    """A small network: up to 5 variables and perhaps a chain, 0 to 2 capacities, ties, forbidden and negative costs."""
    rng = np.random.default_rng(seed)
    resources, count = int(rng.integers(0, 3)), int(rng.integers(0, 5))
    scale = int(rng.choice([3, 20, 10**9]))

    def costs(*shape: int) -> np.ndarray:
        values = rng.integers(-scale if rng.random() < 0.1 else 0, scale, shape)
        return np.where(rng.random(shape) < rng.choice([0, 0.1, 0.3]), INFINITE, values).astype(np.int64)

    def uses(*shape: int) -> np.ndarray:
        return rng.integers(0, rng.choice([2, 10]), (*shape, resources)).astype(np.int64)

    def table(*shape: int) -> tuple[np.ndarray, np.ndarray | None]:
        return costs(*shape), uses(*shape) if rng.random() < 0.3 else None

    def choice(name: str, n: int) -> Variable:
        return Variable(name, costs(n), uses(n))

    variables = [choice(f"v{i}", int(rng.integers(1, 5))) for i in range(count)]
    edges: list[Edge] = []

    def tie(u: int, v: int, tables: tuple[np.ndarray, np.ndarray | None] | None = None) -> None:
        tables = tables or table(len(variables[u].cost), len(variables[v].cost))
        edges.append(Edge(u, v, *tables))

    for _ in range(int(rng.integers(0, 2 * count)) if count > 1 else 0):
        tie(*(int(v) for v in rng.choice(count, 2, replace=False)))
    chains: tuple[Chain, ...] = ()
    if rng.random() < 0.6:
        n, interior = (
            int(rng.integers(1, 4)),
            [choice(f"i{k}", int(rng.integers(1, 3))) for k in range(rng.integers(0, 3))],
        )
        sizes = [*(len(v.cost) for v in interior), n, n]
        links = [tuple(int(p) for p in rng.choice(len(sizes), 2, replace=False)) for _ in range(rng.integers(0, 4))]
        tables = [table(sizes[p], sizes[q]) for p, q in links]
        free = Variable("b", np.zeros(n, np.int64), np.zeros((n, resources), np.int64))
        boundaries, copies = [len(variables)], []
        variables.append(choice("first", n))
        length = int(rng.integers(1, 4))
        for i in range(length):
            copies.append(tuple(range(len(variables), len(variables) + len(interior))))
            variables += [*interior, free if i < length - 1 else choice("last", n)]
            places = (*copies[-1], boundaries[-1], len(variables) - 1)
            for (p, q), shared in zip(links, tables, strict=True):
                tie(places[p], places[q], shared)
            boundaries.append(len(variables) - 1)
        reads, more = _read(seed, count, variables, edges, copies)
        chains = (Chain(tuple(boundaries), tuple(copies), reads),)
        edges += more
        for end in (boundaries[0], boundaries[-1]):
            if count and rng.random() < 0.7:
                tie(int(rng.integers(0, count)), end)
    capacities = tuple(int(rng.integers(0, 8 * len(variables) + 1)) for _ in range(resources))
    return Network(tuple(variables), tuple(edges), capacities, int(rng.integers(-5, 100)), chains)


def _read(
    seed: int, count: int, variables: list[Variable], edges: list[Edge], copies: list[tuple[int, ...]]
) -> tuple[tuple[int, ...], list[Edge]]:
    """Perhaps one of the first `count` variables that all copies of a chain read, in one place or two; the edges."""
    rng, first = np.random.default_rng((seed, 1)), copies[0]
    if not count or not first or rng.random() < 0.5:
        return (), []
    v = int(rng.integers(count))
    places = rng.choice(len(first), int(rng.integers(1, 3)))
    sizes = [(len(variables[v].cost), len(variables[first[p]].cost)) for p in places]
    scale = max((int(e.cost[e.cost < INFINITE].max(initial=1)) for e in edges), default=9)
    tables = [rng.integers(0, scale + 1, size) for size in sizes]
    return (v,), [Edge(v, copy[p], t) for copy in copies for p, t in zip(places, tables, strict=True)]


@pytest.fixture(scope="session")
def make_network() -> Callable[[int], Network]:
    return random_network


def mixed(count: int, options: int) -> Network:
    """A ring of random tables under a capacity that binds: a moment's work, and no reduction solves it."""
    rng = np.random.default_rng(1)
    variables = tuple(
        Variable(f"v{i}", rng.integers(0, 50, options), rng.integers(0, 1 << 20, (options, 1))) for i in range(count)
    )
    edges = tuple(
        Edge(u, v, rng.integers(0, 100, (options, options))) for u in range(count) for v in range(u + 1, count)
    )
    return Network(variables, edges, (sum(int(np.sort(v.use[:, 0])[1]) for v in variables),))


@pytest.fixture(scope="session")
def make_mixed() -> Callable[[int, int], Network]:
    return mixed


@pytest.fixture
def only_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `auto` go straight to its counted program, past the lists of labels and the programs that come before it."""
    for bound in ("_FEW_LABELS", "_LABELS"):
        monkeypatch.setattr(auto, bound, 0)
    monkeypatch.setattr(auto, "try_programs", lambda search: None)

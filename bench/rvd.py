"""Communication by RVD search on SuperScaler's machine, 32 V100: sends, collectives, the search, and the exact optimum.

`table 3` are the 18 cases of SuperScaler's Table 3 (producers on one server, consumers on another; Figure 17), of which
4R to 8R and 4V to 8D are Figure 18; `one` are one device to copies on its server or the next, and addends back to it;
`random` are states in one or two dims on up to 8 devices, also on one group and in any order. `rvd_ms` is the search's
path, `exact_ms` CP-SAT's optimum, `p2p_ms` sends and receives. `search_ms` is processor time with prices forgotten, the
best of three.

`figure 16` is the prediction of its strong scaling: GPT-3 1.3B, micro-batches of one sample of 16,384 tokens, 512 of
them, 1F1B, each column a step. Compute is the planner's roofline for one device, divided evenly; added are, in every
layer, two sums over the tensor-parallel group forward and two backward (V to R), and what goes to and comes from
neighbouring stages (R to R), nothing overlapped. `p2p_ms` does all of it by sends, `intra_ms` the sums by search,
`rvd_ms` both. Left, tensor parallelism is 4 wide and stages grow; right, there are 2 stages and tensor parallelism
grows. The paper does not say which sizes it holds: these are ours. Memory is not looked at.
"""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..codegen.pricing.stage_price import stage_price
from ..formulation.rvd.search import forget, search, send_receive
from ..formulation.rvd.state import RVD, Path, State
from ..formulation.search_space import SearchSpace
from ..model.capture.capture import capture
from ..model.graph.dtypes import ITEMSIZE
from ..model.machine.machine import Machine
from ..model.training import Training
from ..model.zoo import build
from ..solvers.protocol import Status
from ..solvers.reduction.rvd import optimum
from .cases import Row, Tell, each, plan_of_one_stage

MODEL, SEQUENCE, SAMPLES = "gpt3-1.3b", 16384, 512
LAYERS, HIDDEN = 24, 2048
ELEMENTS, FLOAT = 2**24, 4
PRODUCERS, CONSUMERS = "RVD", "RD"
COUNTS = ((8, 8), (8, 4), (4, 8))
MANY = (4, 8)
SHAPE = (48, 96)
RANDOM, REPEATS = 30, 3
LEFT = tuple((gpus // 4, 4) for gpus in (4, 8, 16, 32))
RIGHT = tuple((2, gpus // 2) for gpus in (4, 8, 16, 32))
"""Stages, and the width of tensor parallelism."""
WAYS: dict[str, tuple[Callable[..., Path], Callable[..., Path]]] = {
    "p2p_ms": (send_receive, send_receive),
    "intra_ms": (search, send_receive),
    "rvd_ms": (search, search),
}
"""How a stage communicates inside, and with its neighbours."""


@dataclass(frozen=True)
class Case:
    """A tensor that is to be brought from a state to another."""

    name: str
    source: State
    target: State
    shape: tuple[int, ...]
    itemsize: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Scale:
    """GPT-3 on both sides of a boundary between stages: the number of stages and the width of tensor parallelism."""

    side: str
    stages: int
    tensor: int

    def __str__(self) -> str:
        return f"{self.side}, {self.stages} stages x {self.tensor}"


def one_letter(letter: str, count: int, dims: int = 1) -> RVD:
    """`count` copies, addends, or parts of the first dim."""
    counts = [1] * (2 + dims)
    counts["RVD".index(letter)] = count
    return RVD(counts[0], counts[1], tuple(counts[2:]))


def table_3(counts: Sequence[tuple[int, int]] = COUNTS) -> Iterator[Case]:
    """From the first server to the second, a tensor of 64 MiB."""
    for a in PRODUCERS:
        for b in CONSUMERS:
            for i, j in counts:
                source = State.natural(one_letter(a, i), range(i))
                target = State.natural(one_letter(b, j), range(8, 8 + j))
                yield Case(f"table 3, {i}{a} to {j}{b}", source, target, (ELEMENTS,), FLOAT)


def one_and_many(counts: Sequence[int] = MANY) -> Iterator[Case]:
    """From the first device to copies, and from addends to it, on its server or the next; a tensor of 64 MiB."""
    for count in counts:
        for first, where in ((0, "its"), (8, "the next")):
            one, many = State.natural(RVD(1, 1, (1,)), (0,)), range(first, first + count)
            copies, addends = (State.natural(one_letter(letter, count), many) for letter in "RV")
            yield Case(f"one to {count}R on {where} server", one, copies, (ELEMENTS,), FLOAT)
            yield Case(f"one from {count}V on {where} server", addends, one, (ELEMENTS,), FLOAT)


def randoms(count: int, seed: int = 0) -> Iterator[Case]:
    """On one group or two, which may overlap, in their order or in any."""
    rng = random.Random(seed)
    for number in range(count):
        dims, size, one_group = rng.choice((1, 1, 2)), rng.choice((2, 4, 6, 8)), rng.random() < 0.5
        other = size if one_group else rng.choice((size, max(size // 2, 1), min(2 * size, 8)))
        first = 0 if one_group else rng.choice((8, 12, size // 2))
        states = []
        for devices in (range(size), range(first, first + other)):
            order = devices if number % 2 else rng.sample(devices, len(devices))
            states.append(State.natural(_random(rng, len(devices), dims), order))
        yield Case(f"random {number}", states[0], states[1], SHAPE[:dims], rng.choice((4, 4000, 400000)))


def _random(rng: random.Random, devices: int, dims: int) -> RVD:
    counts = [1] * (2 + dims)
    for prime in (2, 2, 2, 3):
        if devices % prime == 0:
            devices //= prime
            counts[rng.randrange(len(counts))] *= prime
    return RVD(counts[0], counts[1], tuple(counts[2:]))


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """A row for every case; `small`: a case of each category, few random ones, and the small twin's scaling."""
    machine = Machine.load("v100-32gb", nodes=4)
    cases: list[Case | Scale] = [
        *table_3(COUNTS[1:2] if small else COUNTS),
        *one_and_many(MANY[:1] if small else MANY),
        *randoms(4 if small else RANDOM),
    ]
    for side, sizes in (("left", LEFT), ("right", RIGHT)):
        cases += [Scale(f"figure 16 {side}", *pair) for pair in sizes[: 2 if small else None]]
    rows, compute = [], 0
    for case in each(cases, only, tell, str):
        if isinstance(case, Case):
            rows.append(measure(case, machine))
        else:
            compute = compute or compute_ns(small)
            rows.append(scaled(case, compute, machine))
    return rows


def measure(case: Case, machine: Machine) -> Row:
    """Every method for one case, and the exact optimum."""
    seconds, path = timed(case, machine)
    source, target, shape, item = case.source, case.target, case.shape, case.itemsize
    direct = send_receive(source, target, shape, item, machine)
    exact = optimum(source, target, shape, item, machine)
    return {
        "case": case.name,
        "from": str(source.rvd),
        "to": str(target.rvd),
        "p2p_ms": direct.cost_ns / 1e6,
        "intra_ms": search(source, target, shape, item, machine, inter=False).cost_ns / 1e6,
        "rvd_ms": path.cost_ns / 1e6,
        "speedup": direct.cost_ns / path.cost_ns if path.cost_ns else 1.0,
        "exact_ms": exact.cost_ns / 1e6 if exact.status is Status.OPTIMAL else None,
        "search_ms": seconds * 1e3,
        "path": ", ".join(path.kinds) or "nothing",
    }


def timed(case: Case, machine: Machine) -> tuple[float, Path]:
    """Processor seconds of the search with nothing remembered, the best of some, and its path."""
    best = float("inf")
    for _ in range(REPEATS):
        forget()
        start = time.process_time()
        path = search(case.source, case.target, case.shape, case.itemsize, machine)
        best = min(best, time.process_time() - start)
    return best, path


# Figure 16


def compute_ns(small: bool) -> int:
    """Forward and backward of one sample on one device that has memory enough, by the planner's roofline."""
    module, inputs = build(MODEL, small=small, sequence=None if small else SEQUENCE)
    machine = Machine.load("v100-32gb", nodes=1)
    node, gpu = machine.levels
    device = replace(machine.device, memory_bytes=2**44)
    machine = replace(machine, levels=(node, replace(gpu, size=1)), device=device)
    training, space = Training(1, "mixed-float16", "adamw"), SearchSpace(micro_batches=1, stages=1)
    plan = plan_of_one_stage(capture(module, inputs, batch=1), machine, training, space)
    return sum(item.total_ns for item in stage_price(plan).items if item.part == "compute")


def scaled(case: Scale, compute: int, machine: Machine) -> Row:
    """The step of all samples by each method of communication."""
    shape, item, t = (1, SEQUENCE, HIDDEN), ITEMSIZE["float16"], case.tensor
    addends, copies = one_letter("V", t, 3), one_letter("R", t, 3)
    stages = [range(s * t, (s + 1) * t) for s in range(case.stages)]
    found: dict[str, float] = {}
    kinds: tuple[str, ...] = ()
    for key, (inside, between) in WAYS.items():
        summed = inside(State.natural(addends, stages[0]), State.natural(copies, stages[0]), shape, item, machine)
        busy = [compute / (case.stages * t) + 4 * LAYERS / case.stages * summed.cost_ns for _ in stages]
        for s, (one, other) in enumerate(pairwise(State.natural(copies, devices) for devices in stages)):
            paths = between(one, other, shape, item, machine), between(other, one, shape, item, machine)
            for end in (s, s + 1):  # both ends take part in the activation's way there and the gradient's way back
                busy[end] += sum(path.cost_ns for path in paths)
            kinds = max(kinds, paths[0].kinds, key=len) if key == "rvd_ms" else ()
        found[key] = (SAMPLES + case.stages - 1) * max(busy) / 1e6
    return {
        "case": str(case),
        "from": str(copies),
        "to": str(copies) if case.stages > 1 else "-",
        **found,
        "speedup": found["p2p_ms"] / found["rvd_ms"],
        "exact_ms": None,
        "search_ms": None,
        "path": ", ".join(kinds) or "nothing",
    }


def totals(rows: Sequence[Row]) -> Row:
    """How many cases have an exact optimum, and how many paths equal it; slowest search in ms."""
    solved = [row for row in rows if row["search_ms"] is not None]
    return {
        "cases": len(solved),
        "equal_to_exact": sum(row["exact_ms"] is not None and row["rvd_ms"] == row["exact_ms"] for row in solved),
        "worse_than_p2p": sum(row["rvd_ms"] > row["p2p_ms"] for row in rows),
        "max_search_ms": max((row["search_ms"] for row in solved), default=None),
    }


def summary(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Table 3 as the paper sums it up, and the scaling of Figure 16 as throughputs."""
    cases = [row for row in rows if row["case"].startswith("table 3")]
    tables: dict[str, list[Row]] = {}
    if cases:
        faster = sum(row["rvd_ms"] < row["p2p_ms"] * 0.98 for row in cases)
        most = max(row["speedup"] for row in cases)
        tables["Figure 17: faster than sends, by 2 % at least (the paper measured 12 of 18, at most 57 times)"] = [
            {"cases": len(cases), "faster": faster, "at most": most}
        ]
    for side in ("left", "right"):
        part = [row for row in rows if row["case"].startswith(f"figure 16 {side}")]
        if part:
            tables[f"Figure 16, {side}: samples a second, and by how much each way is faster than the one before"] = [
                {"case": row["case"]}
                | {way: SAMPLES / row[f"{way}_ms"] * 1e3 for way in ("p2p", "intra", "rvd")}
                | {"intra / p2p": row["p2p_ms"] / row["intra_ms"], "rvd / intra": row["intra_ms"] / row["rvd_ms"]}
                for row in part
            ]
    return tables

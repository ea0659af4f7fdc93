"""How parameters may be stored: what is offered, what each option costs and keeps, in every dtype."""

import random
from dataclasses import replace
from math import ceil, prod

import numpy as np
import pytest

from partita.codegen.plan.plan import Plan
from partita.codegen.planner.decode import choices
from partita.codegen.pricing.stage_price import stage_price
from partita.formulation.encoding.encoding import Encoding
from partita.formulation.network.network import INFINITE, evaluate
from partita.formulation.placement.placement import of_rows
from partita.formulation.reduction.optimal import cheapest_programs
from partita.formulation.weights.buckets import BUCKET_BYTES
from partita.formulation.weights.storage import Storage, worthwhile
from partita.model.errors import PartitaError
from partita.model.graph.builder import Builder
from partita.model.graph.dtypes import ITEMSIZE
from partita.model.graph.layout import B
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine
from partita.model.machine.precision import PRECISIONS, precision
from partita.model.optimizers import optimizer_states
from partita.solvers.protocol import solver
from partita.solvers.search.memory_limits import least_use

from .encodings import encoded_with

MACHINE = Machine.load("dgx-a100", nodes=1)
ALL, MESH = of_rows(((1, 8),)), of_rows(((1, 4), (1, 2)))
LOST = replace(MACHINE, device=replace(MACHINE.device, host_bandwidth=None))
OFFERED = {(False, False, False), (True, False, False)}


def layer(batch: int = 16, frozen: bool = False) -> PCG:
    """A norm, a linear and its bias, of which the linear is all but all."""
    b = Builder(batch)
    x = b.add(
        "rms_norm", b.input("x", (batch, 256)), b.parameter("norm", (256,)), shape=(batch, 256), normalized=1, eps=1e-6
    )
    weight = b.parameter("weight", (512, 256), trainable=not frozen)
    y = b.add("linear", x, weight, b.parameter("bias", (512,)), shape=(batch, 512))
    return b.build(b.add("mse_loss", y, b.input("t", (batch, 512)), shape=(), reduction="mean"))


def encoded(pcg: PCG, machine: Machine = MACHINE, place=ALL, **options: object) -> Encoding:  # type: ignore[no-untyped-def]
    given = {"micro_batches": 2, "dtype": "mixed-bfloat16", "optimizer": "adamw", "offload": True} | options
    return encoded_with(pcg, machine, place, **given)


def stored(found: Encoding, name: str) -> tuple[int, Storage]:
    return next(x for index, x in found.weights.items() if found.pcg.nodes[index].name == name)


def flags(found: Encoding, name: str) -> set[tuple[bool, ...]]:
    """Sharded, scattered, offloaded."""
    _, options = stored(found, name)
    return set(zip(*(flag.tolist() for flag in options.flags[:3]), strict=True))


@pytest.mark.parametrize(
    ("name", "options", "more"),
    [
        ("weight", {}, {(True, True, False), (True, False, True), (True, True, True)}),
        ("norm", {}, set()),  # so small that it is not worth a decision
        ("weight", {"offload": False}, {(True, True, False)}),
        ("weight", {"machine": LOST}, {(True, True, False)}),
        (
            "weight",
            {"micro_batches": 1},
            {(True, False, True)},
        ),  # one micro-batch is scattered once, as all are at last
        ("weight", {"micro_batches": 1, "optimizer": "sgd"}, set()),  # without states whole weights need no copies
        ("weight", {"pcg": layer(frozen=True)}, set()),
    ],
)
def test_what_is_offered(name: str, options: dict[str, object], more: set[tuple[bool, ...]]) -> None:
    found = flags(encoded(**{"pcg": layer()} | options), name)  # type: ignore[arg-type]
    frozen = options.get("pcg") is not None
    assert found - {(False, False, True)} == ({(False, False, False)} if frozen else OFFERED) | more


def test_what_has_no_copies_is_offloaded_whole() -> None:
    """On one device there is nothing to shard; SGD without copies keeps nothing that could go."""
    one = Machine.adhoc((1,))
    place = of_rows(((1,),))
    whole = (False, False, True)
    assert whole in flags(encoded(layer(), one, place), "weight")
    assert whole not in flags(encoded(layer(), one, place, optimizer="sgd"), "weight")
    assert whole in flags(encoded(layer(), one, place, optimizer="sgd", dtype="mixed-bfloat16-bf16grad"), "weight")


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_each_option_by_hand(dtype: str, optimizer: str) -> None:
    """Whole on all 8 ranks: time of a step and bytes of the weight, written out."""
    if MACHINE.device.peak.get(precision(dtype).compute) is None:
        pytest.skip(f"no peak for {dtype}")
    k, n, g, form, states = 4, 512 * 256, 8, precision(dtype), optimizer_states(optimizer)
    found = encoded(layer(), micro_batches=k, dtype=dtype, optimizer=optimizer)
    variable, options = stored(found, "weight")
    compute, weight, gradient, master = (
        ITEMSIZE[x] for x in (form.compute, form.parameters, form.gradients, form.master)
    )
    device = MACHINE.device

    def streamed(size: float, rate: float = device.memory_bandwidth) -> int:
        return ceil(size / rate * 1e9)

    def message(kind: str, item: int) -> float:
        line = cheapest_programs(MACHINE, ALL, (0,), kind).at(BUCKET_BYTES)  # type: ignore[arg-type]
        return line.ns_per_byte * n * item + line.latency_ns * n * item / BUCKET_BYTES

    seen = 0
    for o in np.flatnonzero(options.space.has(options.codes, B).all(axis=1) & ~options.regather):
        sharded, scattered, offloaded = (bool(flag[o]) for flag in options.flags[:3])
        updated, kept = (n // g if sharded else n), states + (form.parameters != form.master)
        held = n * weight + (updated if scattered else n) * gradient + (not offloaded) * updated * kept * master
        if not sharded:
            sums, every = message("all_reduce", gradient), 0.0
        elif scattered:
            sums, every = message("all_gather", weight), message("reduce_scatter", gradient)
        else:
            sums, every = message("reduce_scatter", gradient) + message("all_gather", weight), 0.0
        update = 2 * master * (1 + states) + gradient  # value and states read and written, gradient read
        update += 2 * master if gradient != master else 0  # which is cast before
        update += master + weight if weight != master else 0  # as is the value in the end
        ns = k * (streamed(n * (compute + 2 * gradient) + scattered * 3 * gradient * updated) + ceil(every))
        ns += ceil(sums) + streamed(updated * update)
        if offloaded:
            assert device.host_bandwidth is not None
            ns += streamed(2 * updated * kept * master, device.host_bandwidth)
        assert (found.network.variables[variable].cost[o], found.network.variables[variable].use[o, 0]) == (ns, held)
        seen += 1
    assert seen >= 3 + bool(states or form.copied)  # else nothing could be on the host


@pytest.mark.parametrize("dtype", [name for name in PRECISIONS if name != "float64"])
def test_plans_cost_what_their_network_says(dtype: str) -> None:
    """To the nanosecond and the byte, for random assignments, with kinds of storage that nobody would mix."""
    source, compared, used = random.Random(dtype), 0, set()
    for place, k, optimizer in ((ALL, 1, "adam"), (ALL, 4, "sgd"), (MESH, 3, "adamw")):
        pcg = layer(batch=24)
        found = encoded(pcg, place=place, micro_batches=k, dtype=dtype, optimizer=optimizer)
        reserve = MACHINE.device.capacity_bytes - found.network.capacities[0]
        for _ in range(25):
            assignment = [source.randrange(len(v.cost)) for v in found.network.variables]
            result = evaluate(found.network, assignment)
            if result.cost < INFINITE:
                plan = Plan(pcg, MACHINE, place, k, choices(found, assignment), dtype, optimizer)
                price = stage_price(plan)
                assert (price.objective_ns, price.memory_bytes) == (result.cost, result.use[0] + reserve)
                compared += 1
                used |= {(c.sharded_states, c.sharded_gradients, c.offloaded) for c in plan.choices}
                assert Plan.from_json(plan.to_json()) == plan
    assert compared > 20 and {(True, True, True), (True, True, False), (True, False, True)} <= used


def test_memory_decides() -> None:
    """With room for all nothing is scattered or offloaded; with less gradients are scattered, then states move."""
    found, taken = encoded(layer(), micro_batches=4, stored={"weight": (B,)}), []
    variable, options = stored(found, "weight")
    least, network = least_use(found.network), found.network
    for capacity in (network.capacities[0], *(int(least * x) for x in (1.4, 1.2, 1.0))):
        answer = solver("auto").solve(replace(network, capacities=(capacity,)))
        assert answer.assignment is not None and answer.objective == answer.bound
        taken.append(tuple(bool(flag[answer.assignment[variable]]) for flag in options.flags[:3]))
    assert taken[0] in OFFERED
    assert any(scattered for _, scattered, _ in taken) and taken[-1][2]


def test_what_is_not_worth_it_is_left_out() -> None:
    """No option that is left is beaten in time and memory by another of the same layout; every one left out is."""
    found = encoded(layer(), micro_batches=4)
    variable, options = stored(found, "weight")
    cost, use = found.network.variables[variable].cost, found.network.variables[variable].use[:, 0]
    assert worthwhile(options, cost, use).all()
    worse = cost + options.offloaded * 10**6, np.where(options.offloaded, use.max(), use)
    assert (worthwhile(options, *worse) == ~options.offloaded).all()
    alike = prod(options.codes.shape) - len(set(zip(options.codes.tolist(), options.regather.tolist(), strict=True)))
    assert alike > 0


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(PartitaError, match="mixed-bfloat16-bf16grad, pure-bfloat16"):
        precision("mixed-bfloat16-bf8grad")

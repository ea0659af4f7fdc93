"""Solving equal layers once and joining them gives what solving the whole network gives."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest

from partita.formulation.encoding.encode import encode
from partita.formulation.encoding.encoding_options import EncodingOptions
from partita.formulation.network.network import Network, evaluate
from partita.formulation.placement.placement import placements
from partita.formulation.search_space import SearchSpace
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.graph.builder import Builder
from partita.model.graph.pcg import PCG
from partita.model.machine.machine import Machine
from partita.solvers.backends.elimination import Elimination
from partita.solvers.protocol import Limits, Status
from partita.solvers.search.memory_limits import least_use

from ..levels import some


def perceptron() -> PCG:
    """Three equal layers with a residual."""
    b = Builder(12)
    x = b.add("linear", b.input("x", (12, 64)), b.parameter("first", (64, 64)), shape=(12, 64))
    for i in range(3):
        h = b.add("linear", x, b.parameter(f"layers.{i}.up", (256, 64)), shape=(12, 256), path=f"layers.{i}")
        h = b.add("relu", h, shape=(12, 256), path=f"layers.{i}")
        h = b.add("linear", h, b.parameter(f"layers.{i}.down", (64, 256)), shape=(12, 64), path=f"layers.{i}")
        x = b.add("add", x, h, shape=(12, 64), path=f"layers.{i}")
    return b.build(b.add("mse_loss", x, b.input("t", (12, 64)), shape=(), reduction="mean"))


def captured(name: str) -> PCG:
    module, inputs = load_module(name, small=True)
    return capture(module, inputs, batch=12)


GRAPHS = {"perceptron": perceptron, "mlp": lambda: captured("mlp"), "gpt2": lambda: captured("gpt2")}


def encoded(name: str, mesh: tuple[int, ...], *, overlap: bool) -> Network:
    machine = Machine.adhoc((math.prod(mesh),))
    device = replace(
        machine.device, peak=dict.fromkeys(machine.device.peak, 1e11), memory_bandwidth=1e11, launch_ns=100
    )
    machine = replace(machine, device=device)
    placement = placements(machine.hierarchy, mesh=mesh)[0]
    options = EncodingOptions(SearchSpace(overlap=overlap))
    network = encode(GRAPHS[name](), machine, placement, optimizer="adam", options=options).network
    assert network.chains, "no repetition was found"
    return network


def tightened(network: Network, room: float) -> Network:
    """`room`: memory between the least that any plan keeps (0) and what the fastest takes (1)."""
    fastest = Elimination().solve(network)
    assert fastest.assignment is not None
    least, most = least_use(network), evaluate(network, fastest.assignment).use[0]
    return replace(network, capacities=(least + int(room * (most - least)),))


@pytest.mark.parametrize("room", some([1.0, 0.4, 0.1, 0.0], 2))
@pytest.mark.parametrize("mesh", [(2,), (6,), (2, 2)], ids=str)
@pytest.mark.parametrize("name", GRAPHS)
def test_layers_solved_once_are_layers_solved_together(name: str, mesh: tuple[int, ...], room: float) -> None:
    tight = tightened(encoded(name, mesh, overlap=False), room)
    decomposed, whole = Elimination().solve(tight), Elimination().solve(replace(tight, chains=()))
    assert decomposed.status is whole.status is Status.OPTIMAL
    assert decomposed.objective == whole.objective == whole.bound
    for solution in (decomposed, whole):
        assert solution.assignment is not None
        found = evaluate(tight, solution.assignment)
        assert found.cost == solution.objective and found.use[0] <= tight.capacities[0]


@pytest.mark.parametrize("room", [1.0, 0.4, 0.0])
@pytest.mark.parametrize("name", some(GRAPHS))
def test_windows_of_layers_solved_once(name: str, room: float) -> None:
    """Where lists grow too long for a proof, neither bound is above the other's solution."""
    tight = tightened(encoded(name, (2, 2), overlap=True), room)
    limits = Limits(gap=0.01)
    solutions = [Elimination().solve(n, limits) for n in (tight, replace(tight, chains=()))]
    if any(s.status is Status.INFEASIBLE for s in solutions):  # transient use is in addition to what is kept
        assert room == 0.0 and all(s.status is Status.INFEASIBLE for s in solutions)
        return
    for one, other in itertools.product(solutions, repeat=2):
        assert one.objective is not None and one.bound <= other.objective <= 1.03 * one.bound

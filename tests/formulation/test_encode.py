"""The network of a graph: what is a variable, what is shared, what is counted, and what a fixed strategy leaves."""

from itertools import combinations, product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.formulation.encoding.encode import Encoding, strategy_network
from partita.formulation.encoding.overlap import latency_shares, least_shares, weights_together
from partita.formulation.network.checks import check_network
from partita.formulation.network.network import INFINITE
from partita.formulation.placement.placement import of_rows
from partita.formulation.search_space import EVERYTHING
from partita.formulation.strategies.tensor_classes import classes
from partita.formulation.weights.buckets import BUCKET_BYTES
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.errors import PartitaError
from partita.model.graph.batch import with_batch
from partita.model.graph.builder import Builder
from partita.model.graph.pcg import PCG
from partita.model.graph.segments import layer_weights, segments
from partita.model.graph.stages import boundaries, stage
from partita.model.machine.machine import Machine

from .encodings import encoded_with

MACHINE = Machine.load("dgx-a100")
PLACEMENT = of_rows(((1, 4), (1, 2)))


def blocks(layers: int, batch: int = 8) -> PCG:
    """Equal residual blocks: norm, up, relu, down, add; one table of weights at both ends."""
    b = Builder(batch)
    table = b.parameter("table.weight", (32, 16))
    x = b.add("embedding", table, b.input("ids", (batch, 4), "int64"), shape=(batch, 4, 16))
    for i in range(layers):
        h = b.add("rms_norm", x, b.parameter(f"{i}.norm", (16,)), shape=(batch, 4, 16), normalized=1, eps=1e-5)
        h = b.add("linear", h, b.parameter(f"{i}.up", (64, 16)), shape=(batch, 4, 64), name=f"up{i}")
        h = b.add("dropout", b.add("relu", h, shape=(batch, 4, 64)), shape=(batch, 4, 64), p=0.1, site=i)
        h = b.add("linear", h, b.parameter(f"{i}.down", (16, 64)), shape=(batch, 4, 16), name=f"down{i}")
        x = b.add("add", x, h, shape=(batch, 4, 16))
    y = b.add("view", b.add("linear", x, table, shape=(batch, 4, 32)), shape=(batch * 4, 32))
    t = b.add("view", b.input("t", (batch, 4), "int64"), shape=(batch * 4,))
    return b.build(b.add("cross_entropy", y, t, shape=(), reduction="mean", ignore_index=-100))


def encoded(pcg: PCG, **options: object) -> Encoding:
    return encoded_with(pcg, MACHINE.with_nodes(1), PLACEMENT, **options)


def test_views_and_inputs_are_no_variables() -> None:
    names = {v.name for v in encoded(blocks(1)).network.variables}
    assert "view" not in names and "ids" not in names
    assert {"table.weight", "up0", "0.up"} <= names


def test_a_tensor_with_several_consumers_is_converted_once() -> None:
    found = encoded(blocks(1))
    names = [v.name for v in found.network.variables]
    assert "embedding shared" in names  # read by the norm and the residual
    assert "table.weight shared" in names  # read at both ends


def test_the_network_is_consistent() -> None:
    check_network(encoded(blocks(3)).network)


@pytest.mark.parametrize("layers", [2, 3, 7])
def test_equal_layers_become_one_chain(layers: int) -> None:
    """Also where layers hold dropout, whose call sites differ, and where a tied weight links both ends."""
    (chain,) = encoded(blocks(layers)).network.chains
    assert len(chain) == layers


@pytest.mark.parametrize("name", ["mlp", "bert-large", "gpt2", "gpt3-1.3b", "llama-7b", "llama-70b"])
def test_a_model_of_equal_layers_is_a_chain_of_them(name: str) -> None:
    module, inputs = load_module(name, small=True)
    (chain,) = encoded(capture(module, inputs, batch=12), overlap=False).network.chains
    layers = len({n for n, _ in module.named_modules() if n.startswith("layers.") and n.count(".") == 1})
    # The first layer may differ (its input needs no gradient), as may the last.
    assert layers - 2 <= len(chain) <= layers


def test_layers_that_hide_traffic_are_a_chain_without_the_first() -> None:
    module, inputs = load_module("gpt2", small=True)
    graph = capture(module, inputs, batch=12)
    (without,), found = encoded(graph, overlap=False).network.chains, encoded(graph).network
    (chain,) = found.chains
    assert len(chain) == len(without) - 1 and len(found.windows) == 2 * len(chain)


def test_copies_of_weights_that_travel_ahead_are_transient_use() -> None:
    module, inputs = load_module("gpt2", small=True)
    graph = capture(module, inputs, batch=12)
    for modes in (("none",), ("none", "full", "selective")):
        plain, hiding = (encoded(graph, overlap=o, recompute=modes).network for o in (False, True))
        needed = [max(t[2].max() for t in s.edges.values() if t[2] is not None) for s in hiding.switches if s.has_extra]
        assert len(needed) >= len(hiding.windows) // 2 > 0 and min(needed) > 0
        assert len(plain.switches) == (0 if modes == ("none",) else len(hiding.switches))


def test_equal_tables_are_one_object() -> None:
    network = encoded(blocks(3)).network
    assert len({id(e.cost) for e in network.edges}) < len(network.edges) / 2


def test_a_fixed_strategy_leaves_only_that() -> None:
    found = encoded(blocks(1), fixed={"up0": ("o", "b.1")})
    variable, options = found.operators[next(i for i, n in enumerate(found.pcg.nodes) if n.name == "up0")]
    assert len(found.network.variables[variable].cost) == len(options) == 1


@pytest.mark.parametrize(
    ("fixed", "words"),
    [
        ({"nothing": ("o", "o")}, "no node is named 'nothing'"),
        ({"up0": ("o",)}, "give 2 of R, B, P"),
        ({"up0": ("o", "columns")}, "cannot be fixed to o,columns"),
        ({"down0": ("b.1", "b.1"), "up0": ("b.0", "b.0")}, "leaves a rank empty"),
    ],
)
def test_what_cannot_be_fixed_is_refused(fixed: dict[str, tuple[str, ...]], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        encoded(blocks(1), fixed=fixed)


def test_costs_grow_with_micro_batches_and_memory_falls() -> None:
    """The bound that a search inherits: no entry falls when the same batch is cut into more micro-batches."""
    whole = encoded(blocks(2, batch=16), micro_batches=1, offload=False).network
    halves = encoded(with_batch(blocks(2, batch=16), 8), micro_batches=2, offload=False)
    weights = dict(halves.weights.values())
    for v, (a, b) in enumerate(zip(whole.variables, halves.network.variables, strict=True)):
        old = len(a.cost)  # 8 samples still split over all 8 ranks; gradients may now be scattered in each of the two
        assert (b.cost[:old] >= a.cost).all() and (b.use[:old] <= a.use).all()
        for o in range(old, len(b.cost)):  # the same with sharded states alone takes less time
            stored = weights[v]
            alike = (stored.codes == stored.codes[o]) & (stored.regather == stored.regather[o]) & stored.sharded
            assert stored.scattered[o] and b.cost[o] > b.cost[alike & ~stored.scattered]
    for a, b in zip(whole.edges, halves.network.edges, strict=True):
        assert (b.cost[: a.cost.shape[0], : a.cost.shape[1]] >= a.cost).all()


def test_a_network_to_try_solvers_on() -> None:
    network = strategy_network(blocks(1), MACHINE, mesh=(8,))
    assert network.variables and network.capacities[0] < MACHINE.device.memory_bytes
    assert all((v.cost < INFINITE).any() for v in network.variables)
    assert np.issubdtype(network.variables[0].cost.dtype, np.int64)


def test_the_weights_of_a_layer_share_one_latency() -> None:
    module, inputs = load_module("gpt2", small=True)
    graph = capture(module, inputs, batch=12)
    found = encoded(graph)
    shares = latency_shares(graph, found.together)
    of_layer = {s.name: sum(shares[i] for i in layer_weights(graph, s)) for s in segments(graph)}
    assert set(of_layer) < set(found.together) and all(abs(share - 1) < 1e-9 for share in of_layer.values())
    assert not encoded(graph, overlap=False).together


def test_weights_between_layers_share_the_latency_of_their_message() -> None:
    module, inputs = load_module("bert-large", small=True)
    graph = capture(module, inputs, batch=12)
    shares = {graph.nodes[i].name: share for i, share in latency_shares(graph, encoded(graph).together).items()}
    head = {"head.weight", "head.bias", "head_norm.weight", "head_norm.bias", "scores.bias"}
    assert sum(shares[name] for name in head) == pytest.approx(1) and shares["head.bias"] < 0.1
    assert shares["token_embedding.weight"] == 1  # the head reads it, too
    numel = {node.name: node.numel for node in graph.nodes}["head.weight"]
    full = weights_together(graph, classes(graph), EVERYTHING, BUCKET_BYTES // numel)
    assert full["head.weight"] == numel and full["head.bias"] < numel


class Nested(nn.Module):
    """Layers of residual blocks that end with a product of their own."""

    def __init__(self) -> None:
        super().__init__()
        block = lambda: nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))  # noqa: E731
        layer = lambda: nn.ModuleDict({"blocks": nn.ModuleList(block() for _ in range(3)), "last": nn.Linear(16, 16)})  # noqa: E731
        self.layers = nn.ModuleList(layer() for _ in range(2))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        for layer in self.layers:
            for block in layer["blocks"]:
                x = x + block(x)
            x = F.relu(layer["last"](x))
        return F.cross_entropy(x, labels)


def test_no_part_of_a_layer_pays_more_latency_than_in_a_larger_part() -> None:
    graph = capture(Nested(), {"x": torch.randn(8, 16), "labels": torch.randint(16, (8,))}, batch=8)
    last = len(boundaries(graph)) - 1
    whole, divided = {s.name for s in segments(graph)}, 0

    def shares(first: int, stop: int, inside: bool) -> dict[str, float]:
        part = stage(graph, first, stop).graph
        together = weights_together(part, classes(part), EVERYTHING, 4)
        found = latency_shares(part, together) | (least_shares(part, 4) if inside else {})
        return {part.nodes[i].name: found.get(i, 1.0) for i in part.of("parameter")}

    for first, stop in combinations(range(last + 1), 2):
        divided += not {s.name for s in segments(stage(graph, first, stop).graph)} <= whole
        for wide in product(range(first + 1), range(stop, last + 1)):
            larger = shares(*wide, inside=False)
            assert all(share <= larger[name] for name, share in shares(first, stop, inside=True).items())
    assert divided

"""Stages: where graphs are cut, and that stages computed one after another are the whole."""

import pickle
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from partita.codegen.verification.synthetic import synthetic
from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.graph import interpreter as interpret
from partita.model.graph.atoms import _found, atoms
from partita.model.graph.batch import with_batch
from partita.model.graph.builder import Builder
from partita.model.graph.dtypes import FLOATS
from partita.model.graph.graph_file import graph_from_json, graph_to_json
from partita.model.graph.pcg import PCG
from partita.model.graph.stages import MAX_CROSSING, Boundary, boundaries, stage, stage_kind

from ..levels import some

BATCH = 4


@cache
def graph(name: str) -> PCG:
    module, inputs = load_module(name, small=True)
    return capture(module, inputs, batch=BATCH)


def test_equal_graphs_are_compared_once() -> None:
    """A process that is sent a graph again finds its analyses without comparing all nodes for each."""
    one, other = graph("mlp"), pickle.loads(pickle.dumps(graph("mlp")))
    assert other.nodes is not one.nodes and other == one and other.nodes is one.nodes
    assert replace(one, batch=one.batch + 1) != one and one != "mlp"


def crossing(pcg: PCG) -> list[list[str]]:
    return [[pcg.nodes[i].name for i in b.crossing] for b in boundaries(pcg)[1:-1]]


def values(pcg: PCG) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Inputs and weights by name."""
    torch.manual_seed(0)
    inputs, weights = synthetic(pcg, pcg.batch, 0), dict[str, Tensor]()
    for node in (pcg.nodes[i] for i in (*pcg.of("parameter"), *pcg.of("buffer"))):
        for name, shape in node.originals.items():
            drawn = torch.rand(shape, dtype=torch.float64) * 0.2 + 0.05
            whole = torch.full(shape, node.dtype == "bool", dtype=getattr(torch, node.dtype))
            weights[name] = drawn if node.dtype in FLOATS else whole
            weights[name].requires_grad_(node.op == "parameter" and node.gradient)
    return inputs, weights


def mask(site: int, shape: tuple[int, ...], p: float) -> Tensor:
    return (torch.arange(torch.Size(shape).numel()) * (site + 3) % 7 > 1).reshape(shape) / (1 - p)


def in_stages(pcg: PCG, cuts: list[int], inputs: dict[str, Tensor], weights: dict[str, Tensor]) -> Tensor:
    """The loss computed stage by stage; its gradients go back from stage to stage, and are left at the weights."""
    sent: dict[str, Tensor] = {}
    back: list[tuple[list[tuple[str, Tensor]], dict[str, Tensor]]] = []
    loss = torch.zeros(())
    for first, last in pairwise(cuts):
        part = stage(pcg, first, last).graph
        peers = [part.nodes[i]["peer"] for i in part.of("receive")]
        given = {peer: sent[peer].detach().requires_grad_() for peer in peers}
        own = {part.nodes[i].name: inputs[part.nodes[i].name] for i in part.of("input")}
        tensors = interpret.run(part, own | {f"{k} received": v for k, v in given.items()}, weights, mask=mask)
        sent = {part.nodes[i]["peer"]: tensors[i] for i in part.sends}
        back.append((list(sent.items()), given))
        loss = tensors[part.loss]
    torch.autograd.backward(loss)
    gradients: dict[str, Tensor] = {}
    for results, given in reversed(back):
        if results:
            torch.autograd.backward([t for _, t in results], [gradients[peer] for peer, _ in results])
        for peer, tensor in given.items():
            assert tensor.grad is not None
            gradients[peer] = tensor.grad
    return loss


MODELS = (
    "mlp", "gpt2", "llama-70b", "mbart-4.7b", "resnext-50", "inception-v3", "swin-1.8b", "mixtral-8x7b", "unet",
    "candle-uno", "dlrm", "alphafold2-87m",
)  # fmt: skip


@pytest.mark.parametrize("name", some(MODELS))
def test_stages_one_after_another_are_the_whole(name: str) -> None:
    """The same loss and gradients with every boundary a cut."""
    pcg = graph(name)
    cuts = list(range(len(boundaries(pcg))))
    inputs, weights = values(pcg)
    whole = interpret.run(pcg, inputs, weights, mask=mask)[pcg.loss]
    torch.autograd.backward(whole)
    expected = {name: w.grad for name, w in weights.items()}
    inputs, weights = values(pcg)
    loss = in_stages(pcg, cuts, inputs, weights)
    assert len(cuts) > 2 and torch.allclose(loss, whole)
    for name, weight in weights.items():
        assert (weight.grad is None) == (expected[name] is None), name
        torch.testing.assert_close(weight.grad, expected[name])


@pytest.mark.parametrize("name", MODELS)
def test_a_stage_is_a_graph_with_the_atoms_of_the_whole(name: str) -> None:
    pcg = graph(name)
    known, bounds = atoms(pcg), boundaries(pcg)
    for first, last in pairwise(range(len(bounds))):
        part = stage(pcg, first, last)
        assert graph_from_json(graph_to_json(part.graph)) == part.graph
        alone = _found.__wrapped__(replace(part.graph, part=None))[0]  # found from nothing but the stage
        assert [known[i] for i in part.nodes] == list(alone) == list(atoms(part.graph))
        single = stage(with_batch(pcg, 1), first, last).graph
        assert single == with_batch(part.graph, 1) and graph_from_json(graph_to_json(single)) == single


def test_lists_of_layers_are_cut_between_entries() -> None:
    assert crossing(graph("gpt2")) == [["dropout"], ["layers.0.add_2"], ["layers.1.add_2"], ["norm"]]
    ends = crossing(graph("swin-1.8b"))
    assert ["stages.1.blocks.0.add_2"] in ends and len(ends) == 8  # lists within lists too


def test_at_most_two_tensors_cross() -> None:
    pcg = graph("mbart-4.7b")
    assert ["encoder_norm", "decoder.0.add_3"] in crossing(pcg)
    assert max(map(len, crossing(pcg))) == MAX_CROSSING == 2


def test_what_follows_from_inputs_and_constants_is_computed_by_every_stage() -> None:
    part = stage(graph("llama-70b"), 1, 2).graph
    assert part.of("input") == () and part.of("arange")
    assert {part.nodes[i].name for i in part.of("receive")} == {"token_embedding received"}


def test_recycled_layers_are_not_cut() -> None:
    """A stage would have to be passed several times."""
    inside = [n for names in crossing(graph("alphafold2-87m"))[:-1] for n in names]
    assert all(name.startswith("embedder") for name in inside)


def test_what_is_not_read_is_handed_on() -> None:
    pcg = graph("mbart-4.7b")
    number = crossing(pcg).index(["encoder_norm"]) + 1
    part = stage(pcg, number, number + 1).graph
    names = {part.nodes[i].name for i in (*part.of("receive"), *part.sends)}
    assert {"encoder_norm received", "encoder_norm sent"} <= names


def test_a_tied_weight_is_in_every_stage_that_reads_it() -> None:
    pcg = graph("gpt2")
    last = len(boundaries(pcg)) - 1
    first, final, both = (stage(pcg, a, b).graph for a, b in ((0, 1), (last - 1, last), (0, last)))
    held = [
        [(n.get("stages"), n.get("ends")) for n in g.nodes if n.name == "token_embedding.weight"]
        for g in (first, final, both)
    ]
    assert held == [[(2, True)], [(2, True)], [(None, None)]]
    assert both is pcg


def test_a_weight_that_is_read_between_the_ends_too_is_not_at_the_ends_alone() -> None:
    """Unless all others of its readers are in the stage at one of the ends."""
    pcg, name = graph("mbart-4.7b"), "token_embedding.weight"
    last = len(boundaries(pcg)) - 1
    parts = [stage(pcg, *ends).graph for cut in (1, last - 1) for ends in ((0, cut), (cut, last))]
    held = [next(n for n in part.nodes if n.name == name) for part in parts]
    assert [(n["stages"], n.get("ends")) for n in held] == [(3, None), (2, True), (2, True), (3, None)]


def test_views_that_another_stage_has_are_known() -> None:
    """Both ends of a boundary, and a table that both stages have, have the factors that views of one of them tell."""
    b = Builder(4)
    table = b.parameter("table", (32, 12))
    x = b.add("embedding", table, b.input("ids", (4, 6), "int64"), shape=(4, 6, 12))
    for i in range(2):
        x = b.add("linear", x, b.parameter(f"layers.{i}.weight", (12, 12)), shape=(4, 6, 12), path=f"layers.{i}")
    y = b.add("linear", x, table, shape=(4, 6, 32))
    heads = b.add("softmax", b.add("view", y, shape=(4, 6, 4, 8)), shape=(4, 6, 4, 8), dim=3)
    parts = b.add("softmax", b.add("view", x, shape=(4, 6, 3, 4)), shape=(4, 6, 3, 4), dim=3)
    loss = b.add("add", *(b.add("projection", t, shape=(), site=i) for i, t in enumerate((heads, parts))), shape=())
    pcg = b.build(loss)
    first = stage(pcg, 0, 1).graph
    assert atoms(first)[first.of("parameter")[0]].dims == ((4, 8), (3, 4))
    assert atoms(first)[first.loss].dims == ((4,), (6,), (3, 4))
    assert graph_from_json(graph_to_json(first)) == first


class Biased(nn.Module):
    """Layers whose attention adds one learned bias, as T5 does; the first computes it for all."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(7, 2)
        self.layers = nn.ModuleList(nn.Linear(8, 24) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(4)
        bias = self.bias(places[:, None] - places[None, :] + 3).permute(2, 0, 1)
        for layer in self.layers:
            q, k, v = (t.view(-1, 4, 2, 4).transpose(1, 2) for t in layer(x).chunk(3, -1))
            x = x + ((q @ k.mT + bias).softmax(-1) @ v).transpose(1, 2).reshape(-1, 4, 8)
        return x.square().mean()


def test_what_all_layers_read_is_handed_through() -> None:
    """A bias with a gradient crosses beside the stream, and its gradient comes back through all stages."""
    pcg = capture(Biased(), (torch.zeros(4, 4, 8),), batch=4)
    cuts = list(range(len(boundaries(pcg))))
    assert sorted(map(len, crossing(pcg)))[-2:] == [2, 2]
    inputs, weights = values(pcg)
    torch.autograd.backward(interpret.run(pcg, inputs, weights)[pcg.loss])
    expected = {name: w.grad for name, w in weights.items()}
    inputs, weights = values(pcg)
    in_stages(pcg, cuts, inputs, weights)
    for name, weight in weights.items():
        torch.testing.assert_close(weight.grad, expected[name])


def test_a_graph_without_cuts_is_one_stage() -> None:
    class Skips(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            made = [x]
            for layer in self.layers:
                made.append(layer(sum(made[1:], x)))
            return torch.stack([a.tanh() * b for a in made[1:] for b in made[1:]]).mean()

    pcg = capture(Skips(), (torch.zeros(4, 8),), batch=4)
    assert max(len(b.crossing) for b in boundaries(pcg)) <= MAX_CROSSING
    assert boundaries(pcg)[0] == Boundary(0) and boundaries(pcg)[-1] == Boundary(len(pcg.nodes))


def two_ways() -> PCG:
    """Two layers that read one tensor, whose weights another way to compute them joins."""
    b = Builder(4)
    x = b.add("linear", b.input("x", (4, 8)), b.parameter("first", (8, 8)), shape=(4, 8))
    joined = b.parameter("joined", (16, 8), joined=(("layers.0.w", 8), ("layers.1.w", 8)))
    both = b.add("linear", x, joined, shape=(4, 16))
    halves = [b.add("part", both, shape=(4, 8), dim=1, of=2, number=n) for n in range(2)]
    y, pairs = x, []
    for i, half in enumerate(halves):
        own = b.add("linear", x, b.parameter(f"layers.{i}.w", (8, 8)), shape=(4, 8), path=f"layers.{i}")
        y = b.add("add", y, b.add("tanh", own, shape=(4, 8), path=f"layers.{i}"), shape=(4, 8), path=f"layers.{i}")
        y = b.add("linear", y, b.parameter(f"layers.{i}.out", (8, 8)), shape=(4, 8), path=f"layers.{i}")
        pairs.append((half, own))
    loss = b.add("projection", y, shape=(), site=0)
    return PCG(tuple(b.nodes), loss, 4, alternatives=tuple(pairs))


def test_other_ways_are_in_the_stages_that_have_all_they_read() -> None:
    """They do not change where a graph is cut, and none joins weights of different stages."""
    pcg = two_ways()
    assert [len(names) for names in crossing(pcg)] == [1, 2]
    apart, together = stage(pcg, 1, 2).graph, stage(pcg, 1, 3).graph
    assert not apart.alternatives and not any(n.name == "joined" for n in apart.nodes)
    assert len(together.alternatives) == 2 and any(n.name == "joined" for n in together.nodes)
    assert stage_kind(pcg, 1, 2) != stage_kind(pcg, 1, 3) != stage_kind(replace(pcg, alternatives=()), 1, 3)

"""Capture: the graph computes the module's loss and gradients, and says what it cannot capture."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.model.capture import capture as capturing
from partita.model.capture.inputs import Inputs
from partita.model.errors import PartitaError
from partita.model.graph.batch import with_batch
from partita.model.graph.graph_file import graph_from_json, graph_to_json

from .functions import LABELS, Lambda, X, masked, of, reduced, scalars, split_and_join

capture = partial(capturing.capture, loss="projection")  # most modules here have no loss


class Tied(nn.Module):
    """A tied weight, a frozen one, an unused one, buffers of both kinds, an embedding with a padding row."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4, padding_idx=2)
        self.scores = nn.Linear(4, 7, bias=False)
        self.scores.weight = self.table.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(2, 2)
        self.register_buffer("kept", torch.linspace(0, 1, 4))
        self.register_buffer("passing", torch.linspace(1, 2, 4), persistent=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x = self.frozen(self.table(ids)) * self.kept + self.passing
        return F.cross_entropy(self.scores(x).mT, labels)


def test_weights(agrees: Any) -> None:
    ids = torch.zeros(4, 3, dtype=torch.int32)
    graph = agrees(Tied(), {"ids": ids, "labels": ids.long()})
    assert graph.aliases == (("scores.weight", "table.weight"),)
    nodes = {n.name: n for n in graph.nodes}
    assert nodes["table.weight"].gradient and not nodes["frozen.weight"].gradient
    assert "unused.weight" not in nodes
    assert nodes["kept"].op == "buffer" and nodes["passing"].op == "constant"  # no checkpoint has it
    assert nodes["scores"].op == "linear" and nodes["frozen"].path == "frozen"
    assert (nodes["ids"].dtype, nodes["ids"]["high"]) == ("int32", 7)
    assert (nodes["labels"].dtype, nodes["labels"]["high"]) == ("int64", 7)


@dataclass
class Output:
    loss: Tensor
    scores: Tensor


@pytest.mark.parametrize("kind", [Output, lambda loss, scores: {"loss": loss, "scores": scores}])
def test_loss_of_an_output(kind: Callable[..., Any], agrees: Any) -> None:
    graph = agrees(Lambda(lambda x: kind(loss=x.square().mean(), scores=x)), (X,), loss=None)
    assert not graph.of("projection")
    assert graph.nodes[graph.loss].op == "mean"


def test_several_outputs(agrees: Any) -> None:
    graph = agrees(Lambda(lambda x: {"a": (x, x.amax(-1)), "b": [x > 0]}), (X,))
    assert [graph.nodes[i]["site"] for i in graph.of("projection")] == [0, 1]


def test_batch(agrees: Any) -> None:
    module = Lambda(lambda x, scale: x * scale)
    inputs = (torch.zeros(1, 3, 4), torch.zeros(6))
    assert capture(module, inputs).batch == 2
    graph = agrees(module, inputs, batch=5)
    assert [(graph.nodes[i].shape, graph.nodes[i]["batch_dim"]) for i in graph.of("input")] == [
        ((5, 3, 4), 0),
        ((6,), None),
    ]


@pytest.mark.parametrize("function", [split_and_join, masked, reduced, scalars], ids=lambda f: f.__name__)
def test_with_batch_is_another_capture(function: Callable[..., Any]) -> None:
    """Rescaling a graph equals capturing at the other batch."""
    module = Lambda(function)
    assert with_batch(capture(module, (X,), batch=4), 6) == capture(module, (X,), batch=6)


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("slice", lambda x: x[1:3]),
        ("pad", lambda x: F.pad(x, (0, 0, 0, 0, 1, 1))),
        ("softmax", lambda x: x.softmax(0)),
        ("index", lambda x: x[torch.tensor([0, 2])]),
        ("gather", lambda x: x.gather(0, torch.tensor([0, 2]).view(2, 1, 1))),
    ],
)
def test_batch_that_is_cut(op: str, function: Callable[..., Any]) -> None:
    graph = capture(Lambda(function), (X,), batch_dim=0)
    with pytest.raises(PartitaError, match=f"{op} '{op}' is tied to a batch of 4"):
        with_batch(graph, 8)


def test_ranges_of_indices() -> None:
    def forward(x: Tensor, i: Tensor, j: Tensor, k: Tensor) -> Tensor:
        return x[:, i, j].sum() + x.gather(2, k.unsqueeze(-1)).sum()

    ids = torch.zeros(2, dtype=torch.int64)
    graph = capture(Lambda(forward), (X, ids, ids, LABELS))
    assert [graph.nodes[i].get("high") for i in graph.of("input")] == [None, 3, 6, 6]


def test_module_stays_as_it_is() -> None:
    module = Tied()
    before = {name: (id(p), p.clone()) for name, p in module.named_parameters()}
    ids = torch.zeros(4, 3, dtype=torch.int64)
    capture(module, (ids, ids))
    for name, p in module.named_parameters():
        assert id(p) == before[name][0] and torch.equal(p, before[name][1]), name


def test_meta_and_cpu_give_one_graph() -> None:
    graphs = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            graphs.append(capture(Lambda(torch.tanh), (torch.zeros(4, 4),)))
    assert graphs[0] == graphs[1]
    assert graph_from_json(graph_to_json(graphs[0])) == graphs[0]


def test_dropout_in_eval_is_dropped() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4), nn.Dropout(0.0))
    assert len(capture(module, (torch.zeros(4, 4),)).of("dropout")) == 1
    assert not capture(module.eval(), (torch.zeros(4, 4),)).of("dropout")


def test_names_of_layers() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True))
    graph = capture(module, (X,))
    names = {n.name: n.op for n in graph.nodes}
    assert names["1.linear1"] == names["0"] == "linear"
    assert names["1.norm1"] == "layer_norm"
    assert "input" in names


def test_names_of_nested_inputs() -> None:
    def forward(x: Tensor, pair: tuple[Tensor, Tensor], flag: bool = True) -> Tensor:
        return x + pair[0] * pair[1] if flag else x

    module = Lambda(torch.relu)
    module.forward = forward  # type: ignore[method-assign]
    found = Inputs.of(module, {"x": torch.ones(2), "pair": (torch.ones(2), torch.ones(2)), "flag": True})
    assert found.names == ("x", "pair_0", "pair_1")
    assert found.call(module, [torch.ones(2) * i for i in (1, 2, 3)]).tolist() == [7, 7]


BIG = torch.linspace(0, 1, 300).square()


def test_one_tensor_given_twice() -> None:
    found = Inputs.of(Tied(), (LABELS, LABELS))
    assert found.names == ("ids", "labels")
    graph = capture(Tied(), {"labels": LABELS, "ids": LABELS})
    assert of(graph, "embedding").inputs[1] == [n.name for n in graph.nodes].index("ids")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda x: torch.linalg.svdvals(x).sum(),
            r"aten.linalg_svdvals.default .* module '\(the top\)', at .*functions.py:\d+: return",
        ),
        (lambda x: x[x > 0].sum(), "boolean mask"),
        (lambda x: F.embedding_bag(LABELS[0], x[0], LABELS[0, :2], mode="max"), "only sums and means of bags"),
        (lambda x: F.embedding_bag(LABELS[0], x[0], torch.tensor([0, 1])), "bags must be of one size"),
        (lambda x: x[torch.multinomial(x.softmax(-1), 1)], "aten.multinomial"),
        (lambda x: x * 2 if x.sum() > 0 else x, "cannot export Lambda"),
        (lambda x: x > 0, "no floating tensor"),
        (lambda x: x.detach(), "no trainable parameter"),
        (lambda x: x.flatten()[:1] + BIG, "register_buffer"),
        (lambda x: x.reshape(7, -1), "cannot export Lambda"),
    ],
)
def test_refusals(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        capture(Lambda(function), (X,), allow_unknown=False)


@pytest.mark.parametrize(
    ("inputs", "words"), [((), "do not fit"), ({"y": X}, "do not fit"), (3, "not int"), ((X, 1, 2), "do not fit")]
)
def test_bad_inputs(inputs: Any, words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        capture(nn.Linear(4, 4), inputs)


def test_a_forward_that_fails_is_told_in_one_line_alone(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(4, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.up(x) @ torch.zeros(7, 7)

    log = logging.getLogger("torch._subclasses.fake_tensor")
    with pytest.raises(PartitaError, match=r"cannot export Wrong.*reduction dim"):
        capture(Wrong(), (torch.zeros(2, 4),))
    assert [r for r in caplog.records if r.levelno >= logging.ERROR] == []
    assert capfd.readouterr().err == ""
    log.error("still heard")
    assert [r.message for r in caplog.records if r.levelno >= logging.ERROR] == ["still heard"]


def branches(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x
    return -x


class Block(nn.Module):
    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.linear, self.call = nn.Linear(4, 4), call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.linear(x))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (branches, r"values of tensors .* in module '1', at .*test_capture.py:\d+: if x.sum\(\) > 0:; .*torch.where"),
        (lambda x: x * float(x.sum()), r"in module '1', at .*: .* float\(x.sum\(\)\)"),
        (lambda x: x @ torch.zeros(7, 7), r"cannot export .* in module '1', at .*test_capture.py:\d+: .*7, 7"),
        (
            lambda x: x[:, : x.argmax().item()],
            r"a Python number .* module '1', at .*test_capture.py.*keep it a tensor",
        ),
        (lambda x: x * torch.from_numpy(x.detach().numpy()), r"in module '1', .* torch's functions instead of NumPy's"),
        (lambda x: F.embedding(x.long(), None), r"in module '1', at .*test_capture.py:\d+: .*F.embedding"),
    ],
)
def test_refusals_name_the_users_line(
    call: Callable[[Tensor], Tensor], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Not torch's, where the error arose, nor that of the caller."""
    with pytest.raises(PartitaError, match=words):
        capture(nn.Sequential(nn.Linear(4, 4), Block(call)), (torch.zeros(4, 4),))
    assert capfd.readouterr().err == ""


def test_numbers_that_nothing_reads_are_left_out() -> None:
    seen = []

    def watched(x: Tensor) -> Tensor:
        seen.append(x.norm().item())
        return x

    assert not capture(Block(watched), (torch.zeros(4, 4),)).of("opaque")

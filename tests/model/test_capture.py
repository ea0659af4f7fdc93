"""Capture: the graph computes the module's loss and gradients, and says what it cannot capture."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.model.capture import Inputs, capture
from partita.model.errors import PartitaError
from partita.model.pcg import PCG, Node, with_batch


class Lambda(nn.Module):
    """A linear layer, then any function of its output."""

    def __init__(self, function: Callable[..., Any], width: int = 6) -> None:
        super().__init__()
        self.first = nn.Linear(4, width)
        self.function = function

    def forward(self, x: Tensor, *more: Tensor) -> Any:
        return self.function(self.first(x), *more)


X = torch.zeros(4, 3, 4)


def of(graph: PCG, op: str) -> Node:
    """The only node with an operator."""
    (index,) = graph.of(op)
    return graph.nodes[index]


def split_and_join(x: Tensor) -> Tensor:
    a, b, c = x.chunk(3, -1)
    d, e = x.split([2, 4], -1)
    return torch.cat((a * b, torch.stack((c, d)).sum(0), e[..., ::2]), -1)


def masked(x: Tensor) -> Tensor:
    keep = torch.ones(3, 6, dtype=torch.bool).tril(1)
    y = x.masked_fill(~keep, -1.0)
    z = torch.where(x > 0, x, x * 0.5) + torch.where(keep & (x < 1), y, 0.0)
    return z.triu().maximum(y).minimum(z + 1)


def shaped(x: Tensor) -> Tensor:
    y = x.unsqueeze(1).expand(-1, 2, -1, -1).transpose(1, 2).contiguous().flatten(2)
    z = x[:, None].repeat(1, 2, 1, 1).movedim(1, -1).mT.reshape(4, 3, 12)
    w = x.repeat_interleave(2, 0).narrow(0, 2, 4).unflatten(-1, (2, 3)).permute(0, 1, 3, 2)[:, :, 1, -1:]
    return y + z + w.squeeze().unsqueeze(-1) + x.select(1, 0).unbind(-1)[2][:, None, None]


def scalars(x: Tensor) -> Tensor:
    y = 1 - x + 2 * x / 3 - torch.rsub(x, 2, alpha=3) + torch.add(x, x * x, alpha=0.5)
    return (y.clamp(-1, 2) + x.abs().clamp_min(0.1).log()) ** 2 + 2.0 ** (-x) + x.square().add(1).sqrt().reciprocal()


def activations(x: Tensor) -> Tensor:
    y = F.gelu(x) + F.gelu(x, approximate="tanh") + F.silu(x) + F.elu(x, 0.7) + F.leaky_relu(x, 0.2) + F.softplus(x)
    return y * torch.tanh(x) + torch.sigmoid(x) * torch.erf(x) + x.exp().rsqrt() + x.sin() * x.cos() + (-x).relu()


def reduced(x: Tensor) -> tuple[Tensor, ...]:
    return (
        x.softmax(-1) + x.log_softmax(1),
        x.mean((0, -1), keepdim=True) + x.sum(1, keepdim=True),
        x.amax(-1),
        x.max(1).values,
        x.var(-1) + x.std(1, unbiased=False).mean(-1, keepdim=True),
        x.mean() * x.max(),
    )


def inplace(x: Tensor) -> Tensor:
    y = torch.zeros(4, 3, 6) + x
    y.mul_(2).add_(1)
    return F.relu(y, inplace=True)


def no_gradient(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().mean()
    return x / scale * x.detach()


def tables(x: Tensor) -> Tensor:
    weights = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    steps = torch.arange(0, 6, 2, dtype=torch.float64).repeat(2) / 3
    return x * weights + steps.to(x.dtype) + torch.full((6,), 0.25) + torch.zeros_like(x) + x.new_ones(6)


def products(x: Tensor) -> Tensor:
    y = torch.baddbmm(x @ x.mT, x, x.mT, beta=0.5, alpha=2)
    return torch.bmm(y, x) + x.matmul(torch.mm(x[0].t(), x[1])) @ torch.eye(6, dtype=x.dtype).mul(2)


def looked_up(x: Tensor) -> Tensor:
    ids = torch.tensor([2, 0, 1])
    y = x.sum(0)[ids] + x[0].index_select(0, ids)
    z = x.log_softmax(-1).gather(-1, torch.tensor([5, 0, 3]).view(1, 3, 1).expand(4, 3, 1))
    return y * F.one_hot(ids, 6) + z + x.cumsum(1)


def indexed(x: Tensor) -> tuple[Tensor, ...]:
    ids, back = torch.tensor([[2, 0], [1, 1]]), torch.tensor([-1, 0, -2])
    some = torch.tensor([[[1], [0], [2]], [[2], [1], [0]]])
    last = torch.tensor(-1)
    return (
        x[:, ids]
        + x[:, back][:, :1, None]
        + x.index_select(1, ids[0])[:, :, None] * x[:, last].unsqueeze(1).unsqueeze(1),
        x[:, ids, ids + 1] * x[:2, ids[0], ids[:, :1]].sum(),
        torch.take(x, ids)
        + torch.take_along_dim(x, some[:1], -1)[0, 0]
        + torch.take_along_dim(x, some.flatten(), None)[0],
        x.gather(2, some) * torch.where((x > 0).gather(2, some), 2.0, 0.5),
    )


def moved(x: Tensor) -> tuple[Tensor, ...]:
    y = F.pad(x, (1, 2)) + F.pad(x, (0, 3), value=0.5) + F.pad(x, (2, 1), mode="reflect")
    z = F.pad(x, (1, 1), mode="circular") + F.pad(x, (2, 0), mode="replicate") + F.pad(x, (3, -1, 0, 0))
    return (
        y,
        z,
        x.roll((1, 2), (1, 2)) + x.roll(5) * x.flip(1, -1) + x.fliplr() + torch.stack((x, -x), 1).flipud()[:, 0],
    )


def accumulated(x: Tensor) -> tuple[Tensor, ...]:
    y = F.normalize(x, dim=1) * x.logsumexp(-1, keepdim=True) + x.norm(dim=(0, 2), keepdim=True) + x.norm(p=3)
    return y * torch.logsumexp(x, (0, 1)) + x.cumprod(1) + torch.linalg.vector_norm(x, 1, -1, True)


def contracted(x: Tensor) -> tuple[Tensor, ...]:
    y = torch.einsum("bsi,bti->bst", x, x.exp())
    z = torch.einsum("...ij,...kj,kl", x, x[0], x[0])
    w = torch.einsum("i...,i...", x[0], x[1]) + torch.einsum("bsi,bti,btj,cj->cs", x, x, x, x[0]).mean()
    return torch.einsum("bst, bsi -> tbi", y, x) + torch.einsum("bsi->bi", x), z * torch.einsum("bsi->sbi", x).sum(), w


FUNCTIONS = [
    split_and_join,
    masked,
    shaped,
    scalars,
    activations,
    reduced,
    inplace,
    no_gradient,
    tables,
    products,
    looked_up,
    indexed,
    moved,
    accumulated,
    contracted,
]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_operators(function: Callable[..., Any], agrees: Any) -> None:
    agrees(Lambda(function), (X,))


LABELS = torch.zeros(4, 3, dtype=torch.int64)

LOSSES: list[tuple[Callable[..., Any], tuple[Tensor, ...]]] = [
    (lambda x, t: F.cross_entropy(x.flatten(0, 1), t.flatten()), (LABELS,)),
    (lambda x, t: F.cross_entropy(x.mT, t, ignore_index=1), (LABELS,)),
    (lambda x, t: F.cross_entropy(x[:, 0], t, x[0, 0].detach().exp(), reduction="sum"), (LABELS[:, 0],)),
    (lambda x, t: F.nll_loss(F.log_softmax(x[:, 0], 1), t), (LABELS[:, 0],)),
    (lambda x, t: F.cross_entropy(x[:, 0], t.softmax(-1)), (torch.zeros(4, 6),)),
    (lambda x, t: F.binary_cross_entropy_with_logits(x, t.sigmoid()), (torch.zeros(4, 3, 6),)),
    (lambda x, t: F.nll_loss(x[:, 0], t, x[0, 0].detach().exp()), (LABELS[:, 0],)),
    (lambda x, t: F.cross_entropy(x.mT, t, x[0, 0].detach().exp(), label_smoothing=0.1), (LABELS,)),
    (
        lambda x, t: F.cross_entropy(x.mT, t, ignore_index=2, label_smoothing=0.1, reduction="none").sum(0).mean(),
        (LABELS,),
    ),
    (
        lambda x, t: F.cross_entropy(x.mT, t.mT.softmax(1), x[0, 0].detach().exp(), label_smoothing=0.1),
        (torch.zeros(4, 3, 6),),
    ),
    (lambda x, t: F.binary_cross_entropy(x.sigmoid(), t.sigmoid(), t[0].exp()), (torch.zeros(4, 3, 6),)),
    (
        lambda x, t: F.binary_cross_entropy_with_logits(
            x, t, t[:, :1].exp(), pos_weight=t[0, 0].exp(), reduction="sum"
        ),
        (torch.zeros(4, 3, 6),),
    ),
    (lambda x, t: F.kl_div(x.log_softmax(-1), t, reduction="none", log_target=True).sum(), (torch.zeros(4, 3, 6),)),
    (lambda x, t: F.kl_div(x.log_softmax(-1), t.softmax(-1), reduction="batchmean"), (torch.zeros(4, 3, 6),)),
    (lambda x, t: F.smooth_l1_loss(x, t, beta=0.3) + F.huber_loss(x, t[:, :1], delta=0.4), (torch.zeros(4, 3, 6),)),
    (lambda x, t: F.mse_loss(x, t), (torch.zeros(4, 3, 6),)),
    (lambda x, t: F.mse_loss(x, t, reduction="sum") + F.l1_loss(x, t), (torch.zeros(4, 3, 6),)),
    (lambda x, t: F.mse_loss(x, t, reduction="none").mean(-1).sum(), (torch.zeros(4, 3, 6),)),
]


@pytest.mark.parametrize("case", range(len(LOSSES)))
def test_losses(case: int, agrees: Any) -> None:
    loss, targets = LOSSES[case]
    graph = agrees(Lambda(loss), (X, *targets))
    assert not graph.of("projection")


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"dropout_p": 0.5, "is_causal": True}])
def test_attention(options: dict[str, Any], agrees: Any) -> None:
    def attend(x: Tensor) -> Tensor:
        q, k, v = x.unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, **options)

    graph = agrees(Lambda(attend, 24), (X,))
    assert len(graph.of("attention")) == (0 if "dropout_p" in options else 1)


@pytest.mark.parametrize("boolean", [True, False])
def test_attention_mask_and_groups(boolean: bool, agrees: Any) -> None:
    def attend(x: Tensor) -> Tensor:
        q, k, v = x.unflatten(-1, (8, 3)).transpose(1, 2).split((4, 2, 2), 1)
        mask = torch.ones(3, 3, dtype=torch.bool).tril()
        bias = mask if boolean else mask * -1.0
        return F.scaled_dot_product_attention(q, k, v, bias, enable_gqa=True)

    graph = agrees(Lambda(attend, 24), (X,))
    assert len(of(graph, "attention").inputs) == 4
    assert of(graph, "attention")["grouped"] and not graph.of("expand")  # keys and values are not copied


class Bags(nn.Module):
    """Sums with weights of their own, and means."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.EmbeddingBag(7, 6)
        self.sum = nn.EmbeddingBag(5, 6, mode="sum")
        self.scales = nn.Embedding(4, 1)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.mean(a) * self.sum(b, per_sample_weights=self.scales(b.clamp(max=3)).squeeze(-1))


def test_embedding_bags(agrees: Any) -> None:
    graph = agrees(Bags(), (torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4, 2, dtype=torch.int64)))
    assert [graph.nodes[i]["high"] for i in graph.of("input")] == [7, 5]
    assert [len(graph.nodes[i].inputs) for i in graph.of("embedding_bag")] == [2, 3]


def test_ranges_of_indices() -> None:
    def forward(x: Tensor, i: Tensor, j: Tensor, k: Tensor) -> Tensor:
        return x[:, i, j].sum() + x.gather(2, k.unsqueeze(-1)).sum()

    ids = torch.zeros(2, dtype=torch.int64)
    graph = capture(Lambda(forward), (X, ids, ids, LABELS))
    assert [graph.nodes[i].get("high") for i in graph.of("input")] == [None, 3, 6, 6]


class Conv1D(nn.Module):
    """Hugging Face's transposed linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 12))
        self.bias = nn.Parameter(torch.zeros(12))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, 4), self.weight).view(*x.shape[:-1], 12)


def test_addmm(agrees: Any) -> None:
    graph = agrees(Conv1D(), (X,))
    assert len(graph.of("matmul")) == 1 and len(graph.of("add")) == 1


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


class Norm(nn.Module):
    """Hugging Face's RMS norm."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3))


def test_rms_norm_is_recognised(agrees: Any) -> None:
    graph = agrees(nn.Sequential(nn.Linear(4, 4), Norm()), (X,))
    assert [n.op for n in graph.nodes if n.inputs] == ["linear", "rms_norm", "projection"]
    assert of(graph, "rms_norm")["eps"] == 1e-3


def test_weights(agrees: Any) -> None:
    ids = torch.zeros(4, 3, dtype=torch.int32)
    graph = agrees(Tied(), {"ids": ids, "labels": ids.long()})
    assert graph.aliases == (("scores.weight", "table.weight"),)
    nodes = {n.name: n for n in graph.nodes}
    assert nodes["table.weight"].gradient and not nodes["frozen.weight"].gradient
    assert "unused.weight" not in nodes
    assert nodes["kept"].op == nodes["passing"].op == "buffer"
    assert nodes["scores"].op == "linear" and nodes["frozen"].path == "frozen"
    assert (nodes["ids"].dtype, nodes["ids"]["high"]) == ("int32", 7)
    assert (nodes["labels"].dtype, nodes["labels"]["high"]) == ("int64", 7)


@dataclass
class Output:
    loss: Tensor
    scores: Tensor


@pytest.mark.parametrize("kind", [Output, lambda loss, scores: {"loss": loss, "scores": scores}])
def test_loss_of_an_output(kind: Callable[..., Any], agrees: Any) -> None:
    graph = agrees(Lambda(lambda x: kind(loss=x.square().mean(), scores=x)), (X,))
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
    graph = capture(Lambda(function), (X,))
    with pytest.raises(PartitaError, match=f"{op} '{op}' is tied to a batch of 4"):
        with_batch(graph, 8)


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
    assert PCG.from_json(graphs[0].to_json()) == graphs[0]


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


def test_encoder_layer(agrees: Any) -> None:
    agrees(nn.TransformerEncoderLayer(4, 2, 8, 0.1, batch_first=True), (X,))


def test_split_of_equal_pieces_is_a_dim() -> None:
    """Heads inside a fused projection stay free: the cut is along a dim of its own."""
    graph = capture(Lambda(lambda x: x.chunk(3, -1)[1]), (X,))
    assert of(graph, "slice").shape == (4, 3, 1, 2)


def test_names_of_nested_inputs() -> None:
    def forward(x: Tensor, pair: tuple[Tensor, Tensor], flag: bool = True) -> Tensor:
        return x + pair[0] * pair[1] if flag else x

    module = Lambda(torch.relu)
    module.forward = forward  # type: ignore[method-assign]
    found = Inputs.of(module, {"x": torch.ones(2), "pair": (torch.ones(2), torch.ones(2)), "flag": True})
    assert found.names == ("x", "pair_0", "pair_1")
    assert found.call(module, [torch.ones(2) * i for i in (1, 2, 3)]).tolist() == [7, 7]


BIG = torch.zeros(100)


def test_one_tensor_given_twice() -> None:
    found = Inputs.of(Tied(), (LABELS, LABELS))
    assert found.names == ("ids", "labels")
    graph = capture(Tied(), {"labels": LABELS, "ids": LABELS})
    assert of(graph, "embedding").inputs[1] == [n.name for n in graph.nodes].index("ids")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda x: x.cummax(0).values,
            r"aten.cummax.default .* module '\(the top\)', at .*test_capture.py:\d+: return",
        ),
        (lambda x: x[x > 0].sum(), "boolean mask"),
        (lambda x: x[torch.tensor([1, 0]), :, torch.tensor([1, 0])], "aten.index.Tensor .index tensors with a slice"),
        (lambda x: torch.einsum("bii->b", x[..., :3]), "repeated in one operand"),
        (lambda x: F.embedding_bag(LABELS[0], x[0], LABELS[0, :2], mode="max"), "only sums and means of bags"),
        (lambda x: F.embedding_bag(LABELS[0], x[0], torch.tensor([0, 1])), "bags must be of one size"),
        (lambda x: x + torch.rand(6), "aten.rand"),
        (lambda x: x * 2 if x.sum() > 0 else x, "cannot export Lambda"),
        (lambda x: x > 0, "no floating tensor"),
        (lambda x: x.detach(), "no trainable parameter"),
        (lambda x: x.flatten()[:1] + BIG, "register_buffer"),
        (lambda x: x.reshape(7, -1), "cannot export Lambda"),
    ],
)
def test_refusals(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        capture(Lambda(function), (X,))


@pytest.mark.parametrize(
    ("inputs", "words"), [((), "do not fit"), ({"y": X}, "do not fit"), (3, "not int"), ((X, 1, 2), "do not fit")]
)
def test_bad_inputs(inputs: Any, words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        capture(nn.Linear(4, 4), inputs)


def test_unknown_operators(agrees: Any) -> None:
    def unknown(x: Tensor) -> Tensor:
        return x.cumsum(1).topk(2, -1).values.cummax(0).values.rot90() * math.pi

    graph = agrees(Lambda(unknown), (X,), allow_unknown=True)
    assert {graph.nodes[i]["target"] for i in graph.of("opaque")} == {
        "aten.topk.default",
        "aten.cummax.default",
        "aten.rot90.default",
    }
    assert PCG.from_json(graph.to_json()) == graph


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

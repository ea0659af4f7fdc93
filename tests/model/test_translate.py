"""What calls become: the graph's nodes compute what torch does, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.model.capture.capture import capture
from partita.model.capture.decompositions import Decompositions
from partita.model.errors import PartitaError
from partita.model.graph.graph_file import graph_from_json, graph_to_json

from .functions import FUNCTIONS, LABELS, Caught, Checked, Chosen, Lambda, Warned, X, of


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_operators(function: Callable[..., Any], agrees: Any) -> None:
    agrees(Lambda(function), (X,))


def connected(x: Tensor, labels: Tensor, reduction: str = "mean", given: bool = False) -> Tensor:
    """CTC of the labels that a mask selects, as in transformers; rows without any are among them. 2 is the blank."""
    mask = (labels != 2) & (labels != -100)
    targets, counts = (labels, mask.sum(-1)) if given else (labels.masked_select(mask), mask.sum(-1))
    steps = 3 - labels[:, 0] % 2
    x = x.log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(x, targets, steps, counts, 2, reduction, zero_infinity=True).cos().sum()


ROWS = torch.tensor([[1, 2, 2], [2, 2, 2], [0, 2, 5], [4, 4, 4]])

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
    *((partial(connected, reduction=reduction), (ROWS,)) for reduction in ("mean", "none")),
    (partial(connected, given=True), (ROWS,)),
]


@pytest.mark.parametrize("case", range(len(LOSSES)))
def test_losses(case: int, agrees: Any) -> None:
    loss, targets = LOSSES[case]
    graph = agrees(Lambda(loss), (X, *targets), loss=None)
    assert not graph.of("projection")


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"dropout_p": 0.5, "is_causal": True}])
def test_attention(options: dict[str, Any], agrees: Any) -> None:
    def attend(x: Tensor) -> Tensor:
        q, k, v = x.unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, **options)

    graph = agrees(Lambda(attend, 24), (X,))
    assert of(graph, "attention").get("p", 0.0) == options.get("dropout_p", 0.0)
    if "dropout_p" in options:  # no fused kernel takes a mask
        assert not agrees(Lambda(attend, 24), (X,), dropout="counters").of("attention")


@pytest.mark.parametrize("boolean", [True, False])
def test_attention_mask_and_groups(boolean: bool, agrees: Any) -> None:
    def attend(x: Tensor) -> Tensor:
        q, k, v = x.unflatten(-1, (8, 3)).transpose(1, 2).split((4, 2, 2), 1)
        mask = torch.ones(3, 3, dtype=torch.bool).tril(1)
        bias = mask if boolean else mask * -1.0
        return F.scaled_dot_product_attention(q, k, v, bias, enable_gqa=True)

    graph = agrees(Lambda(attend, 24), (X,))
    assert len(of(graph, "attention").inputs) == 4
    assert of(graph, "attention")["grouped"] and not graph.of("expand")  # keys and values are not copied


@pytest.mark.parametrize("boolean", [True, False])
def test_queries_that_see_no_key(boolean: bool, agrees: Any) -> None:
    """As behind padding on the left; where masks are from counters, the softmax is written out."""

    def attend(x: Tensor) -> Tensor:
        q, k, v = x.unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        seen = (x[:, None, None, :, 0] > 0) & torch.ones(3, 3, dtype=torch.bool).tril()
        mask = seen if boolean else torch.where(seen, x[:, None, :, :3], -torch.inf)
        return F.scaled_dot_product_attention(q, k, v, mask, dropout_p=0.5)

    graph = agrees(Lambda(attend, 24), (X,), dropout="counters")
    assert len(graph.of("where")) == (2 if boolean else 3)
    assert agrees(Lambda(attend, 24), (X,)).of("attention")


A, B, C = torch.arange(4), torch.arange(3), torch.arange(6)


@pytest.mark.parametrize(
    ("select", "looked_up"),
    [
        (lambda x: x[A[:, None, None], B], 0),
        (lambda x: x[A, B[:, None]], 0),
        (lambda x: x[A[:, None], :, C], 0),
        (lambda x: x[:, B.to(torch.int32)], 0),
        (lambda x: x[A[:, None, None], :, C[:, None]], 0),
        (lambda x: x[:, B, B], 1),
        (lambda x: x[:, B[:, None], C[:5]], 1),
        (lambda x: x[:, B.flip(0)[:, None], C], 1),
        (lambda x: x[:, B.expand(2, 3)], 1),
    ],
)
def test_an_index_that_counts_a_dim_moves_it(select: Callable[[Tensor], Tensor], looked_up: int, agrees: Any) -> None:
    graph = agrees(Lambda(lambda x: select(x[..., :6])), (X,))
    assert len([n for n in graph.nodes if n.op in ("index", "embedding", "gather")]) == looked_up


def indexed(x: Tensor) -> Tensor:
    """As transformers makes them, packed sequences looked for included."""
    places = torch.arange(3)[None].expand(len(x), 3)
    sequence = (torch.cat([places[:, :1] - 1, places], 1).diff(dim=-1) != 1).cumsum(-1)
    rows, q, k = torch.arange(len(x))[:, None, None, None], torch.arange(3)[:, None], torch.arange(3)[None]
    return (sequence[rows, q] == sequence[rows, k]) & (k <= places[rows, q])


MASKS: list[tuple[Callable[[Tensor], Tensor], bool, int]] = [
    (indexed, True, 3),
    (lambda x: torch.ones(3, 3).tril()[None, None] == 1, True, 3),
    (lambda x: torch.full((3, 3), -torch.inf).triu(1), True, 3),
    (lambda x: torch.where(indexed(x), 0.0, torch.finfo(torch.float32).min), True, 3),
    (lambda x: torch.ones(3, 3, dtype=torch.bool) | (torch.arange(3) > 1), False, 3),
    (lambda x: x.new_zeros(4, 1, 3, 3), False, 3),
    (lambda x: torch.ones(3, 3, dtype=torch.bool).tril().triu(-1), False, 4),
    (lambda x: torch.full((3, 3), -1.0).triu(1), False, 4),
    (lambda x: torch.ones(3, 3, dtype=torch.bool).tril().expand(4, 1, 3, 3) & (x[:, :1, None, None, 0] < 9), False, 4),
]


@pytest.mark.parametrize("case", range(len(MASKS)))
def test_masks_are_known_by_value(case: int, agrees: Any) -> None:
    mask, causal, operands = MASKS[case]

    def attend(x: Tensor) -> Tensor:
        q, k, v = x.unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, mask(x))

    found = of(agrees(Lambda(attend, 24), (X,)), "attention")
    assert (found["causal"], len(found.inputs)) == (causal, operands)


def test_tensors_of_forward_are_expressions(agrees: Any) -> None:
    later, numbers = torch.full((9, 9), -1.0).triu(1), torch.arange(2, 200, 2)
    rows = torch.arange(9.0).view(9, 1).expand(9, 40).contiguous()

    def use(x: Tensor) -> Tensor:
        return x.sum() * (later.to(x) @ rows.to(x)).mean() + x[0, 0, numbers % 6].sum()

    graph = agrees(Lambda(use), (X,))
    assert len(graph.of("triu")) == 1 and len(graph.of("arange")) == 1 and not graph.of("buffer")


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


def test_padded_labels_keep_their_range() -> None:
    """As transformers shifts labels: padded with what does not count, then sliced."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Linear(3, 7)

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            shifted = F.pad(labels, (0, 1), value=-100)[:, 1:]
            return F.cross_entropy(self.scores(x).flatten(0, 1), shifted.flatten())

    graph = capture(Shifted(), (torch.zeros(4, 5, 3), torch.zeros(4, 5, dtype=torch.int64)))
    assert [graph.nodes[i].get("high") for i in graph.of("input")] == [None, 7]


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


def test_encoder_layer(agrees: Any) -> None:
    agrees(nn.TransformerEncoderLayer(4, 2, 8, 0.1, batch_first=True), (X,))


class Recurrent(nn.Module):
    """Outputs and last states of a network, then of cells in a loop."""

    def __init__(self, network: nn.Module, *cells: nn.Module) -> None:
        super().__init__()
        self.network, self.cells = network, nn.ModuleList(cells)

    def forward(self, x: Tensor) -> Tensor:
        y, last = self.network(x)
        states: list[Any] = [None for _ in self.cells]
        for step in range(2):
            for i, cell in enumerate(self.cells):
                states[i] = cell(y[:, step], states[i])
        parts = [y, *(last if isinstance(last, tuple) else (last,))]
        parts += [part for state in states for part in (state if isinstance(state, tuple) else (state,))]
        return sum((part.sin().sum() for part in parts), torch.zeros(()))


@pytest.mark.parametrize(
    "module",
    [
        Recurrent(nn.LSTM(4, 3, 2, batch_first=True), nn.LSTMCell(3, 5), nn.GRUCell(3, 2, bias=False)),
        Recurrent(nn.LSTM(4, 3, bidirectional=True), nn.RNNCell(6, 2)),
        Recurrent(nn.GRU(4, 3, 2, bidirectional=True), nn.RNNCell(6, 2, nonlinearity="relu")),
        Recurrent(nn.RNN(4, 3, nonlinearity="relu", batch_first=True)),
    ],
)
def test_recurrent_networks(agrees: Any, module: nn.Module) -> None:
    agrees(module, (X,))


def test_unknown_operators(agrees: Any) -> None:
    def unknown(x: Tensor) -> Tensor:
        return x.cumsum(1).nanmedian(0, True).values.nanmedian(1, True).values * math.pi

    graph = agrees(Lambda(unknown), (X,))
    assert {graph.nodes[i]["target"] for i in graph.of("opaque")} == {"aten.nanmedian.dim"}
    assert graph_from_json(graph_to_json(graph)) == graph


def test_split_of_equal_pieces_is_a_dim() -> None:
    """Heads inside a fused projection stay free: the cut is along a dim of its own."""
    graph = capture(Lambda(lambda x: x.chunk(3, -1)[1]), (X,), loss="projection")
    assert of(graph, "slice").shape == (4, 3, 1, 2)


@pytest.mark.parametrize(
    ("call", "notation"),
    [
        (lambda x: torch.cdist(x, 2 * x + 1), "y[i0, i1, i2] = f(x0[i0, i1, :], x1[i0, i2, :])"),
        (lambda x: torch.nansum(x, -1), "y[i0, i1] = sum(i2) f(x0[i0, i1, i2])"),
        (lambda x: x.rot90(4, (1, 2)), "y[i0, i1, i2] = f(x0[i0, i1, i2])"),
        (lambda x: torch.renorm(x, 2, 1, 1e-3), "y[d0, i0, d2] = f(x0[:, i0, :])[d0, d2]"),
        (lambda x: torch.linalg.svdvals(x), "y[i0, d1] = f(x0[i0, :, :])[d1]"),
    ],
)
def test_independence(call: Any, notation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decompositions, "of", lambda *call: None)
    graph = capture(Lambda(call), (X,), loss="projection", batch_dim=0)
    assert of(graph, "opaque")["notation"] == notation


def test_opaque_calls_are_pure() -> None:
    def random(x: Tensor) -> Tensor:
        return torch.poisson(x.exp())

    with pytest.raises(PartitaError, match=r"aten\.poisson.*it is random.*functions.py"):
        capture(Lambda(random), (X,), loss="projection")
    with pytest.raises(PartitaError, match=r"aten\.nanmedian.*no translation.*--allow-unknown"):
        capture(Lambda(lambda x: x.nanmedian(0).values), (X,), allow_unknown=False, loss="projection")


def composed(x: Tensor) -> Tensor:
    y = torch.addcmul(x.diff(dim=1).rot90(), x[:2, :1].diff(dim=0), x[0, 0], value=2)
    y = y * torch.einsum("bii->b", x[:2, :, :3])[:, None, None]
    return torch.logaddexp(y, F.glu(x).sum()) + torch.std_mean(F.cosine_similarity(x, x[:1] + 1, dim=-1))[0]


def test_calls_without_a_rule_are_decomposed(agrees: Any) -> None:
    agrees(Lambda(composed), (X,))


def written(x: Tensor) -> Tensor:
    """Writes through views, some of which copy; what other views then show."""
    y = x.clone()
    turned, flat, row = y.transpose(0, 1), y.reshape(-1), y[1]
    turned[2, :, ::2] *= 3
    flat[3:7].copy_(x[0, 0, :4])
    y.select(2, 1).fill_(0.5)
    row.unsqueeze(0).masked_fill_(x[:1] > 0, 0.2)
    y.mT.reshape(-1).zero_()  # a copy
    whole = torch.empty_like(x)
    whole[:, :, 0::3] = x[:, :, :2]
    whole[:, :, 1::3] = y[:, :, 2:4]
    whole[..., 2::3].copy_(flat[:2])
    out = x.new_zeros(3, 4, 6)
    with torch.no_grad():
        mean = x.mean(1)
        mean.chunk(2, -1)[1].add_(1)
    out[0] = mean
    out.movedim(0, 1)[:, 1:].add_(turned.movedim(0, 1)[:, 1:])
    F.dropout(F.hardtanh(out, inplace=True), 0.0, inplace=True)
    return out.squeeze_().sum(0) * whole.mean(1) + flat.unflatten(0, (4, 3, 6)).amax(1) + row[0] - turned[0]


def test_writes_in_place(agrees: Any) -> None:
    agrees(Lambda(written), (X,))


def test_assertions_on_data_are_left_out(agrees: Any) -> None:
    def checked(x: Tensor) -> Tensor:
        positive = (x > 0).sum().item()
        torch._check(positive <= x.numel())  # type: ignore[no-untyped-call]
        return x + 1

    agrees(Lambda(checked), (X,))


def test_unread_calls_after_a_region_without_gradient(agrees: Any) -> None:
    """What reads the only result of the part with gradient is unknown to torch.export."""

    def unread(x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x + 1
        with torch.enable_grad():  # type: ignore[no-untyped-call]
            z = x * y
            z[:, 0]
        return z

    agrees(Lambda(unread), (X,))


def detached(x: Tensor) -> Tensor:
    x.detach().mul_(2)
    return x


def unrecorded(x: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(2)
    return x


def expanded(x: Tensor) -> Tensor:
    x.unsqueeze(0).expand(2, *x.shape)[0].mul_(2)
    return x


@pytest.mark.parametrize(
    ("function", "words"),
    [(detached, "detached tensor"), (unrecorded, "within torch.no_grad"), (expanded, "an expanded tensor")],
)
def test_writes_that_are_refused(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(PartitaError, match=rf"write in place.*{words}.*functions.py:\d+: return"):
        capture(Lambda(function), (X,), loss="projection")


def test_sizes_that_depend_on_data_are_refused() -> None:
    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scores = nn.Linear(4, 4)

        def forward(self, x: Tensor, at: Tensor) -> Tensor:
            return torch.tensor_split(self.scores(x), at, dim=1)[0].sum()

    with pytest.raises(PartitaError, match=r"tensor_split.*a size depends on values.*test_translate\.py:\d+"):
        capture(Cut(), (torch.zeros(4, 4), torch.tensor([1, 2])))


class Masked(nn.Module):
    """Attention of five positions under a mask of known values, or a function of it."""

    def __init__(self, mask: Tensor, function: Callable[[Tensor], Tensor] | None = None, kept: bool = False) -> None:
        super().__init__()
        self.scores, self.function = nn.Linear(8, 8), function or nn.Identity()
        self.register_buffer("mask", mask, persistent=kept)

    def forward(self, x: Tensor) -> Tensor:
        q = self.scores(x).unsqueeze(1)
        return F.scaled_dot_product_attention(q, q, q, attn_mask=self.function(self.mask)).square().mean()


@pytest.mark.parametrize(
    ("mask", "causal", "operands"),
    [
        (torch.zeros(1, 1), False, 3),
        (torch.ones(5, 1, dtype=torch.bool), False, 3),
        (torch.tensor([[True, False, False, False, False]]), False, 4),
        (torch.ones(1, 1, 5, 5, dtype=torch.bool).tril(), True, 3),
        (torch.full((5, 5), -torch.inf).triu(1), True, 3),
    ],
)
def test_masks_are_known_at_the_size_of_the_scores(mask: Tensor, causal: bool, operands: int) -> None:
    found = of(capture(Masked(mask), (torch.zeros(4, 5, 8),)), "attention")
    assert (found["causal"], len(found.inputs)) == (causal, operands)


@pytest.mark.parametrize(
    ("mask", "function", "kept"),
    [
        (torch.ones(5, 5, dtype=torch.bool).tril(), None, True),  # a checkpoint may have another mask
        (torch.arange(5.0), lambda x: x[:, None] + 1e-9 > x, False),  # causal in float64, in float32 without diagonal
        (torch.arange(5), lambda x: (x[:, None] >= x) & (x[:, None] - x < 2), False),  # a sliding window
        (torch.tensor([0, 0, 0, 1, 1]), lambda x: (x[:, None] == x).tril(), False),  # packed sequences
        (torch.arange(5), lambda x: (x[:, None] >= x) | (x < 2), False),  # a prefix
    ],
)
def test_masks_that_stay(mask: Tensor, function: Callable[[Tensor], Tensor] | None, kept: bool, agrees: Any) -> None:
    graph = agrees(Masked(mask, function, kept), (torch.zeros(4, 5, 8),))
    assert [len(graph.nodes[i].inputs) for i in graph.of("attention")] == [4]


def test_equal_values_have_the_gradients_of_torch(agrees: Any) -> None:
    """Where a root of zero has none, torch's deviations and norms have 0."""
    agrees(Lambda(lambda x: (x * 0).std(1) + (x * 0).norm(dim=1) + (x * 0).var(1) + torch.std(x * 0)), (X,))


class Shifted(torch.autograd.Function):
    """Another function for True than for 1, which are equal."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: Any) -> Tensor:
        return x * 3 if by is True else x + by

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * 5, None


def test_equal_arguments_of_other_types_are_other_calls(agrees: Any) -> None:
    agrees(Lambda(lambda x: Shifted.apply(Shifted.apply(x, 1), True)), (X,))


class Straight(torch.autograd.Function):
    """The first input has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return x.round() + y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, gradient


def test_inputs_of_functions_without_gradient_are_detached(agrees: Any) -> None:
    graph = agrees(Lambda(lambda x: Straight.apply(x, x)), (X,))
    (node,) = graph.of("function")
    assert [graph.nodes[i].op == "detach" for i in graph.nodes[node].inputs] == [True, False]


def test_checks_that_only_raise_or_warn_pass(agrees: Any) -> None:
    inputs = (torch.zeros(2, 4), torch.zeros(2, dtype=torch.int64))
    graph = agrees(Checked(), inputs)
    assert [node.op for node in graph.nodes if node.op not in ("input", "parameter", "projection")] == ["linear"]
    for chosen in (Chosen(), Warned(), Caught()):
        with pytest.raises(PartitaError, match=r"depends on values of tensors .* at .*: if x.sum\(\) > 0"):
            capture(chosen, inputs, loss="projection")


def test_floats_of_whole_numbers_have_the_plans_dtype() -> None:
    module = Lambda(lambda x: x * (torch.arange(6) / 3) + torch.arange(6).sqrt())
    graph = capture(module, (X,), loss="projection")
    floats = [node for node in graph.nodes if node.op in ("scale", "sqrt")]
    assert [graph.nodes[node.inputs[0]].op for node in floats] == ["to", "to"]

"""How constructors begin: every value equals that of the module built on the CPU after the same seed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from partita.model.capture.initial import constructed, values_of
from partita.model.initial_values import InitialValues
from partita.model.mersenne_twister import advance, jump

SEED = 5


def replayed(initial: InitialValues, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors that the writes describe, drawn whole."""
    generator = torch.Generator().manual_seed(SEED)
    found = {name: torch.full_like(x, 7) for name, x in like.items()} | dict(initial.values)
    for write in initial.writes:
        if write.seed is not None:
            generator.manual_seed(write.seed)
        advance(generator, write.skipped)  # type: ignore[no-untyped-call]
        x = torch.empty(write.shape, dtype=getattr(torch, write.dtype))
        if write.drawn:
            getattr(x, f"{write.drawn}_")(*write.numbers[:2], generator=generator)
            for _ in range(write.rounds - 1):
                beyond = (x < write.numbers[2]) | (x > write.numbers[3])
                x = torch.where(beyond, torch.empty_like(x).normal_(*write.numbers[:2], generator=generator), x)
        else:
            x.copy_(torch.tensor(write.numbers, dtype=torch.float64).expand(max(1, x.numel())).reshape(write.shape))
        for name, arguments in write.calls:
            x = getattr(x, name)(*(getattr(torch, a) if isinstance(a, str) else a for a in arguments))
        if write.name is not None:
            own = found[write.name] if x.dim() else found[write.name].view(1)
            own[write.first : write.first + max(1, len(x) if x.dim() else 1)] = x
    return found


def begins(build: Callable[[], nn.Module]) -> InitialValues:
    """The recorded beginning, after it was compared with the module."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        module = build()
        wanted = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        before = torch.get_rng_state()
        initial = constructed(build, {name: tuple(x.shape) for name, x in wanted.items()}, SEED)
        assert torch.equal(before, torch.get_rng_state())
    assert initial.names == wanted.keys() and set(initial.stored) == initial.values.keys()
    found = replayed(initial, {name: x.detach() for name, x in wanted.items()})
    for name, x in wanted.items():
        assert found[name].dtype == x.dtype and torch.equal(found[name], x), name
    assert InitialValues.from_json(initial.to_json()) == initial
    return initial


class Norm(nn.Module):
    """Its scale is called gamma; with a LayerScale, a table with padding, GPT-2's scaled matrix, a gate's bias.

    It counts the weights of a layer on meta, which draws nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        assert sum(p.numel() for p in nn.Linear(3, 5, device="meta").parameters()) == 20
        self.gamma, self.beta = nn.Parameter(torch.ones(7)), nn.Parameter(torch.zeros(7))
        self.scale = nn.Parameter(1e-5 * torch.ones(7))
        self.table = nn.Embedding(9, 6, padding_idx=2)
        self.output = nn.Linear(6, 20)
        nn.init.normal_(self.output.weight, std=0.02 / 24**0.5)
        nn.init.zeros_(self.output.bias)
        self.lstm = nn.LSTM(3, 4)
        self.lstm.bias_ih_l0.data[4:8].fill_(1.0)
        self.norm = nn.BatchNorm1d(4)
        self.tied = nn.Linear(6, 9, bias=False)
        self.tied.weight = self.table.weight


class Schemes(nn.Module):
    """All kinds of schemes, in one stream."""

    def __init__(self) -> None:
        super().__init__()
        rates = [x.item() for x in torch.linspace(0, 0.1, 3)]
        self.truncated = nn.Parameter(torch.zeros(1, 5, 6))
        nn.init.trunc_normal_(self.truncated, std=0.02 + 0 * rates[1])
        self.rejected, self.narrowly = nn.Parameter(torch.zeros(20, 6)), nn.Parameter(torch.zeros(90, 31))
        nn.init.trunc_normal_(self.rejected)
        nn.init.trunc_normal_(self.narrowly.data[3:], mean=0.1, std=0.5, a=-0.5, b=0.9)
        self.narrowly.data.mul_(0.25)
        self.xavier, self.kaiming = (nn.Parameter(torch.empty(n, 8, 3)) for n in (8, 5))
        nn.init.xavier_uniform_(self.xavier)
        nn.init.kaiming_normal_(self.kaiming)
        self.halved = nn.Parameter(torch.randn(30, 4) * 0.5 + 1)
        self.narrow = nn.Parameter(torch.randn(33, 3).to(torch.bfloat16))
        self.sixteen = nn.Parameter(torch.randn(5, 7, dtype=torch.bfloat16))
        self.wide = nn.Linear(4, 30, dtype=torch.float64)
        self.attention = nn.MultiheadAttention(8, 2)
        self.constant = nn.Parameter(torch.zeros(()) + 2.5)
        self.register_buffer("inverse", 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8)))


class Stream(nn.Module):
    """Draws of a few normal numbers, which come in pairs, between draws that no weight keeps; other seeds."""

    def __init__(self) -> None:
        super().__init__()
        for n in (3, 4, 1, 5):
            self.register_parameter(f"few{n}", nn.Parameter(torch.randn(n)))
            torch.randn(n)
            nn.Linear(3, n)
        with torch.random.fork_rng():
            torch.manual_seed(1)
            self.forked = nn.Linear(4, 5)
        torch.manual_seed(2)
        self.seeded = nn.Linear(5, 5)


class Stored(nn.Module):
    """What no rank makes from its rows alone."""

    def __init__(self) -> None:
        super().__init__()
        self.orthogonal = nn.Parameter(torch.empty(9, 9))
        nn.init.orthogonal_(self.orthogonal)
        self.far = nn.Parameter(torch.empty(20, 6))
        nn.init.trunc_normal_(self.far, a=2.5, b=3.0)
        self.columns = nn.Parameter(torch.randn(16, 8))
        self.columns.data[:, 1] = 0
        self.after = nn.Linear(3, 3)
        self.register_buffer("mask", torch.ones(9, 9).tril().bool())


def test_scale_of_a_norm_and_others() -> None:
    initial = begins(Norm)
    assert not initial.stored and len(initial.writes) == len(initial.names) + 2  # a row of zeros, a gate's bias
    of = {write.name: write for write in initial.writes}
    assert of["gamma"].numbers == (1.0,) and of["scale"].numbers == (1e-05,)
    assert (of["table.weight"].first, of["table.weight"].numbers) == (2, (0.0,))
    assert of["output.weight"].skipped == 6 * 20 + 20 and of["output.weight"].kind == "normal"


@pytest.mark.parametrize("build", [Schemes, Stream])
def test_ranks_draw_whatever_the_scheme(build: Callable[[], nn.Module]) -> None:
    assert not begins(build).stored


def test_the_rest_is_stored() -> None:
    assert set(begins(Stored).stored) == {"orthogonal", "far", "columns", "mask"}


def test_what_is_never_set_has_no_value() -> None:
    class Unset(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.set = nn.Linear(2, 2)
            self.unset = nn.Parameter(torch.empty(4, 4))

    names: dict[str, Any] = {"set.weight": (2, 2), "unset": (4, 4)}
    assert constructed(Unset, names, SEED).names == {"set.weight"}


def test_a_constructor_that_needs_values_runs_with_memory() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)
            self.scaled = nn.Parameter(torch.from_numpy(self.linear.weight.detach().numpy() * 2))

    assert begins(Table).stored == ("scaled",)


def test_draws_of_unknown_count_are_made_with_memory() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Linear(8, 8)
            self.register_buffer("order", torch.randperm(80))
            self.after = nn.Linear(8, 9)

    assert set(begins(Mixed).stored) == {"order", "after.weight"}  # and nine biases are listed


def test_what_is_not_finite_is_stored() -> None:
    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mask", torch.full((9, 9), -torch.inf))

    assert begins(Causal).stored == ("mask",)


def test_values_of_a_live_module() -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2, device="meta"))
    initial = values_of(module, {"0.weight", "1.weight"})
    assert initial.stored == ("0.weight",) and torch.equal(initial.values["0.weight"], module[0].weight)


@pytest.mark.parametrize("before", [0, 1, 624, 1000])
def test_a_jump_is_as_many_draws(before: int) -> None:
    jumped, drawn = (torch.Generator().manual_seed(7) for _ in range(2))
    for generator in (jumped, drawn):
        torch.empty(before).uniform_(generator=generator)
    torch.empty(123_456).uniform_(generator=drawn)
    jump(jumped, 123_456)  # type: ignore[no-untyped-call]
    assert torch.equal(torch.empty(3000).normal_(generator=jumped), torch.empty(3000).normal_(generator=drawn))

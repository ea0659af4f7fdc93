"""Equal layers that are traced twice give the graph that they give when all are traced."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.model.capture import capture as capturing
from partita.model.capture.capture import capture
from partita.model.capture.equal_layers import equal_layers
from partita.model.capture.inputs import Inputs
from partita.model.capture.objective import TrainedModule
from partita.model.errors import PartitaError
from partita.model.graph.pcg import PCG
from partita.model.zoo import entry, zoo

from ..levels import some

X = torch.zeros(4, 6)


def graph(module: nn.Module, inputs: Any, layers: dict[str, int]) -> PCG:
    """The graph with these layers repeated, or the PartitaError that says why they cannot be."""
    found = Inputs.of(module, inputs)
    model = TrainedModule(module, inputs, "projection")
    return capturing._captured(model, found, max(2, found.batch), layers, False, "batch")


def same(module: nn.Module, inputs: Any) -> PCG:
    """The graph, which is the same both ways."""
    layers = equal_layers(module)
    assert layers
    repeated, whole = graph(module, inputs, layers), graph(module, inputs, {})
    for ours, theirs in zip(repeated.nodes, whole.nodes, strict=True):
        assert ours == theirs
    assert repeated == whole and repeated.aliases == whole.aliases
    return repeated


def twin(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A small twin, deep enough for equal layers."""
    sizes = entry(name).sizes(small=True)
    deeper = {"layers": 4, "depths": (2, 6), "blocks": (1, 5), "tower": 4}
    sizes |= {name: size for name, size in deeper.items() if isinstance(sizes.get(name), type(size))}
    if name == "inception-v3":
        sizes["blocks"] = entry(name).small["blocks"]
    taken = {name: sizes[name] for name in inspect.signature(entry(name).make).parameters}
    inputs = {}
    with torch.device("meta"):
        module = entry(name).make(**taken).train()
        for argument, given in entry(name).inputs.items():
            shape = [sizes[dim] if isinstance(dim, str) else dim for dim in given.shape]
            counts = [len(size) if isinstance(size, tuple) else size for size in shape]
            inputs[argument] = torch.zeros(2, *counts, dtype=torch.int64 if given.integer else None)
    return module, inputs


def distinct() -> list[str]:
    """Models whose twins differ."""
    return list({(entry(name).make, str(entry(name).small)): name for name in reversed(zoo())}.values())


@pytest.mark.parametrize("name", some([name for name in distinct() if equal_layers(twin(name)[0])], 6))
def test_zoo(name: str) -> None:
    same(*twin(name))


def test_every_family_of_transformers_has_equal_layers() -> None:
    families = {name.partition("-")[0] for name in zoo() if equal_layers(twin(name)[0])}
    assert families >= {"bert", "gpt2", "gpt3", "llama", "swin", "mbart", "alphafold2", "resnext"}


class Layer(nn.Module):
    """Counts how often it is traced; keyword arguments, a mask given twice, a tensor and a number returned."""

    traced = 0

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.drop = nn.Dropout(0.2)
        self.tied = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Dropout(0.1))
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: Tensor, *, gate: Tensor, times: int, more: dict[str, Tensor]) -> tuple[Tensor, dict[str, Any]]:
        Layer.traced += 1
        assert gate is more["gate"]
        with torch.no_grad():
            fixed = self.tied[0](x).sigmoid()
        y = self.drop(self.first(x)) * gate + F.dropout(more["other"], 0.3) * fixed * times
        return self.norm(x + self.tied(y)), {"gate": y, "times": times}


class Passes(nn.Module):
    """Passes over the same layers, of which only the last has a gradient and the first may have other shapes."""

    def __init__(self, layers: int, passes: int = 1) -> None:
        super().__init__()
        self.passes = passes
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        gate = x.sigmoid()
        for number in range(self.passes):
            with torch.set_grad_enabled(number == self.passes - 1):
                for place, layer in enumerate(self.layers):
                    x, found = layer(x, gate=gate, times=2 + (place == 2), more={"other": x, "gate": gate})
                    gate = found["gate"]
        return x.mean() + gate.sum()


def test_arguments_and_results_of_many_kinds() -> None:
    found = same(Passes(6).train(), (X,))
    assert [node["site"] for node in found.nodes if node.op == "dropout"] == list(range(18))
    names = {node.name for node in found.nodes}
    assert {
        "layers.5.first",
        "layers.5.norm",
        "layers.5.norm.running_mean",
        "layers.5.tied.0_2",
    } - names == set()


def test_layers_are_traced_twice_for_each_kind_of_call() -> None:
    """The first call looks different, since its input has no gradient, and the third, with another number."""
    module = Passes(8)
    layers = equal_layers(module)
    assert sorted(layers) == [f"layers.{i}" for i in range(8)]
    Layer.traced = 0
    graph(module, (X,), layers)
    assert Layer.traced == 4
    Layer.traced = 0
    graph(module.eval(), (X,), {})
    assert Layer.traced == 8


def test_regions_in_passes_without_gradient_are_traced_whole() -> None:
    """torch.export cuts a region without gradient where another one begins, in the middle of a layer."""
    module = Passes(4, passes=3).eval()
    with pytest.raises(PartitaError, match=r"layers\.3 looks like a layer"):
        graph(module, (X,), equal_layers(module))
    assert capture(module, (X,), loss="projection") == graph(module, (X,), {})


class Block(nn.Module):
    """A linear map, then what `extra` does with the module, the input and its result."""

    def __init__(self, extra: Callable[[Any, Tensor, Tensor], Tensor], width: int = 6) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.extra = extra
        self.kept: Any = None

    def forward(self, x: Tensor) -> Tensor:
        return self.extra(self, x, self.linear(x))


class Stack(nn.Module):
    def __init__(self, extra: Callable[[Any, Tensor, Tensor], Tensor], blocks: int = 5) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(extra) for _ in range(blocks))
        self.store: dict[str, Tensor] = {}
        for block in self.blocks:
            block.store = self.store

    def forward(self, x: Tensor) -> Tensor:
        self.store.clear()
        self.store["outside"] = x.cos()
        for block in self.blocks:
            x = block(x)
        return x + sum(block.kept for block in self.blocks if block.kept is not None)


def reads_outside(block: Any, x: Tensor, y: Tensor) -> Tensor:
    return y + block.store["outside"]


def keeps(block: Any, x: Tensor, y: Tensor) -> Tensor:
    block.kept = y.sin()
    return y


def caches(block: Any, x: Tensor, y: Tensor) -> Tensor:
    if "cache" not in block.store:
        block.store["cache"] = torch.arange(6).cos()
    return y + block.store["cache"]


def in_place(block: Any, x: Tensor, y: Tensor) -> Tensor:
    z = y[..., ::2]
    y.mul_(2)
    y[..., 0].add_(z[..., 1])
    return y + 0


def in_place_outside(block: Any, x: Tensor, y: Tensor) -> Tensor:
    x.add_(y)
    return y + 0


def same_tensor(block: Any, x: Tensor, y: Tensor) -> Tensor:
    x.sin().mul_(2).cos()  # a write that a call reads
    return x


def constants(block: Any, x: Tensor, y: Tensor) -> Tensor:
    return y * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


@pytest.mark.parametrize("extra", [reads_outside, caches, in_place_outside, same_tensor, constants])
def test_layers_that_are_more_than_functions_are_traced_whole(extra: Callable[..., Tensor]) -> None:
    module = nn.Sequential(nn.Linear(6, 6), Stack(extra))
    layers = equal_layers(module)
    assert len(layers) == 5
    with pytest.raises(PartitaError):
        graph(module, (X,), layers)
    assert capture(module, (X,), loss="projection") == graph(module, (X,), {})


def test_layers_that_write_in_place_what_they_made_are_repeated() -> None:
    same(Stack(in_place), (X,))


def test_a_layer_that_leaves_something_behind_is_not_repeated() -> None:
    assert sum(node.op == "sin" for node in same(Stack(keeps), (X,)).nodes) == 5


def test_refusals_are_those_of_the_whole() -> None:
    def unknown(block: Any, x: Tensor, y: Tensor) -> Tensor:
        return torch.linalg.inv(y[:, :4]) @ y

    module = Stack(unknown, 3)
    with pytest.raises(PartitaError, match=r"'blocks.0', at .*test_repeat.py:\d+: return self.extra"):
        capture(module, (X,), allow_unknown=False, loss="projection")


def plain(block: Any, x: Tensor, y: Tensor) -> Tensor:
    return x + y.relu()


def changed(what: Callable[[nn.Module], object]) -> dict[str, int]:
    module = Stack(plain, 4)
    what(module.blocks[3])
    return equal_layers(module)


@dataclass
class Setting:
    """Not a plain value: two of them are not the same."""

    width: int = 6


@pytest.mark.parametrize(
    "change",
    [
        lambda block: block.eval(),
        lambda block: block.linear.requires_grad_(False),
        lambda block: setattr(block, "linear", nn.Linear(6, 6, bias=False)),
        lambda block: setattr(block, "kept", 1),
        lambda block: setattr(block, "extra", reads_outside),
        lambda block: setattr(block, "setting", Setting()),
        lambda block: block.linear.register_forward_hook(lambda *_: None),
        lambda block: block.register_buffer("table", torch.zeros(2)),
    ],
)
def test_what_makes_a_layer_another(change: Callable[[Any], object]) -> None:
    assert sorted(changed(change)) == ["blocks.0", "blocks.1", "blocks.2"]


def test_what_is_known_by_two_names_is_not_repeated() -> None:
    module = Stack(plain, 5)
    module.blocks[1].linear.weight = module.blocks[4].linear.weight
    assert sorted(equal_layers(module)) == ["blocks.0", "blocks.2", "blocks.3"]
    found = same(module, (X,))
    assert found.aliases == (("blocks.4.linear.weight", "blocks.1.linear.weight"),)

"""The zoo: sizes as published, twins that agree with their graphs, and references to models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from partita.model.capture import capture
from partita.model.errors import PartitaError
from partita.model.load import load_module
from partita.model.zoo import build, entry, zoo

SIZES = {  # parameters, by hand from the published shapes
    "mlp": 16 * (8192 * 8192 + 8192),
    "bert-large": 335_174_458,
    "gpt2": 124_439_808,
    "llama-7b": 6_738_415_616,
}


@pytest.mark.parametrize("name", zoo())
def test_small_twin_is_its_graph(name: str, agrees: Any) -> None:
    module, inputs = build(name, small=True, device="cpu")
    graph = agrees(module, inputs, batch=entry(name).small_batch)
    assert graph.batch == 12
    assert {graph.nodes[i].name for i in graph.of("input")} == set(inputs)


@pytest.mark.parametrize("name", SIZES)
def test_full_size(name: str) -> None:
    module, _ = build(name)
    assert all(p.is_meta for p in module.parameters())
    assert sum(p.numel() for p in module.parameters()) == SIZES[name]


def test_billions_of_gpt3() -> None:
    def billions(name: str) -> float:
        return round(sum(p.numel() for p in build(name)[0].parameters()) / 1e9, 1)

    assert (billions("gpt3-1.3b"), billions("gpt3-15b")) == (1.3, 15.4)


def test_capture_of_a_full_size() -> None:
    graph = capture(*build("gpt2"), batch=4)
    assert len(graph.of("attention")) == 0  # dropout makes attention explicit
    assert len(graph.of("softmax")) == 12
    assert len(graph.nodes) < 600


def test_default_batch() -> None:
    assert entry("bert-large").default_batch(False, 6) == 24  # 4 a device
    assert entry("gpt2").default_batch(False, 8) == 512
    assert entry("gpt2").default_batch(True, 8) == 12


def test_sequence() -> None:
    module, inputs = build("gpt2", small=True, sequence=20)
    assert inputs["ids"].shape[1] == 20
    assert module.position_embedding.weight.shape == (20, 48)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: build("gpt-2"), "did you mean gpt2"),
        (lambda: build("mlp", sequence=8), "no sequence"),
        (lambda: build("gpt2", sequence=0), "not positive"),
        (lambda: load_module("nowhere.py:f"), "no file 'nowhere.py'"),
        (lambda: load_module("model.py"), "model.py:factory"),
    ],
)
def test_refusals(call: Any, words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        call()


MODEL = """
import torch
from torch import nn

def make(sequence=5):
    module = nn.Linear(4, sequence)
    module.register_buffer("table", torch.arange(3.0), persistent=False)
    return module, (torch.zeros(2, 4),)

def needs_values(small=False):
    assert torch.linspace(0, 1, 3).tolist()[1] == 0.5
    return nn.Linear(4, 2 if small else 3), {"input": torch.zeros(2, 4)}

def raises():
    return 1 / 0

def nothing():
    return nn.Linear(1, 1)

number = 7
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MODEL)
    return path


def test_factories(file: Path) -> None:
    module, inputs = load_module(f"{file}:make", sequence=7)
    assert module.weight.is_meta and module.weight.shape == (7, 4)
    assert len(inputs) == 1
    assert load_module(f"{file}:make", device="cpu")[0].table.tolist() == [0, 1, 2]
    assert load_module(f"{file}:needs_values", small=True)[0].weight.shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("raises", {}, "ZeroDivisionError at line 15"),
        ("nothing", {}, r"must return \(module, example inputs\), not Linear"),
        ("number", {}, "no function 'number'; it has make, needs_values, raises, nothing"),
        ("make", {"small": True}, "takes no 'small'"),
    ],
)
def test_bad_factories(file: Path, name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        load_module(f"{file}:{name}", **options)


def test_file_that_does_not_compile(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("x = 1\ny = (\n")
    with pytest.raises(PartitaError, match="SyntaxError at line 2"):
        load_module(f"{path}:f")

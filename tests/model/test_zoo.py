"""The zoo: sizes as published, twins that agree with their graphs, and references to models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from partita.model.capture.capture import capture
from partita.model.capture.load import load_module
from partita.model.errors import PartitaError
from partita.model.zoo import build, entry, zoo

from ..levels import some


def swin(width: int, heads: int, *depths: int) -> int:
    """Layers of 12 w^2 + 13 w and a bias for 95 x 95 offsets, merges of 8 w^2 + 8 w, embedding and scores."""
    total = 48 * width + 3 * width + 8 * width * 1002 + 1000
    for stage, depth in enumerate(depths):
        w, h = width << stage, heads << stage
        total += depth * (12 * w * w + 13 * w + 95 * 95 * h) + (stage < 3) * (8 * w * w + 8 * w)
    return total


def mbart(width: int, pairs: int) -> int:
    """An encoder layer has 12 w^2 + 13 w, a decoder layer 16 w^2 + 19 w; one table, two of positions, four norms."""
    return (500_000 + 2 * 1024 + 8) * width + pairs * (28 * width * width + 32 * width)


def alphafold(layers: int, m: int, heads: int, z: int, outer: int) -> int:
    """Weights of a block, its biases and norms, then embedder, norms of recycling and the two heads."""
    block = 18 * m * m + 2 * m * outer + outer * outer * z + 30 * z * z + z * heads + 2 * z * (z // 32)
    block += 23 * m + 2 * outer + 44 * z
    return layers * block + (2 * 23 + 2 + 23) * m + (2 * 23 + 65 + 2 + 64) * z + 23 + 64


SIZES = {  # parameters, by hand from the published shapes
    "mlp": 16 * (8192 * 8192 + 8192),
    "bert-large": 335_174_458,
    "gpt2": 124_439_808,
    "llama-7b": 6_738_415_616,
    "llama-70b": 70_553_706_496,
    "llama-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "gpt-1008b": 128 * (12 * 25600**2 + 13 * 25600) + (51200 + 2048 + 2) * 25600,
    "swin-1.8b": swin(512, 16, 2, 2, 26, 2),
    "swin-6.6b": swin(768, 24, 2, 2, 40, 4),
    "swin-13b": swin(1024, 32, 2, 2, 48, 4),
    "swin-30b": swin(1536, 32, 2, 2, 58, 2),
    "mbart-4.7b": mbart(3072, 12),
    "mbart-9.5b": mbart(4096, 16),
    "mbart-20b": mbart(5120, 24),
    "mbart-32b": mbart(6144, 28),
    "alphafold2-87m": alphafold(48, 256, 8, 128, 32),
    "alphafold2-930m": alphafold(64, 512, 16, 512, 64),
    "alphafold2-2.4b": alphafold(96, 1024, 32, 384, 64),
    "alphafold2-3.2b": alphafold(128, 1024, 32, 384, 64),
    "resnext-50": 25_028_904,
    "inception-v3": 23_834_568,
    "unet": 31_036_546,
    "dlrm": 33_762_577 * 128
    + (13 * 512 + 512 * 256 + 256 * 128 + 512 + 256 + 128)
    + (479 * 1024 + 1024 * 1024 + 1024 * 512 + 512 * 256 + 256 + 1024 + 1024 + 512 + 256 + 1),
    "xdl": 33_762_577 * 128 + (26 * 128 * 1024 + 3 * 1024 * 1024 + 1024) + (4 * 1024 + 1),
    "candle-uno": 4192 * (942 + 2 * 5270 + 2 * 2048 + 5 * 7 * 4192 + 5 * 8)
    + 4192 * (5 * 4192 + 2 + 79 * 4192 + 80)
    + (4192 + 1),
}


@pytest.mark.parametrize("name", some(zoo()))
def test_small_twin_is_its_graph(name: str, agrees: Any) -> None:
    module, inputs = build(name, small=True, device="cpu")
    graph = agrees(module, inputs, batch=entry(name).small_batch, loss=None)
    assert graph.batch == 12
    assert {graph.nodes[i].name for i in graph.of("input")} == set(inputs)


@pytest.mark.parametrize("name", SIZES)
def test_full_size(name: str) -> None:
    module, _ = build(name)
    assert all(p.is_meta for p in module.parameters())
    assert sum(p.numel() for p in module.parameters()) == SIZES[name]


def billions(name: str) -> float:
    return sum(p.numel() for p in build(name)[0].parameters()) / 1e9


def test_billions_of_gpt3() -> None:
    assert [round(billions(f"gpt3-{size}"), 1) for size in ("1.3b", "2.6b", "6.7b", "15b")] == [1.3, 2.7, 6.7, 15.4]


@pytest.mark.parametrize("name", [n for n in zoo() if n.startswith(("swin", "mbart", "alphafold2"))])
def test_a_size_is_what_the_name_says(name: str) -> None:
    said = name.rpartition("-")[2]
    assert billions(name) == pytest.approx(float(said[:-1]) / {"b": 1, "m": 1000}[said[-1]], rel=0.025)


def test_capture_of_a_full_size() -> None:
    graph = capture(*build("gpt2"), batch=4)
    assert len(graph.of("attention")) == 12 and not graph.of("softmax")
    assert len(graph.nodes) < 450


def test_default_batch() -> None:
    assert entry("bert-large").default_batch(False, 6) == 24  # 4 a device
    assert entry("gpt2").default_batch(False, 8) == 512
    assert entry("gpt2").default_batch(True, 8) == 12


def test_the_page_lists_every_model_with_its_settings() -> None:
    page = Path(__file__).parents[2] / "docs" / "zoo.md"
    rows = [line.strip("|\n ").split(" | ") for line in page.read_text().splitlines() if line.startswith("| `")]
    listed = {name.strip(" `"): row[2:] for row in rows for name in row[0].split(",")}
    assert set(listed) == set(zoo())
    for name, (batch, _, settings, machine) in listed.items():
        known = entry(name)
        assert batch == f"{known.batch}{' a device' if known.per_device else ''}", name
        assert (settings, machine) == (f"{known.dtype}, {known.optimizer}", known.machine), name


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
        ("nothing", {}, r"must return .*\(module, example inputs, loss\), not Linear"),
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

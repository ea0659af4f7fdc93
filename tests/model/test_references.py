"""References to models of other packages: which scheme loads them, small configs, inputs with labels."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from partita.model.capture.load import load_module
from partita.model.capture.references.config_shrinker import TRIED, shrunk, smaller
from partita.model.capture.references.huggingface import trainable
from partita.model.capture.references.huggingface_inputs import example_inputs, sequence_of
from partita.model.capture.references.image_classifiers import AUXILIARY, with_cross_entropy
from partita.model.capture.references.scheme import SCHEMES, weights_on
from partita.model.errors import PartitaError


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_missing_package_is_refused_with_the_command(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, SCHEMES[scheme].package, None)
    with pytest.raises(PartitaError, match=rf"needs \w+: pip install 'partita\[{scheme}\]'"):
        load_module(f"{scheme}:resnet50")


def test_a_package_that_fails_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(PartitaError, match="timm cannot be imported: RuntimeError: operator torchvision::nms does not"):
        load_module("timm:resnet50")


@dataclass
class Config:
    """The keys of a decoder with grouped keys and experts."""

    model_type = "decoder"
    vocab_size: int = 151936
    hidden_size: int = 2304
    intermediate_size: int = 9216
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    head_dim: int = 256
    num_experts: int = 64
    num_experts_per_tok: int = 8
    max_position_embeddings: int = 8192
    eos_token_id: int = 151643
    rope_theta: float = 1e6
    tie_word_embeddings: bool = True
    layer_types: list[str] = field(default_factory=lambda: ["local", "local", "full"] * 2)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


SMALLEST = {group: limits[0] for group, limits in TRIED.items()}


def test_a_small_config_has_few_of_everything() -> None:
    small = smaller(Config(), SMALLEST)
    assert (small.hidden_size, small.intermediate_size, small.num_hidden_layers) == (72, 288, 2)
    assert (small.num_attention_heads, small.num_key_value_heads, small.head_dim) == (4, 2, 16)
    assert (small.num_experts, small.num_experts_per_tok) == (4, 2)
    assert small.layer_types == ["local", "full"]  # every kind of layer is left
    assert small.eos_token_id < small.vocab_size == 256
    assert (small.rope_theta, small.tie_word_embeddings) == (1e6, True)
    assert smaller(Config(), {}) == Config()


def test_heads_of_a_state_space_are_divided_as_those_of_attention() -> None:
    @dataclass
    class Hybrid(Config):
        mamba_n_heads: int = 18
        mamba_d_head: int = 256
        mamba_expand: int = 2

    small = smaller(Hybrid(), SMALLEST)
    assert small.mamba_n_heads * small.mamba_d_head == small.mamba_expand * small.hidden_size


def test_what_fits_is_found_by_trying() -> None:
    """Heads are widened until the model runs; else what does not fit is left as it was."""
    found = shrunk(Config(), lambda config, whole: config.head_dim >= 48)
    assert (found.head_dim, found.num_hidden_layers, found.num_experts) == (64, 2, 4)
    found = shrunk(Config(), lambda config, whole: not whole and config.num_experts in (64, 8))
    assert (found.num_experts, found.num_experts_per_tok, found.head_dim, found.vocab_size) == (8, 2, 16, 256)
    assert shrunk(Config(), lambda config, whole: False) == Config()


def test_widths_of_stages_and_of_parts() -> None:
    @dataclass
    class Vision:
        model_type = "vision"
        embed_dims: tuple[int, ...] = (64, 128, 320, 512)
        depths: tuple[int, ...] = (3, 4, 6, 3)
        num_heads: tuple[int, ...] = (1, 2, 5, 8)
        image_size: int = 224
        patch_size: int = 16
        num_channels: int = 3

        def to_dict(self) -> dict[str, Any]:
            return dict(vars(self))

    @dataclass
    class Both:
        model_type = "both"
        text_config: Any = field(default_factory=Config)
        vision_config: Any = field(default_factory=Vision)
        projection_dim: int = 1152

        def to_dict(self) -> dict[str, Any]:
            return dict(vars(self))

    small = smaller(Both(), SMALLEST)
    assert small.text_config.hidden_size == 72
    assert small.projection_dim == 32  # divided as the text's widths
    vision = small.vision_config
    assert (vision.embed_dims, vision.depths, vision.num_heads) == ((16, 32, 80, 128), (2, 1, 1, 1), (1, 2, 5, 8))
    assert (vision.image_size, vision.patch_size, vision.num_channels) == (32, 16, 3)


class Classifier(nn.Module):
    """A head of a decoder, by what its forward takes."""

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> None: ...


def test_inputs_have_labels_and_no_mask_unless_asked() -> None:
    config = SimpleNamespace(max_position_embeddings=514, num_labels=2)
    assert [sequence_of(config, *given) for given in ((None, False), (None, True), (600, False))] == [512, 32, 600]
    inputs = example_inputs(Classifier(), config, 16)
    assert {name: tuple(x.shape) for name, x in inputs.items()} == {"input_ids": (2, 16), "labels": (2, 16)}
    masked = example_inputs(Classifier(), config, 16, ["attention_mask"])
    assert masked["attention_mask"].all()
    of_sample = type("ForSequenceClassification", (Classifier,), {})()
    assert example_inputs(of_sample, config, 16)["labels"].shape == (2,)
    with pytest.raises(PartitaError, match="takes no labels, so it computes no loss"):
        example_inputs(nn.Linear(2, 2), config, 16)
    with pytest.raises(PartitaError, match="no example is known for graph"):
        example_inputs(Classifier(), config, 16, ["graph"])


def test_a_config_for_training() -> None:
    inner = SimpleNamespace(dtype=torch.bfloat16, use_cache=True, to_dict=dict)
    config = SimpleNamespace(torch_dtype="bfloat16", sub_configs={"body": None}, body=inner, layerdrop=0.1)
    with pytest.warns(UserWarning, match="layerdrop of the config set to 0"):
        made = trainable(Classifier, config)
    assert (made.torch_dtype, made.body.dtype, made.body.use_cache, made.layerdrop) == (None, None, False, 0)


def test_the_loss_of_an_image_classifier() -> None:
    class Two(nn.Linear):
        def forward(self, images: Tensor) -> Any:
            logits = super().forward(images)
            return logits, 2 * logits, None

    module = Two(3, 4)
    images, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 0])
    logits = module(images)[0]
    trained = with_cross_entropy(module)
    assert [name for name, _ in trained.named_parameters()] == ["weight", "bias"]
    expected = functional.cross_entropy(logits, labels) + AUXILIARY * functional.cross_entropy(2 * logits, labels)
    torch.testing.assert_close(trained(images, labels), expected)


def test_weights_on_meta_and_buffers_with_values() -> None:
    with weights_on("meta"):
        module = nn.BatchNorm1d(3)
        tied = nn.Linear(3, 3)
        tied.again = tied.weight
    assert module.weight.is_meta
    assert module.running_var.tolist() == [1, 1, 1]
    assert tied.again is tied.weight
    assert not nn.Linear(2, 2).weight.is_meta

"""The architectures of `bench models`: the named ones, and a random sample of those that transformers has.

Each is built with random weights on the CPU, small, with the inputs and labels that a reference `hf:` gets.
"""

import importlib
from collections.abc import Mapping
from random import Random
from typing import Any

import torch
from torch import nn

from ..model.capture.references.huggingface import built
from ..model.capture.references.scheme import SCHEMES, Build
from ..model.errors import PartitaError
from .plain_models import PLAIN, Denoiser

Made = tuple[nn.Module, dict[str, Any]]

MOST_WEIGHTS = 100_000_000
SMALL = Build(small=True, device="cpu")

_TRANSFORMERS = {
    "GPT-2": "GPT2LMHeadModel",
    "Llama": "LlamaForCausalLM",
    "Mistral": "MistralForCausalLM",
    "Qwen2": "Qwen2ForCausalLM",
    "Qwen3": "Qwen3ForCausalLM",
    "Gemma": "GemmaForCausalLM",
    "Phi": "PhiForCausalLM",
    "DeepSeek-V3": "DeepseekV3ForCausalLM",
    "Mixtral": "MixtralForCausalLM",
    "BERT": "BertForMaskedLM",
    "RoBERTa": "RobertaForMaskedLM",
    "ModernBERT": "ModernBertForMaskedLM",
    "DeBERTa": "DebertaV2ForMaskedLM",
    "T5": "T5ForConditionalGeneration",
    "BART": "BartForConditionalGeneration",
    "Whisper": "WhisperForConditionalGeneration",
    "ViT": "ViTForImageClassification",
    "Swin": "SwinForImageClassification",
    "ConvNeXt": "ConvNextForImageClassification",
    "CLIP": "CLIPModel",
    "Mamba": "MambaForCausalLM",
}
_REFERENCES = {
    "ResNet": "torchvision:resnet18",
    "EfficientNet": "torchvision:efficientnet_b0",
    "MobileNetV3": "torchvision:mobilenet_v3_small",
    "DenseNet": "torchvision:densenet121",
}
_DIFFUSION = ("UNet2DConditionModel", "DiT")

NAMED = (*_TRANSFORMERS, *_REFERENCES, *_DIFFUSION, *PLAIN)
"""The names of the architectures."""

AUTO = (
    "CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ", "SEQUENCE_CLASSIFICATION",
    "TOKEN_CLASSIFICATION", "QUESTION_ANSWERING", "MULTIPLE_CHOICE", "NEXT_SENTENCE_PREDICTION",
    "IMAGE_CLASSIFICATION", "VIDEO_CLASSIFICATION", "SEMANTIC_SEGMENTATION", "AUDIO_CLASSIFICATION", "CTC",
    "IMAGE_TEXT_TO_TEXT", "ZERO_SHOT_IMAGE_CLASSIFICATION",
)  # fmt: skip
"""The auto classes of transformers that are sampled: those whose labels are tensors, so that there is a loss."""


def make(name: str) -> Made:
    """The module of an architecture, named here or a class of transformers, and its example inputs.

    Raises PartitaError where it cannot be built.
    """
    if name in PLAIN:
        return PLAIN[name]()
    if name in _REFERENCES:
        scheme, _, model = _REFERENCES[name].partition(":")
        return SCHEMES[scheme].load(model, SMALL)
    if name in _DIFFUSION:
        return _unet() if name == "UNet2DConditionModel" else _dit()
    return of_transformers(_TRANSFORMERS.get(name, name))


def of_transformers(kind: str) -> Made:
    """A class of transformers with the defaults of its config, made small. Raises PartitaError."""
    transformers = _package("transformers")
    model = getattr(transformers, kind)
    types = (t for auto in AUTO for t, names in _mapping(auto).items() if kind in _several(names))
    config_class = model.config_class
    if getattr(config_class, "model_type", "") in ("", "composition"):
        config_class = transformers.CONFIG_MAPPING[next(types)]
    try:
        config = config_class()
    except Exception as error:
        raise PartitaError(f"{config_class.__name__} has no defaults: {type(error).__name__}: {error}") from error
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0  # every published config has one, the class has none
    weights = sum(p.numel() for p in built(model, config, Build(small=True))[0].parameters())
    if weights > MOST_WEIGHTS:
        raise PartitaError(f"{kind} cannot be made small: {weights / 1e6:.0f} M weights")
    module, inputs = built(model, config, SMALL)
    return module.train(), inputs


def sampled(count: int, seed: int) -> list[str]:
    """`count` classes of transformers at random, from all of `AUTO`, of as many model types."""
    types: dict[str, list[str]] = {}
    for auto in AUTO:
        for kind, names in _mapping(auto).items():
            types.setdefault(kind, []).extend(_several(names))
    rng = Random(seed)
    chosen = rng.sample(sorted(types), min(count, len(types)))
    return [rng.choice(sorted(set(types[kind]))) for kind in chosen]


def _mapping(auto: str) -> Mapping[str, Any]:
    _package("transformers")
    found = importlib.import_module("transformers.models.auto.modeling_auto")
    mapping: Mapping[str, Any] = getattr(found, f"MODEL_FOR_{auto}_MAPPING_NAMES", {})
    return mapping


def _several(names: Any) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PartitaError(f"this needs {name}: pip install 'partita[models]'") from error


def _unet() -> Made:
    """The network of Stable Diffusion with two levels, conditioned on text."""
    diffusers = _package("diffusers")
    model = diffusers.UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        norm_num_groups=8,
    )
    return _denoiser(model, encoder_hidden_states=torch.zeros(2, 8, 32))


def _dit() -> Made:
    """Peebles and Xie's diffusion transformer with two layers, conditioned on classes."""
    diffusers = _package("diffusers")
    model = diffusers.DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=8,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        sample_size=16,
        patch_size=2,
        norm_num_groups=8,
        num_embeds_ada_norm=100,
    )
    return _denoiser(model, class_labels=torch.zeros(2, dtype=torch.int64))


def _denoiser(model: nn.Module, **condition: torch.Tensor) -> Made:
    image = torch.zeros(2, 4, 16, 16)
    given = {"noisy": image, "timestep": torch.zeros(2, dtype=torch.int64), "noise": image.clone()}
    return Denoiser(model).train(), given | condition

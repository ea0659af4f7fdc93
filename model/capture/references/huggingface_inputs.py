"""Example inputs of a transformers model, with the labels that make it return its loss.

What forward takes, and for which task the class is, say which tensors there are; the config says how large they are.
Values do not matter: planning reads shapes and dtypes.
"""

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import PartitaError

EXAMPLE = 2
"""Samples in the example inputs; graphs can have any batch."""
SEQUENCE = 1024
"""Tokens in a sample, if neither the user nor the config says fewer."""
SMALL_SEQUENCE = 32
FRAMES = 400
"""Samples or frames of audio where the config does not say how many."""
CHOICES = 4
REGIONS = 8
"""Of an image, where a detector's features of them are the input."""

_POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length", "n_ctx")
_PER_SAMPLE = (
    "ForSequenceClassification", "ForImageClassification", "ForImageClassificationWithTeacher", "ForMultipleChoice",
    "ForAudioClassification", "ForVideoClassification", "ForNextSentencePrediction",
    "ForXVector", "ForImageClassificationConvProcessing", "ForImageClassificationFourier",
    "ForImageClassificationLearned",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sizes:
    """The config of a model, tokens in a sample, and the class that is trained."""

    config: Any
    sequence: int
    kind: str

    def get(self, *names: str, default: int) -> int:
        """The first of these keys that the config, or the config of a part, has."""
        for part in parts(self.config):
            for name in names:
                value = getattr(part, name, None)
                if isinstance(value, int) and value > 0:
                    return value
        return default

    def image(self) -> tuple[int, int]:
        """Height and width of an image."""
        for part in parts(self.config):
            size = getattr(part, "image_size", None) or getattr(part, "input_size", None)
            if isinstance(size, dict):
                size = size.get("height"), size.get("width")
            if isinstance(size, list | tuple) and len(size) == 2:
                return int(size[0]), int(size[1])
            if isinstance(size, int):
                return size, size
        return 224, 224


def parts(config: Any) -> list[Any]:
    """A config and the configs that it holds, outermost first."""
    inner = (getattr(config, name, None) for name in getattr(config, "sub_configs", {}))
    return [config, *(part for value in inner if hasattr(value, "to_dict") for part in parts(value))]


def sequence_of(config: Any, sequence: int | None, small: bool) -> int:
    """Tokens in a sample: those given, else a power of two that the model has positions for."""
    if sequence is not None:
        return sequence
    most = next(
        (v for part in parts(config) for k in _POSITIONS if isinstance(v := getattr(part, k, None), int) and v > 1),
        SEQUENCE,
    )
    limit = min(most, SMALL_SEQUENCE if small else SEQUENCE)
    return 1 << (limit.bit_length() - 1)


def example_inputs(module: nn.Module, config: Any, sequence: int, more: Iterable[str] = ()) -> dict[str, Any]:
    """Inputs by argument name, labels among them; `more`: further arguments, such as attention_mask.

    Raises PartitaError if the class computes no loss, or forward needs what is not known here.
    """
    forward = inspect.signature(module.forward).parameters
    kind = type(module).__name__
    sizes = Sizes(config, sequence, kind)
    main = getattr(module, "main_input_name", "input_ids")
    main = main if main in forward else "input_ids"
    needed = [
        name for name, p in forward.items() if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    names = dict.fromkeys([main, *needed])
    if "return_loss" in forward and "labels" not in forward:  # contrasts texts with something else
        others = (name for name in ("pixel_values", "pixel_values_videos", "input_features") if name in forward)
        names |= dict.fromkeys(("input_ids", next(others, "pixel_values"), "return_loss"))
    labels = [name for name in _LABELS if name in forward]
    names |= dict.fromkeys([*more, *labels])
    if not labels and "return_loss" not in names:
        raise PartitaError(f"{kind} takes no labels, so it computes no loss")
    unknown = [name for name in names if name not in _TENSORS or name not in forward]
    if unknown:
        raise PartitaError(
            f"{kind}: no example is known for {', '.join(unknown)}; write a factory, which returns (model, inputs)"
        )
    made = {name: _TENSORS[name](sizes) for name in names}
    if "attention_mask" in made and main in ("input_features", "input_values"):
        made["attention_mask"] = torch.ones(made[main].shape[:2], dtype=torch.int64)
    return made


# Tensors by argument name


def _ids(sizes: Sizes) -> Tensor:
    choices = (CHOICES,) if sizes.kind.endswith("ForMultipleChoice") else ()
    return torch.zeros(EXAMPLE, *choices, sizes.sequence, dtype=torch.int64)


def _ones(sizes: Sizes) -> Tensor:
    return torch.ones_like(_ids(sizes))


def _image(sizes: Sizes) -> Tensor:
    channels = sizes.get("num_channels", "in_channels", "in_chans", default=3)
    frames = (sizes.get("num_frames", default=8),) if "Video" in sizes.kind else ()
    return torch.zeros(EXAMPLE, *frames, channels, *sizes.image())


def _spectrogram(sizes: Sizes) -> Tensor:
    bins = sizes.get("input_feat_per_channel", default=0)
    if bins:
        return torch.zeros(EXAMPLE, FRAMES, bins)
    bins = sizes.get("num_mel_bins", "feature_size", "input_dim", default=80)
    positions = sizes.get("max_source_positions", default=0)
    return torch.zeros(EXAMPLE, bins, 2 * positions) if positions else torch.zeros(EXAMPLE, FRAMES, bins)


def _wave(sizes: Sizes) -> Tensor:
    bins = sizes.get("num_mel_bins", default=0)
    if bins:  # spectrograms under the name of waves
        return torch.zeros(EXAMPLE, sizes.get("max_length", default=FRAMES), bins)
    return torch.zeros(EXAMPLE, 16 * FRAMES)


def _labels(sizes: Sizes) -> Tensor:
    kind = sizes.kind
    if kind.endswith(_PER_SAMPLE):
        regression = getattr(sizes.config, "num_labels", 2) == 1
        return torch.zeros(EXAMPLE, dtype=torch.float32 if regression else torch.int64)
    if kind.endswith("ForSemanticSegmentation"):
        return torch.zeros(EXAMPLE, *sizes.image(), dtype=torch.int64)
    if kind.endswith("ForDepthEstimation"):
        return torch.zeros(EXAMPLE, *sizes.image())
    if kind.endswith(("ForCTC", "ForSpeechSeq2Seq")) or "mel" in " ".join(vars(sizes.config)):
        return torch.zeros(EXAMPLE, min(sizes.sequence, 16), dtype=torch.int64)
    return _ids(sizes)


def _of_sample(sizes: Sizes) -> Tensor:
    return torch.zeros(EXAMPLE, dtype=torch.int64)


_LABELS = (
    "labels", "start_positions", "end_positions", "next_sentence_label", "sentence_order_label", "return_loss",
)  # fmt: skip
OPTIONAL = (
    (), ("attention_mask",), ("decoder_input_ids",), ("pixel_values",), ("visual_feats", "visual_pos"),
    ("visual_embeds",), ("bbox",), ("bbox", "pixel_values"),
)  # fmt: skip
"""Arguments with a default that some classes cannot do without, in the order in which they are tried."""
_TENSORS: dict[str, Callable[[Sizes], Any]] = {
    "input_ids": _ids,
    "decoder_input_ids": _ids,
    "qformer_input_ids": _ids,
    "attention_mask": _ones,
    "qformer_attention_mask": _ones,
    "decoder_attention_mask": _ones,
    "token_type_ids": _ids,
    "position_ids": lambda sizes: torch.arange(sizes.sequence).expand(EXAMPLE, -1),
    "pixel_values": _image,
    "pixel_values_videos": _image,
    "input_features": _spectrogram,
    "input_values": _wave,
    "bbox": lambda sizes: torch.zeros(*_ids(sizes).shape, 4, dtype=torch.int64),
    "visual_feats": lambda sizes: torch.zeros(EXAMPLE, REGIONS, sizes.get("visual_feat_dim", default=2048)),
    "visual_pos": lambda sizes: torch.zeros(EXAMPLE, REGIONS, 4),
    "visual_embeds": lambda sizes: torch.zeros(EXAMPLE, REGIONS, sizes.get("visual_embedding_dim", default=512)),
    "labels": _labels,
    "start_positions": _of_sample,
    "end_positions": _of_sample,
    "next_sentence_label": _of_sample,
    "sentence_order_label": _of_sample,
    "return_loss": lambda sizes: True,
}
"""Argument of forward -> an example of it."""

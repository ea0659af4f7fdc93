"""`timm:NAME` and `torchvision:NAME`: image classifiers, trained with cross entropy on images and labels."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...errors import PartitaError
from ...wording import nearest
from .scheme import Build, weights_on

EXAMPLE = 2
"""Samples in the example inputs; graphs can have any batch."""
IMAGE = 224
SMALL_IMAGE = 64
"""Height and width in pixels, where the model does not say."""
AUXILIARY = 0.4
"""The weight of an auxiliary classifier's loss (Szegedy et al. 2016; torchvision's reference scripts)."""


def load_timm(name: str, how: Build) -> tuple[nn.Module, dict[str, Any]]:
    """A model of timm without pretrained weights, at its own image size. PartitaError: no such model, no classifier."""
    timm = importlib.import_module("timm")
    _check_name(name, timm.list_models(), "timm")
    module = _built("timm", name, lambda: timm.create_model(name), how)
    config = getattr(module, "pretrained_cfg", {})
    channels, height, width = config.get("input_size", (3, IMAGE, IMAGE))
    if how.small and not config.get("fixed_input_size"):
        height = width = min(SMALL_IMAGE, height)
    return _trained(module, "timm", name, how, (channels, height, width))


def load_torchvision(name: str, how: Build) -> tuple[nn.Module, dict[str, Any]]:
    """A classifier of torchvision without pretrained weights. PartitaError: no such model, no image classifier."""
    models = importlib.import_module("torchvision.models")
    _check_name(name, models.list_models(module=models), "torchvision")
    builder = models.get_model_builder(name)
    options = {"init_weights": True} if "init_weights" in inspect.signature(builder).parameters else {}
    module = _built("torchvision", name, lambda: builder(**options), how)
    size = 299 if name.startswith("inception") else getattr(module, "image_size", IMAGE)
    if how.small and not hasattr(module, "image_size"):
        size = 96 if name.startswith("inception") else SMALL_IMAGE
    return _trained(module, "torchvision", name, how, (3, size, size))


def _check_name(name: str, known: list[str], package: str) -> None:
    if name not in known:
        near = nearest(name, known, 3) or known[:3]
        raise PartitaError(f"{package} has no classifier {name!r}; did you mean {', '.join(near)}?")


def _built(package: str, name: str, make: Callable[[], nn.Module], how: Build) -> nn.Module:
    if how.sequence is not None:
        raise PartitaError(f"{package}:{name} has no sequence; leave --sequence out")
    try:
        with weights_on(how.device):
            return make()
    except Exception as error:
        raise PartitaError(f"{package}:{name} cannot be built: {type(error).__name__}: {error}") from error


def _trained(
    module: nn.Module, package: str, name: str, how: Build, size: tuple[int, int, int]
) -> tuple[nn.Module, dict[str, Any]]:
    """The module with its loss as output, and a batch of images with labels."""
    if getattr(module, "num_classes", 1) == 0:
        raise PartitaError(
            f"{package}:{name} has no classifier; write a factory that returns (model, inputs) with a loss"
        )
    device = "meta" if how.device == "meta" else "cpu"
    images = torch.zeros(EXAMPLE, *size, device=device)
    return with_cross_entropy(module), {
        "images": images,
        "labels": torch.zeros(EXAMPLE, dtype=torch.int64, device=device),
    }


def with_cross_entropy(module: nn.Module) -> nn.Module:
    """The same module, whose forward takes images and labels and returns the loss; names of weights stay.

    Where the model has auxiliary classifiers, their losses are added with a weight (`AUXILIARY`).
    """
    kind: Any = type(module)

    def forward(self: Any, images: Tensor, labels: Tensor) -> Tensor:
        return _loss(kind.forward(self, images), labels)

    own = {key: getattr(kind, key) for key in ("__module__", "__qualname__", "__doc__")}
    module.__class__ = type(kind.__name__, (kind,), {"forward": forward, **own})
    return module


def _loss(output: Any, labels: Tensor) -> Tensor:
    if isinstance(output, Tensor):
        return functional.cross_entropy(output, labels)
    main, *others = (x for x in output if x is not None)
    loss = functional.cross_entropy(main, labels)
    for other in others:
        loss = loss + AUXILIARY * functional.cross_entropy(other, labels)
    return loss

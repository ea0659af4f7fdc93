"""The schemes of references, and what they share.

A scheme is an entry of `SCHEMES`. Its function (name, how) returns the model and its example inputs; it is imported
only where a reference names the scheme, as is the package that it needs.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ...errors import PartitaError


@dataclass(frozen=True, slots=True)
class Build:
    """How a model is built: small or not, tokens in a sample (None: the model's own), where its weights are."""

    small: bool = False
    sequence: int | None = None
    device: str = "meta"


@dataclass(frozen=True, slots=True)
class Scheme:
    """Models of another package: `load` as module:function, the `package` that it imports, and its `extra`.

    `form`: how a reference looks.
    """

    function: str
    package: str
    extra: str
    form: str

    def load(self, name: str, how: Build) -> tuple[nn.Module, dict[str, Any]]:
        """The model in training mode, and example inputs by argument name. Raises PartitaError."""
        self._check_package()
        if not name:
            raise PartitaError(f"name a model, as in {self.form}")
        file, _, function = self.function.partition(":")
        module, inputs = getattr(importlib.import_module(file, __package__), function)(name, how)
        return module.train(), inputs

    def _check_package(self) -> None:
        """Raise PartitaError where the package is missing, or does not go with what else is installed."""
        try:
            importlib.import_module(self.package)
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and error.name == self.package:
                raise PartitaError(f"{self.form} needs {self.package}: pip install 'partita[{self.extra}]'") from error
            reason = str(error).strip().split("\n")[0]
            raise PartitaError(f"{self.package} cannot be imported: {type(error).__name__}: {reason}") from error


SCHEMES = {
    "hf": Scheme(".huggingface:load", "transformers", "hf", "hf:FOLDER"),
    "timm": Scheme(".image_classifiers:load_timm", "timm", "timm", "timm:resnet50"),
    "torchvision": Scheme(".image_classifiers:load_torchvision", "torchvision", "torchvision", "torchvision:resnet50"),
}


@contextmanager
def weights_on(device: str) -> Iterator[None]:
    """Models built here have their parameters on `device`; buffers have values, on the CPU where `device` is meta.

    Constructors that read values, as of the rates of drop paths, work as on the CPU.
    """
    if device != "meta":
        with torch.device(device):
            yield
        return

    def moved(module: nn.Module, name: str, parameter: nn.Parameter | None) -> Any:
        if parameter is None or parameter.is_meta:
            return None  # kept as it is
        return nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)

    registered = register_module_parameter_registration_hook(moved)
    try:
        yield
    finally:
        registered.remove()

"""Operators that stand for calls in an exported graph; they compute nothing."""

from collections.abc import Callable
from typing import Any

import torch

_LIBRARY: Any = torch.library.Library("partita", "DEF")  # type: ignore[no-untyped-call]


def define(name: str, signature: str, fake: Callable[..., Any]) -> Any:
    """An operator with an output shape and no computation; callers set `requires_grad`."""
    _LIBRARY.define(name + signature)
    torch.library.register_fake(f"partita::{name}", fake, lib=_LIBRARY)
    _LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")
    return getattr(torch.ops.partita, name).default

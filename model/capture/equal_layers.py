"""Which submodules of a module are equal but for the values of their weights: its layers."""

from collections import Counter
from collections.abc import Iterator

from torch import Tensor, device, dtype, nn, strided

_INTERNAL = frozenset(vars(nn.Module()))
_HOOKS = tuple(sorted(name for name in _INTERNAL if name.endswith("_hooks")))

PLAIN = (bool, int, float, str, type(None), dtype, device)
"""Types of values that are compared; of any other kind, an object equals itself alone."""


def equal_layers(module: nn.Module, fewest: int = 3) -> dict[str, int]:
    """The paths of submodules of which there are at least `fewest`, and a number for each kind; none is in another.

    Equal are modules of one class with equal plain attributes, equal shapes of weights and equal submodules; nothing
    in them may have hooks, or be known by another name.
    """
    shared = _shared(module)
    kinds: dict[object, int] = {}
    found = {path: _kind(part, kinds) for path, part in module.named_modules() if path not in shared}
    counts = Counter(found.values())
    layers = {}
    waiting = list(_children("", module))
    while waiting:
        path, part = waiting.pop()
        if path in found and counts[found[path]] >= fewest and _computes(part):
            layers[path] = found[path]
        else:
            waiting += _children(path, part)
    return layers


def _children(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((f"{path}.{name}".lstrip("."), child) for name, child in module.named_children())


def _computes(module: nn.Module) -> bool:
    """Whether it is a layer, neither a list of them nor a single operator."""
    kind = type(module)
    return kind.forward is not nn.Module.forward and bool(
        module._modules or not kind.__module__.startswith("torch.nn.modules")
    )


def _shared(module: nn.Module) -> set[str]:
    """The paths of all submodules in which something is known by another name too."""
    names: dict[int, list[str]] = {}
    walks = module.named_modules, module.named_parameters, module.named_buffers
    for name, thing in (pair for walk in walks for pair in walk(remove_duplicate=False)):
        names.setdefault(id(thing), []).append(name)
    several = (name.split(".") for group in names.values() if len(group) > 1 for name in group)
    return {".".join(parts[:end]) for parts in several for end in range(len(parts) + 1)}


def _kind(module: nn.Module, kinds: dict[object, int]) -> int:
    """The number of what a module is, the next one if it equals none before."""
    own = (
        type(module),
        module.training,
        any(vars(module)[name] for name in _HOOKS) and id(module),
        tuple((name, value and _kind(value, kinds)) for name, value in module._modules.items()),
        tuple((name, looks(value)) for name, value in (*module._parameters.items(), *module._buffers.items())),
        tuple((name, _frozen(value)) for name, value in vars(module).items() if name not in _INTERNAL),
    )
    return kinds.setdefault(own, len(kinds))


def looks(tensor: Tensor | None) -> tuple[object, ...]:
    """Shape, stride, dtype and whether it requires a gradient: all that there is to a tensor without values."""
    if tensor is None:
        return ()
    stride = tensor.stride() if tensor.layout is strided else ()
    return tuple(tensor.shape), stride, tensor.dtype, tensor.requires_grad


def _frozen(value: object) -> object:
    if type(value) in PLAIN:
        return type(value), value
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_frozen, value))
    if type(value) is dict:
        return dict, tuple((_frozen(k), _frozen(v)) for k, v in value.items())
    return id(value)

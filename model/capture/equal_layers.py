"""Equal layers: submodules that differ in the values of their weights alone."""

from collections import Counter
from collections.abc import Iterator

from torch import Tensor, device, dtype, nn, strided

_INTERNAL = frozenset(vars(nn.Module()))
_HOOKS = tuple(sorted(name for name in _INTERNAL if name.endswith("_hooks")))

PLAIN = (bool, int, float, str, type(None), dtype, device)
"""Types of values that are compared by value; other objects are compared by identity."""


def equal_layers(module: nn.Module, fewest: int = 3) -> dict[str, int]:
    """Path -> kind of the submodules with at least `fewest` of a kind; none lies in another.

    Modules of one kind have one class, equal plain attributes, equal shapes of weights and equal submodules. Nothing in
    them has hooks or another name.
    """
    shared = _shared(module)
    kinds: dict[object, int] = {}
    found = {path: _kind(part, kinds) for path, part in module.named_modules() if path not in shared}
    counts = Counter(found.values())
    layers = {}
    queue = list(_children("", module))
    while queue:
        path, part = queue.pop()
        if path in found and counts[found[path]] >= fewest and _computes(part):
            layers[path] = found[path]
        else:
            queue += _children(path, part)
    return layers


def _children(path: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    return ((f"{path}.{name}".lstrip("."), child) for name, child in module.named_children())


def _computes(module: nn.Module) -> bool:
    """True for a layer, False for a container or a single operator."""
    kind = type(module)
    return kind.forward is not nn.Module.forward and bool(
        module._modules or not kind.__module__.startswith("torch.nn.modules")
    )


def _shared(module: nn.Module) -> set[str]:
    """The paths of all submodules that hold something with two names."""
    names: dict[int, list[str]] = {}
    walks = module.named_modules, module.named_parameters, module.named_buffers
    for name, item in (pair for walk in walks for pair in walk(remove_duplicate=False)):
        names.setdefault(id(item), []).append(name)
    several = (name.split(".") for group in names.values() if len(group) > 1 for name in group)
    return {".".join(parts[:end]) for parts in several for end in range(len(parts) + 1)}


def _kind(module: nn.Module, kinds: dict[object, int]) -> int:
    """The number of a module's kind, a new one if it is the first of its kind."""
    own = (
        type(module),
        module.training,
        any(vars(module)[name] for name in _HOOKS) and id(module),
        tuple((name, value and _kind(value, kinds)) for name, value in module._modules.items()),
        tuple((name, description(value)) for name, value in (*module._parameters.items(), *module._buffers.items())),
        tuple((name, _comparable(value)) for name, value in vars(module).items() if name not in _INTERNAL),
    )
    return kinds.setdefault(own, len(kinds))


def description(tensor: Tensor | None) -> tuple[object, ...]:
    """Shape, stride, dtype and `requires_grad`: a tensor without its values."""
    if tensor is None:
        return ()
    stride = tensor.stride() if tensor.layout is strided else ()
    return tuple(tensor.shape), stride, tensor.dtype, tensor.requires_grad


def _comparable(value: object) -> object:
    if type(value) in PLAIN:
        return type(value), value
    if isinstance(value, list | tuple):
        return type(value), tuple(map(_comparable, value))
    if type(value) is dict:
        return dict, tuple((_comparable(k), _comparable(v)) for k, v in value.items())
    return id(value)

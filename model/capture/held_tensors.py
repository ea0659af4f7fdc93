"""The tensors of a module that a graph may hold as buffers, and which of its tensors a checkpoint has."""

from torch import Tensor, nn

from .literals import MAX_CONSTANT


def all_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The buffers of a module under all their names, followed by its plain tensor attributes.

    A graph takes such an attribute as a buffer that no checkpoint carries, unless it can be written as numbers. Left
    out are attributes that are small, on meta, require a gradient, or are parameters or buffers as well.
    """
    found = dict(module.named_buffers(remove_duplicate=False))
    own = {id(x) for x in (*module.parameters(), *found.values())}
    for path, part in module.named_modules(remove_duplicate=False):
        for name, value in vars(part).items():
            plain = isinstance(value, Tensor) and id(value) not in own and not (value.is_meta or value.requires_grad)
            if plain and value.numel() > MAX_CONSTANT:
                found[f"{path}.{name}".lstrip(".")] = value
    return found


def carried(module: nn.Module) -> set[int]:
    """The identities of the tensors that a checkpoint of the module has."""
    return {id(tensor) for tensor in module.state_dict(keep_vars=True).values()}

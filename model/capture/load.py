"""Models by reference: a name of the zoo, `SCHEME:NAME` of an installed package, or `path/to/file.py:factory`."""

import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from ..errors import PartitaError
from ..wording import did_you_mean
from .objective import TrainedModule
from .references.scheme import SCHEMES, Build


def model_of(model: Mapping[str, Any]) -> TrainedModule:
    """The model that a plan names, with weights. Raises PartitaError if it names none."""
    reference = model.get("reference")
    if not (reference and isinstance(reference, str)):
        raise PartitaError("the plan does not say how to build its module: give verify the module and its inputs")
    return load_model(reference, small=bool(model.get("small")), sequence=model.get("sequence"), device="cpu")


def load_module(
    reference: str, *, small: bool = False, sequence: int | None = None, device: str = "meta"
) -> tuple[nn.Module, Any]:
    """The module of `load_model`, and its example inputs."""
    module, inputs, _ = load_model(reference, small=small, sequence=sequence, device=device)
    return module, inputs


def load_model(
    reference: str, *, small: bool = False, sequence: int | None = None, device: str = "meta"
) -> TrainedModule:
    """The module that a reference names, example inputs (a tuple or a dict), and its loss.

    References of `references.scheme.SCHEMES` need the package of their scheme; on meta their weights take no memory and
    their buffers have values. A factory takes no arguments, or `small` and `sequence` by name, and returns
    (module, inputs), or (module, inputs, loss) with a function of the module's output (see `objective`). It runs with
    `device` as the default device: on meta weights take no memory, on cpu buffers have values. A factory that fails on
    meta, since it needs values, runs on the CPU. Raises PartitaError if there is no factory or no such model, or it
    fails, or returns something else. The module of a factory stays in the mode that it has (`Module.train`).
    """
    if ":" not in reference and not reference.endswith(".py"):
        from ..zoo import build

        return TrainedModule(*build(reference, small=small, sequence=sequence, device=device))
    scheme, _, rest = reference.partition(":")
    if scheme in SCHEMES:
        return TrainedModule(*SCHEMES[scheme].load(rest, Build(small, sequence, device)))
    file, factory = _of_file(reference)
    options = _options(factory, reference, small, sequence)
    if device == "meta":
        try:
            return _call(factory, options, device, file, reference)
        except PartitaError:
            device = "cpu"
    return _call(factory, options, device, file, reference)


def has_small_twin(reference: str) -> bool:
    """False for a factory that does not take `small`. PartitaError: there is no factory."""
    is_file = ":" in reference or reference.endswith(".py")
    return not is_file or reference.partition(":")[0] in SCHEMES or _takes(_of_file(reference)[1], "small")


def _of_file(reference: str) -> tuple[Path, Callable[..., Any]]:
    """The file and the factory of a reference, `path/to/file.py:factory`."""
    path, _, name = reference.rpartition(":")
    if not path or not name.isidentifier():
        raise PartitaError(f"{reference!r}: name the function that builds the model, as in {path or name}:factory")
    return Path(path), _factory(Path(path), name)


def _factory(file: Path, name: str) -> Callable[..., Any]:
    module = import_file(file)
    factory = getattr(module, name, None)
    if not callable(factory):
        own = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        raise PartitaError(f"{file} has no function {name!r}; it has {', '.join(own) or 'none'}")
    found: Callable[..., Any] = factory
    return found


def import_file(file: Path) -> ModuleType:
    """Import a file as a module; it can import from its folder. Raises PartitaError if that fails."""
    if not file.is_file():
        raise PartitaError(f"no file {str(file)!r}")
    spec = importlib.util.spec_from_file_location(f"partita_user_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise PartitaError(f"{file} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickling look a class's module up
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise PartitaError(failure(f"{file} cannot be imported", error, file)) from error
    finally:
        sys.path.remove(folder)
    return module


def _options(factory: Callable[..., Any], reference: str, small: bool, sequence: int | None) -> dict[str, Any]:
    """The options given, if the factory takes them; else PartitaError."""
    wanted: dict[str, Any] = {"small": small or None, "sequence": sequence}
    given = {option: value for option, value in wanted.items() if value is not None}
    for option in given:
        if not _takes(factory, option):
            raise PartitaError(
                f"{reference} takes no {option!r}; leave out --{option}, and {option.upper()} in a plan's file"
            )
    return given


def _takes(factory: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(factory).parameters.values()
    return any(p.name == name or p.kind is p.VAR_KEYWORD for p in parameters)


def _call(
    factory: Callable[..., Any], options: dict[str, Any], device: str, file: Path, reference: str
) -> TrainedModule:
    try:
        with torch.device(device):
            made = factory(**options)
    except (Exception, SystemExit) as error:
        raise PartitaError(failure(f"{reference} failed", error, file)) from error
    if not isinstance(made, tuple) or len(made) not in (2, 3) or not isinstance(made[0], nn.Module):
        raise PartitaError(
            f"{reference} must return (module, example inputs) or (module, example inputs, loss), not {_describe(made)}"
        )
    module, inputs, loss = TrainedModule(*made)
    if not (loss is None or callable(loss)):
        raise PartitaError(f"{reference} must return its loss as a function of the module's output, not {loss!r}")
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, tuple | list | Mapping):
        raise PartitaError(f"{reference} must return its example inputs as a tuple or a dict, not {_describe(inputs)}")
    return TrainedModule(module, inputs, loss)


def _describe(value: Any) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(type(v).__name__ for v in value)})"
    return type(value).__name__


def failure(what: str, error: BaseException, file: Path) -> str:
    """One line: the exception, and the last line of the user's file in its traceback."""
    if isinstance(error, SyntaxError):
        return f"{what}: SyntaxError at line {error.lineno}: {error.msg}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).name == file.name]
    line = f" at line {frames[-1].lineno}" if frames else ""
    return f"{what}: {type(error).__name__}{line}: {error}{_hint(error)}"


def _hint(error: BaseException) -> str:
    """What a name that does not exist was meant to be; empty for other errors."""
    if isinstance(error, AttributeError) and error.name:
        return did_you_mean(error.name, (name for name in dir(error.obj) if not name.startswith("_")))
    if isinstance(error, NameError) and error.name:
        frames = list(traceback.walk_tb(error.__traceback__))
        return did_you_mean(error.name, [*frames[-1][0].f_globals, *frames[-1][0].f_locals] if frames else ())
    if isinstance(error, ImportError) and (missing := re.match(r"cannot import name '(\w+)'", str(error))):
        return did_you_mean(missing[1], dir(sys.modules.get(error.name or "")))
    return ""

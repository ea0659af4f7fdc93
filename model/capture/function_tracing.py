"""Forward and backward of a call of a user-defined autograd function, traced together as a list of ATen calls."""

# mypy: disable-error-code="no-untyped-call"
# (torch's modes have no types)

import operator as python
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from inspect import getsourcefile, getsourcelines
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.autograd import Function
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ..errors import PartitaError
from ..operators.function import ITEM
from ..operators.unknown import ARITHMETIC
from .source_lines import error_line
from .translation import dtype_name


def place_of(kind: type[Function]) -> str:
    """A function with the file and line of its class."""
    try:
        return f"{kind.__name__} ({getsourcefile(kind)}:{getsourcelines(kind)[1]})"
    except (OSError, TypeError):
        return f"{kind.__module__}.{kind.__qualname__}"


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call without its tensors: `constants` are the other arguments, by position.

    `tensors`: shape, dtype, and whether it has a gradient.
    """

    kind: type[Function]
    count: int
    constants: tuple[tuple[int, Any], ...]
    tensors: tuple[tuple[tuple[int, ...], torch.dtype, bool], ...]
    spelled: str  # the constants as text: 1, 1.0 and True are equal, but not to forward

    def arguments(self, tensors: Sequence[Tensor]) -> list[Any]:
        given, fixed = iter(tensors), dict(self.constants)
        return [fixed[i] if i in fixed else next(given) for i in range(self.count)]

    def results(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What the user's function returns; autograd runs its backward."""
        apply: Any = self.kind.apply
        made = apply(*self.arguments(tensors))
        return list(made) if isinstance(made, tuple) else [made]


def signature(call: FunctionCall) -> tuple[list[tuple[list[int], torch.dtype]], bool]:
    """Shapes and dtypes of the results, and whether there is a single one. Raises PartitaError."""
    mode = FakeTensorMode()
    with _disable_current_modes(), torch.no_grad(), mode:
        tensors = [torch.empty(shape, dtype=dtype) for shape, dtype, _ in call.tensors]
        try:
            made = _forward(call, _Context(), tensors)
        except Exception as error:
            raise PartitaError(
                f"{place_of(call.kind)}, an autograd function, cannot be traced: {reason(error)}"
            ) from error
    results = list(made) if isinstance(made, tuple) else [made]
    if not all(isinstance(y, Tensor) for y in results):
        raise PartitaError(f"{place_of(call.kind)}, an autograd function, returns something that is not a tensor")
    return [(list(y.shape), y.dtype) for y in results], not isinstance(made, tuple)


def reason(error: Exception) -> str:
    """What the user's function raised, and on which line of it."""
    if isinstance(error, GuardOnDataDependentSymNode):
        words = "Python code depends on values of tensors (if, while, float, int)"
    else:
        words = f"{type(error).__name__}: {str(error).strip().split(chr(10))[0].rstrip('.')}"
    return f"{words}, at {error_line(error)}"


WIDE = (torch.float32, torch.float64)
"""Dtypes that become that of the inputs: programs compute functions in float32 at least, `verify` in float64."""


class _CastsInDouble(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if given.get("dtype") is torch.float32:
            given["dtype"] = torch.float64
        return func(*args, **given)


def casts_in_double() -> AbstractContextManager[Any]:
    """Within it, what is cast to float32 stays in float64, as in traced calls."""
    mode: AbstractContextManager[Any] = _CastsInDouble()
    return mode


class UntraceableError(Exception):
    """Why a function cannot be written as calls of ATen."""


class _Context:
    """What forward leaves to backward."""

    def __init__(self) -> None:
        self.saved_tensors: tuple[Any, ...] = ()
        self.needs_input_grad: tuple[bool, ...] = ()
        self.without_gradient: tuple[Any, ...] = ()
        self.gives_zeros = True

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Only forward-mode differentiation reads these."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.without_gradient = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.gives_zeros = value

    def gradients(self, results: Sequence[Any], given: Iterator[Tensor]) -> list[Any]:
        """What autograd gives backward: gradients of what has one, zeros or None for the rest."""
        trained = self.trained(results)
        return [
            next(given) if own else torch.zeros_like(y) if self.gives_zeros else None
            for y, own in zip(results, trained, strict=True)
        ]

    def trained(self, results: Sequence[Any]) -> list[bool]:
        """Which results have a gradient."""
        without = {id(y) for y in self.without_gradient}
        return [y.is_floating_point() and id(y) not in without for y in results]

    def mark_dirty(self, *tensors: Any) -> None:
        raise UntraceableError("it changes its inputs in place")


def _listed(made: Any) -> list[Any]:
    return list(made) if isinstance(made, tuple) else [made]


def _forward(call: FunctionCall, context: _Context, tensors: Sequence[Tensor]) -> Any:
    arguments = call.arguments(tensors)
    fixed = dict(call.constants)
    trained = iter(t[2] for t in call.tensors)
    context.needs_input_grad = tuple(i not in fixed and next(trained) for i in range(call.count))
    kind: Any = call.kind
    if kind.setup_context is not Function.setup_context:
        made = kind.forward(*arguments)
        kind.setup_context(context, tuple(arguments), made)
        return made
    return kind.forward(context, *arguments)


class SizesError(Exception):
    """A function whose calls depend on the sizes of its inputs in a way that no expression says."""


class Tracer:
    """Traces forward and backward of a call as a list of ATen calls; float64 stands for the dtype of its inputs."""

    def __init__(self, call: FunctionCall, symbolic: bool) -> None:
        self.call, self.symbolic = call, symbolic
        self.statements: list[tuple[str, Any]] = []
        self.values: dict[fx.Node, Any] = {}  # number of a tensor, in ("@", number), or an expression of sizes
        self.casts = False  # whether something is cast to float32
        self.floats = [i for i, (_, dtype, _) in enumerate(call.tensors) if dtype.is_floating_point]

    def body(self) -> dict[str, Any]:
        graph = self._graph()
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        inputs = len(self.call.tensors)
        numbers = [*range(inputs), *(inputs + o for o in self.trained)]
        self.first = inputs + self.count
        for node, number in zip(placeholders, numbers, strict=True):
            self.values[node] = ("@", number)
        for node in graph.nodes:
            if node.op == "call_function":
                self._call(node)
            elif node.op == "get_attr":
                self._constant(node)
        results, gradients = next(node for node in graph.nodes if node.op == "output").args[0]
        return {
            "title": re.sub(r"\W", "_", self.call.kind.__name__.strip("_")) or "Function",
            "body": tuple(self.statements),
            "results": tuple(self.values[y][1] for y in results),
            "gradients": tuple(None if g is None else self.values[g][1] for g in gradients),
        }

    def _graph(self) -> fx.Graph:
        """The graph; after the inputs it reads the gradients of the results in `trained`."""
        call = self.call
        with _disable_current_modes(), torch.no_grad():
            mode = FakeTensorMode(shape_env=ShapeEnv(duck_shape=False), allow_non_fake_inputs=True)
            tensors = [self._fake(mode, number) for number in range(len(call.tensors))]
            try:
                with mode:
                    context = _Context()
                    made = _listed(_forward(call, context, tensors))
                    self.trained = [o for o, own in enumerate(context.trained(made)) if own]
                    given = [torch.empty_like(made[o]) for o in self.trained]
                self.count = len(made)

                def joint(*values: Tensor) -> Any:
                    context = _Context()
                    returned = _listed(_forward(call, context, values[: len(tensors)]))
                    back = call.kind.backward(context, *context.gradients(returned, iter(values[len(tensors) :])))
                    back = back if isinstance(back, tuple) else (back,)
                    fixed = dict(call.constants)
                    return returned, [g for i, g in enumerate(back[: call.count]) if i not in fixed]

                return make_fx(dispatch_functionalize(joint))(*tensors, *given).graph
            except UntraceableError:
                raise
            except Exception as error:
                if self.symbolic:
                    raise SizesError from error
                raise UntraceableError(f"it cannot be traced: {reason(error)}") from error

    def _fake(self, mode: FakeTensorMode, number: int) -> Tensor:
        shape, dtype, _ = self.call.tensors[number]
        dtype = torch.float64 if dtype.is_floating_point else dtype
        made = torch.empty(shape, dtype=dtype, device="meta")
        if self.symbolic:
            context: Any = StatelessSymbolicContext([DimDynamic.DYNAMIC] * len(shape))
            sized = mode.from_tensor(made, symbolic_context=context, source=ConstantSource(f"x{number}"))
        else:
            sized = mode.from_tensor(made, static_shapes=True)
        with mode:
            return torch.empty(sized.shape, dtype=dtype)

    def _call(self, node: fx.Node) -> None:
        target: Any = node.target
        if target is python.getitem:
            self._add(node, ITEM, (("", self._encoded(node.args[0])), ("", node.args[1])))
        elif target is torch.ops.aten.sym_size.int:
            self.values[node] = ("size", self._encoded(node.args[0]), node.args[1])
        elif getattr(target, "__module__", "") == "_operator" and target.__name__ in ARITHMETIC:
            self.values[node] = (target.__name__, *map(self._encoded, node.args))
        elif not isinstance(target, torch._ops.OpOverload):
            raise SizesError
        elif target._schema.is_mutable:
            raise UntraceableError("it changes its inputs in place")
        elif torch.Tag.nondeterministic_seeded in target.tags:
            raise UntraceableError(f"{target} is random")
        else:
            given = [("", self._encoded(a)) for a in node.args]
            given += [(k, self._encoded(a)) for k, a in node.kwargs.items() if k not in ("layout", "pin_memory")]
            self._add(node, str(target), tuple(given))

    def _constant(self, node: fx.Node) -> None:
        """A number that forward or backward made a tensor of."""
        value = getattr(node.graph.owning_module, str(node.target))
        if not isinstance(value, Tensor) or value.dim():
            raise UntraceableError("it reads a tensor that is not among its arguments")
        dtype = ("dtype", dtype_name(value.dtype))
        given = (("", value.item()), ("dtype", dtype), ("device", ("device_of", ("@", 0))))
        self._add(node, "aten.scalar_tensor.default", given)

    def _add(self, node: fx.Node, target: str, arguments: Any) -> None:
        self.values[node] = ("@", self.first + len(self.statements))
        self.statements.append((target, arguments))

    def _encoded(self, argument: Any) -> Any:
        if isinstance(argument, fx.Node):
            return self.values[argument]
        if isinstance(argument, list | tuple):
            return ("list", *map(self._encoded, argument))
        if isinstance(argument, torch.dtype):
            own = argument in WIDE and self.floats
            self.casts |= argument == torch.float32
            return ("dtype_of", ("@", self.floats[0])) if own else ("dtype", dtype_name(argument))
        if isinstance(argument, torch.device):
            return ("device_of", ("@", 0))
        if isinstance(argument, torch.memory_format):
            return ("memory_format", str(argument).removeprefix("torch."))
        if argument is None or isinstance(argument, bool | int | float | str):
            return argument
        raise UntraceableError(f"it calls an operator with {argument!r}")

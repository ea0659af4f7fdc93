"""User-defined autograd functions: their forward and backward as calls of ATen.

torch.export would trace the forward alone, so that autograd would differentiate that and not run the user's backward.
So while a module is exported, `apply` leaves one call `partita::custom_function` in the graph. It is translated to a
node `function`, whose body is traced from forward and backward together, with symbolic sizes. As for opaque operators,
the dims in which it is independent are found by running it.
"""

import operator as python
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import getsourcefile, getsourcelines
from itertools import islice
from typing import Any

import torch
from torch import Tensor, fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import Function
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import PartitaError
from ..graph.pcg import Node
from ..operators.function import ITEM, apply_function
from ..operators.unknown import ARITHMETIC, MOST_INPUTS, constants_in, whole_notation
from .independence import Finding, NotPureError, Operand, equal, findings, resized, samples
from .library import define
from .translation import A, Rule, T, Value, dtype_name

PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


def place_of(kind: type[Function]) -> str:
    """A function with the file and line of its class."""
    try:
        return f"{kind.__name__} ({getsourcefile(kind)}:{getsourcelines(kind)[1]})"
    except (OSError, TypeError):
        return f"{kind.__module__}.{kind.__qualname__}"


@dataclass(frozen=True, slots=True)
class _Call:
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


class CustomFunctions:
    """The calls of user-defined functions in a forward. `apply` replaces `Function.apply`; `rule` translates them."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._found: dict[tuple[_Call, tuple[bool, ...]], tuple[dict[str, Any], list[Finding]]] = {}

    def apply(self, kind: type[Function], *args: Any) -> Any:
        """Record a call. Raises PartitaError for arguments that cannot be told apart from the function's."""
        tensors = [a for a in args if isinstance(a, Tensor)]
        constants = tuple((i, a) for i, a in enumerate(args) if not isinstance(a, Tensor))
        if not tensors or not all(type(a) in PLAIN for _, a in constants):
            raise PartitaError(f"{place_of(kind)} is called with more than tensors and plain values")
        trained = torch.is_grad_enabled()
        described = tuple((tuple(map(int, t.shape)), t.dtype, trained and t.requires_grad) for t in tensors)
        call = _Call(kind, len(args), constants, described, repr(constants))
        if call not in self._calls:  # equal calls have one number: traces of equal layers are equal
            self._calls.append(call)
        signature, single = _signature(call)
        token = CALL(tensors, self._calls.index(call))
        results = [RESULT(token, number, size, dtype) for number, (size, dtype) in enumerate(signature)]
        for result in results:
            if result.is_floating_point() and any(given[2] for given in described):
                result.requires_grad_()
        return results[0] if single else tuple(results)

    @property
    def rules(self) -> Mapping[str, Rule]:
        return {"function_call": self._translate, "function_result": lambda t, a: a["token"][a["number"]]}

    def _translate(self, t: T, a: A) -> Value:
        """All results of a call."""
        call, inputs = self._calls[a["number"]], a["given"]
        if len(inputs) > MOST_INPUTS:
            raise t.refusal(f"{place_of(call.kind)}, which reads more than {MOST_INPUTS} tensors")
        trained = tuple(t.at(i).gradient and t.gradient for i in inputs)
        if (call, trained) not in self._found:
            try:
                self._found[call, trained] = _translated(call, trained)
            except (NotPureError, _UntraceableError) as error:
                raise t.refusal(
                    f"{place_of(call.kind)}, an autograd function: {error}",
                    "write it with torch's functions, or leave its backward to autograd",
                ) from error
        attributes, found = self._found[call, trained]
        made = []
        for number, ((shape, dtype), finding) in enumerate(zip(_signature(call)[0], found, strict=True)):
            own = {**attributes, "output": number, "notation": finding.notation, "linear": finding.linear}
            gradient = finding.gradient and any(trained)
            made.append(t.add("function", *inputs, shape=shape, dtype=dtype_name(dtype), gradient=gradient, **own))
        return made


CALL = define("function_call", "(Tensor[] given, int number) -> Tensor", lambda given, number: torch.empty(()))
RESULT = define(
    "function_result",
    "(Tensor token, int number, int[] size, ScalarType dtype) -> Tensor",
    lambda token, number, size, dtype: torch.empty(size, dtype=dtype),
)


def _signature(call: _Call) -> tuple[list[tuple[list[int], torch.dtype]], bool]:
    """Shapes and dtypes of the results, and whether there is a single one."""
    with _disable_current_modes(), torch.no_grad():
        tensors = [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype, _ in call.tensors]
        try:
            made = _forward(call, _Context(), tensors)
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise PartitaError(
                f"{place_of(call.kind)}, an autograd function, cannot be traced: {type(error).__name__}: {reason}"
            ) from error
    results = list(made) if isinstance(made, tuple) else [made]
    if not all(isinstance(y, Tensor) for y in results):
        raise PartitaError(f"{place_of(call.kind)}, an autograd function, returns something that is not a tensor")
    return [(list(y.shape), y.dtype) for y in results], not isinstance(made, tuple)


# Tracing


class _UntraceableError(Exception):
    """Why a function cannot be written as calls of ATen."""


class _Context:
    """What forward leaves to backward."""

    def __init__(self) -> None:
        self.saved_tensors: tuple[Any, ...] = ()
        self.needs_input_grad: tuple[bool, ...] = ()
        self.without_gradient: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Only forward-mode differentiation reads these."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.without_gradient = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Gradients are always given."""

    def mark_dirty(self, *tensors: Any) -> None:
        raise _UntraceableError("it changes its inputs in place")


def _forward(call: _Call, context: _Context, tensors: Sequence[Tensor]) -> Any:
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


def _translated(call: _Call, trained: tuple[bool, ...]) -> tuple[dict[str, Any], list[Finding]]:
    """The attributes of the node of a call, and what is found of its outputs.

    Raises NotPureError and _UntraceableError.
    """
    operands = tuple(Operand(shape, dtype, own) for (shape, dtype, _), own in zip(call.tensors, trained, strict=True))
    outputs = tuple(tuple(shape) for shape, _ in _signature(call)[0])
    try:
        body = _Tracer(call, symbolic=True).body()
        constants = [float(c) for _, c in call.constants if isinstance(c, int | float) and not isinstance(c, bool)]
        found = findings(call.results, operands, outputs, [*constants, *constants_in(body["body"])], custom=True)
        _compare(call, body, operands, found)
    except _SizesError:  # its calls are right for these sizes alone
        body = _Tracer(call, symbolic=False).body()
        found = [
            replace(each, notation=whole_notation([len(x.shape) for x in operands], len(shape)))
            for each, shape in zip(findings(call.results, operands, outputs, (), custom=True), outputs, strict=True)
        ]
        _compare(call, body, operands, found)
    return body, found


class _SizesError(Exception):
    """A function whose calls depend on the sizes of its inputs in a way that no expression says."""


class _Tracer:
    """Traces forward and backward of a call as a list of ATen calls; float64 stands for the dtype of its inputs."""

    def __init__(self, call: _Call, symbolic: bool) -> None:
        self.call, self.symbolic = call, symbolic
        self.statements: list[tuple[str, Any]] = []
        self.values: dict[fx.Node, Any] = {}  # number of a tensor, in ("@", number), or an expression of sizes
        self.floats = [i for i, (_, dtype, _) in enumerate(call.tensors) if dtype.is_floating_point]

    def body(self) -> dict[str, Any]:
        graph, outputs = self._graph()
        placeholders = [node for node in graph.nodes if node.op == "placeholder"]
        inputs = len(self.call.tensors)
        numbers = [*range(inputs), *(inputs + o for o in outputs)]
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

    def _graph(self) -> tuple[fx.Graph, list[int]]:
        """The graph, and the outputs whose gradients it reads after the inputs."""
        call = self.call
        with _disable_current_modes(), torch.no_grad():
            mode = FakeTensorMode(shape_env=ShapeEnv(duck_shape=False), allow_non_fake_inputs=True)
            tensors = [self._fake(mode, number) for number in range(len(call.tensors))]
            try:
                with mode:
                    made = _forward(call, _Context(), tensors)
                    made = list(made) if isinstance(made, tuple) else [made]
                    trained = [o for o, y in enumerate(made) if y.is_floating_point()]
                    given = [torch.empty_like(made[o]) for o in trained]
                self.count = len(made)

                def joint(*values: Tensor) -> Any:
                    context = _Context()
                    returned = _forward(call, context, values[: len(tensors)])
                    returned = list(returned) if isinstance(returned, tuple) else [returned]
                    own = dict(zip(trained, values[len(tensors) :], strict=True))
                    back = call.kind.backward(context, *(own.get(o) for o in range(len(returned))))
                    back = back if isinstance(back, tuple) else (back,)
                    fixed = dict(call.constants)
                    return returned, [g for i, g in enumerate(back[: call.count]) if i not in fixed]

                function: Any = torch.func.functionalize(joint, remove="mutations")
                return make_fx(function)(*tensors, *given).graph, trained
            except _UntraceableError:
                raise
            except Exception as error:
                if self.symbolic:
                    raise _SizesError from error
                reason = str(error).strip().split("\n")[0]
                raise _UntraceableError(f"it cannot be traced: {type(error).__name__}: {reason}") from error

    def _fake(self, mode: FakeTensorMode, number: int) -> Tensor:
        shape, dtype, _ = self.call.tensors[number]
        made = torch.empty(shape, dtype=torch.float64 if dtype.is_floating_point else dtype, device="meta")
        if not self.symbolic:
            return mode.from_tensor(made)
        context: Any = StatelessSymbolicContext([DimDynamic.DYNAMIC] * len(shape))
        return mode.from_tensor(made, symbolic_context=context, source=ConstantSource(f"x{number}"))

    def _call(self, node: fx.Node) -> None:
        target: Any = node.target
        if target is python.getitem:
            self._add(node, ITEM, (("", self._encoded(node.args[0])), ("", node.args[1])))
        elif target is torch.ops.aten.sym_size.int:
            self.values[node] = ("size", self._encoded(node.args[0]), node.args[1])
        elif getattr(target, "__module__", "") == "_operator" and target.__name__ in ARITHMETIC:
            self.values[node] = (target.__name__, *map(self._encoded, node.args))
        elif not isinstance(target, torch._ops.OpOverload):
            raise _SizesError
        elif target._schema.is_mutable:
            raise _UntraceableError("it changes its inputs in place")
        elif torch.Tag.nondeterministic_seeded in target.tags:
            raise _UntraceableError(f"{target} is random")
        else:
            given = [("", self._encoded(a)) for a in node.args]
            given += [(k, self._encoded(a)) for k, a in node.kwargs.items() if k not in ("layout", "pin_memory")]
            self._add(node, str(target), tuple(given))

    def _constant(self, node: fx.Node) -> None:
        """A number that forward or backward made a tensor of."""
        value = getattr(node.graph.owning_module, str(node.target))
        if not isinstance(value, Tensor) or value.dim():
            raise _UntraceableError("it reads a tensor that is not among its arguments")
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
            own = argument == torch.float64 and self.floats
            return ("dtype_of", ("@", self.floats[0])) if own else ("dtype", dtype_name(argument))
        if isinstance(argument, torch.device):
            return ("device_of", ("@", 0))
        if isinstance(argument, torch.memory_format):
            return ("memory_format", str(argument).removeprefix("torch."))
        if argument is None or isinstance(argument, bool | int | float | str):
            return argument
        raise _UntraceableError(f"it calls an operator with {argument!r}")


# Comparing


def _compare(call: _Call, body: dict[str, Any], operands: Sequence[Operand], found: Sequence[Finding]) -> None:
    """Raise unless the traced calls compute what the function does, forward and backward, at several sizes.

    _SizesError: they do so at no size but the traced one. _UntraceableError: there either, or it could not be run.
    """
    compared = 0
    names = dict.fromkeys(re.findall(r"\bi\d+", " ".join(each.notation for each in found)))
    nodes = [_node(body, len(operands), number) for number in range(len(found))]

    def traced(given: Sequence[Tensor]) -> list[Tensor]:
        return [apply_function(node, given) for node in nodes]

    for size in (None, 3, 5):
        shapes = resized([x.shape for x in operands], found[0].notation, dict.fromkeys(names, size) if size else {})
        for tensors in islice(samples(operands, shapes, size or 0), 4):
            theirs = _with_gradients(call.results, tensors)
            if theirs is None:
                continue
            mine = _with_gradients(traced, tensors)
            if mine is None or not all(equal(a, b, 1e-9) for a, b in zip(mine, theirs, strict=True)):
                raise _SizesError if size else _UntraceableError("its calls of ATen compute something else")
            compared += 1
    if not compared:
        raise _UntraceableError("it could not be run on small tensors of the CPU")


def _node(body: Mapping[str, Any], inputs: int, output: int) -> Node:
    return Node("function", "f", tuple(range(inputs)), attributes=tuple({**body, "output": output}.items()))


def _with_gradients(run: Callable[[Sequence[Tensor]], list[Tensor]], tensors: Sequence[Tensor]) -> list[Tensor] | None:
    """Results and gradients of the inputs for fixed gradients of the results; None if it fails."""
    try:
        with torch.enable_grad():
            results = run(tensors)
            total = sum(
                (y * torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape)).sum()
                for y in results
                if y.requires_grad
            )
            wanted = [x for x in tensors if x.requires_grad]
            if not wanted or not isinstance(total, Tensor):
                return results
            grads = torch.autograd.grad(total, wanted, allow_unused=True)
    except Exception:  # a function may raise anything
        return None
    return [*results, *(torch.zeros_like(x) if g is None else g for x, g in zip(wanted, grads, strict=True))]

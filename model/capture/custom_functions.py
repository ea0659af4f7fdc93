"""User-defined autograd functions: their forward and backward as calls of ATen.

torch.export would trace the forward alone, so that autograd would differentiate that and not run the user's backward.
So while a module is exported, `apply` leaves one call `partita::custom_function` in the graph. It is translated to a
node `function`, whose body is traced from forward and backward together (`function_tracing`), with symbolic sizes. As
for opaque operators, the dims in which it is independent are found by running it; the traced calls must confirm that,
and be what the function computes (`function_checks`).
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..errors import PartitaError
from ..operators.unknown import MOST_INPUTS
from .function_checks import Translated, translated
from .function_tracing import FunctionCall, UntraceableError, place_of, signature
from .independence import NotPureError
from .library import define
from .translation import A, Rule, T, Value, dtype_name

PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device)


class CustomFunctions:
    """The calls of user-defined functions in a forward. `apply` replaces `Function.apply`; `rule` translates them."""

    def __init__(self) -> None:
        self._calls: list[FunctionCall] = []
        self._found: dict[tuple[FunctionCall, tuple[bool, ...]], Translated] = {}

    def apply(self, kind: type[Function], *args: Any) -> Any:
        """Record a call. Raises PartitaError for arguments that cannot be told apart from the function's."""
        tensors = [a for a in args if isinstance(a, Tensor)]
        constants = tuple((i, a) for i, a in enumerate(args) if not isinstance(a, Tensor))
        if not tensors or not all(type(a) in PLAIN for _, a in constants):
            raise PartitaError(f"{place_of(kind)} is called with more than tensors and plain values")
        trained = torch.is_grad_enabled()
        described = tuple((tuple(map(int, t.shape)), t.dtype, trained and t.requires_grad) for t in tensors)
        call = FunctionCall(kind, len(args), constants, described, repr(constants))
        if call not in self._calls:  # equal calls have one number: traces of equal layers are equal
            self._calls.append(call)
        described_results, single = signature(call)
        token = CALL(tensors, self._calls.index(call))
        results = [RESULT(token, number, size, dtype) for number, (size, dtype) in enumerate(described_results)]
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
                self._found[call, trained] = translated(call, trained)
            except (NotPureError, UntraceableError) as error:
                raise t.refusal(
                    f"{place_of(call.kind)}, an autograd function: {error}",
                    "write it with torch's functions, or leave its backward to autograd",
                ) from error
        known = self._found[call, trained]
        without = [
            own and gradient is None for own, gradient in zip(trained, known.attributes["gradients"], strict=True)
        ]
        inputs = [
            t.add("detach", i, shape=t.shape(i), gradient=False) if none else i
            for i, none in zip(inputs, without, strict=True)
        ]  # what only they reach has no gradient at all, and no weight decay
        made = []
        for number, ((shape, dtype), finding) in enumerate(zip(signature(call)[0], known.findings, strict=True)):
            linear = known.linear[number]
            own = {**known.attributes, "output": number, "notation": finding.notation, "linear": linear}
            gradient = finding.gradient and any(trained)
            made.append(t.add("function", *inputs, shape=shape, dtype=dtype_name(dtype), gradient=gradient, **own))
        return made


CALL = define("function_call", "(Tensor[] given, int number) -> Tensor", lambda given, number: torch.empty(()))
RESULT = define(
    "function_result",
    "(Tensor token, int number, int[] size, ScalarType dtype) -> Tensor",
    lambda token, number, size, dtype: torch.empty(size, dtype=dtype),
)

"""What is true of a user-defined autograd function: its traced calls, where it is independent, whether it is linear."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from typing import Any

import torch
from torch import Tensor

from ..graph.pcg import Node
from ..operators.function import apply_function
from ..operators.unknown import constants_in, whole_notation
from .function_tracing import FunctionCall, SizesError, Tracer, UntraceableError, casts_in_double, reason, signature
from .independence import Finding, NotPureError, Shapes, Split, findings
from .traced_relations import ADDITIVE, FIRST, SAME, SECOND, SUM, ZERO, Relation, TracedCalls, Triple
from .trial_values import MOST_ELEMENTS, Operand, equal, resized, samples


@dataclass(frozen=True, slots=True)
class Translated:
    """The attributes of a call's node; what is found of every result; whether backward is linear in its gradient."""

    attributes: dict[str, Any]
    findings: list[Finding]
    linear: list[bool]


def translated(call: FunctionCall, trained: tuple[bool, ...]) -> Translated:
    """A call as a node; `trained`: which inputs have a gradient. Raises NotPureError and UntraceableError."""
    try:
        return _Checks(call, trained, symbolic=True).translated()
    except SizesError:  # its calls are right for these sizes alone
        return _Checks(call, trained, symbolic=False).translated()


class _Checks:
    def __init__(self, call: FunctionCall, trained: tuple[bool, ...], symbolic: bool) -> None:
        self.call, self.symbolic = call, symbolic
        self.operands = tuple(
            Operand(shape, dtype, own) for (shape, dtype, _), own in zip(call.tensors, trained, strict=True)
        )
        self.outputs = tuple(tuple(shape) for shape, _ in signature(call)[0])
        tracer = Tracer(call, symbolic)
        self.attributes, self.trained, self.casts = tracer.body(), tracer.trained, tracer.casts
        self.calls = TracedCalls(self.attributes, len(self.operands))
        given = [float(c) for _, c in call.constants if isinstance(c, int | float) and not isinstance(c, bool)]
        self.constants = [*given, *constants_in(self.attributes["body"])]

    def translated(self) -> Translated:
        with ExitStack() as within:
            if self.casts:
                within.enter_context(casts_in_double())
            found = findings(self._results, self.operands, self.outputs, self.constants, self._independent)
            given = zip(self.operands, self.attributes["gradients"], strict=True)
            some = any(x.gradient and gradient is not None for x, gradient in given)
            found = [replace(each, gradient=o in self.trained and some) for o, each in enumerate(found)]
            if not self.symbolic:
                ranks = [len(x.shape) for x in self.operands]
                wholes = [whole_notation(ranks, len(shape)) for shape in self.outputs]
                found = [replace(each, notation=notation) for each, notation in zip(found, wholes, strict=True)]
            linear = self._linear(found)
            self._compare(found)
            return Translated(self.attributes, found, linear)

    # -- by the traced calls ------------------------------------------------------------------------------------

    def _independent(self, split: Split, shapes: Shapes, cut: int) -> bool:
        """True if the traced calls keep parts apart: see `Split`."""
        if not self.symbolic:
            return False

        def parts(x: Tensor, dim: int | None) -> Triple:
            return (x, x, x) if dim is None else (x, x.narrow(dim, 0, cut), x.narrow(dim, cut, x.shape[dim] - cut))

        given: list[Relation] = [SAME if dim is None else dim for dim in split.dims]
        gradients: list[Relation] = [ZERO] * len(self.outputs)
        gradients[split.output] = SAME if split.at is None else split.at
        known = self._relations(shapes, lambda tensors: [*map(parts, tensors, split.dims)], given, gradients)
        if known is None:
            return False
        results, backward = known
        wanted = [SUM if dim is None else dim for dim in split.dims]
        return results[split.output] == (SUM if split.at is None else split.at) and all(
            not x.gradient or relation in (ADDITIVE if wish == SUM else (wish, ZERO))
            for x, relation, wish in zip(self.operands, backward, wanted, strict=True)
        )

    def _linear(self, found: Sequence[Finding]) -> list[bool]:
        """Of every result whether backward is linear in its gradient. NotPureError: it mixes several gradients."""
        names = re.findall(r"\bi\d+", found[0].notation) if self.symbolic else []
        shapes = tuple(resized([x.shape for x in self.operands], found[0].notation, dict.fromkeys(names, 5)))
        results = range(len(found))
        trained = [o for o in results if found[o].gradient]
        for o in trained[1:]:  # what the gradient of one gives, and those of all others
            mixed: list[Relation] = [FIRST if o == other else SECOND if other in trained else ZERO for other in results]
            if not self._adds(shapes, mixed):
                raise NotPureError("its backward mixes the gradients of its results")
        return [
            found[o].gradient and self._adds(shapes, [SUM if o == other else ZERO for other in results])
            for o in results
        ]

    def _adds(self, shapes: Shapes, gradients: Sequence[Relation]) -> bool:
        """True if the gradients of the inputs are sums where those of the results are."""
        same: list[Relation] = [SAME] * len(self.operands)
        known = self._relations(shapes, lambda tensors: [(x, x, x) for x in tensors], same, gradients)
        return known is not None and all(
            not x.gradient or relation in ADDITIVE for x, relation in zip(self.operands, known[1], strict=True)
        )

    def _relations(
        self,
        shapes: Shapes,
        parts: Callable[[Sequence[Tensor]], Sequence[Triple]],
        given: Sequence[Relation],
        gradients: Sequence[Relation],
    ) -> tuple[list[Relation], list[Relation]] | None:
        """The relations of results and gradients; None where no random inputs of these shapes can be run."""
        for tensors in samples(self.operands, shapes, 0):
            try:
                return self.calls.relations(parts([x.detach() for x in tensors]), given, gradients)
            except Exception:  # whatever the calls raise for such values
                continue
        return None

    def _results(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """What the function returns; without values what the calls do, since forward may make tensors of the CPU."""
        return self._traced(tensors) if tensors[0].is_meta else self.call.results(tensors)

    # -- by running it ------------------------------------------------------------------------------------------

    def _compare(self, found: Sequence[Finding]) -> None:
        """Raise unless the traced calls compute what the function does, forward and backward, at several sizes.

        SizesError: they do so at no size but the traced one. UntraceableError: there either, or it could not be run.
        """
        names = dict.fromkeys(re.findall(r"\bi\d+", " ".join(each.notation for each in found)))
        failure: Exception | None = None
        compared = 0
        for notation in dict.fromkeys(each.notation for each in found):
            for size in (None, 1, 3, 5) if names else (None,):
                sizes = dict.fromkeys(names, size) if size else {}
                shapes = resized([x.shape for x in self.operands], notation, sizes)
                for tensors in islice(samples(self.operands, shapes, size or 0), 4):
                    try:
                        theirs = [*self._runs(self.call.results, tensors, found)]
                    except Exception as error:  # a function may raise anything
                        failure = failure or error
                        continue
                    if not self._agree(tensors, theirs, found):
                        raise SizesError if size else UntraceableError("its calls of ATen compute something else")
                    compared += 1
        if not compared:
            raise UntraceableError(self._not_run(failure))

    def _agree(self, tensors: Sequence[Tensor], theirs: Sequence[Sequence[Tensor]], found: Sequence[Finding]) -> bool:
        try:
            mine = [*self._runs(self._traced, tensors, found)]
        except Exception:  # the calls of one size may fail for another
            return False
        return all(
            len(a) == len(b) and all(equal(x, y, 1e-9) for x, y in zip(a, b, strict=True))
            for a, b in zip(mine, theirs, strict=True)
        )

    def _traced(self, given: Sequence[Tensor]) -> list[Tensor]:
        nodes = (_node(self.attributes, len(self.operands), number) for number in range(len(self.outputs)))
        return [apply_function(node, given) for node in nodes]

    def _runs(
        self, run: Callable[[Sequence[Tensor]], list[Tensor]], tensors: Sequence[Tensor], found: Sequence[Finding]
    ) -> Iterator[list[Tensor]]:
        """Results, and gradients of the inputs for gradients of each result, then of all. Raises what `run` does."""
        wanted = [x for x in tensors if x.requires_grad]
        trained = [o for o, each in enumerate(found) if each.gradient]
        with torch.enable_grad():
            yield run(tensors)
            for chosen in [*([o] for o in trained if len(trained) > 1), trained]:
                results = run(tensors)
                made = [results[o] for o in chosen]
                if wanted and made:
                    given = [torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).reshape(y.shape) for y in made]
                    grads = torch.autograd.grad(made, wanted, given, allow_unused=True)
                    yield [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, grads, strict=True)]

    def _not_run(self, failure: Exception | None) -> str:
        """Why the traced calls could not be compared with the function."""
        shapes = ", ".join(str(tuple(x.shape)) for x in self.operands)
        if failure is not None:
            return (
                f"it fails for random inputs of shape {shapes} on the CPU, so it cannot be checked: {reason(failure)}"
            )
        most = max(prod(x.shape) for x in self.operands)
        return (
            f"it cannot be checked, since it needs whole dims of its inputs of shape {shapes}: {most} elements, "
            f"more than {MOST_ELEMENTS}"
        )


def _node(attributes: Mapping[str, Any], inputs: int, output: int) -> Node:
    return Node("function", "f", tuple(range(inputs)), attributes=tuple({**attributes, "output": output}.items()))

"""Numbered values: tensors of equal state and entries are one value, so each operator is evaluated on them once."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

from ...formulation.substitution.evaluate import Values, bound, prepared
from ...formulation.substitution.trial import random_tensor
from ...formulation.substitution.values import ParallelValue
from ...model.operators.sharded import Arithmetic, IllTyped
from .operator_sets import OperatorSet

_ALIKE = ("add", "sub", "mul", "div", "maximum", "minimum")


class Pool:
    """All values so far; those of the variables come first, in order."""

    def __init__(
        self,
        chosen: OperatorSet,
        sizes: Mapping[str, int],
        arithmetic: Arithmetic,
        seed: int = 0,
    ) -> None:
        self.arithmetic, self.operations, self.variables = arithmetic, chosen.operations, chosen.variables
        self.attributes = [{k: bound(v, sizes) for k, v in operation.attributes} for operation in chosen.operations]
        self.evaluations = 0
        self._numbers: dict[bytes, int] = {}
        self._values: list[ParallelValue | None] = []
        self._states: dict[tuple[object, ...], int] = {}
        self._state: list[int] = []
        self._weight: list[bool] = []  # by state
        self._runs: dict[tuple[int, ...], Callable[[Values], list[ParallelValue]] | None] = {}
        self._results: dict[tuple[int, ...], tuple[int, ...]] = {}
        for number, variable in enumerate(chosen.variables):
            made = random_tensor(variable, sizes, arithmetic, seed + number)
            self._number(made, variable in chosen.weights, keep=True)
        if len(self._values) != len(chosen.variables):
            raise AssertionError("two variables have the same entries")

    def apply(self, operation: int, arguments: tuple[int, ...], keep: bool = True) -> tuple[int, ...]:
        """An operation's results, none if it does not apply. Only kept values can be read."""
        key = (operation, *arguments)
        found = self._results.get(key)
        if found is None or (keep and any(self._values[number] is None for number in found)):
            found = self._results[key] = self._evaluated(operation, arguments, keep)
        return found

    def _evaluated(self, operation: int, arguments: tuple[int, ...], keep: bool) -> tuple[int, ...]:
        run = self._run(operation, arguments)
        if run is None:
            return ()
        self.evaluations += 1
        try:
            results = run(self._read(arguments))
        except IllTyped:
            self._runs[(operation, *(self._state[a] for a in arguments))] = None
            return ()
        weight = self.operations[operation].weights is None and self._weight[self._state[arguments[0]]]
        return tuple(self._number(result, weight, keep) for result in results)

    def _run(self, operation: int, arguments: tuple[int, ...]) -> Callable[[Values], list[ParallelValue]] | None:
        """The operation prepared for operands of these states, cached: whether it applies depends only on them."""
        key = (operation, *(self._state[a] for a in arguments))
        if key not in self._runs:
            op, attributes, values = self.operations[operation].op, self.attributes[operation], self._read(arguments)
            try:
                fits = self._fits(operation, arguments, values)
                self._runs[key] = prepared(op, attributes, values, self.arithmetic) if fits else None
            except IllTyped:
                self._runs[key] = None
        return self._runs[key]

    def _fits(self, operation: int, arguments: tuple[int, ...], values: Sequence[ParallelValue]) -> bool:
        """True if weights and data are in their places and nothing is broadcast."""
        wanted = self.operations[operation].weights
        weights = tuple(self._weight[self._state[a]] for a in arguments)
        if weights != wanted if wanted is not None else len(set(weights)) > 1:
            return False
        return self.operations[operation].op not in _ALIKE or len({value.shape for value in values}) == 1

    def _read(self, numbers: Sequence[int]) -> list[ParallelValue]:
        values = [self._values[number] for number in numbers]
        return [value for value in values if value is not None]

    def _number(self, value: ParallelValue, weight: bool, keep: bool) -> int:
        state = self._states.setdefault((weight, *value.state), len(self._states))
        if state == len(self._weight):
            self._weight.append(weight)
        digest = blake2b(value.array.tobytes(), digest_size=12, key=state.to_bytes(4, "big")).digest()
        number = self._numbers.setdefault(digest, len(self._values))
        if number == len(self._values):
            self._values.append(value if keep else None)
            self._state.append(state)
        elif keep and self._values[number] is None:
            self._values[number] = value
        return number

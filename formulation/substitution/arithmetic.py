"""Two arithmetics for running rules on concrete tensors: a finite field, and floats.

`Modular` refutes what holds for no reading of the opaque functions: each is a fixed random cubic of its argument, a
different one for every function and its attributes, so that `relu` is no more than a name. `Real` has the functions
themselves: what differs there is false in PyTorch too. Quotients are exact in the field; a maximum is that of the
representatives, which is associative and keeps nothing but the order.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from hashlib import blake2b
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...model.errors import PartitaError

Array: TypeAlias = NDArray[Any]
Key: TypeAlias = tuple[Any, ...]  # a function's name, then its attributes

PRIME = 2**31 - 1  # a product of two residues fits int64


class Arithmetic(ABC):
    """What tensors are made of. `lowest` is below every element."""

    lowest: int | float

    @abstractmethod
    def reduced(self, array: Array) -> Array:
        """An array brought back into range after a sum or one product."""

    @abstractmethod
    def constant(self, value: int | float | Fraction) -> int | float:
        """A number as an element."""

    @abstractmethod
    def call(self, key: Key, *arguments: Array) -> Array:
        """An opaque function, elementwise."""

    @abstractmethod
    def inverse(self, a: Array) -> Array:
        """1 / a, elementwise."""

    @abstractmethod
    def random(self, shape: Sequence[int], seed: int) -> Array:
        """Entries that depend on the shape and the seed alone."""

    def add(self, a: Array, b: Array | int | float) -> Array:
        return self.reduced(a + b)

    def sub(self, a: Array, b: Array) -> Array:
        return self.reduced(a - b)

    def mul(self, a: Array, b: Array | int | float) -> Array:
        return self.reduced(a * b)

    def sum(self, a: Array, dims: int | tuple[int, ...], keepdims: bool = False) -> Array:
        return self.reduced(a.sum(dims, keepdims=keepdims))

    def scale(self, a: Array, value: int | float | Fraction) -> Array:
        return self.mul(a, self.constant(value))

    def einsum(self, equation: str, *operands: Array) -> Array:
        """`ab,bc->ac`: the product over all letters, then the sum over those that the output lacks."""
        sources, output = equation.split("->")
        terms = sources.split(",")
        letters = output + "".join(dict.fromkeys(c for c in "".join(terms) if c not in output))
        product = None
        for term, operand in zip(terms, operands, strict=True):
            present = [letter for letter in letters if letter in term]
            spread = operand.transpose([term.index(letter) for letter in present])
            spread = spread[tuple(slice(None) if letter in term else None for letter in letters)]
            product = spread if product is None else self.mul(product, spread)
        assert product is not None
        gone = tuple(range(len(output), len(letters)))
        return self.sum(product, gone) if gone else product


@dataclass(frozen=True, slots=True)
class Modular(Arithmetic):
    """Residues modulo a prime below 2^31, as int64."""

    prime: int = PRIME
    lowest = -1

    def __post_init__(self) -> None:
        if not 2 < self.prime < 2**31:
            raise PartitaError(f"the prime of a field is between 3 and 2^31, not {self.prime}")

    def reduced(self, array: Array) -> Array:
        return array % self.prime

    def constant(self, value: int | float | Fraction) -> int:
        exact = Fraction(value)
        return exact.numerator * pow(exact.denominator, -1, self.prime) % self.prime

    def call(self, key: Key, *arguments: Array) -> Array:
        """A cubic of the first argument; the cubic of that plus the next, and so on."""
        known = _EXACT.get(key[0])
        if known is not None:
            exact = known(self, key, *arguments)
            if exact is not None:
                return exact
        value: Array = np.zeros((), np.int64)
        for number, argument in enumerate(arguments):
            constant, *others = _coefficients((*key, number), self.prime)
            value, cubic = self.add(value, argument), np.zeros((), np.int64)
            for factor in others:
                cubic = self.mul(self.add(cubic, factor), value)
            value = self.add(cubic, constant)
        return value

    def inverse(self, a: Array) -> Array:
        """a^(p-2); zero, which a random tensor does not have, stays zero."""
        result, power, left = np.ones_like(a), a, self.prime - 2
        while left:
            if left & 1:
                result = self.mul(result, power)
            power, left = self.mul(power, power), left >> 1
        return result

    def random(self, shape: Sequence[int], seed: int) -> Array:
        return np.random.default_rng([seed, *shape]).integers(0, self.prime, tuple(shape), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Real(Arithmetic):
    """Floats of 64 bits, with the functions that PyTorch has under these names."""

    lowest = -math.inf

    def reduced(self, array: Array) -> Array:
        return array

    def constant(self, value: int | float | Fraction) -> float:
        return float(value)

    def call(self, key: Key, *arguments: Array) -> Array:
        name, given = key[0], dict(key[1:])
        if name not in _REAL:
            raise PartitaError(f"{name} has no value in floats; it can be evaluated in the finite field alone")
        with np.errstate(all="ignore"):  # log of what is negative is nan, as it is in PyTorch
            result: Array = np.asarray(_REAL[name](given, *arguments), np.float64)
        return result

    def inverse(self, a: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 / a)

    def random(self, shape: Sequence[int], seed: int) -> Array:
        return np.random.default_rng([seed, *shape]).uniform(-1, 1, tuple(shape))


@cache
def _coefficients(key: Key, prime: int) -> tuple[int, ...]:
    """Four numbers that the function's name and attributes determine, on every machine the same."""
    digest = blake2b(repr(key).encode(), digest_size=32).digest()
    return tuple(int.from_bytes(digest[i : i + 8], "big") % prime for i in range(0, 32, 8))


def _power(field: Modular, key: Key, a: Array) -> Array | None:
    """A small whole power is a product; others are opaque."""
    exponent = dict(key[1:]).get("exponent", 0)
    if exponent not in (1, 2, 3):
        return None
    result = a
    for _ in range(int(exponent) - 1):
        result = field.mul(result, a)
    return result


_EXACT: dict[str, Callable[..., Array | None]] = {
    "maximum": lambda field, key, a, b: np.maximum(a, b),
    "minimum": lambda field, key, a, b: np.minimum(a, b),
    "reciprocal": lambda field, key, a: field.inverse(a),
    "shift": lambda field, key, a: field.add(a, field.constant(dict(key[1:])["value"])),
    "pow": _power,
}
"""Functions of the field that are no mere names. None: opaque after all."""


def _sigmoid(a: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-a)))


def _softplus(a: Array) -> Array:
    return np.asarray(np.logaddexp(a, 0))


def _erf(a: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(a))


def _gelu(given: dict[str, Any], a: Array) -> Array:
    if given.get("approximate", "none") == "tanh":
        return np.asarray(0.5 * a * (1 + np.tanh(math.sqrt(2 / math.pi) * (a + 0.044715 * a**3))))
    return np.asarray(0.5 * a * (1 + _erf(a / math.sqrt(2))))


def _elu(a: Array, alpha: float) -> Array:
    return np.where(a > 0, a, alpha * np.expm1(np.minimum(a, 0)))


_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805

_REAL: dict[str, Callable[..., Any]] = {
    "relu": lambda _, a: np.maximum(a, 0),
    "gelu": _gelu,
    "silu": lambda _, a: a * _sigmoid(a),
    "tanh": lambda _, a: np.tanh(a),
    "sigmoid": lambda _, a: _sigmoid(a),
    "softplus": lambda _, a: _softplus(a),
    "leaky_relu": lambda g, a: np.where(a > 0, a, g.get("slope", 0.01) * a),
    "elu": lambda g, a: _elu(a, g.get("alpha", 1.0)),
    "selu": lambda _, a: _SELU_SCALE * _elu(a, _SELU_ALPHA),
    "mish": lambda _, a: a * np.tanh(_softplus(a)),
    "hardtanh": lambda g, a: np.clip(a, g.get("min_val", -1.0), g.get("max_val", 1.0)),
    "relu6": lambda _, a: np.clip(a, 0, 6),
    "hardswish": lambda _, a: a * np.clip(a + 3, 0, 6) / 6,
    "hardsigmoid": lambda _, a: np.clip(a + 3, 0, 6) / 6,
    "logsigmoid": lambda _, a: -_softplus(-a),
    "exp": lambda _, a: np.exp(a),
    "log": lambda _, a: np.log(a),
    "sqrt": lambda _, a: np.sqrt(a),
    "rsqrt": lambda _, a: 1 / np.sqrt(a),
    "sin": lambda _, a: np.sin(a),
    "cos": lambda _, a: np.cos(a),
    "erf": lambda _, a: _erf(a),
    "abs": lambda _, a: np.abs(a),
    "reciprocal": lambda _, a: 1 / a,
    "pow": lambda g, a: a ** g["exponent"],
    "clamp": lambda g, a: np.clip(a, g.get("min"), g.get("max")),
    "shift": lambda g, a: a + g["value"],
    "maximum": lambda _, a, b: np.maximum(a, b),
    "minimum": lambda _, a, b: np.minimum(a, b),
    "power": lambda _, a, b: a**b,
}

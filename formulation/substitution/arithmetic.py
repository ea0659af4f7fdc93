"""Two arithmetics for running rules on concrete tensors: a finite field, and floats.

In `Modular` opaque functions are uninterpreted: each is a fixed random cubic of its argument, a different one for every
function and its attributes. `Real` has the functions themselves: a rule that differs there is false in PyTorch too.
Quotients are exact in the field; a maximum is that of the representatives, which is at least associative.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from hashlib import blake2b

import numpy as np

from ...model.errors import PartitaError
from ...model.operators.operator import algebra_of
from ...model.operators.sharded import Arithmetic, Array, Key

PRIME = 2**31 - 1  # a product of two residues fits int64


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
        """A cubic of the first argument, then a cubic of that plus the next argument, and so on."""
        exact = algebra_of(key[0]).exact
        if exact is not None:
            known = exact(self, dict(key[1:]), *arguments)
            if known is not None:
                return known
        value: Array = np.zeros((), np.int64)
        for number, argument in enumerate(arguments):
            constant, *others = _coefficients((*key, number), self.prime)
            value, cubic = self.add(value, argument), np.zeros((), np.int64)
            for factor in others:
                cubic = self.mul(self.add(cubic, factor), value)
            value = self.add(cubic, constant)
        return value

    def inverse(self, a: Array) -> Array:
        """a^(p-2); 0, which random tensors avoid, stays 0."""
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
    """64-bit floats, with the functions that PyTorch has under these names."""

    lowest = -math.inf

    def reduced(self, array: Array) -> Array:
        return array

    def constant(self, value: int | float | Fraction) -> float:
        return float(value)

    def call(self, key: Key, *arguments: Array) -> Array:
        name, given = key[0], dict(key[1:])
        real = algebra_of(name).real
        if real is None:
            raise PartitaError(f"{name} has no value in floats; it can be evaluated only in the finite field")
        with np.errstate(all="ignore"):  # the log of a negative number is nan, as in PyTorch
            result: Array = np.asarray(real(given, *arguments), np.float64)
        return result

    def inverse(self, a: Array) -> Array:
        with np.errstate(divide="ignore"):
            return np.asarray(1.0 / a)

    def random(self, shape: Sequence[int], seed: int) -> Array:
        return np.random.default_rng([seed, *shape]).uniform(-1, 1, tuple(shape))


@cache
def _coefficients(key: Key, prime: int) -> tuple[int, ...]:
    """Four numbers determined by the function's name and attributes, the same on every machine."""
    digest = blake2b(repr(key).encode(), digest_size=32).digest()
    return tuple(int.from_bytes(digest[i : i + 8], "big") % prime for i in range(0, 32, 8))

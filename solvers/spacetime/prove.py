"""Proofs of user-defined transformations, as of substitutions (SuperScaler, section 3.1)."""

from collections.abc import Iterator
from typing import Any

from ...formulation.substitution.rule import Rule
from ..proof.verdict import Counterexample
from ..proof.verify import verify_rule


def prover(rule: Rule, seconds: float = 10.0) -> str:
    """Empty if the transformation is proved equivalent for all sizes and numbers of parts; otherwise the reason.

    Z3 runs for at most `seconds`.
    """
    verdict = verify_rule(rule, seconds)
    if verdict.verdict == "proved":
        return ""
    if verdict.counterexample is not None:
        return f"it is false: {_gist(verdict.counterexample)}"
    return f"it is {verdict.verdict}: {verdict.note}"


def _gist(found: Counterexample) -> str:
    """The sizes of a counterexample and the first differing entry."""
    sizes = ", ".join(f"{name} = {size}" for name, size in sorted(found.sizes.items()))
    pairs = zip(_numbers(found.source), _numbers(found.target), strict=found.difference is not None)
    source, target = next(((a, b) for a, b in pairs if a != b), (None, None))
    if found.difference is None or source is None:
        return f"at {sizes} the parts give a tensor of another shape"
    return f"at {sizes} the operator gives {source:g} where the parts give {target:g}"


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, list):
        for inner in value:
            yield from _numbers(inner)
    else:
        yield value

"""Verdicts on rules, and the counterexamples of those that are refuted."""

from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, TypeAlias

Word: TypeAlias = Literal["proved", "refuted", "ill-typed", "unknown"]


@dataclass(frozen=True, slots=True)
class Counterexample:
    """Concrete tensors on which the two sides of a rule differ.

    `rule` is the rule with numbers for all sizes and degrees, in text notation; `inputs` are [replicas, *shape];
    `outputs` names the pair that differs; `source` and `target` are its values, [replicas, *shape]; `difference` is the
    largest of |source - target|, None where they have other shapes or states, or only the source is a finite number.
    """

    rule: str
    sizes: dict[str, int]
    inputs: dict[str, Any]
    outputs: tuple[str, str]
    source: Any
    target: Any
    difference: float | None

    def sentence(self) -> str:
        """Sizes, and the first element that differs."""
        import numpy as np

        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        source, target = np.asarray(self.source), np.asarray(self.target)
        at = f"at {sizes}: " if sizes else ""
        if source.shape != target.shape:
            return f"{at}the shapes are {list(source.shape[1:])} and {list(target.shape[1:])}"
        with np.errstate(invalid="ignore"):
            gaps = np.where(np.isfinite(source), np.nan_to_num(np.abs(source - target), nan=np.inf), 0.0)
        if not gaps.max(initial=0.0):
            return f"{at}one is cut or replicated, the other not"
        replica, *place = (int(i) for i in np.unravel_index(int(gaps.argmax()), gaps.shape))
        where = ", ".join(map(str, place))
        copy = f" of replica {replica}" if source.shape[0] > 1 else ""
        a, b = (float(array[(replica, *place)]) for array in (source, target))
        return f"{at}{self.outputs[0]}[{where}]{copy} is {a:.6g}, after the rule {b:.6g}"

    def to_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "sizes": self.sizes,
            "inputs": self.inputs,
            "outputs": list(self.outputs),
            "source": _finite(self.source),
            "target": _finite(self.target),
            "difference": self.difference,
        }


def _finite(value: Any) -> Any:
    """Nested lists with None for nan and infinities, which JSON lacks."""
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return value if isfinite(value) else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a rule.

    `covers`: the sizes and degrees for which a proof holds. `note`: why a rule is ill-typed or its verdict unknown.
    """

    name: str
    verdict: Word
    covers: str = ""
    counterexample: Counterexample | None = None
    seconds: float = 0.0
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "verdict": self.verdict,
            "covers": self.covers,
            "counterexample": self.counterexample.to_json() if self.counterexample else None,
            "seconds": round(self.seconds, 6),
            "note": self.note,
        }

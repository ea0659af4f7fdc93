"""Initial values of weights, as the module's constructor gives them: what it draws and writes, in its order."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from .errors import PartitaError

if TYPE_CHECKING:
    from torch import Tensor

Call: TypeAlias = tuple[str, tuple[float | str | None, ...]]
"""A method of tensors that works element by element, and its arguments: `("mul_", (0.02,))`."""

KINDS = {"constant": 1, "uniform": 2, "normal": 2, "truncated": 5, "values": None}
"""Where values come from, and how many numbers describe them: the value; the ends; mean and standard deviation; these,
the ends, and how often all elements are drawn, each time in place of those beyond the ends; all values.
"""

FILE = "initial.pt"
"""The file beside a program with the values that its ranks cannot make themselves."""

SERIAL = 16
"""`normal_` draws fewer elements than these one by one, in pairs of which it keeps the second for the next call."""


@dataclass(frozen=True, slots=True)
class Write:
    """Values of the rows from `first` on of a weight: `shape` is that of these rows, `calls` change what is drawn.

    Without a `name` they are drawn only since the numbers after them are. `skipped` counts numbers of the stream before
    them that the weights do not need, 32 bits each. `seed`: the stream begins again, from this number, before that.
    """

    name: str | None
    shape: tuple[int, ...]
    kind: str
    numbers: tuple[float, ...]
    calls: tuple[Call, ...] = ()
    first: int = 0
    dtype: str = "float32"
    skipped: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        words = (self.dtype, *(word for call, given in self.calls for word in (call, *given) if isinstance(word, str)))
        if not all(word.isidentifier() for word in words):  # they become text of a program
            raise PartitaError(f"initial values of {self.name!r}: {' '.join(words)!r}")
        count = KINDS.get(self.kind, -1)
        if len(self.numbers) != (prod(self.shape) if count is None else count):
            raise PartitaError(f"initial values of {self.name!r}: {self.kind!r} of {self.numbers}")

    @property
    def drawn(self) -> str:
        """The distribution from which torch draws; empty where it does not."""
        return {"uniform": "uniform", "normal": "normal", "truncated": "normal"}.get(self.kind, "")

    @property
    def rounds(self) -> int:
        """How often all elements are drawn."""
        return int(self.numbers[-1]) if self.kind == "truncated" else 1

    @property
    def draws(self) -> int:
        """How many 32-bit numbers of the stream it takes, where it is not drawn one by one."""
        return self.rounds * draws(self.drawn, prod(self.shape), self.dtype) if self.drawn else 0


NARROW = ("bfloat16", "float16")


def draws(kind: str, count: int, dtype: str) -> int:
    """The 32-bit numbers that torch draws for `count` elements.

    Normal ones come in blocks of 16. Instead of an incomplete one the last 16 elements are drawn again; narrow dtypes
    draw a whole block and take what they need of it.
    """
    if kind == "normal" and count % 16:
        count += -count % 16 if dtype in NARROW else 16
    return count * (2 if dtype == "float64" else 1)


@dataclass(frozen=True)
class InitialValues:
    """Where the values of every weight and buffer come from, by its name in the module.

    `writes`: what ranks make themselves, in the order of the constructor. `stored`: what is in the file beside the
    program; `values` are the tensors where they are known, which no other file has.
    """

    writes: tuple[Write, ...] = ()
    stored: tuple[str, ...] = ()
    values: Mapping[str, "Tensor"] = field(default_factory=dict, compare=False, repr=False)

    @property
    def names(self) -> frozenset[str]:
        return frozenset({write.name for write in self.writes if write.name} | {*self.stored})

    def files(self) -> dict[str, Callable[[Path], object]]:
        """The file of stored values, if they are known: its name, and what writes it."""
        import torch

        return {FILE: lambda path: torch.save(dict(self.values), path)} if self.values else {}

    def completed(self, values: Mapping[str, "Tensor"]) -> "InitialValues":
        """These with the stored values, which a plan file alone lacks, from a module's whole state."""
        return self if self.values else replace(self, values={k: values[k] for k in self.stored if k in values})

    def to_json(self) -> dict[str, Any]:
        """What differs from the defaults."""
        return {"writes": [_written(write) for write in self.writes], "stored": list(self.stored)}

    @staticmethod
    def from_json(data: Any) -> "InitialValues":
        """Read what `to_json` gave. Raises KeyError, TypeError or ValueError where it is malformed."""
        return InitialValues(tuple(map(_read, data["writes"])), tuple(map(str, data["stored"])))


def _written(write: Write) -> dict[str, Any]:
    given: dict[str, Any] = {"name": write.name, "shape": list(write.shape), write.kind: list(write.numbers)}
    if write.calls:
        given["calls"] = [[name, *arguments] for name, arguments in write.calls]
    defaults = {"first": 0, "dtype": "float32", "skipped": 0, "seed": None}
    return given | {k: getattr(write, k) for k, default in defaults.items() if getattr(write, k) != default}


def _read(data: Mapping[str, Any]) -> Write:
    (kind,) = KINDS.keys() & data.keys()
    return Write(
        None if data["name"] is None else str(data["name"]),
        tuple(map(int, data["shape"])),
        kind,
        tuple(map(float, data[kind])),
        calls=tuple((str(name), tuple(arguments)) for name, *arguments in data.get("calls", ())),
        first=int(data.get("first", 0)),
        dtype=str(data.get("dtype", "float32")),
        skipped=int(data.get("skipped", 0)),
        seed=None if data.get("seed") is None else int(data["seed"]),
    )

"""What is trained: the batch, the dtype, the optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from .errors import PartitaError
from .graph.buffer_updates import STATISTICS
from .machine.precision import PRECISIONS, precision
from .optimizers import OPTIMIZERS
from .options import check_choice, check_count, option

BatchDim: TypeAlias = int | Mapping[str, int | None] | None
"""The dim of every input that counts samples; or by the name of the input, None for one without; or None: guess."""

PROJECTION = "projection"
"""The name of the objective of a module without loss: its outputs, projected on fixed noise."""

LOSS = option(str, f"{PROJECTION}: minimize a random projection of the outputs, to check a module that has no loss.")

BATCH_DIM = option(str, "The dim of the inputs that counts samples, or name=dim,name=none.", metavar="DIM")
STATISTICS_OF = option(str, f"What a batch norm normalizes over: {', '.join(STATISTICS)} (a rank's part).")
DROPOUT = ("torch", "counters")
"""What draws the masks of dropout: torch's own generators, or functions of counters, equal for all plans."""

DROPOUT_BY = option(
    str,
    "What draws the masks of dropout: torch's own generators (torch), or slow functions of counters that give all "
    "plans the same masks (counters).",
    default=None,
)
ALLOW_UNKNOWN = option(
    bool,
    "Run operators without rules as PyTorch does, split where that is found to be right (the default), or refuse them.",
    "--allow-unknown/--refuse-unknown",
    default=None,
)
"""Options of what is captured, which several commands have."""


def check_loss_name(loss: str | None) -> None:
    """PartitaError unless `loss` is None (the module's own) or `PROJECTION`."""
    if loss is not None:
        check_choice("--loss", loss, (PROJECTION,))


DTYPES = ("float64", "float32", "float16", "bfloat16", *(name for name in PRECISIONS if "-" in name))


def parse_batch_dim(text: str | None) -> BatchDim:
    """The value of `--batch-dim`: a number, or numbers by name, `none` for an input without samples.

    >>> parse_batch_dim("1")
    1
    >>> parse_batch_dim("source=1, mask=none")
    {'source': 1, 'mask': None}
    """
    if text is None:
        return None
    found: dict[str, int | None] = {}
    try:
        if "=" not in text:
            return int(text)
        for part in text.split(","):
            name, _, dim = (word.strip() for word in part.partition("="))
            if not name:
                raise ValueError
            found[name] = None if dim == "none" else int(dim)
    except ValueError:
        raise PartitaError(f"--batch-dim {text!r}: a dim is needed, or name=dim,name=none") from None
    return found


def dtype_names(dtypes: str | Sequence[str]) -> str:
    """Dtypes by their full names, each once, joined by commas.

    `float16` and `bfloat16` mean computing in them with float32 parameters.

    >>> dtype_names("float32, bfloat16")
    'float32,mixed-bfloat16'
    """
    given = dtypes.split(",") if isinstance(dtypes, str) else dtypes
    names = [name.strip() for name in given]
    if not names:
        raise PartitaError("no dtype is named")
    return ",".join(dict.fromkeys(f"mixed-{name}" if name in ("float16", "bfloat16") else name for name in names))


def dtype_name(dtype: str) -> str:
    """One dtype by its full name; PartitaError for an unknown one."""
    return precision(dtype_names([dtype])).name


@dataclass(frozen=True, slots=True)
class Training:
    """One training step: `batch` samples over all ranks, computed in `dtype`, updated by `optimizer`.

    `dtype` is a name of `PRECISIONS`, or several joined by commas, of which the fastest is taken (`each_dtype`).
    `loss`: None for the module's own, or `PROJECTION`. `statistics`: what a batch norm normalizes over. `sequence`:
    tokens in a sample, None for the model's own. `allow_unknown`: operators without rules are opaque, instead of being
    refused. `dropout`: what draws its masks (`DROPOUT`). PartitaError: a value out of range, an unknown name.
    """

    batch: int = field(metadata=option(int, "Samples in a step, over all ranks."))
    dtype: str = field(
        default="float32",
        metadata=option(
            str,
            f"{', '.join(DTYPES)}; float16 and bfloat16 mean mixed precision with float32 weights. "
            "Of several, joined by commas, the fastest is taken.",
            parse=dtype_names,
            default=None,
        ),
    )
    optimizer: str = field(default="adamw", metadata=option(str, ", ".join(OPTIMIZERS) + ".", default=None))
    sequence: int | None = field(default=None, metadata=option(int, "Tokens in a sample."))
    statistics: str = field(default="batch", metadata=STATISTICS_OF)
    loss: str | None = field(default=None, metadata=LOSS)
    batch_dim: str | None = field(default=None, metadata=BATCH_DIM)
    allow_unknown: bool = field(default=True, metadata=ALLOW_UNKNOWN)
    dropout: str = field(default=DROPOUT[0], metadata=DROPOUT_BY)

    def __post_init__(self) -> None:
        check_count("--batch", self.batch)
        check_count("--sequence", self.sequence)
        for name in self.dtype.split(","):
            check_choice("--dtype", name, PRECISIONS, shown=DTYPES)
        check_choice("--optimizer", self.optimizer, OPTIMIZERS)
        check_choice("--statistics", self.statistics, STATISTICS)
        check_choice("--dropout", self.dropout, DROPOUT)
        check_loss_name(self.loss)
        parse_batch_dim(self.batch_dim)

    def each_dtype(self) -> tuple[Training, ...]:
        """This training in each of its dtypes."""
        return tuple(replace(self, dtype=name) for name in self.dtype.split(","))

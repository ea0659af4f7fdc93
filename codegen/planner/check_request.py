"""The options of `partita check`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ...model.optimizers import OPTIMIZERS
from ...model.options import option
from ...model.training import ALLOW_UNKNOWN, BATCH_DIM, DTYPES, LOSS, STATISTICS_OF, check_loss_name, parse_batch_dim

if TYPE_CHECKING:
    from ...model.machine.machine import Machine


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """A plan file, and what overrides its constants (MODEL, SMALL, SEQUENCE, BATCH, DEVICES, OPTIMIZER)."""

    file: Path
    model: str | None = field(default=None, metadata=option(str, "The model; by default the file's MODEL."))
    small: bool | None = field(
        default=None, metadata=option(bool, "The model's small twin, or the full model.", "--small/--full")
    )
    sequence: int | None = field(default=None, metadata=option(int, "Tokens in a sample.", minimum=1))
    batch: int | None = field(
        default=None, metadata=option(int, "Samples in a step; by default the file's BATCH.", minimum=1)
    )
    devices: int | None = field(
        default=None, metadata=option(int, "Number of devices; by default the file's DEVICES.", minimum=1)
    )
    machine: Machine | None = None
    dtype: str = field(
        default="float32",
        metadata=option(str, f"{', '.join(DTYPES)}; float16 and bfloat16 mean mixed precision with float32 weights."),
    )
    optimizer: str | None = field(default=None, metadata=option(str, ", ".join(OPTIMIZERS) + "."))
    loss: str | None = field(default=None, metadata=LOSS)
    statistics: str = field(default="batch", metadata=STATISTICS_OF)
    batch_dim: str | None = field(default=None, metadata=BATCH_DIM)
    allow_unknown: bool = field(default=True, metadata=ALLOW_UNKNOWN)

    def __post_init__(self) -> None:
        check_loss_name(self.loss)
        parse_batch_dim(self.batch_dim)

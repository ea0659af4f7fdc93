"""Configurations in the words of training frameworks: how many ranks share samples, matrices, sequences and experts.

Each size is an axis of the mesh whose ranks may only do one thing; with `zero` it also says how weights are stored over
the ranks that share samples. A search in such a space prices a configuration: it decides what the words leave open.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from math import prod
from typing import Any

from ..model.errors import PartitaError
from ..model.options import MAX_DEVICES, check_count, option


class Role(StrEnum):
    """What the ranks of a mesh axis may divide.

    `DATA` samples; `SHARD` too, and the weights that are stored there in shards if the other data ranks have copies;
    `EXPERT` samples, and of experts' weights the experts; `CONTEXT` positions of a sequence; `TENSOR` matrices and
    heads; `FREE` anything. `DIRECTION` samples, at different times: ranks exchange nothing before gradients are summed.
    """

    DATA = "data"
    SHARD = "shard"
    EXPERT = "expert"
    CONTEXT = "context"
    TENSOR = "tensor"
    FREE = "free"
    DIRECTION = "direction"

    @property
    def splits_samples(self) -> bool:
        return self in (Role.DATA, Role.SHARD, Role.EXPERT, Role.DIRECTION)


ZERO = range(4)
"""Stages of ZeRO: 0 keeps whole copies; 1 shards optimizer states, 2 gradients too, 3 weights too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """Sizes of data, tensor, context and expert parallelism, and how weights are stored; None leaves it to the search.

    `ep` of the `dp` ranks that share samples share experts. Weights are stored in shards (`zero` 3) over `dp_shard` of
    these ranks; the others have copies (None: over all). `micro_batch`: samples of a rank in a micro-batch. With
    `sequence_parallel` what lies between matrices may be split by positions over the tensor ranks (Korthikanti et al.,
    2022). PartitaError: a value out of range, or one that needs another.
    """

    dp: int | None = field(default=None, metadata=option(int, "Ranks that share the samples of a batch."))
    tp: int | None = field(default=None, metadata=option(int, "Ranks that share each matrix and attention's heads."))
    cp: int | None = field(default=None, metadata=option(int, "Ranks that share each sequence."))
    ep: int | None = field(default=None, metadata=option(int, "Of the --dp ranks, how many share experts."))
    dp_shard: int | None = field(
        default=None, metadata=option(int, "Of the --dp ranks, how many share weights; the others copy (--zero 3).")
    )
    zero: int | None = field(
        default=None,
        metadata=option(int, "0: whole weights, 1: optimizer states in shards, 2: gradients too, 3: weights too."),
    )
    micro_batch: int | None = field(default=None, metadata=option(int, "Samples of a rank in a micro-batch."))
    sequence_parallel: bool | None = field(
        default=None,
        metadata=option(
            bool,
            "Split what lies between matrices by positions over the --tp ranks, or not.",
            "--sequence-parallel/--no-sequence-parallel",
        ),
    )

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "cp", "ep", "dp_shard"):
            check_count(f"--{name.replace('_', '-')}", getattr(self, name), MAX_DEVICES)
        check_count("--micro-batch", self.micro_batch)
        if self.zero is not None and self.zero not in ZERO:
            raise PartitaError(f"--zero {self.zero}: a stage of ZeRO from 0 to {ZERO[-1]} is needed")
        if self.ep is not None and self.dp_shard is not None:
            raise PartitaError("--ep and --dp-shard both divide --dp; give one of them")
        for name in ("ep", "dp_shard"):
            part = getattr(self, name)
            if part is not None and self.dp is not None and self.dp % part:
                raise PartitaError(f"--{name.replace('_', '-')} {part} does not divide --dp {self.dp}")
        if self.dp_shard is not None and self.zero not in (None, 3):
            raise PartitaError(f"--dp-shard shares weights, which are whole with --zero {self.zero}")

    def check_sizes(self) -> None:
        """PartitaError: what is given needs the number of ranks that it is about."""
        for name in ("ep", "dp_shard", "zero", "micro_batch"):
            if getattr(self, name) is not None and self.dp is None:
                raise PartitaError(f"--{name.replace('_', '-')} needs --dp, the ranks that share samples")
        if self.sequence_parallel is not None and self.tp is None:
            raise PartitaError("--sequence-parallel needs --tp, the ranks over which positions are split")

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are not left to the search."""
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: value for name, value in values if value is not None}

    @property
    def fixes_axes(self) -> bool:
        """True if a size is given."""
        return any(size is not None for size in (self.dp, self.tp, self.cp))

    def axes(self, devices: int) -> tuple[tuple[Role, int], ...]:
        """Role and size of every axis of a mesh of `devices` ranks, the innermost last; `FREE` is what no size takes.

        PartitaError: the sizes do not divide `devices`.
        """
        found = self._axes(devices)
        if found is None:
            raise PartitaError(f"{self} does not fit the {devices} devices of a stage")
        return found

    def _axes(self, devices: int) -> tuple[tuple[Role, int], ...] | None:
        inside = self.ep or self.dp_shard or 1
        sizes = {
            Role.DATA: (self.dp or 1) // inside,
            Role.SHARD: self.dp_shard or 1,
            Role.EXPERT: self.ep or 1,
            Role.CONTEXT: self.cp or 1,
            Role.TENSOR: self.tp or 1,
        }
        taken = prod(sizes.values())
        open_ = None in (self.dp, self.tp)
        if devices % taken or (devices > taken and not open_):
            return None
        tensor = sizes.pop(Role.TENSOR)
        found = [*sizes.items(), (Role.FREE, devices // taken), (Role.TENSOR, tensor)]
        return tuple((role, size) for role, size in found if size > 1)

    def sizes(self, devices: int) -> tuple[int, ...]:
        """Sizes of the mesh's axes; of a single device (1,)."""
        return tuple(size for _, size in self.axes(devices)) or (1,)

    def roles(self, sizes: tuple[int, ...], both_ways: bool = False) -> tuple[Role, ...]:
        """What every axis of a mesh may divide; anything if the mesh is not the one of these sizes.

        `both_ways`: the first axis is that of the directions of a pipeline.
        """
        if both_ways:
            return Role.DIRECTION, *self.roles(sizes[1:])
        if self.fixes_axes:
            found = self._axes(prod(sizes)) or ()
            if found and tuple(size for _, size in found) == sizes:
                return tuple(role for role, _ in found)
        return (Role.FREE,) * len(sizes)

    def count(self, batch: int) -> int | None:
        """The number of micro-batches; None if it is free. PartitaError: the batch does not divide so."""
        if self.micro_batch is None or self.dp is None:
            return None
        each = self.dp * self.micro_batch
        if batch % each:
            raise PartitaError(
                f"--batch {batch} does not divide into micro-batches of {self.micro_batch} x {self.dp} samples"
            )
        return batch // each

    def __str__(self) -> str:
        """What is given, as on a command line.

        >>> str(Parallelism(dp=8, tp=4, zero=1))
        '--dp 8 --tp 4 --zero 1'
        """
        words = []
        for name, value in self.given.items():
            flag = name.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                words.append(f"--{flag} {value}")
        return " ".join(words)


ANY_PARALLELISM = Parallelism()
"""Nothing is fixed."""

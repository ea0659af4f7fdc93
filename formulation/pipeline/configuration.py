"""The cost of a pipeline, every stage of which is a cost network of its own.

A configuration lays the pipeline's axis on the levels of the machine (its *row*), an inner mesh on what is left to a
stage, and cuts the batch into K micro-batches. Stage s is busy W_s ns in a step: K times its work on a micro-batch, and
its work once a step. All stages wait for the slowest, and once for all others:

    step = max_s W_s + ⌈(Σ_s W_s - max_s W_s) / (K v)⌉

For equal stages that is exactly the step of 1F1B, interleaved or not (v chunks a device shorten the waiting; their W is
summed by device), but for messages. For unequal ones it holds for any shares of forward and backward: with K t_s = W_s,
a micro-batch passes all stages in Σ t_s, and the slowest adds (K - 1) max t_s. An order may take longer if one stage is
slowest forward and another backward.

Orders are priced slot by slot, but for 2BW, which takes max_s W_s. Interlaced pipelines take at least the formula.
Orders of whole backwards are bounded by paths through their slots (`solvers/search/slots_bound.py`), 1F1B by a bound of
its own (`solvers/search/one_f_one_b_bound.py`). GPipe is bounded by the formula of its slots: of stages without
messages, of which each boundary's is added once, and without updates but the first stage's, which ends last
(`formula_bounds`). Chimera is bounded by its slots too, without messages, and with the updates of the device that ends
last: of the first and the last stage (`bounded_by_slots`).

A device has v stages where they are interleaved: each is planned for an equal share of its memory. Steps of
PipeDream-2BW (Narayanan et al., 2021) do not wait for each other: each takes max_s W_s, at one more version of the
weights, and one more of their gradients where a pipeline is so long that updates come later (`weight_versions`).

Where backwards are split (zero-bubble) the search minimises a lower bound of the step that holds for any order
(`solvers/search/zero_bubble_bound.py`). A stage then also keeps what its deferred weight gradients need
(`deferred_weight_gradients`).

Bounds rest on three facts:

- the step grows with every W_s: bounds of stages give a bound of the step;
- a stage that keeps fewer micro-batches needs less memory, and nothing else changes: W_s never grows from a stage to
  the next one with the same content;
- with no limit of memory, W_s never falls when micro-batches are cut finer by a whole factor
  (`solvers/search/single_stage.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from ..placement.placement import Placement, Row, divisors, of_rows
from .schedule import ONE_F_ONE_B, Schedule


@dataclass(frozen=True, slots=True, order=True)
class Configuration:
    """Everything about a pipeline but the plans of its stages; `row` all ones is no pipeline.

    `row` is the factor of the pipeline's axis on every level of the machine, `matrix` the inner mesh of a stage on the
    rest of each level. `beside`: the least ns of a step and bytes of a device that are left to what all devices of an
    interlaced pipeline share, of the plans that are meant; all zeros: of any.

    `meshes`: of stages with unequally many devices, side by side (`shares`), the row and matrix of each, as if all were
    of its size; `row` and `matrix` are then those of the whole machine.
    """

    row: Row
    matrix: tuple[Row, ...]
    micro_batches: int
    schedule: Schedule = ONE_F_ONE_B
    chunks: int = 1
    beside: tuple[int, int] = (0, 0)
    meshes: tuple[tuple[Row, tuple[Row, ...]], ...] = ()

    @property
    def devices(self) -> int:
        """Places in the pipeline: p."""
        return len(self.meshes) or prod(self.row)

    @property
    def shares(self) -> tuple[int, ...]:
        """The devices of every stage, if stages have unequally many; else none."""
        return tuple(prod(map(prod, matrix)) for _, matrix in self.meshes)

    def of(self, stage: int) -> Configuration:
        """The configuration whose stages all have the devices and the mesh of this one."""
        if not self.meshes:
            return self
        row, matrix = self.meshes[stage]
        return replace(self, row=row, matrix=matrix, meshes=())

    @property
    def stages(self) -> int:
        """Parts of the model: p v."""
        return self.devices * self.chunks

    @property
    def groups(self) -> int:
        """Parts of the devices that have different stages: p, or p / 2 where each pair has the same two stages."""
        return self.devices // self.directions

    @property
    def directions(self) -> int:
        """Ways that micro-batches go through the pipeline."""
        return self.schedule.directions if self.devices > 1 else 1

    @property
    def stages_held(self) -> int:
        """Stages that a device has."""
        return self.chunks * self.directions

    @property
    def stage_row(self) -> Row:
        """What divides the machine into the parts that stages have."""
        return self.row if self.directions == 1 else self.schedule.stage_row(self.row)

    @property
    def placement(self) -> Placement:
        """The mesh of a stage on its part of the machine: the inner mesh, after the axis of both directions if any."""
        if self.directions == 1:
            return Placement(tuple(map(prod, self.matrix)), self.matrix)
        return stage_mesh(self.schedule.direction_row(self.row), self.matrix)

    @property
    def whole(self) -> Configuration:
        """The same with any share left to what all devices share."""
        return replace(self, beside=(0, 0))

    def along(self, row: Row) -> Configuration:
        """The same with the pipeline on other levels."""
        return replace(self, row=row)

    @property
    def rounds(self) -> int | None:
        """R in step = max W + (Σ W - max W) / R, or in its bound; None: the step is max W, or has another bound."""
        return self.schedule.rounds(self.chunks, self.micro_batches)

    @property
    def formula_bounds(self) -> bool:
        """True if the step is priced slot by slot, and bounded by the slots of all stages."""
        return (self.schedule.formula_bounds or self.bounded_by_paths) and self.devices > 1

    @property
    def bounded_by_paths(self) -> bool:
        """True if paths through the slots of the order bound the step (`solvers/search/slots_bound.py`)."""
        own = self.schedule
        one_way = own.passes == own.directions == 1 and not (own.splits_backward or own.unequal or own.formula_bounds)
        return one_way and own.priced_by_slots and self.devices > 1

    @property
    def is_one_f_one_b(self) -> bool:
        """True if the order is 1F1B."""
        return self.schedule.order is ONE_F_ONE_B.order

    @property
    def bounded_by_slots(self) -> bool:
        """True if the bound of a step is of its slots alone, and of the updates of the device that ends last."""
        return self.formula_bounds or self.directions > 1

    @property
    def rounding_ns(self) -> int:
        """What the step may be shorter than the bound, since halves of micro-batches are rounded down."""
        return self.directions * self.micro_batches + self.devices if self.directions > 1 else 0

    @property
    def waits_for_messages(self) -> bool:
        """True if nothing runs while a message passes, as there is one micro-batch."""
        return self.formula_bounds and self.micro_batches == 1

    @property
    def by_formula(self) -> Configuration:
        """The same whose step is the formula, which counts all that every stage does, updates and messages too."""
        return replace(self, schedule=replace(self.schedule, has_step_formula=True, formula_bounds=False))

    @property
    def weight_versions(self) -> int:
        """Further weight versions, in the weights' size: the most of any stage, for which all are planned."""
        return self.schedule.weight_versions(self.devices - 1)

    @property
    def deferred_weight_gradients(self) -> int:
        """Micro-batches with deferred weight gradients: the most of any stage, for which all are planned."""
        shape = self.devices, self.chunks, self.micro_batches
        return max(self.schedule.deferred_weight_gradients(*shape, stage) for stage in range(self.stages))

    def modes(self, recompute: tuple[str, ...]) -> tuple[str, ...]:
        """The modes of recomputation allowed for its stages: a split backward would recompute twice.

        Pipelines by operators recompute whole layers.
        """
        if self.schedule.by_operators:
            return tuple(mode for mode in recompute if mode in ("none", "full"))
        return ("none",) if self.schedule.splits_backward else recompute

    @property
    def between_passes(self) -> int:
        """Micro-batches between two passes through the pipeline: the most of any stage, for which all are planned."""
        return self.schedule.between_passes(self.devices, self.micro_batches)

    def in_flight(self, stage: int) -> int:
        """Micro-batches whose activations `stage` keeps at once."""
        return self.schedule.in_flight(self.devices, self.chunks, self.micro_batches, stage)

    def forwards_ahead(self, stage: int) -> int:
        """Most forwards that `stage` runs before its first backward."""
        return self.schedule.forwards_ahead(self.devices, self.chunks, self.micro_batches, stage)

    def step_ns(self, busy_ns: Sequence[int]) -> int:
        """The step, from the busy time of every stage in the model's order."""
        return step_ns(self.devices, self.rounds, busy_ns)


def stage_mesh(direction: Row, matrix: tuple[Row, ...]) -> Placement:
    """The mesh of a stage that lies on two devices, or groups of them with the inner mesh `matrix`."""
    return of_rows((direction, *(row for row in matrix if prod(row) > 1)))


def rows(hierarchy: Sequence[int], stages: int | None = None) -> Iterator[Row]:
    """The factors that a pipeline can have on the levels of a machine, of `stages` devices or of any number above 1."""
    for row in product(*map(divisors, hierarchy)):
        if prod(row) == stages or (stages is None and prod(row) > 1):
            yield row


def step_ns(devices: int, rounds: int | None, busy_ns: Sequence[int]) -> int:
    """The step of stages with these busy times, in the model's order: stage s lies on device s mod p.

    >>> step_ns(2, 4, [100, 60])  # a quarter of the faster one's time is waited for
    115
    >>> step_ns(2, None, [100, 60])
    100
    """
    loads = [sum(busy_ns[device::devices]) for device in range(devices)]
    return waited(max(loads), sum(loads), rounds)


def waited(longest: int, total: int, rounds: int | None) -> int:
    """The step whose busiest device works `longest` ns, and all devices `total`."""
    return longest if rounds is None else longest + -(-(total - longest) // rounds)

"""The cost network of a part of a pipeline.

A process keeps the latest, since a part is solved several times: first ignoring memory, then within it.
"""

from dataclasses import replace
from enum import Enum
from functools import lru_cache

from ...formulation.encoding.encode import encode
from ...formulation.encoding.encoding import Encoding
from ...formulation.encoding.encoding_options import EncodingOptions, StageContext
from ...formulation.encoding.shared_tables import SharedTables
from ...formulation.network.network import table_bytes
from ...formulation.pipeline.configuration import Configuration
from ...formulation.pipeline.stage_transfers import transfer_price
from ...model.machine.collective_price import CollectivePrice
from ...model.machine.machine import stage_machine
from ..backends.table_spread import balanced
from .pipeline_problem import PipelineProblem
from .recent import recent


class View(Enum):
    """What a network counts where slots bound the step (`Configuration.bounded_by_slots`), or stages are unequal; else
    all are `PRICED`.

    `PRICED`: what the price of a stage counts. `BOUND`: the slots alone, and the updates of the device that ends last:
    of the first stage and, in two directions, of the last one; of unequal stages also the first message, and of one
    micro-batch all messages, each with its sender. `PLAN`: all
    that a stage does, each message with its sender, so that a solution is good in all that may be the longest.
    `SLOTS`: the slots alone. `UPDATED`: the slots and the updates. Both are without messages.
    """

    PRICED = "priced"
    BOUND = "bound"
    PLAN = "plan"
    SLOTS = "slots"
    UPDATED = "updated"


_KEPT_BYTES = 1 << 31  # of networks that may be asked for again


def _bytes_of(found: Encoding) -> int:
    return table_bytes(found.network)


def encoding(
    pipeline: PipelineProblem,
    configuration: Configuration,
    part: tuple[int, int],
    in_flight: int,
    *,
    inside: bool = False,
    view: View = View.PRICED,
    transfer: CollectivePrice | None = None,
) -> Encoding:
    """The cost network of a part with `in_flight` micro-batches (0: ignoring the memory limit).

    `inside`: for bounds on what it costs inside a larger part. `transfer`: the price of what it receives; None: that of
    equal stages.
    """
    view_of = in_view(configuration, part, pipeline.count - 1, in_flight, view)
    stage = replace(view_of, inside=inside, transfer=transfer)
    return _encoding(pipeline, configuration, part, in_flight, stage)


@recent(count=12, most_bytes=_KEPT_BYTES, size=_bytes_of)
def _encoding(
    pipeline: PipelineProblem, configuration: Configuration, part: tuple[int, int], in_flight: int, stage: StageContext
) -> Encoding:
    """The network of a part; views that count the same are one network."""
    q = pipeline.problem
    if configuration.devices == 1 and part == (0, pipeline.count - 1):
        shared = _tables(pipeline, configuration)
        return q.encoding(configuration.placement, configuration.micro_batches, in_flight == 0, shared)
    equal = transfer_price(q.machine, configuration.row) if configuration.devices > 1 else None
    return encode(
        pipeline.graph(*part, configuration.micro_batches),
        stage_machine(q.machine, configuration.stage_row),
        configuration.placement,
        micro_batches=configuration.micro_batches,
        dtype=q.training.dtype,
        optimizer=q.training.optimizer,
        options=EncodingOptions(
            q.space, configuration.modes(q.space.modes if in_flight else q.fastest), spread_tables=balanced
        ),
        stage=replace(
            stage,
            transfer=stage.transfer or equal,
            weight_versions=configuration.weight_versions,
            deferred_weight_gradients=configuration.deferred_weight_gradients,
            between_passes=configuration.between_passes,
            gathers_alone=configuration.schedule.splits_backward,
            both_ways=configuration.directions > 1,
            paired=configuration.schedule.pairs(configuration.devices),
            shared=_tables(pipeline, configuration),
        ),
    )


def in_view(configuration: Configuration, part: tuple[int, int], last: int, in_flight: int, view: View) -> StageContext:
    """The counts of a network in a view; `last` is the boundary at the end of the model."""
    kept, delays = in_flight or configuration.in_flight(0), configuration.schedule.delays_messages
    if configuration.schedule.unequal:
        without = view is View.BOUND and part[0] > 0
        return StageContext(kept, delays_messages=delays, without_updates=without)
    if view is View.PRICED or not configuration.bounded_by_slots:
        return StageContext(kept, delays_messages=delays)
    if view is View.PLAN:
        return StageContext(kept)
    ends_last = part[0] == 0 or (configuration.directions > 1 and part[1] == last)
    updates = view is View.UPDATED or (ends_last and view is View.BOUND)
    messages = view is View.BOUND and configuration.waits_for_messages
    return StageContext(kept, without_messages=not messages, without_updates=not updates)


@lru_cache(maxsize=2)
def _tables(pipeline: PipelineProblem, configuration: Configuration) -> SharedTables:
    """Tables shared by the parts of one configuration."""
    return SharedTables()

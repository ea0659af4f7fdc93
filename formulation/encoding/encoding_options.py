"""What a cost network may decide, and what a stage of a pipeline adds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...model.errors import PartitaError
from ...model.graph.layout import Layout
from ...model.graph.segments import IN_PARTS, MODES
from ...model.machine.collective_price import CollectivePrice
from ..search_space import EVERYTHING, SearchSpace
from ..special.heuristic_spread import heuristic_spread
from ..special.table_spread import TableSpreader
from .shared_tables import SharedTables


@dataclass(frozen=True)
class EncodingOptions:
    """What a network leaves open: its part of a search space, and how that is encoded.

    Of the `space` count `fix`, `bundles` and `offload`; `recompute` are the modes of every segment, and variables and
    edges have the tables of the first. `spread_tables` spreads joined tables over an axis. `flat` prices every
    collective as one step, for comparison. `capacity_bytes` replaces the device's memory. PartitaError: no modes, or a
    mode twice or unknown.
    """

    space: SearchSpace = EVERYTHING
    recompute: tuple[str, ...] = ("none",)
    spread_tables: TableSpreader = heuristic_spread
    flat: bool = False
    capacity_bytes: int | None = None

    def __post_init__(self) -> None:
        modes, known = self.recompute, (*MODES, *IN_PARTS)
        if not modes or len({*modes}) < len(modes) or not {*modes} <= {*known}:
            raise PartitaError(f"recomputation {', '.join(modes) or 'in no mode'}: choose among {', '.join(known)}")


@dataclass(frozen=True)
class StageContext:
    """What a stage of a pipeline adds; the default is a program without stages.

    `in_flight` micro-batches are kept for backward at once. `transfer` is the price of sending a tensor to another
    stage. `stored` fixes layouts of parameters by name. `weight_versions` copies are kept besides each trained weight,
    whose gradient and states then have its layout. The weight gradients of `deferred_weight_gradients` micro-batches
    wait, with the output gradients that they are computed from. `between_passes` micro-batches wait for their next pass
    through the pipeline, with what is handed to it, and what several passes read. `delays_messages`: overlapped
    messages are delays between slots, of which the first one counts; else a sender is busy with each. `inside`: for
    bounds on what a part costs inside a larger one; the first layer hides its traffic too, also if there is no other.
    `shared` holds the tables of other stages of the model. `gathers_alone`: each weight travels in its own
    message, as in programs that divide backward; the traffic still hides. `read_as_stored`: no weight is gathered, so
    the reserve is for the parts of weights that a rank stores. `without_messages`, `without_updates`: for bounds of
    steps that are timed slot by slot; the options are those of the full price. `both_ways`: the first axis of the mesh
    is that of the two directions of a pipeline, `paired`: all stages of which lie on the same two devices.
    """

    in_flight: int = 1
    transfer: CollectivePrice | None = None
    stored: Mapping[str, Layout] = field(default_factory=dict, hash=False)
    weight_versions: int = 0
    deferred_weight_gradients: int = 0
    between_passes: int = 0
    delays_messages: bool = False
    inside: bool = False
    gathers_alone: bool = False
    read_as_stored: bool = False
    without_messages: bool = False
    without_updates: bool = False
    both_ways: bool = False
    paired: bool = False
    shared: SharedTables | None = field(default=None, compare=False)

"""Memory that no decision changes: whole buffers, constants, and room for gathered weights."""

from functools import lru_cache

from ...model.graph.buffer_updates import updated
from ...model.graph.constants import held
from ...model.graph.pcg import PCG
from ...model.graph.sparse_tables import sparse_tables
from ...model.machine.precision import Precision
from ..strategies.tensor_classes import classes
from .storage import Array, Storage, transient_buffers


def fixed_bytes(pcg: PCG, precision: Precision, devices: int, micro_batches: int, read_as_stored: bool = False) -> int:
    """Whole buffers, constants that are held, and transient buffers for the largest weight and its gradient.

    Alternatives with larger weights than all others add the excess themselves (`excess_bytes`), and weights that are
    read as they are stored their own buffers (`stored_buffers`).
    """
    constant = classes(pcg).constant
    changed = {i for i, (reader, _) in updated(pcg).items() if not constant[reader]}
    buffers = [pcg.nodes[i] for i in pcg.of("buffer") if i not in changed]
    kept = sum(n.numel * precision.buffer_itemsize(n.dtype) for n in buffers)
    kept += sum(pcg.nodes[i].numel * precision.itemsize(pcg.nodes[i].dtype) for i in held(pcg))
    if read_as_stored:
        return kept
    return kept + transient_buffers(devices, micro_batches) * largest_weight(pcg) * precision.itemsize("float32")


def stored_buffers(choice: Storage, precision: Precision, devices: int, micro_batches: int) -> Array:
    """Transient buffers for the part of a weight that a rank stores, and its gradient, where weights are read so.

    Several such weights are counted each, though one buffer serves all: their parts are small.
    """
    bytes_of_all: Array = transient_buffers(devices, micro_batches) * choice.numel * precision.itemsize("float32")
    return bytes_of_all


def excess_bytes(pcg: PCG, parameter: int, devices: int, micro_batches: int, precision: Precision) -> int:
    """What transient buffers for a weight take beyond `fixed_bytes`, if an alternative with it is chosen.

    Several such weights are counted each, though one buffer serves all: more than needed, but no plan without
    alternatives has less memory than it would have without rewriting.
    """
    more = pcg.nodes[parameter].numel - largest_weight(pcg)
    if more <= 0 or parameter in sparse_tables(pcg):
        return 0
    return transient_buffers(devices, micro_batches) * more * precision.itemsize("float32")


@lru_cache(maxsize=64)
def largest_weight(pcg: PCG) -> int:
    """Elements of the largest weight without sparse gradient, if no alternative is chosen."""
    moving = ({*pcg.of("parameter")} & pcg.plain) - sparse_tables(pcg).keys()
    return max((pcg.nodes[i].numel for i in moving), default=0)

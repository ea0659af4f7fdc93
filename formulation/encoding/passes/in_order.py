"""The passes of an encoding, one for each kind of decision."""

from .alternatives import ChosenAlternatives
from .bundles import Bundles
from .encoding_pass import EncodingPass
from .hubs import Hubs
from .operators import Constants, Operands, Operators
from .prefetching import Prefetching
from .recomputation import Recomputation
from .weights import Weights
from .windows import Windows

PASSES: tuple[type[EncodingPass], ...] = (
    Constants,
    Operators,
    Weights,
    Operands,
    ChosenAlternatives,
    Hubs,
    Bundles,
    Recomputation,
    Prefetching,
    Windows,
)
"""In the order in which they act; bundles and modes change what the passes before them made."""

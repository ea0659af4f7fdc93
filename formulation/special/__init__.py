"""Special strategies: splits of operators with communication of their own."""

from .registry import Message as Message
from .registry import Part as Part
from .registry import Situation as Situation
from .registry import Special as Special
from .registry import Splits as Splits
from .registry import part_of as part_of
from .registry import register_strategy as register_strategy
from .registry import special_rows as special_rows
from .registry import special_rows_fit as special_rows_fit
from .registry import special_strategies as special_strategies
from .registry import special_strategy as special_strategy

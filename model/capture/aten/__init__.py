"""Rules from ATen operators to nodes of a PCG. Arguments have their ATen names, with defaults filled in.

A rule that returns None has no translation for the given arguments; the operator is then treated as unknown.
"""

from ..translation import Rule
from . import (
    batch_norm,
    data_dependent,
    elementwise,
    layers,
    lookups,
    losses,
    order,
    random_numbers,
    recurrent,
    scatter,
    space,
    views,
)

_DENSE = (elementwise, views, layers, batch_norm, space, losses, random_numbers)
_FAMILIES = (*_DENSE, lookups, order, recurrent, scatter, data_dependent)
TABLE: dict[str, Rule] = {name: rule for family in _FAMILIES for name, rule in family.TABLE.items()}

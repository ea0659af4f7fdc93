"""Rules from ATen operators to nodes of a PCG. Arguments have their ATen names, with defaults filled in.

A rule that returns None has no translation for the given arguments; the operator is then treated as unknown.
"""

from ..translation import Rule
from . import batch_norm, data_dependent, elementwise, layers, lookups, losses, order, scatter, space, views

_FAMILIES = (elementwise, views, layers, batch_norm, space, lookups, order, scatter, losses, data_dependent)
TABLE: dict[str, Rule] = {name: rule for family in _FAMILIES for name, rule in family.TABLE.items()}

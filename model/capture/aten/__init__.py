"""The table from ATen operators to those of a PCG. Arguments come by their ATen names, with defaults filled in.

A rule that returns None has no translation for the given arguments; the operator is then refused like an unknown one.
"""

from ..translation import Rule
from . import batch_norm, elementwise, layers, lookups, losses, space, views

_FAMILIES = (elementwise, views, layers, batch_norm, space, lookups, losses)
TABLE: dict[str, Rule] = {name: rule for family in _FAMILIES for name, rule in family.TABLE.items()}

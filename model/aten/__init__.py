"""The table from ATen operators to those of a PCG. Arguments come by their ATen names, with defaults filled in.

A rule that returns None has no translation for the given arguments; the operator is then refused like an unknown one.
"""

from ..translate import Rule
from . import elementwise, layers, views

TABLE: dict[str, Rule] = elementwise.TABLE | views.TABLE | layers.TABLE

"""One row of a strategy: the layouts that an operator requires and gives on one mesh axis."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One axis: the letter required of every input, the letter given, the index that is split (None: computed whole).

    `index` is (index name, position among its atoms): rows with the same index on several axes split the same work.
    `special` names the special strategy whose row this is.
    """

    inputs: tuple[int, ...]
    output: int
    index: tuple[str, int] | None = None
    special: str = ""

"""One row of a strategy: what an operator asks and offers on one mesh axis."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One axis: the letter asked of every input, the letter offered, the index that is split (None: computed whole).

    `index` is (index name, position among its atoms): rows with the same index on several axes split the same work.
    `special` names the special strategy whose row this is.
    """

    inputs: tuple[int, ...]
    output: int
    index: tuple[str, int] | None = None
    special: str = ""

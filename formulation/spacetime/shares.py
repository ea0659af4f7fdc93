"""How much of its operator's work a part of a space-time plan has: the fractions of what its cuts split."""

from ...model.graph.layout import atom_of, is_split
from ..strategies.strategy import rows
from .op import Cut, Op


def shares(op: Op) -> dict[str, float]:
    """The fraction of every split index that the cuts leave."""
    parts: dict[str, float] = {}
    for cut in op.cuts if op.forward is None else op.forward.cuts:
        index = _index(op, cut)
        if index and not index.startswith("@") and cut.parts > 1:  # a table split by rows still looks up all ids
            parts[index] = _left(op, cut)
    return parts


def _left(op: Op, cut: Cut) -> float:
    """The fraction that all cuts leave of the dimension that one of them splits."""
    letters = ((None, cut.row.output), *enumerate(cut.row.inputs))
    operand, atom = next((place, atom_of(letter)) for place, letter in letters if is_split(letter))
    source = op.node if operand is None else op.of.inputs[operand]
    return op.mask(operand).sizes[atom] / op.graph.atoms[source].sizes[atom]


def _index(op: Op, cut: Cut) -> str:
    """The index that a cut splits; for a user-defined row that of the derived row with its letters."""
    row = cut.row
    if row.index is None or row.index[0] != "own":
        return row.index[0] if row.index else ""
    letters = (*row.inputs, row.output)
    if not any(map(is_split, letters)):
        return ""
    for known in rows(op.graph.pcg, op.node):
        pairs = zip(letters, (*known.inputs, known.output), strict=True)
        if known.index and all(a == b or not (is_split(a) or is_split(b)) for a, b in pairs):
            return known.index[0]
    return "own"

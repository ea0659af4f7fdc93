"""Look-ups on local parts: ids are global, so ids outside a rank's part of the table are misses."""

from __future__ import annotations

from collections.abc import Sequence

from ....model.operators.operator import operator
from .operator_calls import OperatorCall, Rule, whole_text
from .text import enclosed

_HELPERS = {
    "embedding": "embed_rows",
    "embedding_bag": "embed_bags",
    "gather": "gather_rows",
    "index": "index_rows",
}


def _lookup(call: OperatorCall, names: Sequence[str]) -> str:
    """The registry's expression, or a helper that takes the rows of this rank."""
    node, entry = call.node, operator(call.node.op)
    (table, *more), dim = names, node.get("dim", 0)
    known, sparse = call.source_atoms[0], bool(node.get("sparse"))
    cast = ".to(self.dtype)" if sparse and call.mixed else ""  # of the rows, since that of the table would be dense
    if cast and len(more) > 1:
        more[1] = f"{enclosed(more[1])}.to({table}.dtype)"
    if not any(call.source(0).splits(a) for a in known.of_dim(dim)):
        assert callable(entry.emit)
        if node.op == "gather" and node.gradient:
            call.used.helpers.add("taken")
            return f"taken({table}, {dim}, {more[0]})"
        method = "dim" in dict(node.attributes)  # of the tensor, which may be an expression
        return entry.emit(node, [enclosed(table) if method else table, *more]) + cast
    helper = _HELPERS[node.op]
    call.used.helpers |= {helper, "among", "positions"} | ({"taken"} if node.op == "gather" else set())
    shape, cuts = whole_text(call.source(0), [dim])
    rows = f"positions({shape}, {cuts}, {more[0]}.device)"
    arguments = [table, str(dim), *more, rows] if "dim" in dict(node.attributes) else [more[0], table, rows, *more[1:]]
    arguments += ["sparse=True"] if sparse else []
    return f"{helper}({', '.join(arguments)})" + cast


RULES: dict[str, Rule] = dict.fromkeys(_HELPERS, _lookup)

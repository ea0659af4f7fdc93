"""Look-ups on local parts: ids are global, so where ranks have parts of what is looked up in, the rest are misses."""

from __future__ import annotations

from collections.abc import Sequence

from ....model.operators.operator import operator
from .call_sites import Rule, Site, whole_text
from .text import enclosed

_HELPERS = {
    "embedding": "embed_rows",
    "embedding_bag": "embed_bags",
    "gather": "gather_rows",
    "index": "index_rows",
}


def _lookup(site: Site, names: Sequence[str]) -> str:
    """The registry's expression, or a helper that is told which rows this rank has."""
    node, entry = site.node, operator(site.node.op)
    (table, *more), dim = names, node.get("dim", 0)
    known, sparse = site.source_atoms[0], bool(node.get("sparse"))
    cast = ".to(self.dtype)" if sparse and site.mixed else ""  # of the rows, since that of the table would be dense
    if cast and len(more) > 1:
        more[1] = f"{enclosed(more[1])}.to({table}.dtype)"
    if not any(site.source(0).splits(a) for a in known.of_dim(dim)):
        assert callable(entry.emit)
        if node.op == "gather" and node.gradient:
            site.used.helpers.add("taken")
            return f"taken({table}, {dim}, {more[0]})"
        method = "dim" in dict(node.attributes)  # of the tensor, which may be an expression
        return entry.emit(node, [enclosed(table) if method else table, *more]) + cast
    helper = _HELPERS[node.op]
    site.used.helpers |= {helper, "among", "positions"} | ({"taken"} if node.op == "gather" else set())
    shape, cuts = whole_text(known, site.inputs[0], [dim], site)
    rows = f"positions({shape}, {cuts}, {more[0]}.device)"
    arguments = [table, str(dim), *more, rows] if "dim" in dict(node.attributes) else [more[0], table, rows, *more[1:]]
    arguments += ["sparse=True"] if sparse else []
    return f"{helper}({', '.join(arguments)})" + cast


RULES: dict[str, Rule] = dict.fromkeys(_HELPERS, _lookup)

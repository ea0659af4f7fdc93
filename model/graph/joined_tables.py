"""Parameters that hold several of the user's: tables of one width stored one below the other, or other weights joined.

The attribute `tables` names the tables with their rows; only look-ups read them, and they may be spread over ranks.
The attribute `joined` does so for weights that a rewriting joined along dim 0.
"""

from ..errors import PartitaError
from .pcg import PCG, Node

LOOKUPS = ("embedding", "embedding_bag")


def check_joined(pcg: PCG) -> None:
    """Raise PartitaError unless joined parameters make up the rows, and only look-ups read joined tables.

    Parameters under `joined` may be read by anything but have no aliases: a tied weight is not joined. Optimizers work
    element by element and gradient norms are sums over elements, so joining does not change training.
    """
    taken: set[str] = set()
    for index, node in enumerate(pcg.nodes):
        if node.op not in ("parameter", "buffer"):
            continue
        repeated = taken & node.originals.keys()
        if repeated and not pcg.alternatives:  # of which only one is taken
            raise PartitaError(f"{node.op} {node.name!r}: {min(repeated)!r} is another's name too")
        taken |= node.originals.keys()
        kinds = [kind for kind in ("tables", "joined") if kind in dict(node.attributes)]
        if not kinds:
            continue
        rows = [count for _, count in node[kinds[0]]]
        if len(kinds) > 1 or len(node.originals) != len(rows) or sum(rows) != sum(node.shape[:1]) or min(rows) < 1:
            raise PartitaError(f"parameter {node.name!r} of shape {node.shape} is not made up of its {kinds[0]}")
        readers = [pcg.nodes[i] for i in pcg.consumers[index]]
        if kinds == ["tables"] and any(r.op not in LOOKUPS or index in r.inputs[1:] for r in readers):
            raise PartitaError(f"parameter {node.name!r} joins tables; only look-ups can read these")
        tied = node.originals.keys() & dict(pcg.aliases).values() if kinds == ["joined"] else ()
        if tied:
            raise PartitaError(f"parameter {node.name!r} joins {min(tied)!r}, which is tied")


def table_rows(node: Node) -> tuple[int, ...]:
    """The rows of each table that a parameter joins; empty if it joins none."""
    return tuple(rows for _, rows in node.get("tables") or ())

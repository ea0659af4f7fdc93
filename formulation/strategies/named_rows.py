"""What users fix, in the words that people use: patterns of nodes' names, and rows by what they split.

    --fix 'layers.*.up=column'      --fix '*=batch,R'

A pattern stands for the operators whose names it matches and that have such rows; a later one overrides it, as does a
node's own name. The named rows are:

    batch     the samples of every input that has some
    sequence  one other dim of the activations, no weight
    heads     the heads of an attention
    column    a weight by its outputs: every rank has the whole input and some columns of the output
    row       a weight by its inputs: every rank has an addend of the output

and `*` leaves an axis to the solver.
"""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from ...model.errors import PartitaError
from ...model.graph.atoms import atoms
from ...model.graph.layout import B, P, R, S, is_split
from ...model.graph.pcg import PCG, SOURCES
from ...model.wording import did_you_mean
from .row import Row
from .strategy import ANY, row_names, rows
from .tensor_classes import classes

NAMED = ("batch", "sequence", "heads", "column", "row")


def exact_fixes(graph: PCG, fixes: Iterable[tuple[str, str]], rewritten: bool = False) -> tuple[tuple[str, str], ...]:
    """Pairs of an operator's name and its own rows, in place of patterns and named rows.

    If graphs are `rewritten`, a name may be of an operator that only these have. PartitaError: a name that no operator
    has, rows that it does not have, a pattern of which no operator has the rows.
    """
    exact, by_pattern = dict[str, str](), dict[str, str]()
    operators = {n.name: i for i, n in enumerate(graph.nodes) if n.op not in SOURCES}
    for name, text in fixes:
        wanted = [part.strip() for part in text.split(",")]
        if name in operators:
            exact[name] = ",".join(_exact(graph, operators[name], wanted))
        elif rewritten and not set(name) & set("*?["):
            exact[name] = text
        else:
            by_pattern |= _matching(graph, operators, name, wanted)
    return tuple((by_pattern | exact).items())


def named_row(graph: PCG, node: int, name: str) -> str | None:
    """The operator's own name (`row_names`) of a row in `NAMED`; None if it has none, or several for `sequence`."""
    found = [
        own
        for own, row in zip(row_names(graph, node), rows(graph, node), strict=True)
        if not row.special and _is(graph, node, row, name)
    ]
    return found[0] if len(found) == 1 or (found and name != "sequence") else None


def _is(graph: PCG, node: int, row: Row, name: str) -> bool:
    known, inputs = atoms(graph), graph.nodes[node].inputs
    samples = [{S(a) for a in known[i].batch} for i in inputs]
    weights = [graph.nodes[i].op == "parameter" for i in inputs]
    split_weights = [is_split(letter) for letter, weight in zip(row.inputs, weights, strict=True) if weight]
    others = [letter for letter, weight in zip(row.inputs, weights, strict=True) if not weight]
    if name == "batch":
        allowed = all(letter in (of or {R, B}) for letter, of in zip(row.inputs, samples, strict=True))
        return any(samples) and allowed
    if name == "column":
        return any(split_weights) and not any(map(is_split, others)) and is_split(row.output)
    if name == "row":
        return any(split_weights) and row.output == P
    other_dim = is_split(row.output) and row.output not in {S(a) for a in known[node].batch}
    if name == "heads":
        return graph.nodes[node].op == "attention" and other_dim and all(map(is_split, others))
    assert name == "sequence"
    if graph.nodes[node].op == "attention":
        return other_dim and is_split(others[0]) and not all(map(is_split, others))
    return other_dim and any(weights) and not any(split_weights)


def _own_names(graph: PCG, node: int, wanted: Sequence[str]) -> list[str | None]:
    """The names in `NAMED` as the node's own rows, None where it has none such; other names unchanged."""
    return [named_row(graph, node, name) if name in NAMED else name for name in wanted]


def _exact(graph: PCG, node: int, wanted: Sequence[str]) -> list[str]:
    """The rows of a node by their own names; PartitaError where it has none that is meant."""
    found = _own_names(graph, node, wanted)
    for name, row in zip(wanted, found, strict=True):
        if row is None:
            has = ", ".join(row_names(graph, node))
            raise PartitaError(f"--fix {graph.nodes[node].name}: {name!r} names no row of it; it has {has}")
    return [row for row in found if row is not None]


def _matching(graph: PCG, operators: Mapping[str, int], pattern: str, wanted: Sequence[str]) -> dict[str, str]:
    """The operators that a pattern matches and that have the rows -> the rows' own names."""
    matched = [name for name in operators if fnmatchcase(name, pattern)]
    if not matched:
        raise PartitaError(_nothing(graph, operators, pattern))
    twins, fixed = classes(graph).twin, dict[str, str]()
    for name in matched:
        node = operators[name]
        found = _own_names(graph, node, wanted)
        if node not in twins and set(found) <= {ANY, *row_names(graph, node)}:
            fixed[name] = ",".join(map(str, found))
    if not fixed:
        has = ", ".join(dict.fromkeys(row for name in matched for row in row_names(graph, operators[name])))
        raise PartitaError(f"--fix {pattern}: no operator that it matches has {', '.join(wanted)}; they have {has}")
    return fixed


def _nothing(graph: PCG, operators: Mapping[str, int], pattern: str) -> str:
    """Why a name or a pattern fixes nothing."""
    source = next((n for n in graph.nodes if n.op in SOURCES and fnmatchcase(n.name, pattern)), None)
    if source is not None:
        readers = [n.name for n in graph.nodes if any(graph.nodes[i] is source for i in n.inputs)]
        what = {"parameter": "a weight", "input": "an input"}.get(source.op, "a buffer")
        return f"--fix {pattern}: {source.name!r} is {what}; fix what reads it: {', '.join(readers[:8])}"
    return f"--fix {pattern}: no operator has such a name{did_you_mean(pattern, operators, 3)}"

"""Tables of the emitted program: which rank keeps and updates which part of a weight, and groups of ranks."""

import re
import textwrap
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations

from ....formulation.spacetime.graph import Graph
from ....formulation.spacetime.mask import Addends, Box, meet
from ....formulation.spacetime.materialized import Collective, Instruction, Materialized, Run, communicates
from ....formulation.spacetime.meetings import Meeting
from ....formulation.spacetime.messages import Message
from ....formulation.spacetime.op import Op, Phase
from ....model.graph.pcg import PCG, Node
from ....model.graph.sparse_tables import sparse_tables
from ....model.operators.operator import operator
from ..common.names import joined_text
from ..common.text import WIDTH

_KEEPS_NOTHING = ("embedding", "embedding_bag", "gather", "index", "add", "sub", "cat")
"""Operators for which autograd saves no weight."""

Parts = tuple[tuple[tuple[int, ...], Box], ...]
"""Ranks, and the box that each of them has."""


def _parts(ops: Iterable[Op]) -> Parts:
    ranks: dict[Box, set[int]] = {}
    for op in ops:
        assert op.device is not None
        ranks.setdefault(op.mask(None).box, set()).add(op.device)
    return tuple((tuple(sorted(found)), box) for box, found in sorted(ranks.items()))


def places(program: Materialized) -> list[str]:
    """The table of weights; weights of one shape with parts on the same ranks share a row."""
    graph = program.tasks.graph
    of: dict[tuple[int, Phase], list[Op]] = {}
    for op in program.tasks.ops:
        of.setdefault((op.node, op.phase), []).append(op)
    rows: dict[tuple[tuple[tuple[int, ...], ...], str, str], list[str]] = {}
    for node in sorted(graph.kept):
        kept, updated = _parts(of.get((node, Phase.STORE), ())), _parts(of.get((node, Phase.UPDATE), ()))
        name, known = graph.pcg.nodes[node].name, graph.atoms[node]
        whole = tuple((0, size) for size in known.sizes)
        rows.setdefault((known.dims, _text(kept, whole), _text(updated, whole)), []).append(name)
    lines = ["PLACES = [  # weights, factors of their dims, ranks that keep each part (None: all), that update each"]
    for key, names in rows.items():
        dims, kept_text, updated_text = key
        cells = (names_text(names), str(dims), kept_text, updated_text)
        lines += ["    (", *(line for cell in cells for line in _filled(f"{cell},", 8)), "    ),"]
    return [*lines, "]  # fmt: skip"]


def hosted(program: Materialized) -> list[str]:
    """The table of updates whose states are on the host; nothing where there are none."""
    graph, rows = program.tasks.graph, dict[str, list[str]]()
    updates: dict[int, list[Op]] = {}
    for op in program.tasks.ops:
        if op.phase is Phase.UPDATE and op.node not in sparse_tables(graph.pcg):
            updates.setdefault(op.node, []).append(op)
    for node, ops in updates.items():
        own = [op for op in ops if op.swapped is not None]
        if own:
            whole = tuple((0, size) for size in graph.atoms[node].sizes)
            parts = "None" if len(own) == len(ops) else _text(_parts(own), whole)
            rows.setdefault(parts, []).append(graph.pcg.nodes[node].name)
    if not rows:
        return []
    lines = ["HOSTED = [  # weights whose optimizer states are on the host, of which parts (None: of all)"]
    for parts, names in rows.items():
        lines += ["    (", *(line for cell in (names_text(names), parts) for line in _filled(f"{cell},", 8)), "    ),"]
    return [*lines, "]  # fmt: skip"]


def _filled(entry: str, indent: int) -> list[str]:
    """A list in lines of at most `WIDTH` columns, as few as possible."""
    pad = " " * indent
    return textwrap.wrap(
        entry, WIDTH, initial_indent=pad, subsequent_indent=pad + " ", break_long_words=False, break_on_hyphens=False
    )


def overlapping(program: Materialized) -> bool:
    """True if some ranks update different, overlapping parts of one weight."""
    updates: dict[int, set[Box]] = {}
    for op in program.tasks.ops:
        if op.phase is Phase.UPDATE:
            updates.setdefault(op.node, set()).add(op.mask(None).box)
    return any(meet(a, b) is not None for boxes in updates.values() for a, b in combinations(boxes, 2))


def _text(parts: Parts, whole: Box) -> str:
    return "[" + ", ".join(f"({ranks}, {None if box == whole else box})" for ranks, box in parts) + "]"


def names_text(names: Sequence[str]) -> str:
    """A list of names, written as a range if they differ in one number only."""
    split = [re.split(r"(?<=\.)(\d+)(?=\.)", name, maxsplit=1) for name in names]
    if len(names) > 2 and all(len(parts) == 3 for parts in split) and len({parts[0] for parts in split}) == 1:
        numbers = sorted({int(parts[1]) for parts in split})
        ends = list(dict.fromkeys(parts[2] for parts in split))
        full = [f"{split[0][0]}{i}{end}" for i in numbers for end in ends]
        if sorted(full) == sorted(names) and numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 1:
            first = f"{numbers[0]}, " if numbers[0] else ""
            over = f"for i in range({first}{numbers[-1] + 1})"
            if len(ends) == 1:
                return f'[f"{split[0][0]}{{i}}{ends[0]}" {over}]'
            each = ", ".join(f'"{end[1:]}"' for end in ends)
            return f'[f"{split[0][0]}{{i}}.{{name}}" {over} for name in ({each})]'
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


def group_of(collective: Collective) -> tuple[int, ...]:
    """The ranks of a collective; in their order only where it matters."""
    return collective.group if collective.atoms else tuple(sorted(collective.group))


def groups_of(program: Materialized) -> set[tuple[int, ...]]:
    """The groups of ranks in statements."""
    return {group for device in program.devices for own in device for group in _groups(own)}


def _groups(instruction: Instruction) -> Sequence[tuple[int, ...]]:
    """The groups of ranks with which an instruction communicates."""
    match instruction:
        case Collective():
            return [group_of(instruction)]
        case Run(op=op, meeting=Meeting() as meeting):
            return [meeting.group(op, cut) for cut in range(len(meeting.cuts))]
    return ()


def differing(
    instructions: Sequence[Instruction],
    loss: int,
    copies: Mapping[Addends, int],
    names: Mapping[tuple[int, ...], str],
    messages: Mapping[int, tuple[Message, int]],
) -> tuple[Hashable, ...]:
    """What equal ranks must have alike for their statements to be: names of groups, messages, copies of the loss."""
    found: list[Hashable] = []
    for own in filter(communicates, instructions):
        found += [names[group] for group in _groups(own)]
        if isinstance(own, Collective):
            message, sends = messages.get(own.key, (None, None))
            found.append((message, sends == own.key))
    runs = (own.op for own in instructions if isinstance(own, Run) and own.op.node == loss and own.op.is_forward)
    return *found, *(copies[op.mask(None).addends] for op in runs)


def families(groups: Iterable[tuple[int, ...]], ranks: int) -> tuple[dict[tuple[int, ...], str], list[str]]:
    """Names of groups of ranks by family: the groups of a family are disjoint and of one size."""
    found: list[list[tuple[int, ...]]] = []
    for group in sorted(set(groups)):
        fits = (f for f in found if len(f[0]) == len(group) and all(set(group).isdisjoint(other) for other in f))
        family = next(fits, None)
        if family is None:
            found.append([group])
        else:
            family.append(group)
    names: dict[tuple[int, ...], str] = {}
    lines = ["GROUPS = {  # of ranks that communicate together"]
    for family in found:
        size = len(family[0])
        base = "all" if family[0] == tuple(range(ranks)) else _WORDS.get(size, str(size))
        count = sum(base in (name, name.rpartition(" ")[0]) for name in set(names.values()))
        name = f"{base} {count + 1}" if count else base
        names.update(dict.fromkeys(family, name))
        lines += _filled(f'"{name}": {[list(group) for group in family]},', 4)
    return names, [*lines, "}"]


_WORDS = {2: "pairs", 4: "fours", 8: "eights"}


def buffers(graph: Graph) -> list[str]:
    """The tables of buffers: of those that are whole on every rank, and of those that a step changes."""
    nodes = [graph.pcg.nodes[i] for i in graph.pcg.of("buffer") if i in graph.given]
    changed = [graph.pcg.nodes[i] for i in graph.pcg.of("buffer") if i in graph.kept]
    lines = list[str]()
    if nodes:
        lines += ["KEPT_BUFFERS = {  # on every rank, by name: shape, dtype (None: the model's)"]
        lines += [*(f'    "{node.name}": ({node.shape}, {_dtype(node)}),' for node in nodes), "}"]
    if changed:
        lines += ["CHANGED_BUFFERS = {  # which a step changes, by name: dtype (None: the model's)"]
        lines += [*(f'    "{node.name}": {_dtype(node)},' for node in changed), "}"]
    return lines


def _dtype(node: Node) -> str:
    return "None" if node.dtype == "float32" else f"torch.{node.dtype}"


def sparse(pcg: PCG) -> str:
    """Names of the tables with sparse gradients."""
    return _set([pcg.nodes[i].name for i in sparse_tables(pcg)])


def joined(pcg: PCG) -> list[str]:
    """The constant that names the original tensors of weights that join several; nothing where none does."""
    found = {pcg.nodes[i].name: joined_text(pcg.nodes[i]) for i in pcg.of("parameter") if _joins(pcg.nodes[i])}
    if not found:
        return []
    lines = ["JOINED = {  # names and rows of the original tensors that lie one below another in a weight"]
    for name, text in found.items():
        lines += _filled(f'"{name}": {text},', 4)
    return [*lines, "}  # fmt: skip"]


def _joins(node: Node) -> bool:
    return bool(node.get("tables") or node.get("joined"))


def frozen(program: Materialized) -> str:
    """Names of the weights and buffers that are not trained."""
    pcg = program.tasks.graph.pcg
    trained = {op.node for op in program.tasks.ops if op.phase is Phase.UPDATE}
    nodes = [pcg.nodes[i] for op in ("parameter", "buffer") for i in pcg.of(op) if i not in trained]
    return _set([name for node in nodes for name in dict.fromkeys((node.name, *node.originals))])


def kept(graph: Graph) -> str:
    """Weights that autograd may save since backward does not fetch them again: not only products read them."""
    pcg = graph.pcg

    def fetched_again(index: int, reader: int) -> bool:
        node = pcg.nodes[reader]
        entry = operator(node.op)
        names = [name for name, i in zip(entry.named(node), node.inputs, strict=True) if i == index]
        return node.op in _KEEPS_NOTHING or {*names} <= {*entry.saved}

    weights = (i for i in pcg.of("parameter") if len(pcg.nodes[i].shape) > 1)
    return _set(
        [
            pcg.nodes[i].name
            for i in weights
            if i in graph.retained or not all(fetched_again(i, r) for r in pcg.consumers[i])
        ]
    )


def _set(names: Sequence[str]) -> str:
    return f"{{{', '.join(f'{name!r}' for name in names)}}}".replace("'", '"') if names else "set()"

"""Initial values in emitted programs: the constructor of the user's module as lines that every rank runs."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from ....model import mersenne_twister
from ....model.graph.pcg import PCG
from ....model.initial_values import FILE, NARROW, SERIAL, InitialValues, Write
from .features import Context
from .rolled_lines import line, quoted, rolled, written
from .text import tuple_text, wrap

CHUNK = "CHUNK = 1 << 22  # elements of a weight that are drawn or read at a time"

MANY = 1 << 28
"""Numbers of 32 bits, drawn in about two seconds: programs that may skip more can jump."""


def context(initial: InitialValues | None, graphs: Iterable[PCG]) -> Context:
    """What the template needs."""
    names = {name for graph in graphs for name in graph.originals}
    given = initial or InitialValues()
    unknown = sorted(names - given.names)
    writes = _needed(given.writes, names)
    drawn = [write for write in writes if write.drawn]
    kinds = {write.kind for write in drawn}
    many = sum(write.draws + write.skipped for write in given.writes) > MANY
    stored = any(name in names for name in given.stored)
    what = "The values that the module's constructor gives"
    if not writes:
        what = "The values of the module when it was planned"
    elif drawn:
        what += " after torch.manual_seed(SEED)"
    return {
        "unknown": f"no initial values of {_counted(unknown)}" if unknown else "",
        "drawn": kinds,
        "truncated": "truncated" in kinds,
        "normals": bool(kinds & {"normal", "truncated"}),
        "constants": "truncated" in kinds or any(write.kind == "constant" for write in writes),
        "listed": any(write.kind == "values" for write in writes),
        "dtypes": any(write.dtype != "float32" for write in drawn),
        "narrow": any(write.drawn == "normal" and write.dtype in NARROW for write in drawn),
        "chained": any(write.calls for write in drawn),
        "seeded": any(write.seed is not None for write in writes),
        "stored": stored,
        "complete": stored,
        "jumps": _jump() if many and drawn else "",
        "doc": f"{what}.",
        "skipping": any(write.skipped for write in writes),
        "lines": _lines(writes, stored),
    }


def _counted(names: Sequence[str]) -> str:
    """The first name, if it is short, and how many there are."""
    first = f" ({names[0]})" if len(names) == 1 else f" ({names[0]} and others)"
    return f"{len(names)} weight{'s' if len(names) > 1 else ''}{first if len(first) < 40 else ''}"


def constants(initial: InitialValues | None) -> Sequence[str]:
    """The constants of the program that its lines mention."""
    return [CHUNK] if initial and (initial.stored or any(write.drawn for write in initial.writes)) else []


def imports(initial: InitialValues | None) -> Sequence[str]:
    many = initial is not None and sum(write.draws + write.skipped for write in initial.writes) > MANY
    return ["from functools import cache"] if many else []


def buffers(initial: InitialValues | None, graphs: Sequence[PCG]) -> list[str]:
    """The constant that names buffers which a checkpoint may lack; nothing unless all initial values are known."""
    names = {name for graph in graphs for i in graph.of("buffer") for name in graph.nodes[i].originals}
    known = initial.names if initial else frozenset()
    if not names or not all(graph.originals.keys() <= known for graph in graphs):
        return []
    listed = ", ".join(f'"{name}"' for name in sorted(names))
    return wrap(f"BUFFERS = {{{listed}}}", 0)


def unsaved(graphs: Sequence[PCG], aliases: Iterable[tuple[str, str]]) -> list[str]:
    """The constant that names buffers which the module does not save; nothing where there are none."""
    nodes = [graph.nodes[i] for graph in graphs for i in graph.of("buffer")]
    names = {node.name for node in nodes if not node.get("persistent", True)}
    names |= {alias for alias, name in aliases if name in names}
    listed = ", ".join(f'"{name}"' for name in sorted(names))
    return wrap(f"UNSAVED = {{{listed}}}", 0) if names else []


def _jump() -> str:
    """The source of `jump`."""
    text = Path(mersenne_twister.__file__).read_text().partition("# --- copied from here ---")[2].strip()
    return f"JUMP = {mersenne_twister.JUMP:_}  # numbers that are drawn in the time of a jump\n\n\n{text}"


def _needed(writes: Sequence[Write], names: Collection[str]) -> list[Write]:
    """The writes into the graph's weights; draws of others are skipped."""
    found: list[Write] = []
    skipped, seed = 0, None
    for write in writes:
        if write.seed is not None:
            skipped, seed = 0, write.seed
        skipped += write.skipped
        serial = write.kind == "normal" and prod(write.shape) < SERIAL  # the next one may be the second of a pair
        if write.name is None or write.name in names or serial:
            name = write.name if write.name in names else None
            found.append(replace(write, name=name, skipped=skipped, seed=seed))
            skipped, seed = 0, None
        else:
            skipped += write.draws
    return found


def _lines(writes: Sequence[Write], stored: bool) -> list[str]:
    texts: list[str] = []
    for write in writes:
        if write.seed is not None:
            texts.append(f"initial.seed({write.seed})")
        if write.skipped:
            texts.append(f"initial.skip({write.skipped:_})")
        texts.append(_text(write))
    lines = written(rolled([line(text) for text in texts]))
    if stored:
        lines.append(f'    initial.read(os.path.join(os.path.dirname(os.path.abspath(__file__)), "{FILE}"))')
    return lines


def _text(write: Write) -> str:
    """A call that makes some rows of a weight."""
    name = "None" if write.name is None else quoted(write.name)
    whole = write.kind == "values" and "float" not in write.dtype
    numbers = [repr(int(number) if whole else number) for number in write.numbers]
    if write.kind == "truncated":
        numbers[-1] = f"rounds={write.rounds}"
    arguments = [name, tuple_text([str(size) for size in write.shape])]
    arguments += [f"[{', '.join(numbers)}]"] if write.kind == "values" else numbers
    if write.first:
        arguments.append(f"first={write.first}")
    if write.dtype != "float32" and write.kind != "constant":
        arguments.append(f"dtype=torch.{write.dtype}")
    if write.calls:
        chain = "".join(f".{call}({', '.join(map(_argument, given))})" for call, given in write.calls)
        arguments.append(f"then=lambda x: x{chain}")
    return f"initial.{write.kind}({', '.join(arguments)})"


def _argument(value: float | str | None) -> str:
    return f"torch.{value}" if isinstance(value, str) else repr(value)

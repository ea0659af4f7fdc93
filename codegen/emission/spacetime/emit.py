"""A materialized space-time plan as one readable program that needs only torch."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ....formulation.spacetime.mask import VALUE
from ....formulation.spacetime.materialized import Collective, Program, Receive, Run
from ....formulation.spacetime.op import Phase
from ....model.errors import PartitaError
from ....model.graph.pcg import PCG, SOURCES
from ....model.graph.sparse_tables import sparse_tables
from ....model.operators.operator import operator
from ..common import defaults
from ..common.conversions import Used
from ..common.data import sample_lines, synthetic_lines
from ..common.losses import counted
from ..spmd.emit import _OPTIMIZERS, _counters, _spaced, _values, imports
from ..templates import environment
from .counts import count_lines
from .devices import Device
from .flow import Flow
from .library import Functions
from .lines import Line, Number, Piece, rolled, with_numbers, written
from .lines import numbers as numbers_of
from .lines import shape as shape_of
from .prefetch import by_layer
from .tables import buffers, families, overlapping, places

DTYPES = ("float32", "float64", "bfloat16", "float16")
_GROUP = re.compile(r"⟨([\d,]+)⟩")
_STEPS = 10
_KEEPS_NOTHING = ("embedding", "embedding_bag", "gather", "index", "add", "sub", "cat")
"""Operators of which autograd keeps no weight."""
MOST_PARAMETERS = 4
"""Numbers in which devices of one function may differ."""


def emit(program: Program, *, dtype: str = "float32", optimizer: str = "adamw", summary: Sequence[str] = ()) -> str:
    """The program's text, the same every time; `summary` are lines for the top of it.

    Raises PartitaError for what cannot be written down: mixed precision, sparse tables, joined parameters, parameters
    that are updated where they are not kept.
    """
    program = by_layer(program)
    pcg = program.tasks.graph.pcg
    _check(program, pcg, dtype, optimizer)
    used = Used()
    functions = Functions(used, _fetches(program, pcg))
    copies = Counter(
        run.op.mask(None).addends
        for device in program.devices
        for run in _runs(device)
        if run.op.node == pcg.loss and run.op.phase is Phase.FORWARD
    )
    devices = [Device(Flow(program, d), functions, program.shapes, copies) for d in range(len(program.devices))]
    kinds = {i.kind for device in program.devices for i in device if isinstance(i, Collective)}
    lines = [device.lines().pieces for device in devices]
    names, groups = families(_groups(lines), len(devices))
    bodies = [rolled([_named(piece, names) for piece in pieces]) for pieces in lines]
    texts, table = _devices(devices, bodies)
    counts = count_lines(pcg, counted(pcg), used) if counted(pcg) else []
    synthetic, samples = synthetic_lines(pcg, pcg.batch, used), sample_lines(pcg, pcg.batch)
    made = [functions.text(name) for name in functions.codes]
    ops = [op for op in program.tasks.ops if op.phase is Phase.FORWARD]
    text = (
        environment()
        .get_template("spacetime/program.jinja")
        .render(
            docstring=_docstring(summary, len(devices), pcg),
            imports=[
                *_import_lines(used, any(op.swapped for op in ops), any("partial(" in line for line in table)),
                *_collectives(kinds),
            ],
            constants=[
                f"RANKS = {len(devices)}",
                f"BATCH = {pcg.batch}  # samples in a step",
                f"DTYPE = torch.{dtype}",
                f"SEED, STEPS = {defaults.SEED}, {_STEPS}",
                'OUTPUT = os.path.splitext(__file__)[0] + ".trained.pt"  # unless the command line says where',
                *(["", *groups] if names else []),
                "",
                *places(program),
                f"FROZEN = {_frozen(pcg, program)}",
                *([f"KEPT = {_kept(pcg)}"] if functions.fetches else []),
                *([*buffers(pcg)] if pcg.of("buffer") else []),
                *_values(used),
            ],
            groups=bool(names),
            collectives=kinds,
            split=any(op.split for op in ops),
            swapped=any(op.swapped for op in ops),
            fetches=functions.fetches,
            counts=counts,
            helpers=used.helpers,
            recompute=frozenset(),
            primitives=used.primitives,
            random_bits=_counters("mix", "mix_", "random_bits"),
            dropped=_counters("dropped"),
            sparse=False,
            functions=made,
            devices=texts,
            table=table,
            aliases=pcg.aliases,
            buffers=bool(pcg.of("buffer")),
            optimizer_doc=f"{_OPTIMIZERS[optimizer][0]} over what this rank updates of the weights.",
            optimizer_call=_OPTIMIZERS[optimizer][1],
            min_factor=defaults.MIN_FACTOR,
            lr=defaults.LEARNING_RATE,
            weight_decay=defaults.WEIGHT_DECAY[optimizer],
            clip=defaults.CLIP_NORM,
            warmup=defaults.WARMUP_STEPS,
            total=defaults.TOTAL_STEPS,
            reduction=pcg.nodes[pcg.loss].get("reduction", "mean"),
            synthetic=synthetic,
            samples=samples,
            overlapping=overlapping(program),
        )
    )
    if not re.search(r"\bF\.", text):
        text = text.replace("import torch.nn.functional as F\n", "")
    return _spaced(text)


def _check(program: Program, pcg: PCG, dtype: str, optimizer: str) -> None:
    if dtype not in DTYPES:
        raise PartitaError(f"dtype {dtype!r}: programs of space-time plans compute in one of {', '.join(DTYPES)}")
    if optimizer not in _OPTIMIZERS:
        raise PartitaError(f"optimizer {optimizer!r} is none of {', '.join(_OPTIMIZERS)}")
    if sparse_tables(pcg):
        raise PartitaError(f"{pcg.nodes[min(sparse_tables(pcg))].name!r}: sparse gradients are not supported here")
    for index in pcg.of("parameter"):
        node = pcg.nodes[index]
        if node.originals != {node.name: node.shape}:
            raise PartitaError(f"{node.name!r} joins several parameters, which space-time plans do not support")
    for op in program.tasks.ops:
        if op.of.op not in SOURCES and any(cut.row.special for cut in op.cuts):
            raise PartitaError(f"{op.name}: special strategies are not supported in space-time plans")


def _runs(device: Sequence[object]) -> Iterator[Run]:
    return (i for i in device if isinstance(i, Run))


def _fetches(program: Program, pcg: PCG) -> bool:
    """Whether some device takes weights from others."""
    return any(
        isinstance(i, Receive | Collective)
        and i.target.tensor.kind == VALUE
        and pcg.nodes[i.target.tensor.node].op == "parameter"
        for device in program.devices
        for i in device
    )


def _frozen(pcg: PCG, program: Program) -> str:
    """What has no gradient among weights and buffers."""
    trained = {run.op.node for device in program.devices for run in _runs(device) if run.op.phase is Phase.UPDATE}
    names = [pcg.nodes[i].name for op in ("parameter", "buffer") for i in pcg.of(op) if i not in trained]
    return _set(names)


def _kept(pcg: PCG) -> str:
    """Weights of which autograd may keep what backward is not given again: they are read in more than products."""

    def given_again(index: int, reader: int) -> bool:
        node = pcg.nodes[reader]
        entry = operator(node.op)
        names = [name for name, i in zip(entry.named(node), node.inputs, strict=True) if i == index]
        return node.op in _KEEPS_NOTHING or {*names} <= {*entry.saved}

    weights = (i for i in pcg.of("parameter") if len(pcg.nodes[i].shape) > 1)
    return _set([pcg.nodes[i].name for i in weights if not all(given_again(i, r) for r in pcg.consumers[i])])


def _set(names: Sequence[str]) -> str:
    return f"{{{', '.join(f'{name!r}' for name in names)}}}".replace("'", '"') if names else "set()"


def _groups(lines: Sequence[Sequence[Piece]]) -> set[tuple[int, ...]]:
    """The groups of ranks that statements speak of."""
    text = (part for pieces in lines for piece in pieces if isinstance(piece, Line) for part in piece.text)
    return {tuple(map(int, found.split(","))) for part in text for found in _GROUP.findall(part)}


def _named(piece: Piece, names: dict[tuple[int, ...], str]) -> Piece:
    """Groups by the names of their families."""
    assert isinstance(piece, Line)
    text = tuple(_GROUP.sub(lambda m: f'"{names[tuple(map(int, m[1].split(",")))]}"', part) for part in piece.text)
    return replace(piece, text=text)


def _import_lines(used: Used, swapped: bool, partial: bool) -> list[str]:
    lines = imports(used)
    names = [*(["partial"] if partial else []), *(["reduce"] if "added" in used.helpers else [])]
    lines[lines.index("from functools import partial")] = f"from functools import {', '.join(names)}"
    lines = [line for line in lines if line != "from functools import "]
    at = lines.index("import sys")
    if swapped:
        lines.insert(at + 1, "import tempfile")
    return [*lines, "from torch.autograd.graph import get_gradient_edge"]


def _collectives(kinds: set[str]) -> list[str]:
    if "reduce_scatter" not in kinds:
        return []
    name = 'getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor'
    return ["", f"reduce_scatter = {name}  # renamed in torch 2.13"]


def _docstring(summary: Sequence[str], ranks: int, pcg: PCG) -> str:
    lines = ['"""Training program of a space-time plan.', ""]
    lines += [f"    {line}" for line in summary] + ([""] if summary else [])
    lines += [f"Run: torchrun --nproc-per-node {ranks} program.py", '"""']
    return "\n".join(lines)


# Devices


def _devices(devices: Sequence[Device], bodies: Sequence[Sequence[Piece]]) -> tuple[list[str], list[str]]:
    """The functions of the devices, and the table that says which rank runs which."""
    alike: dict[object, list[int]] = {}
    for number, body in enumerate(bodies):
        alike.setdefault(tuple(map(shape_of, body)), []).append(number)
    texts: list[str] = []
    entries: dict[int, str] = {}
    for members in alike.values():
        columns = list(zip(*([n.constant for p in bodies[d] for _, n in numbers_of(p)] for d in members), strict=True))
        differing = list(dict.fromkeys(c for c in columns if len(set(c)) > 1))
        groups = [members] if len(differing) <= MOST_PARAMETERS else [[d] for d in members]
        for group in groups:
            text, called = _device(devices, bodies, group, differing if len(groups) == 1 else [], columns)
            texts.append(text)
            entries |= called
    table = ["# By rank.", "DEVICES = [", *(f"    {entries[d]}," for d in range(len(devices))), "]"]
    return texts, table


_PARAMETERS = {"i": "first", "m": "part"}


def _device(
    devices: Sequence[Device],
    bodies: Sequence[Sequence[Piece]],
    group: Sequence[int],
    differing: Sequence[tuple[int, ...]],
    columns: Sequence[tuple[int, ...]],
) -> tuple[str, dict[int, str]]:
    """The function of devices that are alike, and how each of them calls it."""
    body = bodies[group[0]]
    roles = [role for piece in body for role, _ in numbers_of(piece)]
    names: dict[tuple[int, ...], str] = {}
    for role, column in zip(roles, columns, strict=True):
        if column in differing and column not in names:
            wish = _PARAMETERS.get(role, role)
            count = sum(re.sub(r"\d+$", "", name) == wish for name in names.values())
            names[column] = f"{wish}{count + 1}" if count else wish
    if names:
        constants = iter(columns)
        moved: list[Piece] = []
        for piece in body:
            own = [n for _, n in numbers_of(piece)]
            new = [Number(0, ((names[c], 1), *n.terms)) if (c := next(constants)) in names else n for n in own]
            moved.append(with_numbers(piece, iter(new)))
        body = moved
    name = (
        f"device_{group[0]}" if len(group) == 1 else "device" if len(group) == len(devices) else f"devices_{group[0]}"
    )
    lines = written(body)
    stores = [s for s in "vgwu" if any(re.search(rf"(?<![\w.\"]){s}[.\[]|\b{s},", line) for line in lines)]
    head = f"def {name}({', '.join(['run', *names.values()])}):"
    about = f'    """{_about(devices, group)}"""'
    taken = [f"    {', '.join(stores)} = {', '.join(f'run.{s}' for s in stores)}"] if stores else []
    calls = {
        d: f"partial({name}, {', '.join(f'{k}={c[place]}' for c, k in names.items())})" if names else name
        for place, d in enumerate(group)
    }
    return "\n".join([head, about, *taken, *lines]), calls


def _about(devices: Sequence[Device], group: Sequence[int]) -> str:
    """Which ranks, and what of the model they run."""
    ranks = f"Rank {group[0]}" if len(group) == 1 else f"Ranks {', '.join(map(str, group))}"
    paths = list(
        dict.fromkeys(
            ".".join(op.of.path.split(".")[:2])
            for segment in devices[group[0]].arranged.segments
            for op in segment.ops
            if op.of.path
        )
    )
    what = ", ".join(paths) if len(paths) <= 3 else f"{paths[0]} to {paths[-1]}"
    return textwrap.shorten(f"{ranks}: {what or 'no part of the model'}.", 110)

"""Benchmarks and the baselines that plans are compared with. `partita bench NAME` runs one."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ..model.errors import PartitaError

BENCHES = {
    "baselines": "Steps of emitted programs beside DDP, fully_shard and parallelize_module, on four ranks.",
    "branches": "Models with branches: the best plan with parallel branches and without.",
    "checkpoints": "Training that stops, is killed, and goes on under other plans: losses, memory and time.",
    "conversions": "Planners' plans of the zoo as space-time plans: converted, priced beside the plan, trained.",
    "coverage": "How many rules of given files follow from the generated ones.",
    "derived": "Rules with parallel operators, derived from the layouts and moves among which the search chooses.",
    "folding": "Hand-written plans of growing micro-batches, layers and ranks: built, predicted and emitted.",
    "forced": "Plans forced by flags against the free search: none may be below its bound.",
    "generation": "Rules generated and proved, step by step, timed.",
    "initial": "What ranks begin with, beside the weights of the module's constructor, for many architectures.",
    "joint": "Rewriting, parallelization and placement decided jointly, compared with sequentially.",
    "local": "Steps on this machine, predicted by its profile and measured; whether the fastest are chosen.",
    "memory": "Memory of plans that recompute, swap, co-shard, pipeline and shard: predicted and measured.",
    "models": "Architectures of the ecosystem: captured, planned for 2x4 ranks, verified, each in its own process.",
    "network": "Reduction programs on real ranks in an emulated network: predicted and measured (root only).",
    "operators": "Every operator that PyTorch tests itself with: captured, planned for two ranks, verified.",
    "overlap": "Programs that communicate while they compute beside those that wait: measured and predicted.",
    "placements": "Placement and reduction programs as variables of one network, compared with enumeration.",
    "plan": "From model to proven plan: capture, formulate and solve, each timed.",
    "programs": "Programs of random plans, trained beside their modules by ranks that take turns in a random order.",
    "reductions": "The search for the cheapest reduction program as devices and levels grow, and enumeration.",
    "results": "Every number of the five results of P² (MLSys 2022) beside ours, and why they differ where they do.",
    "rules": "Generated rewrite rules beside the hand-written ones: steps, what matches, what plans take.",
    "rvd": "Communication by RVD search, by sends and at the exact optimum: SuperScaler's Table 3, Figures 16 to 18.",
    "schedules": "Pipeline schedules found and proved optimal by CP-SAT, compared with the named ones.",
    "sequence": "Long sequences: attention with gathered keys, as a ring, with heads exchanged, and free.",
    "solvers": "All backends on contest instances, networks of the planner and random families, with limits.",
    "spread": "Tables of DLRM and XDL spread over GPUs of Summit: loads, proofs and steps, compared with heuristics.",
    "superscaler": "SuperScaler's Figures 12 to 15: the planner beside other systems' spaces; co-shard on one device.",
    "truth": "Predicted and measured: the tables of P² (MLSys 2022), or training runs of a file, step and memory.",
    "whole": "The whole decision, pipelines included: Unity's and SuperScaler's models, with a gap and a time limit.",
    "windows": "Planning with traffic hidden behind kernels beside planning without: time and gap.",
    "zoo": "Every model of the zoo on the machine of its paper, within two minutes.",
}
"""Every benchmark is a module of this package with `run(small, only, tell) -> rows`.

It may have `totals(rows)`, counts over all rows, `summary(rows)`, one table or several by title, and
`write(result, folder)`, which writes files and returns notes about them.
"""

PARTS = ("bench", "command", "hardware", "rows", "summary", "notes")
"""The keys of a result that are not totals."""

OPTIONS = {
    "p2": ("truth", "--p2", "reads no measurements"),
    "sweep": ("truth", "--sweep", "reads no measurements"),
    "megatron": ("truth", "--megatron", "reads no measurements"),
    "free": ("truth", "--free", "compares no choices"),
    "held_out": ("truth", "--held-out", "fits no numbers"),
    "instances": ("solvers", "--instances", "solves no instances"),
    "time_limit": ("solvers", "--time-limit", "has its own limits"),
    "solver": ("solvers", "--solver", "compares no solvers"),
    "parts": ("solvers", "--parts", "splits no networks"),
    "rules": ("coverage", "--rules", "reads no rules"),
    "count": ("forced", "--count", "forces no plans"),
    "seed": ("forced", "--seed", "draws no cases"),
    "sample": ("models", "--sample", "draws no models"),
    "output": ("solvers", "--output", "writes no files"),
}
"""Options of few benchmarks: keyword of `run` (or `write`) -> one that takes it, the flag, why others lack it."""

ALSO = {("models", "seed"), ("programs", "count"), ("programs", "seed"), ("truth", "output")}
"""Further benchmarks with such an option."""


def bench(
    name: str,
    small: bool = False,
    only: Sequence[str] = (),
    tell: Callable[[str], None] | None = None,
    output: Path | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Run a benchmark: its rows and the hardware; `only` keeps the cases with one of its texts in their name.

    `options`: those that not every benchmark takes (`OPTIONS`); None, False or an empty list leaves one out. `output`:
    the folder for the files that it writes. PartitaError: an unknown name, or no case left.
    """
    if name not in BENCHES:
        raise PartitaError(f"no benchmark {name!r}; there are {', '.join(BENCHES)}")
    from ..model.files import check_writable
    from .hardware import hardware

    given = {key: value for key, value in options.items() if value is not False and value not in (None, (), [])}
    for key in (*given, *(("output",) if output is not None else ())):
        owner, flag, why = OPTIONS[key]
        if name != owner and (name, key) not in ALSO:
            raise PartitaError(f"{flag} is for `bench {owner}`; {name} {why}")
    if output is not None:
        check_writable(output)
    words = [*(["--small"] if small else []), *(f"--only {x}" for x in only)]
    words += _words(given | ({} if output is None else {"output": output}))
    module = importlib.import_module(f".{name}", __name__)
    rows = module.run(small, tuple(only), tell or (lambda words: None), **given)
    result = {"bench": name, "command": " ".join(["partita", "bench", name, *words]), "hardware": hardware()}
    result |= module.totals(rows) if hasattr(module, "totals") else {}
    result |= {"rows": rows} | ({"summary": module.summary(rows)} if hasattr(module, "summary") else {})
    return result | ({} if output is None else {"notes": module.write(result, output)})


def _words(options: Mapping[str, Any]) -> list[str]:
    """Options as they are typed."""
    return [
        OPTIONS[key][1] if one is True else f"{OPTIONS[key][1]} {one}"
        for key, value in options.items()
        for one in (value if isinstance(value, list | tuple) else [value])
    ]


def text(result: dict[str, Any]) -> str:
    """A benchmark's result as tables, with the command and the machine above them and the totals below."""
    machine = ", ".join(f"{k} {v}" for k, v in result["hardware"].items())
    sums = result.get("summary") or {}
    titled = sums if isinstance(sums, Mapping) else {"": sums}
    kinds = groupby(result["rows"], key=tuple)  # rows with other columns are a table of their own
    tables = [*(("", list(rows)) for _, rows in kinds), *titled.items()]
    lines = [line for title, rows in tables for line in ("", *([title] if title else []), *_table(rows))]
    totals = ", ".join(f"{key} {_cell(value)}" for key, value in result.items() if key not in PARTS)
    return "\n".join(
        [f"$ {result['command']}", machine, *lines, *([totals] if totals else []), *result.get("notes", ())]
    )


def _table(rows: Sequence[dict[str, Any]]) -> list[str]:
    head = list(rows[0])
    cells = [head, *([_cell(row[key]) for key in head] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(head))]
    return [
        "  ".join(
            f"{c:<{w}}" if i == 0 else f"{c:>{w}}" for i, (c, w) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value)
    if 0 < abs(value) < 0.005:  # not 0.00
        return f"{value:.1e}"
    return f"{value:,.2f}"

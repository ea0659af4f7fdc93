"""Predicted seconds and those that P² (MLSys 2022, appendix A) measured: every matrix, ring and tree.

A row is a parallelism matrix and an algorithm of NCCL: seconds of one all-reduce, and of the cheapest of all programs
of at most five collectives. `ratio` is predicted by measured. P² reduced 2^29 float32 on a device, ten times; 10 x 2^29
x 4 bytes is the payload here, for all systems. That is the only scale; the rest is the machine's description, chosen by
the system's name. Programs here are over level-major groups; P²'s optimum over several axes seems not to be.

`f1_k`, top-k F1, is P²'s table 5: how often the fastest measured program of a matrix is among the k predicted to be
fastest. That is one program, so precision, recall and F1 count the same (P²'s percentages are multiples of 1/124 and
1/76: one for each matrix and algorithm). The appendix gives the fastest program's time, not its name. So it is taken to
be the all-reduce where that was as fast, else the one that P² finds most often (figure 10ii): reduce-scatter,
all-reduce and all-gather, on one level without the all-reduce. `paper_k` is what P²'s own simulator reached.

`points_k` needs no such guess: the measured points of an experiment (each matrix by all-reduce and by its optimum) are
ordered by both clocks, and of the k fastest the share in common is counted. Experiments with k points or fewer say
nothing and are left out.

Pairs of matrices of one experiment whose measured times differ by more than 3 % are concordant / tied (predicted within
0.1 %) / discordant. An optimum that is not its all-reduce divided by the printed speed-up is a misprint and left out.
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, groupby
from pathlib import Path
from typing import Any

from ..formulation.placement.placement import of_rows
from ..formulation.reduction.cost import program_price
from ..formulation.reduction.enumeration import programs
from ..formulation.reduction.optimal import optimal
from ..formulation.reduction.program import Collective, Reduction, ReductionProgram, Step, flat
from ..model.errors import PartitaError
from ..model.files import read_json
from ..model.machine.machine import Machine
from .cases import Row, Tell
from .free_choice import compared
from .free_choice import summary as choices_summary
from .published_runs import Run
from .published_runs import megatron as megatron_runs
from .published_runs import sweep as sweep_runs
from .training_runs import predict as predict_runs
from .training_runs import summary as runs_summary
from .training_runs import totals as runs_totals
from .truth_pictures import write as write_pictures

P2 = Path(__file__).resolve().parent / "data" / "p2_a100.json"
BYTES = 10 * 2**29 * 4
LIMIT = 5
SMALL = 8
"""How many training runs a smoke test predicts."""
ALGORITHMS = ("ring", "tree")
TOPS = (1, 3, 5, 10)
PAPER = {1: 0.520, 3: 0.720, 5: 0.750, 10: 0.920}
"""Table 5, A100 and V100 together."""

RUNS = ("Runs of the sweep", "Runs of Megatron-LM")
CHOICES, REDUCTIONS = "The planner's own choice", "Reductions"
MACHINES = {"A100": "gcp-a100", "V100": "gcp-v100"}
APART, TIED, MISPRINT = 0.03, 1e-3, 0.1


def run(
    small: bool,
    only: Sequence[str],
    tell: Tell,
    p2: Path | None = None,
    sweep: Path | None = None,
    megatron: Path | None = None,
    free: bool = False,
    held_out: bool = False,
) -> list[Row]:
    """Predict every row of a file in the format of data/p2_a100.json; `small`: the experiments of the first system.

    `sweep` and `megatron` are files of training runs (`training_runs`), predicted instead, or too where `p2` is given:
    those of `megatron`, and of `sweep` with `held_out`, also by numbers fitted to other models' runs. `free` adds the
    planner's own choice for groups of the sweep (`free_choice`).
    PartitaError: a file in another format, a system that no machine describes, or no experiment left.
    """
    if free and sweep is None:
        raise PartitaError("--free needs --sweep, whose groups it plans")
    if held_out and sweep is None:
        raise PartitaError("--held-out needs --sweep, whose models it holds out; --megatron always does so")
    rows: list[Row] = []
    named: tuple[tuple[Path | None, Callable[[Path], list[Run]]], ...] = (
        (sweep, sweep_runs),
        (megatron, megatron_runs),
    )
    for given, read in named:
        if given is not None:
            runs = read(given)
            runs = runs[:: max(1, len(runs) // SMALL)] if small else runs
            rows += predict_runs(only, tell, runs, hold_out=held_out or given is megatron)
            rows += compared(runs, rows, tell) if free and given is sweep else []
    if rows and p2 is None:
        return rows
    file = P2 if p2 is None else p2
    groups = _groups(file)
    kept = [
        (number, group)
        for number, group in enumerate(groups)
        if (not small or group.get("system") == groups[0].get("system"))
        and (not only or any(text in _name(group) for text in only))
    ]
    if not kept:
        raise PartitaError(f"no experiment of {file} has {' or '.join(only)} in its name")
    for number, group in kept:
        tell(f"{number + 1} of {len(groups)}: {_name(group)}")
        try:
            rows += _experiment(group)
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            what = f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
            raise PartitaError(f"{file}: groups.{number}: {what}") from None
    return rows


def _groups(file: Path) -> list[Any]:
    data = read_json(file)
    groups = data.get("groups") if isinstance(data, dict) else None
    if not isinstance(groups, list) or not groups or not all(isinstance(group, dict) for group in groups):
        raise PartitaError(f"{file}: holds no list of groups, each with system, hierarchy, reduce_axes and rows")
    return groups


def _name(group: Any) -> str:
    axes, reduced = (" ".join(map(str, group.get(key) or ())) for key in ("parallelism_axes", "reduce_axes"))
    return f"{group.get('system')}: {axes} over {reduced}"


def machine_of(system: str, hierarchy: Sequence[int]) -> Machine:
    """The machine that a system such as "2 nodes each with 16 A100" names; PartitaError where none does."""
    found = re.fullmatch(r"\s*(\d+) nodes?,? each with (\d+) (?:NVIDIA |Tesla )*(\w+)(?: GPUs?)?\s*", str(system))
    if found is None or found[3] not in MACHINES:
        known = ", ".join(f'"2 nodes each with {n} {gpu}"' for n, gpu in ((16, "A100"), (8, "V100")))
        raise PartitaError(f"no machine for the system {system!r:.60}; there are some for such as {known}")
    machine = Machine.load(MACHINES[found[3]], nodes=int(found[1]))
    if machine.hierarchy != tuple(hierarchy) or machine.hierarchy[-1] != int(found[2]):
        raise PartitaError(f"{system!r:.60} has levels {machine.hierarchy}, not {tuple(hierarchy)}")
    return machine


def _experiment(group: Any) -> list[Row]:
    machine = machine_of(group["system"], group["hierarchy"])
    reduced = tuple(int(axis) for axis in group["reduce_axes"])
    placements = [of_rows(tuple(map(int, factors)) for factors in row["matrix"]) for row in group["rows"]]
    for placement in placements:
        if placement.hierarchy != machine.hierarchy:
            raise PartitaError(f"matrix {list(placement.matrix)} does not fit the levels {machine.hierarchy}")
    where = {"system": str(group["system"]), "axes": _x(placements[0].sizes), "over": _x(reduced)}
    return [
        _row(where, machine, Reduction(placement, reduced), algorithm, row)
        for algorithm in ALGORITHMS
        for placement, row in zip(placements, group["rows"], strict=True)
        if (row.get("allreduce") or {}).get(algorithm) is not None
    ]


def _row(where: Row, machine: Machine, reduction: Reduction, algorithm: str, published: Any) -> Row:
    profile, levels = f"nccl-{algorithm}", len(reduction.sizes)

    def seconds(program: ReductionProgram) -> float:
        return program_price(machine, reduction, program, profile).ns(BYTES) / 1e9

    times = {program: seconds(program) for program in programs(levels, LIMIT)}
    best = optimal(machine, reduction, BYTES, profile=profile, limit=LIMIT)
    usual = (*_steps(Collective.REDUCE_SCATTER, levels), *_outer(levels), *_steps(Collective.ALL_GATHER, levels))
    flat_s, best_s = times[flat(reduction.sizes)], min(best.ns / 1e9, *times.values())
    measured, best_measured = _measured(published, algorithm)
    return where | {
        "matrix": " / ".join(" ".join(map(str, row)) for row in reduction.placement.matrix),
        "algorithm": algorithm,
        "predicted_s": flat_s,
        "measured_s": measured,
        "ratio": flat_s / measured,
        "best_predicted_s": best_s,
        "best_measured_s": best_measured,
        "best_ratio": None if best_measured is None else best_s / best_measured,
        "rank_all_reduce": _rank(times, flat(reduction.sizes)),
        "rank_usual": _rank(times, usual),
        "programs": len(times),
    }


def _measured(row: Any, algorithm: str) -> tuple[float, float | None]:
    """Seconds of the all-reduce and of the optimum, None where that was not measured or is a misprint."""
    flat_s = float(row["allreduce"][algorithm])
    best_s, gain = ((row.get(key) or {}).get(algorithm) for key in ("optimal", "speedup"))
    if best_s is None or (gain is not None and abs(flat_s / best_s / gain - 1) > MISPRINT):
        return flat_s, None
    return flat_s, float(best_s)


def _steps(collective: Collective, levels: int) -> ReductionProgram:
    """The collective over the innermost level."""
    return (Step(collective, levels - 1, levels - 1),)


def _outer(levels: int) -> ReductionProgram:
    return (Step(Collective.ALL_REDUCE, 0, levels - 2),) if levels > 1 else ()


def _rank(times: dict[ReductionProgram, float], program: ReductionProgram) -> int:
    """1 for the fastest; programs of equal time stand in the order of enumeration, short ones first."""
    return sorted(times, key=times.__getitem__).index(program) + 1


def _x(numbers: Iterable[int]) -> str:
    return "x".join(map(str, numbers))


# What all rows say together


def totals(rows: Sequence[Row]) -> Row:
    """The statistics of the training runs of one file; none for the tables of P², nor over several files."""
    runs = [part for kind, part in _parts(rows).items() if kind in RUNS]
    return runs_totals(runs[0]) if len(runs) == 1 else {}


def summary(rows: Sequence[Row]) -> list[Row] | dict[str, list[Row]]:
    """That of each kind of rows, by title where there are several, and the totals of each file of training runs."""
    parts = _parts(rows)
    found = {kind: SUMMARIES.get(kind, runs_summary)(part) for kind, part in parts.items()}
    if len(found) == 1:
        return next(iter(found.values()))
    files = [{"rows": kind} | runs_totals(part) for kind, part in parts.items() if kind in RUNS]
    return found | ({"All training runs of a file": files} if files else {})


def _parts(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows by what they are of."""
    parts: dict[str, list[Row]] = {}
    for row in rows:
        kind = RUNS[row["tier"] == "megatron"] if "run" in row else CHOICES if "group" in row else REDUCTIONS
        parts.setdefault(kind, []).append(row)
    return parts


def write(result: dict[str, Any], folder: Path) -> list[str]:
    """Write pictures into a folder."""
    return write_pictures(result["rows"], folder)


def reductions(rows: Sequence[Row]) -> list[Row]:
    """For every kind of GPU and algorithm, and over all: ratios, order of pairs, F1."""
    parts = {"all": list(rows)}
    for row in rows:
        kind = f"{row['system'].split()[-1]} {row['algorithm']}"
        parts.setdefault(kind, []).append(row)
    return [{"rows": name} | _summary(part) for name, part in parts.items()]


def _summary(rows: Sequence[Row]) -> Row:
    known = [row for row in rows if row["best_measured_s"] is not None]
    result: Row = {"count": len(rows)}
    for prefix, part in (("", rows), ("best_", known)):
        ratios = [row[f"{prefix}ratio"] for row in part]
        result[f"{prefix}ratio"] = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
        result[f"{prefix}range"] = f"{min(ratios):.2f}..{max(ratios):.2f}" if ratios else None
        result[f"{prefix}pairs"] = " / ".join(map(str, _pairs(part, prefix)))
    for k in TOPS:
        hits = [row["rank_all_reduce" if _as_fast(row) else "rank_usual"] <= k for row in known]
        result[f"f1_{k}"] = sum(hits) / len(hits) if hits else None
        result[f"paper_{k}"] = PAPER[k]
        shares = [_common(points, k) for points in _points(known) if len(points) > k]
        result[f"points_{k}"] = sum(shares) / len(shares) if shares else None
    return result


def _as_fast(row: Row) -> bool:
    return bool(row["best_measured_s"] >= row["measured_s"])


def _by_experiment(rows: Sequence[Row]) -> Iterable[list[Row]]:
    for _, part in groupby(rows, key=lambda row: (row["system"], row["axes"], row["over"], row["algorithm"])):
        yield list(part)


def _pairs(rows: Sequence[Row], prefix: str) -> tuple[int, int, int]:
    """How many pairs are concordant, tied and discordant."""
    counts = [0, 0, 0]
    for part in _by_experiment(rows):
        for a, b in combinations(part, 2):
            measured, predicted = (math.log(a[prefix + key] / b[prefix + key]) for key in ("measured_s", "predicted_s"))
            if abs(measured) > math.log1p(APART):
                counts[1 if abs(predicted) < TIED else 0 if measured * predicted > 0 else 2] += 1
    return counts[0], counts[1], counts[2]


def _points(rows: Sequence[Row]) -> Iterable[list[tuple[float, float]]]:
    """(measured, predicted) of every experiment; a matrix whose optimum is its all-reduce has one point."""
    for part in _by_experiment(rows):
        yield [
            (row[f"{prefix}measured_s"], row[f"{prefix}predicted_s"])
            for row in part
            for prefix in ("", "best_")
            if not (prefix and _as_fast(row))
        ]


def _common(points: Sequence[tuple[float, float]], k: int) -> float:
    """Of the k points predicted to be fastest, the share that is no slower than the k-th measured one."""
    kth = sorted(measured for measured, _ in points)[k - 1]
    return sum(measured <= kth for measured, _ in sorted(points, key=lambda point: point[1])[:k]) / k


SUMMARIES = {CHOICES: choices_summary, REDUCTIONS: reductions}

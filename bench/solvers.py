"""All backends on the contest's instances, on networks of the planner, and on random families.

Every solve has a process of its own and a limit. `seconds` are those of the solver; of a contest instance all from the
start of the process, reading and compiling included, as the contest's limit means them. `cpu_s`: of the process and
its children. `parts`, `left`: what a backend was given of a split network. `verified`: the answer was
priced again on the instance as it was read, and no other solver's answer contradicts its bound. `above_pct`: how far
the objective is above the best verified one of the case. `score`: the contest's best cost by this one, 0 for one late.
"""

import csv
import io
import json
import math
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..formulation.network.contest import Contest
from ..formulation.network.network import INFINITE, Network, evaluate
from ..model.errors import PartitaError
from ..model.files import make_folder, write_directory
from ..solvers.backends.instance import read_instance
from ..solvers.gap import relative_gap, share_above
from ..solvers.protocol import solvers
from . import profiles
from .cases import Row, Tell, each
from .contained import Request, contained
from .instances import Case, cases, part_cases

PROOFS = ("optimal", "infeasible")
INTERRUPTED = "interrupted"
COMPARED = (
    *("auto", "elimination", "cpsat-plain"),
    *(f"{name}{way}" for name in ("cpsat", "milp", "smt") for way in ("", " whole")),
)
"""With `parts`: each backend on the parts of networks, and on the whole."""
PLAIN = "cpsat-plain"
"""The solver of the plain encoding, which `auto` is held against on the planner's networks."""


def run(
    small: bool,
    only: Sequence[str],
    tell: Tell,
    instances: Path | None = None,
    time_limit: float | None = None,
    solver: Sequence[str] = (),
    parts: bool = False,
) -> list[Row]:
    """A row for every case and solver; an interrupt keeps those that there are, and adds one that says so.

    `instances`: a folder of contest instances. `time_limit` in seconds, instead of each case's own. `solver`: names of
    those to be compared. `parts`: other cases, whole against split. PartitaError: no case or solver left, or no folder
    of instances.
    """
    if parts and instances is not None:
        raise PartitaError("--parts has cases of its own: leave out --instances")
    kept = each(part_cases(small) if parts else cases(small, instances), only, tell)
    known = COMPARED if parts else [backend.name for backend in solvers()]
    for name in solver:
        if name not in known:
            raise PartitaError(f"no solver is called {name!r}; there are {', '.join(known)}")
    names = [name for name in known if not solver or name in solver]
    rows: list[Row] = []
    for case in kept:
        rows += measure(case, names, case.seconds if time_limit is None else time_limit, tell)
        if rows[-1]["status"] == INTERRUPTED:
            break
    return rows


def measure(case: Case, names: Sequence[str], seconds: float, tell: Tell) -> list[Row]:
    """The rows of a case, in the order of the solvers' names; the last one is of an interrupt, if one came."""
    answers: dict[str, Row] = {}
    with tempfile.TemporaryDirectory(prefix="partita-") as scratch:
        folder = file = Path(scratch)
        try:
            file = case.file(folder)
            for name in names:
                tell(f"{case.name}: {name}, up to {seconds:g} s")
                answers[name] = contained(Request(str(file), name, seconds, case.group == "contest"), folder)
        except KeyboardInterrupt:
            nothing = dict.fromkeys(("objective", "bound", "assignment", "seconds", "memory_mib"))
            answers[names[len(answers)]] = {"status": INTERRUPTED, "words": "", **nothing}
        return judged(case, file, seconds, answers)


def judged(case: Case, file: Path, seconds: float, answers: Mapping[str, Row]) -> list[Row]:
    """The rows of a case's answers, verified on the instance in `file` and against each other."""
    found = [name for name, answer in answers.items() if answer["assignment"] is not None]
    instance = read_instance(file) if found else None
    costs = {name: _cost(instance, answers[name]) for name in found if instance is not None}
    best = min((cost for cost in costs.values() if cost is not None), default=None)
    return [_row(case, seconds, name, answer, costs, best) for name, answer in answers.items()]


def _cost(instance: Contest | Network, answer: Row) -> int | None:
    """What an answer's assignment costs on the instance; None where it does not fit, or costs not what is claimed."""
    try:
        verdict = (
            instance.evaluate(answer["assignment"])
            if isinstance(instance, Contest)
            else evaluate(instance, answer["assignment"])
        )
    except (ValueError, PartitaError):  # no option of every variable
        return None
    return verdict.cost if verdict.feasible and verdict.cost == answer["objective"] else None


def _row(case: Case, limit: float, name: str, answer: Row, costs: Mapping[str, int | None], best: int | None) -> Row:
    objective, bound, taken = answer["objective"], answer["bound"], answer["seconds"]
    if bound is not None and bound <= -INFINITE:
        bound = None
    wrong = (
        (name in costs and costs[name] is None)
        or (best is not None and (answer["status"] == "infeasible" or (bound is not None and bound > best)))
        or (answer["status"] == "optimal" and (name not in costs or bound != objective))
    )
    verified = False if wrong else True if name in costs else None
    return {
        "case": case.name,
        "family": case.family,
        "solver": name,
        "status": answer["status"],
        "objective": objective,
        "bound": bound,
        "gap_pct": _percent(relative_gap, objective, bound),
        "above_pct": _percent(share_above, objective, best) if verified else None,
        "seconds": taken,
        "cpu_s": answer.get("cpu_s"),
        "limit_s": limit,
        "memory_mib": answer["memory_mib"],
        "verified": verified,
        **{key: (answer.get("proof") or {}).get(key) for key in ("parts", "left")},
        **_published(case, objective if verified and taken <= limit else None),
        "words": answer["words"],
    }


def _percent(share: Callable[[float, float], float | None], high: int | None, low: int | None) -> float | None:
    """A share of `solvers/gap.py`, in percent; None where a number is missing, or the share means nothing."""
    found = None if high is None or low is None else share(high, low)
    return None if found is None else 100 * found


def _published(case: Case, cost: int | None) -> Row:
    """The contest's best cost of a case, and the score of this one: both None where nothing is published."""
    best = case.published.get("contest_best")
    return {"contest_best": best, "score": None if best is None else 0.0 if cost is None else best / cost}


# What the rows add up to


def summary(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Tables by their titles: the contest with published results, the planner's networks, and all by solver."""
    tables = {
        "Contest instances, beside what is published": contest_table(rows),
        f"The planner's networks: seconds to a proof, auto by {PLAIN} on the plain encoding": planner_table(rows),
        "Solvers": solver_table(rows),
    }
    return {title: table for title, table in tables.items() if table}


def contest_table(rows: Sequence[Row]) -> list[Row]:
    """Published costs and bounds with those found, and each solver's sum of scores, 0 for what it refuses."""
    from .instances import published

    known = {f"contest {name}": facts for name, facts in published().items()}
    ours = [row for row in rows if row["case"] in known]
    table = []
    for row in ours:
        facts = known[row["case"]]
        low = facts.get("bound")
        table.append({
            "case": row["case"],
            "solver": row["solver"],
            "limit_s": facts["limit_s"],
            "seconds": row["seconds"],
            "objective": row["objective"],
            "contest_best": facts["contest_best"],
            "best_known": facts["best_known"],
            "score": row["score"],
            "gap_pct": row["gap_pct"],
            "published_gap_pct": _percent(relative_gap, facts["best_known"], low),
        })  # fmt: skip
    for name in dict.fromkeys(row["solver"] for row in ours):
        scores = [row["score"] for row in ours if row["solver"] == name]
        table.append(dict.fromkeys(table[0]) | {"case": f"sum of {len(scores)}", "solver": name, "score": sum(scores)})
    return table


def planner_table(rows: Sequence[Row]) -> list[Row]:
    """Seconds to a proof, and how many times faster `auto` is: at least that often where the other has no proof."""
    table = []
    for case in dict.fromkeys(row["case"] for row in rows if row["family"] == "planner"):
        mine, plain = ({r["solver"]: r for r in rows if r["case"] == case}.get(name) for name in ("auto", PLAIN))
        if mine is None or plain is None or plain["status"] == "refused":
            continue
        ours, theirs = (profiles.seconds_to_proof(row) for row in (mine, plain))
        meaning = "no proof by auto" if ours is None else "at least" if theirs is None else "exactly"
        table.append({
            "case": case,
            "auto_s": ours,
            f"{PLAIN}_s": theirs,
            "times_faster": None if ours is None else (theirs if theirs is not None else plain["limit_s"]) / ours,
            "meaning": meaning,
        })  # fmt: skip
    times = [row["times_faster"] for row in table if row["times_faster"] is not None]
    if times:
        count = len(table)
        mean = math.exp(sum(map(math.log, times)) / len(times))
        table += [
            dict.fromkeys(table[0])
            | {"case": words, "times_faster": value, "meaning": f"{len(times)} of {count} proved"}
            for words, value in (("least", min(times)), ("geometric mean", mean))
        ]
    return table


def solver_table(rows: Sequence[Row]) -> list[Row]:
    """How often each solver ended how, by group of cases; `best`: as good as the best, `wrong`: not verified."""
    ends = (*PROOFS, "feasible", "unknown", "refused")
    table = []
    for name in dict.fromkeys(row["solver"] for row in rows):
        mine = [row for row in rows if row["solver"] == name]
        for group in dict.fromkeys(profiles.group(row) for row in mine):
            part = [row for row in mine if profiles.group(row) == group]
            counts = {end: _count(row["status"] == end for row in part) for end in ends}
            table.append(
                {"solver": name, "cases": group, "number": len(part)}
                | counts
                | {"failed": len(part) - sum(counts.values())}
                | {"best": _count(row["above_pct"] == 0 for row in part)}
                | {"wrong": _count(row["verified"] is False for row in part)}
            )
    return table


def _count(found: Iterable[bool]) -> int:
    return sum(map(int, found))


def write(result: dict[str, Any], folder: Path) -> list[str]:
    """Write the rows (CSV), the result (JSON) and the pictures into a folder; notes about the files."""
    sheet = io.StringIO()
    table = csv.DictWriter(sheet, list(result["rows"][0]))
    table.writeheader()
    table.writerows(result["rows"])
    make_folder(folder)
    files: dict[str, str | bytes] = {
        "solvers.csv": sheet.getvalue(),
        "solvers.json": json.dumps(result, allow_nan=False, indent=1),
    }
    try:
        files |= profiles.pictures(result["rows"])
        missing = []
    except ImportError:
        missing = [profiles.MISSING]
    write_directory(folder, files)
    return [f"wrote {', '.join(sorted(files))} into {folder}", *missing]

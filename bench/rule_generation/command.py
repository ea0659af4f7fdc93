"""`partita rules generate`: find and prove the shipped rules."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...formulation.substitution.rule import Rule
from ...model.errors import PartitaError
from ...model.files import check_writable, write_atomically
from ...solvers.proof.verify import rules_report, verify_rule
from .generate import generate, to_json, written
from .pruning import STEPS

_COUNTS = ("name", "most", "graphs", *STEPS, "parallel", "proved")


def proves(rule: Rule) -> bool:
    """True if the prover proves a rule."""
    return verify_rule(rule).verdict == "proved"


def generate_rules(path: Path | None, tell: Callable[[str], None] | None = None) -> tuple[dict[str, Any], str]:
    """Generate and prove the basis; write it to `path` if given. Returns the JSON report and a summary line."""
    if path is not None:
        if path.is_dir():
            raise PartitaError(f"{path} is a folder; name the file in which the rules go")
        check_writable(path.parent)
    found = generate(proves=proves, tell=tell or (lambda words: None))
    result = rules_report(found.rules, [verify_rule(rule) for rule in found.rules])
    result |= {"rules": result["rules"] + len(found.unproved), "unknown": result["unknown"] + len(found.unproved)}
    result["counts"] = [{key: n for key, n in of_set.items() if key in _COUNTS} for of_set in to_json(found)["sets"]]
    if path is not None:
        write_atomically(path, written(found))
    words = f"{result['proved']:,} rules proved of {result['rules']:,} candidates"
    return result, words + (f", in {path}" if path is not None else "")

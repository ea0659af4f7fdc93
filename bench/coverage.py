"""How many rules of given files the generated ones lead to: TASO's, FlexFlow's, one's own.

Both sides of a rule are rewritten by the basis, two steps each; where they meet, the rule follows. `typed` are rules
whose sides apply at some size; `apart` have an operator that the basis lacks (a linear instead of a product, data dims
that are copied or folded). The rest of `typed` is `covered` or `missed`.
"""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..formulation.substitution.rule import Rule
from ..formulation.substitution.rule_file import basis, load_rules
from ..formulation.substitution.symbolic.infer import free_atoms, infer
from ..formulation.substitution.trial import Trial, small_trials, trial_at
from ..model.errors import PartitaError
from .cases import Row, Tell, each
from .rule_generation.coverage import covered

EQUAL = 4  # every free size, so that a split in equal parts is one of any two sizes
SMALL = 40  # rules of a file


def run(small: bool, only: Sequence[str], tell: Tell, rules: Sequence[str] = ()) -> list[Row]:
    """A row for every file of rules. PartitaError: none is given."""
    if not rules:
        raise PartitaError("bench coverage needs files of rules: --rules FILE")
    return [
        {"file": Path(path).stem} | measure(load_rules(path)[: SMALL if small else None])
        for path in each(rules, only, tell, str, "file")
    ]


def measure(given: Sequence[Rule]) -> Row:
    """How many of some rules the basis leads to."""
    known = basis()
    operators = {apply.op for rule in known for apply in rule.applies}
    start, counts = time.monotonic(), Counter[str]()
    for rule in given:
        sample = _sample(rule)
        if sample is None:
            continue
        counts["typed"] += 1
        apart = {apply.op for apply in rule.applies} - operators
        counts["apart" if apart else "covered" if covered(rule, sample.inputs, known) else "missed"] += 1
    found = {key: counts[key] for key in ("typed", "apart", "covered", "missed")}
    return {"rules": len(given), **found, "s": time.monotonic() - start}


def _sample(rule: Rule) -> Trial | None:
    """The rule at a size at which both sides apply, None where there is none."""
    try:
        typed = infer(rule)
    except PartitaError:
        return None
    return trial_at(typed, dict.fromkeys(free_atoms(typed), EQUAL), 0) or next(iter(small_trials(typed, 1)), None)

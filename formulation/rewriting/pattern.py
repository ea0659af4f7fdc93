"""Rules as egglog patterns: the terms to match, and the terms to add and union.

A rule states the shapes of its inputs. Its first dim may stand for any number of leading dims if every operator of the
rule treats them alike (`leading`): a proof for one dim holds for all of them flattened. Dims named by attributes are
then counted from the end.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...model.errors import PartitaError
from ...model.operators.operator import operators, rewriting_of
from ..substitution.rule import PARALLEL, REPLICA, Apply, Rule, Tensor
from ..substitution.sizes import Size
from ..substitution.text import condition_parts
from .solve_sizes import expression, solved_sizes

MADE_BY = "made_by_"
COUNTED = " (counted)"
NUMBERS = {"dim", "start", "step", "stop", "number", "of", "groups"}


def term_attributes(op: str) -> tuple[str, ...] | None:
    """The attributes of an operator's terms, sorted by name; None if it is not rewritten: a leaf."""
    rewriting = rewriting_of(op)
    return None if rewriting is None else tuple(rewriting.attributes)


def constructor(op: str, inputs: int) -> str:
    """The egglog constructor of an operator with this many inputs."""
    return f"{op}_{inputs}"


def made_by(op: str, inputs: int) -> str:
    """The declaration of the table that says which rule was the first to make a term."""
    sorts = declaration(op, inputs).partition(" (")[2].rpartition(")")[0].rpartition(")")[0]
    return f"(function {MADE_BY}{constructor(op, inputs)} ({sorts}) i64 :merge (min old new))"


def declaration(op: str, inputs: int) -> str:
    sorts = ["T"] * inputs + ["i64" if name in NUMBERS else "String" for name in term_attributes(op) or ()]
    return f"(constructor {constructor(op, inputs)} ({' '.join(sorts)}) T)"


def literal(name: str, value: Any) -> str:
    """An attribute's value as egglog text."""
    return str(value) if name in NUMBERS else json.dumps(json.dumps(value))


def term(op: str, inputs: Sequence[str], attributes: Mapping[str, Any]) -> str:
    """An operator on terms, with its attributes, as egglog text."""
    values = [literal(name, attributes[name]) for name in term_attributes(op) or ()]
    return f"({constructor(op, len(inputs))} {' '.join([*inputs, *values])})"


def value_of(name: str, text: str) -> Any:
    """The inverse of `literal`; egglog prints strings quoted."""
    if name in NUMBERS:
        return int(text)
    return _tuples(json.loads(json.loads(text)))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


class UnmatchableError(PartitaError):
    """A rule that no e-graph can be matched against; `why` is the reason without the rule's name."""

    def __init__(self, rule: Rule, why: str, detail: str = "") -> None:
        super().__init__(f"rule {rule.name!r}: {why}{detail}")
        self.why = why


@dataclass
class Pattern:
    """One rule as egglog text.

    Raises UnmatchableError for a parallel operator, one that cannot be rewritten, and for sizes that do not follow from
    the tensors of the source.
    """

    rule: Rule
    note: str = ""  # makes the name of the egglog rule unique
    facts: list[str] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    has_shift: bool = False  # the facts define `shift`, the number of extra leading dims
    computed: dict[str, str] = field(default_factory=dict)
    equations: list[tuple[Size, str]] = field(default_factory=list)  # sizes, and the egglog terms they equal

    @property
    def name(self) -> str:
        """The name of the egglog rule."""
        return f"{self.rule.name}{self.note}"

    @property
    def used(self) -> Iterator[tuple[str, int]]:
        """The constructors that the rule needs: (operator, number of inputs)."""
        return ((apply.op, len(apply.inputs)) for apply in self._lowered(self.rule.applies))

    def text(self, ruleset: str = "rewrite", number: int = 0, acts: bool = True) -> str:
        """The egglog rule, whose terms know its number; without `acts` it only counts matches."""
        self.facts, self.actions, self.computed, self.equations, self.has_shift = [], [], {}, [], False
        source, target = map(self._lowered, self.rule.sides)
        known = self._known_values(source, target)
        free = leading(self.rule, (*source, *target))
        for apply in source:
            self.facts.append(f"(= v_{apply.outputs[0]} {self._call(apply, free, matching=True)})")
        for tensor in self.rule.inputs:
            if tensor.name in known:
                self._declare(tensor, tensor.name in free)
        self._solve(target)
        self.facts += [f"(= {name} {text})" for text, name in self.computed.items()]
        self.facts += list(self._ordered(source))
        self.facts += [_condition(text) for text in self.rule.where]
        for apply in target:
            call = self._call(apply, free, matching=False)
            self.actions.append(f"(let t_{apply.outputs[0]} {call})")
            self.actions.append(f"(set ({MADE_BY}{call[1:]} {number})")
        made = {apply.outputs[0] for apply in target}
        for one, other in self.rule.outputs:
            name = f"t_{other}" if other in made else f"v_{other}"
            self.actions.append(f"(union v_{one} {name})")
        sides = f"({' '.join(self.facts)}) ({' '.join(self.actions if acts else ())})"
        name = self.name if acts else f"{self.name}{COUNTED}"
        return f"(rule {sides} :ruleset {ruleset} :name {json.dumps(name)})"

    def _known_values(self, source: Sequence[Apply], target: Sequence[Apply]) -> set[str]:
        """The values that a match of the source binds."""
        known = {name for apply in source for name in (*apply.inputs, *apply.outputs)}
        if not source:
            raise UnmatchableError(self.rule, "its source is a tensor without an operator")
        made = {name for apply in target for name in apply.outputs}
        needed = {*(name for apply in target for name in apply.inputs), *(name for _, name in self.rule.outputs)}
        lacking = sorted((needed - made - known) | ({name for name, _ in self.rule.outputs} - known))
        if lacking:
            raise UnmatchableError(self.rule, "a tensor does not occur in its source", f": {', '.join(lacking)}")
        words = [{value for a in side for value in _words_of(a)} for side in (source, target)]
        if not words[1] <= words[0]:
            lacking = sorted(words[1] - words[0])
            raise UnmatchableError(self.rule, "an attribute does not occur in its source", f": {', '.join(lacking)}")
        return known

    def _solve(self, target: Sequence[Apply]) -> None:
        """Add facts that define all symbols of sizes, and check what is known of them twice."""
        facts, unknown = solved_sizes(self.equations)
        self.facts += facts
        read = set[str]()
        for size, _ in self.equations:
            read |= size.symbols
        needed = set(unknown)
        for text in (*(str(size) for apply in target for size in _sizes_of(apply)), *self._condition_sizes()):
            needed |= Size.of(text).symbols - read
        if needed:
            names = ", ".join(sorted(needed))
            raise UnmatchableError(self.rule, "a size does not follow from the tensors of its source", f": {names}")

    def _condition_sizes(self) -> Iterator[str]:
        for text in self.rule.where:
            left, _, right = condition_parts(text)
            yield from (str(left), str(right))

    def _lowered(self, side: Sequence[Apply]) -> tuple[Apply, ...]:
        """Splits become the parts or slices that graphs have."""
        return tuple(one for apply in side for one in _lower(self.rule, apply))

    def _declare(self, tensor: Tensor, free: bool) -> None:
        """Add facts about an input: its rank and sizes."""
        name = f"v_{tensor.name}"
        if not tensor.dims:
            return
        if free:
            self.facts.append(f"(= r_{tensor.name} (rank {name}))")
            first = "" if self.has_shift else " (>= shift 0)"
            self.facts.append(f"(= shift (- r_{tensor.name} {len(tensor.dims)})){first}")
            self.facts.append(f"(= sizes (lead {name} {len(tensor.dims) - 1}))")  # no broadcasting
            self.has_shift = True
        else:
            self.facts.append(f"(= {len(tensor.dims)} (rank {name}))")
        for dim, text in enumerate(tensor.dims):
            if free and dim == 0:
                continue  # any number of dims
            where = f"(+ {dim} shift)" if free else str(dim)
            self.equations.append((Size.of(text), f"(size {name} {where})"))

    def _call(self, apply: Apply, free: set[str], matching: bool) -> str:
        made = {a.outputs[0] for a in self._lowered(self.rule.target)} if not matching else set()
        inputs = [f"t_{name}" if name in made else f"v_{name}" for name in apply.inputs]
        shifted = any(name in free for name in apply.inputs)
        attributes = self._attributes(apply, shifted, matching)
        return f"({constructor(apply.op, len(inputs))} {' '.join([*inputs, *attributes])})"

    def _attributes(self, apply: Apply, shifted: bool, matching: bool) -> Iterator[str]:
        given = dict(apply.attributes)
        rewriting = rewriting_of(apply.op)
        assert rewriting is not None  # `_lower` checks
        for name, default in rewriting.attributes.items():
            value = given.get(name, default)
            if value is None:
                raise UnmatchableError(self.rule, f"{apply.op} needs the attribute {name}")
            if name in NUMBERS:
                shifts = name == "dim" and shifted
                text = f"(+ {_size(value)} shift)" if shifts else _size(value)
                # egglog panics on arithmetic inside a matched term: state it as a separate fact.
                if not matching or (isinstance(value, int) and not shifts):
                    yield text
                elif shifts:
                    yield self.computed.setdefault(text, f"c_{len(self.computed)}") if " " in text else text
                else:
                    yield f"n_{len(self.equations)}"
                    self.equations.append((Size.of(value), f"n_{len(self.equations)}"))
            elif isinstance(value, str) and value.isidentifier() and value not in WORDS:
                yield f"a_{value}"
            elif isinstance(value, tuple) and any(isinstance(size, str) for size in value):
                text = _shape(value)
                yield self.computed.setdefault(text, f"c_{len(self.computed)}") if matching else text
            else:
                yield literal(name, value)

    def _ordered(self, source: Sequence[Apply]) -> Iterator[str]:
        """Match several outputs only at nodes of the graph, so that merged nodes are not merged again.

        Sets of equal applications are matched once, in graph order.
        """
        roots = list(dict.fromkeys(name for name, _ in self.rule.outputs))
        if len(roots) == 1:
            return
        yield from (f"(= o_{number} (number v_{name}))" for number, name in enumerate(roots))
        kinds = {(a.op, len(a.inputs), a.attributes) for a in source}
        if len(kinds) == 1 and [apply.outputs[0] for apply in source] == roots:
            yield from (f"(< o_{number} o_{number + 1})" for number in range(len(roots) - 1))


WORDS = ("none", "same", "tanh", "constant")


def _words_of(apply: Apply) -> Iterator[str]:
    """The attributes of an application that a match binds."""
    for name, value in apply.attributes:
        if name not in NUMBERS and isinstance(value, str) and value.isidentifier() and value not in WORDS:
            yield value


def _sizes_of(apply: Apply) -> Iterator[Any]:
    """The sizes in the attributes of an application."""
    for name, value in apply.attributes:
        if isinstance(value, tuple):
            yield from (size for size in value if isinstance(size, str))
        elif name in NUMBERS and isinstance(value, str):
            yield value


def leading(rule: Rule, applies: Sequence[Apply]) -> set[str]:
    """The tensors whose first dim may stand for several; none if an operator distinguishes leading dims."""
    first = rule.inputs[0].dims[:1] if rule.inputs else ()
    free = {t.name for t in rule.inputs if t.dims[:1] == first and len(t.dims) > 1}
    if not first or any(first[0] in text for t in rule.inputs for text in t.dims[t.name in free :]):
        return set()
    for apply in applies:
        inside = [name in free for name in apply.inputs]
        dim = apply.get("dim")
        rewriting = rewriting_of(apply.op)
        fits = (rewriting is not None and rewriting.leading) or (
            apply.op in ("cat", "slice", "part") and isinstance(dim, int) and dim > 0
        )
        if inside and inside[0]:
            if not fits or (apply.op in ("add", "sub", "mul", "cat") and not all(inside)):
                return set()
            free.add(apply.outputs[0])
        elif any(inside):
            return set()
    return free


def _lower(rule: Rule, apply: Apply) -> Iterator[Apply]:
    if apply.op in PARALLEL or apply.get("dim") == REPLICA:
        raise UnmatchableError(rule, "layouts decide on parallel operators", f", such as {apply.op}")
    if apply.op != "split":
        if term_attributes(apply.op) is None:
            known = ", ".join(entry.name for entry in operators() if entry.rewriting is not None)
            raise UnmatchableError(rule, f"rewriting does not support {apply.op}", f", only {known}")
        yield apply
        return
    sizes, dim, start = apply.get("sizes"), apply["dim"], "0"
    count = len(apply.outputs)
    if not isinstance(sizes, tuple) or len({*sizes}) == 1:
        for number, name in enumerate(apply.outputs):
            yield Apply("part", apply.inputs, (name,), (("dim", dim), ("number", number), ("of", count)))
        return
    for size, name in zip(sizes, apply.outputs, strict=True):
        stop = f"{start}+{size}"
        yield Apply("slice", apply.inputs, (name,), (("dim", dim), ("start", start), ("stop", stop), ("step", 1)))
        start = stop


def _shape(sizes: Sequence[Any]) -> str:
    """A shape with symbols as an egglog expression that evaluates to its `literal`."""
    parts = [f"(to-string {_size(size)})" for size in sizes]
    text = parts[0]
    for part in parts[1:]:
        text = f'(+ (+ {text} ", ") {part})'
    return f'(+ (+ "[" {text}) "]")'


def _size(value: Any) -> str:
    """A size expression as egglog arithmetic."""
    return expression(Size.of(value))


def _condition(text: str) -> str:
    left, word, right = map(str, condition_parts(text))
    if word == "divides":
        return f"(= 0 (% {_size(right)} {_size(left)}))"
    return f"({'=' if word == '==' else '>='} {_size(left)} {_size(right)})"

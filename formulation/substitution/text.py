"""Reads and writes the text notation of rules; errors name the line.

A file holds rules separated by blank lines; `#` starts a comment. A rule is its name and a colon, its inputs with
sizes, the statements of the source, `=>`, those of the target, then optional `where` conditions, `outputs` and `note`:

    name:
        x[b, k], w[k, n]                # x[b/2, k]*r: partitioned twice on b, r replicas; a bare name: sizes inferred
        y = matmul(x, w)                # calls may nest; y, z = split(...) has two results; y = x is an alias
      =>
        y = combine(matmul(replicate(x, degree=d), partition(w, dim=1, degree=d)), dim=1, degree=d)
      where d divides n, n >= 2
      outputs y                         # `s = t` pairs names; default: the names that both sides assign
      note its source
"""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from ...model.errors import PartitaError
from .attributes import check_attributes
from .rule import REPLICA, Apply, Rule, Tensor, Value, check_operator
from .sizes import Size, parse_size

_TOKEN = re.compile(
    r"""\s*("[^"]*"|'[^']*'|-?\d+\.\d*(?:[eE][-+]?\d+)?|-?\d+[eE][-+]?\d+|\d+|[A-Za-z_]\w*|[-+*/(),=\[\]])"""
)
_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_CONDITION = re.compile(r"(?P<a>.+?)\s*(?P<word>\bdivides\b|==|>=)\s*(?P<b>.+)\Z")
_FLOAT = re.compile(r"-?\d+(\.\d*)?([eE][-+]?\d+)?")


@dataclass(slots=True)
class _Line:
    """The tokens of one line, its number and its rule."""

    text: str
    number: int
    rule: str
    tokens: list[str] = field(default_factory=list)
    at: int = 0

    def __post_init__(self) -> None:
        place = 0
        while place < len(self.text.rstrip()):
            match = _TOKEN.match(self.text, place)
            if not match:
                raise self.error(f"cannot read {self.text[place:].strip()!r}")
            self.tokens.append(match[1])
            place = match.end()

    def error(self, reason: str) -> PartitaError:
        return PartitaError(f"line {self.number}, rule {self.rule!r}: {reason}")

    def located(self) -> AbstractContextManager[None]:
        return located(f"line {self.number}, rule {self.rule!r}")

    def peek(self, ahead: int = 0) -> str:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if not token or (expected and token != expected):
            wanted = f"`{expected}`" if expected else "more"
            raise self.error(f"expected {wanted}, found {f'`{token}`' if token else 'the end of the line'}")
        self.at += 1
        return token

    def accept(self, token: str) -> bool:
        """Take the token if it is next."""
        found = self.peek() == token
        self.at += found
        return found

    def items(self, close: str) -> Iterator[None]:
        """Iterate over items up to the token `close`, past the commas between them; the body takes the items."""
        while self.peek() != close:
            yield
            if self.peek() != close:
                self.take(",")
        self.take(close)

    def name(self) -> str:
        token = self.take()
        if not _NAME.match(token):
            raise self.error(f"expected a name, found {token}")
        return token

    def expression(self, stops: str) -> str:
        """A size expression up to a stop token outside parentheses, in canonical form."""
        depth, words = 0, list[str]()
        while self.peek() and (depth or self.peek() not in stops):
            depth += {"(": 1, ")": -1}.get(self.peek(), 0)
            words.append(self.take())
        with self.located():
            return str(parse_size(" ".join(words)))


@dataclass(slots=True)
class _Side:
    """One side during parsing: its applications so far, and the values of names."""

    taken: set[str]
    given: frozenset[str]
    applies: list[Apply] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    assigned: list[str] = field(default_factory=list)

    def value(self, line: _Line) -> str:
        """Take the name of a value that is an input, or made before."""
        name = line.name()
        if name not in self.given and name not in self.assigned:
            raise line.error(f"{name} is neither an input nor made before it")
        return self.names.get(name, name)

    def fresh(self) -> str:
        number = 0
        while f"_{number}" in self.taken:
            number += 1
        self.taken.add(f"_{number}")
        return f"_{number}"


def parse_rules(text: str) -> tuple[Rule, ...]:
    """All rules of a text. Raises PartitaError with line and reason, also if there is no rule."""
    rules: dict[str, Rule] = {}
    for lines in _blocks(text):
        rule = _rule(lines)
        if rule.name in rules:
            raise PartitaError(f"line {lines[0][0]}: a second rule is called {rule.name!r}")
        rules[rule.name] = rule
    if not rules:
        raise PartitaError("no rules: a rule is a name with a colon, inputs, `y = ...`, `=>`, `y = ...`")
    return tuple(rules.values())


def parse_rule(text: str) -> Rule:
    """The one rule of a text. Raises PartitaError with line and reason."""
    rules = parse_rules(text)
    if len(rules) != 1:
        raise PartitaError(f"expected one rule, found {len(rules)}")
    return rules[0]


def _blocks(text: str) -> Iterator[list[tuple[int, str]]]:
    """The numbered lines of each rule, without comments."""
    block: list[tuple[int, str]] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line if line.split()[:1] == ["note"] else line.split("#")[0]
        if bare.strip():
            block.append((number, bare.strip()))
        elif block and not line.strip():
            yield block
            block = []
    if block:
        yield block


def _rule(lines: list[tuple[int, str]]) -> Rule:
    number, head = lines[0]
    if not head.endswith(":"):
        raise PartitaError(f"line {number}: a rule starts with its name and a colon, not {head!r}")
    name = head[:-1].strip()
    arrows = [i for i, (_, line) in enumerate(lines) if line == "=>"]
    if len(arrows) != 1:
        raise PartitaError(f"line {number}, rule {name!r}: one line holds `=>` alone, not {len(arrows)}")
    where, named, notes = list[str](), list[tuple[str, str]](), list[str]()
    body: list[tuple[int, str, bool]] = []
    for i, (at, line) in enumerate(lines[1:], 1):
        word, _, rest = line.partition(" ")
        with located(f"line {at}, rule {name!r}"):
            if word == "where":
                where += [read_condition(part.strip()) for part in rest.split(",")]
            elif word == "outputs":
                named += [_pair(part.strip()) for part in rest.split(",")]
            elif word == "note":
                notes.append(rest.strip())
            elif line != "=>":
                body.append((at, line, i > arrows[0]))
    tensors, statements = list[Tensor](), list[tuple[_Line, bool]]()
    for at, line, in_target in body:
        tokens = _Line(line, at, name)
        if "=" not in line:
            tensors += _tensors(tokens)
        else:
            statements.append((tokens, in_target))
    given = {t.name for t in tensors}
    taken = given | {t for line, _ in statements for t in line.tokens}
    sides = _Side(taken, frozenset(given)), _Side(taken, frozenset(given))
    for tokens, in_target in statements:
        _statement(tokens, sides[in_target], given)
    source, target = sides
    pairs = named or [(n, n) for n in source.assigned if n in target.assigned]
    outputs = tuple((source.names.get(a, a), target.names.get(b, b)) for a, b in pairs)
    applies = tuple(source.applies), tuple(target.applies)
    with located(f"line {number}"):
        return Rule(name, tuple(tensors), *applies, outputs, where=tuple(where), note=" ".join(notes))


@contextmanager
def located(place: str) -> Iterator[None]:
    """Put the place in front of an error's message."""
    try:
        yield
    except PartitaError as error:
        raise PartitaError(f"{place}: {error}") from None


def read_condition(text: str) -> str:
    """A condition in canonical form. Raises PartitaError if it cannot be parsed."""
    left, word, right = condition_parts(text)
    return f"{left} {word} {right}"


def condition_parts(text: str) -> tuple[Size, str, Size]:
    """A condition as (left size, `divides`, `==` or `>=`, right size)."""
    match = _CONDITION.match(text)
    if not match:
        raise PartitaError(f"a condition is `d divides n`, `n == m` or `n >= 2`, not {text!r}")
    return parse_size(match["a"]), match["word"], parse_size(match["b"])


def _pair(text: str) -> tuple[str, str]:
    left, equal, right = (part.strip() for part in text.partition("="))
    if not _NAME.match(left) or (equal and not _NAME.match(right)):
        raise PartitaError(f"outputs are `y` or `s = t`, not {text!r}")
    return left, right or left


def _tensors(line: _Line) -> Iterator[Tensor]:
    while True:
        name, dims, degrees = line.name(), list[str](), list[str | int]()
        if line.accept("["):
            for _ in line.items("]"):
                dims.append(line.expression(",/]"))
                degrees.append(_degree(line.expression(",]")) if line.accept("/") else 1)
        replicas = _degree(line.expression(",")) if line.accept("*") else 1
        yield Tensor(name, tuple(dims), tuple(degrees), replicas)
        if not line.peek():
            return
        line.take(",")


def _degree(text: str) -> str | int:
    return int(text) if text.isdigit() else text


def _statement(line: _Line, side: _Side, given: set[str]) -> None:
    results = [line.name()]
    while line.accept(","):
        results.append(line.name())
    line.take("=")
    for name in results:
        if name in side.assigned or name in given:
            raise line.error(f"{name} has a value already")
    if line.peek(1) == "(":
        _call(line, side, tuple(results))
    elif len(results) == 1:
        side.names[results[0]] = side.value(line)
    else:
        raise line.error("several results come from one call, such as split")
    if line.peek():
        raise line.error(f"{line.peek()} is left over")
    side.assigned += results


def _call(line: _Line, side: _Side, outputs: tuple[str, ...]) -> None:
    op = line.name()
    line.take("(")
    inputs, attributes = list[str](), dict[str, Value]()
    for _ in line.items(")"):
        if line.peek(1) == "=":
            key = line.name()
            line.take("=")
            if key in attributes:
                raise line.error(f"{op} has {key} twice")
            attributes[key] = _value(line)
        elif attributes:
            raise line.error(f"an input of {op} comes before its attributes")
        elif line.peek(1) == "(":
            name = side.fresh()
            _call(line, side, (name,))
            inputs.append(name)
        else:
            inputs.append(side.value(line))
    apply = Apply(op, tuple(inputs), outputs, tuple(attributes.items()))
    with line.located():
        check_operator(apply, op)
        check_attributes(apply)
    side.applies.append(apply)


def _value(line: _Line) -> Value:
    token = line.peek()
    if token in ("(", "["):
        line.take()
        return tuple(_value(line) for _ in line.items(")" if token == "(" else "]"))
    if token[:1] in ('"', "'"):
        return line.take()[1:-1]
    if token[:1] in ("T", "F") and token.lower() in ("true", "false"):
        return line.take()[0] == "T"
    if _FLOAT.fullmatch(token) and not token.isdigit():
        return float(line.take())
    if token == "-" and line.peek(1).isdigit() and line.peek(2) in ",)]":
        line.take()
        return -int(line.take())
    text = line.expression(",)]")
    return int(text) if text.lstrip("-").isdigit() else text


def write_rule(rule: Rule) -> str:
    """The text of a rule, with nested calls if that text parses to the same rule, otherwise one call per line."""
    text = _write(rule, nested=True)
    try:
        if parse_rules(text) == (rule,):
            return text
    except PartitaError:  # nesting lost a name; the flat form has them all
        pass
    return _write(rule, nested=False)


def _write(rule: Rule, nested: bool) -> str:
    lines = [f"{rule.name}:"]
    if rule.inputs:
        lines.append("    " + ", ".join(write_tensor(t) for t in rule.inputs))
    for number, side in enumerate(rule.sides):
        lines += ["  =>"] if number else []
        lines += [f"    {line}" for line in _statements(side, {pair[number] for pair in rule.outputs}, nested)]
    made = [[n for a in side for n in a.outputs] for side in rule.sides]
    if rule.outputs != tuple((n, n) for n in made[0] if n in made[1]):
        lines.append("  outputs " + ", ".join(s if s == t else f"{s} = {t}" for s, t in rule.outputs))
    if rule.where:
        lines.append("  where " + ", ".join(rule.where))
    if rule.note:
        lines.append(f"  note {rule.note}")
    return "\n".join(lines)


def write_tensor(tensor: Tensor) -> str:
    """An input with its sizes and degrees: `x[b/2, k]*r`."""
    cuts = zip(tensor.dims, tensor.degrees, strict=True)
    dims = ", ".join(dim if degree == 1 else f"{dim}/{degree}" for dim, degree in cuts)
    replicas = "" if tensor.replicas == 1 else f"*{tensor.replicas}"
    return tensor.name + (f"[{dims}]" if tensor.dims else "") + replicas


def _statements(side: tuple[Apply, ...], outputs: set[str], nested: bool) -> Iterator[str]:
    reads = [name for apply in side for name in apply.inputs]
    inside: dict[str, str] = {}
    for apply in side:
        parts = [inside.pop(name, name) for name in apply.inputs]
        parts += [f"{key}={_literal(value)}" for key, value in apply.attributes]
        call = f"{apply.op}({', '.join(parts)})"
        name = apply.outputs[0]
        if nested and len(apply.outputs) == 1 and name[0] == "_" and reads.count(name) == 1 and name not in outputs:
            inside[name] = call
        else:
            yield f"{', '.join(apply.outputs)} = {call}"


def _literal(value: Value) -> str:
    if isinstance(value, tuple):
        return "(" + "".join(f"{_literal(v)}, " for v in value).rstrip(" " if len(value) == 1 else ", ") + ")"
    if not isinstance(value, str):
        return str(value)
    try:
        plain = value != REPLICA and not value.isdigit() and str(parse_size(value)) == value
    except PartitaError:
        plain = False
    return value if plain else f'"{value}"'

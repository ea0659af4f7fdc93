"""Reads rule files: JSON, text notation, generated rules, and the lists published by TASO and FlexFlow."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ...model.errors import PartitaError
from .attributes import check_attributes
from .published import is_published, read_published
from .rule import Apply, Rule, Tensor, Value, check_operator
from .sizes import parse_size
from .text import located, parse_rule, parse_rules, read_condition

BASIS = Path(__file__).parent / "data" / "basis.json"


@cache
def basis() -> tuple[Rule, ...]:
    """The generated rules that ship with the project. Raises PartitaError if the file cannot be read."""
    try:
        return read_rules(BASIS.read_text(encoding="utf-8"))
    except (OSError, ValueError, PartitaError) as error:
        raise PartitaError(f"{BASIS}: {error}; `partita rules generate -o {BASIS}` makes it again") from None


def load_rules(path: str | Path) -> tuple[Rule, ...]:
    """All rules of a file. Raises PartitaError that names file, rule and reason."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PartitaError(f"cannot read rules from {path}: {error}") from None
    with located(str(path)):
        return read_rules(text)


def read_rules(text: str) -> tuple[Rule, ...]:
    """Parse rules in any of the formats. Raises PartitaError with place and reason."""
    if not text.strip():
        raise PartitaError("the file is empty")
    if text.lstrip()[0] not in "[{":
        return parse_rules(text)
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise PartitaError(f"line {error.lineno}: not JSON: {error.msg}") from None
    if isinstance(data, dict):
        data = _generated(data["sets"]) if "sets" in data else data.get("rules", [data])
    if not isinstance(data, list) or not data:
        raise PartitaError("expected a list of rules, or an object with a list `rules`; found none")
    rules: dict[str, Rule] = {}
    for place, record in enumerate(data):
        with located(f"entry {place}"):
            if isinstance(record, str):
                rule = parse_rule(record)
            else:
                rule = read_published(record, place) if is_published(record) else read_rule(record)
        if rule.name in rules:
            raise PartitaError(f"entry {place}: a second rule is called {rule.name!r}")
        rules[rule.name] = rule
    return tuple(rules.values())


def _generated(sets: object) -> list[object]:
    """The rules of a file of generated ones, whose sets hold them in text notation. Raises PartitaError."""
    if not isinstance(sets, list):
        raise PartitaError(f"'sets' is a list of objects with 'rules', not {json.dumps(sets)[:60]}")
    return [rule for number, each in enumerate(sets) for rule in _get(each, "rules", list, f"set {number}")]


def write_rules(rules: Sequence[Rule]) -> str:
    """The JSON text of rules."""
    return json.dumps({"rules": [rule.to_json() for rule in rules]}, indent=1)


def read_rule(record: object) -> Rule:
    """Parse a rule from its JSON object. Raises PartitaError that names the missing or ill-typed key."""
    name = _get(record, "name", str, "a rule")
    place = f"rule {name!r}"
    inputs = [_tensor(item, f"{place}, input {i}") for i, item in enumerate(_get(record, "inputs", list, place))]
    sides = [
        tuple(_apply(item, f"{place}, {side} {i}") for i, item in enumerate(_get(record, side, list, place)))
        for side in ("source", "target")
    ]
    outputs = []
    for pair in _get(record, "outputs", list, place):
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(n, str) for n in pair):
            raise PartitaError(f"{place}: an output is a pair of names, not {pair!r}")
        outputs.append((pair[0], pair[1]))
    where = tuple(read_condition(text) for text in _strings(record, "where", place, []))
    note = _get(record, "note", str, place, "")
    return Rule(name, tuple(inputs), sides[0], sides[1], tuple(outputs), where=where, note=note)


_MISSING = object()


def _get(record: object, key: str, kind: type, place: str, default: Any = _MISSING) -> Any:
    if not isinstance(record, dict):
        raise PartitaError(f"{place} is an object, not {json.dumps(record)[:60]}")
    value = record.get(key, default)
    if value is _MISSING:
        raise PartitaError(f"{place} lacks {key!r}")
    if not isinstance(value, kind):
        raise PartitaError(f"{place}: {key!r} is a {kind.__name__}, not {json.dumps(value)[:60]}")
    return value


def _strings(record: object, key: str, place: str, default: Any = _MISSING) -> tuple[str, ...]:
    values = _get(record, key, list, place, default)
    if not all(isinstance(v, str) for v in values):
        raise PartitaError(f"{place}: {key!r} holds strings, not {json.dumps(values)[:60]}")
    return tuple(values)


def _tensor(record: object, place: str) -> Tensor:
    name = _get(record, "name", str, place)
    dims = tuple(map(str, _get(record, "dims", list, place, [])))
    with located(place):
        for size in dims:
            parse_size(size)
    degrees = tuple(_degree(d, place) for d in _get(record, "degrees", list, place, []))
    return Tensor(name, dims, degrees, _degree(_get(record, "replicas", object, place, 1), place))


def _degree(value: object, place: str) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise PartitaError(f"{place}: a degree is a number or an expression, not {value!r}")
    with located(place):
        parse_size(str(value))
    return value


def _apply(record: object, place: str) -> Apply:
    attributes = _get(record, "attributes", dict, place, {})
    made = Apply(
        _get(record, "op", str, place),
        _strings(record, "inputs", place),
        _strings(record, "outputs", place),
        tuple((str(key), _value(value, f"{place}, {key}")) for key, value in attributes.items()),
    )
    with located(place):
        check_operator(made, made.op)
        check_attributes(made)
    return made


def _value(value: object, place: str) -> Value:
    if isinstance(value, list):
        return tuple(_value(v, place) for v in value)
    if isinstance(value, int | float | str):
        return value
    raise PartitaError(f"{place}: an attribute is a number, a string or a list of such, not {value!r}")

"""Reads machine files (YAML). Every error is one line that names the file and the field."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError

from ..errors import PartitaError
from .number_errors import ASSUMED

MAX_BYTES = 1_000_000
MAX_DEPTH = 10  # a machine file needs 5
MAX_NODES = 20_000  # a preset has about 120, a profile one for each kernel that it measured

DTYPES = ("float64", "float32", "float16", "bfloat16", "float8")


def read(path: Path) -> dict[str, Any]:
    """The machine that the file describes (format: docs/machines.md) as `Machine.from_json` takes it.

    Raises PartitaError naming the file and the field.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = error.strerror if isinstance(error, OSError) else error
        raise PartitaError(f"{path}: cannot read the machine file: {reason}") from None
    if len(raw) > MAX_BYTES:
        raise PartitaError(f"{path}: a machine file has at most {MAX_BYTES:,} bytes")
    try:
        document = yaml.load(raw.decode("utf-8"), _Loader)
    except UnicodeDecodeError as error:
        raise PartitaError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two: \\U escapes and versions out of range
        raise PartitaError(f"{path}: not a machine file: {_one_line(error)}") from None
    try:
        machine = _Machine.model_validate(document)
    except ValidationError as error:
        raise PartitaError(f"{path}: {_first(error)}") from None
    unknown = sorted(set(machine.device.peak) - set(DTYPES))
    if unknown:
        raise PartitaError(f"{path}: device.peak: unknown dtype {unknown[0][:60]!r} (known: {', '.join(DTYPES)})")
    data: dict[str, Any] = _values(machine)
    return data | {"errors": dict(_errors(machine))}


class _Loader(yaml.SafeLoader):
    """YAML without aliases, tags, repeated keys, dates and deep nesting.

    Numbers are those of YAML 1.2, so `25e9` is a number (a string in YAML 1.1).
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (yaml's own attribute)
    depth = 0
    nodes = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise yaml.MarkedYAMLError(None, None, "anchors and aliases are not allowed", event.start_mark)
        if event.tag is not None:
            raise yaml.MarkedYAMLError(None, None, "tags are not allowed", event.start_mark)
        self.depth += 1
        self.nodes += 1
        if self.depth > MAX_DEPTH or self.nodes > MAX_NODES:
            raise yaml.MarkedYAMLError(None, None, "too deep or too long for a machine", event.start_mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for (key, _), name in zip(node.value, keys, strict=False):
            if keys.count(name) > 1:
                raise yaml.MarkedYAMLError(None, None, f"duplicate key {name[:60]!r}", key.start_mark)
        return super().construct_mapping(node, deep)


def _number(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int | float:
    text = node.value
    if len(text) > 40:  # int() of thousands of digits is slow and refused by Python
        raise yaml.MarkedYAMLError(None, None, "a number of more than 40 characters", node.start_mark)
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(re.sub(r"\.(?=inf|nan)", "", text.lower()))


_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(~|(?i:null)|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?i:true|false)$"), list("tTfF"))
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"),
    list("-+.0123456789"),
)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)


# The format, as pydantic models


def _printable(text: str) -> str:
    if not text.isprintable():  # a name ends up in messages and in generated programs
        raise ValueError("must be one line of printable text")
    return text


_Text = Annotated[
    str,
    StringConstraints(strict=True, strip_whitespace=True, min_length=1, max_length=2000),
    AfterValidator(_printable),
]
_Positive = Annotated[float, Field(gt=0, le=1e24, allow_inf_nan=False)]


def _whole(value: float) -> float:
    if value != int(value):
        raise ValueError("must be a whole number")
    return value


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Units(_Strict):
    """How many there are, and who says so; such a number has no error."""

    value: Annotated[_Positive, AfterValidator(_whole)]
    source: _Text


class _Uncertain(_Strict):
    """A number, where it comes from, and by which share of it the truth may lie above or below."""

    value: float
    source: _Text
    error: Annotated[float, Field(gt=0, lt=1)] | None = None


class _Number(_Uncertain):
    """A positive number."""

    value: _Positive


class _Count(_Uncertain):
    """A positive whole number; 80e9 counts as whole."""

    value: Annotated[_Positive, AfterValidator(_whole)]


class _Share(_Uncertain):
    """A number above 0, at most 1."""

    value: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]


class _Link(_Strict):
    pairs: list[Annotated[list[int], Field(min_length=2, max_length=2)]] = Field(min_length=1)
    bandwidth: _Number


class _Switch(_Strict):
    units: _Units
    bandwidth: _Number
    duplex: bool = True


class _Wiring(_Strict):
    """A field for every key of `link_kinds.LINK_KINDS`."""

    links: list[_Link] = []
    switches: list[_Switch] = []
    shared: _Number | None = None


class _Level(_Strict):
    name: _Text
    size: _Units
    bandwidth: _Number
    latency_ns: _Number
    wiring: _Wiring | None = None
    scatter_share: _Share | None = None
    wait_ns: _Number | None = None


def _point(text: object) -> list[float]:
    try:
        point = [float(word) for word in str(text)[:200].split()]
    except ValueError:
        point = []
    if len(point) != 4:
        raise ValueError("must be four numbers: FLOPs, bytes, kernels, ns")
    return point


class _KernelTimes(_Strict):
    """Measured kernels of an operator, a line for each: FLOPs, bytes, kernels, ns."""

    op: _Text
    dtype: _Text
    phase: _Text
    source: _Text
    points: list[Annotated[list[float], BeforeValidator(_point)]] = Field(min_length=1)


class _Device(_Strict):
    name: _Text
    memory_bytes: _Count
    reserved_bytes: _Count
    memory_bandwidth: _Number
    peak: dict[_Text, _Number] = Field(min_length=1)
    matmul_efficiency: _Share
    launch_ns: _Number
    host_bandwidth: _Number | None = None
    host_ns: _Count | None = None
    attention_efficiency: _Share | None = None
    step_ns: _Count | None = None
    kernels: list[_KernelTimes] | None = None
    transaction_bytes: _Units | None = None


class _Machine(_Strict):
    name: _Text
    levels: list[_Level] = Field(min_length=1, max_length=16)
    device: _Device
    collectives: _Text = "nccl-ring"
    hidden_share: _Share | None = None


def _values(item: Any) -> Any:
    """The same without sources, and without fields that are left out."""
    match item:
        case _Count() | _Units():
            return int(item.value)
        case _Uncertain():
            return item.value
        case _KernelTimes():
            return item.model_dump(exclude={"source"})
        case BaseModel():
            return {name: _values(value) for name, value in item if value is not None}
        case list():
            return [_values(value) for value in item]
        case dict():
            return {name: _values(value) for name, value in item.items()}
    return item


def _errors(item: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """The path and the error of every number that states one or whose source says `assumption`."""
    match item:
        case _Uncertain():
            assumed = ASSUMED if "assumption" in item.source.lower() else None
            if (error := item.error or assumed) is not None:
                yield path.removeprefix("."), error
        case BaseModel():
            for name, value in item:
                yield from _errors(value, f"{path}.{name}")
        case list():
            for index, value in enumerate(item):
                yield from _errors(value, f"{path}.{index}")
        case dict():
            for name, value in item.items():
                yield from _errors(value, f"{path}.{name}")


def _first(error: ValidationError) -> str:
    """The first error: the field's path, what is wrong, and the value found."""
    first = error.errors(include_url=False)[0]
    place = ".".join(_plain(str(part)) for part in first["loc"]) or "the file"
    if first["type"] == "missing":
        return f"{place}: is missing"
    if first["type"] == "extra_forbidden":
        return f"{place}: is not a field of a machine file"
    if first["type"] == "model_type":
        numbers = {kind.__name__ for kind in (_Units, _Number, _Count, _Share)}
        shape = "{value: ..., source: ...}" if first["ctx"]["class_name"] in numbers else "a mapping"
        first["msg"] = f"should be {shape}"
    found = repr(first["input"])
    return f"{place}: {first['msg']}, not {found if len(found) <= 60 else found[:57] + '...'}"


def _plain(text: str) -> str:
    short = text[:60]
    return short if short.isprintable() else ascii(short)


def _one_line(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    words = getattr(error, "problem", None) or str(error)
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
    return " ".join(str(words).split())[:200] + where

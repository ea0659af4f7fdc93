"""Reads the rules published by TASO (Jia et al., SOSP 2019) and FlexFlow (Unity, OSDI 2022), decoded to JSON.

A rule is `{id, name?, src: [op], dst: [op], out: [[[srcOp, output], [dstOp, output]], ...]}`, an op
`{type, in: [[opId, output], ...], attr: {KEY: int}}`; an opId >= 0 is an earlier op of the same side, a
negative one the input -opId. ACTI is 0 for none, 2 for ReLU; PAD is 0 for SAME, 1 for VALID.

FlexFlow's dims count the replica dim as dim 0, and its linear is `linear` with an input as the weight.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...model.errors import PartitaError
from .rule import REPLICA, Apply, Rule, Tensor, Value


@dataclass(frozen=True, slots=True)
class _Op:
    """A published op; `place` is for error messages."""

    kind: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, int]
    parallel: bool  # dims count the replica dim as dim 0
    place: str

    def __getitem__(self, key: str) -> int:
        if key not in self.attributes:
            raise PartitaError(f"{self.place}: {self.kind} lacks the attribute {key}")
        return self.attributes[key]

    def get(self, key: str, default: int) -> int:
        return self.attributes.get(key, default)

    def dim(self, key: str) -> Value:
        """A data dim counted from 0, or the replica dim."""
        number = self[key]
        if not self.parallel:
            return number
        return REPLICA if number == 0 else number - 1


_Made = tuple[str, dict[str, Value]]  # our operator, its attributes


def _moved(data: str, replica: str) -> Callable[[_Op], _Made]:
    """A parallel operator: `replica` if it acts on the replica dim (then unnamed), otherwise `data`."""

    def read(op: _Op) -> _Made:
        dim, degree = op.dim("PARALLEL_DIM"), op["PARALLEL_DEGREE"]
        if degree < 1:
            raise PartitaError(f"{op.place}: a degree is at least 1, not {degree}")
        if dim == REPLICA and replica != data:
            return replica, {"degree": degree}
        return data, {"dim": dim, "degree": degree}

    return read


def _concat(op: _Op) -> _Made:
    if op.get("NUM_INPUTS", len(op.inputs)) != len(op.inputs):
        raise PartitaError(f"{op.place}: NUM_INPUTS is {op['NUM_INPUTS']}, but there are {len(op.inputs)} inputs")
    return "cat", {"dim": op.dim("AXIS"), **_rank(op)}


def _split(op: _Op) -> _Made:
    if op["NUM_OUTPUTS"] < 1:
        raise PartitaError(f"{op.place}: NUM_OUTPUTS is {op['NUM_OUTPUTS']}")
    return "split", {"dim": op.dim("AXIS"), "parts": op["NUM_OUTPUTS"], **_rank(op)}


def _rank(op: _Op) -> dict[str, Value]:
    return {"rank": op["NUMDIM"] - op.parallel} if "NUMDIM" in op.attributes else {}


def _window(op: _Op) -> dict[str, Value]:
    pad = op["PAD"]
    if pad not in (0, 1):
        raise PartitaError(f"{op.place}: PAD is 0 (SAME) or 1 (VALID), not {pad}")
    return {"stride": (op["STRIDE_H"], op["STRIDE_W"]), "padding": "valid" if pad else "same"}


def _conv(op: _Op) -> _Made:
    """Groups follow from the channels: a weight with fewer channels than the input means a grouped convolution."""
    return "conv", {**_window(op), "kernel": (op["KERNEL_H"], op["KERNEL_W"]), "groups": "auto"}


def _pool(name: str) -> Callable[[_Op], _Made]:
    def read(op: _Op) -> _Made:
        size = (op["KERNEL_H"], op["KERNEL_W"])
        padding = tuple((n - 1) // 2 for n in size) if _window(op)["padding"] == "same" else (0, 0)
        return name, {**_window(op), "kernel_size": size, "padding": padding}

    return read


_ACTIVATIONS = {0: "", 1: "sigmoid", 2: "relu", 3: "tanh"}

# The number of inputs (0: any), and our operator or a reader.
_OPS: Mapping[str, tuple[int, str | Callable[[_Op], _Made]]] = {
    "MATMUL": (2, "matmul"),
    "LINEAR": (2, "linear"),
    "CONV2D": (2, _conv),
    "POOL2D_MAX": (1, _pool("max_pool")),
    "POOL2D_AVG": (1, _pool("avg_pool")),
    "EW_ADD": (2, "add"),
    "EW_MUL": (2, "mul"),
    "EW_SUB": (2, "sub"),
    "EW_DIV": (2, "div"),
    "RELU": (1, "relu"),
    "SIGMOID": (1, "sigmoid"),
    "TANH": (1, "tanh"),
    "GELU": (1, "gelu"),
    "EXP": (1, "exp"),
    "IDENTITY": (1, "contiguous"),
    "NOOP": (1, "contiguous"),
    "DROPOUT": (1, "dropout"),
    "SOFTMAX": (1, lambda op: ("softmax", {"dim": op.dim("AXIS") if "AXIS" in op.attributes else -1})),
    "TRANSPOSE": (1, "transpose"),
    "CONCAT": (0, _concat),
    "SPLIT": (1, _split),
    "PARTITION": (1, _moved("partition", "partition")),
    "REPARTITION": (1, _moved("partition", "partition")),
    "COMBINE": (1, _moved("combine", "combine")),
    "REPLICATE": (1, _moved("tile", "replicate")),
    "REDUCE": (1, _moved("fold", "reduce")),
    "PIPELINE": (1, _moved("pipeline", "pipeline")),
    "BATCH": (1, _moved("batch", "batch")),
}


def is_published(record: object) -> bool:
    """True if an entry has the published form."""
    return isinstance(record, dict) and ("src" in record or "dst" in record)


def read_published(record: Any, number: int) -> Rule:
    """Read an entry. Raises PartitaError that names side, op and reason."""
    identity = record.get("id")
    if identity is not None and (isinstance(identity, bool) or not isinstance(identity, int)):
        raise PartitaError(f"rule {number}: an id is a whole number, not {identity!r}")
    name = record.get("name", f"rule {number if identity is None else identity}")
    if not isinstance(name, str):
        raise PartitaError(f"the name of a rule is a string, not {name!r}")
    place = f"rule {name!r}"
    for key in ("src", "dst", "out"):
        if not isinstance(record.get(key), list) or not record[key]:
            raise PartitaError(f"{place}: {key!r} is a list that is not empty, not {record.get(key)!r}")
    parallel = any(_is_parallel(op) for side in ("src", "dst") for op in record[side])
    inputs: dict[int, None] = {}
    sides = {side: _side(record[side], side, inputs, parallel, f"{place}, {side}") for side in ("src", "dst")}
    outputs = []
    for pair in record["out"]:
        if not isinstance(pair, list) or len(pair) != 2:
            raise PartitaError(f"{place}: an output is a pair [[op, output], [op, output]], not {pair!r}")
        source, target = (
            _reference(ref, made, inputs, f"{place}, out") for ref, (_, made) in zip(pair, sides.values(), strict=True)
        )
        outputs.append((source, target))
    tensors = tuple(Tensor(f"x{number}") for number in sorted(inputs))
    return Rule(name, tensors, tuple(sides["src"][0]), tuple(sides["dst"][0]), tuple(outputs), id=identity)


def _is_parallel(op: object) -> bool:
    """True if an op counts the replica dim, as all of FlexFlow's do: their tensors have three dims, TASO's 2 or 4."""
    if not isinstance(op, dict):
        return False
    attributes = op.get("attr")
    three = isinstance(attributes, dict) and attributes.get("NUMDIM") == 3
    return three or op.get("type") in ("LINEAR", "PARTITION", "REPARTITION", "COMBINE", "REPLICATE", "REDUCE")


def _side(
    ops: list[Any], side: str, inputs: dict[int, None], parallel: bool, where: str
) -> tuple[list[Apply], list[tuple[str, ...]]]:
    """The applications of a side, and every op's output names."""
    applies: list[Apply] = []
    made: list[tuple[str, ...]] = []
    for number, record in enumerate(ops):
        place = f"{where} op {number}"
        if not isinstance(record, dict) or not isinstance(record.get("type"), str):
            raise PartitaError(f"{place}: an op is an object with a string `type`, not {record!r}")
        kind, attributes = record["type"], record.get("attr", {})
        if kind not in _OPS:
            raise PartitaError(f"{place}: op {kind} is not known; known are {', '.join(sorted(_OPS))}")
        if not isinstance(attributes, dict) or not all(type(v) is int for v in attributes.values()):
            raise PartitaError(f"{place}: `attr` maps names to whole numbers, not {attributes!r}")
        if not isinstance(record.get("in"), list):
            raise PartitaError(f"{place}: {kind} lacks `in`, a list of [op, output]")
        names = [_reference(reference, made, inputs, place) for reference in record["in"]]
        count, read = _OPS[kind]
        if not names or (count and len(names) != count):
            raise PartitaError(f"{place}: {kind} takes {count or 'some'} inputs, not {len(names)}")
        ours, given = (
            (read, {}) if isinstance(read, str) else read(_Op(kind, tuple(names), attributes, parallel, place))
        )
        result = f"{side[0]}{number}"
        results = (
            tuple(f"{result}_{k}" for k in range(attributes.get("NUM_OUTPUTS", 1))) if ours == "split" else (result,)
        )
        activation = _ACTIVATIONS.get(attributes.get("ACTI", 0))
        if activation is None:
            raise PartitaError(f"{place}: ACTI is one of {sorted(_ACTIVATIONS)}, not {attributes['ACTI']}")
        applies.append(Apply(ours, tuple(names), (f"{result}_raw",) if activation else results, tuple(given.items())))
        if activation:
            applies.append(Apply(activation, (f"{result}_raw",), results))
        made.append(results)
    return applies, made


def _reference(reference: object, made: list[tuple[str, ...]], inputs: dict[int, None], place: str) -> str:
    """The value of an [op, output] pair: an input, which joins `inputs`, or an output of an earlier op."""
    if not isinstance(reference, list) or len(reference) != 2 or not all(type(v) is int for v in reference):
        raise PartitaError(f"{place}: a tensor is [op, output] in whole numbers, not {reference!r}")
    op, output = reference
    if op >= len(made):
        ops = f"there are {len(made)} (ops are in order, no cycles)"
        raise PartitaError(f"{place}: op {op} is not an earlier one; {ops}")
    if output < 0 or (op < 0 and output):
        raise PartitaError(f"{place}: {reference} is not an output: an input has output 0 only")
    if op < 0:
        inputs[-op] = None
        return f"x{-op}"
    if output >= len(made[op]):
        raise PartitaError(f"{place}: op {op} has {len(made[op])} outputs, so none is number {output}")
    return made[op][output]

"""Rules as graphs spell them: inferred sizes, all attributes, and operators with the same index notation.

Rules of files state as little as their proofs need, `matmul(x, w)` or `conv(x, w, padding=1)`, with ReLU for any
elementwise function. Graphs have a `linear`, whose weight is the transposed one, every attribute of a convolution, and
other activations. Each form of a rule is a rule of its own, to be proved by itself.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ...model.errors import PartitaError
from ...model.graph.pcg import PCG
from ...model.operators.operator import operator, rewriting_of
from ..substitution.rule import PARALLEL, REPLICA, Apply, Rule, Tensor, Value
from ..substitution.symbolic.infer import infer, ranks

ELEMENTWISE = "relu"
"""The operator that stands for any function of one tensor, element by element: proofs know nothing about it."""

MAX_DIMS = 2  # of a matrix


def is_parallel(rule: Rule) -> bool:
    """True if layouts decide on the rule: it has a parallel operator, or a replica dim."""
    given = any(apply.op in PARALLEL or apply.get("dim") == REPLICA for apply in rule.applies)
    return given or any(t.replicas != 1 or any(d != 1 for d in t.degrees) for t in rule.inputs)


def spelled(rule: Rule, pcg: PCG, both_ways: bool = False) -> tuple[Rule, ...]:
    """All forms of a rule without parallel operators that a graph's operators may match.

    `both_ways`: also from its target to its source. Raises PartitaError if it does not type-check.
    """
    whole = _stated(rule)
    found = [whole, *([_reversed(whole)] if both_ways and whole.target else [])]
    found += [form for each in found if (form := as_linear(each)) is not None]
    found += [form for each in found if (form := _any_window(each)) is not None]
    functions = _functions(pcg)
    every = (form for each in found for form in _with_functions(each, functions))
    return tuple(dict.fromkeys(every))


# Sizes and attributes


def _stated(rule: Rule) -> Rule:
    """The rule with declared sizes of all inputs and all attributes of convolutions, without what only proofs read."""
    rank = ranks(rule)
    if not all(tensor.dims for tensor in rule.inputs):
        rule = _with_sizes(rule)
    whole = {len(tensor.dims) for tensor in rule.inputs}

    def stated(apply: Apply) -> Apply:
        given = {name: value for name, value in apply.attributes if name != "rank"}
        if apply.op == "transpose":
            if len(whole) != 1:
                raise PartitaError(f"rule {rule.name!r}: the dims of a transpose are not known")
            (dims,) = whole
            return Apply("permute", apply.inputs, apply.outputs, (("dims", (*range(dims - 2), dims - 1, dims - 2)),))
        if apply.op == "conv":
            dims = max([rank.get(name, 0) for name in apply.inputs] + [*whole]) - 2
            given = _window(given, dims)
        if apply.op == "pad":
            given = {"mode": "constant", **given}
        return replace(apply, attributes=tuple(given.items()))

    return rule.map(stated)


def _window(given: Mapping[str, Value], dims: int) -> dict[str, Value]:
    """All attributes of a convolution; SAME padding of an odd kernel as numbers."""
    kernel = given.get("kernel")
    found = {
        name: value if isinstance(value, tuple | str) else (value,) * dims
        for name, value in {"stride": 1, "padding": 0, "dilation": 1, **given}.items()
        if name in ("stride", "padding", "dilation")
    }
    if found["padding"] == "valid":
        found["padding"] = (0,) * dims
    if found["padding"] == "same" and isinstance(kernel, tuple) and found["stride"] == (1,) * dims:
        sizes = [size for size in kernel if isinstance(size, int) and size % 2]
        found["padding"] = tuple(size // 2 for size in sizes) if len(sizes) == len(kernel) else "same"
    groups = given.get("groups", 1)
    return {**found, "groups": 1 if groups == "auto" else groups}


def _with_sizes(rule: Rule) -> Rule:
    """The rule with the sizes that its operators require of its inputs."""
    typed = infer(rule)
    names: dict[str, str] = {}

    def text(dim: str) -> str:
        return names.setdefault(dim, f"n{len(names)}")

    def dims(tensor: Tensor) -> tuple[str, ...]:
        sizes = [typed.unifier.size(type_) for type_ in typed.inputs[tensor.name].dims]
        for size in sizes:
            for symbol in sorted(size.symbols):
                text(symbol)
        renaming = {old: type(sizes[0]).of(new) for old, new in names.items()}
        return tuple(str(size.substitute(renaming)) for size in sizes)

    inputs = tuple(Tensor(t.name, dims(t)) if not t.dims else t for t in rule.inputs)
    return replace(rule, inputs=inputs)


def _reversed(rule: Rule) -> Rule:
    outputs = tuple((t, s) for s, t in rule.outputs)
    return replace(rule, name=f"{rule.name}, reversed", source=rule.target, target=rule.source, outputs=outputs)


# Operators with the same index notation


def as_linear(rule: Rule) -> Rule | None:
    """The rule with `linear` for products of matrices, whose second operands are then transposed; None without any.

    A value is transposed if it is such an operand, or meets one in an elementwise operator, a concatenation or a split.
    """
    products = [apply for apply in rule.applies if apply.op == "matmul"]
    if not products or any(len(t.dims) != MAX_DIMS for t in rule.inputs):
        return None
    turned: list[set[str]] = [set(), set()]
    while True:
        sizes = [len(names) for names in turned]
        for names, side in zip(turned, rule.sides, strict=True):
            _turn(side, names)
        inputs = {t.name for t in rule.inputs}
        shared = (turned[0] | turned[1]) & inputs
        for names in turned:
            names |= shared
        for s, t in rule.outputs:
            if s in turned[0] or t in turned[1]:
                turned[0].add(s)
                turned[1].add(t)
        if sizes == [len(names) for names in turned]:
            break
    before, after = _turned(rule.source, turned[0]), _turned(rule.target, turned[1])
    if before is None or after is None:
        return None
    (source, first), (target, second) = before, after
    tensors = tuple(replace(t, dims=t.dims[::-1]) if t.name in turned[0] else t for t in rule.inputs)
    outputs = tuple((first.get(s, s), second.get(t, t)) for s, t in rule.outputs)
    name = f"{rule.name}, of linears"
    return replace(rule, name=name, inputs=tensors, source=source, target=target, outputs=outputs)


def _turn(side: Iterable[Apply], names: set[str]) -> None:
    """Add what must be transposed along with what is."""
    for apply in side:
        if apply.op == "matmul":
            names.add(apply.inputs[1])
            if apply.outputs[0] in names:
                names.add(apply.inputs[1])
        elif apply.op != "permute":
            every = (*apply.inputs, *apply.outputs)
            if names & {*every}:
                names |= {*every}


def _turned(side: Iterable[Apply], names: set[str]) -> tuple[tuple[Apply, ...], dict[str, str]] | None:
    """A side on transposed values, and the new names of permuted ones; None if an operand would have to be permuted."""
    made, same = list[Apply](), dict[str, str]()
    for old in side:
        apply = replace(old, inputs=tuple(same.get(name, name) for name in old.inputs))
        source, result = old.inputs[0], old.outputs[0]
        if apply.op == "matmul":
            if source in names:
                return None
            operands = apply.inputs[::-1] if result in names else apply.inputs
            made.append(replace(apply, op="linear", inputs=operands))
        elif apply.op == "permute":
            if (source in names) != (result in names):
                same[result] = apply.inputs[0]
            else:
                made.append(apply)
        elif result in names:
            made.append(apply.map(_other_dim))
        else:
            made.append(apply)
    return tuple(made), same


def _other_dim(name: str, value: Value) -> Value:
    """A dim of a matrix as one of the transposed matrix."""
    return 1 - value if name == "dim" and isinstance(value, int) else value


def _any_window(rule: Rule) -> Rule | None:
    """The rule with symbols for the window of its convolutions, if they have the same one; None otherwise."""
    windows = {apply.attributes for apply in rule.applies if apply.op == "conv"}
    if len(windows) != 1 or any(isinstance(value, str) for _, value in next(iter(windows))):
        return None
    if any(apply.op not in ("conv", "add", "mul", "relu", "scale", "cat", "split") for apply in rule.applies):
        return None
    words: dict[str, Value] = {"stride": "s_", "padding": "p_", "dilation": "e_", "groups": "g_"}
    kernels = {name for apply in rule.applies if apply.op == "conv" for name in apply.inputs[1:]}
    taken: dict[str, str] = {}

    def dims(tensor: Tensor) -> Tensor:
        if tensor.name not in kernels:
            return tensor
        sizes = (taken.setdefault(text, f"k{len(taken)}_") if text.isdigit() else text for text in tensor.dims)
        return replace(tensor, dims=tuple(sizes))

    return rule.map(
        lambda apply: replace(apply, attributes=tuple(words.items())) if apply.op == "conv" else apply,
        name=f"{rule.name}, any window",
        inputs=tuple(map(dims, rule.inputs)),
    )


_Function = tuple[str, tuple[tuple[str, Any], ...]]


def _functions(pcg: PCG) -> list[_Function]:
    """The elementwise functions of one tensor that a graph has, with their attributes, each once."""
    relu = operator(ELEMENTWISE)
    found: dict[_Function, None] = {}
    for node in pcg.nodes:
        if rewriting_of(node.op) is None or len(node.inputs) != 1:
            continue
        entry = operator(node.op)
        if isinstance(entry.notation, str) and entry.notation == relu.notation:
            found[node.op, tuple((k, v) for k, v in node.attributes if k != "site")] = None
    return list(found)


def _with_functions(rule: Rule, functions: Iterable[_Function]) -> Iterator[Rule]:
    """The rule, and the same with every other function in the place of ReLU."""
    yield rule
    if not any(apply.op == ELEMENTWISE for apply in rule.source):
        return
    for op, attributes in functions:
        if op != ELEMENTWISE:
            yield rule.map(partial(_function_for, op, attributes), name=f"{rule.name}, {op}")


def _function_for(op: str, attributes: tuple[tuple[str, Any], ...], apply: Apply) -> Apply:
    return Apply(op, apply.inputs, apply.outputs, attributes) if apply.op == ELEMENTWISE else apply

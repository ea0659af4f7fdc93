"""The line of one operator on local parts: the registry's expression, except where the layout changes what is right.

What changes: sizes in views, expansions, constants and groups of channels; causal attention of some query positions;
dropout, which depends on where an element lies in the whole; batch norms, which count over the whole batch; look-ups,
whose ids are global; and what `losses` and `regathered_weights` say.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from math import prod

from ....formulation.special import special_strategy
from ....model.graph.dtypes import FLOATS
from ....model.graph.layout import atom_of, is_split
from ....model.operators.attention import options
from ....model.operators.batch_norm import sums_per_channel, values_per_channel
from ....model.operators.elementwise import KINDS
from ....model.operators.function import class_source
from ....model.operators.keywords import literal
from ....model.operators.loss import LOSSES
from ....model.operators.operator import is_native, is_random
from ....model.operators.recurrent import is_both, kernel_of, operands_of
from . import losses, regathered_weights
from .conversions import Local
from .operator_calls import OperatorCall, Rule, dtype_text, full_precision, numbers_text, registered, whole_text
from .text import Size, enclosed, one_free, product, shape_text, tuple_text


def expression(call: OperatorCall, names: Sequence[str]) -> str:
    """Program text of a node, given the text of its inputs."""
    if call.specials:
        return _special(call, names)
    if call.regathered:
        return regathered_weights.kept_whole(call, names, lambda operands: _line(call, operands))
    return _line(call, names)


def _line(call: OperatorCall, names: Sequence[str]) -> str:
    """The line by the operator's rule or registration."""
    rule = RULES.get(call.node.op)
    return rule(call, names) if rule else registered(call, [enclosed(name) for name in names])


def _special(call: OperatorCall, names: Sequence[str]) -> str:
    """The line of a special strategy; unequal parts are noted."""
    entry = special_strategy(call.specials[0][1].special)
    call.used.specials.add(entry.name)
    call.used.primitives |= {*entry.primitives}
    for axis, _ in call.specials:
        for known, layout in zip((*call.source_atoms, call.known), (*call.inputs, call.layout), strict=True):
            if is_split(layout[axis]) and known.sizes[atom_of(layout[axis])] % call.sizes[axis]:
                call.used.uneven = True
    plain = replace(call, specials=())
    call = replace(call, own=lambda node, operands: expression(replace(plain, node=node), operands))
    if call.node.op in LOSSES:
        return losses.special(call, names, lambda operands: entry.emit(call, operands, call.specials))
    return entry.emit(call, names, call.specials)


# Views


def _view(call: OperatorCall, names: Sequence[str]) -> str:
    before, after = call.sources[0].shape, call.node.shape
    sizes = call.local.shape()
    return reshaped(enclosed(names[0]), before, after, sizes)


def reshaped(x: str, before: tuple[int, ...], after: tuple[int, ...], sizes: Sequence[Size]) -> str:
    """`x` under another shape: flatten, unflatten, squeeze or unsqueeze where one of them does it, else reshape."""
    i = 0
    while i < min(len(before), len(after)) and before[i] == after[i]:
        i += 1
    j = 0
    while j < min(len(before), len(after)) - i and before[-1 - j] == after[-1 - j]:
        j += 1
    old, new = before[i : len(before) - j], after[i : len(after) - j]
    if not old and not new:
        return x
    if set(new) <= {1} and not old:
        for _ in new:
            x = f"{x}.unsqueeze({i})"
        return x
    if set(old) <= {1} and not new:
        for _ in old:
            x = f"{x}.squeeze({i})"
        return x
    if len(new) == 1 and len(old) > 1:
        return f"{x}.flatten({i}, {i + len(old) - 1})" if i + len(old) < len(before) or i else f"{x}.flatten()"
    if len(old) == 1 and len(new) > 1:
        return f"{x}.unflatten({i}, {shape_text(one_free(sizes[i : i + len(new)]))})"
    return f"{x}.reshape{shape_text(one_free(sizes))}"


def _permute(call: OperatorCall, names: Sequence[str]) -> str:
    dims = call.node["dims"]
    moved = [d for d in range(len(dims)) if dims[d] != d]
    x = enclosed(names[0])
    if len(moved) == 2:
        a, b = moved
        return f"{x}.mT" if (a, b) == (len(dims) - 2, len(dims) - 1) else f"{x}.transpose({a}, {b})"
    return f"{x}.permute({', '.join(map(str, dims))})"


def _expand(call: OperatorCall, names: Sequence[str]) -> str:
    shape = call.sources[0].shape
    added = len(call.node.shape) - len(shape)
    sizes = [
        -1 if d >= added and shape[d - added] == whole else local
        for d, (whole, local) in enumerate(zip(call.node.shape, call.local.shape(), strict=True))
    ]
    return f"{enclosed(names[0])}.expand({', '.join(map(str, sizes))})"


def _full(call: OperatorCall, names: Sequence[str]) -> str:
    value = literal("value", call.node["value"])
    return f"torch.full({call.node.shape}, {value}, dtype={dtype_text(call.node.dtype)}, device=mesh.device)"


def _arange(call: OperatorCall, names: Sequence[str]) -> str:
    node = call.node
    start, stop, step = node["start"], node["stop"], node["step"]
    bounds = ", ".join(map(str, (start, stop, step) if step != 1 else (start, stop) if start else (stop,)))
    dtype = "" if node.dtype == "int64" else f", dtype={dtype_text(node.dtype)}"
    return f"torch.arange({bounds}{dtype}, device=mesh.device)"


def _constant(call: OperatorCall, names: Sequence[str]) -> str:
    node = call.node
    values = numbers_text(node.name, node["values"], call.used)
    text = f"torch.tensor({values}, dtype={dtype_text(node.dtype)}).to(mesh.device, non_blocking=True)"
    return text if len(node.shape) == 1 else f"{text}.reshape({node.shape})"


def _dropout(call: OperatorCall, names: Sequence[str]) -> str:
    return f"dropout({names[0]}, {_dropping(call, 'dropout', len(call.node.shape))})"


def _dropping(call: OperatorCall, function: str, dims: int, more: Sequence[int] = ()) -> str:
    """The arguments with which `function` drops elements of the first `dims` dims of a node, and of `more` whole ones.

    Torch's own random numbers need the axes on which ranks have different parts, counters the place of every element.
    """
    node, local = call.node, call.local
    call.used.modes = True
    head = f"{node['p']}, {call.dropout_site}, mesh"
    if is_native(node):
        call.used.helpers |= {f"native_{function}", "drawing"}
        of_dims = [a for dim in range(dims) for a in local.known.of_dim(dim)]
        split = {axis for a in of_dims for axis in local.splits(a)}
        axes = [local.axes[axis] for axis in sorted(split)]
        micro = ["mesh.micro"] if call.micro_batches > 1 and local.known.batch.intersection(of_dims) else []
        return ", ".join([head, *micro, *axes])
    call.used.helpers |= {function, "positions", "random_bits", "dropped"}
    shape, cuts = whole_text(local, range(dims), call.micro_batches, more)
    return f"{head}, {shape}, {cuts}"


def _random(call: OperatorCall, names: Sequence[str]) -> str:
    shape, cuts = whole_text(call.local, range(len(call.node.shape)), call.micro_batches)
    kind = call.node["kind"]
    call.used.helpers |= {kind, "positions", "random_bits", *(["dropped"] if kind == "bernoulli" else [])}
    call.used.modes = call.used.noise = True
    given = "".join(f", {call.node[name]}" for name in KINDS[kind])
    return f"{kind}({names[0]}{given}, {call.dropout_site}, mesh, {shape}, {cuts})"


def _projection(call: OperatorCall, names: Sequence[str]) -> str:
    shape, cuts = whole_text(call.source(0), range(len(call.sources[0].shape)), call.micro_batches)
    call.used.helpers |= {"projection", "positions", "random_bits"}
    return f"projection({full_precision(call, names[0])}, {call.node.get('site', 0)}, {shape}, {cuts})"


def _attention(call: OperatorCall, names: Sequence[str]) -> str:
    """A causal mask counts positions from the start of the sequence, not from the start of this rank's queries."""
    node, dim = call.node, len(call.sources[0].shape) - 2
    queries, keys = call.source(0), call.sources[1].shape[dim]
    mask, causal = names[3] if len(names) > 3 else None, node["causal"]
    if causal and any(queries.splits(a) for a in call.source_atoms[0].of_dim(dim)):
        call.used.helpers |= {"positions"}
        shape, cuts = whole_text(queries, [dim])
        mask = f"positions({shape}, {cuts}, mesh.device)[:, None] >= torch.arange({keys}, device=mesh.device)"
        causal = False
    read, given = ", ".join(names[:3]), options(node, mask, causal)
    if is_random(node):
        return f"attend({read}, {_dropping(call, 'attend', len(node.shape) - 1, [keys])}{given})"
    return f"F.scaled_dot_product_attention({read}{given})"


# Reductions


def _mean(call: OperatorCall, names: Sequence[str]) -> str:
    """The mean where a rank has all values, else its addend of the mean over the whole batch."""
    dims, shape, local = call.node["dims"], call.sources[0].shape, call.source(0)
    count = losses.element_count(call, dims)
    if count == prod(shape[d] for d in dims) and all(local.dim(d) == shape[d] for d in dims):
        return _reduce("mean", call, names)
    return f"{_reduce('sum', call, names)} / {count}"


def _reduce(function: str, call: OperatorCall, names: Sequence[str]) -> str:
    dims, keep = call.node["dims"], call.node["keepdim"]
    where = [] if len(dims) == len(call.sources[0].shape) and not keep else [str(dims[0] if len(dims) == 1 else dims)]
    if keep:
        where.append("keepdim=True")
    return f"{enclosed(names[0])}.{function}({', '.join(where)})"


def _scale(call: OperatorCall, names: Sequence[str]) -> str:
    """A scale written by its origin: `x / math.sqrt(64)`, `x / 128`, `x * math.log(10000)`."""
    value, x = call.node["value"], enclosed(names[0])
    if isinstance(value, float) and 0 < value < 1:
        square = round(value**-2)
        if square < 2**20 and math.isclose(value, square**-0.5, rel_tol=1e-15) and value != 1 / round(1 / value):
            return f"{x} / math.sqrt({square})"
        if value == 1 / round(1 / value):
            return f"{x} / {round(1 / value)}"
    if isinstance(value, float) and 0 < abs(value) < 15:
        number = round(math.exp(abs(value)))
        if number > 1 and math.log(number) == abs(value):
            return f"{x} * {'-' if value < 0 else ''}math.log({number})"
    return f"{x} * {literal('value', value)}"


def _slice(call: OperatorCall, names: Sequence[str]) -> str:
    node, shape = call.node, call.sources[0].shape
    start, stop, step = node["start"], node["stop"], node["step"]
    until = "" if stop >= shape[node["dim"]] and not isinstance(start, str) and start else str(stop)
    where = f"{start or ''}:{until}" + (f":{step}" if step != 1 else "")
    before = "..., " if node["dim"] == len(shape) - 1 and len(shape) > 2 and stop - start > 1 else ":, " * node["dim"]
    return f"{enclosed(names[0])}[{before}{where}]"


def chunked(call: OperatorCall, names: Sequence[str]) -> str:
    """All equal parts of which a node is one; a rank has an equal share of each."""
    dim = call.node["dim"]
    last = dim > 0 and dim == len(call.node.shape) - 1
    return f"{enclosed(names[0])}.chunk({call.node['of']}, {-1 if last else dim})"


def _part(call: OperatorCall, names: Sequence[str]) -> str:
    return f"{chunked(call, names)}[{call.node['number']}]"


def _linear_relu(call: OperatorCall, names: Sequence[str]) -> str:
    call.used.helpers.add("linear_relu")
    return f"linear_relu({', '.join(names)})"


# Channels


class _Expression(str):
    """Program text among the attributes of a node."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _grouped(call: OperatorCall, names: Sequence[str]) -> str:
    """An operator on groups of channels, given the number of groups that this rank has."""
    groups = _outer(call.source(0), 1, call.node["groups"])
    local = groups if isinstance(groups, int) else _Expression(groups)
    attributes = tuple((k, local if k == "groups" else v) for k, v in call.node.attributes)
    return registered(replace(call, node=replace(call.node, attributes=attributes)), names)


def _outer(local: Local, dim: int, factor: int) -> Size:
    """The local part of the outer factor of a dim; a dim whose atoms do not fit the factor is not split."""
    atoms, whole = [], 1
    for atom in local.known.of_dim(dim):
        if whole == factor:
            break
        atoms.append(atom)
        whole *= local.known.sizes[atom]
    return product(map(local.atom, atoms)) if whole == factor else factor


def _moments(call: OperatorCall, names: Sequence[str]) -> str:
    call.used.helpers.add("moments")
    return f"moments({names[0]})"


def _batch_norm(call: OperatorCall, names: Sequence[str]) -> str:
    """A batch norm, given sums over all ranks and the number of values on all ranks."""
    call.used.helpers.add("batch_norm")
    given = dict(zip(call.node["operands"], names, strict=True))
    options = [f"eps={call.node['eps']!r}"]
    if "mean" in given:
        options += [f"running=({given['mean']}, {given['var']})", f"momentum={call.node['momentum']!r}"]
    options += [f"{word}={given[name]}" for name, word in (("w", "weight"), ("bias", "bias")) if name in given]
    if "mean" in given:
        options.append("training=mesh.training")
        call.used.modes = True
    count = values_per_channel(call.sources[0]) // sums_per_channel(*call.sources[:2])
    return f"batch_norm({given['x']}, {given['s']}, {count}, {', '.join(options)})"


def _local_batch_norm(call: OperatorCall, names: Sequence[str]) -> str:
    """In mixed precision weights have the dtype of the statistics, not of the input."""
    operands = enumerate(zip(call.node["operands"], names, strict=True))
    text = registered(
        call, [full_precision(call, text, i) if name in ("w", "bias") else text for i, (name, text) in operands]
    )
    if "mean" not in call.node["operands"]:
        return text
    call.used.modes = True
    return text.replace(", True, ", ", mesh.training, ")


def _store(call: OperatorCall, names: Sequence[str]) -> str:
    call.used.helpers.add("stored")
    return registered(call, names)


# Opaque operators, and autograd functions of the module


def _opaque(call: OperatorCall, names: Sequence[str]) -> str:
    """Many operators have no kernel for 16 bits: an opaque one computes in float32 at least."""
    text = registered(call, [enclosed(full_precision(call, name, i)) for i, name in enumerate(names)])
    text = text if names else f"{text}.to(mesh.device)"
    call.used.libraries |= {call.node["library"]} if call.node.get("library") else set()
    return f"{text}.to(self.dtype)" if call.mixed and call.node.dtype in FLOATS else text


def _function(call: OperatorCall, names: Sequence[str]) -> str:
    """A call of a class that the program has, in float32 at least."""
    node, known = call.node, call.used.functions
    wishes = (f"{node['title']}{number if number > 1 else ''}" for number in count(1))
    name = next(wish for wish in wishes if known.get(wish, class_source(wish, node)) == class_source(wish, node))
    known[name] = class_source(name, node)
    text = f"{name}.apply({', '.join(full_precision(call, x, i) for i, x in enumerate(names))})"
    text = f"{text}[{node['output']}]" if len(node["results"]) > 1 else text
    return f"{text}.to(self.dtype)" if call.mixed and node.dtype in FLOATS else text


# Look-ups: ids are global, so ids outside a rank's part of the table are misses.

_HELPERS = {
    "embedding": "embed_rows",
    "embedding_bag": "embed_bags",
    "gather": "gather_rows",
    "index": "index_rows",
}


def _lookup(call: OperatorCall, names: Sequence[str]) -> str:
    """The registry's expression, or a helper that takes the rows of this rank."""
    node, (table, *more) = call.node, names
    dim, sparse = node.get("dim", 0), bool(node.get("sparse"))
    method = "dim" in dict(node.attributes)  # of the tensor, which may be an expression
    cast = ".to(self.dtype)" if sparse and call.mixed else ""  # of the rows, since that of the table would be dense
    if cast and len(more) > 1:
        more[1] = f"{enclosed(more[1])}.to({table}.dtype)"
    if not any(call.source(0).splits(a) for a in call.source_atoms[0].of_dim(dim)):
        if node.op == "gather" and node.gradient:
            call.used.helpers.add("taken")
            return f"taken({table}, {dim}, {more[0]})"
        return registered(call, [enclosed(table) if method else table, *more]) + cast
    helper = _HELPERS[node.op]
    call.used.helpers |= {helper, "among", "positions"} | ({"taken"} if node.op == "gather" else set())
    shape, cuts = whole_text(call.source(0), [dim])
    rows = f"positions({shape}, {cuts}, {more[0]}.device)"
    arguments = [table, str(dim), *more, rows] if method else [more[0], table, rows, *more[1:]]
    arguments += ["sparse=True"] if sparse else []
    return f"{helper}({', '.join(arguments)})" + cast


def _scatter_add(call: OperatorCall, names: Sequence[str]) -> str:
    call.used.helpers.add("scatter_add")
    return registered(call, names)


def _recurrent(call: OperatorCall, names: Sequence[str]) -> str:
    """PyTorch's function for one layer, which is given this rank's samples and all weights."""
    node, (x, weights, states) = call.node, operands_of(call.node, names)
    flags = {"both": is_both(node), "batch_first": node["batch_first"], "memory": bool(node.get("memory"))}
    call.used.helpers |= {"recurrent", *(["memory"] if flags["memory"] else [])}
    arguments = [
        f"torch.{kernel_of(node)}",
        x,
        tuple_text(weights),
        *([f"states={tuple_text(states)}"] if states else []),
    ]
    return f"recurrent({', '.join([*arguments, *(f'{name}=True' for name, given in flags.items() if given)])})"


def _grouped_product(call: OperatorCall, names: Sequence[str]) -> str:
    call.used.helpers.add("grouped_product")
    return registered(call, names)


RULES: dict[str, Rule] = {
    **losses.RULES,
    **regathered_weights.RULES,
    **dict.fromkeys(_HELPERS, _lookup),
    **dict.fromkeys(("conv", "conv_transpose", "group_norm"), _grouped),
    "scatter_add": _scatter_add,
    "grouped_product": _grouped_product,
    **dict.fromkeys(("lstm", "gru", "rnn"), _recurrent),
    "moments": _moments,
    "batch_norm": _batch_norm,
    "local_batch_norm": _local_batch_norm,
    "view": _view,
    "permute": _permute,
    "expand": _expand,
    "full": _full,
    "arange": _arange,
    "constant": _constant,
    "dropout": _dropout,
    "random": _random,
    "projection": _projection,
    "attention": _attention,
    "mean": _mean,
    "sum": partial(_reduce, "sum"),
    "amax": partial(_reduce, "amax"),
    "amin": partial(_reduce, "amin"),
    "scale": _scale,
    "slice": _slice,
    "part": _part,
    "linear_relu": _linear_relu,
    "store": _store,
    "opaque": _opaque,
    "function": _function,
}

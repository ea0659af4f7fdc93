"""Reductions, products, normalizations and attention."""

from math import inf, prod, sqrt
from string import ascii_letters

from ..known_values import hides_nothing, is_causal, sees_something
from ..translation import A, Index, Rule, T, Value, broadcast, present
from .elementwise import dropout, dropout_site
from .order import one_of
from .views import interleave


def _reduce(op: str) -> Rule:
    def rule(t: T, a: A) -> Value:
        return t.reduce(op, t.to(a["self"], a.get("dtype")), a.get("dim"), a.get("keepdim", False))

    return rule


def _norm(t: T, a: A) -> Value:
    """The p-norm over some or all dims; `p` of `norm` is `ord` of `linalg_vector_norm`."""
    order = t.number(a.get("ord", a.get("p")))
    order = 2 if order is None else order
    x = t.to(a["self"], a.get("dtype"))
    if not t.shape(x):
        return t.view(t.reduce("norm", t.view(x, (1,)), 0, False, ord=order), ())
    return t.reduce("norm", x, a.get("dim"), a.get("keepdim", False), ord=order)


def _extreme(word: str) -> Rule:
    """max and min: of two tensors, of all entries (equal ones share the gradient), of one along `dim`."""

    def rule(t: T, a: A) -> Value:
        if "other" in a:
            return t.add(f"{word}imum", a["self"], a["other"])
        if "dim" in a:
            return one_of(t, f"arg{word}", a)
        return t.reduce(f"a{word}", a["self"], None, False)

    return rule


def _centred(t: T, a: A) -> tuple[Index, int, float] | None:
    """A tensor less its mean; the number of values of each variance; of how many their squares' sum is the mean."""
    x, dims, correction = a["self"], a.get("dim"), a.get("correction")
    correction = int(a.get("unbiased", True)) if correction is None else correction
    shape = t.shape(x)
    count = prod(shape[d] for d in dims) if dims else prod(shape)
    if not shape or count <= correction:
        t.no(f"a variance of {count} values with correction {correction}")
        return None
    mean = t.reduce("mean", x, dims, True)
    return t.add("sub", x, mean, shape=shape), count, count - correction


def _variance(t: T, a: A) -> Value:
    found = _centred(t, a)
    if found is None:
        return None
    x, count, free = found
    square = t.add("pow", x, shape=t.shape(x), exponent=2)
    return t.scale(t.reduce("mean", square, a.get("dim"), a.get("keepdim", False)), count / free)


def _deviation(t: T, a: A) -> Value:
    """By a norm: of equal values its gradient is 0, as that of torch's deviation, where a root's has no number."""
    found = _centred(t, a)
    if found is None:
        return None
    x, _, free = found
    return t.scale(t.reduce("norm", x, a.get("dim"), a.get("keepdim", False), ord=2), 1 / sqrt(free))


def _along_dim(op: str) -> Rule:
    """An operator of one operand along `dim`, computed in another dtype if one is given."""

    def rule(t: T, a: A) -> Value:
        x = t.to(a["self"], a.get("dtype"))
        rank = len(t.shape(x))
        return t.add(op, x, dim=a["dim"] % rank) if rank else t.no("a tensor without dims")

    return rule


def _linear(t: T, a: A) -> Value:
    return t.add("linear", *present(a["input"], a["weight"], a["bias"]))


def _matmul(t: T, a: A) -> Value:
    if "out_dtype" in a:
        return t.no("out_dtype")
    return t.add("matmul", a["self"], a["other"] if "other" in a else a["mat2"])


def _add_matmul(first: str, second: str) -> Rule:
    """beta * self + alpha * first @ second, as Hugging Face's Conv1D."""

    def rule(t: T, a: A) -> Value:
        if "out_dtype" in a:
            return t.no("out_dtype")
        product = t.scale(t.add("matmul", a[first], a[second]), a["alpha"])
        return t.add("add", product, t.scale(a["self"], a["beta"])) if a["beta"] else product

    return rule


def _einsum(t: T, a: A) -> Value:
    """An einsum of many operands as a chain of products of two; dims in `...` get letters of their own."""
    equation, operands = a["equation"].replace(" ", ""), a["tensors"]
    sources, arrow, output = equation.partition("->")
    terms, spare = sources.split(","), [c for c in ascii_letters if c not in equation]
    width = max(len(t.shape(x)) - len(s) + 3 if "..." in s else 0 for s, x in zip(terms, operands, strict=True))
    dots = "".join(spare[:width])
    if not arrow:
        output = "..." + "".join(sorted(c for c in sources if c.isalpha() and sources.count(c) == 1))
    output = output.replace("...", dots)
    terms = [
        s.replace("...", dots[width - (len(t.shape(x)) - len(s) + 3) :]) for s, x in zip(terms, operands, strict=True)
    ]
    if any(len(set(term)) < len(term) for term in terms):
        return t.no("a letter that is repeated in one operand (a diagonal)")
    return _chain(t, terms, operands, output)


def _chain(t: T, terms: list[str], operands: list[Index], output: str) -> Index:
    """Products of two from the left; letters that no later operand and not the output has are summed."""
    pairs = [pair for term, x in zip(terms, operands, strict=True) for pair in zip(term, t.shape(x), strict=True)]
    sizes = {letter: max(size for other, size in pairs if other == letter) for letter, _ in pairs}
    (left, *others), (x, *rest) = terms, operands
    if not others:
        if set(left) == set(output):
            return t.permute(x, [left.index(letter) for letter in output])
        return t.add("einsum", x, equation=f"{left}->{output}")
    for place, (term, y) in enumerate(zip(others, rest, strict=True)):
        needed = {*output, *"".join(others[place + 1 :])}
        kept = "".join(c for c in dict.fromkeys(left + term) if c in needed) if others[place + 1 :] else output
        x = t.add("einsum", x, y, shape=[sizes[c] for c in kept], equation=f"{left},{term}->{kept}")
        left = kept
    return x


def _layer_norm(t: T, a: A) -> Value:
    given = {"x": a["input"], "w": a["weight"], "bias": a["bias"]}
    given = {name: x for name, x in given.items() if x is not None}
    sizes: A = {"normalized": len(a["normalized_shape"]), "eps": a["eps"]}
    return t.add("layer_norm", *given.values(), like=a.get("like"), operands=tuple(given), **sizes)


def _rms_norm(t: T, a: A) -> Value:
    return t.add("rms_norm", *present(a["input"], a["weight"]), normalized=len(a["normalized_shape"]), eps=a["eps"])


def _attention(t: T, a: A) -> Value:
    q, k, v, mask, p = (a[name] for name in ("query", "key", "value", "attn_mask", "dropout_p"))
    known = None if mask is None else t.known.of(mask)
    if known is not None:
        known = known.expand(broadcast(known.shape, (t.shape(q)[-2], t.shape(k)[-2])))
        if hides_nothing(known):
            mask = None
        elif is_causal(known):
            a, mask = a | {"is_causal": True}, None
    grouped = a["enable_gqa"] and t.shape(q)[-3] != t.shape(k)[-3]
    if p < 1 and (not p or t.dropout == "torch"):
        attributes = ({"grouped": True} if grouped else {}) | (dropout_site(t, p) if p else {})
        return t.add("attention", *present(q, k, v, mask), causal=a["is_causal"], scale=a["scale"], **attributes)
    if grouped:
        k, v = (interleave(t, x, len(t.shape(x)) - 3, t.shape(q)[-3] // t.shape(x)[-3]) for x in (k, v))
    shape = (*t.shape(q)[:-1], t.shape(k)[-2])
    scores = t.add("matmul", q, t.transpose(k, -2, -1), shape=shape)
    scores = t.scale(scores, 1 / sqrt(t.shape(q)[-1]) if a["scale"] is None else a["scale"])
    if a["is_causal"]:
        mask, known = t.causal(*shape[-2:]), None
    blind = mask is not None and not a["is_causal"] and (known is None or not sees_something(known))
    return t.add("matmul", dropout(t, _shares(t, scores, mask, blind), p), v)


def _safe_softmax(t: T, a: A) -> Value:
    """A softmax that is 0 where all entries of a row are -inf, and so is its gradient."""
    x = t.to(a["self"], a["dtype"])
    shape, dim = t.shape(x), a["dim"] % len(t.shape(x))
    blind = t.add(
        "relate", t.reduce("amax", x, dim, True), t.full(-inf), shape=(*shape[:dim], 1, *shape[dim + 1 :]),
        dtype="bool", relation="eq",
    )  # fmt: skip
    filled = t.add("where", blind, t.full(0.0), x, shape=shape)
    return t.add("where", blind, t.full(0.0), t.add("softmax", filled, shape=shape, dim=dim), shape=shape)


def _shares(t: T, scores: Index, mask: Index | None, blind: bool) -> Index:
    """The softmax of masked scores; where queries may be `blind`, that see no key, their shares are 0, as in PyTorch.

    Values and gradients of a row of -inf are NaN; `where` lets neither through.
    """
    shape, seen = t.shape(scores), mask
    if mask is not None and t.at(mask).dtype != "bool":
        scores = t.add("add", scores, mask, shape=shape)
        hidden = t.full(-inf)
        seen = t.add("relate", mask, hidden, shape=t.shape(mask), dtype="bool", relation="gt") if blind else None
    if seen is not None:
        scores = t.add("where", seen, scores, t.full(-inf), shape=shape)
    shares = t.add("softmax", scores, shape=shape, dim=len(shape) - 1)
    return t.add("where", seen, shares, t.full(0.0), shape=shape) if seen is not None and blind else shares


def _grouped_product(t: T, a: A) -> Value:
    x, w = a["self"], a["mat2"]
    if a["offs"] is None or len(t.shape(x)) != 2 or len(t.shape(w)) != 3 or a.get("bias") is not None:
        return t.no("only rows in groups, times a matrix for each group, without a bias")
    return t.to(t.add("grouped_product", x, w, a["offs"], dtype=t.at(x).dtype), t.like.dtype)


TABLE: dict[str, Rule] = {
    "_grouped_mm": _grouped_product,
    "sum": _reduce("sum"),
    "mean": _reduce("mean"),
    "amax": _reduce("amax"),
    "amin": _reduce("amin"),
    "logsumexp": lambda t, a: t.reduce("logsumexp", a["self"], a["dim"], a["keepdim"]),
    "linalg_vector_norm": _norm,
    "norm": _norm,
    "cumsum": _along_dim("cumsum"),
    "cumprod": _along_dim("cumprod"),
    "logcumsumexp": _along_dim("logcumsumexp"),
    "max": _extreme("max"),
    "min": _extreme("min"),
    "var": lambda t, a: _variance(t, a),
    "std": _deviation,
    "softmax": _along_dim("softmax"),
    "_safe_softmax": _safe_softmax,
    "_softmax": _along_dim("softmax"),
    "log_softmax": _along_dim("log_softmax"),
    "_log_softmax": _along_dim("log_softmax"),
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "bmm": _matmul,
    "einsum": _einsum,
    "mv": lambda t, a: t.add("matmul", a["self"], a["vec"]),
    "dot": lambda t, a: t.add("matmul", a["self"], a["tensor"]),
    "addmm": _add_matmul("mat1", "mat2"),
    "baddbmm": _add_matmul("batch1", "batch2"),
    "layer_norm": _layer_norm,
    "native_layer_norm": lambda t, a: [_layer_norm(t, a | {"like": t.like[0]}), None, None],
    "rms_norm": _rms_norm,
    "scaled_dot_product_attention": _attention,
}

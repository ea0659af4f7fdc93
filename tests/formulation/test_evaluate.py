"""Parallel tensors with values: every operator against PyTorch, and shards as devices hold them against the whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from partita.formulation.substitution.arithmetic import Modular, Real
from partita.formulation.substitution.evaluate import applied, evaluate, evaluated
from partita.formulation.substitution.rule import PARALLEL, RULE_OPERATORS, Apply, Rule
from partita.formulation.substitution.symbolic.compute import COMPUTE
from partita.formulation.substitution.text import parse_rule
from partita.formulation.substitution.trial import random_inputs, trial
from partita.formulation.substitution.values import ParallelValue
from partita.model.errors import PartitaError
from partita.model.operators.operator import operator, operators
from partita.model.operators.sharded import Digit, IllTyped

REAL, FIELD = Real(), Modular()
Torch = Callable[..., Any]


def tensor(shape: Sequence[int], seed: int = 0, replicas: int = 1, degrees: Sequence[int] = ()) -> ParallelValue:
    return ParallelValue.of(REAL.random((replicas, *shape), seed), degrees)


def ids(shape: Sequence[int], rows: int, replicas: int = 1) -> ParallelValue:
    return ParallelValue.of(np.random.default_rng(0).integers(0, rows, (replicas, *shape)))


# operator, attributes, letters of the operands and the result (dims that may be cut are lower case), sizes of letters,
# how often each is cut in the sharded run, PyTorch. Letters that the result lacks are summed. `ids` has row numbers.
CASES: list[tuple[str, dict[str, Any], str, dict[str, int], dict[str, int], Torch]] = [
    ("matmul", {}, "bk,kn->bn", {"b": 4, "k": 6, "n": 2}, {"b": 2, "k": 3, "n": 2}, torch.matmul),
    ("matmul", {}, "abk,akn->abn", {"a": 2, "b": 4, "k": 6, "n": 2}, {"a": 2, "b": 2, "k": 3, "n": 2}, torch.matmul),
    ("matmul", {}, "abk,kn->abn", {"a": 2, "b": 3, "k": 4, "n": 2}, {"a": 2, "k": 2, "n": 2}, torch.matmul),
    ("linear", {}, "abi,oi->abo", {"a": 2, "b": 4, "i": 6, "o": 2}, {"a": 2, "b": 2, "i": 3, "o": 2}, F.linear),
    ("linear", {}, "bi,oi,o->bo", {"b": 4, "i": 6, "o": 2}, {"b": 2, "o": 2}, F.linear),
    (
        "linear",
        {"activation": "relu"},
        "bi,oi->bo",
        {"b": 4, "i": 6, "o": 2},
        {"b": 2, "o": 2},
        lambda x, w: F.relu(F.linear(x, w)),
    ),
    ("linear_relu", {}, "bI,oI,o->bo", {"b": 4, "I": 6, "o": 2}, {"b": 2, "o": 2},
     lambda x, w, b: F.relu(F.linear(x, w, b))),
    ("transpose", {}, "abc->acb", {"a": 2, "b": 4, "c": 6}, {"a": 2, "b": 2, "c": 3}, lambda x: x.mT),
    ("cumsum", {"dim": 1}, "aBc->aBc", {"a": 4, "B": 3, "c": 4}, {"a": 2, "c": 2}, lambda x: x.cumsum(1)),
    ("add", {}, "ab,ab->ab", {"a": 4, "b": 6}, {"a": 2, "b": 3}, torch.add),
    ("add", {}, "ab,b->ab", {"a": 4, "b": 6}, {"a": 2, "b": 3}, torch.add),
    ("sub", {}, "ab,ab->ab", {"a": 4, "b": 6}, {"a": 2, "b": 3}, torch.sub),
    ("mul", {}, "ab,ab->ab", {"a": 4, "b": 6}, {"a": 2, "b": 3}, torch.mul),
    ("div", {}, "ab,ab->ab", {"a": 4, "b": 6}, {"a": 2, "b": 3}, torch.div),
    ("maximum", {}, "ab,ab->ab", {"a": 4, "b": 6}, {"a": 2, "b": 3}, torch.maximum),
    ("neg", {}, "ab->ab", {"a": 4, "b": 6}, {"a": 2, "b": 3}, torch.neg),
    ("scale", {"value": 0.25}, "ab->ab", {"a": 4, "b": 6}, {"a": 2, "b": 3}, lambda x: 0.25 * x),
    ("softmax", {"dim": 1}, "aBc->aBc", {"a": 4, "B": 3, "c": 4}, {"a": 2, "c": 2}, lambda x: x.softmax(1)),
    ("log_softmax", {"dim": -1}, "aB->aB", {"a": 4, "B": 3}, {"a": 2}, lambda x: x.log_softmax(1)),
    ("layer_norm", {"normalized": 1}, "abC,C,C->abC", {"a": 4, "b": 2, "C": 5}, {"a": 2, "b": 2},
     lambda x, w, b: F.layer_norm(x, (5,), w, b)),
    ("rms_norm", {"normalized": 1, "eps": 1e-5}, "abC,C->abC", {"a": 4, "b": 2, "C": 5}, {"a": 2},
     lambda x, w: F.rms_norm(x, (5,), w, 1e-5)),
    ("local_batch_norm", {}, "ncHW,c,c->ncHW", {"n": 4, "c": 6, "H": 2, "W": 3}, {"c": 3},
     lambda x, w, b: F.batch_norm(x, None, None, w, b, True)),
    ("moments", {}, "nch->Kc", {"n": 4, "c": 6, "h": 4, "K": 2}, {"n": 2, "c": 3, "h": 2},
     lambda x: torch.stack([x.sum((0, 2)), x.square().sum((0, 2))])),
    ("group_norm", {"groups": 2}, "nCH,C,C->nCH", {"n": 4, "C": 6, "H": 3}, {"n": 2},
     lambda x, w, b: F.group_norm(x, 2, w, b)),
    ("logsumexp", {"dims": (1,)}, "aBc->ac", {"a": 2, "B": 4, "c": 6}, {"a": 2, "c": 3}, lambda x: x.logsumexp(1)),
    *[("norm", {"dims": (0,), "ord": order}, "Bc->c", {"B": 4, "c": 6}, {"c": 3},
       lambda x, order=order: torch.linalg.vector_norm(x, order, 0)) for order in (1, 2, float("inf"))],
    ("prelu", {}, "nch,c->nch", {"n": 2, "c": 4, "h": 3}, {"n": 2, "c": 2}, F.prelu),
    ("prelu", {}, "nch,O->nch", {"n": 2, "c": 4, "h": 3, "O": 1}, {"n": 2, "c": 2}, F.prelu),
    ("where", {}, "ab,ab,ab->ab", {"a": 4, "b": 6}, {"a": 2}, lambda c, x, y: torch.where(c != 0, x, y)),
    ("relate", {"relation": "gt"}, "ab,ab->ab", {"a": 4, "b": 6}, {"a": 2}, lambda x, y: torch.gt(x, y).double()),
    ("compare", {"relation": "le", "value": 0.2}, "ab->ab", {"a": 4, "b": 6}, {"b": 2}, lambda x: (x <= 0.2).double()),
    ("logical_not", {}, "ab->ab", {"a": 4, "b": 6}, {"b": 2}, lambda x: (x == 0).double()),
    ("flip", {"dims": (1,)}, "aB->aB", {"a": 4, "B": 3}, {"a": 2}, lambda x: x.flip(1)),
    ("part", {"dim": 1, "of": 2, "number": 1}, "aB->aC", {"a": 4, "B": 6, "C": 3}, {"a": 2}, lambda x: x[:, 3:]),
    ("tril", {"diagonal": 1}, "aBC->aBC", {"a": 4, "B": 3, "C": 4}, {"a": 2}, lambda x: x.tril(1)),
    ("triu", {}, "aBC->aBC", {"a": 4, "B": 3, "C": 4}, {"a": 2}, torch.triu),
    ("permute", {"dims": (2, 0, 1)}, "abc->cab", {"a": 2, "b": 4, "c": 6}, {"a": 2, "b": 2, "c": 3},
     lambda x: x.permute(2, 0, 1)),
    ("cat", {"dim": 0}, "Ab,Ab->Cb", {"A": 2, "C": 4, "b": 4}, {"b": 2}, lambda *x: torch.cat(x)),
    ("slice", {"dim": 1, "start": 1, "stop": 6, "step": 2}, "aB->aC", {"a": 4, "B": 6, "C": 3}, {"a": 2},
     lambda x: x[:, 1:6:2]),
    ("pad", {"pad": (1, 2)}, "aB->aC", {"a": 4, "B": 6, "C": 9}, {"a": 2}, lambda x: F.pad(x, (1, 2))),
    ("expand", {"shape": (4, 3, 6)}, "aBc->aDc", {"a": 4, "B": 1, "D": 3, "c": 6}, {"a": 2, "c": 3},
     lambda x: x.expand(-1, 3, -1)),
    ("sum", {"dims": (1,)}, "abc->ac", {"a": 2, "b": 4, "c": 6}, {"a": 2, "b": 2, "c": 3}, lambda x: x.sum(1)),
    ("sum", {"dims": (0, 2), "keepdim": True}, "abc->DbE", {"a": 2, "b": 4, "c": 6, "D": 1, "E": 1},
     {"a": 2, "b": 2, "c": 3}, lambda x: x.sum((0, 2), True)),
    ("mean", {"dims": (1,), "count": 4}, "abc->ac", {"a": 2, "b": 4, "c": 6}, {"a": 2, "b": 2}, lambda x: x.sum(1) / 4),
    ("amax", {"dims": (1,)}, "aBc->ac", {"a": 2, "B": 4, "c": 6}, {"a": 2, "c": 3}, lambda x: x.amax(1)),
    ("conv", {"stride": 2, "padding": (1, 0), "dilation": (1, 2)}, "ncHW,ocKL->noIJ",
     {"n": 2, "c": 4, "H": 5, "W": 6, "o": 6, "K": 3, "L": 2, "I": 3, "J": 2}, {"n": 2, "c": 2, "o": 3},
     lambda x, w: F.conv2d(x, w, stride=2, padding=(1, 0), dilation=(1, 2))),
    ("conv", {"padding": "same"}, "ncH,ocK,o->noH", {"n": 2, "c": 4, "H": 5, "o": 6, "K": 3}, {"n": 2, "o": 3},
     lambda x, w, b: F.conv1d(x, w, b, padding="same")),
    ("conv", {}, "nchw,ocKL->nohw", {"n": 2, "c": 4, "h": 4, "w": 2, "o": 2, "K": 1, "L": 1},
     {"n": 2, "c": 2, "h": 2, "w": 2, "o": 2}, F.conv2d),
    ("max_pool", {"kernel_size": 2, "stride": 1, "padding": 1}, "ncHW->ncIJ",
     {"n": 2, "c": 4, "H": 3, "W": 4, "I": 4, "J": 5}, {"n": 2, "c": 2}, lambda x: F.max_pool2d(x, 2, 1, 1)),
    ("avg_pool", {"kernel_size": (2, 3)}, "ncHW->ncIJ", {"n": 2, "c": 4, "H": 4, "W": 6, "I": 2, "J": 2},
     {"n": 2, "c": 2}, lambda x: F.avg_pool2d(x, (2, 3))),
    ("attention", {"causal": False, "scale": None}, "bhsD,bhTD,bhTe->bhse",
     {"b": 2, "h": 4, "s": 4, "T": 3, "D": 5, "e": 2}, {"b": 2, "h": 2, "s": 2, "e": 2},
     F.scaled_dot_product_attention),
    ("attention", {"causal": False, "scale": 0.5}, "bhsD,bhTD,bhTe,sT->bhse",
     {"b": 2, "h": 4, "s": 4, "T": 3, "D": 5, "e": 2}, {"b": 2, "h": 2, "s": 2},
     lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, scale=0.5)),
    ("einsum", {"equation": "abk,kna->nb"}, "abk,kna->nb", {"a": 2, "b": 4, "k": 6, "n": 2},
     {"a": 2, "b": 2, "k": 3, "n": 2}, lambda x, w: torch.einsum("abk,kna->nb", x, w)),
    *[(name, given, "ab->ab", {"a": 4, "b": 6}, {"a": 2, "b": 3}, function) for name, given, function in (
        ("relu", {}, F.relu), ("gelu", {}, F.gelu), ("gelu", {"approximate": "tanh"},
         lambda x: F.gelu(x, approximate="tanh")), ("silu", {}, F.silu), ("tanh", {}, torch.tanh),
        ("sigmoid", {}, torch.sigmoid), ("softplus", {}, F.softplus), ("leaky_relu", {"slope": 0.1},
         lambda x: F.leaky_relu(x, 0.1)), ("elu", {"alpha": 2.0}, lambda x: F.elu(x, 2.0)), ("selu", {}, F.selu),
        ("mish", {}, F.mish), ("hardtanh", {"min_val": -0.5, "max_val": 0.5}, lambda x: F.hardtanh(x, -0.5, 0.5)),
        ("relu6", {}, F.relu6), ("hardswish", {}, F.hardswish), ("hardsigmoid", {}, F.hardsigmoid),
        ("logsigmoid", {}, F.logsigmoid), ("exp", {}, torch.exp), ("log", {}, torch.log), ("sqrt", {}, torch.sqrt),
        ("rsqrt", {}, torch.rsqrt), ("sin", {}, torch.sin), ("cos", {}, torch.cos), ("erf", {}, torch.erf),
        ("abs", {}, torch.abs), ("reciprocal", {}, torch.reciprocal), ("pow", {"exponent": 3}, lambda x: x**3),
        ("clamp", {"min": -0.5, "max": 0.5}, lambda x: x.clamp(-0.5, 0.5)), ("shift", {"value": 2}, lambda x: x + 2),
    )],
]  # fmt: skip
NAMES = [f"{i}-{case[0]}" for i, case in enumerate(CASES)]


def sides(letters: str) -> tuple[list[str], str]:
    inputs, output = letters.split("->")
    return inputs.split(","), output


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_whole_tensors_give_what_torch_gives(case: Any) -> None:
    op, attributes, letters, sizes, _, function = case
    values = [tensor([sizes[c] for c in term], i) for i, term in enumerate(sides(letters)[0])]
    (made,) = applied(op, attributes, values, REAL)
    expected = function(*(torch.from_numpy(v.array[0]) for v in values)).numpy()
    assert made.array.shape == (1, *expected.shape)
    np.testing.assert_allclose(made.array[0], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("surplus", [1, 2])
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_shards_on_devices_give_the_whole(case: Any, surplus: int) -> None:
    """Every device runs PyTorch on the slices that it holds, and its result is put where the line says."""
    op, attributes, letters, sizes, cuts, function = case
    terms, output = sides(letters)
    summed = [c for c in dict.fromkeys("".join(terms)) if c not in output and c in cuts]
    order = [c for c in output if c in cuts] + summed
    values = []
    for number, term in enumerate(terms):
        replicas = prod(cuts[c] for c in order if c not in term) * surplus
        values.append(tensor([sizes[c] for c in term], number, replicas, [cuts.get(c, 1) for c in term]))
    (made,) = applied(op, attributes, values, REAL)
    whole = np.full((prod(cuts[c] for c in summed) * surplus, *(sizes[c] for c in output)), np.nan)
    for task in product(*(range(cuts[c]) for c in order), range(surplus)):
        at, extra = dict(zip(order, task, strict=False)), task[-1]

        def part(array: np.ndarray[Any, Any], term: str, lacking: list[str], at: Any = at, extra: int = extra) -> Any:
            replica = 0
            for c in lacking:
                replica = replica * cuts[c] + at[c]
            width = [sizes[c] // cuts.get(c, 1) for c in term]
            where = [slice(at.get(c, 0) * w, at.get(c, 0) * w + w) for c, w in zip(term, width, strict=True)]
            return array[(replica * surplus + extra, *where)]

        lacking = [[c for c in order if c not in term] for term in terms]
        held = [part(v.array, term, lacks) for v, term, lacks in zip(values, terms, lacking, strict=True)]
        done = function(*(torch.from_numpy(shard.copy()) for shard in held))
        part(whole, output, summed)[...] = done.numpy()
    np.testing.assert_allclose(made.array, whole, rtol=1e-9, atol=1e-9)
    assert made.digits == tuple((Digit(cuts[c]),) if c in cuts else () for c in output)


def test_every_evaluated_operator_is_one_of_the_registry() -> None:
    assert set(evaluated()) - {entry.name for entry in operators()} == set(RULE_OPERATORS)


def test_every_evaluated_operator_is_tested() -> None:
    apart = {
        "to",
        "contiguous",
        "detach",
        "minimum",
        "power",
        "view",
        "split",
        "embedding",
        "embedding_bag",
        "batch_norm",
    }
    assert set(evaluated()) == apart | {case[0] for case in CASES}


def test_proofs_know_every_operator_of_rules() -> None:
    """The table of meanings and the notations together: whatever rules run or rewrite, proofs can read."""
    rewritten = {entry.name for entry in operators() if entry.rewriting is not None}
    for name in {*evaluated(), *rewritten, *RULE_OPERATORS, *PARALLEL} - set(COMPUTE):
        entry = operator(name)
        stated = bool(entry.notation) and not entry.view and not entry.creates
        assert stated or entry.algebra.unprovable, name


@pytest.mark.parametrize("op", ["minimum", "power"])
def test_other_binary_functions(op: str) -> None:
    a, b = tensor((3, 4)), ParallelValue.of(np.full((1, 3, 4), 2.0))
    (made,) = applied(op, {}, [a, b], REAL)
    function = {"minimum": torch.minimum, "power": torch.pow}[op]
    np.testing.assert_allclose(made.array, function(torch.from_numpy(a.array), torch.from_numpy(b.array)).numpy())


def test_a_group_is_cut_with_its_filters() -> None:
    x, w = tensor((2, 4, 5, 5)), tensor((6, 2, 3, 3), 1)
    (whole,) = applied("conv", {"groups": 2, "padding": 1}, [x, w], REAL)
    expected = F.conv2d(torch.from_numpy(x.array[0]), torch.from_numpy(w.array[0]), padding=1, groups=2)
    np.testing.assert_allclose(whole.array[0], expected.numpy(), rtol=1e-9, atol=1e-9)
    cut = [ParallelValue.of(x.array, (1, 2, 1, 1)), ParallelValue.of(w.array, (2, 1, 1, 1))]
    (made,) = applied("conv", {"groups": 2, "padding": 1}, cut, REAL)
    np.testing.assert_allclose(made.array, whole.array)
    finer = [tensor((2, 4, 3, 3), 0, 1, (1, 4, 1, 1)), tensor((8, 2, 3, 3), 0, 1, (4, 1, 1, 1))]
    with pytest.raises(IllTyped, match="2 groups cannot be split 4 times"):
        applied("conv", {"groups": 2}, finer, REAL)


def test_rows_of_an_embedding_are_masked_and_added() -> None:
    table, numbers = REAL.random((1, 6, 4), 0), ids((5,), 6)
    (whole,) = applied("embedding", {}, [ParallelValue.of(table), numbers], REAL)
    assert np.array_equal(whole.array[0], table[0][numbers.array[0]])
    copies = ParallelValue.of(np.repeat(numbers.array, 6, 0))
    (made,) = applied("embedding", {}, [ParallelValue.of(table, (3, 2)), copies], REAL)
    assert made.replicas == 3 and made.digits == ((), (Digit(2),))
    np.testing.assert_allclose(made.array.sum(0), whole.array[0])


@pytest.mark.parametrize("weighted", [False, True])
def test_bags_are_cut_by_rows_and_entries(weighted: bool) -> None:
    table, numbers, weights = tensor((6, 4)), ids((2, 4), 6), tensor((2, 4), 1)
    given = [table, numbers] + [weights] * weighted
    (whole,) = applied("embedding_bag", {}, given, REAL)
    expected = F.embedding_bag(
        torch.from_numpy(numbers.array[0]),
        torch.from_numpy(table.array[0]),
        mode="sum",
        per_sample_weights=torch.from_numpy(weights.array[0]) if weighted else None,
    )
    np.testing.assert_allclose(whole.array[0], expected.numpy())
    cut = [ParallelValue.of(np.repeat(table.array, 2, 0), (3, 1))]
    cut += [ParallelValue.of(np.repeat(v.array, 3, 0), (1, 2)) for v in given[1:]]
    (made,) = applied("embedding_bag", {}, cut, REAL)
    assert made.replicas == 6
    np.testing.assert_allclose(made.array.sum(0), whole.array[0])


def test_batch_norm_by_moments_is_that_of_the_whole_batch() -> None:
    x, w, b = tensor((4, 6, 3)), tensor((6,), 1), tensor((6,), 2)
    (s,) = applied("moments", {}, [x], REAL)
    (made,) = applied("batch_norm", {}, [x, s, w, b], REAL)
    (local,) = applied("local_batch_norm", {}, [x, w, b], REAL)
    np.testing.assert_allclose(made.array, local.array, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("parts", [1, 2])
def test_causal_queries_know_their_place(parts: int) -> None:
    q, k, v = (tensor((2, 3, 4, 5), seed) for seed in range(3))
    expected = F.scaled_dot_product_attention(*(torch.from_numpy(t.array[0]) for t in (q, k, v)), is_causal=True)
    cut = [ParallelValue.of(q.array, (1, 1, parts, 1))]
    cut += [ParallelValue.of(np.repeat(t.array, parts, 0)) for t in (k, v)]
    (made,) = applied("attention", {"causal": True, "scale": None}, cut, REAL)
    np.testing.assert_allclose(made.array[0], expected.numpy(), rtol=1e-9, atol=1e-9)


def test_query_heads_share_keys() -> None:
    q, k, v = tensor((2, 4, 3, 5)), tensor((2, 2, 3, 5), 1), tensor((2, 2, 3, 5), 2)
    expected = F.scaled_dot_product_attention(*(torch.from_numpy(t.array[0]) for t in (q, k, v)), enable_gqa=True)
    for heads in (1, 2):
        cut = [ParallelValue.of(t.array, (1, heads, 1, 1)) for t in (q, k, v)]
        (made,) = applied("attention", {"causal": False, "scale": None, "grouped": True}, cut, REAL)
        np.testing.assert_allclose(made.array[0], expected.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("shape", "asked", "degrees", "after"),
    [
        ((4, 6), (24,), (2, 1), ((2,),)),
        ((24,), (4, 6), (4,), ((4,), ())),
        ((4, 6, 5), (4, 2, 3, 5), (2, 2, 5), ((2,), (2,), (), (5,))),
        ((1, 4, 6), (4, 1, 6), (1, 2, 3), ((2,), (), (3,))),
    ],
)
def test_views_pass_the_outermost_digit(shape: Any, asked: Any, degrees: Any, after: Any) -> None:
    (made,) = applied("view", {"shape": asked}, [tensor(shape, 0, 2, degrees)], REAL)
    assert np.array_equal(made.array, tensor(shape, 0, 2).array.reshape(2, *asked))
    assert made.digits == tuple(tuple(map(Digit, ds)) for ds in after)


def test_cat_and_split_of_a_dim_that_is_cut_take_turns() -> None:
    a = ParallelValue.of(np.array([[1.0, 2, 3, 4]]), (2,))
    b = ParallelValue.of(np.array([[5.0, 6]]), (2,))
    (joined,) = applied("cat", {"dim": 0}, [a, b], REAL)
    assert joined.array.tolist() == [[1, 2, 5, 3, 4, 6]] and joined.digits == ((Digit(2),),)
    back = applied("split", {"dim": 0, "sizes": (4, 2)}, [joined], REAL)
    assert back[0].same(a) and back[1].same(b)


def test_replicas_are_joined_and_parted() -> None:
    a, b = tensor((2, 3), 0, 2), tensor((2, 3), 1)
    (joined,) = applied("cat", {"dim": "replica"}, [a, b], REAL)
    assert joined.replicas == 3
    parts = applied("split", {"dim": "replica", "sizes": (2, 1)}, [joined], REAL)
    assert parts[0].same(a) and parts[1].same(b)
    (total,) = applied("reduce", {"degree": 3}, [joined], REAL)
    np.testing.assert_allclose(total.array[0], a.array.sum(0) + b.array[0])


@pytest.mark.parametrize(
    ("there", "back", "attributes"),
    [
        ("partition", "combine", {"dim": 1, "degree": 3}),
        ("pipeline", "batch", {"dim": 1, "degree": 3}),
    ],
)
def test_digits_are_pushed_and_popped(there: str, back: str, attributes: dict[str, Any]) -> None:
    x = tensor((4, 12), 0, 2, (2, 2))
    (cut,) = applied(there, attributes, [x], REAL)
    assert np.array_equal(cut.array, x.array) and not cut.same(x)
    assert applied(back, attributes, [cut], REAL)[0].same(x)


def test_replicate_then_reduce_multiplies() -> None:
    x = tensor((4,), 0, 2)
    (copies,) = applied("replicate", {"degree": 3}, [x], REAL)
    (total,) = applied("reduce", {"degree": 3}, [copies], REAL)
    np.testing.assert_allclose(total.array, 3 * x.array)


def test_tile_then_fold_multiplies() -> None:
    x = tensor((4,), 0, 1, (2,))
    (copies,) = applied("tile", {"dim": 0, "degree": 3}, [x], REAL)
    assert copies.shape == (12,) and copies.digits == ((Digit(6),),)
    (total,) = applied("fold", {"dim": 0, "degree": 3}, [copies], REAL)
    np.testing.assert_allclose(total.array, 3 * x.array)
    assert total.digits == x.digits


def test_time_is_not_space() -> None:
    x = tensor((8,))
    (space,) = applied("partition", {"dim": 0, "degree": 2}, [x], REAL)
    (time,) = applied("pipeline", {"dim": 0, "degree": 2}, [x], REAL)
    assert not space.same(time)
    with pytest.raises(IllTyped, match="not cut 2 times in time"):
        applied("batch", {"dim": 0, "degree": 2}, [space], REAL)
    (both,) = applied("partition", {"dim": 0, "degree": 2}, [time], REAL)
    assert str(both) == "[8/2t/2]"


def test_steps_in_time_share_a_weight() -> None:
    x, w = tensor((4, 3)), tensor((3, 2), 1)
    (steps,) = applied("pipeline", {"dim": 0, "degree": 2}, [x], REAL)
    (y,) = applied("matmul", {}, [steps, w], REAL)
    assert y.digits == ((Digit(2, time=True),), ())
    np.testing.assert_allclose(y.array[0], x.array[0] @ w.array[0])


PLAIN, ROWS, COLUMNS = tensor((4, 6)), tensor((4, 6), 0, 1, (2, 1)), tensor((4, 6), 0, 1, (1, 2))


@pytest.mark.parametrize(
    ("op", "attributes", "values", "message"),
    [
        ("matmul", {}, [PLAIN, tensor((4, 6))], "sizes 6 and 4 do not agree"),
        ("matmul", {}, [ROWS, tensor((6, 3))], r"\[6, 3\] needs 2 replicas"),
        ("matmul", {}, [COLUMNS, tensor((6, 3))], "cut differently"),
        ("matmul", {}, [ROWS, tensor((6, 3), 0, 4)], "replicas do not fit"),
        ("add", {}, [PLAIN, ROWS], "cut differently"),
        ("add", {}, [PLAIN, tensor((4, 6), 0, 2)], "replicas do not fit"),
        ("add", {}, [PLAIN], "takes 2 tensors, not 1"),
        ("relu", {}, [PLAIN, PLAIN], "takes 1 tensors, not 2"),
        ("softmax", {"dim": 1}, [COLUMNS], "needs dim 1 of .* whole"),
        ("softmax", {"dim": 2}, [PLAIN], "no data dim 2"),
        ("layer_norm", {"normalized": 1}, [COLUMNS], "needs dim 1 of .* whole"),
        ("layer_norm", {"normalized": 1}, [ROWS, tensor((6,))], "needs 2 replicas"),
        ("amax", {"dims": (0,)}, [ROWS], "whole"),
        ("view", {"shape": (24,)}, [COLUMNS], "whole"),
        ("view", {"shape": (2, 12)}, [tensor((4, 6), 0, 1, (4, 1))], "cannot be cut 4 times"),
        ("view", {"shape": (5, 5)}, [PLAIN], "cannot have shape"),
        ("slice", {"dim": 1, "start": 0, "stop": 9, "step": 1}, [PLAIN], "no slice 0:9:1"),
        ("cat", {"dim": 0}, [PLAIN, tensor((4, 5))], "sizes 6 and 5"),
        ("split", {"dim": 1, "sizes": (3, 2)}, [PLAIN], "cannot be split into"),
        ("split", {"dim": 1, "sizes": (3, 3)}, [COLUMNS], "not whole shards"),
        ("cat", {"dim": "replica"}, [PLAIN, ROWS], "states differ"),
        ("partition", {"dim": 0, "degree": 3}, [PLAIN], "cannot be cut 3 times"),
        ("combine", {"dim": 0, "degree": 2}, [PLAIN], "not cut 2 times in space"),
        ("reduce", {"degree": 2}, [PLAIN], "cannot be reduced by 2"),
        ("fold", {"dim": 0, "degree": 5}, [PLAIN], "has no 5 equal blocks"),
        ("fold", {"dim": 0, "degree": 2}, [tensor((6, 2), 0, 1, (3, 1))], "not cut 2 times"),
        ("conv", {}, [tensor((2, 3, 5, 5)), tensor((4, 2, 3, 3))], "a convolution in 1 groups"),
        ("conv", {}, [tensor((2, 3, 5, 5), 0, 1, (1, 1, 5, 1)), tensor((4, 3, 3, 3), 0, 5)], "needs dim 2 of .* whole"),
        ("embedding", {}, [tensor((2, 3)), ids((4,), 9)], "in a table of 2 rows"),
        ("sum", {"dims": (0,)}, [ParallelValue(PLAIN.array, ((Digit(2, True),), ()))], "sums over steps in time"),
    ],
)  # fmt: skip
def test_what_does_not_apply_says_why(op: str, attributes: Any, values: list[ParallelValue], message: str) -> None:
    with pytest.raises(IllTyped, match=message):
        applied(op, attributes, values, REAL)


def test_an_operator_that_is_not_evaluated_is_named() -> None:
    with pytest.raises(PartitaError, match="no evaluation of the operator roll"):
        applied("roll", {"dims": 0, "shifts": 1}, [PLAIN], REAL)


POLYNOMIALS = (
    *("matmul", "linear", "einsum", "conv", "add", "sub", "mul", "neg", "shift", "pow", "sum", "moments"),
    *("permute", "cat", "slice", "pad", "expand", "max_pool", "amax", "maximum"),
)


@pytest.mark.parametrize("case", [c for c in CASES if c[0] in POLYNOMIALS and "activation" not in c[1]])
def test_the_field_and_floats_agree_on_whole_numbers(case: Any) -> None:
    op, attributes, letters, sizes, _, _ = case
    rng = np.random.default_rng(0)
    values = [rng.integers(0, 9, (1, *(sizes[c] for c in term))) for term in sides(letters)[0]]
    (exact,) = applied(op, attributes, [ParallelValue.of(v) for v in values], FIELD)
    (floats,) = applied(op, attributes, [ParallelValue.of(v.astype(float)) for v in values], REAL)
    assert np.array_equal(exact.array, np.rint(floats.array).astype(np.int64) % FIELD.prime)


def test_quotients_are_exact_in_the_field() -> None:
    x = ParallelValue.of(FIELD.random((1, 3, 4), 0))
    (y,) = applied("div", {}, [x, x], FIELD)
    assert np.array_equal(y.array, np.ones((1, 3, 4)))
    (half,) = applied("scale", {"value": 0.5}, [x], FIELD)
    assert applied("add", {}, [half, half], FIELD)[0].same(x)
    (shares,) = applied("softmax", {"dim": 1}, [x], FIELD)
    assert np.array_equal(applied("sum", {"dims": (1,)}, [shares], FIELD)[0].array, np.ones((1, 3)))


def test_opaque_functions_differ_by_name_and_attributes_and_are_the_same_tomorrow() -> None:
    x = ParallelValue.of(np.arange(3)[None])
    known = {}
    for key in (("relu",), ("gelu", ("approximate", "none")), ("gelu", ("approximate", "tanh")), ("silu",)):
        known[key] = tuple(applied(key[0], dict(key[1:]), [x], FIELD)[0].array[0].tolist())
    assert len(set(known.values())) == 4
    assert known["relu",] == (1835438819, 1397801388, 490543029)


def test_a_small_prime_is_refused() -> None:
    with pytest.raises(PartitaError, match="between 3 and 2"):
        Modular(2**31)


def test_evaluate_names_the_application_that_does_not_fit() -> None:
    graph = (Apply("relu", ("x",), ("h",)), Apply("add", ("h", "y"), ("z",)))
    with pytest.raises(IllTyped, match=r"^z: add of"):
        evaluate(graph, {"x": PLAIN, "y": ROWS}, REAL)


def rule(text: str) -> Rule:
    return parse_rule(text)


COLUMNS_RULE = rule("""columns:
    x[b, k], w[k, n]
    y = matmul(x, w)
  =>
    y = combine(matmul(replicate(x, degree=d), partition(w, dim=1, degree=d)), dim=1, degree=d)
""")
THROUGH_REDUCE = rule("""relu through reduce:
    x[b, n]*d
    y = relu(reduce(x, degree=d))
  =>
    y = reduce(relu(x), degree=d)
""")
SIZES = {"b": 2, "k": 4, "n": 6, "d": 3}


@pytest.mark.parametrize("arithmetic", [REAL, FIELD])
def test_a_rule_is_tried(arithmetic: Any) -> None:
    assert trial(COLUMNS_RULE, SIZES, arithmetic).holds
    assert not trial(THROUGH_REDUCE, SIZES, arithmetic).holds


def test_a_trial_says_which_side_does_not_apply_and_what_has_no_size() -> None:
    with pytest.raises(IllTyped, match="'columns', target: "):
        trial(COLUMNS_RULE, SIZES | {"n": 4}, REAL)
    with pytest.raises(PartitaError, match="no value for the size n"):
        trial(COLUMNS_RULE, {"b": 2, "k": 2, "d": 2}, REAL)
    with pytest.raises(PartitaError, match="tensor x has no sizes"):
        trial(rule("bare:\n    x\n    y = relu(x)\n  =>\n    y = relu(x)\n"), {}, REAL)


def test_ids_are_rows_of_their_table() -> None:
    found = rule("""rows:
    w[v, e], i[n]
    y = embedding(w, i)
  =>
    y = reduce(embedding(partition(w, dim=0, degree=d), replicate(i, degree=d)), degree=d)
""")
    sizes = {"v": 4, "e": 3, "n": 50, "d": 2}
    numbers = random_inputs(found, sizes, FIELD)["i"].array
    assert set(numbers.flat) == {0, 1, 2, 3}
    assert trial(found, sizes, FIELD).holds

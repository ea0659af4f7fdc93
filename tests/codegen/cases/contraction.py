"""Products of matrices."""

from partita.model.graph.builder import Builder

from .build import BATCH, Build, Cases, leaf, weight


def linear(bias: bool, op: str = "linear") -> Build:
    def build(b: Builder) -> int:
        operands = (leaf(b, BATCH, 5, 4), weight(b, 7, 4), *([weight(b, 7)] if bias else []))
        return b.add(op, *operands, shape=(BATCH, 5, 7))

    return build


def matmul(a: tuple[int, ...], c: tuple[int, ...], y: tuple[int, ...]) -> Build:
    return lambda b: b.add("matmul", leaf(b, *a), weight(b, *c), shape=y)


def einsum(equation: str, a: tuple[int, ...], c: tuple[int, ...], y: tuple[int, ...]) -> Build:
    return lambda b: b.add("einsum", leaf(b, *a), weight(b, *c), shape=y, equation=equation)


def in_groups(b: Builder) -> int:
    """Rows of three groups, of which one is empty, and a row of none."""
    ends = b.add("constant", shape=(3,), dtype="int32", name="ends", values=(2, 2, 5))
    return b.add("grouped_product", leaf(b, BATCH, 4), weight(b, 3, 4, 5), ends, shape=(BATCH, 5))


CASES: Cases = {
    "grouped_product": (in_groups,),
    "linear": (linear(bias=True), linear(bias=False)),
    "linear_relu": (
        linear(bias=True, op="linear_relu"),
        linear(bias=False, op="linear_relu"),
        lambda b: b.add("linear_relu", b.input("x", (BATCH, 4)), weight(b, 7, 4), weight(b, 7), shape=(BATCH, 7)),
    ),
    "matmul": (
        matmul((BATCH, 5, 4), (4, 7), (BATCH, 5, 7)),
        matmul((BATCH, 2, 5, 4), (2, 4, 3), (BATCH, 2, 5, 3)),
        matmul((BATCH, 5, 4), (4,), (BATCH, 5)),
    ),
    "einsum": (
        einsum("bik,kj->bji", (BATCH, 5, 4), (4, 7), (BATCH, 7, 5)),
        einsum("bhd,hde->be", (BATCH, 3, 4), (3, 4, 5), (BATCH, 5)),
        einsum("bi,j->bij", (BATCH, 5), (4,), (BATCH, 5, 4)),
        lambda b: b.add("einsum", leaf(b, BATCH, 5, 4), shape=(4, BATCH), equation="bij->jb"),
    ),
}

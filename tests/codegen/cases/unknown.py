"""Calls that nothing is known of, but in which dims they are independent."""

from partita.model.graph.builder import Builder

from .build import BATCH, Cases, leaf, weight


def opaque(b: Builder) -> int:
    x = leaf(b, BATCH, 5)
    call = (("", ("@", 0)), ("", 1))
    return b.add("opaque", x, shape=(BATCH, 5), target="aten.logcumsumexp.default", arguments=call, output=None)


def independent(b: Builder) -> int:
    """A result with a free index of each input, and one of both."""
    x, y = leaf(b, BATCH, 3, 4), leaf(b, BATCH, 6, 4)
    return b.add(
        "opaque",
        x,
        y,
        shape=(BATCH, 3, 6),
        target="aten.cdist.default",
        arguments=(("", ("@", 0)), ("", ("@", 1)), ("", 1.0)),
        notation="y[i0, i1, i2] = f(x0[i0, i1, :], x1[i0, i2, :])",
        output=None,
    )


def summed(b: Builder) -> int:
    """The results of parts are addends."""
    x = leaf(b, BATCH, 6)
    call = (("", ("@", 0)), ("", ("list", 1)))
    notation = "y[i0] = sum(i1) f(x0[i0, i1])"
    return b.add(
        "opaque", x, shape=(BATCH,), target="aten.nansum.default", arguments=call, notation=notation, output=None
    )


def custom(b: Builder) -> int:
    """A function whose backward gives the gradient of its scale as a sum, and clips the other one."""
    x, w = leaf(b, BATCH, 5), weight(b, 5)
    product = ("aten.mul.Tensor", (("", ("@", 0)), ("", ("@", 1))))
    clipped = ("aten.clamp.default", (("", ("@", 2)), ("", -0.1), ("", 0.1)))
    scaled = ("aten.mul.Tensor", (("", ("@", 2)), ("", ("@", 0))))
    summed = ("aten.sum.dim_IntList", (("", ("@", 5)), ("", ("list", 0))))
    return b.add(
        "function",
        x,
        w,
        shape=(BATCH, 5),
        title="Clipped",
        body=(product, clipped, scaled, summed),
        results=(3,),
        gradients=(4, 6),
        output=0,
        linear=False,
        notation="y[i0, i1] = f(x0[i0, i1], x1[i1])",
    )


CASES: Cases = {
    "opaque": (opaque, independent, summed),
    "function": (custom,),
}

"""A call that nothing is known of."""

from partita.model.graph.builder import Builder

from .build import BATCH, Cases, leaf


def opaque(b: Builder) -> int:
    x = leaf(b, BATCH, 5)
    call = (("", ("@", 0)), ("", 1))
    return b.add("opaque", x, shape=(BATCH, 5), target="aten.logcumsumexp.default", arguments=call, output=None)


CASES: Cases = {
    "opaque": (opaque,),
}

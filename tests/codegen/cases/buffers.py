"""Buffers that forward changes."""

from partita.model.graph.builder import Builder

from .build import BATCH, Cases, leaf


def clone(b: Builder) -> int:
    return b.add("clone", leaf(b, BATCH, 5), shape=(BATCH, 5))


def store(b: Builder) -> int:
    """A moving average over samples, and a counter."""
    x = leaf(b, BATCH, 5)
    loss = b.add("projection", x, shape=(), site=3)
    average = b.add("buffer", shape=(5,), name="average")
    steps = b.add("buffer", shape=(), dtype="float32", name="steps")
    copies = [b.add("clone", i, shape=b.nodes[i].shape, gradient=False) for i in (average, steps)]
    total = b.add("sum", b.add("detach", x, shape=(BATCH, 5), gradient=False), shape=(5,), dims=(0,), keepdim=False)
    averaged = b.add("add", b.add("scale", copies[0], shape=(5,), value=0.9), total, shape=(5,))
    counted = b.add("shift", copies[1], shape=(), value=1)
    return b.add("store", loss, average, averaged, steps, counted, shape=(), dtype="float32")


CASES: Cases = {
    "clone": (clone,),
    "store": (store,),
}

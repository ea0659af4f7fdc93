"""Builds a PCG node by node and verifies it."""

from collections.abc import Collection, Sequence
from itertools import count

from .dtypes import FLOATS
from .pcg import PCG, Attribute, Node
from .verification import verify


def free_name(wish: str, taken: Collection[str], joint: str = "_") -> str:
    """`wish`; where that is taken, `wish` with the first free number from 2 on behind the joint."""
    if wish not in taken:
        return wish
    return next(name for name in (f"{wish}{joint}{number}" for number in count(2)) if name not in taken)


class Builder:
    """A graph under construction; every method that adds a node returns its index."""

    def __init__(self, batch: int = 1) -> None:
        self.batch = batch
        self.nodes: list[Node] = []
        self.aliases: list[tuple[str, str]] = []
        self._names: set[str] = set()

    def name(self, preferred: str) -> str:
        """Reserve a free name: `preferred`, numbered if it is taken."""
        name = free_name(preferred, self._names)
        self._names.add(name)
        return name

    def add(
        self,
        op: str,
        *inputs: int,
        shape: Sequence[int],
        name: str = "",
        dtype: str | None = None,
        path: str = "",
        gradient: bool | None = None,
        **attributes: Attribute,
    ) -> int:
        """Add a node. `dtype` and `gradient` default to those of the inputs."""
        sources = [self.nodes[i] for i in inputs]
        if dtype is None:
            dtype = next((n.dtype for n in sources if n.dtype in FLOATS), sources[0].dtype if sources else "float32")
        if gradient is None:
            gradient = dtype in FLOATS and any(n.gradient for n in sources)
        self.nodes.append(
            Node(
                op,
                self.name(name or op),
                inputs,
                shape=tuple(shape),
                dtype=dtype,
                attributes=tuple(sorted(attributes.items())),
                gradient=gradient,
                path=path,
            )
        )
        return len(self.nodes) - 1

    def input(self, name: str, shape: Sequence[int], dtype: str = "float32", batch_dim: int | None = 0) -> int:
        """Add a tensor that the caller passes; `batch_dim` counts samples (None: no dim does)."""
        return self.add("input", shape=shape, name=name, dtype=dtype, batch_dim=batch_dim)

    def parameter(
        self, name: str, shape: Sequence[int], dtype: str = "float32", trainable: bool = True, **attributes: Attribute
    ) -> int:
        """Add a parameter; its name is the one in the user's module."""
        path = name.rpartition(".")[0]
        return self.add("parameter", shape=shape, name=name, dtype=dtype, gradient=trainable, path=path, **attributes)

    def build(self, loss: int) -> PCG:
        """The finished graph, verified."""
        graph = PCG(tuple(self.nodes), loss, self.batch, tuple(self.aliases))
        verify(graph)
        return graph

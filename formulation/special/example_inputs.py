"""Inputs of the examples on which special strategies are tested."""

from ...model.graph.builder import Builder


def scaled_input(b: Builder, *shape: int, dims: int = 1) -> int:
    """An input times a weight over its last `dims` dims, so that a gradient flows through it."""
    name = f"x{len(b.nodes)}"
    return b.add("mul", b.input(name, shape), b.parameter(f"{name}.weight", shape[-dims:]), shape=shape)


def integer_input(b: Builder, shape: tuple[int, ...], high: int, name: str = "ids") -> int:
    """An input of whole numbers below `high`, such as ids or labels."""
    return b.add("input", name=name, shape=shape, dtype="int64", batch_dim=0, high=high)

"""What depends on no input: attributes of the model, and the method that computes them once, as it is built."""

import re
from collections.abc import Collection, Mapping, Sequence

from torch import nn

from ....model.graph.constants import built_once, held
from ....model.machine.precision import precision
from ..common.text import enclosed, wrap
from .function_body import FunctionBody

__all__ = ["DOC", "attributes", "built_once", "method_lines", "setting_line"]

DOC = "What depends on no input, computed once."
_METHODS = {*dir(nn.Module), "constants", "mesh", "dtype", "count_labels"}
"""Names that the model's class uses already."""


def attributes(body: FunctionBody, taken: Collection[str]) -> dict[int, str]:
    """The constants that the model holds, as attributes with names that are not `taken`."""
    names: dict[int, str] = {}
    for i in held(body.plan.graph):
        names[i] = body.name_of(i, {*names.values(), *taken, *_METHODS})
    return {i: f"self.{name}" for i, name in names.items()}


def setting_line(constants: Mapping[int, str]) -> list[str]:
    """The line of the constructor that computes them."""
    return wrap(f"{', '.join(constants.values())} = self.constants()", 8) if constants else []


def method_lines(body: FunctionBody, constants: Collection[int]) -> list[str]:
    """The lines of the method; in narrow floats it computes in float32, and rounds at the end."""
    nodes, narrow = body.plan.graph.nodes, precision(body.plan.dtype).narrow
    results = [body.computed(i) for i in constants]  # the model converts what it holds

    def returned(texts: Sequence[str]) -> str:
        rounded = (narrow and nodes[i].dtype == "float32" for i in constants)
        wide = [x.replace("self.dtype", "precision") if narrow else x for x in texts]
        given = [f"{enclosed(x)}.to(self.dtype)" if r else x for x, r in zip(wide, rounded, strict=True)]
        return f"return {', '.join(given)}"

    lines = body.lines(results, 8, returned)
    end = next(k for k, line in enumerate(lines) if line.startswith("        return"))
    exact = [*(line.replace("self.dtype", "precision") if narrow else line for line in lines[:end]), *lines[end:]]
    if not any(re.search(r"\bprecision\b", line) for line in exact):
        return lines
    return ["        precision = torch.promote_types(self.dtype, torch.float32)", *exact]

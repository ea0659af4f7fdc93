"""Bundles: branches that run in parallel, as further options of the variables inside."""

from ...bundles.parallel_branches import ParallelBranches
from .encoding_pass import EncodingPass


class Bundles(EncodingPass):
    """Lengthens variables and edges once all others are there; see `ParallelBranches`."""

    def finish(self) -> None:
        builder = self.builder
        if builder.options.bundles:
            branches = ParallelBranches(
                pcg=builder.pcg,
                classes=builder.classes,
                costs=builder.costs,
                operators=builder.operators,
                weights=builder.weights,
                hubs=builder.hubs,
                variables=builder.variables,
                edges=builder.edges,
                optional=builder.optional,
                alternatives=frozenset(builder.alternatives.values()),
                keepers={b: builder.retention.keepers(b) for b in builder.hubs if builder.retention.by_alternatives(b)},
            )
            builder.bundled = branches.add()

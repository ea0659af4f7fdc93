"""What every pass of an encoding is."""

from ..builder import NetworkBuilder


class EncodingPass:
    """One kind of decision. For every node in order, each pass in order gets the first three calls; then `finish`.

    Passes override what they need. They know each other only through what they leave in the builder.
    """

    def __init__(self, builder: NetworkBuilder) -> None:
        self.builder = builder

    def compute(self, node: int) -> None:
        """Add what decides how a node is computed."""

    def read(self, base: int, node: int, operand: int) -> None:
        """Add what brings the tensor class `base` to an operand of a node, or of a repetition of it."""

    def publish(self, node: int) -> None:
        """Add what decides in which form others get the result of a node."""

    def finish(self) -> None:
        """Add what needs the variables and edges of all nodes."""

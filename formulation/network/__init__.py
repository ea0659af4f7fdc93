"""The cost network that every solver reads, its files and checks."""

from .network import Edge, Network, Variable

__all__ = ["Edge", "Network", "Variable"]

"""The special strategies of the package."""

from . import halo, lookups, normalize, ring, softmax, spread, vocabulary  # noqa: F401  importing registers them

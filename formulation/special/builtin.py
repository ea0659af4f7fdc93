"""The special strategies of the package."""

from . import halo, normalize, owners, ring, softmax, spread, vocabulary  # noqa: F401  importing registers them

"""The special strategies of the package."""

from . import vocabulary  # noqa: F401  it registers itself

"""References `SCHEME:NAME`: models that an installed package builds, with example inputs and a loss."""

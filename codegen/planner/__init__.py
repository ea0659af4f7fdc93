"""From a model to a plan: what `partita.optimize` and the command line run."""

"""The one exception that speaks to the user."""


class PartitaError(ValueError):
    """Input that the user can mend; the command line prints it and exits with 2."""

"""By how much a machine's numbers may be wrong where its file does not say, as shares."""

DEFAULT_ERROR = 0.1
"""The error of a number whose machine file states none, nor calls it an assumption."""

ASSUMED = 0.2
"""The error of a number whose source says `assumption`, and of every link of an ad hoc machine."""

"""The parallel computation graph of a plan: parallelization as operators (Unity, OSDI 2022, section 3)."""

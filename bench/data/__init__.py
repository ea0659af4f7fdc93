"""Published measurements and instances that benchmarks compare with; each file of numbers names its source.

`iopddl_B.json.gz` and `iopddl_G.json.gz` are instances B and G of the ASPLOS / EuroSys 2025 contest on intra-operator
parallelism (IOPDDL), unchanged; copyright Google, Apache License 2.0. `iopddl.json` has what is published of them.
"""

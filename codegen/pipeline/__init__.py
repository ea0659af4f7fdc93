"""Pipelines: plans of several stages that run on parts of the devices, and the programs that run them."""

"""Programs of pipelined plans."""

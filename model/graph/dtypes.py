"""The dtypes of tensors, by torch's names without `torch.`."""

FLOATS = ("float64", "float32", "float16", "bfloat16")
ITEMSIZE = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
"""Bytes of an element."""

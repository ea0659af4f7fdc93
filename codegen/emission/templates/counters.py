"""Random numbers that are pure functions of counters; the text below the line is copied into emitted programs.

A mask cut into parts is then the same as the whole one: `index` holds global element indices (int64, over the whole
batch), whichever rank has them.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, no-any-return"

import math

import torch

# --- copied from here ---


def mix(x):
    """Murmur3's finalizer on 32 bits of an integer."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ (x >> 16)


def mix_(x):
    """The same for every element of an int32 tensor, in place; products wrap, and shifts lose their sign."""
    x ^= (x >> 16) & 0xFFFF
    x *= 0x85EBCA6B - 2**32
    x ^= (x >> 13) & 0x7FFFF
    x *= 0xC2B2AE35 - 2**32
    x ^= (x >> 16) & 0xFFFF
    return x


def random_bits(index, *keys):
    """32 random bits (int32) for every global index, a function of it and of the keys (seed, step, call site) alone."""
    key = 0
    for k in keys:
        key = mix(key ^ mix(k + 0x9E3779B9))
    key -= (key >> 31) << 32  # as int32
    bits = mix_(index.to(torch.int32) ^ key)
    bits ^= (index >> 32).to(torch.int32)
    bits ^= key
    return mix_(bits)


def dropped(index, p, *keys):
    """Which elements dropout sets to 0: each with probability p."""
    return random_bits(index, *keys) < min(math.ceil(p * 2**32), 2**32 - 1) - 2**31


def dropout_mask(index, p, *keys):
    """What dropout multiplies by: 0 with probability p, else 1 / (1 - p), in float64."""
    return (~dropped(index, p, *keys)).double() / (1 - p)


def uniform_numbers(index, *keys):
    """Numbers from 0 up to 1 in steps of 2^-24, in float64."""
    return ((random_bits(index, *keys) >> 8) + 2**23).double() / 2**24


def normal_numbers(index, *keys):
    """Numbers around 0 with deviation 1, in float64."""
    return torch.erfinv(2 * uniform_numbers(index, *keys) + (2**-24 - 1)) * math.sqrt(2)


def integer_numbers(index, low, high, *keys):
    """Whole numbers from low up to high, at most 2^31 of them."""
    bits = random_bits(index, *keys).long() + 2**31
    return low + (bits * (high - low) >> 32)


def projection_weights(index, *keys):
    """Fixed weights in [-0.5, 0.5), in float64."""
    return random_bits(index, *keys).double() / 2**32

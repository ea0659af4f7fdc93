"""Random numbers that are pure functions of counters; the text below the line is copied into emitted programs.

A mask cut into parts is then the same as the whole one: `index` holds global element indices (int64, over the whole
batch), whichever rank has them.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, no-any-return"

# --- copied from here ---


def mix(x):
    """Murmur3's finalizer on 32 bits, for an integer or an int64 tensor."""
    x = ((x ^ (x >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    x = ((x ^ (x >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return x ^ (x >> 16)


def random_bits(index, *keys):
    """32 random bits for every global index, a function of it and of the keys (seed, step, call site) alone."""
    key = 0
    for k in keys:
        key = mix(key ^ mix(k + 0x9E3779B9))
    return mix(mix((index & 0xFFFFFFFF) ^ key) ^ (index >> 32) ^ key)


def dropout_mask(index, p, *keys):
    """What dropout multiplies by: 0 with probability p, else 1 / (1 - p), in float64."""
    return (random_bits(index, *keys) >= p * 2**32).double() / (1 - p)


def projection_weights(index, *keys):
    """Fixed weights in [-0.5, 0.5), in float64."""
    return random_bits(index, *keys).double() / 2**32 - 0.5

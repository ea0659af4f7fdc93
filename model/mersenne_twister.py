"""Jumps in the stream of torch's CPU generator; emitted programs of large models have a copy."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, no-any-return"

from functools import cache

import torch

JUMP = 1 << 23
"""Numbers that are drawn in the time of a jump."""


def advance(generator, count):
    """Skip `count` numbers of 32 bits: a few are drawn, over many the generator jumps."""
    if count >= JUMP:
        jump(generator, count)
        return
    while count:
        drawn = min(count, 1 << 20)
        torch.empty(drawn).uniform_(generator=generator)
        count -= drawn


# --- copied from here ---


def jump(generator, count):
    """Skip `count` numbers of MT19937, which generates them by a linear recurrence over GF(2) of degree 19937.

    With t^count = sum of c_i t^i modulo its characteristic polynomial, word j + count is the sum of words j + i with
    c_i = 1 (Haramoto et al., 2008). Polynomials are integers whose bits are the coefficients.
    """
    left = generator.get_state()[8:12].view(torch.int32).item() - 1  # numbers until its 624 words are renewed
    torch.empty(left).uniform_(generator=generator)
    renewed = []
    for _ in range(34):
        state = generator.get_state()
        renewed.append(state[24:5016].view(torch.int64).to(torch.int32))
        torch.empty(624).uniform_(generator=generator)
    words, total = bytes(torch.cat(renewed).view(torch.uint8).tolist()), 0
    for i, coefficient in enumerate(reversed(f"{power(count - left):b}")):
        if coefficient == "1":
            total ^= int.from_bytes(words[4 * i : 4 * i + 2496], "little")
    moved = torch.frombuffer(bytearray(total.to_bytes(2496, "little")), dtype=torch.int32)
    state = generator.get_state()
    state[24:5016] = (moved.to(torch.int64) & 0xFFFFFFFF).view(torch.uint8)
    state[8:24] = torch.tensor([1, 1, 0, 0], dtype=torch.int32).view(torch.uint8)  # renewed with the next number
    generator.set_state(state)


@cache
def power(count):
    """t^count modulo the characteristic polynomial."""
    if not count:
        return 1
    found = 0
    for i, coefficient in enumerate(reversed(f"{power(count // 2):b}")):
        if coefficient == "1":
            found ^= squares()[i]
    return times_t(found) if count % 2 else found


@cache
def squares():
    """t^(2 i) modulo the characteristic polynomial, for every i below its degree."""
    found = [1]
    for _ in range(19936):
        found.append(times_t(times_t(found[-1])))
    return found


def times_t(x):
    return x << 1 ^ (recurrence() if x >> 19936 else 0)


@cache
def recurrence():
    """The characteristic polynomial of MT19937 (Matsumoto and Nishimura, 1998, section 3.2)."""
    outer, twist = 1 << 624 | 1 << 397, 0x9908B0DF
    total = outer
    for bit in range(31):
        total = total << 623 ^ total << 396 ^ (outer if twist >> bit & 1 else 0)  # times t^623 + t^396
    return total ^ twist >> 31

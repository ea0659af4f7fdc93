"""Prices as lines: rounding, sums, arrays."""

import numpy as np
import pytest

from partita.model.machine.collective_price import FREE, CollectivePrice


def test_times_round_up() -> None:
    third = CollectivePrice(0.0, 1 / 3)
    assert [third.ns(n) for n in range(7)] == [0, 1, 1, 1, 2, 2, 2]  # 3 * (1/3) is exactly 1, whatever the floats say
    assert CollectivePrice(0.1, 0.0).ns(0) == 1
    with pytest.raises(ValueError, match="-1 bytes"):
        third.ns(-1)


def test_prices_add_up() -> None:
    both = CollectivePrice(5.0, 0.5) + CollectivePrice(7.0, 0.25)
    assert both == CollectivePrice(12.0, 0.75) and both + FREE == both
    assert FREE.ns(10**12) == 0


def test_arrays_agree_with_scalars() -> None:
    rng = np.random.default_rng(3)
    sizes = np.concatenate([rng.integers(0, 10**6, 2000), rng.integers(0, 10**13, 2000)])
    for rate in (0.0, 1 / 3, 0.0375, 1 / 230):
        line = CollectivePrice(142_200.0, rate)
        assert line.ns_array(sizes).tolist() == [line.ns(int(size)) for size in sizes]

import gc

import pytest

from partita.model.garbage_collection import seldom_collected, without_collection


@pytest.mark.parametrize("running", [True, False])
def test_collection_goes_on_as_before(running: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if running else gc.disable)()
        with pytest.raises(KeyError), without_collection():
            assert not gc.isenabled()
            raise KeyError
        assert gc.isenabled() is running
    finally:
        (gc.enable if before else gc.disable)()


def test_thresholds_are_as_before() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), seldom_collected():
        assert all(now >= old for now, old in zip(gc.get_threshold(), before, strict=True))
        assert gc.get_threshold()[0] > 10_000
        raise KeyError
    assert gc.get_threshold() == before

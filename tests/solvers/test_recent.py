"""The cache of the latest networks: few, and within some bytes."""

from partita.solvers.search.recent import recent


def made_by(count: int, most_bytes: int, asked: str) -> str:
    """What is made anew when numbers are asked for one after the other; each is so many bytes."""
    made = []

    def size(number: str) -> int:
        return int(number)

    @recent(count, most_bytes, size)
    def value(number: str) -> str:
        made.append(number)
        return number

    assert "".join(map(value, asked)) == asked
    return "".join(made)


def test_the_latest_values_are_kept_as_far_as_they_fit() -> None:
    assert made_by(2, 99, "121131") == "123"
    assert made_by(3, 5, "23323") == "23"  # 5 bytes
    assert made_by(3, 5, "2343") == "2343"  # 4 leaves no room for 3
    assert made_by(3, 5, "9919") == "919"  # the latest is kept, until another one is made

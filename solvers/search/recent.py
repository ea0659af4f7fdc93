"""The latest values of a function, as many as memory allows: networks of large models take gigabytes each."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import wraps
from threading import Lock
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def recent(count: int, most_bytes: int, size: Callable[[_T], int]) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Keep the last `count` values of a function of hashable arguments, of at most `most_bytes` together.

    `size` tells the bytes of a value. The latest is kept whatever its size, as it is in use anyway, until another one
    is made.
    """

    def keeping(function: Callable[_P, _T]) -> Callable[_P, _T]:
        known: OrderedDict[Hashable, tuple[_T, int]] = OrderedDict()
        lock = Lock()

        def drop(least: int) -> None:
            """Drop the oldest but `least` values until the rest is within the limits."""
            while len(known) > least and (len(known) > count or sum(b for _, b in known.values()) > most_bytes):
                known.popitem(last=False)

        @wraps(function)
        def remembered(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            key = args, tuple(sorted(kwargs.items()))
            with lock:
                if key in known:
                    known.move_to_end(key)
                    return known[key][0]
                drop(0)
            value = function(*args, **kwargs)
            with lock:
                known[key] = value, size(value)
                known.move_to_end(key)
                drop(1)
            return value

        return remembered

    return keeping

"""Output of commands: results on standard output, messages and progress on standard error."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

import typer


def leave(yes: bool) -> None:
    """Exit with code 1 if the answer is no."""
    if not yes:
        raise typer.Exit(1)


def print_result(result: Mapping[str, Any], as_json: bool) -> None:
    """Print one line per value, or one JSON object."""
    if as_json:
        print_json(result)
        return
    width = max(map(len, result))
    for name, value in result.items():
        print(f"{name:{width}}  {value}")


def print_either(result: Mapping[str, Any], text: object, as_json: bool) -> None:
    """Print one JSON object, or else the text."""
    if as_json:
        print_json(result)
    else:
        print(text)


def print_json(result: Mapping[str, Any]) -> None:
    """Print one JSON object; infinities raise ValueError."""
    print(json.dumps(result, allow_nan=False))


@contextmanager
def words_to_stderr() -> Iterator[None]:
    """Redirect standard output, of C++ and child processes too, to standard error."""
    from ...solvers.wide.highs import output_to_stderr

    sys.stdout.flush()
    with output_to_stderr(), redirect_stdout(sys.stderr):
        yield


@contextmanager
def progress_shown() -> Iterator[Callable[[object], None] | None]:
    """Yield a function that shows a message or a solver's Progress; None if standard error is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("starting") as status:

        def report(news: object) -> None:
            incumbent, bound = getattr(news, "incumbent", None), getattr(news, "bound", None)
            text = str(news) if bound is None else f"best {_count(incumbent)}, bound {_count(bound)}"
            status.update(escape(text))

        yield report


def _count(value: int | None) -> str:
    return "none yet" if value is None else f"{value:,}"

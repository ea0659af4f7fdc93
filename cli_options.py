"""Options of commands: made from the fields of frozen values (see `model.options`), or shared by several commands."""

import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from .model.options import KEY, Option

INTERRUPTED = 130
"""The exit code after an interrupt."""


def parse_path(text: str) -> Path:
    """A path; empty text is refused, since it would mean the current folder."""
    if not text:
        raise typer.BadParameter("the path is empty")
    return Path(text)


def output_option(metavar: str, words: str) -> Any:
    """The option for where results are written."""
    return typer.Option("-o", "--output", parser=parse_path, metavar=metavar, help=words)


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Command = TypeVar("Command", bound=Callable[..., None])


def with_options(*values: type, only: Collection[str] = ()) -> Callable[[Command], Command]:
    """Give a command, in the place of its `**options`, an option for every field of these frozen values.

    `only`: for the fields of these names.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        rest = [p for p in own if p.kind is p.KEYWORD_ONLY]
        made = [
            _parameter(*found) for value in values for found in _options(value) if not only or found[0].name in only
        ]
        parameters = [*(p for p in own if p.kind is not p.KEYWORD_ONLY), *made, *rest]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
        return command

    return decorate


def chosen(value: type, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the command line says of a frozen value: its fields that were given, parsed."""
    given = ((field.name, option, options.get(_name(field, option))) for field, option in _options(value))
    return {name: option.parse(text) if option.parse else text for name, option, text in given if text is not None}


def _options(value: type) -> list[tuple[Field[Any], Option]]:
    return [(field, field.metadata[KEY]) for field in fields(value) if KEY in field.metadata]


def _name(field: Field[Any], option: Option) -> str:
    """The name of a command's parameter: that of its first long flag."""
    long = next((flag for flag in option.flags if flag.startswith("--")), f"--{field.name}")
    return long.split("/")[0].removeprefix("--").replace("-", "_")


_NUMBERS = {int: "a whole number", float: "a number"}


def _number(kind: type[int] | type[float], minimum: int | None) -> Callable[[str], int | float]:
    """The parser of a number, whose message repeats the text; typer's own does not."""
    needed = _NUMBERS[kind] + ("" if minimum is None else f" from {minimum}")

    def parse(text: str) -> int | float:
        with suppress(ValueError):
            value = kind(text)
            if minimum is None or value >= minimum:
                return value
        raise typer.BadParameter(f"{text!r}: {needed} is needed")

    return parse


def _parameter(field: Field[Any], option: Option) -> inspect.Parameter:
    default = field.default if option.default is ... else option.default
    default = None if default is MISSING else default
    name = _name(field, option)
    flags = option.flags or ((f"--{name.replace('_', '-')}",) if option.kind is bool else ())
    number = option.kind in _NUMBERS
    details = typer.Option(
        *flags,
        help=option.help,
        metavar=option.metavar or (f"<{option.kind.__name__}>" if number else None),
        min=option.minimum,
        parser=_number(option.kind, option.minimum) if number else None,
    )
    kind = option.kind | None if default is None else option.kind
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, details])

"""`partita show`: a saved plan, or the operators of a model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .cli_options import chosen, parse_path, with_options
from .codegen.report.terminal import print_either, words_to_stderr
from .model.errors import PartitaError
from .model.training import Training

MODEL_OPTIONS = ("batch", "sequence", "loss", "batch_dim")
"""What `show --operators` takes of how a model is trained: what its graph depends on."""


@with_options(Training, only=MODEL_OPTIONS)
def show(
    shown: Annotated[
        Path,
        typer.Argument(
            parser=parse_path, metavar="DIR", help="The folder that `partita plan -o` wrote; with --operators a model."
        ),
    ],
    html: Annotated[Path | None, typer.Option(parser=parse_path, metavar="FILE", help="Write a page.")] = None,
    trace: Annotated[
        Path | None, typer.Option(parser=parse_path, metavar="FILE", help="Write a timeline for Perfetto.")
    ] = None,
    pcg: Annotated[bool, typer.Option("--pcg", help="Print the PCG with explicit parallel operators instead.")] = False,
    operators: Annotated[
        bool, typer.Option("--operators", help="Print the operators of a model, as hand-written plans name them.")
    ] = False,
    small: Annotated[bool, typer.Option("--small", help="With --operators: the model's small twin.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --pcg or --operators: one JSON object.")] = False,
    **options: Any,
) -> None:
    """Print a plan: how tensors are split, what a step costs, what is communicated; or the operators of a model."""
    of_model = ({"small": True} if small else {}) | chosen(Training, options)
    if operators:
        if html or trace or pcg:
            raise PartitaError("--operators lists those of a model; --html, --trace and --pcg are of a plan")
        _show_operators(str(shown), of_model, as_json)
        return
    if of_model:
        raise PartitaError(f"--{next(iter(of_model)).replace('_', '-')} is of a model: give --operators too")
    from .codegen.report.show import show as describe

    with words_to_stderr():
        text = describe(shown, html=html, trace=trace)
        if pcg or as_json:
            from .codegen.report.show import show_graph

            text = show_graph(shown, as_json)
    print(text)


def _show_operators(model: str, given: dict[str, Any], as_json: bool) -> None:
    """Print the operators of a model, built and captured as `given` says (`MODEL_OPTIONS`, small)."""
    from .codegen.report.operators import operators_json, operators_of, operators_text

    small = given.pop("small", False)
    values: dict[str, Any] = {"batch": 2, "dropout": "counters", **given}
    with words_to_stderr():
        found = operators_of(model, Training(**values), small=small)
    print_either(operators_json(found), operators_text(found), as_json)

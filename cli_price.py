"""`partita price`: what a configuration costs, in the words of training frameworks."""

from typing import Annotated, Any

import typer

from .cli_options import Json, chosen, with_options
from .codegen.report.terminal import leave, print_either, progress_shown, words_to_stderr
from .formulation.parallelism import Parallelism
from .formulation.search_space import SearchSpace
from .model.machine.machine_choice import MachineChoice
from .model.training import Training
from .solvers.budget import Budget


@with_options(MachineChoice, Training, Parallelism, SearchSpace, Budget)
def price(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model family, such as gpt2.")],
    small: Annotated[bool, typer.Option("--small", help="The model's small twin.")] = False,
    *,
    baseline: Annotated[
        str | None,
        typer.Option(help="A named configuration: dp, zero1, zero2, fsdp, hsdp, megatron.", metavar="NAME"),
    ] = None,
    beside: Annotated[
        bool, typer.Option("--beside/--alone", help="Also plan freely, to compare, or price this only.")
    ] = True,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Predict step and memory of a configuration, beside the planner's own plan; exit code 1 if it does not fit."""
    from .codegen.planner.price import price as priced
    from .codegen.report.price_text import price_text

    machine = MachineChoice(**chosen(MachineChoice, options))
    parallelism = Parallelism(**chosen(Parallelism, options))
    space = SearchSpace(**chosen(SearchSpace, options))
    budget = Budget(**chosen(Budget, options))
    training = chosen(Training, options)
    with words_to_stderr(), progress_shown() as progress:
        result = priced(
            model,
            machine,
            training,
            parallelism,
            space,
            budget,
            small=small,
            name=baseline,
            beside=beside,
            progress=progress,
        )
    print_either(result, price_text(result), as_json)
    leave(result["priced"]["fits"])

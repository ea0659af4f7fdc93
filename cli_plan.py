"""`partita plan`: its options are those of the values that say what to plan, and a few of its own."""

import sys
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from .cli_options import INTERRUPTED, Json, chosen, output_option, parse_path, with_options
from .codegen.profile.request import ProfileRequest
from .codegen.report.terminal import leave, print_either, print_json, progress_shown, words_to_stderr
from .formulation.parallelism import Parallelism
from .formulation.rewriting.saturation_limits import DEFAULT_LIMITS, SaturationLimits
from .formulation.search_space import SearchSpace, Start
from .model.errors import NoPlanError, PartitaError
from .model.machine.machine_choice import MachineChoice
from .model.options import option
from .model.training import Training
from .solvers.budget import Budget


@dataclass(frozen=True, slots=True)
class Files:
    """What is written where, and where solved networks are kept."""

    save_network: Path | None = field(
        default=None,
        metadata=option(
            str, "Save the first placement's cost network: .json, .json.gz.", metavar="FILE", parse=parse_path
        ),
    )
    cache: str | None = field(
        default=None,
        metadata=option(str, "Where solved networks are kept, or none. [env: PARTITA_CACHE]", metavar="DIR"),
    )
    no_cache: bool = field(default=False, metadata=option(bool, "The same as --cache none."))
    output: Path | None = field(
        default=None,
        metadata=option(
            str, "Write plan and program to this folder.", "-o", "--output", metavar="DIR", parse=parse_path
        ),
    )


ALONE = "planner"  # what --rewrite means if nothing follows it


class PlanCommand(TyperCommand):
    """A command whose option --rewrite may stand alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the value after --rewrite where there is none."""
        pairs = pairwise([*args, ""])
        given = [f"--rewrite={ALONE}" if word == "--rewrite" and after != "all" else word for word, after in pairs]
        return list(super().parse_args(ctx, given))


VALUES = MachineChoice, Training, Parallelism, SearchSpace, Start, SaturationLimits, Budget, Files


@with_options(*VALUES)
def plan(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model family, such as gpt2.")],
    small: Annotated[bool, typer.Option("--small", help="The model's small twin.")] = False,
    *,
    rewrite: Annotated[
        str,
        typer.Option(
            "--rewrite",
            metavar="[all]",
            help="Choose among all rewritings of the graph as well (see `partita rules`); all: by generated rules too.",
            show_default=False,
        ),
    ] = "",
    rules: Annotated[
        Path | None,
        typer.Option(
            parser=parse_path,
            metavar="FILE",
            help="Rewrite by these rules instead of the planner's; each is proved first.",
        ),
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Find the fastest plan of a model on a machine, and bound its distance from the optimum."""
    from .formulation.rewriting.rules import ALL, rules_for
    from .model.files import check_writable
    from .solvers.cache.store import store_in

    if rewrite not in ("", ALONE, ALL):
        raise PartitaError(f"--rewrite {rewrite}: nothing or {ALL} is needed")
    if rules is not None and rewrite == ALL:
        raise PartitaError(f"--rewrite {ALL} and --rules both name rules; give one of them")
    rewritten = ALL if rewrite == ALL else bool(rewrite)
    machine = MachineChoice(**chosen(MachineChoice, options))
    saturation = SaturationLimits(**chosen(SaturationLimits, options))
    if saturation != DEFAULT_LIMITS and not (rules or rewritten):
        raise PartitaError("--rewrite-rounds, -nodes and -alpha limit rewriting; give --rewrite or --rules too")
    start = chosen(Start, options)
    space = SearchSpace(
        **chosen(SearchSpace, options),
        parallelism=Parallelism(**chosen(Parallelism, options)),
        start=Start(**start) if start else None,
        rules=rules_for(rules or rewritten),
        saturation=saturation,
    )
    files = Files(**chosen(Files, options))
    budget = Budget(**chosen(Budget, options), store=store_in("none" if files.no_cache else files.cache))
    output = files.output
    if output is not None:
        check_writable(output)

    from .codegen.planner.planner import plan as find_plan
    from .codegen.planner.search_report import INTERRUPTED_EARLY

    try:
        with words_to_stderr(), progress_shown() as progress:
            training, network = chosen(Training, options), files.save_network
            found = find_plan(
                model, machine, training, space, budget, small=small, save_network=network, progress=progress
            )
            summary = found.summary()
            if output is not None:
                if (output / "plan.json").exists():
                    print(f"partita: replacing the plan in {output}", file=sys.stderr)
                found.save(output)
                summary["program"] = str(output / "program.py")
    except NoPlanError as none:
        if as_json:
            print_json(none.summary)
        print(f"partita: {none}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED if none.interrupted else 1) from None
    except KeyboardInterrupt:
        print(f"partita: {INTERRUPTED_EARLY}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    skipped = summary["space"].get("rewritings", {}).get("rules", {}).get("words")
    if skipped:
        print(f"partita: {skipped}", file=sys.stderr)
    print_either(summary, found, as_json)
    if "interrupt" in summary["space"]["limits_hit"]:
        raise typer.Exit(INTERRUPTED)


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
    from .codegen.planner.price import PriceRequest
    from .codegen.planner.price import price as priced
    from .codegen.report.price_text import price_text

    request = PriceRequest(
        model=model,
        machine=MachineChoice(**chosen(MachineChoice, options)),
        training=chosen(Training, options),
        parallelism=Parallelism(**chosen(Parallelism, options)),
        space=SearchSpace(**chosen(SearchSpace, options)),
        budget=Budget(**chosen(Budget, options)),
        small=small,
        baseline=baseline,
        beside=beside,
    )
    with words_to_stderr(), progress_shown() as progress:
        result = priced(request, progress)
    print_either(result, price_text(result), as_json)
    leave(result["priced"]["fits"])


@with_options(ProfileRequest, Training)
def profile(
    model: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="Also measure the operators of this model, split in several ways."),
    ] = None,
    small: Annotated[bool, typer.Option("--small", help="The model's small twin.")] = False,
    *,
    output: Annotated[
        Path | None, output_option("FILE", "The machine file; by default the one that `--machine local` reads.")
    ] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Measure this machine, and write the machine file that predictions for it are made with."""
    from .codegen.profile.profile import profile as measured
    from .codegen.report.profile_text import profile_text

    request = ProfileRequest(
        **chosen(ProfileRequest, options), model=model, small=small, training=chosen(Training, options)
    )
    with words_to_stderr(), progress_shown() as progress:
        result = measured(request, output, progress)
    print_either(result, profile_text(result), as_json)

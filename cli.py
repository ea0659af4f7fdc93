"""The command line: thin commands around the library, which they import only when they run.

Results go to standard output, messages and progress to standard error. Exit code 0: done; 1: done, but the answer is
no; 2: bad input; 130: interrupted (the best answer so far is kept).
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from . import __version__
from .cli_options import INTERRUPTED, Json, chosen, output_option, parse_path, with_options
from .cli_plan import PlanCommand, plan, price, profile
from .cli_show import show
from .codegen.planner.check_request import CheckRequest
from .codegen.report.terminal import leave, print_either, print_json, print_result, progress_shown, words_to_stderr
from .model.errors import DoesNotFitError, PartitaError
from .model.machine.machine_choice import MachineChoice
from .model.options import option, parse_axes, parse_sizes
from .solvers.budget import Budget

app = typer.Typer(
    # Plain help: importing rich takes longer than all the rest of `partita --help`.
    rich_markup_mode=None,
    context_settings={"max_content_width": 120},
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Plan distributed training with solvers, prove the plan, and emit a readable torch.distributed program.",
)


class Level(StrEnum):
    """How `verify` runs the ranks."""

    THREADS = "threads"
    POOL = "pool"
    TORCHRUN = "torchrun"


class Action(StrEnum):
    """What `rules` does."""

    LIST = "list"
    GENERATE = "generate"
    VERIFY = "verify"


@dataclass(frozen=True)
class BenchOptions:
    """What only some benchmarks take."""

    p2: Path | None = field(
        default=None,
        metadata=option(str, "For truth: measurements as in P²'s appendix.", metavar="FILE", parse=parse_path),
    )
    sweep: Path | None = field(
        default=None,
        metadata=option(
            str,
            "For truth: runs in the format of the Ultra-Scale Playbook.",
            metavar="FILE",
            parse=parse_path,
        ),
    )
    megatron: Path | None = field(
        default=None,
        metadata=option(
            str, "For truth: runs in the format of Megatron-LM's Table 1.", metavar="FILE", parse=parse_path
        ),
    )
    free: bool | None = field(
        default=None, metadata=option(bool, "For truth, with --sweep: also plan six of its groups freely.")
    )
    held_out: bool | None = field(
        default=None,
        metadata=option(bool, "For truth --sweep: also predict each model's runs by numbers fitted to the others'."),
    )
    instances: Path | None = field(
        default=None,
        metadata=option(str, "For solvers: a folder of contest instances.", metavar="DIR", parse=parse_path),
    )
    solver: Sequence[str] | None = field(
        default=None,
        metadata=option(list[str], "For solvers: a solver to compare; repeatable.", metavar="NAME"),
    )
    time_limit: float | None = field(
        default=None, metadata=option(float, "For solvers: seconds per case, instead of its own limit.")
    )
    parts: bool | None = field(
        default=None, metadata=option(bool, "For solvers: networks of growing size, whole and split into parts.")
    )
    count: int | None = field(default=None, metadata=option(int, "For forced and programs: how many plans.", minimum=1))
    seed: int | None = field(
        default=None,
        metadata=option(int, "For forced and programs: the first case; for models: the seed of the sample.", minimum=0),
    )
    sample: int | None = field(
        default=None, metadata=option(int, "For models: how many architectures of transformers, at random.", minimum=1)
    )
    rules: Sequence[str] | None = field(
        default=None,
        metadata=option(
            list[str],
            "For coverage: a file of rules; repeatable.",
            metavar="FILE",
            parse=lambda paths: [str(parse_path(path)) for path in paths],
        ),
    )


Folder = Annotated[
    Path, typer.Argument(parser=parse_path, metavar="DIR", help="The folder that `partita plan -o` wrote.")
]

app.command(cls=PlanCommand)(plan)
app.command()(price)
app.command()(profile)
app.command()(show)


def main() -> None:
    """Run the command line; an error that the user can fix becomes one line and exit code 2.

    That a plan does not fit takes several lines: what is in the memory, and what would mend it.
    """
    try:
        app(prog_name="partita")
    except DoesNotFitError as error:
        print("partita:", error, file=sys.stderr)
        sys.exit(2)
    except PartitaError as error:
        print("partita:", " ".join(str(error).split()), file=sys.stderr)
        sys.exit(2)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"partita {__version__}")
        raise typer.Exit


@app.command()
def verify(
    folder: Folder,
    ranks: Annotated[int | None, typer.Option(min=1, help="Local ranks; by default the plan's devices.")] = None,
    level: Annotated[Level, typer.Option(help="How the ranks run.")] = Level.THREADS,
    as_json: Json = False,
) -> None:
    """Run the program beside the unsharded model, and compare losses, gradients and weights."""
    from .codegen.verification.verify import verify as run

    with words_to_stderr():
        verdict = run(folder, ranks=ranks, level=level.value)
    print_result(verdict, as_json)
    leave(verdict["ok"])


@app.command()
@with_options(CheckRequest, MachineChoice)
def check(
    program: Annotated[
        Path,
        typer.Argument(parser=parse_path, metavar="PROGRAM.py", help="A file with a function plan(graph, devices)."),
    ],
    *,
    output: Annotated[Path | None, output_option("DIR", "Write program and timeline to this folder.")] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Validate a plan written with op_trans, op_assign and op_order, and report what conflicts if it cannot run."""
    from .codegen.planner.check_plan import check as run
    from .model.files import check_writable

    given = chosen(MachineChoice, options)
    where = MachineChoice(**given).load() if given else None
    if where is not None and given.get("machine") is None:  # a hierarchy alone names no memory
        where = where.without_memory_limit()
    request = CheckRequest(program, machine=where, **chosen(CheckRequest, options))
    if output is not None:
        check_writable(output)
    with words_to_stderr():
        found = run(request)
        if output is not None and found.plan is not None:
            found.plan.save(output, program.read_text())
        result = found.to_json()
    print_either(result, found, as_json)
    leave(result["ok"])


@app.command()
def rules(
    action: Annotated[Action, typer.Argument(help="What to do with the rules.")],
    file: Annotated[
        Path | None,
        typer.Argument(
            parser=parse_path, metavar="[FILE]", help="Rules: text, JSON, or the format of TASO and FlexFlow."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List, generate or verify substitutions; by default the shipped ones.

    `generate` writes the rules found to FILE, in the format of the shipped basis. `verify` exits with 1 if a rule is
    not proved.
    """
    from .bench.rule_generation.command import generate_rules
    from .solvers.proof.commands import list_rules, verify_rules

    with words_to_stderr(), progress_shown() as progress:
        if action is Action.GENERATE:
            result, text = generate_rules(file, progress)
        else:
            result, text = (list_rules if action is Action.LIST else verify_rules)(file)
    print_either(result, text, as_json)
    leave(action is not Action.VERIFY or result["proved"] == result["rules"])


@app.command()
@with_options(Budget, only=("solver", "time_limit", "gap"))
def solve(
    instance: Annotated[
        Path,
        typer.Argument(
            parser=parse_path, metavar="INSTANCE", help="A cost network or contest instance: .json, .json.gz."
        ),
    ],
    *,
    output: Annotated[Path | None, output_option("FILE", "Write the options chosen to this file.")] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Solve a cost network saved by `partita plan --save-network`, or an instance of the IOPDDL contest."""
    from .solvers.backends.instance import solve_instance
    from .solvers.protocol import INTERRUPTED as INTERRUPT

    budget = Budget(**chosen(Budget, options))
    try:
        with words_to_stderr(), progress_shown() as progress:
            summary = solve_instance(instance, budget, output, progress)
    except KeyboardInterrupt:
        print("partita: interrupted before there was an answer", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(summary)
    else:
        print_result({name: value for name, value in summary.items() if name != "assignment" or output is None}, False)
    if summary["words"] == INTERRUPT:
        raise typer.Exit(INTERRUPTED)
    leave(summary["assignment"] is not None)


@app.command()
def placements(
    hierarchy: Annotated[str, typer.Option(help="The machine's levels, outermost first: 4x16.")],
    axes: Annotated[str, typer.Option(help="Sizes of the mesh's axes, in their order: 16,2,2.")],
    as_json: Json = False,
) -> None:
    """List every parallelism matrix: the placements of a mesh's axes on a machine's levels."""
    from .codegen.report.reductions import placements_summary, print_placements
    from .formulation.placement.placement import arrangements

    summary = placements_summary(
        arrangements(parse_sizes("--hierarchy", hierarchy), parse_sizes("--axes", axes)),
    )
    if as_json:
        print_json(summary)
    else:
        print_placements(summary)


@app.command()
@with_options(MachineChoice)
def reductions(
    axes: Annotated[str, typer.Option(help="Sizes of the mesh's axes, in their order: 8,2,2.")],
    reduce: Annotated[str, typer.Option(help="Axes to reduce over, numbered from 0: 0,2.")],
    *,
    size: Annotated[
        int | None,
        typer.Option("--bytes", help="Bytes per device before the reduction; default 21474836480 (10 x 2 GiB)."),
    ] = None,
    algorithm: Annotated[str | None, typer.Option(help="ring, tree or gloo; by default the machine's.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of collectives in a program.")] = 5,
    numbering: Annotated[str, typer.Option(help="What numbers a group's members: levels, or axes.")] = "levels",
    synthesis: Annotated[
        str, typer.Option(help="What a program's levels are: levels, axes, rows, columns or system.")
    ] = "levels",
    as_json: Json = False,
    **options: Any,
) -> None:
    """Count the reduction programs of every placement, and find the fastest."""
    from .codegen.report.reductions import print_reductions, reductions_summary, synthesis_summary
    from .formulation.reduction.ranking import DEFAULT_BYTES, numbering_of, profile_of, ranking, synthesis_of

    where = MachineChoice(**chosen(MachineChoice, options)).load()
    sizes, over = parse_sizes("--axes", axes), parse_axes("--reduce", reduce)
    payload = DEFAULT_BYTES if size is None else size
    numbered_by, profile = numbering_of(numbering), profile_of(algorithm)
    over_levels = synthesis_of(synthesis, numbered_by)
    with words_to_stderr():
        found = ranking(where, sizes, over, payload, profile, limit=limit, numbering=numbered_by)
        summary = reductions_summary(where, over, found, numbered_by)
        if over_levels != "levels":
            of = partial(synthesis_summary, size_bytes=payload, profile=profile, limit=limit)
            summary = of(where, over, found, over_levels)
    if as_json:
        print_json(summary)
    else:
        print_reductions(summary, f"{where.name}: {axes} reduced over {reduce}, {payload:,} bytes a device")


@app.command()
@with_options(BenchOptions)
def bench(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="plan, zoo, joint, solvers, truth, ...: an unknown name lists all.")
    ],
    small: Annotated[bool, typer.Option("--small", help="Run small twins only, as a smoke test.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="Only cases whose name contains this; repeatable.")
    ] = None,
    *,
    output: Annotated[Path | None, output_option("DIR", "For solvers and truth: write pictures here.")] = None,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Run a benchmark, and report what it ran on; rows are printed to standard error as they are measured."""
    from .bench import bench as run
    from .bench import text

    own = chosen(BenchOptions, options)
    Budget(time_limit=own.get("time_limit"))  # a time limit out of range is refused

    def tell(words: str) -> None:
        print(words, file=sys.stderr, flush=True)

    with words_to_stderr():
        result = run(name, small, tuple(only or ()), tell, output, **own)
    print_either(result, text(result), as_json)
    if result["rows"][-1].get("status") == "interrupted":
        raise typer.Exit(INTERRUPTED)

"""What the solvers are compared on: contest instances, networks of the planner, and random families; all as files."""

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..formulation.network.network import Network
from ..formulation.network.network_file import network_json
from ..formulation.search_space import SearchSpace
from ..model.errors import PartitaError
from .cases import GIB
from .families import TIGHTNESS, Family
from .families import network as family_network
from .plan import AMPLE
from .plan import Case as Model

DATA = Path(__file__).parent / "data"
ENDINGS = (".json", ".json.gz")


@dataclass(frozen=True, slots=True)
class Case:
    """One problem: `file` writes its instance into a folder, or names it where it lies; `seconds` is its limit.

    `published` is what is known of a contest instance: limit_s, contest_best, best_known, bound.
    """

    group: str
    family: str
    name: str
    seconds: float
    file: Callable[[Path], Path]
    published: Mapping[str, Any] = field(default_factory=dict)


def cases(small: bool, folder: Path | None) -> list[Case]:
    """All cases, or few small ones; contest instances are those in `folder` and the two that the package carries."""
    groups = (_contest(small, folder), _planner(SMALL_MODELS if small else MODELS), _random(small))
    return [case for group in groups for case in group]


# The contest


CONTEST_SECONDS = 60.0  # for an instance of which nothing is published


def _contest(small: bool, folder: Path | None) -> Iterator[Case]:
    files = {} if small else {_stem(path): path for path in sorted(DATA.glob("iopddl_?.json.gz"))}
    if folder is not None:
        if not folder.is_dir():
            raise PartitaError(f"{folder} is no folder of instances")
        given = [path for path in sorted(folder.iterdir()) if path.name.endswith(ENDINGS)]
        if not given:
            raise PartitaError(f"{folder} holds no instance: no name there ends in {' or '.join(ENDINGS)}")
        files |= {_stem(path): path for path in given}
    for name, path in sorted(files.items()):
        known = published().get(name, {})
        seconds = float(known.get("limit_s", CONTEST_SECONDS))
        yield Case("contest", "contest", f"contest {name}", seconds, functools.partial(_there, path), known)


def _stem(path: Path) -> str:
    """The letter of an official instance, such as `A.json.gz` or `asplos-2025-iopddl-A.json`; else the name itself."""
    name = path.name.removesuffix(".gz").removesuffix(".json")
    letter = re.search(r"(?:^|iopddl[-_])([A-Z])$", name)
    return letter[1] if letter else name


def _there(path: Path, folder: Path) -> Path:
    return path


@functools.cache
def published() -> dict[str, dict[str, Any]]:
    """The contest's limits and best costs, and the best costs and bounds published since, by an instance's letter."""
    known: dict[str, dict[str, Any]] = json.loads((DATA / "iopddl.json").read_text())["instances"]
    return known


# The planner's networks: one placement, one number of micro-batches; memory that is ample, and memory that binds


PLANNER_SECONDS = 60.0
MODELS = tuple(
    Model(
        f"{name} {'x'.join(map(str, mesh))} {words}",
        *(model, machine, nodes, mesh),
        batch=batch,
        micro_batches=1,
        memory=memory,
        layers=layers,
    )
    for name, model, machine, nodes, mesh, batch, layers, memories in (
        ("mlp", "mlp", "dgx-a100", 4, (4, 8), None, None, {"1 TiB": AMPLE, "1 GiB": GIB}),
        ("dlrm", "dlrm", "dgx-a100", 4, (4, 8), None, None, {"1 TiB": AMPLE, "0.57 GiB": 57 * GIB // 100}),
        ("candle-uno", "candle-uno", "summit", 4, (24,), None, None, {"1 TiB": AMPLE, "4 GiB": 4 * GIB}),
        ("inception-v3", "inception-v3", "summit", 4, (24,), None, None, {"1 TiB": AMPLE, "5.9 GiB": 59 * GIB // 10}),
        ("bert-large", "bert-large", "summit", 4, (24,), None, None, {"1 TiB": AMPLE, "8 GiB": 8 * GIB}),
        ("gpt2", "gpt2", "dgx-a100", 1, (4, 2), None, None, {"1 TiB": AMPLE, "87.5 GiB": 875 * GIB // 10}),
        ("llama 4 layers", "llama-7b", "dgx-a100", 1, (2, 4), 12, 4, {"1 TiB": AMPLE, "9 GiB": 9 * GIB}),
        ("llama-7b", "llama-7b", "dgx-h100", 8, (64,), 64, None, {"1 TiB": AMPLE, "30 GiB": 30 * GIB}),
        ("llama-7b", "llama-7b", "dgx-h100", 8, (8, 8), 64, None, {"1 TiB": AMPLE, "28 GiB": 28 * GIB}),
    )
    for words, memory in memories.items()
)
SMALL_MODELS = (Model("mlp small 8", "mlp", "dgx-a100", 1, (8,), micro_batches=1, small=True),)


# Networks of growing size, for backends on parts and on the whole


def _bert(
    devices: int, mesh: tuple[int, ...], layers: int | None = None, memory: int = AMPLE, words: str = ""
) -> Model:
    shown = f"bert-large {'x'.join(map(str, mesh))}{f' {layers} layers' if layers else ''}{words}"
    return Model(shown, "bert-large", "summit", devices // 6, mesh, micro_batches=1, memory=memory, layers=layers)


PART_MODELS = (
    *(_bert(6, (6,), layers) for layers in (1, 4, 12)),
    *(_bert(devices, (devices,)) for devices in (6, 12, 24, 96)),
    *(_bert(2 * n, (2, n)) for n in (3, 6, 12)),
    _bert(24, (24,), memory=8 * GIB, words=" 8 GiB"),
    next(model for model in MODELS if model.name == "llama-7b 8x8 28 GiB"),
)


def part_cases(small: bool) -> list[Case]:
    """Growth with devices and layers, and memory that binds; then every model of the zoo at its small size."""
    from ..model.zoo import entry, zoo

    models = () if small else PART_MODELS
    twins = (Model(f"small {name}", name, entry(name).machine, 1, micro_batches=1, small=True) for name in zoo())
    named = [*models, *twins]
    return [
        replace(case, name=f"parts {model.name}", group="parts")
        for model, case in zip(named, _planner(tuple(named)), strict=True)
    ]


def _planner(models: tuple[Model, ...]) -> Iterator[Case]:
    for model in models:
        file = functools.partial(_save, functools.partial(model_network, model))
        yield Case("planner", "planner", f"planner {model.name}", PLANNER_SECONDS, file)


def model_network(model: Model) -> Network:
    """The network that `partita plan --save-network` keeps for a case: of its mesh's first placement.

    The mesh is one axis of all devices if the case names none.
    """
    from ..formulation.placement.placement import distinct, placements
    from ..solvers.search.planning_problem import PlanningProblem
    from .plan import prepared

    assert model.micro_batches is not None
    graph, machine, training = prepared(model)
    places = tuple(distinct(placements(machine.hierarchy, mesh=model.mesh or (machine.devices,))))
    counts, space = (model.micro_batches,), SearchSpace(recompute="none")
    problem = PlanningProblem(graph, machine, training, places, counts, space)
    return problem.encoding(places[0], model.micro_batches).network


def _save(make: Callable[[], Network], folder: Path) -> Path:
    path = folder / "network.json"
    path.write_text(json.dumps(network_json(make())))
    return path


# Random families


RANDOM_SECONDS = 10.0
SIZES = ((60, 2, 6), (80, 6, 4), (24, 3, 24))  # variables, width, domain
SHAPES = ("grid", "tree", "chords")
FAMILIES = (
    *(Family(shape, *size, tightness) for shape in SHAPES for size in SIZES for tightness in TIGHTNESS),
    *(Family("chords", 40, 2, 5, tightness, capacities=4) for tightness in ("loose", "tight", "infeasible")),
)
SMALL_FAMILIES = (Family("grid", 6, 2, 3, "tight"), Family("chords", 5, 2, 3, "infeasible"))


def _random(small: bool) -> Iterator[Case]:
    for family in SMALL_FAMILIES if small else FAMILIES:
        file = functools.partial(_save, functools.partial(family_network, family))
        yield Case("random", family.shape, f"random {family.name}", RANDOM_SECONDS, file)

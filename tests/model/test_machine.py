"""Machines: presets, the file format, and what happens to files that are not machines."""

import json
import math
import random
import re
import time
from itertools import product
from pathlib import Path

import pytest

from partita.formulation.placement.placement import of_rows
from partita.formulation.reduction.cost import exchange_price
from partita.formulation.reduction.program import Reduction
from partita.model.errors import PartitaError
from partita.model.machine.link_kinds import LINK_KINDS, Link, SharedMedium, Switch
from partita.model.machine.machine import PRESETS, Device, Level, Machine, machines, stage_machine
from partita.model.machine.machine_file import _Wiring
from partita.model.machine.wiring import Wiring

PRESET = PRESETS / "dgx-a100.yaml"
TEXT = PRESET.read_text()


def load(tmp_path: Path, text: str | bytes) -> Machine:
    file = tmp_path / "machine.yaml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return Machine.load(file)


def refusal(tmp_path: Path, text: str | bytes) -> str:
    with pytest.raises(PartitaError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert "machine.yaml" in message and "\n" not in message
    return message


# Presets


@pytest.mark.parametrize(
    ("name", "hierarchy"),
    [
        ("summit", (1, 2, 3)),
        ("v100-32gb", (1, 8)),
        ("dgx-a100", (1, 8)),
        ("dgx-h100", (1, 8)),
        ("p5-h100", (1, 8)),
        ("gcp-a100", (1, 16)),
        ("gcp-v100", (1, 8)),
        ("cpu", (4,)),
    ],
)
def test_presets(name: str, hierarchy: tuple[int, ...]) -> None:
    machine = Machine.load(name)
    assert machine.name == name
    assert machine.hierarchy == hierarchy
    assert hash(machine) == hash(Machine.load(name)) and machine == Machine.load(name)


def test_every_preset_is_listed_and_named_like_its_file() -> None:
    assert machines() == sorted(path.stem for path in PRESETS.glob("*.yaml"))
    assert {"summit", "dgx-a100", "dgx-h100", "cpu"} <= set(machines())
    assert all(Machine.load(name).name == name for name in machines())


def test_nodes_sets_the_outermost_level() -> None:
    assert Machine.load("summit", nodes=4).hierarchy == (4, 2, 3)
    assert Machine.load("summit", nodes=4).devices == 24
    assert Machine.load("cpu", nodes=2).hierarchy == (2,)


def test_devices_share_their_units_link() -> None:
    summit = Machine.load("summit", nodes=4)
    assert [summit.devices_below(level) for level in range(3)] == [6, 3, 1]
    assert summit.per_device_bandwidth(0) == summit.levels[0].bandwidth / 6
    assert summit.per_device_bandwidth(2) == summit.levels[2].bandwidth


def test_capacity_and_rates() -> None:
    device = Machine.load("dgx-a100").device
    assert device.capacity_bytes == device.memory_bytes - device.reserved_bytes == 85_095_088_128 - 2_000_000_000
    assert device.flops("bfloat16") == 312e12 * 0.69
    assert "bfloat16" not in Machine.load("summit").device.peak  # V100 has no such units
    with pytest.raises(PartitaError, match="no peak for bfloat16; it has float16, float32, float64"):
        Machine.load("summit").device.flops("bfloat16")


def test_ad_hoc_machines_take_the_devices_and_shares_of_a_dgx_a100() -> None:
    machine, dgx = Machine.adhoc((2, 4)), Machine.load("dgx-a100")
    assert machine.name == "adhoc-2x4" and machine.hierarchy == (2, 4) and machine.device == dgx.device
    assert [level.name for level in machine.levels] == ["node", "gpu"]
    assert [machine.per_device_bandwidth(level) for level in (0, 1)] == [20e9, 230e9]
    deep = Machine.adhoc((2, 2, 2, 4))
    assert [deep.per_device_bandwidth(level) for level in range(4)] == [5e9, 10e9, 20e9, 230e9]
    assert Machine.adhoc((4,)).per_device_bandwidth(0) == 230e9


# What is refused


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dgx-a10", "did you mean dgx-a100"),
        ("DGX-A100", "did you mean dgx-a100"),
        ("zzz", "known: cpu, dgx-a100"),
        ("", "unknown machine"),
        ("no/such.yaml", "No such file"),
        ("such.yml", "No such file"),
        ("/", "Is a directory"),
        ("a\0/b", "null byte"),
    ],
)
def test_unknown_names(name: str, words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        Machine.load(name)


@pytest.mark.parametrize("nodes", [0, -1, True, 2**30, 10**40])
def test_impossible_numbers_of_nodes(nodes: int) -> None:
    with pytest.raises(PartitaError, match=r"size|devices"):
        Machine.load("dgx-a100", nodes=nodes)


@pytest.mark.parametrize("hierarchy", [(), (0,), (2, -4), (2**20, 2**20)])
def test_impossible_hierarchies(hierarchy: tuple[int, ...]) -> None:
    with pytest.raises(PartitaError):
        Machine.adhoc(hierarchy)


def test_levels_have_distinct_names() -> None:
    machine = Machine.load("dgx-a100")
    with pytest.raises(PartitaError, match="names a level twice"):
        Machine("m", (Level("a", 2, 1e9, 1.0), Level("a", 2, 1e9, 1.0)), machine.device)
    with pytest.raises(PartitaError, match="no levels"):
        Machine("m", (), machine.device)


def test_a_device_keeps_memory_for_the_plan() -> None:
    with pytest.raises(PartitaError, match="reserves 5 of 5 bytes"):
        Machine("m", (Level("a", 2, 1e9, 1.0),), Device("d", 5, 5, 1e9, {"float32": 1e9}, 0.5, 1.0))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("bandwidth: {value: 160e9", "bandwidth: {value: 0", r"levels\.0\.bandwidth\.value: .*greater than 0, not 0"),
        ("bandwidth: {value: 160e9", "bandwidth: {value: -1.5", r"levels\.0\.bandwidth\.value: .*not -1\.5"),
        ("bandwidth: {value: 160e9", "bandwidth: {value: .nan", r"levels\.0\.bandwidth\.value: "),
        ("bandwidth: {value: 160e9", "bandwidth: {value: .inf", r"levels\.0\.bandwidth\.value: "),
        ("bandwidth: {value: 160e9", "bandwidth: {value: 1e999", r"levels\.0\.bandwidth\.value: "),
        ("bandwidth: {value: 160e9", "bandwidth: {value: true", r"levels\.0\.bandwidth\.value: .*not True"),
        ("bandwidth: {value: 160e9", "bandwidth: {value: '160e9'", r"levels\.0\.bandwidth\.value: .*not '160e9'"),
        ("bandwidth: {value: 160e9", "bandwidth: {value: 1e30", r"levels\.0\.bandwidth\.value: "),
        ("bandwidth: {value: 160e9", "bandwidth: {value: " + "9" * 5000, "more than 40 characters"),
        ("bandwidth: {value: 160e9", "bandwidth: {value: null", r"levels\.0\.bandwidth\.value: .*not None"),
        ("bandwidth: {value: 160e9", "bandwidth: {value: 2024-01-01", r"not '2024-01-01'"),
        ("size: {value: 8", "size: {value: 8.5", r"levels\.1\.size\.value: .*whole number, not 8\.5"),
        ("size: {value: 8", "size: {value: 1e20", "devices; the most is"),
        ("matmul_efficiency: {value: 0.69", "matmul_efficiency: {value: 1.1", r"device\.matmul_efficiency\.value: "),
        (
            "device:\n",
            "device:\n  host_ns: {value: -1, source: x}\n",
            r"device\.host_ns\.value: .*greater than 0, not -1",
        ),
        (
            "device:\n",
            "device:\n  host_ns: {value: 0.1, source: x}\n",
            r"device\.host_ns\.value: .*whole number, not 0\.1",
        ),
        ("device:\n", "device:\n  host_ns: {value: soon, source: x}\n", r"device\.host_ns\.value: .*not 'soon"),
        ("device:\n", "device:\n  host_ns: 8000\n", r"device\.host_ns: should be \{value"),
        ("reserved_bytes: {value: 2e9", "reserved_bytes: {value: 2e12", "reserves 2000000000000 of"),
        ("  - name: gpu", "  - name: node", "names a level twice: node, node"),
        ("  - name: gpu", "  - name: ''", r"levels\.1\.name: "),
        ("  - name: gpu", '  - name: "a\\nb"', r"levels\.1\.name: .*printable"),
        ("  - name: gpu", '  - name: "\\ud800"', r"levels\.1\.name: "),
        ("  - name: gpu", '  - name: "\\UFFFFFFFF"', "not a machine file"),
        ("  - name: gpu", "  - nam: gpu", r"levels\.1\.nam"),
        ("    float32:", "    float31:", "unknown dtype 'float31'"),
        (
            "    size: {value: 8,",
            "    size: 8  # {",
            r"levels\.1\.size: should be \{value: \.\.\., source: \.\.\.\}, not 8",
        ),
        ("device:\n  name", "device: []\nx:\n  name", r"device: should be a mapping, not \[\]"),
        ("name: dgx-a100", "name: 5", "name: .*not 5"),
        ("name: dgx-a100", "name: &a dgx-a100", "anchors and aliases"),
        ("name: dgx-a100", "name: *a", "anchors and aliases"),
        ("name: dgx-a100", "name: !!python/object/apply:os.system [exit]", "tags are not allowed"),
        ("name: dgx-a100", "name: a\nname: b", "duplicate key 'name'"),
        ("name: dgx-a100", "name: a\nmore: b", "more: is not a field"),
        ("name: dgx-a100", "", "name: is missing"),
        ("name: dgx-a100", "name: [", "not a machine file: .*line"),
        ("name: dgx-a100", "\tname: a", "line"),
    ],
)
def test_wrong_fields_are_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert TEXT.count(old) >= 1
    assert re.search(words, refusal(tmp_path, TEXT.replace(old, new, 1)))


WIRED = (PRESETS / "gcp-v100.yaml").read_text()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "name: gcp-v100",
            "name: a\ncollectives: mpi",
            r"collectives 'mpi' \(known: nccl, nccl-sharp, nccl-ring",
        ),
        ("name: gcp-v100", "name: a\ncollectives: 5", "collectives: .*not 5"),
        ("[7, 0]", "[7, 8]", r"level gpu of gcp-v100: a link joins two different units of 0 to 7, not \[7, 8\]"),
        ("[7, 0]", "[7]", r"levels\.1\.wiring\.links\.0\.pairs\.7: "),
        ("[7, 0]", "[7, '0']", r"levels\.1\.wiring\.links\.0\.pairs\.7\.1: .*not '0'"),
        ("units: {value: 2", "units: {value: 3", "a switch of 3 units does not divide the 8 around it"),
        ("units: {value: 2", "units: {value: 1.5", r"levels\.1\.wiring\.switches\.0\.units\.value: .*whole number"),
        ("duplex: false", "duplex: 0", r"levels\.1\.wiring\.switches\.0\.duplex: .*not 0"),
        ("      switches:", "      hubs:", r"levels\.1\.wiring\.hubs: is not a field"),
        ("    wiring:", "    wiring: []\n    more:", r"levels\.1\.wiring: should be a mapping"),
    ],
)
def test_wrong_wiring_and_collectives_are_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert WIRED.count(old) == 1
    assert re.search(words, refusal(tmp_path, WIRED.replace(old, new)))


def test_collectives_are_those_of_nccl_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    assert load(tmp_path, TEXT).collectives == "nccl-ring"
    assert load(tmp_path, "collectives: nccl-tree\n" + TEXT).collectives == "nccl-tree"
    assert Machine.load("cpu").collectives == "gloo"


@pytest.mark.parametrize("name", machines())
def test_machines_in_json(name: str) -> None:
    machine = Machine.load(name)
    data = json.loads(json.dumps(machine.to_json()))
    assert Machine.from_json(data) == machine
    del data["collectives"]  # as plans of older versions are
    assert Machine.from_json(data).collectives == "nccl-ring"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"collectives": "mpi"}, "known: nccl, nccl-sharp, nccl-ring"),
        ({"collectives": 5}, "5 is not a name"),
        ({"wiring": {"links": []}}, "switches"),
        ({"wiring": {"links": [], "switches": [{"units": 1, "bandwidth": 1e9, "duplex": 0}]}}, "neither true nor"),
        ({"wiring": {"links": [{"pairs": [[0, 1, 2]], "bandwidth": 1e9}], "switches": []}}, "values to unpack"),
        ({"wiring": {"links": [], "switches": []}}, "units 0 and 1 have no link, switch or shared medium"),
        ({"wiring": {"links": [], "switches": [], "shared": 0.0}}, "not a rate above 0"),
    ],
)
def test_what_is_no_machine_in_json(change: dict[str, object], words: str) -> None:
    data = Machine.load("gcp-v100").to_json()
    place = data if "collectives" in change else data["levels"][1]
    place.update(change)
    with pytest.raises((KeyError, TypeError, ValueError), match=words):
        Machine.from_json(data)


def test_the_level_of_computers() -> None:
    assert Machine.load("summit").node_level == 0  # node, socket, gpu
    assert Machine.load("cpu").node_level == -1
    assert Machine.adhoc((2, 2, 4)).node_level == 1  # rack, node, gpu
    assert Machine.adhoc((2, 2, 2, 2)).node_level == 2


def test_every_number_needs_a_source(tmp_path: Path) -> None:
    sources = list(re.finditer(r', source: "[^"]*"', TEXT))
    assert len(sources) == TEXT.count("value:") >= 15
    for match in sources:
        without = TEXT[: match.start()] + TEXT[match.end() :]
        assert "source: is missing" in refusal(tmp_path, without)
        empty = TEXT[: match.start()] + ', source: " "' + TEXT[match.end() :]
        assert "source: " in refusal(tmp_path, empty)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"5",
        b"[]",
        b"- a\n- b",
        b"name: a",
        b"levels: 5\nname: a\ndevice: []",
        b"\x00\x01\x02",
        b"\xff\xfe\xfa",
        bytes(range(256)) * 20,
        b"--- a\n--- b",
        b"%YAML 9.9\n---\nname: a",
        b"{" * 50_000,
        b"[" * 50_000,
        b"- " * 50_000,
        b"? " * 50_000,
        b"a: " * 1000,
        b"- a\n" * 20_000,
        b"a: &a [x]\nb: &b [*a,*a]\nc: &c [*b,*b]",
        b"<<: {name: a}",
        b"? [1]\n: 2",
        b"#" * 2_000_000,
        b"1: 2",
    ],
)
def test_what_is_no_machine_at_all(tmp_path: Path, content: bytes) -> None:
    start = time.process_time()
    assert "_" not in refusal(tmp_path, content).rpartition("machine.yaml")[2]  # no name of a class of ours
    assert time.process_time() - start < 5


def test_numbers_may_be_written_in_any_way(tmp_path: Path) -> None:
    for text in ("160e9", "160.0e+9", "160000000000", "1.6E11", "+1.6e11"):
        machine = load(tmp_path, TEXT.replace("{value: 160e9", "{value: " + text))
        assert machine == Machine.load("dgx-a100")


def test_the_example_of_the_documentation_is_a_machine(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "machines.md"
    example = re.search(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    assert example is not None
    assert load(tmp_path, example[1]).hierarchy == (2, 4)
    message = refusal(tmp_path, example[1].replace("25e9", "-25e9"))
    assert message.split(": ", 1)[1] in page.read_text()


def mutant(rng: random.Random) -> bytes:
    """A preset with one to three accidents."""
    data = rng.choice(machines())
    lines = (PRESETS / f"{data}.yaml").read_bytes().splitlines(keepends=True)
    for _ in range(rng.choice([1, 1, 2, 3])):
        i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
        at = rng.randrange(len(lines[i]) + 1)
        junk = bytes(rng.randrange(256) for _ in range(rng.randint(1, 8)))
        word = rng.choice(
            [b"{", b"}", b"[", b":", b"- ", b"&a ", b"*a", b"!!int ", b"\t", b"'", b'"', b"|", b"%", b"nan"]
        )
        kind = rng.randrange(8)
        if kind == 0:
            del lines[i]
        elif kind == 1:
            lines[i], lines[j] = lines[j], lines[i]
        elif kind == 2:
            lines = [*lines[:i], lines[i][:at]]
        elif kind == 3:
            lines[i] = lines[i][:at] + junk + lines[i][at:]
        elif kind == 4:
            lines[i] = lines[i][:at] + word + lines[i][at:]
        elif kind == 5:
            values = [b"0", b"-1", b".nan", b"true", b"1e400", b"'1'", b"[]", b"{}", b"7", b"0x10", b"1_0", b"1:30"]
            lines[i] = re.sub(rb"value: [^,]*", b"value: " + rng.choice(values), lines[i])
        elif kind == 6:
            lines[i] = b" " * rng.randint(1, 4) + lines[i]
        else:
            lines.insert(j, lines[i])
        if not lines:
            break
    return b"".join(lines)


def test_mutants_load_or_are_refused(tmp_path: Path) -> None:
    rng = random.Random(7)
    loaded = refused = 0
    for _ in range(600):
        try:
            machine = load(tmp_path, mutant(rng))
        except PartitaError as error:
            assert "\n" not in str(error)
            refused += 1
        else:
            assert machine.devices >= 1 and machine.device.capacity_bytes > 0
            assert all(level.bandwidth > 0 and level.latency_ns > 0 for level in machine.levels)
            loaded += 1
    assert loaded > 50 and refused > 200


# The link to the host's memory


def test_a_machine_need_not_say_how_fast_its_host_is(tmp_path: Path) -> None:
    assert TEXT.count("host_bandwidth") == 1
    silent = load(tmp_path, "\n".join(line for line in TEXT.splitlines() if "host_bandwidth" not in line))
    assert silent.device.host_bandwidth is None and "host_bandwidth" not in silent.to_json()["device"]
    for machine in (silent, Machine.load("dgx-a100")):
        assert Machine.from_json(json.loads(json.dumps(machine.to_json()))) == machine
    assert Machine.load("dgx-a100").device.host_bandwidth == 24.8e9


def test_every_preset_has_a_host_link_slower_than_its_memory() -> None:
    devices = [Machine.load(name).device for name in machines()]
    assert all(device.host_bandwidth and device.host_bandwidth <= device.memory_bandwidth for device in devices)


# Stages of a pipeline


def test_a_stage_has_its_share_of_the_links() -> None:
    """Of a unit that it has for itself all; where several stages are in a unit, each as much as the others."""
    machine = Machine.adhoc((4, 2, 8))
    part = stage_machine(machine, (2, 1, 4))
    assert part.hierarchy == (2, 2, 2) and part.device == machine.device
    assert [p.bandwidth / m.bandwidth for p, m in zip(part.levels, machine.levels, strict=True)] == [1 / 4, 1 / 4, 1]
    assert stage_machine(machine, (1, 1, 1)) is machine
    with pytest.raises(PartitaError, match="does not fit"):
        stage_machine(machine, (3, 1, 1))


@pytest.mark.parametrize("name", [*machines(), "4x2x8"])
def test_collectives_of_stages_cost_what_those_of_all_stages_at_once_do(name: str) -> None:
    """On wired levels that are divided no less; where stages have whole nodes just that."""
    machine = Machine.adhoc((4, 2, 8)) if name == "4x2x8" else Machine.load(name)
    machine = machine if len(machine.levels) == 1 else machine.with_nodes(4)
    for row in product(*(divisors(size) for size in machine.hierarchy)):
        part = stage_machine(machine, row)
        if part.devices == 1:
            continue
        wired = any(level.wiring and math.prod(row[n:]) > 1 for n, level in enumerate(machine.levels))
        for split in product(*(divisors(size) for size in part.hierarchy)):
            if math.prod(split) == 1:
                continue
            rest = tuple(size // factor for size, factor in zip(part.hierarchy, split, strict=True))
            for kind in ("all_to_all", "send"):
                here = exchange_price(part, Reduction(of_rows((split, rest)), (0,)), kind)
                there = exchange_price(machine, Reduction(of_rows((row, split, rest)), (1,)), kind)
                assert here.latency_ns == there.latency_ns
                assert here.ns_per_byte >= there.ns_per_byte * (1 - 1e-9)
                assert wired or here.ns_per_byte == pytest.approx(there.ns_per_byte)


def test_part_of_a_wiring() -> None:
    ring = Wiring((Link(10.0, ((0, 1), (1, 2), (2, 3), (3, 0))), Switch(4.0, 2), SharedMedium(6.0)))
    assert ring.part(4, 1) is ring
    assert ring.part(4, 2) == Wiring((Link(10.0, ((0, 1),)), Switch(4.0, 2), SharedMedium(3.0)))
    assert ring.part(4, 4) == Wiring((Switch(2.0, 1), SharedMedium(1.5)))
    uneven = Wiring((Link(10.0, ((0, 1),)), Link(3.0, ((0, 2),)), Switch(8.0, 4)))
    assert uneven.part(4, 2) == Wiring((Switch(4.0, 2), Switch(2.0, 1)))  # one pair has no link


def test_a_machine_file_can_name_every_kind_of_link() -> None:
    assert list(_Wiring.model_fields) == list(LINK_KINDS)


def divisors(size: int) -> list[int]:
    return [n for n in range(1, size + 1) if size % n == 0]

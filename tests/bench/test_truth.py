"""The published measurements beside our predictions: what the bench prints is what it says, and files are checked."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from partita.bench import bench, text
from partita.bench.truth import P2, machine_of, run, summary
from partita.model.errors import PartitaError


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return run(False, (), lambda words: None)


def test_every_row_of_the_appendix_is_predicted(rows: list[dict[str, Any]]) -> None:
    groups = json.loads(P2.read_text())["groups"]
    assert len(rows) == 2 * sum(len(group["rows"]) for group in groups) == 124
    assert all(row["best_predicted_s"] <= row["predicted_s"] for row in rows)
    assert all(row["ratio"] == row["predicted_s"] / row["measured_s"] for row in rows)


def test_no_pair_of_placements_is_ordered_wrongly(rows: list[dict[str, Any]]) -> None:
    total = summary(rows)[0]
    for pairs in (total["pairs"], total["best_pairs"]):
        concordant, tied, discordant = map(int, pairs.split(" / "))
        assert discordant == 0 and concordant >= 100 and tied <= 24
    assert 0.9 < total["ratio"] < 1.1 and 0.9 < total["best_ratio"] < 1.1


def test_top_k_reaches_the_paper(rows: list[dict[str, Any]]) -> None:
    total = summary(rows)[0]
    assert all(total[f"f1_{k}"] >= total[f"paper_{k}"] for k in (1, 3, 5, 10))


def test_a_known_row(rows: list[dict[str, Any]]) -> None:
    """Eight groups a node, each over two nodes: D in and out of a card for each of the sixteen."""
    row = next(r for r in rows if r["axes"] == "2x16" and r["matrix"] == "2 1 / 1 16" and r["over"] == "0")
    assert row["measured_s"] == 36.69 and row["predicted_s"] == pytest.approx(16 * 10 * 2**31 / 8.4e9, rel=1e-3)


# A file of one's own


SERVERS: dict[str, Any] = {
    "groups": [
        {
            "system": "4 nodes each with 8 V100",
            "hierarchy": [4, 8],
            "parallelism_axes": [8, 4],
            "reduce_axes": [0],
            "rows": [
                {"matrix": [[2, 4], [2, 2]], "allreduce": {"ring": 14.25, "tree": 15.48}},
                {
                    "matrix": [[1, 8], [4, 1]],
                    "allreduce": {"ring": 0.28, "tree": None},
                    "optimal": {"ring": 0.28, "tree": None},
                    "speedup": {"ring": 1.0, "tree": None},
                },
                {
                    "matrix": [[4, 2], [1, 4]],
                    "allreduce": {"ring": 14.84, "tree": 19.90},
                    "optimal": {"ring": 9.0},
                    "speedup": {"ring": 1.2},  # a misprint: 14.84 / 9.0 is 1.65
                },
            ],
        }
    ]
}


def written(folder: Path, data: Any) -> Path:
    file = folder / "measured.json"
    file.write_text(json.dumps(data))
    return file


def test_other_systems(tmp_path: Path) -> None:
    file = written(tmp_path, SERVERS)
    result = bench("truth", p2=file)
    rows = result["rows"]
    assert [(row["matrix"], row["algorithm"]) for row in rows] == [
        ("2 4 / 2 2", "ring"),
        ("1 8 / 4 1", "ring"),
        ("4 2 / 1 4", "ring"),
        ("2 4 / 2 2", "tree"),
        ("4 2 / 1 4", "tree"),
    ]
    assert all(0.8 < row["ratio"] < 1.2 for row in rows)
    assert [row["best_measured_s"] for row in rows] == [None, 0.28, None, None, None]
    assert result["command"].endswith(f"--p2 {file}")
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert "V100 ring" in text(result)
    total = result["summary"][0]
    assert total["count"] == 5 and total["pairs"] == "2 / 2 / 0" and total["best_pairs"] == "0 / 0 / 0"
    assert total["ratio"] == pytest.approx(math.prod(row["ratio"] for row in rows) ** 0.2)


def point(measured: float, predicted: float, best: float, best_predicted: float, ranks: tuple[int, int]) -> Any:
    return {
        **{"system": "2 nodes each with 16 A100", "axes": "a", "over": "0", "algorithm": "ring"},
        **{"predicted_s": predicted, "measured_s": measured, "ratio": predicted / measured},
        **{"best_predicted_s": best_predicted, "best_measured_s": best, "best_ratio": best_predicted / best},
        **{"rank_all_reduce": ranks[0], "rank_usual": ranks[1]},
    }


def test_how_rows_are_summed_up() -> None:
    rows = [
        point(10, 10, 5, 20, (3, 1)),  # another program was fastest, predicted to be
        point(4, 8, 4, 8, (2, 1)),  # the all-reduce was fastest, predicted second
        point(4.1, 2, 4.1, 2, (1, 1)),  # within 3 % of the one above
        point(1, 10.001, 1, 10.001, (1, 1)),
    ]
    total, one = summary(rows)
    assert one == total | {"rows": "A100 ring"}
    assert total["ratio"] == pytest.approx((1 * 2 * 2 / 4.1 * 10.001) ** 0.25)
    assert total["pairs"] == "2 / 1 / 2"  # 10 against 4 and 4.1; 10 tied with 1; 1 against 4 and 4.1
    assert (total["f1_1"], total["f1_3"]) == (0.75, 1.0)
    # By measured: 1, 4, 4.1, 5, 10; by predicted: 2 (4.1), 8 (4), 10 (10), 10.001 (1), 20 (5).
    assert (total["points_1"], total["points_3"], total["points_5"]) == (0.0, pytest.approx(2 / 3), None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"system": "4 nodes each with 8 H100"}, "no machine for the system '4 nodes each with 8 H100'"),
        ({"system": 5}, "no machine for the system 5"),
        ({"system": "2 nodes each with 8 V100"}, r"has levels \(2, 8\), not \(4, 8\)"),
        ({"system": "4 nodes each with 9 V100"}, "has levels"),
        ({"reduce_axes": None}, "groups.0"),
        ({"rows": [{"matrix": [[2, 8], [2, 2]]}]}, r"matrix .* does not fit the levels \(4, 8\)"),
        ({"rows": [{"matrix": [[2, 4], [2, 2]], "allreduce": {"ring": "fast"}}]}, "groups.0: .*fast"),
        ({"rows": 5}, "groups.0"),
    ],
)
def test_files_that_do_not_fit(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    data = {"groups": [SERVERS["groups"][0] | change]}
    with pytest.raises(PartitaError, match=words):
        bench("truth", p2=written(tmp_path, data))


@pytest.mark.parametrize("data", [5, [], {}, {"groups": []}, {"groups": [5]}])
def test_files_that_are_none(tmp_path: Path, data: Any) -> None:
    with pytest.raises(PartitaError, match="holds no list of groups"):
        bench("truth", p2=written(tmp_path, data))


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(PartitaError, match="--p2 is for `bench truth`"):
        bench("plan", p2=tmp_path)
    with pytest.raises(PartitaError, match=r"no experiment of .* has nothing in its name"):
        bench("truth", only=("nothing",))
    with pytest.raises(PartitaError, match="cannot read"):
        bench("truth", p2=tmp_path / "none.json")
    for megatron in (None, tmp_path / "none.json"):
        with pytest.raises(PartitaError, match="--held-out needs --sweep"):
            bench("truth", held_out=True, megatron=megatron)


def test_systems_are_found_by_their_words() -> None:
    assert machine_of("2 nodes, each with 16 A100 GPUs", (2, 16)).name == "gcp-a100"
    assert machine_of("4 nodes each with 8 V100", [4, 8]).hierarchy == (4, 8)

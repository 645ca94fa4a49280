"""Clumping: measured, predicted, and what the advisor makes of it."""

import json
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import write_dataset
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import corgiarrow as ca
from corgiarrow import advisor, quality
from corgiarrow.cli.commands import app
from corgiarrow.strategies import BY_NAME, Strategy

ROWS, CLASSES, BATCH = 200_000, 10, 128
BLOCK_ROWS = np.random.default_rng(1).multinomial(ROWS, np.ones(400) / 400)


def _labels(kind: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    in_order = np.arange(ROWS) * CLASSES // ROWS
    match kind:
        case "sorted":
            return in_order
        case "half sorted":
            return np.where(rng.random(ROWS) < 0.5, in_order, rng.integers(0, CLASSES, ROWS))
        case "by time":
            return np.sin(np.arange(ROWS) / 9_000) + np.sin(np.arange(ROWS) / 700) + rng.standard_normal(ROWS)
    return rng.permutation(in_order)


def _plan(strategy: Strategy, n: int, seed: int = 0, streams: int = 1) -> ca.EpochPlan:
    n = strategy.buffer_blocks(BLOCK_ROWS, n, streams)
    return ca.EpochPlan(BLOCK_ROWS, strategy, n, seed, 0, streams, BATCH)


@pytest.mark.parametrize("kind", ["sorted", "half sorted", "by time", "shuffled"])
@pytest.mark.parametrize(
    ("name", "n"),
    [
        *[("none", 1), ("block", 1), ("spread", 8), ("spread", 40)],
        *[("corgipile", 1), ("corgipile", 5), ("corgipile", 40), ("corgipile", 200)],
    ],
)
def test_what_is_predicted_is_within_15_percent_of_what_is_measured(kind: str, name: str, n: int) -> None:
    targets = quality.targets_of(pa.array(_labels(kind)), "y")
    seeds = range(12) if n >= 40 else range(4)
    measured = np.mean([quality.clumping(targets, _plan(BY_NAME[name], n, seed).tables()) for seed in seeds])
    predicted = quality.predict(_plan(BY_NAME[name], n), targets)
    assert predicted == pytest.approx(measured, rel=0.15)


def test_what_has_no_formula_is_not_predicted() -> None:
    targets = quality.targets_of(pa.array(_labels("sorted")), "y")
    assert quality.predict(_plan(BY_NAME["window"], 5), targets) is None
    assert quality.predict(_plan(BY_NAME["mrs"], 5), targets) is None
    pieces = np.full(len(BLOCK_ROWS), 4)
    assert quality.predict(ca.EpochPlan(BLOCK_ROWS, ca.CorgiPile(), 5, 0, 0, 1, BATCH, pieces, 4), targets) is None


@given(
    st.lists(st.integers(0, 3), min_size=4, max_size=60).filter(lambda y: len(set(y)) > 1),
    st.integers(1, 7),
    st.booleans(),
)
def test_clumping_is_what_its_definition_says(labels: list[int], size: int, as_classes: bool) -> None:
    y = np.array(labels, dtype=float)
    kind = "classes" if as_classes else "values"
    targets = quality.targets_of(pa.array(y), "y", kind)
    x = np.eye(4)[y.astype(int)] if as_classes else y[:, None]
    order = np.random.default_rng(0).permutation(len(y))
    whole = order[: len(y) // size * size].reshape(-1, size)
    if not len(whole):
        return
    variance = ((x - x.mean(0)) ** 2).sum(1).mean()
    batches = [((x[batch].mean(0) - x.mean(0)) ** 2).sum() for batch in whole]
    assert quality.clumping(targets, [whole[:1], whole[1:]]) == pytest.approx(np.mean(batches) * size / variance)
    rows = np.array([len(y) // 2, len(y) - len(y) // 2])
    between = np.mean(
        [
            ((part.mean(0) - x.mean(0)) ** 2).sum() * (len(part) / rows.mean()) ** 2
            for part in np.split(x, [int(rows[0])])
        ]
    )
    assert quality.h_d(targets, rows) == pytest.approx(rows.mean() * between / variance)


def test_h_d_is_one_for_shuffled_rows_and_the_rows_of_a_block_where_all_are_alike() -> None:
    shuffled = quality.targets_of(pa.array(_labels("shuffled")), "y")
    assert quality.h_d(shuffled, BLOCK_ROWS) == pytest.approx(1, abs=0.1)
    alike = quality.targets_of(pa.array(np.repeat(np.arange(10), 50)), "y")
    assert quality.h_d(alike, np.full(50, 10)) == pytest.approx(10)


def test_independent_draws_have_a_clumping_of_one() -> None:
    targets = quality.targets_of(pa.array(_labels("sorted")), "y")
    drawn = np.random.default_rng(3).integers(0, ROWS, (2000, BATCH))
    assert quality.clumping(targets, [drawn]) == pytest.approx(1, abs=0.03)


def test_spread_clumps_at_most_six_tenths_as_much_as_corgipile_in_the_same_memory(tmp_path: Path) -> None:
    rows, blocks = 1_000_000, 1000
    features = {f"f{c}": np.zeros(rows, dtype=np.float32) for c in range(20)}
    table = pa.table({**features, "label": pa.array(np.arange(rows) * 10 // rows, pa.int32())})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=rows // blocks)
    index = ca.BlockIndex.build(tmp_path)
    targets = quality.targets_of(table["label"], "label")
    for memory in ("8 MiB", "16 MiB"):
        found = {}
        for name in ("corgipile", "spread"):
            reader = ca.Reader(index, shuffle=name, memory=memory, batch_size=256, block_bytes=1)
            found[name] = np.mean([quality.clumping(targets, reader.plan(e).tables()) for e in range(3)])
        assert found["spread"] <= 0.6 * found["corgipile"]


def test_other_measures_of_an_order() -> None:
    found = {name: quality.measure(_plan(BY_NAME[name], 40)) for name in ("none", "block", "corgipile", "epoch")}
    none, block, corgipile, epoch = found.values()
    assert (none.correlation, none.kendall_tau) == (pytest.approx(1), 1)
    assert 1 < none.blocks_a_batch < 2
    assert block.blocks_a_batch == pytest.approx(none.blocks_a_batch, rel=0.1)
    assert abs(block.kendall_tau) < 0.15
    assert abs(epoch.correlation) < 0.02
    assert abs(epoch.kendall_tau) < 0.02
    assert corgipile.blocks_a_batch == pytest.approx(40 * (1 - (1 - 1 / 40) ** BATCH), rel=0.1)
    assert np.isnan(none.clumping)
    assert epoch.blocks_a_batch > 100
    with pytest.raises(ca.OptionError, match="labels of 2 rows do not fit a plan of 200,000 rows"):
        quality.measure(_plan(BY_NAME["none"], 1), quality.targets_of(pa.array([1, 2]), "y"))


@pytest.mark.parametrize("name", ["none", "corgipile", "spread", "window"])
def test_what_is_delivered_clumps_as_its_plan(tmp_path: Path, name: str) -> None:
    folder = write_dataset(tmp_path / "data", [[50] * 8, [30] * 10])
    reader = ca.Reader(folder, shuffle=name, buffer_blocks=4, batch_size=16)
    plan = reader.plan(0)
    label = pa.Table.from_batches(reader.in_file_order(["label"]))["label"]
    ids = plan.row_ids()
    whole = ids[: len(ids) // 16 * 16]
    wanted = quality.clumping(quality.targets_of(label.take(whole), "label"), [np.arange(len(whole)).reshape(-1, 16)])
    assert quality.clumping_of_batches(list(reader)[: len(whole) // 16], "label") == pytest.approx(wanted)
    assert len(whole) == len(ids) or quality.clumping_of_batches(reader, "label") > 0


def test_delivered_batches_without_the_column_or_none_at_all() -> None:
    batch = pa.record_batch({"x": [1, 2]})
    with pytest.raises(ca.OptionError, match="label='y' is none of the batches' columns: x"):
        quality.clumping_of_batches([batch], "y")
    with pytest.raises(ca.OptionError, match="no batch to measure"):
        quality.clumping_of_batches([], "y")


DAYS = [date(2020, 1, 1) + timedelta(days=k) for k in range(3)]


@pytest.mark.parametrize(
    ("column", "classes"),
    [
        (pa.array(["a", "b", None, "a"]), 3),
        (pa.array(["a", "b", "a"]).dictionary_encode(), 2),
        (pa.array([True, False, None]), 3),
        (pa.array([1, 5, 5], pa.uint8()), 2),
        (pa.array([1.0, 2.0, None, float("nan")]), 4),
        (pa.array([1.5, 2.0, None, float("nan")]), 0),
        (pa.array(range(1001)), 0),
        (pa.array(DAYS), 0),
        (pa.array([b"x", b"y"]), 2),
        (pa.array(DAYS).cast(pa.timestamp("ns")), 0),
    ],
)
def test_kinds_of_labels(column: pa.Array, classes: int) -> None:
    targets = quality.targets_of(column, "y")
    assert targets.classes == classes
    assert targets.rows == len(column)
    if not classes:
        assert targets.values is not None
        assert (targets.values**2).mean() == pytest.approx(1)
        assert all(targets.values[k] == 0 for k, v in enumerate(column.to_pylist()) if v is None or v != v)


@pytest.mark.parametrize(
    ("column", "kind", "match"),
    [
        (pa.array([3, 3, 3]), None, "'y' is '3' in every row: .* name another column"),
        (pa.array([], pa.int64()), None, "'y' is empty"),
        (pa.array([None, None]), None, "'y' is 'None' in every row"),
        (pa.array([[1], [2]]), None, r"'y' is of type list<.*give a column of texts or numbers"),
        (pa.array(np.arange(2000) / 3), "classes", "2,000 distinct values in 2,000 rows, .*give kind='values'"),
        (pa.array([f"{k}" for k in range(2000)]), None, "2,000 distinct values .* name another column"),
        (pa.array(["a", "b"]), "values", "holds no numbers: give kind='classes'"),
        (pa.array([1.0, float("nan")]), "values", "constant where it is finite"),
        (pa.array([1, 2]), "colour", "kind='colour' must be"),
    ],
)
def test_labels_that_are_no_measure(column: pa.Array, kind: str | None, match: str) -> None:
    with pytest.raises(ca.OptionError, match=match):
        quality.targets_of(column, "y", kind)


# The advisor, and its command


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Files of 20,000 rows in 200 row groups, with a label and 1,000 bytes a row beside."""
    folder = tmp_path_factory.mktemp("quality")

    def made(kind: str) -> Path:
        path = folder / f"{kind}.parquet"
        if not path.exists():
            label = np.arange(20_000) // 2_000
            if kind == "shuffled":
                label = np.random.default_rng(0).permutation(label)
            rng = np.random.default_rng(0)
            data = pa.array([rng.bytes(1000) for _ in label])
            groups = 1 if kind == "one row group" else 200
            pq.write_table(pa.table({"y": label, "x": data}), path, row_group_size=20_000 // groups)
        return path

    return made


OPTIONS = {"batch_size": 64, "block_bytes": 1}


def test_the_least_budgets_are_enough_and_less_is_not(datasets: Callable[[str], Path]) -> None:
    index = ca.BlockIndex.build(datasets("sorted"))
    found = advisor.assess(index, "y", tolerance=4.0, budgets=["1 MiB"], **OPTIONS)
    assert found.h_d == pytest.approx(100)
    assert {r.strategy for r in found.results} == set(advisor.STRATEGIES)
    for result in found.results:
        if result.predicted_clumping is not None:
            assert result.measured_clumping == pytest.approx(result.predicted_clumping, rel=0.25)
    look = advisor._Look(index, OPTIONS, quality.targets_of(pq.read_table(datasets("sorted"))["y"], "y"), False, print)
    for name in ("corgipile", "spread"):
        least = look.least(name, 4.0)
        assert least is not None
        assert least.clumping <= 4
        assert any(name in text and f"{least.buffer_blocks}" in text for text in found.advice)
        if least.memory_bytes > 2**20:
            less = look.at(name, least.memory_bytes - 2**20, draw=False)
            assert less is None or less.clumping > 4


def test_advice(datasets: Callable[[str], Path]) -> None:
    def advice(kind: str, **options: object) -> str:
        return " ".join(advisor.assess(ca.BlockIndex.build(datasets(kind)), "y", **{**OPTIONS, **options}).advice)

    assert "File order has a clumping of" in advice("shuffled")
    assert "Blocks are nearly of one kind" in advice("sorted")
    assert "only rewriting helps" in advice("one row group", tolerance=1.001)


def test_command(datasets: Callable[[str], Path]) -> None:
    args = ["quality", str(datasets("sorted")), "--label", "y", "--batch-size", "64", "--block-bytes", "1"]
    done = CliRunner().invoke(app, [*args, "--json"])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"h_d", "results", "advice"} <= found.keys()
    wanted = {"strategy", "buffer_blocks", "memory_bytes", "predicted_clumping", "measured_clumping"}
    assert all(wanted <= result.keys() for result in found["results"])
    shown = CliRunner().invoke(app, [*args, "--memory", "1 MiB,2 MiB", "--shuffle", "corgipile,spread", "--no-draw"])
    assert shown.exit_code == 0
    assert "corgipile" in shown.stdout
    assert "h_D" in shown.stdout
    assert "none" not in shown.stdout.split("Clumping")[1].split("┘")[0]


@pytest.mark.parametrize(
    ("args", "match"),
    [
        (["--label", "z"], "z"),
        (["--label", "x"], "distinct values"),
        (["--label", "y", "--tolerance", "1"], "tolerance=1.0 must be above 1"),
        (["--label", "y", "--memory", "much"], "memory='much'"),
        (["--label", "y", "--shuffle", "riffle"], "shuffle='riffle' must be"),
        (["--label", "y", "--kind", "colour"], "kind='colour'"),
    ],
)
def test_command_errors(datasets: Callable[[str], Path], args: list[str], match: str) -> None:
    done = CliRunner().invoke(app, ["quality", str(datasets("sorted")), *args])
    assert done.exit_code in (1, 2)
    assert match in " ".join((done.stderr + str(done.exception or "")).split())

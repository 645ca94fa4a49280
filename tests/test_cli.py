"""The command line as a person meets it: real runs on the embedded digits and on small generated data."""

import contextlib
import importlib
import inspect
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import RAGGED_ROWS, write_rows
from typer.testing import CliRunner, Result

import corgiarrow as ca
from corgiarrow.bench import bench
from corgiarrow.cli import options as cli_options
from corgiarrow.cli.commands import app
from corgiarrow.demo import _held_out, demo
from corgiarrow.inspection import inspect as inspect_index
from corgiarrow.sources.parquet import ParquetSession, ParquetSource

DIGITS = str(ca.example_path())
BENCH_KEYS = {"strategy", "rows_per_s", "bytes_per_s", "first_batch_s", "wait_share", "peak_arrow_bytes"}


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in args])


def run_json(*args: object, exit_code: int = 0) -> dict[str, Any]:
    result = run(*args, "--json")
    assert result.exit_code == exit_code, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of many types, nulls among them, sorted by label."""
    folder = tmp_path_factory.mktemp("mixed [1] :smile:")
    rng = np.random.default_rng(0)
    label = np.repeat([0, 1], 60)
    for number in (0, 1):
        rows = slice(60 * number, 60 * number + 60)
        x = label[rows] + rng.normal(0, 0.3, 60)
        grid = pa.FixedSizeListArray.from_arrays(
            pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=60 * 6)), 2), 3
        )
        table = pa.table(
            {
                "x": pa.array(x, mask=np.arange(60) % 7 == 0),
                "grid": grid.take(pa.array([None if i == 5 else i for i in range(60)], pa.int32())),
                "flag": pa.array([i % 2 == 0 for i in range(60)]),
                "price": pa.array([Decimal(i).scaleb(-2) for i in range(60)], pa.decimal128(9, 2)),
                "ratio": pa.array([float("nan"), float("inf"), *range(58)], pa.float32()),
                "blob": pa.array([bytes([i, 255]) for i in range(60)]),
                "when": pa.array([datetime(2026, 1, 1, 0, i, tzinfo=UTC) for i in range(60)]),
                "text": ["[red]" + "long " * 20] * 60,
                "tags": pa.array(
                    [None if i % 4 == 0 else [i] * (i % 3) for i in range(60)], pa.list_(pa.int8())
                ),
                "pairs": pa.array([[("a", i)] for i in range(60)], pa.map_(pa.string(), pa.int16())),
                "point": pa.array([None if i == 7 else {"u": i, "v": None} for i in range(60)]),
                "kind": pa.array([f"kind {i % 5}" for i in range(60)]).dictionary_encode(),
                "class": pa.array(label[rows]),
            }
        )
        pq.write_table(table, folder / f"part-{number}.parquet", row_group_size=10)
    return folder


def test_the_package_runs_as_a_module_and_names_its_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "corgiarrow", "--help"], capture_output=True, text=True, check=True
    )
    for command in ("demo", "inspect", "head", "plan", "check", "plot", "train", "predict", "bench"):
        assert command in done.stdout
    assert run().exit_code == 2
    assert run("demo", "--help").exit_code == 0


@pytest.mark.parametrize("command", ["demo", "inspect", "head", "plan", "check", "bench"])
def test_several_paths_are_one_dataset(command: str, tmp_path: Path) -> None:
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    next_id = write_rows(paths[0], [20] * 5)
    write_rows(paths[1], [30] * 2, next_id)
    extra = {"demo": ["--epochs", 1], "head": ["--rows", 500], "bench": ["--repeat", 1]}.get(command, [])
    rows = run_json(command, *paths, *extra).get("rows")
    assert (len(rows) if command == "head" else rows) == 160
    twice = run(command, paths[0], paths[0])
    assert twice.exit_code == 2
    assert "given twice" in twice.stderr


def test_options_are_named_and_set_as_the_readers_parameters() -> None:
    parameters = inspect.signature(ca.Reader).parameters
    for name in ("plan", "check"):
        command = next(c.callback for c in app.registered_commands if c.callback.__name__ == name)
        shared = [p for p in inspect.signature(command).parameters.values() if p.name in parameters]
        assert {p.name for p in shared} >= set(cli_options._READER_OPTIONS) - {"threads"}
        for option in shared:
            assert option.default in (parameters[option.name].default, None), option.name


@pytest.mark.parametrize("command", ["inspect", "head", "plan", "check", "bench"])
@pytest.mark.parametrize("data", ["digits", "ragged"])
def test_tables_fit_80_columns_and_json_parses(command: str, data: str, ragged: Path) -> None:
    src = DIGITS if data == "digits" else ragged
    extra = ["--repeat", 1] if command == "bench" else []
    result = run(command, src, *extra)
    assert result.exit_code == 0, result.stderr
    assert result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    assert run_json(command, src, *extra)


# demo


def test_demo_shows_that_order_matters() -> None:
    found = run_json("demo")
    mean = {r["strategy"]: r["mean_accuracy"] for r in found["results"]}
    assert list(mean) == ["none", "block", "corgipile", "epoch"]
    assert mean["none"] < 0.5 < mean["block"] < mean["corgipile"] < mean["epoch"]
    assert mean["epoch"] - mean["corgipile"] < 0.1
    for result in found["results"]:
        assert len(result["accuracy"]) == 6
        assert result["rows_per_s"] > 0
    assert (found["rows"], found["classes"], found["buffer_blocks"], found["blocks"]) == (1797, 10, 10, 100)
    assert "CorgiPile closes" in found["conclusion"]


def test_demo_prints_its_conclusion_and_what_it_does() -> None:
    result = run("demo", "--epochs", 1, "--seed", 3)
    assert result.exit_code == 0
    assert "corgipile" in result.stdout
    assert "of the gap" in " ".join(result.stdout.split())
    assert "training in the order of epoch" in result.stderr
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_demo_learns_from_any_numeric_columns(mixed: Path) -> None:
    found = run_json("demo", mixed, "--label", "class", "--epochs", 3)
    assert found["features"] == 1 + 6 + 1 + 1 + 1
    assert {r["strategy"]: r["accuracy"][-1] for r in found["results"]}["epoch"] > 0.8
    only = run_json("demo", mixed, "--label", "class", "--epochs", 1, "--columns", "x,grid")
    assert only["features"] == 7


def test_demo_says_when_order_hardly_matters(mixed: Path) -> None:
    index = ca.BlockIndex.build(mixed)
    found = demo(index, label="flag", columns=["price"], epochs=1)
    same = tuple(replace(r, accuracy=(0.9,)) for r in found.results)
    assert "hardly matters" in replace(found, results=same).conclusion()
    assert "left out" in replace(found, results=same[:3]).conclusion()


def test_demo_leaves_out_the_full_shuffle_that_would_fill_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corgiarrow.demo._EPOCH_BYTES", 100_000)
    found = demo(ca.BlockIndex.build(DIGITS), epochs=1)
    assert [r.strategy for r in found.results] == ["none", "block", "corgipile"]


def test_held_out_rows_are_the_same_in_every_order(ragged: Path) -> None:
    found = []
    for shuffle, batch_size in (("none", 50), ("corgipile", 7), ("epoch", 300)):
        reader = ca.Reader(ragged, shuffle=shuffle, batch_size=batch_size, provenance=True)
        batches = [b.filter(pa.array(_held_out(b, 0.2))) for b in reader]
        found.append(sorted(i for b in batches for i in b.column("id").to_pylist()))
    assert found[0] == found[1] == found[2]
    assert 0.1 < len(found[0]) / RAGGED_ROWS < 0.3


@pytest.mark.parametrize(
    ("label", "exit_code", "text"),
    [
        ("ratio", 2, "whole number"),
        ("text", 2, "whole number"),
        ("nothing", 1, "choose the label from x, grid"),
        ("many", 2, "more than 200 values"),
        ("holes", 2, "nulls"),
        ("one", 2, "single value"),
    ],
)
def test_demo_refuses_what_is_no_class(tmp_path: Path, label: str, exit_code: int, text: str) -> None:
    numbers = np.arange(300)
    columns = {
        "x": numbers * 0.5,
        "grid": numbers,
        "ratio": numbers / 7,
        "text": [str(n) for n in numbers],
        "many": numbers,
        "holes": pa.array([None, *([1, 2] * 150)][:300]),
        "one": numbers * 0,
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=30)
    result = run("demo", tmp_path, "--label", label)
    assert result.exit_code == exit_code
    assert text in result.stderr
    assert result.stdout == ""


def test_demo_refuses_other_bad_options(mixed: Path, tmp_path: Path) -> None:
    for bad in (["--epochs", 0], ["--buffer-fraction", 0], ["--columns", "text"], ["--columns", "class"]):
        assert run("demo", mixed, "--label", "class", *bad).exit_code == 2
    pq.write_table(
        pa.table({"x": pa.array([], pa.int8()), "label": pa.array([], pa.int8())}), tmp_path / "a.parquet"
    )
    assert run("demo", tmp_path).exit_code == 2


def test_demo_names_the_extra_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    result = run("demo")
    assert result.exit_code == 1
    assert "pip install 'corgiarrow[demo]'" in result.stderr


# inspect


def test_inspect_tells_sizes_and_encodings() -> None:
    found = run_json("inspect", DIGITS)
    assert (found["files"], found["rows"], found["row_groups"], found["blocks"]) == (1, 1797, 100, 100)
    assert found["row_group_rows"] == {"min": 15, "median": 18, "max": 18}
    pixels, label = found["columns"]
    assert pixels["encodings"] == ["RLE_DICTIONARY"]
    assert label["encodings"] == ["PLAIN"]
    assert pixels["compression"] == label["compression"] == ["ZSTD"]
    assert pixels["disk_share"] + label["disk_share"] == pytest.approx(1)
    assert any("binary" in w for w in found["warnings"])
    assert [c["name"] for c in run_json("inspect", DIGITS, "--columns", "label")["columns"]] == ["label"]


def test_inspect_warns_with_a_remedy(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=20_000)
    pq.write_table(
        pa.table({"a": values, "b": values.round(1)}), tmp_path / "a.parquet", row_group_size=10_000
    )
    index = ca.BlockIndex.build(tmp_path)
    few, wasteful = inspect_index(index).warnings
    assert "only 2 row groups" in few
    assert "row_group_size=100 or less" in few
    assert "column a: dictionary" in wasteful
    large = replace(index, group_rows=index.group_rows * 10_000)
    assert any("row groups of 1,6" in w and "row_group_size=" in w for w in inspect_index(large).warnings)
    times = 6000
    tiny = replace(
        index,
        group_file=np.repeat(index.group_file, times),
        group_number=np.repeat(index.group_number, times),
        group_rows=np.full(2 * times, 10),
        group_disk_bytes=np.full(2 * times, 100),
    )
    assert any("12,000 row groups of about 100 B" in w for w in inspect_index(tiny).warnings)


def test_inspect_and_plan_of_no_rows(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([], pa.int8())}), tmp_path / "a.parquet")
    assert run_json("inspect", tmp_path)["warnings"] == ["no rows: every row group is empty"]
    assert run_json("plan", tmp_path)["steps"] == 0
    assert run_json("head", tmp_path) == {"columns": ["x"], "rows": []}
    assert run_json("check", tmp_path)["exactly_once"]
    assert run("bench", tmp_path).exit_code == 2


# head


def test_head_shows_the_first_rows(mixed: Path) -> None:
    rows = run_json("head", mixed, "--rows", 12)["rows"]
    assert len(rows) == 12
    first, second = rows[:2]
    assert first["x"] is None
    assert first["blob"] == "00ff"
    assert (first["ratio"], second["ratio"]) == ("nan", "inf")
    assert second["price"] == "0.01"
    assert second["when"].startswith("2026-01-01 00:01")
    assert np.shape(first["grid"]) == (3, 2)
    assert rows[5]["grid"] is None
    across = run("head", mixed)
    assert "[red]" in across.stdout
    assert "one a column" in across.stdout
    few = run("head", mixed, "--columns", "text,class", "--rows", 2)
    assert few.stdout.count("[red]") == 2
    assert max(len(line) for line in few.stdout.splitlines()) <= 80


# plan


def test_plan_is_what_the_reader_does(ragged: Path) -> None:
    options = ["--batch-size", 8, "--world-size", 2, "--buffer-blocks", 4, "--num-workers", 1]
    found = run_json("plan", ragged, *options)
    reader = ca.Reader(ragged, batch_size=8, world_size=2, buffer_blocks=4)
    assert found["rows"] == RAGGED_ROWS
    assert found["blocks"] == len(reader.source.block_rows)
    assert found["buffer_blocks"] == 2
    assert found["batches_per_rank"] == len(reader)
    assert found["memory_bytes"] == reader.memory_bytes
    assert found["steps"] == sum(len(reader.plan().stream(s).step_rows) for s in (0, 1))


def test_plan_and_inspect_read_footers_only(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.arange(1000)}), path, row_group_size=100, compression="none")
    footer = pq.read_metadata(path).serialized_size + 8
    path.write_bytes(b"PAR1" + b"\0" * (path.stat().st_size - footer - 4) + path.read_bytes()[-footer:])
    assert run_json("plan", path, "--memory", "64 MiB", "--block-bytes", "1000")["rows"] == 1000
    assert run_json("inspect", path)["row_groups"] == 10
    result = run("head", path)
    assert result.exit_code == 1
    assert "row group 0" in result.stderr
    for command in ("check", "bench"):
        assert run(command, path).exit_code == 1


# check


@pytest.mark.parametrize("shuffle", ["none", "once", "epoch", "block", "corgipile"])
@pytest.mark.parametrize(
    "job", [[], ["--world-size", 3, "--drop-last"], ["--world-size", 2, "--num-workers", 2]]
)
def test_check_proves_the_promises(ragged: Path, shuffle: str, job: Sequence[object]) -> None:
    found = run_json("check", ragged, "--shuffle", shuffle, "--batch-size", 9, "--resumes", 2, *job)
    promises = ("exactly_once", "equal_steps", "plan_order", "resume_exact", "values_match")
    assert [found[p] for p in promises] == [True] * 5
    assert found["rows"] == RAGGED_ROWS
    assert found["parts"] == {0: 1, 3: 3, 4: 4}[len(job)]
    assert 1 <= len(found["resumes"]) <= 2


def test_check_reads_every_type_and_remote_files(mixed: Path) -> None:
    memory = fsspec.filesystem("memory")
    for file in mixed.iterdir():
        memory.pipe(f"/checked/{file.name}", file.read_bytes())
    for command, extra in (("check", ["--batch-size", 7, "--world-size", 2]), ("bench", ["--repeat", 1])):
        assert run_json(command, "memory://checked", *extra)
    assert run_json("check", mixed, "--batch-size", 7, "--seed", 5)["holds"]


def broken_state(monkeypatch: pytest.MonkeyPatch) -> None:
    load = ca.Reader.load_state_dict
    monkeypatch.setattr(
        ca.Reader, "load_state_dict", lambda self, s: load(self, s | {"batches": s["batches"] + 2})
    )


def reversed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    read = ParquetSession.read

    def backwards(*args: Any) -> pa.Table:
        table = read(*args)
        there = pa.array(range(table.num_rows)[::-1])
        columns = [column.take(there) for column in table.columns[:-1]]
        return pa.Table.from_arrays([*columns, table.columns[-1]], schema=table.schema)

    monkeypatch.setattr(ParquetSession, "read", backwards)


def doubled_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    locate = ParquetSource.locate
    monkeypatch.setattr(ParquetSource, "locate", lambda self, ids: locate(self, ids // 2))


def lost_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = ca.Reader._batches

    def fewer(self: ca.Reader, plan: ca.EpochPlan, begin: int) -> Iterator[pa.RecordBatch]:
        with contextlib.closing(batches(self, plan, begin)) as all_of_them:
            yield from islice(all_of_them, 0 if self._part.rank else None)

    monkeypatch.setattr(ca.Reader, "_batches", fewer)


@pytest.mark.parametrize(
    ("breaks", "broken"),
    [
        (broken_state, {"resume_exact"}),
        (reversed_rows, {"values_match"}),
        (doubled_rows, {"exactly_once", "plan_order", "values_match"}),
        (lost_batch, {"exactly_once", "equal_steps"}),
    ],
)
def test_check_sees_what_is_broken(
    ragged: Path,
    monkeypatch: pytest.MonkeyPatch,
    breaks: Callable[[pytest.MonkeyPatch], None],
    broken: set[str],
) -> None:
    breaks(monkeypatch)
    found = run_json("check", ragged, "--batch-size", 8, "--world-size", 2, exit_code=1)
    failed = {name for name, holds in found.items() if holds is False} - {"holds"}
    assert failed - {"resume_exact"} == broken - {"resume_exact"}
    assert broken <= failed
    result = run("check", ragged, "--batch-size", 8, "--world-size", 2)
    assert result.exit_code == 1
    assert "NO" in result.stdout


# bench


def test_bench_measures_all_in_one_pool_each() -> None:
    before = pa.default_memory_pool()
    held = pa.total_allocated_bytes()
    found = run_json("bench", DIGITS, "--shuffle", "none,corgipile,epoch", "--repeat", 2, "--threads", 1)
    assert pa.default_memory_pool().backend_name == before.backend_name
    assert pa.total_allocated_bytes() == held
    assert [r["strategy"] for r in found["results"]] == ["none", "corgipile", "epoch"]
    for result in found["results"]:
        assert set(result) >= BENCH_KEYS
        assert 0 <= result["wait_share"] <= 1
        assert result["peak_arrow_bytes"] > 0
        assert result["vs_scan"] == pytest.approx(result["rows_per_s"] / found["scan"]["rows_per_s"])
        assert result["vs_none"] == pytest.approx(result["rows_per_s"] / found["results"][0]["rows_per_s"])
    assert found["scan"]["rows_per_s"] > 0
    row, *blocks = found["random_access"]
    assert row["kind"] == "row"
    assert len(blocks) > 1
    assert (row["reads"], row["block_rows"]) == (64, pytest.approx(18, abs=1))
    assert all(b["kind"] == "block" and b["rows_per_s"] > 0 for b in blocks)
    assert sorted({b["block_rows"] for b in blocks}) == [b["block_rows"] for b in blocks]


def test_bench_table_has_room_for_large_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    found = bench(ca.BlockIndex.build(DIGITS), strategies=["corgipile"], repeat=1)
    figures = {"rows_per_s": 1.23e6, "bytes_per_s": 98765e6, "first_batch_s": 123.456, "peak_arrow_bytes": 1023 * 2**20}
    large = replace(found.results[0], **figures, wait_share=1.0, vs_scan=1.0, vs_none=1.0)
    monkeypatch.setattr("corgiarrow.bench.bench", lambda *_, **__: replace(found, results=(large,)))
    lines = run("bench", DIGITS).stdout.splitlines()
    assert max(len(line) for line in lines) <= 80
    for figure in ("corgipile", "1.23 M", "98,765", "123.456", "1023.0 MiB"):
        assert any(f" {figure} │" in line for line in lines), figure


def test_bench_without_none_has_no_ratio_to_it() -> None:
    (result,) = run_json("bench", DIGITS, "--shuffle", "block", "--repeat", 1, "--consumer-s", 0.0001)[
        "results"
    ]
    assert result["vs_none"] is None


@pytest.mark.parametrize(
    "bad",
    [
        ["--repeat", 0],
        ["--consumer-s", -1],
        ["--shuffle", ""],
        ["--shuffle", "none,none"],
        ["--shuffle", "x"],
    ],
)
def test_bench_refuses(bad: list[object]) -> None:
    result = run("bench", DIGITS, *bad)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_counting_pools_let_the_process_end(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "corgiarrow", "bench", "--repeat", "2", "--json"]
    done = subprocess.run([*command, DIGITS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"]
    # Also when a run is cut off by a fault, whose traceback holds what was read.
    with_fault = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.arange(1000)}), with_fault, row_group_size=10, compression="none")
    middle = pq.read_metadata(with_fault).row_group(60).column(0).data_page_offset
    content = bytearray(with_fault.read_bytes())
    content[middle : middle + 20] = b"\xff" * 20
    with_fault.write_bytes(content)
    done = subprocess.run([*command, str(with_fault)], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "row group 60" in done.stderr


# errors and Ctrl-C


@pytest.mark.parametrize("command", ["demo", "inspect", "head", "plan", "check", "bench"])
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_faults_of_data_exit_1_with_one_message(command: str, as_json: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"not Parquet at all")
    for src, text in ((tmp_path / "none", "does not exist"), (tmp_path, "not a readable Parquet file")):
        result = run(command, src, *as_json)
        assert result.exit_code == 1
        assert result.stdout == ""
        assert result.stderr.startswith("error: ")
        assert result.stderr.count("\n") == 1
        assert text in result.stderr


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["plan", DIGITS, "--batch-size", 0], "batch_size=0"),
        (["plan", DIGITS, "--shuffle", "bogus"], "shuffle='bogus'"),
        (["plan", DIGITS, "--memory", "1 KiB", "--shuffle", "epoch"], "memory"),
        (["plan", DIGITS, "--memory", "1 MiB", "--buffer-blocks", 1], "only one"),
        (["check", DIGITS, "--world-size", 0], "world_size=0"),
        (["check", DIGITS, "--num-workers", 0], "num_workers=0"),
        (["check", DIGITS, "--resumes", -1], "resumes=-1"),
        (["head", DIGITS, "--rows", 0], "rows=0"),
        (["inspect", DIGITS, "--block-bytes", "lots"], "block_bytes='lots'"),
        (["head", DIGITS, "--storage-options", "secret"], "JSON object"),
        (["head", DIGITS, "--storage-options", '["secret"]'], "JSON object"),
        (["plan", DIGITS, "--batch-size", "many"], "--batch-size"),
        (["plan", DIGITS, "--bogus"], "--bogus"),
        (["plan"], "SRC"),
    ],
)
def test_faults_of_usage_exit_2(args: list[object], text: str) -> None:
    result = run(*args)
    assert result.exit_code == 2
    assert text in result.stderr
    assert "Traceback" not in result.stderr
    assert "secret" not in result.stderr
    assert result.stdout == ""


def test_a_column_that_is_nowhere_exits_1() -> None:
    result = run("head", DIGITS, "--columns", "label,nothing")
    assert result.exit_code == 1
    assert "nothing" in result.stderr


@pytest.mark.parametrize(
    ("args", "sign"),
    [
        (["bench", DIGITS, "--consumer-s", "1000"], "round 1 of 3: none"),
        (["demo", "--epochs", "100000000"], "training in the order of none"),
        (["check", DIGITS, "--batch-size", "1", "--resumes", "5000"], "reading part 1"),
    ],
)
def test_ctrl_c_exits_130(args: list[str], sign: str) -> None:
    command = [sys.executable, "-m", "corgiarrow", *args]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if sign in line:
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith("stopped\n")
    assert "Traceback" not in err
    assert out == ""


def test_ctrl_c_outside_of_a_command_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    cli = importlib.import_module("corgiarrow.cli")

    def interrupted(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130

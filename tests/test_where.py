"""The grammar of --where, and what the commands say of drift, filters and large row groups."""

import contextlib
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_cli import run, run_json

import corgiarrow as ca
from corgiarrow.cli.where import parse_where

X, Y, S = pc.field("x"), pc.field("y"), pc.field("s")


@pytest.mark.parametrize(
    ("text", "expression"),
    [
        ("x == 1", X == 1),
        ("x = -1.5e3", X == -1500.0),
        ("x>=1 and y<2 or s!='a'", ((X >= 1) & (Y < 2)) | (S != "a")),
        ("x in (1,2 , 3)", X.isin([1, 2, 3])),
        ("x NOT IN ('a')", ~X.isin(["a"])),
        ("x is null OR y is not null", X.is_null() | ~Y.is_null()),
        ('"a column" = \'it\'\'s\'', pc.field("a column") == "it's"),
        ("x == true and y == False", (X == True) & (Y == False)),  # noqa: E712
        ("is_in == 1", pc.field("is_in") == 1),
    ],
)
def test_conditions(text: str, expression: pc.Expression) -> None:
    assert parse_where(text).equals(expression)


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "x ==", "== 1", "x == 1 y == 2", "x in 1", "x in ()", "x is 1", "x not 1", "(x == 1)"),
        *("x == 'a", "x == 1x", "x == y", "x == 1 and", "x == 1 or or y == 2"),
    ],
)
def test_what_is_no_condition_is_told_with_an_example(text: str) -> None:
    with pytest.raises(ca.OptionError, match=r"--where .*such as"):
        parse_where(text)


@given(st.text(max_size=30))
def test_any_text_is_a_condition_or_an_option_error(text: str) -> None:
    with contextlib.suppress(ca.OptionError):
        assert isinstance(parse_where(text), pc.Expression)


@pytest.fixture
def drifting(tmp_path: Path) -> Path:
    one = pa.table({"id": [1, 2, 3], "Label": pa.array([0, 1, 0], pa.int8()), "__index_level_0__": [0, 1, 2]})
    two = pa.table({"id": pa.array([4, 5], pa.int32()), "label": [1, 1], "time": pa.array([0, 1], pa.timestamp("us"))})
    for year, table in ((2023, one), (2024, two)):
        (tmp_path / f"year={year}").mkdir()
        pq.write_table(table, tmp_path / f"year={year}" / "x.parquet", use_deprecated_int96_timestamps=True)
    return tmp_path


def test_inspect_tells_how_files_differ(drifting: Path) -> None:
    found = run_json("inspect", drifting)
    assert found["path_columns"] == ["year"]
    assert "id: int64 in 1 files, int32 in 1 files; read as int64" in found["drift"]
    assert any(d.startswith("time: absent in 1 files") for d in found["drift"])
    text = " ".join(found["warnings"])
    for said in ("Label, label differ only in case", "__index_level_0__: pandas' row index"):
        assert said in text
    assert "files differ: id" in run("inspect", drifting).stdout


def test_inspect_tells_of_old_timestamps_and_of_what_cannot_be_read(drifting: Path) -> None:
    found = run_json("inspect", drifting / "year=2024")
    assert "time: old INT96 timestamps" in " ".join(found["warnings"])
    (drifting / "broken.parquet").write_bytes(b"PAR1 but cut")
    assert run("inspect", drifting).exit_code == 1
    found = run_json("inspect", drifting, "--on-error", "skip")
    assert found["files"] == 2
    assert "broken.parquet" in found["left_out"][0]


def test_commands_read_the_rows_that_are_asked_for(drifting: Path) -> None:
    assert [r["id"] for r in run_json("head", drifting, "--where", "id > 1 and year = 2023")["rows"]] == [2, 3]
    assert run_json("plan", drifting, "--where", "year in (2024)")["rows"] == 2
    assert run_json("check", drifting, "--where", "id != 2", "--batch-size", 2)["holds"] is True
    assert run("plan", drifting, "--where", "missing > 1").exit_code == 1
    assert "missing" in run("plan", drifting, "--where", "missing > 1").stderr
    assert run("plan", drifting, "--where", "id >").exit_code == 2


def test_plan_says_what_is_read_in_pieces(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(2_000_000)}), tmp_path / "x.parquet", use_dictionary=False)
    found = run_json("plan", tmp_path, "--memory", "6 MiB")
    assert found["blocks_in_pieces"] == 2
    assert found["pieces"] > found["buffer_blocks"] > 2
    assert "too large to be held whole" in run("plan", tmp_path, "--memory", "6 MiB").stdout

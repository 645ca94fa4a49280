"""Filters: what they keep, what they read, and that order, resume and parts stay as promised."""

import functools
import operator
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from conftest import all_parts, ids_of
from hypothesis import event, given, settings
from hypothesis import strategies as st
from test_schemas import ONCE_EACH, read_all, rows_of, small_pages, write_files, write_hive

import corgiarrow as ca

__all__ = ["small_pages"]

NAN = float("nan")
WORDS = ["", "a", "b", "bb", "é"]


def mixed_table(first: int, rows: int, seed: int, part_sorted: bool) -> pa.Table:
    """Columns of every kind that a filter may name; nulls everywhere, NaN among the floats."""
    rng = np.random.default_rng(seed)

    def some(values: list[Any]) -> list[Any]:
        return [values[n] for n in rng.integers(0, len(values), rows)]

    whole = [None, *range(-3, 4)]
    numbers = some(whole)
    if part_sorted:
        numbers = sorted(numbers, key=lambda v: (v is None, v))
    return pa.table(
        {
            "id": pa.array(range(first, first + rows), pa.int64()),
            "i": pa.array(numbers, pa.int32()),
            "f": pa.array(some([None, NAN, -1.5, 0.0, -0.0, 2.5, float("inf")]), pa.float64()),
            "g": pa.array(some([NAN, 1.0]), pa.float32()),
            "s": pa.array(some([None, *WORDS]), pa.string()),
            "d": pa.array(some([None, *WORDS]), pa.string()).dictionary_encode(),
            "e": pa.array(some([None, *WORDS]), pa.string()).dictionary_encode(),
            "b": pa.array(some([None, True, False]), pa.bool_()),
        }
    )


COMPARE = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]
VALUES: dict[str, list[Any]] = {
    "i": [-3, 0, 2, 100],
    "f": [-1.5, 0.0, 2.5, NAN, float("inf")],
    "g": [1.0, 0.5, NAN],
    "s": WORDS,
    "d": WORDS,
    "e": WORDS,
    "k": [1, 2, 3],
}


def _compared(name: str, compare: Callable[[Any, Any], pc.Expression]) -> st.SearchStrategy[pc.Expression]:
    return st.sampled_from(VALUES[name]).map(lambda value: compare(pc.field(name), value))


LEAVES = st.one_of(
    *(st.sampled_from(COMPARE).flatmap(functools.partial(_compared, name)) for name in VALUES),
    st.sampled_from([*VALUES, "b"]).map(lambda name: pc.field(name).is_null()),
    st.sampled_from([*VALUES, "b"]).map(lambda name: pc.field(name).is_valid()),
    st.sampled_from(["f", "g"]).map(lambda name: pc.is_nan(pc.field(name))),
    st.sampled_from(["f", "g"]).map(lambda name: pc.field(name).is_null(nan_is_null=True)),
    st.just(pc.field("b")),
    st.lists(st.sampled_from([*VALUES["i"], None]), min_size=1, max_size=3).map(
        lambda v: pc.field("i").isin(pa.array(v, pa.int32()))
    ),
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=2).map(lambda v: pc.field("s").isin(v)),
    st.just(pc.field("f") < pc.field("i").cast(pa.float64())),
    st.just(pc.field("i") + 1 > pc.field("k")),
    st.just(pc.scalar(True)),
    st.just(pc.scalar(False)),
)
EXPRESSIONS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(operator.and_, inner, inner), st.builds(operator.or_, inner, inner), inner.map(operator.invert)
    ),
    max_leaves=4,
)


@functools.cache
def in_memory(folder: Path) -> pa.Table:
    """The dataset as one table, a dictionary in it as the text that filters compare."""
    table = read_all(folder, shuffle="none")
    return table.set_column(table.column_names.index("e"), "e", table["e"].cast(pa.string()))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three folders k=1, k=2 and null, one of them with dictionaries stored as plain text."""
    root = tmp_path_factory.mktemp("mixed")
    for number, key in enumerate(["1", "2", "__HIVE_DEFAULT_PARTITION__"]):
        table = mixed_table(100 * number, 60 + number, number, part_sorted=number != 1)
        if number == 1:
            table = table.set_column(5, "d", table["d"].cast(pa.string()))
        write_hive(root, {f"k={key}": table})
        pq.write_table(table, root / f"k={key}" / "f.parquet", row_group_size=13)
    return root


@pytest.mark.usefixtures("small_pages")
@given(
    expression=EXPRESSIONS,
    name=st.sampled_from(ONCE_EACH),
    columns=st.sampled_from([None, ["id"], ["s", "id"], ["k", "f"], ["id", "d", "e"]]),
    memory=st.sampled_from([None, "6 kB", "3 kB", "1 kB"]),
    batch_size=st.integers(1, 70),
)
@settings(max_examples=50)
def test_a_filter_keeps_what_arrow_keeps(
    mixed: Path,
    expression: pc.Expression,
    name: str,
    columns: list[str] | None,
    memory: str | None,
    batch_size: int,
) -> None:
    whole = in_memory(mixed)
    expected = whole.filter(expression)
    options = {"columns": columns, "filter": expression, "shuffle": name, "batch_size": batch_size, "threads": 1}
    try:
        reader = ca.Reader(mixed, memory=memory, **options)
    except ca.BudgetError:
        reader = ca.Reader(mixed, **options)
    event("in pieces" if reader.plan().pieces is not None else "whole")
    event("nothing kept" if not len(expected) else "all kept" if len(expected) == len(whole) else "some kept")
    assert reader.num_rows == len(expected)
    found = pa.Table.from_batches(list(reader), schema=reader.schema)
    names = columns or whole.column_names
    assert found.column_names == names
    assert rows_of(found) == rows_of(expected.select(names))


FILTERS = {
    "some": pc.field("i") > 0,
    "few": (pc.field("id") >= 110) & (pc.field("id") < 126),
    "with text": (pc.field("s") != "a") | pc.field("f").is_null(),
    "path": (pc.field("k") == 2) & (pc.field("i") < 3),
}


@pytest.mark.parametrize("filtered", list(FILTERS))
@pytest.mark.parametrize(("world", "workers"), [(2, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("drop_last", [True, False])
def test_parts_share_what_is_kept(mixed: Path, filtered: str, world: int, workers: int, drop_last: bool) -> None:
    """Ranks get equal steps, every kept row comes once, in the order that one process gives."""
    options = {"filter": FILTERS[filtered], "batch_size": 4, "streams": world * workers, "drop_last": drop_last}
    kept = in_memory(mixed).filter(FILTERS[filtered])["id"].to_pylist()
    batches = all_parts(mixed, world, workers, **options)
    whole = ids_of(iter(ca.Reader(mixed, **options)))
    assert batches[: len(whole)] == whole[: len(batches)]
    if drop_last:
        ids = [i for b in batches for i in b]
        assert len(ids) == len(set(ids)) > len(kept) - 4 * world * workers
        assert set(ids) <= set(kept)
    else:
        assert sorted(i for b in whole for i in b) == sorted(kept)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("filtered", ["some", "few"])
@pytest.mark.parametrize(
    ("name", "memory"), [*((n, None) for n in ONCE_EACH), *((n, "3 kB") for n in ("none", "block", "corgipile"))]
)
def test_resume_everywhere(mixed: Path, filtered: str, name: str, memory: str | None) -> None:
    options = {"filter": FILTERS[filtered], "shuffle": name, "batch_size": 7, "provenance": True, "threads": 1}
    index = ca.BlockIndex.build(mixed)
    whole = [batch.to_pylist() for batch in ca.Reader(index, memory=memory, **options)]
    for step in range(len(whole)):
        reader = ca.Reader(index, memory=memory, **options)
        batches = iter(reader)
        before = [next(batches).to_pylist() for _ in range(step)]
        again = ca.Reader(index, memory=memory, **options)
        again.load_state_dict(reader.state_dict())
        reader.close()
        assert [repr(b) for b in before + [b.to_pylist() for b in again]] == [repr(b) for b in whole]


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("memory", [None, "3 kB"])
@pytest.mark.parametrize("columns", [None, ["id", "s"]])
def test_provenance_names_each_kept_row(mixed: Path, memory: str | None, columns: list[str] | None) -> None:
    reader = ca.Reader(mixed, columns=columns, filter=FILTERS["some"], provenance=True, memory=memory, batch_size=5)
    assert (reader.plan().pieces is None) == (memory is None)
    found = pa.Table.from_batches(list(reader))
    assert len(found) == len(in_memory(mixed).filter(FILTERS["some"]))
    for row in found.to_pylist():
        file = pq.ParquetFile(mixed / row["_file"])
        stored = file.read_row_group(row["_row_group"]).slice(row["_row"], 1).to_pylist()[0]
        file.close()
        assert stored["i"] > 0
        assert {"id": row["id"], "s": row["s"]} == {"id": stored["id"], "s": stored["s"]}


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("memory", [None, "4 kB"])
def test_provenance_where_a_block_lacks_row_groups_in_its_middle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: str | None
) -> None:
    monkeypatch.setattr("corgiarrow.index.MIN_BLOCKS", 1)
    table = pa.table({"id": range(1000), "x": np.random.default_rng(0).permutation(1000)})
    folder = write_files(tmp_path, table, row_group_size=50)
    filtered = (pc.field("id") < 70) | (pc.field("id") > 310) & (pc.field("x") > 500) | (pc.field("id") == 170)
    reader = ca.Reader(folder, filter=filtered, provenance=True, memory=memory, batch_size=5)
    assert len(reader.plan().block_rows) == 1
    assert (reader.plan().pieces is None) == (memory is None)
    found = pa.Table.from_batches(list(reader))
    assert sorted(found["id"].to_pylist()) == table.filter(filtered)["id"].to_pylist()
    for row in found.to_pylist():
        assert row["id"] == 50 * row["_row_group"] + row["_row"]


def test_a_filter_that_keeps_nothing(mixed: Path) -> None:
    for filtered in (pc.field("i") > 1000, pc.field("k") == 77, pc.scalar(False), pc.field("s") == "absent"):
        for name in ONCE_EACH:
            reader = ca.Reader(mixed, filter=filtered, shuffle=name, provenance=True)
            assert reader.num_rows == len(reader) == 0
            assert list(reader) == []
            assert reader.epoch == 1
            assert reader.schema.names == [*in_memory(mixed).column_names, "_file", "_row_group", "_row"]
        assert all_parts(mixed, 2, filter=filtered) == []


@pytest.mark.parametrize(
    ("filtered", "error", "text"),
    [
        (pc.field("zzz") > 1, ca.ColumnNotFoundError, "zzz"),
        ((pc.field("zzz") > 1) & (pc.field("k") == 1), ca.ColumnNotFoundError, "zzz"),
        (pc.field("i") + 1, ca.OptionError, "filter="),
        (pc.field("s"), ca.OptionError, "filter="),
        (pc.field("i") > "x", ca.OptionError, "filter="),
        (pc.field("s") > 1, ca.OptionError, "filter="),
        ("i > 1", ca.OptionError, "filter='i > 1'"),
        ([("i", ">", 1)], ca.OptionError, "pyarrow expression"),
    ],
    ids=str,
)
def test_a_filter_that_does_not_fit_raises(mixed: Path, filtered: Any, error: type[Exception], text: str) -> None:
    for columns in (None, ["id"]):
        with pytest.raises(error) as caught:
            ca.Reader(mixed, columns=columns, filter=filtered)
        assert text in str(caught.value)
    with pytest.raises(error):
        ca.Reader(ca.BlockIndex.build(mixed), filter=filtered)


def test_filter_columns_that_are_not_asked_for_are_not_delivered(mixed: Path) -> None:
    found = read_all(mixed, columns=["id"], filter=(pc.field("s") == "bb") & pc.field("g").is_valid())
    assert found.column_names == ["id"]
    expected = in_memory(mixed).filter(pc.field("s") == "bb")
    assert sorted(found["id"].to_pylist()) == sorted(expected["id"].to_pylist())


def test_a_filter_on_a_struct_field(tmp_path: Path) -> None:
    values = [{"p": 1, "q": "x"}, None, {"p": None, "q": "y"}, {"p": 4, "q": None}]
    table = pa.table({"a": values * 10, "id": range(40)})
    folder = write_files(tmp_path, table, row_group_size=6)
    for filtered in (pc.field("a", "p") > 1, pc.field("a", "p").is_null(), pc.field("a").is_null()):
        assert rows_of(read_all(folder, filter=filtered)) == rows_of(table.filter(filtered)), filtered
        found = read_all(folder, columns=["id", "a.q"], filter=filtered)
        assert sorted(found["id"].to_pylist()) == table.filter(filtered)["id"].to_pylist()


def test_a_filter_on_a_column_with_a_dot_in_its_name(tmp_path: Path) -> None:
    table = pa.table({"a.b": [1, 2, 3], "a": [{"b": 30}, {"b": 20}, {"b": 10}]})
    found = read_all(write_files(tmp_path, table), filter=pc.field("a.b") > 2)
    assert found.to_pylist() == [{"a.b": 3, "a": {"b": 10}}]


def test_a_filter_on_a_column_that_some_files_lack(tmp_path: Path) -> None:
    folder = write_files(tmp_path, pa.table({"id": [1, 2]}), pa.table({"id": [3, 4], "x": pa.array([5, 6], pa.int8())}))
    for filtered, kept in (
        (pc.field("x") > 5, [4]),
        (pc.field("x").is_null(), [1, 2]),
        (~(pc.field("x") > 5), [3]),
        ((pc.field("x") > 5) | (pc.field("id") == 1), [1, 4]),
    ):
        assert sorted(read_all(folder, filter=filtered)["id"].to_pylist()) == kept
        assert sorted(read_all(folder, columns=["id"], filter=filtered)["id"].to_pylist()) == kept


# Hive folders -----------------------------------------------------------------------------------------------------


def garbage_hive(root: Path, good: list[str], bad: list[str]) -> Path:
    """Folders with a table of two rows each, and folders whose file is no Parquet."""
    write_hive(root, {name: pa.table({"id": [n, n + 100]}) for n, name in enumerate(good)})
    for name in bad:
        (root / name).mkdir(parents=True)
        (root / name / "f.parquet").write_bytes(b"garbage")
    return root


@pytest.mark.parametrize(
    ("filtered", "good", "bad"),
    [
        (pc.field("k") == 2, ["k=2"], ["k=1", "k=3"]),
        (pc.field("k") > 1, ["k=2", "k=3"], ["k=1", "k=__HIVE_DEFAULT_PARTITION__"]),
        (pc.field("k").isin([1, 3]), ["k=1", "k=3"], ["k=2", "k=4"]),
        (pc.field("k").is_null(), ["k=__HIVE_DEFAULT_PARTITION__"], ["k=2"]),
        ((pc.field("k") == 1) | (pc.field("k") == 3), ["k=1", "k=3"], ["k=2"]),
        ((pc.field("k") == 2) & (pc.field("j") == "b"), ["k=2/j=b"], ["k=2/j=a", "k=1/j=b"]),
        (pc.field("j") != "a", ["k=1/j=b"], ["k=1/j=a"]),
        ((pc.field("k") == 2) & (pc.field("id") >= 0), ["k=2"], ["k=3"]),
    ],
    ids=str,
)
def test_files_that_their_paths_exclude_are_not_opened(
    tmp_path: Path, filtered: pc.Expression, good: list[str], bad: list[str]
) -> None:
    root = garbage_hive(tmp_path, good, bad)
    reader = ca.Reader(root, filter=filtered)
    assert sorted(i for batch in reader for i in batch["id"].to_pylist()) == sorted(
        i for n in range(len(good)) for i in (n, n + 100)
    )
    with pytest.raises(ca.NotParquetError, match=r"f\.parquet"):
        ca.Reader(root)


def test_an_index_without_excluded_files_serves_its_filter_only(tmp_path: Path) -> None:
    root = garbage_hive(tmp_path / "data", ["k=1"], ["k=2"])
    filtered = pc.field("k") == 1
    index = ca.BlockIndex.build(root, filter=filtered)
    index.save(tmp_path / "index")
    for data in (index, ca.BlockIndex.load(tmp_path / "index")):
        assert len(read_all(data, filter=filtered)) == 2
        for other in (None, pc.field("k") == 2):
            with pytest.raises(ca.OptionError, match="built with a filter"):
                ca.Reader(data, filter=other)


def test_a_key_cast_by_schema_excludes_files_too(tmp_path: Path) -> None:
    """The type that schema= gives decides how a key compares: '10' < '9' as text."""
    root = write_hive(tmp_path, {"k=9": pa.table({"id": [9]}), "k=10": pa.table({"id": [10]})})
    text = read_all(root, schema={"k": pa.string()}, filter=pc.field("k") < "9")
    assert text["id"].to_pylist() == [10]
    assert read_all(root, filter=pc.field("k") < 10)["id"].to_pylist() == [9]
    date = write_hive(tmp_path / "dates", {f"k=2024-0{n}-01": pa.table({"id": [n]}) for n in (1, 2)})
    day = pa.scalar("2024-01-15").cast(pa.date32())
    assert read_all(date, schema={"k": pa.date32()}, filter=pc.field("k") > day)["id"].to_pylist() == [2]


# What is read -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sorted_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 row groups of 100 rows, sorted by `n`."""
    path = tmp_path_factory.mktemp("sorted") / "sorted.parquet"
    rng = np.random.default_rng(0)
    table = pa.table(
        {
            "n": pa.array(np.arange(10_000), pa.int32()),
            "x": rng.standard_normal(10_000),
            "s": [f"text {i:05}" for i in range(10_000)],
        }
    )
    pq.write_table(table, path, row_group_size=100)
    return path


@pytest.mark.parametrize(
    "filtered",
    [
        (pc.field("n") >= 4200) & (pc.field("n") < 4300),
        pc.field("n").isin(list(range(500, 600))),
        (pc.field("s") >= "text 04200") & (pc.field("s") < "text 04300"),
    ],
    ids=str,
)
def test_statistics_spare_reads(sorted_file: Path, filtered: pc.Expression) -> None:
    whole = ca.Reader(sorted_file)
    list(whole)
    reader = ca.Reader(sorted_file, filter=filtered)
    assert sum(b.num_rows for b in reader) == reader.num_rows == 100
    assert reader.stats.fetched_bytes <= 0.03 * whole.stats.fetched_bytes
    assert len(reader.source.block_rows) == 1


def test_counts_are_kept_and_saved(sorted_file: Path, tmp_path: Path) -> None:
    """The filter's column is read once: later readers do without, though it has become unreadable."""
    copy = tmp_path / "copy.parquet"
    copy.write_bytes(sorted_file.read_bytes())
    filtered = (pc.field("s") >= "text 04250") & pc.field("x").is_valid()
    index = ca.BlockIndex.build(copy)
    assert index.kept_rows == {}
    reader = ca.Reader(index, columns=["n"], filter=filtered)
    assert {k: v.sum() for k, v in index.kept_rows.items()} == {reader.source.selection.key: 10_000 - 4250}
    index.save(tmp_path / "index")
    loaded = ca.BlockIndex.load(tmp_path / "index")
    copy.unlink()
    for data in (index, loaded):
        again = ca.Reader(data, columns=["n"], filter=filtered)
        assert again.num_rows == 10_000 - 4250
        assert again.state_dict() == reader.state_dict()
    with pytest.raises(ca.SourceChangedError):
        ca.Reader(loaded, columns=["n"], filter=pc.field("x") > 0)


def test_the_fingerprint_names_the_filter(mixed: Path) -> None:
    index = ca.BlockIndex.build(mixed)
    states = [ca.Reader(index, filter=f).state_dict()["data"] for f in (None, pc.field("i") > 0, pc.field("i") >= 1)]
    assert len(set(states)) == 3
    state = ca.Reader(index, filter=pc.field("i") > 0).state_dict()
    with pytest.raises(ca.StateMismatchError, match="data="):
        ca.Reader(index, filter=pc.field("i") > 1).load_state_dict(state)


def test_the_key_of_a_filter_is_the_same_in_every_process(mixed: Path, tmp_path: Path) -> None:
    program = (
        "import corgiarrow as ca, pyarrow.compute as pc\n"
        "f = (pc.field('i') > 0) & pc.field('s').isin(['a', 'b'])\n"
        f"print(ca.Reader({str(mixed)!r}, filter=f).state_dict()['data'])"
    )
    found = {subprocess.check_output([sys.executable, "-c", program], timeout=60) for _ in range(2)}
    here = ca.Reader(mixed, filter=(pc.field("i") > 0) & pc.field("s").isin(["a", "b"])).state_dict()["data"]
    assert {line.decode().strip() for line in found} == {here}


@pytest.mark.parametrize(
    ("stored", "kind", "filtered"),
    [
        ([str(n) for n in range(1, 200)], pa.int64(), pc.field("x") > 100),
        ([str(n) for n in range(1, 200)], pa.int32(), pc.field("x") == 10),
        (list(range(1, 200)), pa.string(), pc.field("x") > "5"),
        ([float(n) for n in range(-100, 100)], pa.string(), pc.field("x") < "-5"),
        ([n.to_bytes(2, "big") for n in range(256, 500)], pa.binary(2), pc.field("x") > b"\x01\x50"),
        ([str(n) for n in range(1, 200)], pa.dictionary(pa.int32(), pa.string()), pc.field("x") > "5"),
        ([str(n / 4) for n in range(-100, 100)], pa.float64(), pc.field("x") > 10),
    ],
    ids=str,
)
def test_statistics_of_the_stored_type_do_not_mislead(
    tmp_path: Path, stored: list[Any], kind: pa.DataType, filtered: pc.Expression
) -> None:
    """A cast may change the order of values, so what the statistics say of the stored ones does not hold."""
    table = pa.table({"x": stored, "id": range(len(stored))})
    folder = write_files(tmp_path, table, row_group_size=7)
    cast = table["x"].cast(kind.value_type if pa.types.is_dictionary(kind) else kind)
    expected = table.set_column(0, "x", cast).filter(filtered)
    found = read_all(folder, schema={"x": kind}, filter=filtered)
    assert sorted(found["id"].to_pylist()) == expected["id"].to_pylist()
    assert 0 < len(found) < len(table)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
@pytest.mark.parametrize(
    "filtered",
    [
        pc.field("x") != 1.0,
        ~(pc.field("x") > 0.5),
        ~(pc.field("x") <= 1.0),
        pc.is_nan(pc.field("x")),
        (pc.field("x") > 0.5) | pc.is_nan(pc.field("x")),
        ~(pc.field("x") == 1.0),
    ],
    ids=str,
)
def test_statistics_do_not_hide_nan(tmp_path: Path, kind: pa.DataType, filtered: pc.Expression) -> None:
    """Minimum and maximum leave NaN out: a row group of 1.0 and NaN looks as if all its rows were 1.0."""
    values = pa.array([1.0, NAN, None] * 3 + [1.0] * 9 + [0.25] * 9, kind)
    table = pa.table({"x": values, "id": range(len(values))})
    folder = write_files(tmp_path, table, row_group_size=3)
    wide = table.set_column(0, "x", table["x"].cast(pa.float64()))
    assert sorted(read_all(folder, filter=filtered)["id"].to_pylist()) == wide.filter(filtered)["id"].to_pylist()


def test_a_value_that_cannot_be_cast_raises_while_counting(tmp_path: Path) -> None:
    folder = write_files(tmp_path, pa.table({"x": ["1", "2", "3", "y"], "id": [1, 2, 3, 4]}), row_group_size=2)
    with pytest.raises(ca.ReadError, match=r"a\.parquet, row group 1.*filter="):
        ca.Reader(folder, schema={"x": pa.int64()}, filter=pc.field("x") > 1)


@pytest.mark.parametrize(
    "filtered",
    [pc.field("t") > pa.scalar(0, pa.timestamp("us")), pc.field("m") > 5, pc.field("v") == "b"],
    ids=str,
)
def test_filters_over_drifting_columns(tmp_path: Path, filtered: pc.Expression) -> None:
    """Each file's statistics are in its own type."""
    one = pa.table(
        {
            "t": pa.array([-1, 1, 2], pa.timestamp("s")),
            "m": pa.array([1, 5, 6], pa.int8()),
            "v": pa.array(["a", "b", None]).dictionary_encode(),
            "id": [1, 2, 3],
        }
    )
    two = pa.table(
        {
            "t": pa.array([0, 10**12, None], pa.timestamp("us")),
            "m": pa.array([5.5, NAN, None], pa.float64()),
            "v": pa.array(["b", "c", "a"], pa.large_string()),
            "id": [4, 5, 6],
        }
    )
    folder = write_files(tmp_path, one, two, row_group_size=1)
    whole = read_all(folder, shuffle="none")
    assert sorted(read_all(folder, filter=filtered)["id"].to_pylist()) == whole.filter(filtered)["id"].to_pylist()

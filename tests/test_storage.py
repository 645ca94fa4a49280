"""What a URL means, and what bad input says."""

import os
import pickle
from itertools import pairwise
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ArraySource, ids_of, write_dataset, write_rows
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

import corgiarrow as ca
from corgiarrow.sources.ranges import FetchedRanges
from corgiarrow.storage import cut, find_files, redact, write_atomic
from corgiarrow.units import parse_bytes, show_bytes


def _found(data: object, **options: object) -> list[str]:
    return [f.path for f in find_files(data, **options)[1]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (
        "b.parquet",
        "a.parquet",
        "sub/c.pq",
        "_temporary/x.parquet",
        ".hidden.parquet",
        "_SUCCESS",
        "notes.txt",
    ):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in (".parquet", ".pq"):
            write_rows(path, [3])
        else:
            path.write_text("x")
    return tmp_path / "data"


def test_folders_globs_lists_and_urls(folder: Path) -> None:
    assert _found(folder) == ["a.parquet", "b.parquet", "sub/c.pq"]
    assert _found(f"{folder}/") == _found(f"file://{folder}") == _found(folder)
    assert _found(f"{folder}/*.parquet") == ["a.parquet", "b.parquet"]
    assert _found(f"{folder}/**/*.p*q*") == ["a.parquet", "b.parquet", "sub/c.pq"]
    assert _found(folder / "b.parquet") == ["b.parquet"]
    assert _found([folder / "b.parquet", folder / "a.parquet"]) == ["a.parquet", "b.parquet"]
    assert _found([folder / "sub", folder / "a.parquet"]) == ["a.parquet", "sub/c.pq"]


def test_a_relative_path_and_another_working_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    reader = ca.Reader("a.parquet")
    monkeypatch.chdir("/")
    assert sum(b.num_rows for b in reader) == 3


def test_names_with_magic_characters(tmp_path: Path) -> None:
    write_rows(tmp_path / "part[1].parquet", [4])
    assert sum(b.num_rows for b in ca.Reader(tmp_path / "part[1].parquet")) == 4


def test_memory_and_chained_urls(folder: Path, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(folder / "a.parquet"), "/corgi/a.parquet")
    try:
        assert sum(b.num_rows for b in ca.Reader("memory://corgi/a.parquet")) == 3
        assert sum(b.num_rows for b in ca.Reader("memory://corgi")) == 3
        cached = {"simplecache": {"cache_storage": str(tmp_path / "cache")}}
        assert sum(b.num_rows for b in ca.Reader("simplecache::memory://corgi/a.parquet", storage_options=cached)) == 3
        assert list((tmp_path / "cache").iterdir())
        reader = ca.Reader("corgi", filesystem=MemoryFileSystem())
        assert sum(b.num_rows for b in pickle.loads(pickle.dumps(reader))) == 3
    finally:
        memory.rm("/corgi", recursive=True)


def test_a_wrapped_local_folder(folder: Path) -> None:
    wrapped = fsspec.filesystem("dir", path=str(folder), target_protocol="file")
    assert sum(b.num_rows for b in ca.Reader("", filesystem=wrapped)) == 9


def test_local_reads_of_a_remote_kind_give_the_same(ragged: Path) -> None:
    """The way of remote files (ranges fetched, decoded from memory) gives what the native way gives."""
    memory = fsspec.filesystem("memory")
    memory.put(str(ragged), "/ragged", recursive=True)
    try:
        options = {"batch_size": 8, "seed": 3, "buffer_blocks": 3}
        assert list(ca.Reader("memory://ragged", **options)) == list(ca.Reader(ragged, **options))
    finally:
        memory.rm("/ragged", recursive=True)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("nowhere", "does not exist"),
        ("nowhere*", "no file matches"),
        ([], "empty list"),
        ("csv", "holds no Parquet.*\\.parquet.*1 other files \\(data.csv"),
        ("empty", "holds no Parquet"),
    ],
)
def test_nothing_found_says_what_was_looked_for(tmp_path: Path, data: object, said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "data.csv").write_text("a,b")
    with pytest.raises(ca.NoFilesError, match=said) as caught:
        ca.Reader(f"{tmp_path}/{data}" if isinstance(data, str) else data)
    assert isinstance(caught.value, FileNotFoundError)


def test_a_file_given_twice_and_two_file_systems(folder: Path) -> None:
    with pytest.raises(ca.OptionError, match="given twice"):
        ca.Reader([folder, folder / "a.parquet"])
    with pytest.raises(ca.OptionError, match="different file systems"):
        ca.Reader([str(folder / "a.parquet"), "memory://x.parquet"])
    with pytest.raises(ca.OptionError, match="nosuch://x"):
        ca.Reader("nosuch://x")


def test_files_that_are_not_parquet(tmp_path: Path) -> None:
    write_rows(tmp_path / "good.parquet", [10])
    whole = (tmp_path / "good.parquet").read_bytes()
    for name, content in (
        ("empty", b""),
        ("text", b"hello, world"),
        ("cut", whole[:-20]),
        ("tail", whole[:4] + whole[-9:]),
    ):
        path = tmp_path / f"{name}.parquet"
        path.write_bytes(content)
        with pytest.raises(
            ca.NotParquetError, match=rf"{name}.parquet \({len(content)} bytes\) is not a readable Parquet"
        ):
            ca.Reader(path)
        memory = fsspec.filesystem("memory")
        memory.pipe_file(f"/broken/{name}.parquet", content)
        with pytest.raises(ca.NotParquetError, match=f"{name}.parquet"):
            ca.Reader(f"memory://broken/{name}.parquet")
        memory.rm("/broken", recursive=True)


def test_a_damaged_row_group_names_file_and_row_group(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    write_rows(path, [1000] * 4, compression="zstd")
    index = ca.BlockIndex.build(path)
    offset = pq.read_metadata(path).row_group(2).column(0).data_page_offset
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 200)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    reader = ca.Reader(index, shuffle="none", batch_size=100, threads=2)
    rows = 0
    with pytest.raises(ca.ReadError, match=r"data\.parquet, row group 2, column 'id': "):
        for batch in reader:
            rows += batch.num_rows
    assert rows == 2000, "what was read before is delivered"


@pytest.mark.parametrize("how", ["replaced", "cut", "gone"])
def test_a_file_that_changed_since_it_was_indexed(tmp_path: Path, how: str) -> None:
    path = tmp_path / "data.parquet"
    write_rows(path, [100] * 4)
    reader = ca.Reader(path, batch_size=50)
    assert sum(b.num_rows for b in reader) == 400
    if how == "replaced":
        write_rows(path, [100] * 5)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:500])
    else:
        path.unlink()
    with pytest.raises(ca.SourceChangedError, match=r"data\.parquet.*(changed|gone) since it was indexed"):
        list(reader)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch_size": 0}, "batch_size=0 must be a whole number of at least 1"),
        ({"batch_size": 2.5}, "batch_size=2.5"),
        ({"rank": 4, "world_size": 4}, r"rank=4 must be in \[0, world_size=4\)"),
        ({"rank": -1}, r"rank=-1 must be in \[0, world_size=1\)"),
        ({"world_size": 0}, "world_size=0 must be at least 1"),
        ({"worker": 2, "num_workers": 2}, r"worker=2 must be in \[0, num_workers=2\)"),
        (
            {"memory": "1 GiB", "buffer_blocks": 3},
            "memory='1 GiB' and buffer_blocks=3 each set the buffer: give only one",
        ),
        ({"buffer_blocks": 3, "buffer_fraction": 0.1}, "give only one"),
        ({"buffer_fraction": 1.5}, r"buffer_fraction=1.5 must be in \(0, 1\]"),
        ({"buffer_blocks": 0}, "buffer_blocks=0 must be at least 1"),
        ({"memory": "lots"}, "memory='lots' must be bytes"),
        ({"memory": -1}, "memory=-1"),
        ({"memory": 100}, "memory of 100 B over 1 streams holds 0 blocks a stream.*give memory="),
        ({"memory": "1 kB", "shuffle": "epoch"}, "shuffle='epoch' needs"),
        ({"buffer_blocks": 2, "shuffle": "once"}, "shuffle='once' needs"),
        ({"buffer_blocks": 2, "streams": 4}, "holds 0 blocks a stream.*needs 1: give buffer_blocks=4 or more"),
        ({"buffer_fraction": 0.01}, "buffer_fraction of 0 blocks.*give buffer_blocks=1 or more"),
        ({"streams": 1000}, "streams=1000 must not exceed the epoch's 5 batches"),
        ({"shuffle": "sorted"}, "shuffle='sorted' must be True, False, a Strategy, or one of: none, once"),
        ({"seed": -1}, r"seed=-1 must be a whole number in \[0, 2\*\*32\)"),
        ({"seed": 2**32}, "seed=4294967296"),
        ({"threads": 0}, "threads=0"),
        ({"columns": "id"}, r"columns='id' must be a list of names: give columns=\['id'\]"),
        ({"block_bytes": 0}, "block_bytes=0"),
    ],
)
def test_bad_options(ragged: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(ca.OptionError, match=said) as caught:
        ca.Reader(ragged, **{"batch_size": 64, **options})
    assert isinstance(caught.value, ValueError)


def test_a_mistyped_keyword(ragged: Path) -> None:
    for data in (ragged, ca.BlockIndex.build(ragged), ArraySource([10])):
        with pytest.raises(TypeError, match=r"unexpected keywords \['batchsize'\]"):
            ca.Reader(data, batchsize=3)


def test_columns(ragged: Path) -> None:
    with pytest.raises(
        ca.ColumnNotFoundError, match=r"columns \['y'\] are in no file of .*: it has id, x, name, label"
    ):
        ca.Reader(ragged, columns=["id", "y"])
    with pytest.raises(ca.ColumnNotFoundError, match="none twice"):
        ca.Reader(ragged, columns=["id", "id"])
    with pytest.raises(ca.ColumnNotFoundError, match="at least one"):
        ca.Reader(ragged, columns=[])
    assert ca.Reader(ragged, columns=["label", "id"]).schema.names == ["label", "id"]
    with pytest.raises(ca.OptionError, match="columns= goes with a path"):
        ca.Reader(ArraySource([10]), columns=["id"])


def test_no_rows_at_all(tmp_path: Path) -> None:
    reader = ca.Reader(write_dataset(tmp_path / "none", [[], [0], [0, 0]]))
    assert list(reader) == []
    assert (len(reader), reader.num_rows, reader.epoch) == (0, 0, 1)
    assert reader.schema.names == ["id", "x", "name", "label"]


def test_one_row(tmp_path: Path) -> None:
    reader = ca.Reader(write_dataset(tmp_path / "one", [[1]]))
    assert ids_of(iter(reader)) == [[0]]


def test_one_file_feeds_64_parts(tmp_path: Path) -> None:
    path = tmp_path / "one.parquet"
    write_rows(path, [6400])
    out = [ids_of(iter(ca.Reader(path, batch_size=10, rank=r, world_size=64, threads=1))) for r in range(64)]
    assert all(len(batches) == 10 for batches in out)
    assert sorted(i for batches in out for b in batches for i in b) == list(range(6400))


def test_many_types_survive(tmp_path: Path) -> None:
    rows = 500
    table = pa.table(
        {
            "bool": pa.array([i % 3 == 0 for i in range(rows)]),
            "big": pa.array([2**60 + i for i in range(rows)]),
            "text": pa.array([None if i % 5 == 0 else "é" * (i % 9) for i in range(rows)]),
            "dictionary": pa.array([f"kind {i % 4}" for i in range(rows)]).dictionary_encode(),
            "list": pa.array([list(range(i % 4)) if i % 6 else None for i in range(rows)]),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.arange(rows * 3)), 3),
            "struct": pa.array([{"a": i, "b": [str(i)]} for i in range(rows)]),
            "map": pa.array([[("k", i)] for i in range(rows)], pa.map_(pa.string(), pa.int64())),
            "time": pa.array(range(rows), pa.timestamp("us", "UTC")),
            "decimal": pa.array(range(rows), pa.int64()).cast(pa.decimal128(30, 2)),
            "null": pa.nulls(rows),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=37)
    for name in ("none", "corgipile"):
        reader = ca.Reader(tmp_path, shuffle=name, batch_size=16, buffer_blocks=3)
        found = pa.Table.from_batches(list(reader))
        expected = table.take(reader.plan(0).row_ids())
        for column in table.column_names:
            assert found[column].to_pylist() == expected[column].to_pylist(), column


def test_units() -> None:
    assert parse_bytes("x", "512 MiB") == 512 * 2**20
    assert parse_bytes("x", "2GB") == 2_000_000_000
    assert parse_bytes("x", "1.5 kB") == 1500
    assert parse_bytes("x", "100") == parse_bytes("x", 100) == parse_bytes("x", np.int64(100)) == 100
    assert [show_bytes(n) for n in (5, 2048, 7.6 * 2**20, 3 * 2**40)] == ["5 B", "2.0 KiB", "7.6 MiB", "3.0 TiB"]


def test_secrets_are_redacted() -> None:
    assert redact("s3://key:secret@bucket/x") == "s3://***@bucket/x"
    assert redact("https://host/x.parquet?X-Amz-Signature=abc") == "https://host/x.parquet?***"
    secret = {"key": "AKIASECRET", "secret": "HUSH"}
    with pytest.raises(ca.CorgiArrowError) as caught:
        ca.Reader("nosuch://user:HUSH@x", storage_options=secret)
    assert "HUSH" not in str(caught.value)


def test_ranges_are_joined_over_small_holes_and_long_ones_cut() -> None:
    assert cut([(50, 60), (0, 10), (12, 20)], hole=5, most=100) == [(0, 20), (50, 60)]
    assert cut([(0, 10), (10, 20), (20, 30)], hole=5, most=20) == [(0, 20), (20, 30)]
    assert cut([(0, 100)], hole=5, most=30) == [(0, 34), (34, 68), (68, 100)]
    assert cut([], hole=5, most=20) == []


@given(
    st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 300)), max_size=20), st.integers(0, 50), st.integers(1, 400)
)
def test_every_range_can_be_read_from_the_requests(chunks: list[tuple[int, int]], hole: int, most: int) -> None:
    content = bytes(n * 7 % 251 for n in range(3300))
    chunks = [(start, start + length) for start, length in chunks]
    requests = cut(chunks, hole, most)
    assert all(a < b for a, b in requests)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(requests)), "no byte is fetched twice"
    assert all(b - a <= max(1.5 * most, 2) for a, b in requests)
    file = FetchedRanges(requests, [content[a:b] for a, b in requests], len(content))
    for start, stop in chunks:
        file.seek(start)
        assert bytes(file.read(stop - start)) == content[start:stop]
    wanted = {n for start, stop in chunks for n in range(start, stop)}
    fetched = {n for start, stop in requests for n in range(start, stop)}
    assert wanted <= fetched
    assert len(fetched - wanted) <= hole * max(len(chunks) - 1, 0)


def test_fetched_ranges_know_no_other_bytes() -> None:
    file = FetchedRanges([(10, 20)], [b"0123456789"], 100)
    file.seek(12)
    assert bytes(file.read(3)) == b"234"
    assert file.tell() == 15
    with pytest.raises(ca.ReadError, match="bytes 15 to 25"):
        file.read(10)
    assert file.readable()
    assert file.seekable()


def test_write_atomic_leaves_the_old_file_on_failure(tmp_path: Path) -> None:
    target = tmp_path / "index"
    target.write_text("old")

    def fail(beside: Path) -> None:
        beside.write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_atomic(target, fail)
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["index"]

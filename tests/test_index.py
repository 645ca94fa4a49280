"""The block index: merging, saving, loading."""

import pickle
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import RAGGED, RAGGED_ROWS, ids_of, write_dataset
from hypothesis import given
from hypothesis import strategies as st

import corgiarrow as ca
from corgiarrow.footers import FooterCache
from corgiarrow.index import MIN_BLOCKS
from corgiarrow.schemas import Column, FileLayout, fixed_bytes
from corgiarrow.storage import FileInfo, Storage

SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.int64())])
A, B = (Column(field, (field.name,)) for field in SCHEMA)


def synthetic(files: list[list[int]], disk: list[int] | None = None) -> ca.BlockIndex:
    """An index of row groups that need no file."""
    counts = [len(groups) for groups in files]
    rows = np.array([r for groups in files for r in groups], dtype=np.int64)
    return ca.BlockIndex(
        storage=Storage("/nowhere", "/nowhere", {}),
        schema=SCHEMA,
        layouts=(FileLayout(SCHEMA, ("a", "b")),),
        file_layout=np.zeros(len(files), dtype=np.int64),
        files=tuple(FileInfo(f"{n}.parquet", 1, "") for n in range(len(files))),
        group_file=np.repeat(np.arange(len(files)), counts),
        group_number=np.concatenate([np.arange(c) for c in counts]),
        group_rows=rows,
        group_disk_bytes=np.array(disk, dtype=np.int64) if disk else rows * 16,
        variable_bytes={},
        disk_share={"a": 0.5, "b": 0.5},
    )


@given(st.lists(st.lists(st.integers(0, 50), max_size=6), min_size=1, max_size=5), st.integers(1, 10_000))
def test_few_row_groups_are_never_merged(files: list[list[int]], block_bytes: int) -> None:
    index = synthetic(files)
    first, stop = index.merge([A], block_bytes, index.group_rows)
    assert first.tolist() == [g for g, rows in enumerate(index.group_rows) if rows]
    assert all(index.group_rows[a + 1 : b].sum() == 0 for a, b in zip(first, stop, strict=True))


@given(st.integers(1, 20), st.integers(1000, 6000), st.integers(100, 40_000), st.integers(0, 2**31))
def test_merging_keeps_the_rows_and_enough_blocks(files: int, groups: int, block_bytes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cut = np.sort(rng.integers(0, groups, files - 1))
    rows = rng.integers(0, 100, groups)
    index = synthetic([part.tolist() for part in np.split(rows, cut)])
    first, stop = index.merge([A], block_bytes, index.group_rows)
    held = np.flatnonzero(index.group_rows)
    covered = np.concatenate([np.arange(a, b) for a, b in zip(first, stop, strict=True)])
    assert set(held) <= set(covered)
    assert len(covered) == len(set(covered.tolist()))
    assert len(first) >= min(MIN_BLOCKS, len(held))
    assert (index.group_file[first] == index.group_file[stop - 1]).all(), "a block lies in one file"
    several = index.group_rows[first] < np.add.reduceat(index.group_rows, first)
    sizes = np.add.reduceat(index.group_rows, first) * 8
    assert (sizes[several] <= block_bytes + 100 * 8).all(), "merged blocks stay near the goal"


def test_only_the_columns_read_count_for_merging() -> None:
    index = synthetic([[10] * 8000])
    one, two = (index.merge(columns, 640, index.group_rows)[0] for columns in ([A], [A, B]))
    assert len(one) * 2 == len(two)


def test_merged_blocks_read_like_row_groups(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "small", [[2, 3, 0, 1] * 300, [5] * 500])
    reader = ca.Reader(folder, batch_size=64, block_bytes=4_000, streams=4)
    merged = len(reader.source.block_rows)
    assert MIN_BLOCKS <= merged < 1400 - 100
    assert sorted(i for b in ids_of(iter(reader)) for i in b) == list(range(reader.num_rows))


def test_saved_and_loaded(ragged: Path, tmp_path: Path) -> None:
    index = ca.BlockIndex.build(ragged)
    path = tmp_path / "index.arrow"
    index.save(path)
    loaded = ca.BlockIndex.load(path)
    assert loaded.fingerprint == index.fingerprint
    assert loaded.schema == index.schema
    assert loaded.files == index.files
    assert ids_of(iter(ca.Reader(loaded, batch_size=8))) == ids_of(iter(ca.Reader(ragged, batch_size=8)))
    assert [p.name for p in tmp_path.iterdir()] == ["index.arrow"]
    assert pickle.loads(pickle.dumps(index)).fingerprint == index.fingerprint


def test_a_saved_index_is_checked_on_use(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "data", [[10], [10]])
    ca.BlockIndex.build(folder).save(tmp_path / "index")
    write_dataset(folder, [[10], [12]])
    with pytest.raises(ca.SourceChangedError, match=r"part-00[01]\.parquet"):
        list(ca.Reader(ca.BlockIndex.load(tmp_path / "index")))


def test_an_index_of_a_given_file_system_is_found_again(ragged: Path, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(ragged), "/given", recursive=True)
    try:
        ca.BlockIndex.build("/given", filesystem=memory).save(tmp_path / "index")
        assert sum(b.num_rows for b in ca.Reader(ca.BlockIndex.load(tmp_path / "index"))) == RAGGED_ROWS
    finally:
        memory.rm("/given", recursive=True)


def test_not_an_index(tmp_path: Path) -> None:
    with pytest.raises(ca.IndexFormatError, match="no such file"):
        ca.BlockIndex.load(tmp_path / "none")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(ca.IndexFormatError, match="not a saved block index"):
        ca.BlockIndex.load(tmp_path / "text")
    table = pa.table({"a": [1]})
    with pa.OSFile(str(tmp_path / "other"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(ca.IndexFormatError, match="build it again"):
        ca.BlockIndex.load(tmp_path / "other")


def test_no_credential_is_saved(ragged: Path, tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(ragged), "/secret", recursive=True)
    try:
        index = ca.BlockIndex.build("memory://secret", storage_options={"key": "HUSHKEY"})
        index.save(tmp_path / "index")
        assert b"HUSHKEY" not in (tmp_path / "index").read_bytes()
        assert "HUSHKEY" not in repr(index)
    finally:
        memory.rm("/secret", recursive=True)


def test_fingerprint_names_the_data(ragged: Path, tmp_path: Path) -> None:
    prints = {ca.BlockIndex.build(ragged).fingerprint}
    prints.add(ca.BlockIndex.build(write_dataset(tmp_path / "a", RAGGED[:-1])).fingerprint)
    prints.add(ca.BlockIndex.build(write_dataset(tmp_path / "b", [*RAGGED[:-1], [21, 8, 13]])).fingerprint)
    assert len(prints) == 3


def test_footers_are_parsed_once(ragged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = pq.read_metadata
    monkeypatch.setattr(pq, "read_metadata", lambda source: calls.append(source) or real(source))
    reader = ca.Reader(ragged, batch_size=8)
    for _ in range(3):
        assert sum(b.num_rows for b in reader) == RAGGED_ROWS
    assert len(calls) == len(RAGGED)


def test_the_footer_cache_is_bounded(ragged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corgiarrow.footers._FOOTER_CACHE_BYTES", 1)
    cache = FooterCache()
    footer = pq.read_metadata(ragged / "part-000.parquet")
    cache.put(0, footer)
    cache.put(1, footer)
    assert cache.get(0) is None
    assert cache.get(1) is footer
    assert sum(b.num_rows for b in ca.Reader(ragged, batch_size=8)) == RAGGED_ROWS


def test_widths_and_leaves() -> None:
    assert fixed_bytes(pa.list_(pa.uint8(), 784)) == 784
    assert fixed_bytes(pa.bool_()) == 1 / 8
    assert fixed_bytes(pa.string()) is None
    assert fixed_bytes(pa.struct([("a", pa.int32()), ("b", pa.float64())])) == 12
    assert fixed_bytes(pa.struct([("a", pa.string())])) is None
    assert fixed_bytes(pa.dictionary(pa.int8(), pa.string())) is None
    schema = pa.schema(
        [
            ("a", pa.int64()),
            ("b", pa.struct([("x", pa.int8()), ("y", pa.list_(pa.struct([("p", pa.int8()), ("q", pa.int8())])))])),
            ("c", pa.map_(pa.string(), pa.int64())),
            ("d", pa.list_(pa.uint8(), 3)),
        ]
    )
    layout = FileLayout(schema, ("a", "b.x", "b.y.p", "b.y.q", "c.key", "c.value", "d"))
    leaves = {name: layout.leaves(name) for name in schema.names}
    assert leaves == {"a": range(0, 1), "b": range(1, 4), "c": range(4, 6), "d": range(6, 7)}
    assert layout.leaves("e") == range(0)


def test_a_nested_column_is_read_by_its_name(tmp_path: Path) -> None:
    table = pa.table({"a.b": [1, 2], "a": [{"b": 3}, {"b": 4}], "c": [5, 6]})
    pq.write_table(table, tmp_path / "x.parquet")
    assert next(iter(ca.Reader(tmp_path, columns=["a"], shuffle="none"))).to_pydict() == {"a": [{"b": 3}, {"b": 4}]}

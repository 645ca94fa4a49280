"""Gathers that one Arrow array cannot hold, and memory over many epochs."""

import gc
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import write_dataset
from hypothesis import given
from hypothesis import strategies as st

import corgiarrow as ca
from corgiarrow import gathering

LIMIT = 300


@pytest.fixture
def low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an array hold so few bytes of text, and children of lists, that every buffer holds more."""
    monkeypatch.setattr(gathering, "MAX_EXTENT", LIMIT)


KINDS = {
    "string": (pa.string(), lambda i: "x" * (i % 9)),
    "binary": (pa.binary(), lambda i: b"y" * (i % 9)),
    "list": (pa.list_(pa.int8()), lambda i: list(range(i % 7))),
    "list of nulls": (pa.list_(pa.null()), lambda i: [None] * (i % 7)),
    "list of text": (pa.list_(pa.string()), lambda i: ["z" * (i % 3)] * (i % 5)),
    "large list of text": (pa.large_list(pa.string()), lambda i: ["z" * (i % 3)] * (i % 5)),
    "struct": (pa.struct([("p", pa.string()), ("q", pa.list_(pa.int8()))]), lambda i: {"p": "w" * (i % 9), "q": [1]}),
    "map": (pa.map_(pa.string(), pa.int8()), lambda i: [(f"key {k}", k) for k in range(i % 4)]),
    "sized list": (pa.list_(pa.string(), 2), lambda i: ["a" * (i % 9), "b"]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), lambda i: "d" * (i % 9)),
}


def some_values(name: str, rows: int) -> pa.Array:
    kind, value = KINDS[name]
    values = [None if i % 11 == 10 else value(i) for i in range(rows)]
    if name == "dictionary":
        return pa.array(values, pa.string()).dictionary_encode()
    return pa.array(values, kind)


@pytest.mark.parametrize("name", list(KINDS))
@given(
    chunk_rows=st.lists(st.integers(0, 20), min_size=1, max_size=12),
    seed=st.integers(0, 999),
    rows=st.integers(0, 80),
)
@pytest.mark.usefixtures("low_limit")
def test_rows_taken_from_bins_are_the_rows_asked_for(name: str, chunk_rows: list[int], seed: int, rows: int) -> None:
    whole = some_values(name, sum(chunk_rows))
    ends = np.cumsum(chunk_rows)
    chunks = [whole.slice(end - n, n) for n, end in zip(chunk_rows, ends, strict=True)]
    index = np.random.default_rng(seed).integers(0, max(len(whole), 1), rows if len(whole) else 0).astype(np.uint32)
    found = gathering.take_from_bins(chunks, pa.array(index), whole.type)
    assert [v for part in found for v in part.to_pylist()] == [whole[int(i)].as_py() for i in index]
    for part in found:
        part.validate(full=True)
        assert gathering.fits([part]) or len(part) == 1


@pytest.mark.parametrize("large", [False, True], ids=["within 2 GiB", "past 2 GiB"])
@pytest.mark.parametrize("inner", [pa.int8(), pa.float16(), pa.date32(), pa.int64(), pa.bool_(), pa.string()], ids=str)
@given(
    sizes=st.lists(st.one_of(st.none(), st.integers(0, 5)), min_size=1, max_size=30),
    before=st.integers(0, 9),
    cut=st.tuples(st.integers(0, 5), st.integers(0, 5)),
    null_inside=st.booleans(),
    wide=st.booleans(),
    chunk_rows=st.lists(st.integers(0, 20), min_size=1, max_size=4),
)
def test_lists_are_taken_wherever_they_lie_in_memory(
    inner: pa.DataType,
    large: bool,
    sizes: list[int | None],
    before: int,
    cut: tuple[int, int],
    null_inside: bool,
    wide: bool,
    chunk_rows: list[int],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if large:
            patch.setattr(gathering, "MAX_EXTENT", 0)
        count = before + sum(n or 0 for n in sizes)
        numbers = [None if null_inside and i % 3 == 0 else i % 100 for i in range(count)]
        children = pa.array(numbers, pa.int32()).cast(inner).slice(before)
        ends = np.cumsum([0, *(n or 0 for n in sizes)])
        kind = (pa.large_list if wide else pa.list_)(pa.field("item", inner, metadata={"of": "a field"}))
        lists = pa.Array.from_buffers(
            kind,
            len(sizes),
            [pa.array([n is not None for n in sizes]).buffers()[1], pa.py_buffer(ends.astype("i8" if wide else "i4"))],
            children=[children],
        )
        lists = lists.slice(min(cut[0], len(lists) - 1))
        lists = lists.slice(0, max(len(lists) - cut[1], 1))
        index = [np.random.default_rng(n).integers(0, len(lists), n) for n in chunk_rows]
        found = gathering.take_each(lists, pa.chunked_array([pa.array(i) for i in index]))
        for part, rows in zip([*found, gathering.take(lists, pa.array(index[0]))], [*index, index[0]], strict=True):
            part.validate(full=True)
            assert part.type.equals(kind, check_metadata=True)
            assert part.equals(lists.take(pa.array(rows)))


@pytest.mark.parametrize("name", [*KINDS, "number", "nothing"])
@given(chunk_rows=st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_rows_taken_chunk_by_chunk_keep_the_chunks(name: str, chunk_rows: list[int]) -> None:
    whole = {"number": pa.array(range(50)), "nothing": pa.nulls(50)}.get(name)
    whole = some_values(name, 50) if whole is None else whole
    index = [np.random.default_rng(n).integers(0, 50, n).astype(np.uint32) for n in chunk_rows]
    found = gathering.take_each(whole, pa.chunked_array([pa.array(i) for i in index]))
    assert [len(part) for part in found] == chunk_rows
    for part, rows in zip(found, index, strict=True):
        part.validate(full=True)
        assert part.to_pylist() == [whole[int(i)].as_py() for i in rows]


@given(st.integers(0, 40), st.integers(0, 40), st.sampled_from([pa.bool_(), pa.int8(), pa.float64()]), st.booleans())
def test_bytes_of_numbers_are_what_arrow_counts(rows: int, first: int, kind: pa.DataType, nulls: bool) -> None:
    array = pa.array([None if nulls and i % 3 == 1 else i % 2 for i in range(rows)], pa.int8()).cast(kind).slice(first)
    # Bits of a slice may begin and end inside of a byte, both of the values and of what is valid.
    assert abs(gathering.nbytes_of([array, array]) - 2 * array.nbytes) <= 2 * 3


@pytest.mark.usefixtures("low_limit")
@pytest.mark.parametrize("shuffle", ["corgipile", "epoch", "none"])
def test_a_buffer_larger_than_an_array_reads_right(tmp_path: Path, shuffle: str) -> None:
    rows = 400
    columns = {name: some_values(name, rows) for name in KINDS if name != "list of nulls"}
    table = pa.table({"id": range(rows), **columns})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=25)
    reader = ca.Reader(tmp_path, batch_size=10, shuffle=shuffle, buffer_blocks=None if shuffle == "epoch" else 8)
    found = pa.Table.from_batches(list(reader)).sort_by("id")
    assert found.to_pylist() == table.to_pylist()


def test_what_fits_is_told_from_the_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    text = pa.array(["x" * 40, "y" * 40])
    monkeypatch.setattr(gathering, "MAX_EXTENT", 100)
    assert gathering.fits([text])
    assert not gathering.fits([text, text])
    assert gathering.fits([text.slice(1), text.slice(0, 1)]), "only the rows of a slice count"
    assert not gathering.fits([pa.array([[None] * 60], pa.list_(pa.null()))] * 2), "nulls take no bytes"


def test_two_hundred_epochs_leave_nothing(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "small", [[30, 1, 17], [64, 64], [13, 8, 21]])
    reader = ca.Reader(folder, batch_size=16, buffer_blocks=3, threads=2)
    seen = []
    for epoch in range(200):
        assert sum(batch.num_rows for batch in reader) == reader.num_rows
        if epoch % 20 == 19:
            gc.collect()
            files = len(list(Path("/proc/self/fd").iterdir()))
            seen.append((pa.total_allocated_bytes(), threading.active_count(), files))
    assert len(set(seen)) == 1, seen


def test_less_is_read_ahead_when_blocks_are_larger_than_was_known(tmp_path: Path) -> None:
    """Text inside of lists repeats in the file and not in memory: each block takes many times what footers tell."""
    words = [["a word that comes again and again " * 4] * 8] * 2000
    with pq.ParquetWriter(tmp_path / "x.parquet", pa.schema([("words", pa.list_(pa.string()))])) as writer:
        for _ in range(20):
            writer.write_table(pa.table({"words": words}, schema=writer.schema))
    with ca.Reader(tmp_path, shuffle="none", memory="12 MB", batch_size=100, threads=2) as reader:
        known = int(reader.source.block_bytes.max())
        for batch in reader:
            assert batch.num_rows
        actual = reader.stats.memory_bytes / reader.stats.blocks
        assert actual > 5 * known
        assert reader.stats.peak_bytes < 12e6 + actual

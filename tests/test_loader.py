"""The loader gives what its reader gives, as arrays, in the reader's order, resumable anywhere."""

import gc
import pickle
import threading
import time
import weakref
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import write_dataset
from hypothesis import given, settings
from hypothesis import strategies as st

import corgiarrow as ca
from corgiarrow.errors import ReadError
from corgiarrow.pipeline import Pipeline
from corgiarrow.reader import Slice
from corgiarrow.sources.parquet import ParquetSource
from corgiarrow.strategies import BY_NAME

WORKERS = [0, 3]
OPTIONS: dict[str, Any] = {"nulls": {"name": "mask"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ragged row groups, some of them empty, with nulls in text."""
    return write_dataset(tmp_path_factory.mktemp("loader"), [[30, 1, 17], [], [5], [0, 40, 3], [64], [13, 8, 21]])


def doubled(arrays: dict[str, Any]) -> dict[str, Any]:
    """A transform that takes longer for some batches than for others."""
    time.sleep(int(arrays["id"][0]) % 3 * 0.0005)
    return {**arrays, "x": arrays["x"] * 2}


def listed(batch: Any) -> Any:
    return {name: (values.dtype.str, values.tolist()) for name, values in batch.items()}


def of_reader(batch: pa.RecordBatch) -> dict[str, np.ndarray]:
    """The same by pyarrow alone, for flat columns; nulls of text as empty."""
    found = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if pa.types.is_string(column.type) or pa.types.is_dictionary(column.type):
            found[name] = np.array([v or "" for v in column.to_pylist()], dtype=object)
            if name == "name":
                found["name_valid"] = column.is_valid().to_numpy(zero_copy_only=False)
        else:
            found[name] = column.to_numpy()
    return found


def assert_equal(loader: ca.Loader, reader: ca.Reader, epochs: int = 2) -> None:
    assert len(loader) == len(reader)
    for _ in range(epochs):
        wanted = [listed(of_reader(batch)) for batch in reader]
        assert [listed(batch) for batch in loader] == wanted
        assert len(wanted) == len(reader)
        assert loader.state_dict() == reader.state_dict()


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("shuffle", sorted(BY_NAME))
@pytest.mark.parametrize("streams", [1, 3])
def test_batches_are_the_readers(folder: Path, shuffle: str, workers: int, streams: int) -> None:
    for drop_last in (False, True):
        options = {"shuffle": shuffle, "batch_size": 7, "streams": streams, "drop_last": drop_last}
        if shuffle not in ("epoch", "once"):
            options["buffer_blocks"] = 2 * streams
        loader = ca.Loader(ca.Reader(folder, **options), workers=workers, **OPTIONS)
        assert_equal(loader, ca.Reader(folder, **options))


@settings(max_examples=10)
@given(st.integers(1, 16), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99), st.sampled_from(sorted(BY_NAME)))
def test_batches_of_any_size_and_part(
    folder: Path, batch_size: int, world_size: int, factor: int, seed: int, shuffle: str
) -> None:
    for rank in range(world_size):
        options = {"batch_size": batch_size, "rank": rank, "world_size": world_size, "seed": seed, "shuffle": shuffle}
        options["streams"] = world_size * factor
        loader = ca.Loader(ca.Reader(folder, **options), **OPTIONS)
        assert_equal(loader, ca.Reader(folder, **options), epochs=1)


@pytest.mark.parametrize("workers", WORKERS)
def test_provenance(folder: Path, workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 7, "provenance": True, "buffer_blocks": 3}
    assert_equal(ca.Loader(ca.Reader(folder, **options), workers=workers, **OPTIONS), ca.Reader(folder, **options))
    (row, *_) = ca.Loader(ca.Reader(folder, **options), workers=workers, ragged=["_file"], **OPTIONS)
    assert row["_file"].values.tobytes().decode().count(".parquet") == 7


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Row groups of half a megabyte, with a column of text that repeats."""
    folder = tmp_path_factory.mktemp("large")
    schema = pa.schema([("id", pa.int64()), ("text", pa.string()), ("kind", pa.string())])
    options: dict[str, Any] = {"data_page_size": 4096, "write_batch_size": 64, "use_dictionary": ["kind"]}
    with pq.ParquetWriter(folder / "a.parquet", schema, **options) as writer:
        for group in range(4):
            ids = range(group * 4000, group * 4000 + 4000 - group)
            kinds = [f"kind {i % 5} " + "of many " * 20 for i in ids]
            writer.write_table(pa.table([list(ids), [f"{i:0100}" for i in ids], kinds], schema=schema))
    return folder


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("shuffle", ["none", "corgipile"])
def test_pieces(large: Path, monkeypatch: pytest.MonkeyPatch, shuffle: str, workers: int) -> None:
    monkeypatch.setattr("corgiarrow.sources.parquet.PAGE_BYTES", 4096)
    options = {"memory": "700 kB", "batch_size": 100, "shuffle": shuffle, "columns": ["id", "text"]}
    reader = ca.Reader(large, **options)
    assert reader.plan().pieces is not None
    assert_equal(ca.Loader(ca.Reader(large, **options), workers=workers), reader, epochs=1)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("shuffle", ["none", "corgipile"])
def test_text_held_as_dictionaries(
    large: Path, monkeypatch: pytest.MonkeyPatch, shuffle: str, workers: int, early: bool
) -> None:
    """It is spelled out batch by batch where memory is scarce: then each batch is a run of rows of its own."""
    if not early:
        monkeypatch.setattr(Pipeline, "_spell_out_early", lambda *_: None)
    options = {"batch_size": 100, "shuffle": shuffle}
    reader = ca.Reader(large, **options)
    assert isinstance(reader.source, ParquetSource)
    lone = sum(part.rows.num_rows == part.stop - part.start for part in reader.slices())
    assert lone == len(reader) if not early else lone < len(reader) / 2
    reader = ca.Reader(large, **options)
    assert_equal(ca.Loader(ca.Reader(large, **options), workers=workers), reader, epochs=1)
    codes = {"kind": [f"kind {k} " + "of many " * 20 for k in range(5)]}
    for batch in ca.Loader(ca.Reader(large, **options), workers=workers, categories=codes):
        assert (batch["kind"] == batch["id"] % 5).all()


def test_workers_change_nothing(folder: Path) -> None:
    options = {"batch_size": 7, "buffer_blocks": 3}
    found = [
        [listed(b) for b in ca.Loader(ca.Reader(folder, **options), transform=doubled, workers=workers, **OPTIONS)]
        for workers in (0, 1, 3, None)
    ]
    assert found[0] == found[1] == found[2] == found[3]
    assert [b["x"][1] for b in found[0]] == [
        (b.column("x").to_numpy() * 2).tolist() for b in ca.Reader(folder, **options)
    ]


def test_transforms_run_side_by_side_and_once(folder: Path) -> None:
    names, called = set(), []

    def transform(arrays: dict[str, Any]) -> Any:
        names.add(threading.current_thread().name)
        called.append(arrays["id"].tolist())
        time.sleep(0.01)
        return arrays["id"]

    loader = ca.Loader(ca.Reader(folder, batch_size=7), transform=transform, workers=3, **OPTIONS)
    found = [ids.tolist() for ids in loader]
    assert sorted(called) == sorted(found)
    assert len(names) == 3
    assert all(name.startswith("corgiarrow-loader") for name in names)


# Resuming.


@pytest.mark.parametrize("streams", [1, 2])
def test_resume_anywhere(folder: Path, streams: int) -> None:
    """Saved with and without threads, loaded with and without."""

    def loader(workers: int) -> ca.Loader:
        reader = ca.Reader(folder, batch_size=16, buffer_blocks=4, streams=streams)
        return ca.Loader(reader, workers=workers, transform=doubled if workers else None, nulls="mask")

    def ids(batches: Iterator[Any]) -> list[list[int]]:
        return [batch["id"].tolist() for batch in batches]

    for save in WORKERS:
        whole, states = [], []
        first = loader(save)
        states.append(first.state_dict())
        for batch in first:
            whole.append(batch["id"].tolist())
            states.append(first.state_dict())
        after = ids(iter(first))
        assert len(whole) == len(first)
        assert after != whole
        for load in WORKERS:
            other = loader(load)
            for k, state in enumerate(states):
                other.load_state_dict(state)
                assert other.state_dict() == state
                assert ids(iter(other)) == (whole[k:] or after)


def test_resume_on_another_number_of_ranks(folder: Path) -> None:
    def loaders(world_size: int, workers: int) -> list[ca.Loader]:
        readers = [
            ca.Reader(folder, batch_size=3, streams=8, rank=r, world_size=world_size, buffer_blocks=8)
            for r in range(world_size)
        ]
        return [ca.Loader(reader, workers=workers, **OPTIONS) for reader in readers]

    def steps(ranks: list[ca.Loader]) -> list[list[int]]:
        return [batch["id"].tolist() for step in zip(*ranks, strict=True) for batch in step]

    wanted = steps(loaders(4, 0))
    for save, load in ((0, 3), (3, 0)):
        four = loaders(4, save)
        passes = [iter(loader) for loader in four]
        done = [next(p)["id"].tolist() for _ in range(5) for p in passes]
        states = [loader.state_dict() for loader in four]
        assert all(state == states[0] for state in states)
        for one in passes:
            one.close()  # type: ignore[attr-defined]
        two = loaders(2, load)
        for loader in two:
            loader.load_state_dict(states[0])
        assert done + steps(two) == wanted


@pytest.mark.parametrize("workers", WORKERS)
def test_break_begins_the_epoch_anew(folder: Path, workers: int) -> None:
    loader = ca.Loader(ca.Reader(folder, batch_size=7), workers=workers, **OPTIONS)
    whole = [listed(batch) for batch in loader]
    loader.set_epoch(0)
    for _ in range(2):
        for number, batch in enumerate(loader):
            assert listed(batch) == whole[number]
            if number == 3:
                break
        del batch
        assert loader.state_dict()["batches"] == 4
        assert loader.reader.epoch == 0
    assert [listed(batch) for batch in loader] == whole
    assert loader.reader.epoch == 1
    # As far as the end, though nobody asked for more: that is a whole pass.
    loader.set_epoch(0)
    assert len(list(islice(loader, len(loader)))) == len(loader)
    assert loader.reader.epoch == 1
    # With threads, the reader has come to the end long before.
    loader.set_epoch(0)
    for _ in islice(loader, len(loader) - 1):
        time.sleep(0.001)
    assert loader.reader.epoch == 0
    assert loader.state_dict()["batches"] == len(loader) - 1


@pytest.mark.parametrize("workers", WORKERS)
def test_seek_and_set_epoch(folder: Path, workers: int) -> None:
    loader = ca.Loader(ca.Reader(folder, batch_size=7), workers=workers, **OPTIONS)
    epochs = [[listed(batch) for batch in loader] for _ in range(3)]
    assert epochs[0] != epochs[1]
    loader.seek(1, 4)
    assert [listed(batch) for batch in loader] == epochs[1][4:]
    assert [listed(batch) for batch in loader] == epochs[2]
    loader.set_epoch(1)
    assert [listed(batch) for batch in loader] == epochs[1]
    loader.seek(1, len(loader))
    assert [listed(batch) for batch in loader] == epochs[2]
    passing = iter(loader)
    next(passing)
    loader.seek(0, 2)
    assert list(passing) == [], "a pass from which the loader was moved away has ended"
    assert [listed(batch) for batch in loader] == epochs[0][2:]


@pytest.mark.parametrize("workers", WORKERS)
def test_the_older_of_two_passes_is_closed(folder: Path, workers: int) -> None:
    loader = ca.Loader(ca.Reader(folder, batch_size=7), workers=workers, **OPTIONS)
    whole = [listed(batch) for batch in ca.Loader(ca.Reader(folder, batch_size=7), **OPTIONS)]
    older = iter(loader)
    assert listed(next(older)) == whole[0]
    newer = iter(loader)
    assert listed(next(newer)) == whole[0]
    assert list(older) == []
    assert loader.state_dict()["batches"] == 1
    assert [listed(batch) for batch in newer] == whole[1:]
    # Also where the older one had read everything that there is.
    small = ca.Loader(ca.Reader(folder, batch_size=101), workers=workers, **OPTIONS)
    older = iter(small)
    next(older)
    time.sleep(0.05)
    direct = iter(small.reader)
    next(direct)
    assert list(older) == []
    assert small.state_dict()["batches"] == 1
    del direct
    small.close()


@pytest.mark.parametrize("workers", WORKERS)
def test_close(folder: Path, workers: int) -> None:
    with ca.Loader(ca.Reader(folder, batch_size=7), workers=workers, **OPTIONS) as loader:
        passing = iter(loader)
        next(passing)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("corgiarrow-")]
    assert list(passing) == []
    assert loader.state_dict()["batches"] == 1
    loader.close()
    never_begun = iter(loader)
    loader.close()
    assert list(never_begun) == []
    copy = pickle.loads(pickle.dumps(loader))
    assert [listed(b) for b in copy] == [listed(b) for b in loader]


# Errors.


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("fails_at", [0, 3, 22])
def test_an_exception_in_a_transform(folder: Path, workers: int, fails_at: int) -> None:
    wanted = [batch.column("id").to_pylist() for batch in ca.Reader(folder, batch_size=9)]
    assert len(wanted) == 23

    def transform(arrays: dict[str, Any]) -> Any:
        if arrays["id"].tolist() == wanted[fails_at]:
            raise KeyError("mine")
        return arrays["id"].tolist()

    loader = ca.Loader(ca.Reader(folder, batch_size=9), transform=transform, workers=workers, **OPTIONS)
    found = []
    with pytest.raises(KeyError, match="mine"):
        for ids in loader:
            found.append(ids)
    assert found == wanted[:fails_at]
    assert (loader.state_dict()["epoch"], loader.state_dict()["batches"]) == (0, fails_at)
    assert not [t.name for t in threading.enumerate() if t.name.startswith("corgiarrow-")]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_value_that_does_not_fit_raises_with_its_batch(tmp_path: Path, workers: int) -> None:
    """What lies before it is delivered, though all rows are converted at once; what nobody reads is no error."""
    table = pa.table({"i": [*range(40), None], "big": [1] * 35 + [2**60 + 1] * 6, "c": ["a"] * 33 + ["b"] * 8})
    pq.write_table(table, tmp_path / "a.parquet")
    for options, good in (
        ({"columns": ["i"]}, 4),
        ({"columns": ["big"], "dtype": {"big": "f8"}}, 3),
        ({"columns": ["c"], "categories": {"c": ["a"]}}, 3),
    ):
        reader = ca.Reader(tmp_path, columns=options.pop("columns"), batch_size=10, shuffle=False)
        loader = ca.Loader(reader, workers=workers, **options)
        found = []
        with pytest.raises(ca.ConversionError):
            for batch in loader:
                found.append(batch)
        assert len(found) == good
        assert loader.state_dict()["batches"] == good
    dropping = ca.Reader(tmp_path, columns=["i"], batch_size=10, shuffle=False, drop_last=True)
    assert [b["i"].tolist() for b in ca.Loader(dropping, workers=workers)] == np.arange(40).reshape(4, 10).tolist()


@pytest.mark.parametrize("workers", WORKERS)
def test_what_was_read_before_a_fault_is_delivered(tmp_path: Path, workers: int) -> None:
    pq.write_table(pa.table({"id": np.arange(40)}), tmp_path / "a.parquet", row_group_size=20, write_page_checksum=True)
    where = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(1).column(0)
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    data[(where.dictionary_page_offset or where.data_page_offset) + where.total_compressed_size - 3] ^= 255
    (tmp_path / "a.parquet").write_bytes(data)
    loader = ca.Loader(ca.Reader(tmp_path, batch_size=5, shuffle=False), workers=workers)
    found = []
    with pytest.raises(ReadError):
        for batch in loader:
            found.append(batch["id"].tolist())
    assert found == np.arange(20).reshape(4, 5).tolist()
    assert loader.state_dict()["batches"] == 4


@pytest.mark.parametrize("workers", [-1, 1.5, True, "2"])
def test_workers_out_of_bounds(folder: Path, workers: Any) -> None:
    with pytest.raises(ca.OptionError, match=r"workers=.* must be a whole number of at least 0"):
        ca.Loader(ca.Reader(folder), workers=workers)


def test_options_reach_the_converter(folder: Path) -> None:
    with pytest.raises(ca.ColumnNotFoundError, match=r"pad= names \['z'\]"):
        ca.Loader(ca.Reader(folder), pad={"z": 3})
    assert list(ca.Loader(ca.Reader(folder), nulls="mask").spec)[:2] == ["id", "id_valid"]


# Memory.


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("shuffle", ["none", "corgipile"])
def test_nothing_stays(large: Path, shuffle: str, workers: int) -> None:
    gc.collect()
    before = pa.default_memory_pool().bytes_allocated()
    loader = ca.Loader(ca.Reader(large, shuffle=shuffle, batch_size=100, threads=2), workers=workers)
    for _ in range(2):
        for batch in loader:
            assert len(batch["id"])
        del batch
        assert pa.default_memory_pool().bytes_allocated() == before
    for _ in range(3):
        next(iter(loader))
    gc.collect()  # A read that was cut short leaves the frames of its error.
    assert pa.default_memory_pool().bytes_allocated() == before


@pytest.mark.parametrize("shuffle", ["none", "corgipile"])
def test_rows_that_were_delivered_do_not_stay(large: Path, monkeypatch: pytest.MonkeyPatch, shuffle: str) -> None:
    """Of the runs of rows that batches are made of, one is held, and none for the sake of the next."""
    slices = ca.Reader.slices
    runs: list[weakref.ref[np.ndarray]] = []
    alive: list[int] = []

    def watched(reader: ca.Reader) -> Iterator[Slice]:
        original, copy = None, None
        for part in slices(reader):
            if part.rows is not original:
                del copy
                original, values = part.rows, part.rows.column(0).to_numpy().copy()
                runs.append(weakref.ref(values))
                copy = pa.record_batch([pa.array(values)], names=["id"])
                del values
            alive.append(sum(run() is not None for run in runs))
            yield part._replace(rows=copy)

    monkeypatch.setattr(ca.Reader, "slices", watched)
    loader = ca.Loader(ca.Reader(large, columns=["id"], shuffle=shuffle, batch_size=100, buffer_blocks=2), workers=0)
    for batch in loader:
        assert batch["id"].base is not None, "it shares the run's memory"
        del batch
    assert len(runs) > 3
    assert max(alive) == 1

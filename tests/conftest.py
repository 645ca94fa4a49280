"""Shared helpers: small datasets, sources without files, and what every pass must satisfy."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import corgiarrow as ca
from corgiarrow.storage import Traffic

if TYPE_CHECKING:
    from servers import Postgres

settings.register_profile(
    "corgiarrow", deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("corgiarrow")


def half_floats() -> st.SearchStrategy[float]:
    """Every float of 16 bits: Hypothesis itself draws wider ones, and throws most of them away."""
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    return st.sampled_from([*every[~np.isnan(every)].tolist(), float("nan")])


def write_rows(path: Path, group_rows: Sequence[int], first: int = 0, **options: object) -> int:
    """Write one file with row groups of the given sizes; column `id` counts on from `first`; return the next id."""
    schema = pa.schema([("id", pa.int64()), ("x", pa.float32()), ("name", pa.string()), ("label", pa.int32())])
    with pq.ParquetWriter(path, schema, **options) as writer:
        for rows in group_rows:
            writer.write_table(some_rows(first, rows, schema))
            first += rows
    return first


def some_rows(first: int, rows: int, schema: pa.Schema) -> pa.Table:
    ids = np.arange(first, first + rows)
    names = [None if i % 7 == 0 else f"row {i}" for i in ids]
    return pa.table([ids, (ids * 0.5).astype(np.float32), names, (ids // 10).astype(np.int32)], schema=schema)


def write_dataset(folder: Path, files: Sequence[Sequence[int]]) -> Path:
    """Write a folder of files, each with row groups of the given sizes."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, groups in enumerate(files):
        first = write_rows(folder / f"part-{number:03}.parquet", groups, first)
    return folder


RAGGED = [[30, 1, 17], [], [5], [0, 40, 0, 3], [64, 64], [1], [0], [13, 8, 21]]
"""Row groups of files: ragged, tiny, empty ones, a file without row groups."""
RAGGED_ROWS = sum(sum(groups) for groups in RAGGED)


@pytest.fixture(scope="session")
def ragged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("ragged"), RAGGED)


def until(condition: Callable[[], Any], seconds: float = 20) -> Any:
    """Ask again and again until something is so."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, condition
        time.sleep(0.01)
    return found


def ids_of(batches: Iterator[pa.RecordBatch]) -> list[list[int]]:
    """The column `id` of each batch."""
    return [batch.column("id").to_pylist() for batch in batches]


class ArraySource:
    """A block source without files: block b's rows are counted through all blocks."""

    schema = pa.schema([pa.field("id", pa.int64())])
    largest_column = 1.0
    cursor_bytes = None
    piece_factor = 0.0

    def __init__(self, block_rows: Sequence[int]):
        self.block_rows = np.array(block_rows, dtype=np.int64)
        self.block_bytes = self.block_rows * 8
        self.decode_bytes = np.zeros_like(self.block_rows)
        self.fingerprint = f"array of {len(block_rows)}"
        self.first = np.cumsum(self.block_rows) - self.block_rows
        self.reads: list[tuple[int, int, int]] = []

    def session(self, pieces: object = None, **options: object) -> "ArraySession":
        return ArraySession(self)

    def locate(self, row_ids: np.ndarray) -> pa.RecordBatch:
        raise NotImplementedError

    def describe(self, block: int) -> str:
        return f"block {block}"

    def close(self) -> None:
        pass


class ArraySession:
    traffic = Traffic()
    fetch_s = waited_s = 0.0
    held_bytes = 0

    def __init__(self, source: ArraySource):
        self.source = source
        self.schema = source.schema

    def read(self, block: int, start: int, stop: int) -> pa.Table:
        self.source.reads.append((block, start, stop))
        first = self.source.first[block]
        return pa.table([np.arange(first + start, first + stop)], schema=self.source.schema)

    def fetch_bytes(self, block: int, start: int, stop: int) -> int:
        return 0

    def bytes_beside(self, block: int, nbytes: int) -> int:
        return 0

    def expect(self, block: int) -> None:
        pass

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture(scope="session")
def postgres() -> Iterator["Postgres"]:
    """One server for all tests of a process: each has tables of its own."""
    from servers import postgres_server

    with postgres_server() as server:
        yield server


@pytest.fixture(autouse=True, scope="session")
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing is kept in the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Every test must end with the threads of its passes ended."""
    yield
    left = [t.name for t in threading.enumerate() if t.name.startswith("corgiarrow-")]
    assert not left, left


def all_parts(
    data: object, world_size: int, num_workers: int = 1, epoch: int = 0, **options: object
) -> list[list[int]]:
    """Batches of one epoch read step by step, and within a step rank by rank, as loader workers deliver them."""
    readers = [
        [
            ca.Reader(data, rank=r, world_size=world_size, worker=w, num_workers=num_workers, threads=1, **options)
            for w in range(num_workers)
        ]
        for r in range(world_size)
    ]
    per_rank = []
    for rank in readers:
        batches = [ids_of(iter(reader)) for reader in rank]
        total = sum(len(b) for b in batches)
        per_rank.append([batches[t % num_workers][t // num_workers] for t in range(total)])
    assert len({len(b) for b in per_rank}) == 1, "ranks must get equal steps"
    return [rank[t] for t in range(len(per_rank[0])) for rank in per_rank]

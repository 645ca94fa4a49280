"""Bytes that come from a storage in any order, at any time."""

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from conftest import RAGGED, until, write_dataset, write_rows
from fsspec.asyn import AsyncFileSystem
from hypothesis import given, settings
from hypothesis import strategies as st

import corgiarrow as ca


class Jittery(AsyncFileSystem):
    """A folder of this machine as a remote file system: each answer takes another time."""

    protocol = "jittery"
    cachable = False

    def __init__(self, folder: str, seed: int, slowest_s: float = 0.02, **options: Any):
        super().__init__(folder, seed, slowest_s, **options)
        self.folder, self.random, self.slowest_s = Path(folder), Random(seed), slowest_s
        self.under_way = self.most_under_way = 0

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        place = self.folder / path
        if place.is_dir():
            return {"name": path, "type": "directory", "size": 0}
        if not place.is_file():
            raise FileNotFoundError(path)
        return {"name": path, "type": "file", "size": place.stat().st_size, "ETag": "constant"}

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        names = sorted(str(p.relative_to(self.folder)) for p in (self.folder / path).iterdir())
        return [await self._info(name) for name in names] if detail else names

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(self.random.random() * self.slowest_s)
            return (self.folder / path).read_bytes()[start:end]
        finally:
            self.under_way -= 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("jittery")
    write_dataset(root / "ragged", RAGGED)
    (root / "large").mkdir()
    options = {"use_dictionary": False, "compression": "none", "data_page_size": 4096}
    first = write_rows(root / "large" / "a.parquet", [9_000, 8_000, 9_500, 400], 0, **options)
    write_rows(root / "large" / "b.parquet", [9_000, 9_000, 8_000, 9_000], first, **options)
    return root


@settings(max_examples=12)
@given(st.integers(0, 2**20), st.integers(1, 3), st.sampled_from(["none", "block", "corgipile"]), st.integers(0, 8))
def test_the_order_does_not_depend_on_when_bytes_come(
    folder: Path, seed: int, threads: int, shuffle: str, begin: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("corgiarrow.sources.parquet.PAGE_BYTES", 4096)
        for name, options in (("ragged", {"buffer_blocks": 4}), ("large", {"memory": "300 kB"})):
            given_options = {"batch_size": 50, "shuffle": shuffle, "seed": seed, "threads": threads, **options}
            local = ca.Reader(folder / name, **given_options)
            remote = ca.Reader(name, filesystem=Jittery(str(folder), seed), **given_options)
            assert (remote.plan().pieces is not None) == (name == "large")
            assert remote.plan().open_blocks < 4
            local.seek(0, min(begin, len(local)))
            remote.seek(0, min(begin, len(remote)))
            assert list(remote) == list(local)


def test_a_piece_that_comes_before_its_turn_waits_for_no_other(folder: Path) -> None:
    """Open blocks whose next pieces are fetched are kept beside the one that is read, also past their number."""
    source = ca.Reader("large", filesystem=Jittery(str(folder), 0), columns=["id"], block_bytes=1).source
    session = source.session(np.full(len(source.block_rows), 2), open_blocks=1)

    def fetched(block: int, start: int, stop: int) -> None:
        session.fetch(block, start, stop).result(timeout=20)

    fetched(0, 0, 4500)
    assert session.read(0, 0, 4500)["id"].to_pylist() == list(range(4500))
    fetched(0, 4500, 9000)
    fetched(1, 0, 4000)
    assert session.read(1, 0, 4000)["id"].to_pylist() == list(range(9000, 13_000))
    requests = session.traffic.requests
    assert session.read(0, 4500, 9000)["id"].to_pylist() == list(range(4500, 9000))
    assert session.traffic.requests == requests, "what was fetched for it is there"
    session.close()


def test_many_requests_are_under_way_and_none_when_a_pass_is_left(folder: Path) -> None:
    fs = Jittery(str(folder), 0)
    reader = ca.Reader("large", filesystem=fs, buffer_blocks=2, block_bytes=1, batch_size=50)
    next(iter(reader))
    reader.close()
    assert fs.most_under_way > 1
    fs.slowest_s = 1000.0
    batches = ca.Reader(reader.source.index, buffer_blocks=2, batch_size=50)
    under_way = batches.source.session().fetch(0, 0, 10)
    until(lambda: fs.under_way > 0)
    under_way.cancel()
    until(lambda: fs.under_way == 0)

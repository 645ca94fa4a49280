"""Bytes of remote Parquet files for one pass: fetched ahead of the decoder, or in windows beside it."""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

import pyarrow.parquet as pq

from corgiarrow.errors import ReadError
from corgiarrow.footers import parse_footer, tail_range, whole_tail_range
from corgiarrow.index import BlockIndex
from corgiarrow.sources.decode import Decoder
from corgiarrow.sources.ranges import FetchedRanges, Windows
from corgiarrow.storage import Ranges, Traffic, cut

T = TypeVar("T")


class RemoteBytes:
    """Column chunks of an index's files. Threads may call it at the same time.

    Parameters
    ----------
    index
        The files, each of which must be the indexed one.
    decoder
        The columns.
    """

    def __init__(self, index: BlockIndex, decoder: Decoder):
        self._index = index
        self._decoder = decoder
        self._fetcher = index.storage.fetcher
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        """For each file who reads its footer or asks whether it is unchanged."""
        self._checked: set[int] = set()
        self._lock = threading.Lock()
        self._under_way: set[Future[Any]] = set()
        self._stopped = False
        self._fetched: dict[tuple[int, int], FetchedRanges] = {}
        self._windows: dict[int, Windows] = {}
        self.traffic = Traffic()
        self.fetch_s = 0.0
        self.waited_s = 0.0

    def stop(self) -> None:
        """Break off what is under way; what is asked for from now on raises a ReadError."""
        with self._lock:
            self._stopped = True
            under_way = list(self._under_way)
        for future in under_way:
            future.cancel()

    def close(self) -> None:
        """Let go of what was fetched and not opened."""
        self._fetched.clear()
        self._windows.clear()

    def start(self, key: tuple[int, int], file: int, row_groups: Sequence[int], what: str) -> "Future[None]":
        """Begin to fetch row groups of a file; :meth:`opened` gives them under the same key.

        Parameters
        ----------
        key
            What tells them from others that are fetched in this pass.
        file, row_groups
            Number of the file, and of the row groups in it.
        what
            Name of what is fetched, for errors.
        """

        async def keep() -> None:
            self._fetched[key] = await self._chunks(file, row_groups, what)

        return self._begun(keep())

    def opened(self, key: tuple[int, int], file: int, row_groups: Sequence[int], what: str) -> FetchedRanges:
        """Return what was fetched under a key; it is fetched now where it was not."""
        return self._fetched.pop(key, None) or self._awaited(self._chunks(file, row_groups, what))

    def start_rows(self, block: int, file: int, row_groups: Sequence[int], row: int, what: str) -> "Future[None]":
        """Begin to fetch what reading all rows before `row` takes, of row groups that are read from their first row on.

        Parameters
        ----------
        block
            What tells them from others.
        file, row_groups
            Number of the file, and of the row groups in it.
        row
            A row, counted through the row groups.
        what
            Name of what is fetched, for errors.
        """

        async def advance() -> None:
            footer = await self._footer(file, what)
            windows = self._windows_of(block, file, row_groups, footer, row, what)
            ranges = windows.missing(row)
            windows.add(ranges, await self._ranges(file, ranges, what))

        return self._begun(advance())

    def windows(self, block: int, file: int, row_groups: Sequence[int], step_rows: int, what: str) -> Windows:
        """Return the windows of row groups, with what was fetched ahead; see :meth:`start_rows`."""
        return self._windows_of(block, file, row_groups, self._index.footer(file), step_rows, what)

    def trim(self, block: int) -> int:
        """Let go of what was read of row groups; return the bytes that are left of what was fetched for it."""
        windows = self._windows.get(block)
        if windows is None:
            return 0
        windows.trim()
        return windows.held_bytes

    def forget(self, block: int) -> None:
        """Let go of the windows of row groups."""
        self._windows.pop(block, None)

    def _windows_of(
        self, block: int, file: int, row_groups: Sequence[int], footer: pq.FileMetaData, step_rows: int, what: str
    ) -> Windows:
        with self._lock:
            if block not in self._windows:

                def fetch(ranges: Ranges) -> list[bytes]:
                    return self._awaited(self._ranges(file, ranges, what))

                chunks = self._decoder.chunks(file, footer, row_groups)
                self._windows[block] = Windows(chunks, self._index.files[file].size, fetch, step_rows)
            return self._windows[block]

    def _begun(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        with self._lock:
            if self._stopped:
                work.close()
                raise ReadError("reading was stopped")
            future = self._fetcher.submit(work)
            self._under_way.add(future)
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: "Future[Any]") -> None:
        with self._lock:
            self._under_way.discard(future)

    def _awaited(self, work: Coroutine[Any, Any, T]) -> T:
        began = time.perf_counter()
        try:
            return self._begun(work).result()
        except CancelledError:
            raise ReadError("reading was stopped") from None
        finally:
            with self._lock:
                self.waited_s += time.perf_counter() - began

    # What follows runs in the thread of the file system's requests.

    async def _chunks(self, file: int, row_groups: Sequence[int], what: str) -> FetchedRanges:
        footer = await self._footer(file, what)
        ranges = cut(self._decoder.chunk_ranges(file, footer, row_groups))
        return FetchedRanges(ranges, await self._ranges(file, ranges, what), self._index.files[file].size)

    async def _ranges(self, file: int, ranges: Ranges, what: str) -> list[bytes]:
        if not self._fetcher.is_conditional(self._index.files[file]):
            await self._check(file)
        began = time.perf_counter()
        found = await self._fetch(file, ranges, what)
        self.fetch_s += time.perf_counter() - began
        return found

    async def _fetch(self, file: int, ranges: Ranges, what: str) -> list[bytes]:
        storage, info = self._index.storage, self._index.files[file]
        with self._index.unchanged(file):
            return await self._fetcher.fetch(storage.full(info.path), info, ranges, what, self.traffic)

    async def _check(self, file: int) -> None:
        """Compare a file with the indexed one, once a pass."""
        async with self._locks[file]:
            if file not in self._checked:
                await self._index.ask_whether_unchanged(file)
                self._checked.add(file)

    async def _footer(self, file: int, what: str) -> pq.FileMetaData:
        index, info = self._index, self._index.files[file]
        footer = index.footers.get(file)
        if footer is not None:
            return footer
        if not self._fetcher.is_conditional(info):
            await self._check(file)
        async with self._locks[file]:
            footer = index.footers.get(file)
            if footer is None:
                tail = (await self._fetch(file, [tail_range(info)], what))[0]
                if (larger := whole_tail_range(info, tail)) is not None:
                    tail = (await self._fetch(file, [larger], what))[0]
                footer = parse_footer(index.storage, info, tail)
                index.footers.put(file, footer)
            return footer

"""Parquet files as a block source."""

import io
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corgiarrow.errors import ReadError
from corgiarrow.index import DEFAULT_BLOCK_BYTES, BlockIndex, Int64s, leaf_columns
from corgiarrow.storage import redact
from corgiarrow.units import parse_bytes

_GROUPS = 4
_GROUP_BYTES = (2**18, 2**20)
"""Columns are decoded together, a quarter of a block but within these bytes: it halves the peak, and caches like it."""

_DECODE_FACTOR = 4
"""What decoding holds beside its result, in units of the columns decoded together: pages, dictionaries (measured)."""

_HOLE_BYTES = 64 * 1024
"""Column chunks at most so far apart are fetched in one request."""


class ParquetSource:
    """Row groups of Parquet files, small neighbours merged, as blocks.

    Parameters
    ----------
    index
        The dataset's row groups.
    columns
        Names of the columns to read; None for all.
    block_bytes
        Bytes on disk towards which small row groups of one file are merged.
    """

    def __init__(
        self, index: BlockIndex, columns: Sequence[str] | None = None, block_bytes: int | str = DEFAULT_BLOCK_BYTES
    ):
        self.index = index
        self.columns = index.column_names(columns)
        self.schema = pa.schema([index.schema.field(c) for c in self.columns])
        self.first_group, self.stop_group = index.merge(self.columns, parse_bytes("block_bytes", block_bytes))
        group_ends = np.concatenate([[0], np.cumsum(index.group_rows)])
        memory_ends = np.concatenate([[0], np.cumsum(index.memory_bytes(self.columns))])
        self.block_rows: Int64s = group_ends[self.stop_group] - group_ends[self.first_group]
        column_bytes = [int(index.memory_bytes([c]).sum()) for c in self.columns]
        self.largest_column: float = max(column_bytes) / max(sum(column_bytes), 1)
        self.block_bytes: Int64s = memory_ends[self.stop_group] - memory_ends[self.first_group]

    @property
    def fingerprint(self) -> str:
        """The index's fingerprint."""
        return self.index.fingerprint

    def session(self) -> "ParquetSession":
        """Start a pass of reading."""
        return ParquetSession(self)

    @cached_property
    def _group_ends(self) -> Int64s:
        return np.cumsum(self.index.group_rows)

    @cached_property
    def _paths(self) -> pa.StringArray:
        return pa.array([f.path for f in self.index.files], pa.string())

    def locate(self, row_ids: Int64s) -> pa.RecordBatch:
        """Say in which file, row group and row of it each row lies."""
        group = np.searchsorted(self._group_ends, row_ids, side="right")
        row = row_ids - (self._group_ends[group] - self.index.group_rows[group])
        return pa.record_batch(
            {
                "_file": self._paths.take(pa.array(self.index.group_file[group])),
                "_row_group": pa.array(self.index.group_number[group].astype(np.int32)),
                "_row": pa.array(row),
            }
        )

    def describe(self, block: int) -> str:
        """Name a block by its file and row groups."""
        first, last = int(self.first_group[block]), int(self.stop_group[block]) - 1
        file = self.index.files[self.index.group_file[first]]
        numbers = self.index.group_number[[first, last]]
        which = f"row group {numbers[0]}" if first == last else f"row groups {numbers[0]} to {numbers[1]}"
        return f"{self.index.storage.shown(file.path)}, {which}"


class ParquetSession:
    """One pass over a :class:`ParquetSource`; checks once a pass that each remote file is the indexed one."""

    def __init__(self, source: ParquetSource):
        self._source = source
        self._index = source.index
        self._leaves = leaf_columns(source.index.schema)
        self._lock = threading.Lock()
        self._checked: set[int] = set()
        self._closed = False
        self.fetched_bytes = 0
        self.fetch_s = 0.0

    def close(self) -> None:
        """Let reads that still run end at their next columns."""
        self._closed = True

    def read(self, block: int, start: int, stop: int) -> pa.Table:
        """Read rows ``start .. stop`` of a block, a few columns at a time."""
        source, index = self._source, self._index
        groups = np.arange(source.first_group[block], source.stop_group[block])
        ends = np.cumsum(index.group_rows[groups])
        wanted = (ends > start) & (ends - index.group_rows[groups] < stop) & (index.group_rows[groups] > 0)
        skipped = int((ends - index.group_rows[groups])[wanted][0])
        numbers = [int(g) for g in index.group_number[groups[wanted]]]
        file = int(index.group_file[groups[0]])
        rows = int(index.group_rows[groups[wanted]].sum())
        try:
            columns = self._decode(file, numbers, max(int(source.block_bytes[block]), 1))
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, ReadError):
                raise
            raise ReadError(f"{source.describe(block)}: {redact(str(error))}") from None
        table = pa.Table.from_arrays(columns, schema=source.schema)
        if table.num_rows != rows:
            raise ReadError(f"{source.describe(block)}: holds {table.num_rows} rows where the footer says {rows}")
        if stop - start == rows:
            return table
        part = table.slice(start - skipped, stop - start)
        copies = [pa.chunked_array([pa.concat_arrays([chunk]) for chunk in c.chunks], c.type) for c in part.columns]
        return pa.Table.from_arrays(copies, schema=source.schema)

    def bytes_beside(self, nbytes: int) -> int:
        """Estimate what decoding holds beside its result, and the fetched bytes of a remote file."""
        at_once = max(_group_bytes(nbytes), int(nbytes * self._source.largest_column))
        return _DECODE_FACTOR * min(at_once, nbytes) + (0 if self._index.storage.is_local else nbytes)

    def _decode(self, file: int, row_groups: list[int], block_bytes: int) -> list[pa.ChunkedArray]:
        names = self._source.columns
        footer = self._index.footer(file)
        self._check(file)
        at_once = max(int(len(names) * _group_bytes(block_bytes) / block_bytes), 1)
        storage, path = self._index.storage, self._index.files[file].path
        columns: list[pa.ChunkedArray] = []
        with (
            self._open(file, footer, row_groups) as origin,
            pq.ParquetFile(origin, metadata=footer, pre_buffer=False, buffer_size=0) as reader,
        ):
            for first in range(0, len(names), at_once):
                if self._closed:
                    raise ReadError(f"{storage.shown(path)}: reading was stopped")
                part = names[first : first + at_once]
                table = reader.read_row_groups(row_groups, columns=part, use_threads=False)
                columns += [table.column(name) for name in part]
        return columns

    def _check(self, file: int) -> None:
        if self._index.storage.is_local:
            self._index.check_unchanged(file)
            return
        with self._lock:
            if file in self._checked:
                return
        self._index.check_unchanged(file)
        with self._lock:
            self._checked.add(file)

    def _open(self, file: int, footer: pq.FileMetaData, row_groups: list[int]) -> AbstractContextManager[Any]:
        """Open the fetched column chunks of a remote file; of a local one give the path, which Arrow opens itself."""
        chunks = self._chunk_ranges(footer, row_groups)
        storage = self._index.storage
        if storage.is_local:
            with self._lock:
                self.fetched_bytes += sum(stop - start for start, stop in chunks)
            return nullcontext(storage.full(self._index.files[file].path))
        ranges = coalesce(chunks, _HOLE_BYTES)
        began = time.perf_counter()
        found = storage.fetch(self._index.files[file].path, ranges)
        with self._lock:
            self.fetch_s += time.perf_counter() - began
            self.fetched_bytes += sum(stop - start for start, stop in ranges)
        return FetchedRanges(ranges, found, self._index.files[file].size)

    def _chunk_ranges(self, footer: pq.FileMetaData, row_groups: Sequence[int]) -> list[tuple[int, int]]:
        ranges = []
        for number in row_groups:
            group = footer.row_group(number)
            for name in self._source.columns:
                for leaf in self._leaves[name]:
                    chunk = group.column(leaf)
                    start = chunk.data_page_offset
                    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                        start = min(start, chunk.dictionary_page_offset)
                    ranges.append((start, start + chunk.total_compressed_size))
        return ranges


class FetchedRanges(io.RawIOBase):
    """A file of which only some ranges were fetched; a read outside of them raises."""

    def __init__(self, ranges: Sequence[tuple[int, int]], found: Sequence[bytes], size: int):
        self._ranges = ranges
        self._found = [memoryview(data) for data in found]
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to a place in the file."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """Return the place in the file."""
        return self._at

    def read(self, length: int = -1) -> Any:
        """Return a view of fetched bytes.

        Raises
        ------
        ReadError
            They were not fetched.
        """
        stop = self._size if length < 0 else min(self._at + length, self._size)
        for (first, last), data in zip(self._ranges, self._found, strict=True):
            if first <= self._at and stop <= last:
                view = data[self._at - first : stop - first]
                self._at = stop
                return view
        raise ReadError(f"bytes {self._at} to {stop} are in no column chunk that the footer names")


def _group_bytes(nbytes: int) -> int:
    return min(max(nbytes // _GROUPS, _GROUP_BYTES[0]), _GROUP_BYTES[1])


def coalesce(ranges: Sequence[tuple[int, int]], hole: int) -> list[tuple[int, int]]:
    """Merge byte ranges that lie at most `hole` bytes apart; return them in ascending order."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if merged and start - merged[-1][1] <= hole:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged

"""Reading a large block a piece at a time, from its first row on."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corgiarrow.errors import CorgiArrowError, ReadError
from corgiarrow.index import Int64s, open_parquet
from corgiarrow.sources.decode import Decoder, rows_of

_BATCH_BYTES = 2**20
_BATCH_ROWS = 16_384
_BUFFER_BYTES = 64 * 1024
"""Bytes that a column asks of a file at once; a larger page is read whole."""


@dataclass(frozen=True)
class RowGroups:
    """Neighbouring row groups of one file, to be read through one cursor.

    Attributes
    ----------
    file, numbers
        Number of the file, and of its row groups.
    footer
        Footer of the file.
    opened
        From column numbers to a context that gives what pyarrow opens.
    """

    file: int
    numbers: list[int]
    footer: pq.FileMetaData
    opened: Callable[[Sequence[int]], AbstractContextManager[Any]]

    @property
    def rows(self) -> int:
        """Rows of the row groups."""
        return sum(self.footer.row_group(g).num_rows for g in self.numbers)


class Cursor:
    """Rows of a block, in ascending order.

    Parameters
    ----------
    decoder
        Columns to read.
    groups
        Where.
    kept
        Numbers of the rows to keep, ascending, of some rows of all columns; None keeps all.
    executor
        Where to read several parts of the columns at the same time.
    parts
        In how many parts to read the columns.
    """

    def __init__(
        self,
        decoder: Decoder,
        groups: RowGroups,
        kept: Callable[[Sequence[pa.ChunkedArray]], Int64s] | None,
        executor: Executor,
        parts: int,
    ):
        self._kept = kept
        self._executor = executor
        self._files = ExitStack()
        stored = decoder.stored(groups.file)
        absent = [c for c in range(len(decoder.columns)) if c not in stored]
        row_bytes = decoder.index.memory_bytes(decoder.columns).sum() / max(decoder.index.num_rows, 1)
        self._batch_rows = int(min(max(_BATCH_BYTES / max(row_bytes, 1), 1), _BATCH_ROWS))
        self._parts: list[_Part | _Absent] = []
        try:
            for columns in np.array_split(np.array(stored, dtype=int), max(min(parts, len(stored)), 1)):
                if len(columns):
                    part = _Part(decoder, groups, [int(c) for c in columns], self._batch_rows, self._files)
                    self._parts.append(part)
        except BaseException:
            self._files.close()
            raise
        if absent:
            self._parts.append(_Absent(decoder, groups, absent))
        self._rows = groups.rows
        self._raw = 0
        """Rows that were read, kept or not."""
        self._ready: list[pa.ChunkedArray] = []
        """Rows of each column that were read and kept, but not asked for yet."""
        self.position = 0
        """Kept rows that were given out."""

    def close(self) -> None:
        """Close the file."""
        self._files.close()

    def take(self, rows: int) -> list[pa.ChunkedArray]:
        """Return the next `rows` kept rows of every column, and their numbers in the block as a last column."""
        found: list[list[pa.ChunkedArray]] = []
        missing = rows
        while missing:
            columns = self._ready or self._next()
            count = len(columns[0])
            self._ready = [c.slice(missing) for c in columns] if count > missing else []
            columns = [c.slice(0, missing) for c in columns]
            missing -= min(count, missing)
            found.append(columns)
        self.position += rows
        return [_joined([columns[c] for columns in found]) for c in range(len(found[0]))]

    def skip(self, rows: int) -> None:
        """Leave out the next `rows` kept rows."""
        while rows:
            count = min(rows, _BATCH_ROWS)
            self.take(count)
            rows -= count

    def _next(self) -> list[pa.ChunkedArray]:
        """Read some rows, and drop those that are not kept."""
        count = min(self._batch_rows, self._rows - self._raw)
        if not count:
            raise ReadError("fewer rows are there than the footer says")
        here, *others = self._parts
        started = [self._executor.submit(part.take, count) for part in others if isinstance(part, _Part)]
        try:
            pieces = {here: here.take(count)}
        finally:
            wait(started)  # No file is closed while a thread reads it.
        results = iter(started)
        pieces |= {p: next(results).result() if isinstance(p, _Part) else p.take(count) for p in others}
        columns = {c: column for part, piece in pieces.items() for c, column in zip(part.columns, piece, strict=True)}
        ordered = [columns[c] for c in range(len(columns))]
        ordered.append(pa.chunked_array([pa.array(np.arange(self._raw, self._raw + count))]))
        self._raw += count
        return ordered if self._kept is None else rows_of(ordered, self._kept(ordered[:-1]))


class _Part:
    """Some columns of a cursor, read through one open file."""

    def __init__(
        self, decoder: Decoder, groups: RowGroups, columns: Sequence[int], batch_rows: int, files: ExitStack
    ):
        self.columns = columns
        self._decoder = decoder
        self._groups = groups
        self._batch_rows = batch_rows
        self._batches = self._open(columns, files)
        self._ready: deque[pa.RecordBatch] = deque()

    def _open(self, columns: Sequence[int], files: ExitStack) -> Iterator[pa.RecordBatch]:
        groups, names = self._groups, self._decoder.names(columns)
        dictionaries = [n for n in self._decoder.dictionaries if n in names]
        origin = files.enter_context(groups.opened(columns))
        reader = files.enter_context(
            open_parquet(origin, groups.footer, dictionaries=dictionaries, buffer_size=_BUFFER_BYTES)
        )
        batches: Iterator[pa.RecordBatch] = reader.iter_batches(
            self._batch_rows, row_groups=groups.numbers, columns=names, use_threads=False
        )
        return batches

    def take(self, rows: int) -> list[pa.ChunkedArray]:
        """Return the next `rows` rows; batches may end anywhere, as where a dictionary does."""
        found: list[list[pa.ChunkedArray]] = []
        while rows:
            batch = self._ready.popleft() if self._ready else self._read()
            if batch.num_rows > rows:
                self._ready.appendleft(batch.slice(rows))
                batch = batch.slice(0, rows)
            rows -= batch.num_rows
            found.append([self._fit(c, batch) for c in self.columns])
        return [_joined([columns[c] for columns in found]) for c in range(len(self.columns))]

    def _read(self) -> pa.RecordBatch:
        try:
            batch = next(self._batches, None)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, CorgiArrowError):
                raise
            raise self._decoder.blame(self.columns, self._read_alone, error) from None
        if batch is None:
            raise ReadError("fewer rows are there than the footer says")
        return batch

    def _read_alone(self, column: int) -> None:
        with ExitStack() as files:
            for _ in self._open([column], files):
                pass

    def _fit(self, number: int, batch: pa.RecordBatch) -> pa.ChunkedArray:
        try:
            return self._decoder.fit(self._groups.file, number, batch, batch.num_rows)
        except pa.ArrowException as error:
            raise ReadError(f"column {self._decoder.columns[number].field.name!r}: {error}") from None


class _Absent:
    """Columns that the file does not store."""

    def __init__(self, decoder: Decoder, groups: RowGroups, columns: Sequence[int]):
        self.columns = columns
        self._decoder = decoder
        self._file = groups.file

    def take(self, rows: int) -> list[pa.ChunkedArray]:
        """Return nulls, or what the file's path says."""
        return [self._decoder.fit(self._file, c, None, rows) for c in self.columns]


def _joined(columns: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    return columns[0] if len(columns) == 1 else pa.chunked_array([x for c in columns for x in c.chunks])

"""Reading a large block a piece at a time, from its first row on."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corgiarrow.errors import CorgiArrowError, ReadError
from corgiarrow.footers import open_parquet
from corgiarrow.index import Int64s
from corgiarrow.sources.decode import Decoder, rows_of

BUFFER_BYTES = 64 * 1024
"""Bytes that a column asks of a local file at once; a larger page is read whole."""


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
        Returns a context that gives what pyarrow opens.
    closed
        Called when none of what was opened is read any more.
    buffer_bytes
        Bytes that a column asks of it at once.
    """

    file: int
    numbers: list[int]
    footer: pq.FileMetaData
    opened: Callable[[], AbstractContextManager[Any]]
    closed: Callable[[], None]
    buffer_bytes: int = BUFFER_BYTES

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
    batch_rows
        Rows to decode at a time, all columns' together: a piece, so that none is copied.
    compact
        Copy every piece, so that it takes exactly its size; else only one whose rows would keep others in memory.
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
        batch_rows: int,
        compact: bool,
        executor: Executor,
        parts: int,
    ):
        self._kept = kept
        self._executor = executor
        self._files = ExitStack()
        self._files.callback(groups.closed)
        stored = decoder.stored(groups.file)
        absent = [c for c in range(len(decoder.columns)) if c not in stored]
        self._batch_rows = batch_rows
        self._parts: list[_Part | _Absent] = []
        try:
            for columns in np.array_split(np.array(stored, dtype=int), max(min(parts, len(stored)), 1)):
                if len(columns):
                    part = _Part(decoder, groups, [int(c) for c in columns], batch_rows, compact, self._files)
                    self._parts.append(part)
        except BaseException:
            self._files.close()
            raise
        if absent:
            self._parts.append(_Absent(decoder, groups, absent))
        self._rows = groups.rows
        self.disk_bytes = sum(b - a for a, b in decoder.chunk_ranges(groups.file, groups.footer, groups.numbers))
        """Bytes of all column chunks."""
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
        """Return the next `rows` kept rows of every column, and their numbers in the row groups as a last column."""
        self.position += rows
        if self._kept is None:
            return self._next(rows)
        found: list[list[pa.ChunkedArray]] = []
        while rows:
            columns = self._ready or self._next_kept()
            count = len(columns[0])
            self._ready = [c.slice(rows) for c in columns] if count > rows else []
            columns = [c.slice(0, rows) for c in columns]
            rows -= min(count, rows)
            found.append(columns)
        return [pa.chunked_array([x for columns in found for x in columns[c].chunks]) for c in range(len(found[0]))]

    def skip(self, rows: int) -> None:
        """Leave out the next `rows` kept rows."""
        while rows:
            count = min(rows, self._batch_rows)
            self.take(count)
            rows -= count

    def _next(self, rows: int) -> list[pa.ChunkedArray]:
        """Read the next rows, kept or not."""
        here, *others = self._parts
        started = [self._executor.submit(part.take, rows) for part in others]
        try:
            columns = here.take(rows)
        finally:
            wait(started)  # No file is closed while a thread reads it.
        for other in started:
            columns |= other.result()
        numbers = pa.chunked_array([pa.array(np.arange(self._raw, self._raw + rows))])
        self._raw += rows
        return [*(columns[c] for c in range(len(columns))), numbers]

    def _next_kept(self) -> list[pa.ChunkedArray]:
        """Read some rows, and leave out those that are not kept."""
        assert self._kept is not None
        count = min(self._batch_rows, self._rows - self._raw)
        if not count:
            raise ReadError("fewer rows are there than the footer says")
        columns = self._next(count)
        return rows_of(columns, self._kept(columns[:-1]))


class _Part:
    """Some columns of a cursor, read through one open file."""

    def __init__(
        self,
        decoder: Decoder,
        groups: RowGroups,
        columns: Sequence[int],
        batch_rows: int,
        compact: bool,
        files: ExitStack,
    ):
        self.columns = columns
        self._decoder = decoder
        self._groups = groups
        self._batch_rows = batch_rows
        self._compact = compact
        self._batches = self._open(columns, files)
        self._ready: pa.RecordBatch | None = None
        """What is left of the last batch."""
        self._dictionaries: dict[int, pa.Array] = {}
        """Dictionary that a column had last."""

    def _open(self, columns: Sequence[int], files: ExitStack) -> Iterator[pa.RecordBatch]:
        groups, names = self._groups, self._decoder.names(columns)
        dictionaries = self._decoder.dictionaries(groups.file, columns)
        origin = files.enter_context(groups.opened())
        reader = files.enter_context(
            open_parquet(origin, groups.footer, dictionaries=dictionaries, buffer_size=groups.buffer_bytes)
        )
        batches: Iterator[pa.RecordBatch] = reader.iter_batches(
            self._batch_rows, row_groups=groups.numbers, columns=names, use_threads=False
        )
        return batches

    def take(self, rows: int) -> dict[int, pa.ChunkedArray]:
        """Return the next `rows` rows by column number; batches may end anywhere, as where a dictionary does."""
        found: list[pa.RecordBatch] = []
        count = 0
        while count < rows:
            batch = self._ready or self._read()
            self._ready = batch.slice(rows - count) if batch.num_rows > rows - count else None
            found.append(batch.slice(0, rows - count))
            count += found[-1].num_rows
        table = pa.Table.from_batches(found)
        fitted = {c: self._fit(c, table) for c in self.columns}
        if len(found) == 1 and not self._compact and self._ready is None:
            return fitted
        # Copies of exactly their size keep nothing else in memory, and are what the allocator can best use again.
        return {c: pa.chunked_array([pa.concat_arrays(x.chunks)], x.type) for c, x in fitted.items()}

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

    def _fit(self, number: int, table: pa.Table) -> pa.ChunkedArray:
        try:
            fitted = self._decoder.fit(self._groups.file, number, table, table.num_rows)
            return self._with_one_dictionary(number, fitted)
        except pa.ArrowException as error:
            raise ReadError(f"column {self._decoder.columns[number].field.name!r}: {error}") from None


    def _with_one_dictionary(self, number: int, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """Let chunks share a dictionary: each batch comes with a copy of its row group's."""
        if not pa.types.is_dictionary(column.type):
            return column
        chunks = []
        for chunk in column.chunks:
            known = self._dictionaries.setdefault(number, chunk.dictionary)
            if chunk.dictionary.equals(known):
                chunk = pa.DictionaryArray.from_arrays(chunk.indices, known, ordered=column.type.ordered, safe=False)
            else:
                self._dictionaries[number] = chunk.dictionary
            chunks.append(chunk)
        return pa.chunked_array(chunks, column.type)


class _Absent:
    """Columns that the file does not store."""

    def __init__(self, decoder: Decoder, groups: RowGroups, columns: Sequence[int]):
        self.columns = columns
        self._decoder = decoder
        self._file = groups.file

    def take(self, rows: int) -> dict[int, pa.ChunkedArray]:
        """Return nulls, or what the file's path says."""
        return {c: self._decoder.fit(self._file, c, None, rows) for c in self.columns}

"""Parquet files as a block source."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from corgiarrow.errors import CorgiArrowError, ReadError, tells_of_broken_data
from corgiarrow.footers import open_parquet
from corgiarrow.index import DEFAULT_BLOCK_BYTES, BlockIndex, Int64s
from corgiarrow.sources import cursors, ranges
from corgiarrow.sources.cursors import Cursor, RowGroups
from corgiarrow.sources.decode import Decoder, rows_of
from corgiarrow.sources.ranges import PAGE_BYTES, PAGE_ROWS, FetchedRanges
from corgiarrow.sources.remote import RemoteBytes
from corgiarrow.sources.selection import Selection
from corgiarrow.split import Split
from corgiarrow.storage import Traffic, cut, redact
from corgiarrow.units import parse_bytes

_GROUP_BYTES = 2**20
"""Bytes of the columns that are decoded together: it lowers the peak, and caches like it. Fewer cost time: each time
takes 90 us more, 5 % of a block of 1.6 MB that is decoded in five parts instead of two."""

_DECODE_FACTOR = 4
"""What decoding some small columns together holds beside them, at least: pages, dictionaries (measured)."""

_STRIDE_BYTES = 2**18
"""Bytes that a cursor decodes at a time at least, where a selection keeps few rows."""

_SAMPLED_BLOCKS = 64
"""Blocks whose footers are looked at, to learn what a cursor costs."""

_COUNTED_ROWS = 65_536
"""Rows that are counted at a time."""

_LIST_VALUE_BYTES = 12
"""What a value of a list takes while its page is decoded: two levels, and a number in a buffer that doubles."""


class ParquetSource:
    """Row groups of Parquet files, small neighbours merged, as blocks.

    Parameters
    ----------
    index
        The dataset's row groups.
    columns
        Names of the columns to read; None for all. ``"a.b"`` is field ``b`` of struct column ``a``.
    block_bytes
        Bytes on disk towards which small row groups of one file are merged.
    filter
        Which rows to read; the columns that it needs are counted once, and the index keeps the counts.
    split
        The part of the data to read; rows are counted as for `filter` when it goes by a column.
    on_error
        ``"skip"`` leaves out row groups whose rows cannot be counted, and lists them in `uncounted`.
    threads
        Threads to count with.
    """

    def __init__(
        self,
        index: BlockIndex,
        columns: Sequence[str] | None = None,
        block_bytes: int | str = DEFAULT_BLOCK_BYTES,
        *,
        filter: pc.Expression | None = None,
        split: Split | None = None,
        on_error: str = "raise",
        threads: int = 4,
    ):
        self.index = index
        self.columns = index.columns(columns)
        self.schema = pa.schema([c.field for c in self.columns])
        self.selection = Selection(index, filter, split)
        wanted, telling = {c.path for c in self.columns}, self.selection.columns
        self.decoder = Decoder(index, [*self.columns, *(c for c in telling if c.path not in wanted)])
        paths = [c.path for c in self.decoder.columns]
        self.telling_places = [paths.index(c.path) for c in telling]
        """Places among the decoder's columns of those that tell which rows are selected."""
        self.uncounted: dict[str, str] = {}
        """Row groups that were left out because their rows cannot be counted, by name, each with the reason."""
        whole = np.where(self.selection.groups, index.group_rows, 0)
        rows = self._count_kept(threads, on_error) if self.selection.by_rows else whole
        self.kept_rows: Int64s = rows
        """Rows of each row group that are read, int64 [row groups]."""
        self.first_group, self.stop_group = index.merge(self.columns, parse_bytes("block_bytes", block_bytes), rows)
        row_ends = np.concatenate([[0], np.cumsum(rows)])
        memory = index.memory_bytes(self.columns)
        kept_part = rows / np.maximum(index.group_rows, 1)
        memory_ends = np.concatenate([[0], np.cumsum(np.ceil(memory * kept_part).astype(np.int64))])
        raw = np.where(rows > 0, index.memory_bytes(self.decoder.columns), 0)
        raw_ends = np.concatenate([[0], np.cumsum(raw)])
        self.block_rows: Int64s = row_ends[self.stop_group] - row_ends[self.first_group]
        self.block_bytes: Int64s = memory_ends[self.stop_group] - memory_ends[self.first_group]
        self.raw_bytes: Int64s = raw_ends[self.stop_group] - raw_ends[self.first_group]
        """Bytes of what is decoded of each block, selected or not, int64 [blocks]."""
        column_bytes = np.array([int(index.memory_bytes([c]).sum()) for c in self.decoder.columns], dtype=np.float64)
        shares = column_bytes / max(column_bytes.sum(), 1)
        here = shares[: len(self.columns)]
        self.largest_column: float = here.max() / max(here.sum(), 1e-9)
        factors = np.array(self.decoder.decode_factors)
        self.mean_factor: float = max(float((shares * factors).sum()), _DECODE_FACTOR)
        self._largest_factor = float((shares * factors).max())
        self.piece_factor: float = 1 + self.mean_factor
        self.disk_share: float = sum(index.share_of(c) for c in self.decoder.columns)
        """Part of the data on disk that the decoder's columns take, in [0, 1]."""

    def narrowed(self, columns: Sequence[str], on_error: str = "raise") -> "ParquetSource":
        """Return a source of the same rows, of some columns."""
        chosen = self.selection
        expression = None if chosen.filter is None else chosen.filter.expression
        return ParquetSource(self.index, columns, filter=expression, split=chosen.split, on_error=on_error)

    @property
    def fingerprint(self) -> str:
        """The index's fingerprint, and filter and split with what they keep."""
        key = self.selection.key
        return self.index.fingerprint_with(key, self.kept_rows) if key else self.index.fingerprint

    @property
    def decode_bytes(self) -> Int64s:
        """Bytes that reading each block whole takes beside its rows, int64 [blocks]."""
        return self.decoding_bytes(self.raw_bytes)

    def decoding_bytes(self, raw: Int64s) -> Int64s:
        """Bytes that decoding blocks of `raw` bytes takes beside them, int64 of the same shape."""
        together = np.minimum(_GROUP_BYTES, raw)
        found: Int64s = np.maximum(self.mean_factor * together, self._largest_factor * raw).astype(np.int64)
        return found

    def cursor_bytes(self, blocks: Int64s) -> int:
        """Bytes that reading one of some blocks in pieces holds beside them, at most, from a sample of them."""
        sample = blocks[:: -(-len(blocks) // _SAMPLED_BLOCKS)]
        return int(max(self._cursor_bytes(int(block)) for block in sample))

    def session(
        self,
        pieces: Int64s | None = None,
        *,
        open_blocks: int = 1,
        compact: bool = True,
        threads: int = 1,
        row_ids: bool = False,
    ) -> "ParquetSession":
        """Start a pass of reading."""
        return ParquetSession(self, pieces, open_blocks, compact, threads, row_ids)

    @cached_property
    def first_ids(self) -> Int64s:
        """Id of the first row of each row group, int64 [row groups]: its place in the dataset, selected or not."""
        return np.cumsum(self.index.group_rows) - self.index.group_rows

    def groups_of(self, block: int) -> Int64s:
        """Row groups of a block that are read, int64 [row groups]: those between them have no selected rows."""
        first, stop = int(self.first_group[block]), int(self.stop_group[block])
        return first + np.flatnonzero(self.kept_rows[first:stop])

    def row_ids(self, groups: Int64s, numbers: Int64s) -> Int64s:
        """Ids of rows, by their numbers in some row groups read one after the other, int64 [rows]."""
        rows = self.index.group_rows[groups]
        ends = np.cumsum(rows)
        shifts: Int64s = self.first_ids[groups] - (ends - rows)
        no_gap = (shifts == shifts[0]).all()
        found: Int64s = numbers + (shifts[0] if no_gap else shifts[np.searchsorted(ends, numbers, side="right")])
        return found

    @cached_property
    def _paths(self) -> pa.StringArray:
        return pa.array([f.path for f in self.index.files], pa.string())

    def locate(self, row_ids: Int64s) -> pa.RecordBatch:
        """Say in which file, row group and row of it each row lies."""
        group = np.searchsorted(self.first_ids, row_ids, side="right") - 1  # The last of equals, which is not empty.
        row = row_ids - self.first_ids[group]
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
        return self._describe(first, last)

    def close(self) -> None:
        """Do nothing: no file is open between passes, but one a thread."""

    def _describe(self, first: int, last: int) -> str:
        file = self.index.files[self.index.group_file[first]]
        numbers = self.index.group_number[[first, last]]
        which = f"row group {numbers[0]}" if first == last else f"row groups {numbers[0]} to {numbers[1]}"
        return f"{self.index.storage.shown(file.path)}, {which}"

    def kept(self, columns: Sequence[pa.ChunkedArray]) -> Int64s:
        """Numbers of the rows that are selected, of some rows of the decoder's columns."""
        return self.selection.kept([columns[c] for c in self.telling_places])

    def _cursor_bytes(self, block: int) -> float:
        """Pages of every column and their dictionaries, as read and as decoded."""
        index, total = self.index, 0.0
        file = int(index.group_file[self.first_group[block]])
        footer = index.footer(file)
        every, lists = self.decoder.leaf_numbers(file), set(self.decoder.leaf_numbers(file, in_lists=True))
        for group in self.groups_of(block):
            found = 0.0
            chunks = footer.row_group(int(index.group_number[group]))
            for leaf in every:
                chunk = chunks.column(leaf)
                rows = max(chunks.num_rows, 1)
                nbytes = chunk.total_uncompressed_size
                page = min(nbytes * PAGE_ROWS / rows, PAGE_BYTES, nbytes)
                dictionary = 0.0
                if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                    part = (chunk.data_page_offset - chunk.dictionary_page_offset) / max(chunk.total_compressed_size, 1)
                    dictionary = nbytes * max(part, 0)
                # The values of lists are decoded a page at a time, with two levels each.
                in_lists = _LIST_VALUE_BYTES * chunk.num_values * page / max(nbytes, 1) if leaf in lists else 0
                found += 2 * page + 2 * dictionary + in_lists
            total = max(total, found)
        return total

    def _count_kept(self, threads: int, on_error: str) -> Int64s:
        """Rows of each row group that are selected, int64 [row groups]: counted once, then kept by the index."""
        index, selection = self.index, self.selection
        if selection.key not in index.kept_rows:
            counts = np.zeros(len(index.group_rows), dtype=np.int64)
            decoder = Decoder(index, selection.columns)

            def count(group: int) -> None:
                try:
                    counts[group] = _kept_in_group(index, decoder, selection, group)
                except ReadError as error:
                    if on_error == "raise" or not tells_of_broken_data(error):
                        raise
                    self.uncounted[self._describe(group, group)] = str(error)

            with ThreadPoolExecutor(threads) as executor:
                files = range(len(index.files))
                possible = executor.map(lambda file: selection.possible(index, file), files)
                list(executor.map(count, [group for found in possible for group in found]))
            if self.uncounted:
                return counts
            index.kept_rows[selection.key] = counts
            if selection.filter is None:
                # Whoever trains also scores: what is not in the one part is in the other.
                index.kept_rows[selection.other_key] = index.group_rows - counts
        return index.kept_rows[selection.key]


class _Thread(threading.local):
    """The local file that a thread has read last: it stays open for the next read, until the thread ends.

    Opening it anew takes 80 us, a tenth of reading a small row group.
    """

    def __init__(self) -> None:
        self.files = ExitStack()
        self.reader: pq.ParquetFile | None = None
        self.source: ParquetSource | None = None
        self.file = -1

    def close(self) -> None:
        """Close it."""
        self.reader = self.source = None
        self.files.close()


_THREAD = _Thread()


class ParquetSession:
    """One pass of one stream over a :class:`ParquetSource`; checks that each file is the indexed one."""

    def __init__(
        self,
        source: ParquetSource,
        pieces: Int64s | None,
        open_blocks: int,
        compact: bool,
        threads: int,
        row_ids: bool,
    ):
        self._source = source
        self._index = source.index
        self._pieces = pieces
        self._row_ids = row_ids
        self._parts = threads
        self._executor = ThreadPoolExecutor(max(threads, 1), "corgiarrow-columns")
        self._lock = threading.Lock()
        self._remote = None if source.index.storage.is_local else RemoteBytes(source.index, source.decoder)
        self._compact = compact
        self._open_blocks = open_blocks
        self._cursor_freed = threading.Condition(self._lock)
        self._cursors: dict[int, Cursor] = {}
        """Cursors that no thread reads, the one that was read longest ago first."""
        self._broken: dict[int, tuple[int, ReadError]] = {}
        """For each block in pieces that cannot be read to its end, the first row of a piece that failed, and why."""
        self._expected: set[int] = set()
        """Blocks that threads are about to read."""
        self._ahead: set[int] = set()
        """Blocks of which a piece is fetched that no thread has read yet."""
        self._reading = 0
        """Cursors that threads read."""
        self._at: dict[int, int] = {}
        """For each remote block in pieces whose windows are held, the row up to which they were fetched."""
        self._left: dict[int, int] = {}
        """For each of them, the bytes that were left when a piece was read last."""
        self._stopped = False
        held = zip(source.columns, source.decoder.held_types, strict=False)
        fields = [c.field.with_type(kind) for c, kind in held]
        self.schema = pa.schema(fields + [pa.field("row id", pa.int64(), nullable=False)] * row_ids)
        self.traffic = self._remote.traffic if self._remote else Traffic()

    @property
    def fetch_s(self) -> float:
        """Seconds from the beginning to the end of fetching; reading local files counts as decoding."""
        return self._remote.fetch_s if self._remote else 0.0

    @property
    def waited_s(self) -> float:
        """Seconds that reads have waited for a remote storage."""
        return self._remote.waited_s if self._remote else 0.0

    def stop(self) -> None:
        """Let reads that still run end at their next columns, and break off what is being fetched."""
        if self._remote is not None:
            self._remote.stop()
        with self._cursor_freed:
            self._stopped = True
            self._cursor_freed.notify_all()

    def close(self) -> None:
        """Close what is open; no read runs any more."""
        for cursor in self._cursors.values():
            cursor.close()
        self._cursors = {}
        if self._remote is not None:
            self._remote.close()
        _THREAD.close()
        self._executor.shutdown()

    def expect(self, block: int) -> None:
        """Keep the block's cursor until it is read."""
        if self._in_pieces(block):
            with self._lock:
                self._expected.add(block)

    def fetch_bytes(self, block: int, start: int, stop: int) -> int:
        """Estimate the bytes of a remote file that are fetched for a span."""
        if self._remote is None:
            return 0
        groups, _ = self._groups_of_span(block, start, stop)
        nbytes = float(self._index.group_disk_bytes[groups].sum()) * self._source.disk_share
        if self._in_pieces(block):
            nbytes *= (stop - start) / int(self._source.kept_rows[groups].sum())
        return int(nbytes) + 1

    def fetch(self, block: int, start: int, stop: int) -> "Future[None]":
        """Begin to fetch the column chunks of a span, or of a block in pieces what comes next of them."""
        assert self._remote is not None
        what = self._source.describe(block)
        if not self._in_pieces(block):
            groups, _ = self._groups_of_span(block, start, stop)
            return self._remote.start((block, start), *self._place(groups), what)
        with self._lock:
            self._ahead.add(block)
        groups = self._source.groups_of(block)
        # Begun in the midst of a block, its first rows are skipped piece by piece, and come so.
        until = stop if block in self._at or not start else stop - start
        self._at[block] = stop
        rows = int(self._index.group_rows[groups].sum())
        row = -(-until * rows // int(self._source.block_rows[block]))
        return self._remote.start_rows(block, *self._place(groups), row, what)

    def _in_pieces(self, block: int) -> bool:
        return self._pieces is not None and bool(self._pieces[block] > 1)

    def read(self, block: int, start: int, stop: int) -> pa.Table:
        """Read rows ``start .. stop`` of a block: through a cursor, or whole row groups a few columns at a time."""
        try:
            if self._in_pieces(block):
                columns = self._read_piece(block, start, stop)
            else:
                columns = self._read_groups(block, start, stop)
            table = pa.Table.from_arrays(columns[: len(self.schema)], schema=self.schema)
            if table.num_rows != stop - start:
                raise ReadError(f"{table.num_rows} rows came where {stop - start} should be")
        except (pa.ArrowException, OSError) as error:
            raise self._named(block, start, error) from None
        return table

    def _named(self, block: int, start: int, error: Exception) -> CorgiArrowError:
        """Return the error to raise, with the block's name in it."""
        where = self._source.describe(block)
        if isinstance(error, CorgiArrowError) and type(error) is not ReadError:
            return error
        separator = ", " if str(error).startswith("column ") else ": "
        named = ReadError(f"{where}{separator}{redact(str(error))}")
        self._broken.setdefault(block, (start, named))
        return named

    def bytes_beside(self, block: int, nbytes: int) -> int:
        """Estimate what decoding holds beside its result."""
        if self._in_pieces(block):
            # What a cursor holds is reserved; a piece is decoded at once.
            groups = self._source.groups_of(block)
            part = self._rows_at_once(block) / int(self._index.group_rows[groups].sum())
            raw = int(self._source.raw_bytes[block] * part)
            return int(max(raw, nbytes) * self._source.piece_factor)
        raw = max(int(self._source.raw_bytes[block]), nbytes)
        return int(self._source.decoding_bytes(np.array(raw)))

    @property
    def held_bytes(self) -> int:
        """Bytes of remote files that are left over from what was fetched for pieces."""
        return sum(list(self._left.values()))

    def _read_piece(self, block: int, start: int, stop: int) -> list[pa.ChunkedArray]:
        source, index = self._source, self._index
        groups = source.groups_of(block)
        if self._remote is None:
            index.check_unchanged(int(index.group_file[groups[0]]))
        if block in self._broken and start >= self._broken[block][0]:
            raise self._broken[block][1]
        cursor = self._taken_cursor(block, start)
        done = False
        try:
            if cursor is None:
                cursor = self._new_cursor(block)
            begin = cursor.position
            cursor.skip(start - begin)
            columns = cursor.take(stop - start)
            done = stop < int(source.block_rows[block])
        finally:
            with self._cursor_freed:
                self._reading -= 1
                if done and cursor is not None:
                    self._cursors[block] = cursor
                self._cursor_freed.notify_all()
            if not done and cursor is not None:
                cursor.close()
            if self._remote is not None:
                self._left[block] = self._remote.trim(block)
        if self._remote is None:
            part = (stop - begin) / int(source.block_rows[block])
            with self._lock:
                self.traffic.fetched_bytes += int(part * cursor.disk_bytes)
        found = columns[: len(source.columns)]
        if self._row_ids:
            found.append(pa.chunked_array([pa.array(source.row_ids(groups, columns[-1].to_numpy()))]))
        return found

    def _taken_cursor(self, block: int, start: int) -> Cursor | None:
        """Take the block's cursor, or room for a new one, so that at most `open_blocks` are open."""
        with self._cursor_freed:
            self._expected.discard(block)
            self._ahead.discard(block)
            cursor = self._cursors.pop(block, None)
            if cursor is not None and cursor.position > start:
                cursor.close()
                cursor = None
            while cursor is None and self._reading + len(self._cursors) >= self._open_blocks:
                # The order opens a block only when those before are used up, but for what threads still read of them.
                if (self._reading or self._expected & self._cursors.keys()) and not self._stopped:
                    self._cursor_freed.wait()
                elif (idle := next((b for b in self._cursors if b not in self._ahead), None)) is not None:
                    self._cursors.pop(idle).close()
                else:
                    break  # Bytes may come out of order: what was fetched for the others is not thrown away.
            self._reading += 1
            return cursor

    def _new_cursor(self, block: int) -> Cursor:
        source = self._source
        file, row_groups = self._place(source.groups_of(block))
        batch_rows = self._rows_at_once(block)

        def opened() -> AbstractContextManager[Any]:
            if self._remote is None:
                return nullcontext(self._index.storage.full(self._index.files[file].path))
            return self._remote.windows(block, file, row_groups, batch_rows, source.describe(block)).opened()

        def closed() -> None:
            if self._remote is not None:
                self._remote.forget(block)
                self._at.pop(block, None)
                self._left.pop(block, None)

        kept = source.kept if source.selection.by_rows else None
        buffer_bytes = cursors.BUFFER_BYTES if self._remote is None else ranges.BUFFER_BYTES
        where = RowGroups(file, row_groups, self._index.footer(file), opened, closed, buffer_bytes)
        return Cursor(source.decoder, where, kept, batch_rows, self._compact, self._executor, self._parts)

    def _rows_at_once(self, block: int) -> int:
        """Rows that a block's cursor decodes at a time: those of a piece, or so many that they take as much memory.

        Of a sparse selection a piece's rows lie far apart, and with all between them they would not fit.
        """
        assert self._pieces is not None
        source, pieces = self._source, int(self._pieces[block])
        rows = int(self._index.group_rows[source.groups_of(block)].sum())
        piece_bytes = max(int(source.block_bytes[block]) // pieces, _STRIDE_BYTES)
        fitting = rows * piece_bytes // max(int(source.raw_bytes[block]), 1)
        return max(min(fitting, -(-rows // pieces)), 1)

    def _place(self, groups: Int64s) -> tuple[int, list[int]]:
        """Return the file in which row groups lie, and their numbers in it."""
        return int(self._index.group_file[groups[0]]), self._index.group_number[groups].tolist()

    def _groups_of_span(self, block: int, start: int, stop: int) -> tuple[Int64s, int]:
        """Return the row groups that hold some rows of a block, and the number of the first one's first row in it."""
        groups = self._source.groups_of(block)
        rows = self._source.kept_rows[groups]
        ends = np.cumsum(rows)
        wanted = (ends > start) & (ends - rows < stop)
        return groups[wanted], int((ends - rows)[wanted][0])

    def _read_groups(self, block: int, start: int, stop: int) -> list[pa.ChunkedArray]:
        groups, first = self._groups_of_span(block, start, stop)
        columns = self._decode(groups, (block, start), max(int(self._source.raw_bytes[block]), 1))
        if stop - start < len(columns[0]):
            columns = [c.slice(start - first, stop - start) for c in columns]
            columns = [pa.chunked_array([pa.concat_arrays([x]) for x in c.chunks], c.type) for c in columns]
        return columns

    def _decode(self, groups: Int64s, key: tuple[int, int], raw_bytes: int) -> list[pa.ChunkedArray]:
        """Read row groups of one file: the source's columns of the selected rows, and each row's id."""
        source, index, decoder = self._source, self._index, self._source.decoder
        file, numbers = self._place(groups)
        names = len(source.columns)
        at_once = max(int(names * _GROUP_BYTES / raw_bytes), 1)
        found: dict[int, pa.ChunkedArray] = {}
        kept: Int64s | None = None
        with self._open(file, numbers, key) as reader:

            def read(columns: list[int]) -> list[pa.ChunkedArray]:
                if self._stopped:
                    raise ReadError("reading was stopped")
                return decoder.read(reader, file, numbers, columns)

            if source.selection.by_rows:
                telling = read(source.telling_places)
                kept = source.selection.kept(telling)
                found = dict(zip(source.telling_places, rows_of(telling, kept), strict=True))
            left = [c for c in range(names) if c not in found]
            for first in range(0, len(left), at_once):
                part = left[first : first + at_once]
                found.update(zip(part, rows_of(read(part), kept), strict=True))
        columns = [found[c] for c in range(names)]
        if self._row_ids:
            every = np.arange(index.group_rows[groups].sum())
            columns.append(pa.chunked_array([pa.array(source.row_ids(groups, every if kept is None else kept))]))
        return columns

    @contextmanager
    def _open(self, file: int, row_groups: list[int], key: tuple[int, int]) -> Iterator[pq.ParquetFile]:
        source, index = self._source, self._index
        if self._remote is not None:
            origin = self._remote.opened(key, file, row_groups, source.describe(key[0]))
            footer = index.footer(file)
            with origin, open_parquet(origin, footer, dictionaries=source.decoder.dictionaries(file)) as reader:
                yield reader
            return
        index.check_unchanged(file)
        footer = index.footer(file)
        with self._lock:
            chunks = source.decoder.chunk_ranges(file, footer, row_groups)
            self.traffic.fetched_bytes += sum(stop - start for start, stop in chunks)
        if _THREAD.source is not source or _THREAD.file != file:
            _THREAD.close()
            opened = _THREAD.files.enter_context(_local_file(index, file))
            dictionaries = source.decoder.dictionaries(file)
            _THREAD.reader = _THREAD.files.enter_context(open_parquet(opened, footer, dictionaries=dictionaries))
            _THREAD.source, _THREAD.file = source, file
        try:
            yield _THREAD.reader
        except BaseException:
            _THREAD.close()
            raise


def _kept_in_group(index: BlockIndex, decoder: Decoder, selection: Selection, group: int) -> int:
    """Count the rows of a row group that are selected, reading only the columns that tell."""
    file, number = int(index.group_file[group]), int(index.group_number[group])
    rows = int(index.group_rows[group])
    storage, path = index.storage, index.files[file].path
    footer = index.footer(file)
    stored = decoder.stored(file)
    if not stored:
        constant = [decoder.fit(file, c, None, 1) for c in range(len(decoder.columns))]
        return rows * len(selection.kept(constant))
    where = f"{storage.shown(path)}, row group {number}"

    def opened_columns(columns: Sequence[int]) -> AbstractContextManager[Any]:
        if storage.is_local:
            return _local_file(index, file)
        ranges = cut(decoder.chunk_ranges(file, footer, [number], columns))
        with index.unchanged(file):
            found = storage.fetch(index.files[file], ranges, where)
        return FetchedRanges(ranges, found, index.files[file].size)

    if storage.is_local or not storage.fetcher.is_conditional(index.files[file]):
        index.check_unchanged(file)

    def tables(columns: Sequence[int]) -> Iterator[pa.Table]:
        dictionaries = decoder.dictionaries(file, columns)
        with opened_columns(columns) as opened, open_parquet(opened, footer, dictionaries=dictionaries) as reader:
            for batch in reader.iter_batches(
                _COUNTED_ROWS, row_groups=[number], columns=decoder.names(columns), use_threads=False
            ):
                yield pa.Table.from_batches([batch])

    def fitted(table: pa.Table, columns: Sequence[int]) -> list[pa.ChunkedArray]:
        return [decoder.fit(file, c, table if c in stored else None, table.num_rows) for c in columns]

    every = range(len(decoder.columns))
    try:
        return sum(len(selection.kept(fitted(table, every))) for table in tables(stored))
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, CorgiArrowError):
            raise
        blamed = decoder.blame(stored, lambda c: [fitted(table, [c]) for table in tables([c])], error)
        raise ReadError(f"{where}, counting rows for {selection.options}, {blamed}") from None


def _local_file(index: BlockIndex, file: int) -> AbstractContextManager[Any]:
    # Given the path, ParquetFile asks for its kind first: 2 % of a pass over small blocks.
    return pa.OSFile(index.storage.full(index.files[file].path))  # type: ignore[no-any-return]

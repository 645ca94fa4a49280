"""Files of which only some byte ranges are fetched: column chunks at once, or a window of each that moves along."""

import io
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from corgiarrow.errors import ReadError
from corgiarrow.storage import Ranges

Fetch = Callable[[Ranges], Sequence[bytes]]

PAGE_ROWS = 20_000
PAGE_BYTES = 2**20
"""Rows and bytes of a data page, at most, as most writers make them."""

BUFFER_BYTES = 2**14
"""Bytes that a column asks of windows at once, past the page that it reads: they are held for each column."""

_LEAST_BYTES = 2**15
"""Bytes that are fetched of a chunk at least: a request costs more than so many bytes."""


class _ReadOnly(io.RawIOBase):
    """A file of known size that is read at a place."""

    def __init__(self, size: int):
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
        """Return bytes from the place on, and move it past them."""
        stop = self._size if length < 0 else min(self._at + length, self._size)
        found = self._between(self._at, stop)
        self._at = stop
        return found

    def _between(self, start: int, stop: int) -> Any:
        raise NotImplementedError


class FetchedRanges(_ReadOnly):
    """A file of which only some ranges were fetched; a read outside of them raises a ReadError.

    Parameters
    ----------
    ranges
        Ranges ``[start, stop)`` in ascending order; none overlaps another.
    found
        The bytes of each.
    size
        Bytes of the file.
    """

    def __init__(self, ranges: Ranges, found: Sequence[bytes], size: int):
        super().__init__(size)
        self._ranges = ranges
        self._starts = [start for start, _ in ranges]
        self._found = [memoryview(data) for data in found]

    def _between(self, start: int, stop: int) -> Any:
        parts, at = [], start
        for number in range(max(bisect_right(self._starts, start) - 1, 0), len(self._ranges)):
            first, last = self._ranges[number]
            if not first <= at < last:
                break
            parts.append(self._found[number][at - first : min(stop, last) - first])
            at = min(stop, last)
            if at == stop:
                # What lies in two of them is joined; that is rare.
                return parts[0] if len(parts) == 1 else b"".join(parts)
        if start == stop:
            return b""
        raise ReadError(f"bytes {start} to {stop} are in no column chunk that the footer names")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column chunk, and the rows that it holds.

    Attributes
    ----------
    start, stop
        Its bytes in the file.
    data_start
        Where its dictionary ends.
    first_row, rows
        Its rows, counted through the row groups that are read together.
    """

    start: int
    stop: int
    data_start: int
    first_row: int
    rows: int

    def bytes_until(self, row: int) -> int:
        """Return where the bytes end that reading all rows before `row` takes, about, and no sooner than its start.

        Values may take more bytes here than there; a page is read whole, and its reader asks for some bytes more.
        """
        share = min(max((row - self.first_row) / max(self.rows, 1), 0.0), 1.0)
        if not share:
            return self.start
        page = min((self.stop - self.data_start) * PAGE_ROWS / max(self.rows, 1), PAGE_BYTES)
        end = self.data_start + int((self.stop - self.data_start) * share + page) + BUFFER_BYTES
        return self.stop if self.stop - end < _LEAST_BYTES else end

    def row_at(self, place: int) -> int:
        """Return about which row's bytes end at a place in the file, at least."""
        share = (place - self.start) / max(self.stop - self.start, 1)
        return self.first_row + int(self.rows * min(share, 1.0)) + 1


class Windows:
    """Column chunks of neighbouring row groups, read side by side from their first row on.

    Of each chunk a window is held, from the bytes that were read last to those that were fetched last. What is to be
    read next is best fetched ahead, by :meth:`missing` and :meth:`add`; a read past what is there fetches the next part
    of every chunk.

    Parameters
    ----------
    chunks
        The column chunks.
    size
        Bytes of the file.
    fetch
        Fetches ranges, and waits for them.
    step_rows
        Rows whose bytes a read past what is there fetches.
    """

    def __init__(self, chunks: Sequence[Chunk], size: int, fetch: Fetch, step_rows: int):
        self.size = size
        self._chunks = sorted(chunks, key=attrgetter("start"))
        self._starts = [chunk.start for chunk in self._chunks]
        self._fetch = fetch
        self._step_rows = step_rows
        self._lock = threading.Lock()
        self._held = [(chunk.start, b"") for chunk in self._chunks]
        """For each chunk where its window begins, and the window's bytes."""
        self._used = [chunk.start for chunk in self._chunks]

    @property
    def held_bytes(self) -> int:
        """Bytes of all windows."""
        return sum(len(data) for _, data in self._held)

    def missing(self, row: int) -> list[tuple[int, int]]:
        """Return the ranges to fetch before all rows before `row` can be read, in ascending order."""
        found = []
        for chunk, (begin, data) in zip(self._chunks, self._held, strict=True):
            end, wanted = begin + len(data), chunk.bytes_until(row)
            if wanted > end:
                found.append((end, max(wanted, min(end + _LEAST_BYTES, chunk.stop))))
        return found

    def add(self, ranges: Ranges, found: Sequence[bytes]) -> None:
        """Put what was fetched behind what is held; what was read already goes."""
        self.trim()
        for (start, _), more in zip(ranges, found, strict=True):
            number = bisect_right(self._starts, start) - 1
            begin, data = self._held[number]
            self._held[number] = (begin, data + more)

    def trim(self) -> None:
        """Let go of what was read."""
        for number, (begin, data) in enumerate(self._held):
            keep = min(max(self._used[number], begin), begin + len(data))
            self._held[number] = (keep, data[keep - begin :])

    def opened(self) -> "WindowsFile":
        """Return a file of them, with a place of its own."""
        return WindowsFile(self)

    def between(self, start: int, stop: int) -> Any:
        """Return some bytes of a chunk."""
        number = bisect_right(self._starts, start) - 1
        if number < 0 or stop > self._chunks[number].stop:
            raise ReadError(f"bytes {start} to {stop} are in no column chunk that the footer names")
        begin, data = self._held[number]
        if start < begin:
            return self._fetch([(start, stop)])[0]  # Nothing reads backwards but a search for the column to blame.
        if stop > begin + len(data):
            self._advance(number, start, stop)
            begin, data = self._held[number]
        self._used[number] = max(self._used[number], stop)
        return memoryview(data)[start - begin : stop - begin]

    def _advance(self, needy: int, start: int, stop: int) -> None:
        with self._lock:
            begin, data = self._held[needy]
            if stop <= begin + len(data):
                return  # Another thread, which reads other chunks, was needy first.
            self._used[needy] = max(self._used[needy], start)
            ranges = self.missing(self._chunks[needy].row_at(stop) + self._step_rows)
            end = begin + len(data)
            own = next((r for r in ranges if r[0] == end), (end, stop))
            ranges = [r for r in ranges if r[0] != end] + [(end, max(own[1], stop))]
            self.add(ranges, self._fetch(ranges))


class WindowsFile(_ReadOnly):
    """A place in the file that some windows are of."""

    def __init__(self, windows: Windows):
        super().__init__(windows.size)
        self._windows = windows

    def _between(self, start: int, stop: int) -> Any:
        return self._windows.between(start, stop)

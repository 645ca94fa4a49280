"""Files of which only some byte ranges are fetched: column chunks at once, or a window of each that moves along."""

import io
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from corgiarrow.errors import ReadError
from corgiarrow.storage import Ranges

Fetch = Callable[[Ranges], Sequence[bytes]]


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


class MovingWindows(_ReadOnly):
    """A file whose column chunks are read side by side, each from its start to its end.

    A read past what is there fetches the next part of every chunk that is nearly used up, in one call: as many
    requests as there are chunks go out together, once for each `window_bytes` over all chunks.

    Parameters
    ----------
    chunks
        Byte ranges of the column chunks.
    fetch
        Fetches ranges.
    size
        Bytes of the file.
    window_bytes
        Bytes that all windows hold together, about.
    """

    def __init__(self, chunks: Ranges, fetch: Fetch, size: int, window_bytes: int):
        super().__init__(size)
        self._chunks = sorted(chunks)
        self._fetch = fetch
        part = min(window_bytes / max(sum(stop - start for start, stop in chunks), 1), 1.0)
        self._step = [max(int((stop - start) * part), 1) for start, stop in self._chunks]
        self._held = [(start, b"") for start, _ in self._chunks]
        """For each chunk where its window begins, and the window's bytes."""
        self._used = [start for start, _ in self._chunks]

    def _between(self, start: int, stop: int) -> Any:
        inside = [n for n, (first, last) in enumerate(self._chunks) if first <= start and stop <= last]
        if not inside:
            raise ReadError(f"bytes {start} to {stop} are in no column chunk that the footer names")
        number = inside[0]
        begin, data = self._held[number]
        if start < begin:
            return self._fetch([(start, stop)])[0]  # Nothing reads backwards but by a retry.
        if stop > begin + len(data):
            self._advance(number, start, stop)
            begin, data = self._held[number]
        self._used[number] = max(self._used[number], stop)
        return memoryview(data)[start - begin : stop - begin]

    def _advance(self, needy: int, start: int, stop: int) -> None:
        self._used[needy] = start
        moving, ranges = [], []
        for number, (_, last) in enumerate(self._chunks):
            begin, data = self._held[number]
            end, step = begin + len(data), self._step[number]
            wanted = max(stop, end + step) if number == needy else end + step
            if (number == needy or end - self._used[number] <= step // 2) and end < last:
                moving.append(number)
                ranges.append((end, min(wanted, last)))
        for number, more in zip(moving, self._fetch(ranges), strict=True):
            begin, data = self._held[number]
            keep = min(max(self._used[number], begin), begin + len(data))
            self._held[number] = (keep, data[keep - begin :] + more)

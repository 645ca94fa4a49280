"""Footers of Parquet files: read many at a time, parsed once a process."""

import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from corgiarrow.errors import NotParquetError
from corgiarrow.storage import FileInfo, Storage, as_ours, redact

_TAIL_BYTES = 64 * 1024
_FOOTER_CACHE_BYTES = 256 * 2**20
_LOCAL_FOOTER_THREADS = 4
"""A disk's wait is short: more threads would get in each other's way."""
_BATCH_FILES = 64
_BATCHES_AHEAD = 4
"""Footers of remote files are asked for in batches, some ahead of the one that is parsed: it bounds what is held."""
_END_BYTES = 8
"""A file ends with the length of its footer, and a magic word."""
_SIGNATURE_BYTES = 28
"""A footer in plain text that names encrypted columns is signed: a nonce of 12 bytes, a tag of 16."""


class FooterCache:
    """Parsed footers by file number, bounded, safe for threads; empty in another process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._footers: OrderedDict[int, pq.FileMetaData] = OrderedDict()
        self._bytes = 0

    def __reduce__(self) -> tuple[type["FooterCache"], tuple[()]]:
        return FooterCache, ()

    def get(self, file: int) -> pq.FileMetaData | None:
        """Return the footer of file number `file` when it is held."""
        with self._lock:
            if file in self._footers:
                self._footers.move_to_end(file)
            return self._footers.get(file)

    def put(self, file: int, footer: pq.FileMetaData) -> None:
        """Hold a footer; those used longest ago make room."""
        with self._lock:
            if file not in self._footers:
                self._footers[file] = footer
                self._bytes += _parsed_bytes(footer)
            while self._bytes > _FOOTER_CACHE_BYTES and len(self._footers) > 1:
                self._bytes -= _parsed_bytes(self._footers.popitem(last=False)[1])


def read_footer(storage: Storage, file: FileInfo) -> pq.FileMetaData:
    """Read and parse one footer.

    Raises
    ------
    NotParquetError
        The file is not Parquet, is cut, or its footer is encrypted or damaged.
    """
    return _from_tail(storage, file, _read_tail(storage, file, tail_range(file)))


def _from_tail(storage: Storage, file: FileInfo, tail: bytes) -> pq.FileMetaData:
    """Parse a footer, given the last bytes of its file; where it is larger than they are, it is read anew."""
    if (larger := whole_tail_range(file, tail)) is not None:
        tail = _read_tail(storage, file, larger)
    return parse_footer(storage, file, tail)


def tail_range(file: FileInfo) -> tuple[int, int]:
    """Return the byte range in which a file's footer is looked for."""
    return max(file.size - _TAIL_BYTES, 0), file.size


def whole_tail_range(file: FileInfo, tail: bytes) -> tuple[int, int] | None:
    """Return where a footer lies that is larger than what was read of the file's end; None where it is not."""
    needed = _footer_length(tail) + _END_BYTES
    return (file.size - needed, file.size) if tail[-4:] == b"PAR1" and len(tail) < needed <= file.size else None


def parse_footer(storage: Storage, file: FileInfo, tail: bytes) -> pq.FileMetaData:
    """Parse a footer, given the last bytes of its file.

    Raises
    ------
    NotParquetError
        As :func:`read_footer`.
    """
    try:
        footer = pq.read_metadata(pa.BufferReader(tail))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise NotParquetError(
            f"{storage.shown(file.path)} ({file.size} bytes) is not a readable Parquet file: {redact(str(error))}"
        ) from None
    if _footer_length(tail) == footer.serialized_size + _SIGNATURE_BYTES:
        # Arrow ends the process when it is asked about a column whose key it has not.
        raise NotParquetError(f"{storage.shown(file.path)} has encrypted columns, which corgiarrow does not read")
    return footer


def _read_tail(storage: Storage, file: FileInfo, where: tuple[int, int]) -> bytes:
    if not storage.is_local:
        return storage.fetch(file, [where])[0] if file.size else b""
    try:
        with Path(storage.full(file.path)).open("rb", buffering=0) as opened:
            opened.seek(where[0])
            return opened.read()
    except OSError as error:
        failed = as_ours(error, storage.shown(file.path))
    raise failed


def _footer_length(tail: bytes) -> int:
    """Bytes of a footer, as a file's last 8 bytes say."""
    return int(struct.unpack("<I", tail[-8:-4])[0]) if len(tail) >= _END_BYTES else 0


def open_parquet(
    origin: Any,
    footer: pq.FileMetaData,
    *,
    dictionaries: Sequence[str] = (),
    buffer_size: int = 0,
    pre_buffer: bool = False,
) -> pq.ParquetFile:
    """Open a file whose footer is known, with the options on which the dataset's types depend.

    Old INT96 timestamps come in microseconds, since nanoseconds wrap silently outside of the years 1678 to 2262.
    """
    return pq.ParquetFile(
        origin,
        metadata=footer,
        read_dictionary=list(dictionaries),
        pre_buffer=pre_buffer,
        buffer_size=buffer_size,
        coerce_int96_timestamp_unit="us",
        page_checksum_verification=True,
    )


def read_footers(
    storage: Storage, files: Sequence[FileInfo], on_error: str
) -> Iterator["pq.FileMetaData | NotParquetError"]:
    """Read the footers of all files, in their order, many at a time.

    Yields
    ------
    FileMetaData or NotParquetError
        With ``on_error="skip"`` the error of a file whose footer cannot be read; else that is raised.
    """

    def kept(read: Callable[[], pq.FileMetaData]) -> "pq.FileMetaData | NotParquetError":
        try:
            return read()
        except NotParquetError as error:
            if on_error == "raise":
                raise
            return error

    if storage.is_local:
        with ThreadPoolExecutor(_LOCAL_FOOTER_THREADS) as executor:
            yield from executor.map(lambda file: kept(lambda: read_footer(storage, file)), files)
        return
    under_way: deque[Future[list[bytes]]] = deque()
    following = iter(files)
    tails: deque[bytes] = deque()
    try:
        for file in files:
            while len(under_way) < _BATCHES_AHEAD and (batch := list(islice(following, _BATCH_FILES))):
                under_way.append(storage.start_fetch_each([(f, tail_range(f)) for f in batch]))
            if not tails:
                tails.extend(under_way.popleft().result())
            tail = tails.popleft()
            yield kept(lambda file=file, tail=tail: _from_tail(storage, file, tail))  # type: ignore[misc]
    finally:
        for future in under_way:
            future.cancel()


def _parsed_bytes(footer: pq.FileMetaData) -> int:
    return 500 * int(footer.num_row_groups) * int(footer.num_columns) + 1000

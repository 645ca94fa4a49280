"""Byte ranges of remote files: many requests at a time, bounded in number and bytes, through faults that pass."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import fsspec
import fsspec.asyn

from corgiarrow.errors import SourceChangedError, StorageError
from corgiarrow.storage.access import REQUESTS, Access, is_async, protocols
from corgiarrow.storage.cache import RangeCache
from corgiarrow.storage.faults import TRY_PART, Fault, ShortReadError, Tries, fault_of, kinds_of_faults
from corgiarrow.storage.redaction import redact
from corgiarrow.storage.s3 import S3Ranges

RANGE_BYTES = 8 * 2**20
"""Bytes of one request, at most about."""

HOLE_BYTES = 64 * 1024
"""Ranges at most so far apart are fetched in one request."""

_LARGE_BYTES = 2**20
_LARGE_REQUESTS = 16
"""Requests of at least a MiB that are under way at a time: it bounds what they hold, and a line is full before."""

_SLOWEST = 2**18
"""Bytes a second: a first try that is slower is broken off; each further one may take twice as long."""

CONTENT_KEYS = ("ETag", "etag", "e_tag", "md5Hash", "content_md5")
"""How file systems name what changes with a file's content."""

T = TypeVar("T")
Ranges = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file as a listing shows it.

    Attributes
    ----------
    path
        Path below the storage's root.
    size
        Bytes.
    version
        Something that changes when the file does, as ``key=value``: an etag where there is one, else a time of change,
        else "".
    """

    path: str
    size: int
    version: str

    @property
    def tells_content(self) -> bool:
        """Whether the version stands for what is in the file: a time of change may stand for two of one second."""
        return self.version.partition("=")[0] in CONTENT_KEYS

    @property
    def etag(self) -> str:
        """The etag with its quotes, where it stands for the file's very bytes; else ""."""
        key, _, value = self.version.partition("=")
        return value if key == "ETag" and value.startswith('"') else ""


@dataclass(slots=True)
class Traffic:
    """What was asked of a storage, by one of those who share it.

    Attributes
    ----------
    requests, retries
        Requests, and those among them that repeat one which failed.
    fetched_bytes, cached_bytes
        Bytes that came from the storage, and from the local cache.
    """

    requests: int = 0
    retries: int = 0
    fetched_bytes: int = 0
    cached_bytes: int = 0

    def note_retry(self) -> None:
        """Count a request that repeats another."""
        self.retries += 1


class Wanted(NamedTuple):
    """A byte range of a file: its path on the file system, what is known of it, the range, and its name in errors."""

    full: str
    file: FileInfo
    start: int
    stop: int
    what: str


class Deadline:
    """The time until when something must have come; it runs from its first request on."""

    def __init__(self, seconds: float):
        self._seconds = seconds
        self._end: float | None = None

    def left(self) -> float:
        """Return the seconds left; begin to count."""
        now = time.monotonic()
        if self._end is None:
            self._end = now + self._seconds
        return max(self._end - now, 0.001)

    def of_try(self, number: int) -> float:
        """Return the seconds after which try `number`, from 1 on, of something small is broken off."""
        return min(self._seconds * TRY_PART * 2.0 ** (number - 1), self.left())


class Fetcher:
    """Fetches ranges of one storage's files, in one process.

    Parameters
    ----------
    access
        The file system.
    cache
        Where to keep what was fetched.
    """

    def __init__(self, access: Access, cache: RangeCache | None = None):
        self._access = access
        self._cache = cache
        self._loop = getattr(access.fs, "loop", None) or fsspec.asyn.get_loop()
        self._s3 = S3Ranges()
        self._places = asyncio.Semaphore(REQUESTS)
        self._large_places = asyncio.Semaphore(_LARGE_REQUESTS)

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Begin some work in the thread of the file system's requests."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def is_conditional(self, file: FileInfo) -> bool:
        """Whether requests can say which version of a file they mean."""
        return bool(file.etag) and bool(_kind(self._access.fs))

    async def fetch(self, full: str, file: FileInfo, ranges: Ranges, what: str, traffic: Traffic) -> list[bytes]:
        """Fetch ranges ``[start, stop)`` of a file.

        Parameters
        ----------
        full
            Path on the file system.
        file
            The file, of which only the version that is told here is fetched, where the file system has such requests.
        ranges
            Byte ranges, each fetched by one request.
        what
            Name of what is fetched, for errors.
        traffic
            Where to count.

        Raises
        ------
        SourceChangedError
            The file is another one than it was.
        NoFilesError, AccessDeniedError, StorageError
            It is gone, it is refused, or the storage does not answer in time, or with errors.
        """
        deadline = Deadline(self._access.timeout_s)
        return await _together(self._range(full, file, *one, what, deadline, traffic) for one in ranges)

    async def info(self, full: str, what: str) -> Mapping[str, Any]:
        """Ask what the file system knows of a file, past its own cache; errors are those of :meth:`fetch`."""
        deadline = Deadline(self._access.timeout_s)

        async def ask(fs: fsspec.AbstractFileSystem, number: int) -> Mapping[str, Any]:
            fs.invalidate_cache(fs._parent(full))
            async with asyncio.timeout(deadline.of_try(number)):
                if is_async(fs):
                    return await fs._info(full)  # type: ignore[no-any-return]
                found: Mapping[str, Any] = await self._loop.run_in_executor(None, fs.info, full)
                return found

        return await self._tried(ask, what, deadline.left(), Traffic())

    async def _tried(
        self,
        ask: Callable[[fsspec.AbstractFileSystem, int], Awaitable[T]],
        what: str,
        seconds: float,
        traffic: Traffic,
    ) -> T:
        """Ask a file system something, through faults that pass and credentials that expire."""
        access = self._access
        fs: fsspec.AbstractFileSystem | None = None

        async def attempt(number: int) -> T:
            nonlocal fs
            fs = access.fs if access.is_open else await self._loop.run_in_executor(None, lambda: access.fs)
            traffic.requests += 1
            return await ask(fs, number)

        tries = Tries(what, seconds, lambda fault: access.refused(fs, fault), access.secrets, traffic.note_retry)
        return await tries.wait_for(attempt)

    async def fetch_one_each(self, wanted: Sequence[Wanted], traffic: Traffic) -> list[bytes]:
        """Fetch one range of each of some files; errors are those of :meth:`fetch`."""
        timeout_s = self._access.timeout_s
        return await _together(
            self._range(one.full, one.file, one.start, one.stop, one.what, Deadline(timeout_s), traffic)
            for one in wanted
        )

    async def _range(
        self, full: str, file: FileInfo, start: int, stop: int, what: str, deadline: Deadline, traffic: Traffic
    ) -> bytes:
        if start == stop:
            return b""
        if self._cache is not None and file.tells_content:
            key = f"{self._access.place}\0{redact(full)}\0{file.version}\0{file.size}\0{start}\0{stop}"
            kept: bytes | None = await self._loop.run_in_executor(None, self._cache.get, key, stop - start)
            if kept is not None:
                traffic.cached_bytes += len(kept)
                return kept
        async with self._places, self._large_places if stop - start >= _LARGE_BYTES else nullcontext():
            data = await self._through_faults(full, file, start, stop, what, deadline, traffic)
        traffic.fetched_bytes += len(data)
        if self._cache is not None and file.tells_content:
            await self._loop.run_in_executor(None, self._cache.put, key, data)
        return data

    async def _through_faults(
        self, full: str, file: FileInfo, start: int, stop: int, what: str, deadline: Deadline, traffic: Traffic
    ) -> bytes:
        seconds = deadline.left()
        first_try_s = seconds * TRY_PART + (stop - start) / _SLOWEST

        async def ask(fs: fsspec.AbstractFileSystem, number: int) -> bytes:
            changed = ""
            try:
                async with asyncio.timeout(min(first_try_s * 2 ** (number - 1), deadline.left())):
                    data = await self._request(fs, full, file, start, stop)
            except kinds_of_faults() as error:
                if fault_of(error) is not Fault.CHANGED:
                    raise
                changed = type(error).__name__
            if changed:
                raise SourceChangedError(
                    f"{what}: the file changed since it was indexed (then {file.size} bytes, version {file.version}; "
                    f"the storage answers {changed}): build the index again"
                )
            if len(data) != stop - start:
                if len(data) == file.size:
                    raise StorageError(
                        f"{what}: asked for bytes {start} to {stop}, all {file.size} came: this server knows no byte "
                        "ranges. Give the data by another one, or a local copy"
                    )
                raise ShortReadError(f"asked for bytes {start} to {stop}, {len(data)} came")
            return data

        return await self._tried(ask, what, seconds, traffic)

    async def _request(self, fs: fsspec.AbstractFileSystem, full: str, file: FileInfo, start: int, stop: int) -> bytes:
        etag = file.etag
        if etag and _kind(fs) == "s3":
            return await self._s3.get(fs, full, start, stop, etag)
        if etag and _kind(fs) == "http":
            headers = {**fs.kwargs.get("headers", {}), "If-Match": etag}
            return await fs._cat_file(full, start=start, end=stop, headers=headers)  # type: ignore[no-any-return]
        if is_async(fs):
            return await fs._cat_file(full, start=start, end=stop)  # type: ignore[no-any-return]
        data: bytes = await self._loop.run_in_executor(None, lambda: fs.cat_file(full, start=start, end=stop))
        return data


async def _together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Wait for coroutines that run side by side; nothing of them goes on when this returns."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _kind(fs: fsspec.AbstractFileSystem) -> str:
    """Which condition a file system's requests take: "s3", "http" or ""."""
    if "s3" in protocols(fs) and hasattr(fs, "_call_s3"):
        return "s3"
    return "http" if "http" in protocols(fs) and hasattr(fs, "kwargs") else ""


def cut(chunks: Ranges, hole: int = HOLE_BYTES, most: int = RANGE_BYTES) -> list[tuple[int, int]]:
    """Return the requests that fetch some ranges, in ascending order.

    Neighbours at most `hole` bytes apart are fetched together, up to about `most` bytes; what is longer by half is cut
    in equal parts. A request ends where a range ends, if it can, so that few have to be joined from two.

    Parameters
    ----------
    chunks
        Ranges ``[start, stop)``, in any order; none is empty, some may overlap.
    hole, most
        Bytes.
    """
    found: list[tuple[int, int]] = []
    for start, stop in sorted(chunks):
        if found and start - found[-1][1] <= hole and max(stop, found[-1][1]) - found[-1][0] <= most:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        elif found and start < found[-1][1]:
            if stop > found[-1][1]:
                found.append((found[-1][1], stop))
        else:
            found.append((start, stop))
    requests = []
    for start, stop in found:
        parts = max(round((stop - start) / most), 1)
        size = -(-(stop - start) // parts)
        requests += [(first, min(first + size, stop)) for first in range(start, stop, size)]
    return requests

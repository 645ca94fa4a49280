"""From URLs to a file system and its files: listing, byte ranges, retries, and no secret in any text."""

import asyncio
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, Unpack

import fsspec
import fsspec.asyn

from corgiarrow.errors import AccessDeniedError, NoFilesError, OptionError, StorageError
from corgiarrow.storage.access import REQUESTS, Access, AccessOptions, has_scheme, is_async, is_local, located
from corgiarrow.storage.cache import DEFAULT_CACHE_BYTES, RangeCache
from corgiarrow.storage.faults import FIRST_ATTEMPTS, Fault, Tries, as_ours, fault_of
from corgiarrow.storage.fetching import CONTENT_KEYS, Deadline, Fetcher, FileInfo, Ranges, Traffic, Wanted
from corgiarrow.storage.redaction import redact, redact_message

PARQUET_SUFFIXES = (".parquet", ".parq", ".pq")
"""Names that count as Parquet when a folder is searched."""

_VERSION_KEYS = (*CONTENT_KEYS, "mtime", "LastModified", "last_modified", "created")
_MAGIC = re.compile(r"[*?\[]")

T = TypeVar("T")


class Storage:
    """A folder on some fsspec file system.

    The file system itself is made on first use in each process, so a storage may be pickled and may cross a fork.

    Parameters
    ----------
    access
        The file system.
    root
        Path of the folder on that file system.
    cache
        Where to keep what is fetched.
    queries
        What follows after ``?`` in the URLs of some files, by path below the root: it may be a signature, so it stands
        in no name.
    """

    def __init__(
        self, access: Access, root: str, cache: RangeCache | None = None, queries: Mapping[str, str] | None = None
    ):
        self.root = root
        self.access = access
        self.cache = cache
        self._queries = dict(queries or {})
        self._fetcher: Fetcher | None = None
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"Storage({redact(self.url)!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root, "access": self.access, "cache": self.cache, "_queries": self._queries}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _fetcher=None, _pid=os.getpid())

    @property
    def url(self) -> str:
        """What the file system was opened from; it may hold a secret."""
        return self.access.url

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        """The file system, of this process."""
        return self.access.fs

    @property
    def fetcher(self) -> Fetcher:
        """What fetches byte ranges, in this process."""
        if self._fetcher is None or self._pid != os.getpid():
            self._fetcher, self._pid = Fetcher(self.access, self.cache), os.getpid()
        return self._fetcher

    @property
    def is_local(self) -> bool:
        """Whether paths are paths of this machine."""
        return is_local(self.fs)

    def full(self, path: str) -> str:
        """Path on the file system of a `path` below the root."""
        query = self._queries.get(path)
        return _joined(self.root, path) + (f"?{query}" if query else "")

    def shown(self, path: str) -> str:
        """The path as it may stand in an error."""
        return redact(_joined(self.root, path))

    def info(self, file: FileInfo) -> FileInfo:
        """Ask the file system about one file anew, for the same kind of version.

        Raises
        ------
        StorageError
            It is gone, or the file system does not answer.
        """
        full = self.full(file.path)
        if self.is_local:
            try:
                status = Path(full).stat()
            except OSError as error:
                failed = as_ours(error, self.shown(file.path))
            else:
                return FileInfo(file.path, status.st_size, f"mtime={status.st_mtime}")
            raise failed

        return self.fetcher.submit(self.ask_info(file)).result()

    async def ask_info(self, file: FileInfo) -> FileInfo:
        """Ask about one remote file, as :meth:`info`, in the thread of the file system's requests."""
        found = await self.fetcher.info(self.full(file.path), self.shown(file.path))
        # Listings of some file systems tell other things than their answers about one file.
        return _file_info(file.path, found, (file.version.partition("=")[0],))

    def start_fetch_each(self, wanted: Sequence[tuple[FileInfo, tuple[int, int]]]) -> "Future[list[bytes]]":
        """Begin to read one byte range of each of some files.

        Returns
        -------
        Future
            The bytes of each, or one of the errors of :meth:`fetch`; cancelling it breaks the requests off.
        """
        each = [Wanted(self.full(f.path), f, start, stop, self.shown(f.path)) for f, (start, stop) in wanted]
        return self.fetcher.submit(self.fetcher.fetch_one_each(each, Traffic()))

    def fetch(self, file: FileInfo, ranges: Ranges, what: str = "") -> list[bytes]:
        """Read byte ranges ``[start, stop)`` of one file, many at a time.

        Parameters
        ----------
        file
            The file; of a file system that has such requests only this version of it is read.
        ranges
            Byte ranges, one request each; :func:`cut` makes good ones.
        what
            Name to give to them in errors; the file's by default.

        Raises
        ------
        NoFilesError, AccessDeniedError
            The file is gone, or credentials are refused.
        SourceChangedError
            The file is another one than it was.
        StorageError
            They cannot be read, also after some tries where the fault may pass.
        """
        what = what or self.shown(file.path)
        future = self.fetcher.submit(self.fetcher.fetch(self.full(file.path), file, ranges, what, Traffic()))
        try:
            return future.result()
        finally:
            future.cancel()


def _joined(root: str, path: str) -> str:
    return posixpath.join(root, path) if root else path


@dataclass(frozen=True, slots=True)
class _Bounded:
    """A file system for one try, and the seconds that it may take to answer."""

    fs: fsspec.AbstractFileSystem
    one_s: float
    listing_s: float

    def ask(self, method: str, path: str, **options: Any) -> Any:
        """Call a method; the requests below are broken off where that is possible. A listing may be of many."""
        if not is_async(self.fs):
            return getattr(self.fs, method)(path, **options)
        seconds = self.listing_s if method in ("find", "glob") else self.one_s
        return fsspec.asyn.sync(self.fs.loop, getattr(self.fs, f"_{method}"), path, timeout=seconds, **options)


def _tried(access: Access, ask: Callable[[_Bounded], T], what: str) -> T:
    """Ask a file system something, through faults that pass and credentials that expire."""
    fs: fsspec.AbstractFileSystem | None = None
    deadline, number = Deadline(access.timeout_s), 0

    def attempt() -> T:
        nonlocal fs, number
        fs = access.fs
        number += 1
        return ask(_Bounded(fs, deadline.of_try(number), deadline.left()))

    def renew(fault: Fault) -> bool:
        return access.refused(fs, fault)

    return Tries(what, access.timeout_s, renew, access.secrets, attempts=FIRST_ATTEMPTS).call(attempt)


def find_files(
    data: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], **options: Unpack[AccessOptions]
) -> tuple[Storage, list[FileInfo]]:
    """Find the files that a path, glob, folder, URL or list of them means, sorted by path.

    In folders, names starting with ``_`` or ``.`` are skipped, at any depth, and so is what does not end in one of
    :data:`PARQUET_SUFFIXES`; a file or glob that is named may end in anything.

    Raises
    ------
    NoFilesError
        There is none; the text says what was looked for.
    AccessDeniedError, StorageError
        The file system refuses, or does not answer.
    OptionError
        Files of two file systems, one file twice, or an unknown protocol.
    """
    urls = [os.fspath(u) for u in ([data] if isinstance(data, str | os.PathLike) else data)]
    if not urls:
        raise NoFilesError("an empty list was given: give at least one path, glob or folder")
    access, cache = open_access(urls[0], options)
    try:
        paths = _paths(access, urls, options)
        roots, infos = _found(access, paths, urls)
    except TypeError as error:
        if not access.options:
            raise
        # Some file systems meet an option that they do not know only when they connect.
        what = f"{redact(urls[0])}: storage_options {sorted(access.options)} do not fit"
        raise OptionError(f"{what}: {redact_message(str(error), access.secrets)}") from None
    root = roots[0] if len(roots) == 1 else _common(roots)
    prefix = f"{root}/" if root and not root.endswith("/") else root
    below = {name.removeprefix(prefix): info for name, info in infos.items()}
    queries: dict[str, str] = {}
    if has_scheme(paths[0]):  # HTTP's, which keeps the whole URL as a path
        parted = {name: name.partition("?") for name in below}
        queries = {path: query for path, _, query in parted.values() if query}
        if len({path for path, _, _ in parted.values()}) < len(below):
            raise OptionError("two URLs differ only in what follows '?': their rows would come twice")
        below = {parted[name][0]: info for name, info in below.items()}
        if any(redact(path) != path for path in below):
            raise OptionError(
                "URLs of several hosts name a user, which would stand in the names of their files: leave it out, and "
                "give storage_options={'client_kwargs': {'auth': aiohttp.BasicAuth(user, password)}}"
            )
    files = [_file_info(name, info) for name, info in sorted(below.items())]
    return Storage(access, root, cache, queries), files


def _found(
    access: Access, paths: Sequence[str], urls: Sequence[str]
) -> tuple[list[str], dict[str, Mapping[str, Any]]]:
    """Return the root of each path, and all files by full path."""
    known = _infos(access, paths, urls)
    roots: list[str] = []
    infos: dict[str, Mapping[str, Any]] = {}
    for url, path in zip(urls, paths, strict=True):

        def expand(files: _Bounded, path: str = path, url: str = url) -> Any:
            return _expand(files, path, url, known.get(path))

        root, found = _tried(access, expand, redact(url))
        roots.append(root)
        for name, info in found.items():
            if name in infos:
                raise OptionError(f"{redact(name)} is given twice: its rows would come twice")
            infos[name] = info
    return roots, infos


def check_keywords(options: Mapping[str, Any], known: type = AccessOptions) -> None:
    """Raise a TypeError where there is no such keyword, as Python does for those that a function names itself."""
    unknown = sorted(set(options) - set(known.__annotations__))
    if unknown:
        raise TypeError(f"unexpected keywords {unknown}")


def open_access(url: str, options: AccessOptions) -> tuple[Access, RangeCache | None]:
    """Return what the keywords say of a file system and of a local cache; nothing is opened yet.

    Raises
    ------
    OptionError, MissingExtraError
        One is out of its bounds, or cannot be used.
    """
    check_keywords(options)
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    folder, limit = given.pop("cache", None), given.pop("cache_bytes", None)
    given.pop("index_cache", None)  # For whoever builds one.
    if limit is not None and folder is None:
        raise OptionError(f"cache_bytes={limit!r} goes with cache=, a folder on a local disk")
    filesystem = given.get("filesystem")
    if filesystem is not None:
        # Of a given file system the URL says at least its protocol, for an index that is saved and loaded without it.
        url = str(filesystem.unstrip_protocol(filesystem._strip_protocol(url)))
    cache = None if folder is None else RangeCache(folder, DEFAULT_CACHE_BYTES if limit is None else limit)
    return Access(url, **given), cache


def read_whole(url: str, options: AccessOptions) -> bytes:
    """Return what one remote file holds.

    Raises
    ------
    NoFilesError, AccessDeniedError, StorageError
        It is not there, or cannot be read.
    """
    access, _ = open_access(url, options)

    def read(files: _Bounded) -> bytes:
        return bytes(files.fs.cat_file(files.fs._strip_protocol(url)))

    return _tried(access, read, redact(url))


def write_whole(url: str, data: bytes, options: AccessOptions) -> None:
    """Write one remote file; object stores show it when it is whole.

    Raises
    ------
    AccessDeniedError, StorageError
        It cannot be written.
    """
    access, _ = open_access(url, options)
    _tried(access, lambda files: files.fs.pipe_file(files.fs._strip_protocol(url), data), redact(url))


def _paths(access: Access, urls: Sequence[str], options: AccessOptions) -> list[str]:
    """Return each URL's path on the file system."""
    given = options.get("filesystem")
    if given is not None:
        return [str(given._strip_protocol(url)) for url in urls]
    asked = {**access.options, "skip_instance_cache": False}
    first, _ = located(urls[0], asked)
    found = []
    for url in urls:
        fs, path = located(url, asked)
        if fs is not first:
            raise OptionError(f"{redact(urls[0])} and {redact(url)} lie on different file systems: read them apart")
        found.append(path)
    return found


def _common(roots: Sequence[str]) -> str:
    """Return the folder in which all of some folders lie; "" where they share no more than a protocol."""
    folders = [root.rstrip("/").split("/") for root in roots]
    # posixpath.commonpath would take a URL's double slash for one.
    levels = enumerate(zip(*folders, strict=False))
    depth = next((n for n, names in levels if len(set(names)) > 1), min(map(len, folders)))
    shared = folders[0][:depth]
    only_protocol = shared[:1] != [""] and "".join(shared).endswith(":")
    return "/" if shared == [""] else "" if only_protocol else "/".join(shared)


def _infos(access: Access, paths: Sequence[str], urls: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Ask about many files at a time, where a list names them one by one."""
    named = [(p, u) for p, u in zip(paths, urls, strict=True) if not _MAGIC.search(p)]
    fs = access.fs
    if len(named) < 2 or not is_async(fs):
        return {}
    places = asyncio.Semaphore(REQUESTS)
    known: dict[str, Mapping[str, Any]] = {}
    failed: list[StorageError] = []

    async def ask(path: str, url: str) -> None:
        deadline = Deadline(access.timeout_s)

        async def attempt(number: int) -> Mapping[str, Any]:
            async with asyncio.timeout(deadline.of_try(number)):
                return await access.fs._info(path)  # type: ignore[no-any-return]

        async with places:
            if failed:
                return
            tries = Tries(redact(url), access.timeout_s, lambda fault: False, access.secrets)
            try:
                known[path] = await tries.wait_for(attempt)
            except (NoFilesError, AccessDeniedError):
                return  # Asked again by itself, where it is told.
            except StorageError as error:
                failed.append(error)

    async def every() -> None:
        await asyncio.gather(*(ask(path, url) for path, url in named))

    fsspec.asyn.sync(fs.loop, every)
    if failed:
        raise failed[0]
    return known


def _expand(
    files: _Bounded, path: str, url: str, info: Mapping[str, Any] | None = None
) -> tuple[str, dict[str, Mapping[str, Any]]]:
    """Return the root and the files by full path that one path means.

    Parameters
    ----------
    path, url
        The path on the file system, and as it was given.
    info
        What the file system says about the path, where it was asked already.
    """
    on_web = has_scheme(path)
    if _MAGIC.search(path.partition("?")[0] if on_web else path) and not files.ask("exists", path):
        root = posixpath.dirname(path[: _MAGIC.search(path).start()])  # type: ignore[union-attr]
        matching = files.ask("glob", path, detail=True)
        found = {p: i for p, i in matching.items() if i["type"] == "file" and _visible(p, root)}
        if not found:
            raise NoFilesError(f"no file matches {redact(url)} (names starting with '_' or '.' are skipped)")
        return root, found
    info = info or _info(files, path, url)
    if info["type"] == "file":
        plain = path.partition("?")[0] if on_web else path
        return posixpath.dirname(plain.rstrip("/")), {path.rstrip("/"): info}
    root = path.rstrip("/")
    everything = files.ask("find", path, detail=True)
    found = {p: i for p, i in everything.items() if _visible(p, root) and p.endswith(PARQUET_SUFFIXES)}
    if not found:
        others = ", ".join(sorted(posixpath.basename(p) for p in everything)[:3])
        raise NoFilesError(
            f"folder {redact(url)} holds no Parquet: looked at any depth for names that end in "
            f"{', '.join(PARQUET_SUFFIXES)} and do not start with '_' or '.'; "
            f"it holds {len(everything)} other files{f' ({others}, …)' if others else ''}. "
            "Name files of another ending one by one, or by a glob"
        )
    return root, found


def _info(files: _Bounded, path: str, url: str) -> Mapping[str, Any]:
    try:
        return files.ask("info", path)  # type: ignore[no-any-return]
    except FileNotFoundError as error:
        if fault_of(error) is not Fault.MISSING:
            raise  # fsspec's HTTP says so of every refusal.
        missing = NoFilesError(f"{redact(url)} does not exist: looked for a file, a folder or a glob")
    raise missing


def _visible(path: str, root: str) -> bool:
    below = path.removeprefix(root).split("/")
    return not any(part.startswith(("_", ".")) for part in below)


def _file_info(path: str, info: Mapping[str, Any], keys: Sequence[str] = _VERSION_KEYS) -> FileInfo:
    # Some servers of S3 give each file the etag '""'.
    version = next((f"{key}={_plain(key, info[key])}" for key in keys if info.get(key) not in (None, "", '""')), "")
    if info.get("size") is None:
        raise StorageError(f"{redact(path)}: the file system does not tell its size")
    return FileInfo(path, int(info["size"]), version)


def _plain(key: str, version: Any) -> Any:
    """Give a time of change in whole seconds: a listing may tell more of it than another answer, or as a datetime."""
    if isinstance(version, datetime):
        return int(version.timestamp())
    return int(version) if isinstance(version, float) and key != "mtime" else version

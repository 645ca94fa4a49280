"""From URLs to a file system and its files: listing, byte ranges, retries, and no secret in any text."""

import copy
import logging
import os
import posixpath
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import fsspec
import tenacity
from fsspec.core import url_to_fs

from corgiarrow.errors import AccessDeniedError, NoFilesError, OptionError, StorageError

PARQUET_SUFFIXES = (".parquet", ".parq", ".pq")
"""Names that count as Parquet when a folder is searched."""

_LOG = logging.getLogger("corgiarrow")
_ATTEMPTS = 5
_VERSION_KEYS = ("ETag", "etag", "e_tag", "md5Hash", "content_md5", "mtime", "LastModified", "last_modified", "created")
_MAGIC = re.compile(r"[*?\[]")

T = TypeVar("T")
StorageOptions = Mapping[str, Any]


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


class Storage:
    """A folder on some fsspec file system.

    The file system itself is made on first use in each process, so a storage may be pickled and may cross a fork.

    Parameters
    ----------
    url
        What :func:`fsspec.core.url_to_fs` takes.
    root
        Path of the folder on that file system.
    options
        The user's ``storage_options``; they are pickled, but never shown.
    filesystem
        A file system to use instead of opening `url`.
    """

    def __init__(
        self, url: str, root: str, options: StorageOptions, filesystem: fsspec.AbstractFileSystem | None = None
    ):
        self.url = url
        self.root = root
        self._options = dict(options)
        self._given = filesystem
        self._fs = filesystem
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"Storage({redact(self.url)!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "root": self.root, "_options": self._options, "_given": self._given}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _fs=state["_given"], _pid=os.getpid())

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        """The file system, of this process."""
        if self._pid != os.getpid():
            # What the parent process made holds threads and connections that a forked child has not.
            given = self._given
            self._fs = given and type(given)(*given.storage_args, **given.storage_options)
            self._pid = os.getpid()
        if self._fs is None:
            self._fs = _open(self.url, self._options)[0]
        return self._fs

    @property
    def is_local(self) -> bool:
        """Whether paths are paths of this machine."""
        return "file" in _protocols(self.fs)

    def full(self, path: str) -> str:
        """Path on the file system of a `path` below the root."""
        return posixpath.join(self.root, path) if self.root else path

    def shown(self, path: str) -> str:
        """The path as it may stand in an error."""
        return redact(self.full(path))

    def info(self, file: FileInfo) -> FileInfo:
        """Ask the file system about one file anew, for the same kind of version.

        Raises
        ------
        StorageError
            It is gone, or the file system does not answer.
        """
        full = self.full(file.path)
        if self.is_local:
            with _translated(full):
                status = Path(full).stat()
            return FileInfo(file.path, status.st_size, f"mtime={status.st_mtime}")

        def ask() -> Mapping[str, Any]:
            self.fs.invalidate_cache(self.fs._parent(full))
            return self.fs.info(full)  # type: ignore[no-any-return]

        with _translated(full):
            # Listings of some file systems tell other things than their answers about one file.
            return _file_info(file.path, _retried(ask, full), keys=(file.version.partition("=")[0],))

    def fetch(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Read byte ranges ``[start, stop)`` of one file, all at once where the file system can.

        Raises
        ------
        StorageError
            They cannot be read, also after some retries where the fault may pass.
        """
        full = self.full(path)
        starts, stops = [start for start, _ in ranges], [stop for _, stop in ranges]

        def read() -> list[bytes]:
            found = self.fs.cat_ranges([full] * len(ranges), starts, stops, on_error="raise")
            for (start, stop), data in zip(ranges, found, strict=True):
                if len(data) != stop - start:
                    raise StorageError(f"{redact(full)}: asked for bytes {start} to {stop}, got {len(data)} bytes")
            return list(found)

        with _translated(full):
            return _retried(read, full)


def find_files(
    data: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    storage_options: StorageOptions | None = None,
    filesystem: fsspec.AbstractFileSystem | None = None,
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
    options = dict(storage_options or {})
    roots: list[str] = []
    infos: dict[str, Mapping[str, Any]] = {}
    fs: fsspec.AbstractFileSystem | None = filesystem
    for url in urls:
        if filesystem is None:
            opened, path = _open(url, options)
            if fs is not None and opened is not fs:
                raise OptionError(f"{redact(urls[0])} and {redact(url)} lie on different file systems: read them apart")
            fs = opened
        else:
            path = str(filesystem._strip_protocol(url))
        try:
            with _translated(url):
                root, found = _expand(fs, path, url)
        except TypeError as error:
            if not options:
                raise
            # Some file systems meet an option that they do not know only when they connect.
            raise OptionError(f"{redact(url)}: storage_options {sorted(options)} do not fit: {error}") from None
        roots.append(root)
        for name, info in found.items():
            if name in infos:
                raise OptionError(f"{redact(name)} is given twice: its rows would come twice")
            infos[name] = info
    root = roots[0] if len(roots) == 1 else posixpath.commonpath(roots)
    prefix = f"{root}/" if root and not root.endswith("/") else root
    files = [_file_info(name.removeprefix(prefix), info) for name, info in sorted(infos.items())]
    # Of a given file system the URL says at least its protocol, for an index that is saved and loaded without it.
    url = urls[0] if filesystem is None else str(filesystem.unstrip_protocol(root))
    return Storage(url, root, options, filesystem), files


def write_atomic(path: str | os.PathLike[str], write: Callable[[Path], None]) -> None:
    """Write a local file, or folder of files, so that it is whole or not there: beside, flushed to disk, renamed."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        write(beside)
        for part in [*beside.iterdir(), beside] if beside.is_dir() else [beside]:
            _flush(part)
        beside.replace(target)
    finally:
        if beside.is_dir():
            shutil.rmtree(beside)
        beside.unlink(missing_ok=True)
    _flush(target.parent)


def _flush(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def redact(text: str) -> str:
    """Return `text` without what may be secret in a URL: user and password, and the query."""
    text = re.sub(r"(\w://)[^/@\s]*@", r"\1***@", text)
    return re.sub(r"\?\S*=\S*", "?***", text)


def _open(url: str, options: StorageOptions) -> tuple[fsspec.AbstractFileSystem, str]:
    asked = copy.deepcopy(dict(options))  # fsspec writes into what it is given.
    for place, link in enumerate(url.split("::")):
        if re.match(r"s3a?(://|$)", link):
            # A read cache would fetch megabytes around each footer and column chunk.
            (asked if place == 0 else asked.setdefault("s3", {})).setdefault("default_cache_type", "none")
    try:
        return url_to_fs(url, **asked)  # type: ignore[no-any-return]
    except (ValueError, ImportError) as error:
        raise OptionError(f"{redact(url)}: {redact(str(error))}") from None


def _protocols(fs: fsspec.AbstractFileSystem) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _expand(fs: fsspec.AbstractFileSystem, path: str, url: str) -> tuple[str, dict[str, Mapping[str, Any]]]:
    """Return the root and the files by full path that one path means."""
    if _MAGIC.search(path) and not fs.exists(path):
        root = posixpath.dirname(path[: _MAGIC.search(path).start()])  # type: ignore[union-attr]
        found = {p: i for p, i in fs.glob(path, detail=True).items() if i["type"] == "file" and _visible(p, root)}
        if not found:
            raise NoFilesError(f"no file matches {redact(url)} (names starting with '_' or '.' are skipped)")
        return root, found
    try:
        info = fs.info(path)
    except FileNotFoundError:
        raise NoFilesError(f"{redact(url)} does not exist: looked for a file, a folder or a glob") from None
    if info["type"] == "file":
        return posixpath.dirname(path.rstrip("/")), {path.rstrip("/"): info}
    root = path.rstrip("/")
    everything = fs.find(path, detail=True)
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


def _visible(path: str, root: str) -> bool:
    below = path.removeprefix(root).split("/")
    return not any(part.startswith(("_", ".")) for part in below)


def _file_info(path: str, info: Mapping[str, Any], keys: Sequence[str] = _VERSION_KEYS) -> FileInfo:
    version = next((f"{key}={_plain(info[key])}" for key in keys if info.get(key)), "")
    if info.get("size") is None:
        raise StorageError(f"{redact(path)}: the file system does not tell its size")
    return FileInfo(path, int(info["size"]), version)


def _plain(version: Any) -> Any:
    """Give a time of change in seconds, as some file systems tell it now so and now as a datetime."""
    return version.timestamp() if isinstance(version, datetime) else version


class _translated:  # noqa: N801 - reads as a word in `with _translated(path):`
    """Turn what a file system raises into a StorageError whose text holds no secret."""

    def __init__(self, path: str):
        self.path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, StorageError) or not isinstance(error, _storage_faults()):
            return
        text = f"{redact(self.path)}: {type(error).__name__}: {redact(str(error))}"
        if isinstance(error, FileNotFoundError):
            raise NoFilesError(text) from None
        if isinstance(error, PermissionError) or type(error).__name__ == "NoCredentialsError":
            raise AccessDeniedError(f"{text} (check the credentials in storage_options or the environment)") from None
        raise StorageError(text) from None


def _storage_faults() -> tuple[type[BaseException], ...]:
    import aiohttp
    import botocore.exceptions

    return (OSError, aiohttp.ClientError, botocore.exceptions.BotoCoreError)


def _may_pass(error: BaseException) -> bool:
    """Whether a fault of a file system may be gone at the next try."""
    final = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
    if isinstance(error, final) or type(error).__name__ == "NoCredentialsError":
        return False
    return isinstance(error, _storage_faults())


def _retried(call: Callable[[], T], path: str) -> T:
    def log(attempt: tenacity.RetryCallState) -> None:
        # Only the kind of the fault: its text may hold a signed URL.
        fault = attempt.outcome and attempt.outcome.exception()
        _LOG.warning("%s: %s, attempt %d of %d", redact(path), type(fault).__name__, attempt.attempt_number, _ATTEMPTS)

    return tenacity.retry(
        before_sleep=log,
        retry=tenacity.retry_if_exception(_may_pass),
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=5),
        reraise=True,
    )(call)()

"""Ranges of remote files, kept on a local disk: bounded, and shared by the processes of a machine."""

import hashlib
import itertools
import os
import shutil
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from corgiarrow.errors import MissingExtraError, OptionError
from corgiarrow.storage.faults import LOG
from corgiarrow.units import parse_bytes, show_bytes

DEFAULT_CACHE_BYTES = "32 GiB"
_OWN_FOLDER = "corgiarrow-ranges"
"""In the user's folder, where other things may lie: what is in here may be taken away."""
_BUSY_S = 5.0
"""Seconds to wait for another process that holds the database."""
_TIDY_S = 86_400.0
"""Seconds after which a folder is looked through for strays again."""
_STRAY_S = 3600.0
"""Seconds after which a file that the database does not know is no longer being written."""
_REPLACES = 8
"""Of so many new ranges a full cache takes one, for the oldest ones. Taking them all, it would lose most of what it
holds before the next epoch comes to it: with room for half of the data a fifth is found again, not nearly half."""
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_SETTINGS = {
    "eviction_policy": "none",  # It would throw out ten at a time.
    "cull_limit": 0,
    "sqlite_cache_size": 1000,  # Pages: a connection lives for one range.
    "sqlite_mmap_size": 0,  # A damaged file in memory would end the process.
    "sqlite_synchronous": 0,  # What is lost with the machine is fetched again, and a damaged database begun anew.
}

T = TypeVar("T")


class _ForkGate:
    """Lets no fork come while a database is open: a child that inherits it has none of its locks, but thinks it has."""

    def __init__(self) -> None:
        self._inside = self._waiting = 0
        self._changed = threading.Condition(threading.Lock())
        os.register_at_fork(before=self._shut, after_in_parent=self._open, after_in_child=self._open_in_child)

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def _shut(self) -> None:
        self._changed.acquire()
        self._waiting += 1
        self._changed.wait_for(lambda: not self._inside)

    def _open(self) -> None:
        self._waiting -= 1
        self._changed.notify_all()
        self._changed.release()

    def _open_in_child(self) -> None:
        self._waiting = 1  # Threads that wait with it to fork are not there.
        self._open()


_GATE = _ForkGate()


class RangeCache:
    """A cache of byte strings in a folder, by the `diskcache` library.

    What is kept longest goes first when the folder is full. A cache that fails (no space, no right to write, a damaged
    database) is told once in the log, and then done without: reading goes on from the storage. After a write that
    failed, what is there is still read.

    Parameters
    ----------
    folder
        Where; it is made when it is not there. Other processes may use it at the same time.
    limit
        Bytes that it may hold; what is being written at the time comes to that.

    Raises
    ------
    OptionError
        `limit` is not in bytes, or the folder cannot be made or written.
    MissingExtraError
        diskcache is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int | str = DEFAULT_CACHE_BYTES):
        self.limit = parse_bytes("cache_bytes", limit)
        if not isinstance(folder, str | os.PathLike) or not str(folder):
            raise OptionError(f"cache={folder!r} must be a folder on a local disk")
        given = str(folder)
        if "://" in given:
            raise OptionError(f"cache={given.partition('://')[0]}://… must be a folder on a local disk")
        # A process that it is sent to may have another working directory; and diskcache would expand it too.
        self.folder = str(Path(os.path.expandvars(given)).expanduser().absolute() / _OWN_FOLDER)
        self._begin()
        try:
            self._use(lambda cache: None)
        except (OSError, sqlite3.Error) as error:
            failed = f"cache={given!r} cannot be used: {error}: give a folder that can be written"
            raise OptionError(failed) from None

    def _begin(self) -> None:
        self._cache: Any = None
        self._lock = threading.Lock()
        self._turns = itertools.count()
        self._failed: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "limit": self.limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def get(self, key: str, nbytes: int) -> bytes | None:
        """Return what is kept under a key, where it is the bytes that were put there, and so many."""
        name = _digest(key)
        data, checksum = self._tried("reading", lambda cache: cache.get(name, tag=True)) or (None, None)
        if isinstance(data, bytes) and len(data) == nbytes and _checksum(name, data) == checksum:
            return data
        return None

    def put(self, key: str, data: bytes) -> None:
        """Keep some bytes, as far as there is room for them at all."""
        name = _digest(key)

        def put(cache: Any) -> None:
            if cache.volume() + len(data) > self.limit and next(self._turns) % _REPLACES:
                return
            try:
                cache.set(name, data, tag=_checksum(name, data))
            except sqlite3.Error:
                cache.disk.undo()
                raise
            for oldest in cache:
                if cache.volume() <= self.limit:
                    return
                cache.delete(oldest)

        if len(data) <= self.limit:
            self._tried("writing", put)

    def _tried(self, what: str, use: Callable[[Any], T]) -> T | None:
        if what in self._failed:
            return None
        try:
            return self._use(use)
        except (OSError, sqlite3.Error) as error:
            code = _code(error)
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                return None  # Another process holds the database: the storage is not busier for one more request.
            failed = {"writing"} if what == "writing" and code not in _DAMAGE else {"reading", "writing"}
            with self._lock:
                is_told = failed <= self._failed
                self._failed |= failed
            if not is_told:
                LOG.warning(
                    "cache %s (at most %s): %s fails, reading goes on without it: %s: %s",
                    *(self.folder, show_bytes(self.limit), what, type(error).__name__, error),
                )
            if code in _DAMAGE:
                shutil.rmtree(self.folder, ignore_errors=True)  # The next process begins anew.
            return None

    def _use(self, use: Callable[[Any], T]) -> T:
        with _GATE:
            with self._lock:
                if self._cache is None:
                    self._cache = _open(Path(self.folder), self.limit)
                cache = self._cache
            try:
                return use(cache)
            except cache.busy as error:
                # Whatever kept a transaction from beginning, which may be something else.
                raise error.__context__ or OSError("busy") from None
            finally:
                cache.close()  # This thread's connection.


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _checksum(name: str, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(name.encode()))


def _code(error: Exception) -> int:
    """Return SQLite's code of an error, 0 of another one."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _open(folder: Path, limit: int) -> Any:
    try:
        import diskcache
    except ImportError:
        raise MissingExtraError("cache= needs diskcache: pip install 'corgiarrow[cache]'") from None

    class Bytes(diskcache.Disk):  # type: ignore[misc]
        """Bytes alone, written at once: what somebody else put there is never unpickled."""

        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **options)
            self._made = threading.local()

        def store(self, value: Any, read: bool, key: Any = diskcache.UNKNOWN) -> Any:
            self._made.name = None
            if len(value) < self.min_file_size:
                return super().store(value, read, key)
            # The library's own writes line by line, wherever a byte looks like the end of one.
            digits = os.urandom(16).hex()
            self._made.name = f"{digits[:2]}/{digits[2:]}.val"
            path = folder / self._made.name
            try:
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(value)
            except OSError:
                self.undo()
                raise
            return len(value), diskcache.core.MODE_BINARY, self._made.name, None

        def undo(self) -> None:
            """Remove the file that this thread made last."""
            if self._made.name is not None:
                self.remove(self._made.name)

        def remove(self, name: str) -> None:
            """Remove a file, and leave its folder to others that write in it."""
            (folder / name).unlink(missing_ok=True)

        def fetch(self, mode: int, filename: str, value: Any, read: bool) -> Any:
            if mode not in (diskcache.core.MODE_RAW, diskcache.core.MODE_BINARY):
                raise OSError("an entry holds no bytes")
            return super().fetch(mode, filename, value, read)

        def get(self, key: Any, raw: bool) -> Any:
            return key

    def opened() -> Any:
        folder.mkdir(parents=True, exist_ok=True)
        return diskcache.Cache(str(folder), timeout=_BUSY_S, size_limit=limit, disk=Bytes, **_SETTINGS)

    try:
        cache = opened()
    except (sqlite3.Error, ValueError, TypeError, AttributeError) as error:
        # Other errors than SQLite's are what the library makes of settings that are damaged.
        if isinstance(error, sqlite3.Error) and _code(error) not in _DAMAGE:
            raise
        LOG.warning("cache %s is damaged, and begun anew: %s", folder, error)
        shutil.rmtree(folder)
        cache = opened()
    cache.busy = diskcache.Timeout
    _tidy(folder, folder / diskcache.core.DBNAME)
    return cache


def _tidy(folder: Path, database: Path) -> None:
    """Take away files that the database does not know: a process was killed while it wrote one."""
    mark, now = folder / "tidied", time.time()
    if mark.exists() and abs(now - mark.stat().st_mtime) < _TIDY_S:
        return
    mark.touch()
    # The library's check would hold the database all the while, and take away what others are about to tell it.
    files = [file for file in folder.glob("??/*.val") if now - file.stat().st_mtime > _STRAY_S]
    with closing(sqlite3.connect(database, timeout=_BUSY_S)) as connection:
        known = {name for (name,) in connection.execute("SELECT filename FROM Cache")}
    for file in files:
        if str(file.relative_to(folder)) not in known:
            file.unlink(missing_ok=True)

"""Ranges of remote files, kept on a local disk: bounded, and shared by the processes of a machine."""

import hashlib
import os
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from corgiarrow.errors import MissingExtraError, OptionError
from corgiarrow.storage.faults import LOG
from corgiarrow.units import parse_bytes, show_bytes

DEFAULT_CACHE_BYTES = "32 GiB"
_BUSY_S = 5.0
"""Seconds to wait for another process that holds the database."""
_TIDY_S = 86_400.0
"""Seconds after which a folder is looked through for strays again."""

T = TypeVar("T")


class RangeCache:
    """A cache of byte strings in a folder, by the `diskcache` library.

    What is kept longest goes first when the folder is full. A cache that fails (no space, no right to write, a damaged
    file) is told once in the log, and then done without: reading goes on from the storage.

    Parameters
    ----------
    folder
        Where; it is made when it is not there. Other processes may use it at the same time.
    limit
        Bytes that it may hold.

    Raises
    ------
    OptionError
        `limit` is not in bytes, or the folder cannot be made or written.
    MissingExtraError
        diskcache is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int | str = DEFAULT_CACHE_BYTES):
        self.folder = os.fspath(folder)
        self.limit = parse_bytes("cache_bytes", limit)
        self._begin()
        if "://" in self.folder:
            raise OptionError(f"cache={self.folder.partition('://')[0]}://… must be a folder on a local disk")
        try:
            Path(self.folder).mkdir(parents=True, exist_ok=True)
            self._opened()
        except (OSError, sqlite3.Error) as error:
            failed = f"cache={self.folder!r} cannot be used: {error}: give a folder that can be written"
            raise OptionError(failed) from None

    def _begin(self) -> None:
        self._cache: Any = None
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._failed = False

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "limit": self.limit}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _opened(self) -> Any:
        if self._pid != os.getpid():
            self._begin()  # A database that is open does not cross a fork.
        with self._lock:
            if self._cache is None:
                self._cache = _open(self.folder, self.limit)
            return self._cache

    def get(self, key: str, nbytes: int) -> bytes | None:
        """Return what is kept under a key, where it has the right number of bytes."""
        found = self._tried(lambda cache: cache.get(_digest(key)))
        return found if isinstance(found, bytes) and len(found) == nbytes else None

    def put(self, key: str, data: bytes) -> None:
        """Keep some bytes, as far as there is room for them at all."""
        if len(data) <= self.limit:
            self._tried(lambda cache: cache.set(_digest(key), data))

    def _tried(self, use: Callable[[Any], T]) -> T | None:
        if self._failed and self._pid == os.getpid():
            return None
        cache = self._opened()
        try:
            return use(cache)
        except cache.busy:
            return None  # Another process holds the database: the storage is not busier for one more request.
        except (OSError, sqlite3.Error) as error:
            self._failed = True
            LOG.warning(
                "cache %s (at most %s) fails, reading goes on without it: %s: %s",
                *(self.folder, show_bytes(self.limit), type(error).__name__, error),
            )
            return None


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def _open(folder: str, limit: int) -> Any:
    try:
        import diskcache
    except ImportError:
        raise MissingExtraError("cache= needs diskcache: pip install 'corgiarrow[cache]'") from None

    class Bytes(diskcache.Disk):  # type: ignore[misc]
        """Bytes alone: what somebody else put there is never unpickled. No part of a file is left on a full disk."""

        def store(self, value: Any, read: bool, key: Any = diskcache.core.UNKNOWN) -> Any:
            self.made: Any = threading.local() if not hasattr(self, "made") else self.made
            try:
                return super().store(value, read, key)
            except OSError:
                Path(self.made.path).unlink(missing_ok=True)
                raise

        def filename(self, key: Any = diskcache.core.UNKNOWN, value: Any = diskcache.core.UNKNOWN) -> tuple[str, str]:
            name, path = super().filename(key, value)
            self.made.path = path
            return name, path

        def fetch(self, mode: int, filename: str, value: Any, read: bool) -> Any:
            if mode not in (diskcache.core.MODE_RAW, diskcache.core.MODE_BINARY):
                raise OSError("an entry holds no bytes")
            return super().fetch(mode, filename, value, read)

    cache = diskcache.Cache(
        folder, timeout=_BUSY_S, size_limit=limit, disk=Bytes, eviction_policy="least-recently-stored"
    )
    cache.busy = diskcache.Timeout
    _tidy(cache, Path(folder) / f"{diskcache.core.DBNAME}.tidied")
    return cache


def _tidy(cache: Any, mark: Path) -> None:
    """Take away files that the database does not know: a process was killed while it wrote one."""
    if mark.exists() and time.time() - mark.stat().st_mtime < _TIDY_S:
        return
    mark.touch()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It warns of each of them.
        cache.check(fix=True, retry=True)

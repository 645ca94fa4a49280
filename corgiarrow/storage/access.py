"""Opening a file system: in each process on first use, and anew when its credentials have expired."""

import copy
import os
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypedDict

import fsspec
from fsspec.core import url_to_fs

from corgiarrow.errors import OptionError
from corgiarrow.storage.faults import DEFAULT_TIMEOUT_S, Fault
from corgiarrow.storage.redaction import redact, redact_message, secrets_in

StorageOptions = Mapping[str, Any]

REQUESTS = 64
"""Requests that are under way at a time, at most."""


class AccessOptions(TypedDict, total=False):
    """Keywords that say how to reach the files.

    Attributes
    ----------
    storage_options
        Options of the file system, as fsspec names them, or a function without arguments that returns fresh ones: it is
        called when the file system is opened, and again when its credentials have expired.
    filesystem
        An fsspec file system to use instead of opening one.
    cache
        A folder on a local disk where bytes that were fetched from remote files are kept.
    cache_bytes
        Bytes that `cache` may hold, a number or a string such as ``"200 GiB"``.
    timeout
        Seconds in which the bytes of a block must have come from a remote storage, all tries together.
    index_cache
        Whether what the footers of remote files say is kept in the user's cache folder, until they change; True.
    """

    storage_options: "StorageOptions | Callable[[], StorageOptions] | None"
    filesystem: fsspec.AbstractFileSystem | None
    cache: str | os.PathLike[str] | None
    cache_bytes: int | str
    timeout: float
    index_cache: bool


class Access:
    """A file system, and how to open it.

    Parameters
    ----------
    url
        What :func:`fsspec.core.url_to_fs` takes.
    storage_options, filesystem, timeout
        See :class:`AccessOptions`.

    Raises
    ------
    OptionError
        `timeout` is out of its bounds.
    """

    def __init__(
        self,
        url: str,
        storage_options: "StorageOptions | Callable[[], StorageOptions] | None" = None,
        filesystem: fsspec.AbstractFileSystem | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
    ):
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise OptionError(f"timeout={timeout!r} must be a number of seconds above 0")
        self.url = url
        self.timeout_s = float(timeout)
        self._asked: Any = storage_options if callable(storage_options) else {**(storage_options or {})}
        self._given = filesystem
        self._begin()

    def _begin(self) -> None:
        self._fs: fsspec.AbstractFileSystem | None = self._given
        self._options: StorageOptions | None = None
        self._secrets = secrets_in([] if callable(self._asked) else self._asked)
        self._secrets += secrets_in(getattr(self._given, "storage_options", None))
        self._opened = 0
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("url", "timeout_s", "_asked", "_given")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @property
    def options(self) -> StorageOptions:
        """The user's options; where they come from a function, what it returned last."""
        if self._options is None:
            found: Any = self._asked() if callable(self._asked) else self._asked
            if not isinstance(found, Mapping):
                raise OptionError(f"storage_options() must return a mapping, but gave a {type(found).__name__}")
            self._options = {**found}
            self._secrets += [text for text in secrets_in(found) if text not in self._secrets]
        return self._options

    @property
    def secrets(self) -> list[str]:
        """Values that must not stand in any text: a list that grows when a function returns others."""
        return self._secrets

    @property
    def place(self) -> str:
        """Which of the services of its kind the file system speaks to, for keys of a cache."""
        fs = self.fs
        client = getattr(fs, "client_kwargs", None) or {}
        endpoint = getattr(fs, "endpoint_url", None) or client.get("endpoint_url") or getattr(fs, "account_name", "")
        return f"{protocols(fs)[0]} {redact(str(endpoint))}"

    @property
    def is_open(self) -> bool:
        """Whether asking for the file system opens nothing."""
        return self._fs is not None and self._pid == os.getpid()

    @property
    def fs(self) -> fsspec.AbstractFileSystem:
        """The file system, of this process."""
        if self._pid != os.getpid():
            # What the parent process made holds threads and connections that a forked child has not.
            self._begin()
            self._fs = None
        with self._lock:
            if self._fs is None:
                self._fs = self._open()
                self._opened += 1
            return self._fs

    def refused(self, fs: fsspec.AbstractFileSystem | None, fault: Fault) -> bool:
        """Learn that a file system's credentials were refused; say whether another try may help.

        The next try opens it anew, with fresh options where they come from a function. What was refused without having
        expired is only tried again with such ones.
        """
        if fault is not Fault.EXPIRED and not callable(self._asked):
            return False
        with self._lock:
            if self._fs is fs:
                self._fs = self._options = None
        return True

    def _open(self) -> fsspec.AbstractFileSystem:
        if self._given is not None:
            return type(self._given)(
                *self._given.storage_args, **{**self._given.storage_options, "skip_instance_cache": True}
            )
        return _open(self.url, self.options, anew=self._opened > 0)


def located(url: str, options: StorageOptions) -> tuple[fsspec.AbstractFileSystem, str]:
    """Return fsspec's file system of a URL, the same for all URLs of one, and the URL's path on it.

    Raises
    ------
    OptionError
        There is no such protocol, or its package is not installed.
    """
    try:
        return url_to_fs(url, **copy.deepcopy(dict(options)))  # type: ignore[no-any-return]
    except (ValueError, ImportError) as error:
        failed = OptionError(f"{redact(url)}: {redact_message(str(error), secrets_in(options))}")
    raise failed


def _open(url: str, options: StorageOptions, anew: bool) -> fsspec.AbstractFileSystem:
    """Open the file system of a URL.

    S3 is opened without its read cache, which would fetch megabytes around each footer and column chunk, with
    connections enough, and without the tries of the drivers below: ours are counted, bounded and logged.
    """
    asked = copy.deepcopy(dict(options))  # fsspec writes into what it is given.
    own = anew
    for place, link in enumerate(url.split("::")):
        protocol = link.partition("://")[0]
        here = asked if place == 0 else asked.setdefault(protocol, {})
        if protocol in ("s3", "s3a"):
            own = own or place == 0
            here.setdefault("default_cache_type", "none")
            config = here.setdefault("config_kwargs", {})
            config.setdefault("max_pool_connections", REQUESTS)
            config.setdefault("retries", {"max_attempts": 0})
        if anew and place:
            here["skip_instance_cache"] = True
    if own:
        asked["skip_instance_cache"] = True  # What is set below concerns nobody else.
    fs, _ = located(url, asked)
    if own and hasattr(fs, "retries"):
        fs.retries = 1
    return fs


def is_async(fs: fsspec.AbstractFileSystem) -> bool:
    """Whether a file system answers coroutines in fsspec's own thread; one that wraps another is as that one."""
    inner = getattr(fs, "fs", None)
    wraps = isinstance(inner, fsspec.AbstractFileSystem)
    return bool(fs.async_impl and not fs.asynchronous and (not wraps or is_async(inner)))


def is_local(fs: fsspec.AbstractFileSystem) -> bool:
    """Whether paths of a file system are paths of this machine."""
    return "file" in protocols(fs)


def protocols(fs: fsspec.AbstractFileSystem) -> tuple[str, ...]:
    """Names of a file system's protocol."""
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def has_scheme(path: str) -> bool:
    """Whether a path begins with a protocol, as HTTP's do."""
    return bool(re.match(r"\w[\w+.-]*://", path))

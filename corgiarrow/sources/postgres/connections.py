"""Connections to a PostgreSQL server through ADBC, and what its errors mean."""

import ctypes
import os
import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pyarrow as pa

from corgiarrow.errors import AccessDeniedError, CorgiArrowError, MissingExtraError, OptionError, StorageError
from corgiarrow.storage import redact_message, without_secrets

_SCHEMES = ("postgresql://", "postgres://")

_DEFAULTS = {
    "application_name": "corgiarrow",
    "connect_timeout": "10",
    # A server that is gone without a word is noticed after a minute.
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""libpq's parameters where the URL has no others."""

_BATCH_BYTES = 2**20
"""Bytes after which ADBC begins another batch: it lets its buffers grow by doubling, so small ones waste less."""

_LOST_CLASSES = ("08", "57P")
_PASSING_STATES = {"40001", "40P01", "53300", "53400", "55P03"}
_PASSING_WORDS = (
    "starting up",
    "shutting down",
    "too many clients",
    "connection slots",
    "in recovery mode",
    "terminating connection",
    "server closed the connection",
)
"""What FATAL messages say which come without an SQLSTATE, at a connection's beginning or after it was ended unasked."""
_NO_SNAPSHOT_STATES = {"42704", "22023"}


class Fault(Enum):
    """Kinds of errors of a server."""

    PASSES = "may be gone with another connection"
    CANCELLED = "cancelled by a timeout or by somebody"
    NO_SNAPSHOT = "the snapshot is gone"
    DENIED = "refused"
    LASTS = "will be the same at the next try"


class ServerError(Exception):
    """What a server, or the way to it, answered with an error; the text holds no secret.

    Attributes
    ----------
    fault
        What it means.
    state
        Its SQLSTATE, or "".
    """

    def __init__(self, text: str, fault: Fault, state: str):
        super().__init__(text)
        self.fault = fault
        self.state = state

    def as_ours(self, what: str) -> CorgiArrowError:
        """Return the error to raise, after `what` was tried."""
        kind = AccessDeniedError if self.fault is Fault.DENIED else StorageError
        return kind(f"{what}: {self}")


@contextmanager
def raised(what: str) -> Iterator[None]:
    """Raise what a server says as an error of ours, after `what` was tried."""
    try:
        yield
    except ServerError as error:
        raise error.as_ours(what) from None


def is_postgres(data: Any) -> bool:
    """Whether something is the URL of a PostgreSQL database."""
    return isinstance(data, str) and data.startswith(_SCHEMES)


def quoted(*names: str) -> str:
    """Return an SQL identifier, of its parts: whatever they hold, they stay one name."""
    if any("\0" in name for name in names):
        raise OptionError(f"{names!r} cannot be names of a database: they hold a zero byte")
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    """Return an SQL string, which stays one whatever it holds and however the server reads backslashes."""
    if "\0" in text:
        raise OptionError(f"{text!r} cannot be a text of a database: it holds a zero byte")
    doubled = text.replace("'", "''")
    return "E'" + doubled.replace("\\", "\\\\") + "'" if "\\" in text else f"'{doubled}'"


class Server:
    """A database, and how to reach it.

    Parameters
    ----------
    url
        ``postgresql://user:password@host:port/database?parameters``; what it leaves out comes from where libpq looks:
        ``PGPASSWORD`` and the like, ``~/.pgpass``, service files.
    """

    def __init__(self, url: str):
        if not is_postgres(url):
            raise OptionError(f"{without_secrets(url)!r} must be a URL that begins with postgresql://")
        self._url = url

    def __repr__(self) -> str:
        return self.shown

    @property
    def shown(self) -> str:
        """The URL without what may be secret."""
        return without_secrets(self._url)

    def connect(self) -> "Connection":
        """Open a connection.

        Raises
        ------
        ServerError
            It cannot be opened.
        MissingExtraError
            The driver is not installed.
        """
        return Connection(self)

    @property
    def uri(self) -> str:
        """What libpq takes."""
        given = dict(parse_qsl(urlsplit(self._url).query, keep_blank_values=True))
        more = "&".join(f"{name}={value}" for name, value in _DEFAULTS.items() if name not in given)
        return self._url + ("&" if urlsplit(self._url).query else "" if self._url.endswith("?") else "?") + more

    @property
    def _secrets(self) -> list[str]:
        parts = urlsplit(self._url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        found = [unquote(parts.password or ""), given.get("password", ""), given.get("sslpassword", "")]
        return [*filter(None, found), *filter(None, [os.environ.get("PGPASSWORD")])]

    @contextmanager
    def told(self) -> Iterator[None]:
        """Turn the driver's errors into :class:`ServerError`."""
        from adbc_driver_manager import Error

        try:
            yield
        except Error as error:
            text, state = str(error), getattr(error, "sqlstate", None) or ""
            raise ServerError(redact_message(_plain(text), self._secrets), _fault(text, state), state) from None


def _driver() -> Any:
    try:
        import adbc_driver_postgresql.dbapi
    except ImportError:
        raise MissingExtraError("PostgreSQL is read through ADBC: pip install 'corgiarrow[postgres]'") from None
    return adbc_driver_postgresql.dbapi


def _plain(text: str) -> str:
    """Shorten a driver's message to what the server said."""
    text = text.split("\nQuery was:")[0]
    text = re.sub(r"^[A-Z_]+: (\[libpq\] )?", "", text)
    text = re.sub(r"^Failed to \w+ query.*?: (?=[A-Z]+: )", "", text, flags=re.DOTALL)
    text = re.sub(r"^(Failed to \w+ query[^:]*: |Execution error \[\w+\]: )+", "", text)
    return re.sub(r"\.? ?SQLSTATE: \w+\s*$", "", " ".join(text.split())).strip()


def _fault(text: str, state: str) -> Fault:
    if not state:
        # Of a server that takes no connection there is only the text. One that answered FATAL has looked at who asks.
        refused = "FATAL:" in text and not any(word in text for word in _PASSING_WORDS)
        known = "no pg_hba.conf entry" in text or "authentication failed" in text or "no password supplied" in text
        if known:
            return Fault.DENIED
        return Fault.LASTS if refused or "invalid" in text or "could not translate host name" in text else Fault.PASSES
    if state == "57014":
        return Fault.CANCELLED
    if state in _NO_SNAPSHOT_STATES and "snapshot" in text:
        return Fault.NO_SNAPSHOT
    if state.startswith(_LOST_CLASSES) or state in _PASSING_STATES:
        return Fault.PASSES
    return Fault.DENIED if state == "42501" or state.startswith("28") else Fault.LASTS


class Connection:
    """One connection, outside of a transaction until :meth:`run` begins one. One thread at a time uses it."""

    def __init__(self, server: Server):
        driver = _driver()
        self._server = server
        self._lock = threading.Lock()
        self._running: Any = None
        with server.told():
            self._handle = driver.connect(server.uri, autocommit=True)
        _OPEN.add(self)

    @property
    def handle(self) -> Any:
        """The driver's own connection."""
        return self._handle

    def run(self, sql: str) -> None:
        """Run a statement that returns nothing."""
        self._query(sql, copy=False)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query, a few."""
        return list(zip(*(column.to_pylist() for column in self._query(sql, copy=False).columns), strict=True))

    def table(self, sql: str) -> pa.Table:
        """Return the rows of a query, by COPY."""
        return self._query(sql, copy=True)

    def _query(self, sql: str, *, copy: bool) -> pa.Table:
        with self._server.told():
            cursor = self._handle.cursor()
            with self._lock:
                self._running = cursor
            try:
                cursor.adbc_statement.set_options(
                    **{
                        "adbc.postgresql.use_copy": "true" if copy else "false",
                        "adbc.postgresql.batch_size_hint_bytes": str(_BATCH_BYTES),
                    }
                )
                cursor.execute(sql)
                return cursor.fetch_arrow_table()
            finally:
                with self._lock:
                    self._running = None
                cursor.close()

    def ingest(self, schema: str | None, table: str, batches: pa.RecordBatchReader) -> None:
        """Make a table of batches, by COPY, in the transaction that is open."""
        with self._server.told(), self._handle.cursor() as cursor:
            cursor.adbc_ingest(table, batches, mode="create", db_schema_name=schema)

    def cancel(self) -> None:
        """Ask the server to break off what another thread runs here, if anything."""
        with self._lock:
            if self._running is not None:
                with self._server.told():
                    self._running.adbc_cancel()

    def close(self) -> None:
        """Close it; a transaction that is open is rolled back."""
        _OPEN.discard(self)
        with self._server.told():
            self._handle.close()

    def disown(self) -> None:
        """Leave a connection to the process that this one was forked from: closing it here would end it there."""
        handle, self._handle = self._handle, _Gone()
        # It must not be collected either, not even when the interpreter ends: that closes it.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(handle))


class _Gone:
    """In the place of a connection that belongs to another process."""

    def close(self) -> None:
        """Do nothing."""


_OPEN: "weakref.WeakSet[Connection]" = weakref.WeakSet()


def _disown_all() -> None:
    for connection in list(_OPEN):
        connection.disown()
    _OPEN.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_disown_all)

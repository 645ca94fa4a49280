"""One snapshot of a database, and the connections of this process that read in it."""

import threading
from contextlib import suppress
from dataclasses import dataclass, field

from corgiarrow.sources.postgres.connections import Connection, Server, ServerError, literal
from corgiarrow.sources.postgres.relations import Table

_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

_SETTINGS = {
    # Rows of a block come in the order of their addresses.
    "enable_seqscan": "off",
    "enable_indexscan": "off",
    "enable_indexonlyscan": "off",
    "enable_bitmapscan": "off",
    "synchronize_seqscans": "off",
    "max_parallel_workers_per_gather": "0",
    # What is switched off counts as very dear, for which a plan would be compiled.
    "jit": "off",
}
_PATIENCE = {"idle_in_transaction_session_timeout": "0", "transaction_timeout": "0", "idle_session_timeout": "0"}
"""A snapshot lasts as long as the transaction that exported it, however long the training takes."""


@dataclass
class Snapshot:
    """A snapshot.

    Attributes
    ----------
    server
        Where.
    name
        Its name, by which other connections take it.
    keeper
        The connection whose transaction keeps it, where that is this process's.
    """

    server: Server
    name: str
    keeper: Connection | None = None
    _idle: list[Connection] = field(default_factory=list, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _closed: bool = field(default=False, repr=False)

    @classmethod
    def take(cls, server: Server, table: Table, keeper: Connection) -> "Snapshot":
        """Take a snapshot in which a table is held; the connection is the snapshot's from now on.

        Raises
        ------
        ServerError
            The server refuses.
        """
        keeper.run(_BEGIN)
        _set(keeper, _PATIENCE)
        # Held first, so that nothing that empties or rewrites it comes between.
        table.hold(keeper)
        ((name,),) = keeper.rows("SELECT pg_export_snapshot()")
        return cls(server, name, keeper)

    def borrow(self) -> Connection:
        """Return a connection in a transaction that reads this snapshot.

        Raises
        ------
        ServerError
            None can be opened, or the snapshot is gone.
        """
        with self._lock:
            if self._idle:
                return self._idle.pop()
        connection = self.server.connect()
        try:
            connection.run(_BEGIN)
            connection.run(f"SET TRANSACTION SNAPSHOT {literal(self.name)}")
            _set(connection, _SETTINGS | _PATIENCE)
        except BaseException:
            drop(connection)
            raise
        return connection

    def give_back(self, connection: Connection) -> None:
        """Take back a connection that was borrowed, and whose transaction is sound."""
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        drop(connection)

    def rest(self) -> None:
        """Close the connections that nobody uses, but for the keeper."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            drop(connection)

    def close(self) -> None:
        """Let go of the snapshot."""
        with self._lock:
            self._closed = True
        self.rest()
        if self.keeper is not None:
            drop(self.keeper)
            self.keeper = None


def _set(connection: Connection, settings: dict[str, str]) -> None:
    """Set what of some parameters this version of the server has, until the transaction ends."""
    names = ", ".join(map(literal, settings))
    values = " ".join(f"WHEN {literal(name)} THEN {literal(value)}" for name, value in settings.items())
    connection.rows(
        f"SELECT set_config(name, CASE name {values} END, true) FROM pg_settings WHERE name IN ({names})"
    )


def drop(connection: Connection) -> None:
    """Close a connection, which may be broken."""
    with suppress(ServerError):
        connection.close()

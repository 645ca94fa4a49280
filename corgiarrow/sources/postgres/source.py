"""A table of a PostgreSQL server as a block source: runs of its pages, read in one snapshot."""

import copy
import hashlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import tenacity

from corgiarrow.errors import (
    ColumnNotFoundError,
    CorgiArrowError,
    OptionError,
    ReadError,
    SourceChangedError,
    StorageError,
)
from corgiarrow.schemas import SchemaRequest, fixed_bytes
from corgiarrow.sources.postgres.blocks import Counts, Int64s, PageRuns, count_rows, cut_pages, select_sql
from corgiarrow.sources.postgres.connections import Connection, Fault, Server, ServerError, quoted, raised
from corgiarrow.sources.postgres.relations import Table, find_columns, find_table, with_sizes
from corgiarrow.sources.postgres.snapshots import Snapshot, drop
from corgiarrow.sources.postgres.types import Dimension, NotPackedError
from corgiarrow.split import Split
from corgiarrow.storage import Traffic

_LOG = logging.getLogger("corgiarrow")

_TIMEOUT_S = 300.0
"""Seconds in which a block must have come, all tries together."""

_FIRST_ATTEMPTS, _ATTEMPTS = 4, 20
_CANCELLED_ATTEMPTS = 3
"""What ``statement_timeout`` cancels is tried so often: it takes about as long again."""

_SAMPLED_BLOCKS, _SAMPLED_ROWS = 8, 256
_DECODE_FACTOR = 1.0
"""What the driver holds of a block beside the block, about: its buffers grow by doubling."""

_HASH_BITS = 53


class DatabaseOptions(TypedDict, total=False):
    """Keywords that go with the URL of a database, see :class:`PostgresSource`.

    Attributes
    ----------
    table
        The table to read; it must be given.
    where
        Which rows, in SQL.
    dimension
        Length of the arrays of floats.
    """

    table: str
    where: str | None
    dimension: "Dimension"


class PostgresSource:
    """Rows of a table, in blocks that are runs of its pages, as one snapshot has them.

    The snapshot is taken when the source is made, and kept until :meth:`close`: whatever others write, each row of it
    is read as it was. While it is kept, vacuum keeps the rows that others delete or update since; and nobody can drop,
    empty or rewrite the table. It pickles: other processes read the same snapshot as long as this one keeps it. Where
    a snapshot is lost (the server restarted, its connection was killed) or was let go, another one is taken, and
    reading goes on if it has the same rows.

    Parameters
    ----------
    url
        ``postgresql://user@host/database``. Passwords and whatever else it leaves out come from where libpq looks:
        ``PGPASSWORD``, ``~/.pgpass``, service files.
    table
        ``name`` or ``schema.name``, spelt as in the catalog, without quotes. Partitions are read with it.
    columns
        Names of the columns to read; None for all.
    where
        A condition in SQL. It is trusted: it runs as it is, in a transaction that only reads. It must give the same for
        a row each time (no ``now()`` or ``random()``).
    block_bytes
        Bytes on disk of a block, with what is TOASTed, at least a page. None for 4 MiB, or less where that would leave
        fewer than 1,000 blocks, down to 1 MiB, or less where that would leave fewer than 256.
    schema
        Types to give to columns, by name: what the server has is cast to them where no value is lost.
    dimension
        Length of all arrays of float4 or float8, by column, or one for all such columns: they become fixed-size lists.
        ``"first"`` takes the lengths of the first arrays; None leaves lists.
    split
        The part of the table to read. With `by` rows are told apart by the server's hash of the column.
    timeout
        Seconds in which a block must have come, all tries together.
    threads
        Connections to count rows with.

    Raises
    ------
    OptionError
        There is no such table, its rows lie in no pages (a view), or an option is out of its bounds.
    ColumnNotFoundError
        A column is not there.
    AccessDeniedError, StorageError
        The server refuses, or cannot be reached.
    """

    def __init__(
        self,
        url: str,
        table: str,
        columns: Sequence[str] | None = None,
        *,
        where: str | None = None,
        block_bytes: int | str | None = None,
        schema: SchemaRequest | None = None,
        dimension: "Dimension" = None,
        split: Split | None = None,
        timeout: float = _TIMEOUT_S,
        threads: int = 4,
    ):
        if not isinstance(table, str) or not table:
            raise OptionError(f"table={table!r} must be the name of a table, such as table='flights'")
        if where is not None and not (isinstance(where, str) and where.strip() and "\0" not in where):
            raise OptionError(f"where={where!r} must be a condition in SQL, such as where='year >= 2020'")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout > 0:
            raise OptionError(f"timeout={timeout!r} must be a number of seconds above 0")
        if split is not None and not isinstance(split, Split):
            raise OptionError(f"split={split!r} must be a corgiarrow.Split, such as Split(part='train')")
        self.server = Server(url)
        self.where = where
        self.split = split
        self.timeout_s = float(timeout)
        self._threads = threads
        self._condition = _condition(where, split)
        asked = schema if isinstance(schema, pa.Schema) else pa.schema(list((schema or {}).items()))
        self._types = {field.name: field.type for field in asked}
        self.retries = 0
        """Statements that were tried again."""

        def look() -> tuple[Table, Snapshot]:
            connection = self.server.connect()
            try:
                found = find_table(connection, table)
                snapshot = Snapshot.take(self.server, found, connection)
                return with_sizes(connection, found), snapshot
            except BaseException:
                drop(connection)
                raise

        what = f"cannot read table {table!r} of {self.server}"
        self.table, snapshot = self._tried(look, what, _FIRST_ATTEMPTS)
        self._held = Holder(self.server, snapshot)
        try:
            with raised(what):
                self.columns = find_columns(snapshot.keeper, self.table, columns, self._types, dimension)
                self._held.seen = self._activity(snapshot.keeper)
            self._all_runs = cut_pages(self.table, block_bytes)
            self._select(snapshot)
            self._column_bytes = self._bytes_by_column()
            self._held.snapshot.rest()
        except BaseException:
            self._held.close()
            raise

    def _select(self, snapshot: Snapshot) -> None:
        """Find the blocks that have rows to read, and how many."""
        self._all_counts = counts = self._count(snapshot, self._all_runs)
        chosen = self._chosen(self._all_runs, counts)
        self.runs = self._all_runs.picked(chosen)
        self.block_rows: Int64s = counts.rows[chosen]
        self.first_rows: Int64s = np.cumsum(self.block_rows) - self.block_rows
        """Number of the first row of each block, int64 [blocks]."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of what is read."""
        return pa.schema([column.field for column in self.columns])

    @property
    def block_bytes(self) -> Int64s:
        """Bytes of each block in memory, int64 [blocks]; of columns whose sizes vary, estimated from some rows."""
        found: Int64s = np.ceil(self.block_rows * self._column_bytes.sum()).astype(np.int64)
        return found

    @property
    def largest_column(self) -> float:
        """Part of ``block_bytes`` that the largest column takes, in [0, 1]."""
        return float(self._column_bytes.max() / max(self._column_bytes.sum(), 1e-9))

    piece_factor = 1 + _DECODE_FACTOR
    """What decoding a piece takes beside its rows, in units of them."""

    def narrowed(self, columns: Sequence[str]) -> "PostgresSource":
        """Return a source of the same rows, of some columns, in the same snapshot."""
        names = self.schema.names
        if missing := [name for name in columns if name not in names]:
            raise ColumnNotFoundError(f"columns={missing} are not read: choose from {', '.join(names[:50])}")
        places = [names.index(name) for name in columns]
        other = copy.copy(self)
        other.columns = tuple(self.columns[place] for place in places)
        other._column_bytes = self._column_bytes[places]
        return other

    def __repr__(self) -> str:
        return f"PostgresSource({self.server}, {self.table.root.shown!r}, {int(self.block_rows.sum())} rows)"

    def with_dimension(self, dimension: Dimension) -> "PostgresSource":
        """Return a source of these rows whose arrays of floats are vectors of a length."""
        other = copy.copy(self)
        keeper = self._held.snapshot.keeper
        assert keeper is not None, "the process that made the source keeps its snapshot"
        with raised(f"cannot look at {self.table.root.shown}"):
            other.columns = find_columns(keeper, self.table, self.schema.names, self._types, dimension)
        other._column_bytes = other._bytes_by_column()
        return other

    def with_split(self, split: Split) -> "PostgresSource":
        """Return a source of one part of these rows, in the same snapshot."""
        if self.split is not None:
            raise OptionError(f"split={split}: this source is a part already, {self.split}")
        other = copy.copy(self)
        other.split, other._condition = split, _condition(self.where, split)
        other._select(self._held.snapshot)
        return other

    @property
    def fingerprint(self) -> str:
        """A short text that changes with the table's name, columns, condition, and with each row that is written."""
        digest = hashlib.sha256()
        for column in self.columns:
            digest.update(f"{column.field.name}\0{column.field.type}\0{column.field.nullable}\0".encode())
        for relation in self.table.relations:
            digest.update(f"{relation.shown}\0".encode())
        for part in (self.runs.relation, self.runs.first):
            digest.update(part.astype("<i8").tobytes())
        digest.update(f"{self._condition}\0{'' if self.split is None else self.split.key}\0".encode())
        digest.update(self._all_counts.digest.encode())
        return digest.hexdigest()[:16]

    @property
    def decode_bytes(self) -> Int64s:
        """Bytes that reading each block whole takes beside its rows, int64 [blocks]."""
        found: Int64s = (_DECODE_FACTOR * self.block_bytes).astype(np.int64)
        return found

    def cursor_bytes(self, blocks: Int64s) -> int:
        """Return 0: a piece of a block is a query of its own, and nothing is held between two."""
        return 0

    def session(
        self,
        pieces: Int64s | None = None,
        *,
        open_blocks: int = 1,
        compact: bool = True,
        threads: int = 1,
        row_ids: bool = False,
    ) -> "PostgresSession":
        """Start a pass of reading."""
        if self._held.begin_session():
            self._tell_changes()
        return PostgresSession(self, row_ids)

    def locate(self, row_ids: Int64s) -> pa.RecordBatch:
        """Say where rows lie: ``_file`` is a relation, ``_row_group`` a block's first page, ``_row`` counts in it."""
        block = np.searchsorted(self.first_rows, row_ids, side="right") - 1
        names = pa.array([relation.shown for relation in self.table.relations], pa.string())
        return pa.record_batch(
            {
                "_file": names.take(pa.array(self.runs.relation[block])),
                "_row_group": pa.array(self.runs.first[block].astype(np.int32)),
                "_row": pa.array(row_ids - self.first_rows[block]),
            }
        )

    def describe(self, block: int) -> str:
        """Name a block by its relation and pages."""
        return self._describe(self.runs, block)

    def _describe(self, runs: PageRuns, number: int) -> str:
        first, last = int(runs.first[number]), int(runs.stop[number]) - 1
        shown = self.table.relations[runs.relation[number]].shown
        return f"{shown}, page {first}" if first == last else f"{shown}, pages {first} to {last}"

    def close(self) -> None:
        """Let go of the snapshot and of all connections, unless a pass is under way.

        A later pass takes another snapshot, and raises where that has other rows.
        """
        self._held.close()

    def read_rows(self, block: int, start: int, stop: int, stopping: "Stop") -> pa.Table:
        """Read rows of a block, tried again where that may help.

        Raises
        ------
        ReadError
            They cannot be read.
        SourceChangedError
            The snapshot was lost, and the table has other rows by now.
        AccessDeniedError, StorageError
            The server refuses, or cannot be reached.
        """
        rows = int(self.block_rows[block])
        clause = "" if (start, stop) == (0, rows) else f" OFFSET {start} LIMIT {stop - start}"
        table = self._read(block, clause, stopping, _ATTEMPTS)
        if table.num_rows != stop - start:
            raise SourceChangedError(
                f"{self.describe(block)}: {table.num_rows:,} rows came where {stop - start:,} were counted in the same "
                f"snapshot: where={self.where!r} must give the same for a row each time, without now(), random() or "
                "the like"
            )
        return table

    def session_ended(self) -> None:
        """Learn that a session was closed."""
        self._held.end_session()

    def _read(self, block: int, clause: str, stopping: "Stop", attempts: int) -> pa.Table:
        """Read the rows of a block that a clause of SQL leaves, in the source's types."""
        columns, what = self.columns, self.describe(block)
        wanted = ", ".join(f"{column.sent} AS c{n}" for n, column in enumerate(columns))
        relation = self.table.relations[self.runs.relation[block]]
        first, last = int(self.runs.first[block]), int(self.runs.stop[block])
        sql = select_sql(relation, wanted, first, last, self._condition) + clause
        table = self._tried(lambda: self._query(sql, stopping), what, attempts, stopping)
        try:
            arrays = [
                pa.chunked_array([column.fit(chunk) for chunk in values.chunks], column.field.type)
                for column, values in zip(columns, table.columns, strict=True)
            ]
        except NotPackedError as error:
            # Other blocks are likely to hold such arrays too.
            self.columns = tuple(c.plain() if c == error.column else c for c in self.columns)
            return self._read(block, clause, stopping, attempts)
        except ReadError as error:
            raise ReadError(f"{what}: {error}") from None
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _query(self, sql: str, stopping: "Stop", snapshot: Snapshot | None = None) -> pa.Table:
        """Run a query in the snapshot, or in another one than this source's."""
        held = snapshot or self._held.snapshot
        try:
            connection = held.borrow()
        except ServerError as error:
            if error.fault is not Fault.NO_SNAPSHOT or snapshot is not None:
                raise
            held = self._renewed(held)
            connection = held.borrow()
        try:
            with stopping.over(connection):
                table = connection.table(sql)
        except BaseException:
            drop(connection)
            raise
        held.give_back(connection)
        return table

    def _renewed(self, lost: Snapshot) -> Snapshot:
        """Take another snapshot in the place of one that is gone, where it has the same rows."""
        with self._held.lock:
            if self._held.snapshot is not lost:
                return self._held.snapshot
            keeper = self.server.connect()
            try:
                now = find_table(keeper, f"{self.table.root.schema}.{self.table.root.name}")
                found = Snapshot.take(self.server, now, keeper)
                now = with_sizes(keeper, now)
            except BaseException:
                drop(keeper)
                raise
            try:
                self._check_same(now, found)
            except BaseException:
                found.close()
                raise
            lost.close()
            self._held.snapshot = found
            self._held.seen = self._activity(keeper)
            return found

    def _check_same(self, now: Table, snapshot: Snapshot) -> None:
        changes = self._changes(now, snapshot)
        if changes:
            raise SourceChangedError(
                f"the snapshot of {self.table.root.shown} is gone, and the table has changed since: {changes}; begin "
                "anew with a reader of the table as it is, or keep others from writing while it is read"
            )

    def _changes(self, now: Table, snapshot: Snapshot) -> str:
        """Say how the table differs in another snapshot, or return ""."""
        then = [(r.oid, r.shown, r.filenode) for r in self.table.relations]
        if [(r.oid, r.shown, r.filenode) for r in now.relations] != then:
            return "it was written anew as a whole (TRUNCATE, VACUUM FULL, CLUSTER, ALTER), or has other partitions"
        runs, known = self._all_runs, self._all_counts
        # Rows may have come behind the last page that there was.
        grown = [(n, r.pages, now.relations[n].pages) for n, r in enumerate(self.table.relations)]
        more = [part for part in grown if part[2] > part[1]]
        behind = [np.array([part[place] for part in more], dtype=np.int64) for place in range(3)]
        counts = self._count(snapshot, runs)
        tail = self._count(snapshot, PageRuns(*behind))
        differ = np.flatnonzero((counts.rows != known.rows) | (counts.digests != known.digests))
        if not len(differ) and not tail.rows.any():
            return ""
        places = [self._describe(runs, int(n)) for n in differ[:1]] or [self._describe(PageRuns(*behind), 0)]
        before, after = int(known.rows.sum()), int(counts.rows.sum() + tail.rows.sum())
        return (
            f"{len(differ) + len(more):,} of {len(counts.rows) + len(more):,} blocks have other rows, the first is "
            f"{places[0]}; there were {before:,} rows, there are {after:,}"
        )

    def _count(self, snapshot: Snapshot, runs: PageRuns) -> Counts:
        stop = Stop()

        def one(sql: str) -> pa.Table:
            what = f"cannot count the rows of {self.table.root.shown}"
            return self._tried(lambda: self._query(sql, stop, snapshot), what, _FIRST_ATTEMPTS, stop)

        def query(queries: list[str]) -> Iterator[pa.Table]:
            with ThreadPoolExecutor(self._threads, "corgiarrow-count") as executor:
                try:
                    yield from executor.map(one, queries)
                except BaseException:
                    stop.now()
                    raise

        counts = count_rows(runs, self.table.relations, self._condition, query)
        snapshot.rest()
        return counts

    def _chosen(self, runs: PageRuns, counts: Counts) -> Int64s:
        """Numbers of the runs that have rows to read."""
        if self.split is None or self.split.by is not None:
            return np.flatnonzero(counts.rows)
        paths = [relation.shown for relation in self.table.relations]
        mine = self.split.groups(paths, runs.relation, runs.first, counts.rows)
        return np.flatnonzero(mine & (counts.rows > 0))

    def _bytes_by_column(self) -> "np.ndarray[Any, np.dtype[np.float64]]":
        """Bytes of a row in memory, by column, float64 [columns]: of what varies, from a sample of the blocks."""
        fixed = [fixed_bytes(column.field.type) for column in self.columns]
        if None not in fixed:
            return np.array(fixed, dtype=np.float64)
        blocks = np.unique(np.linspace(0, len(self.runs.first) - 1, _SAMPLED_BLOCKS).astype(int))
        stop, found = Stop(), []
        for block in blocks if len(self.runs.first) else ():
            found.append(self._read(int(block), f" LIMIT {_SAMPLED_ROWS}", stop, _FIRST_ATTEMPTS))
        rows = max(sum(table.num_rows for table in found), 1)
        return np.array([sum(table.column(c).nbytes for table in found) / rows for c in range(len(self.columns))])

    def _tried(
        self, attempt: Callable[[], Any], what: str, attempts: int, stopping: "Stop | None" = None
    ) -> Any:
        """Call something until it succeeds, or will not."""
        began = time.monotonic()

        def again(state: tenacity.RetryCallState) -> bool:
            error = state.outcome.exception() if state.outcome else None
            if not isinstance(error, ServerError) or (stopping is not None and stopping.is_set):
                return False
            if error.fault is Fault.CANCELLED:
                return state.attempt_number < _CANCELLED_ATTEMPTS
            return error.fault in (Fault.PASSES, Fault.NO_SNAPSHOT)

        def note(state: tenacity.RetryCallState) -> None:
            self.retries += 1
            _LOG.info("%s: %s; trying again", what, state.outcome.exception() if state.outcome else "")

        retrying = tenacity.Retrying(
            retry=again,
            stop=tenacity.stop_after_attempt(attempts) | tenacity.stop_before_delay(self.timeout_s),
            wait=tenacity.wait_random_exponential(multiplier=0.1, max=10),
            sleep=time.sleep if stopping is None else stopping.wait,
            before_sleep=note,
            reraise=True,
        )
        try:
            return retrying(attempt)
        except ServerError as error:
            tries = retrying.statistics.get("attempt_number", 1)
            raise self._final(error, what, int(tries), time.monotonic() - began) from None

    def _final(self, error: ServerError, what: str, tries: int, took_s: float) -> CorgiArrowError:
        if error.fault is Fault.CANCELLED:
            return StorageError(
                f"{what}: {error} ({tries} tries): allow statements more time, as by ALTER ROLE … SET "
                "statement_timeout, or ?options=-c%20statement_timeout%3D0 in the URL; or read smaller blocks by "
                "block_bytes="
            )
        if error.fault is Fault.PASSES:
            return StorageError(f"{what}: {error} ({tries} tries in {took_s:.1f} s)")
        if error.state.startswith("42") and error.fault is Fault.LASTS and (self.where or self.split):
            return OptionError(f"where={self.where!r}, split={self.split}: the server says: {error}")
        if error.state.startswith(("22", "XX")):
            return ReadError(f"{what}: {error}")
        return error.as_ours(what)

    def _activity(self, connection: Connection) -> tuple[tuple[int, ...], ...]:
        """What the server knows of writes to the table: filenode, pages, and rows inserted, updated, deleted."""
        oids = ", ".join(str(relation.oid) for relation in self.table.relations)
        return tuple(
            connection.rows(
                "SELECT oid::int8, pg_relation_filenode(oid)::int8, pg_relation_size(oid), "
                "pg_stat_get_tuples_inserted(oid), pg_stat_get_tuples_updated(oid), pg_stat_get_tuples_deleted(oid) "
                f"FROM pg_class WHERE oid IN ({oids}) ORDER BY 1"
            )
        )

    def _tell_changes(self) -> None:
        """Log once that others have written to the table since the snapshot, which passes read all the same."""
        if self._held.snapshot.keeper is None or self._held.told:
            return
        with suppress(ServerError, StorageError):  # Reading will say what is wrong.
            connection = self.server.connect()
            try:
                now = self._activity(connection)
                if now == self._held.seen:
                    return
                # The server's counters come late, and count what was rolled back: only a look tells.
                self._held.seen = now
                with closing(Snapshot.take(self.server, self.table, connection)) as current:
                    changes = self._changes(with_sizes(connection, self.table), current)
            finally:
                drop(connection)
            if changes:
                self._held.told = True
                _LOG.warning(
                    "table %s has changed since its snapshot was taken: %s; passes read the rows that it had then, "
                    "a new reader reads it as it is",
                    self.table.root.shown,
                    changes,
                )


class Holder:
    """The snapshot of a source and of those narrowed from it, in each process its own.

    Attributes
    ----------
    seen
        What the server knew of writes to the table when somebody looked last.
    told
        Whether it was said that the table has changed.
    lock
        Held to put another snapshot in its place.
    """

    def __init__(self, server: Server, snapshot: Snapshot):
        self.seen: tuple[tuple[int, ...], ...] = ()
        self.told = False
        self._server = server
        self._begin(snapshot)

    def _begin(self, snapshot: Snapshot) -> None:
        self.lock = threading.RLock()
        self._pid = os.getpid()
        self._sessions = 0
        self._snapshot = snapshot
        self._ends = weakref.finalize(self, _close_own, self._pid, [snapshot])

    def __getstate__(self) -> dict[str, Any]:
        return {"seen": self.seen, "_server": self._server, "name": self.snapshot.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.seen, self.told, self._server = state["seen"], True, state["_server"]
        self._begin(Snapshot(self._server, state["name"]))

    @property
    def snapshot(self) -> Snapshot:
        """The snapshot, as this process holds it."""
        if self._pid != os.getpid():
            # Forked: the parent keeps the snapshot, and its connections are its own.
            self._begin(Snapshot(self._server, self._snapshot.name))
        return self._snapshot

    @snapshot.setter
    def snapshot(self, found: Snapshot) -> None:
        self._ends.detach()
        self._snapshot = found
        self._ends = weakref.finalize(self, _close_own, self._pid, [found])

    def begin_session(self) -> bool:
        """Count a session; return whether no other is open."""
        self.snapshot  # noqa: B018 - that of this process.
        with self.lock:
            self._sessions += 1
            return self._sessions == 1

    def end_session(self) -> None:
        """Learn that a session was closed; after the last one only the snapshot is held."""
        with self.lock:
            self._sessions -= 1
            if not self._sessions:
                self.snapshot.rest()

    def close(self) -> None:
        """Let go of the snapshot, unless a session is open."""
        held = self.snapshot
        with self.lock:
            if not self._sessions:
                held.close()


def _close_own(pid: int, held: list[Snapshot]) -> None:
    if pid == os.getpid():
        held[0].close()


class Stop:
    """Breaks off what connections run, and waits between tries."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: set[Connection] = set()
        self.is_set = False

    def wait(self, seconds: float) -> None:
        """Wait, or until :meth:`now` is called."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_set, seconds)

    @contextmanager
    def over(self, connection: Connection) -> Iterator[None]:
        """Have what a connection runs broken off.

        Raises
        ------
        StorageError
            :meth:`now` was called already.
        """
        with self._changed:
            if self.is_set:
                raise StorageError("the pass has ended")
            self._running.add(connection)
        try:
            yield
        finally:
            with self._changed:
                self._running.discard(connection)
                self._changed.notify_all()

    def now(self, patience_s: float = 1.5) -> None:
        """Break off what runs; a statement that was just about to begin is asked again."""
        ends = time.monotonic() + patience_s
        with self._changed:
            self.is_set = True
            self._changed.notify_all()
            while self._running and time.monotonic() < ends:
                for connection in self._running:
                    connection.cancel()
                self._changed.wait(0.05)


class PostgresSession:
    """One pass of one stream over a :class:`PostgresSource`."""

    def __init__(self, source: PostgresSource, row_ids: bool):
        self._source = source
        self._row_ids = row_ids
        self._stop = Stop()
        self._lock = threading.Lock()
        self._traffic = Traffic()
        self._retries = source.retries
        self._closed = False
        ids = [pa.field("_id", pa.int64(), nullable=False)] if row_ids else []
        self.schema = pa.schema([*source.schema, *ids])

    def stop(self) -> None:
        """Let reads that still run stop soon."""
        self._stop.now()

    def close(self) -> None:
        """Let go of everything; no read runs any more."""
        if not self._closed:
            self._closed = True
            self._source.session_ended()

    def expect(self, block: int) -> None:
        """Do nothing: nothing is held between reads."""

    def read(self, block: int, start: int, stop: int) -> pa.Table:
        """Read rows ``start .. stop`` of a block."""
        table = self._source.read_rows(block, start, stop, self._stop)
        with self._lock:
            self._traffic.requests += 1
            self._traffic.fetched_bytes += table.nbytes
            self._traffic.retries = self._source.retries - self._retries
        if self._row_ids:
            first = int(self._source.first_rows[block])
            table = table.append_column(self.schema.field("_id"), pa.array(np.arange(first + start, first + stop)))
        return table

    def bytes_beside(self, block: int, nbytes: int) -> int:
        """Estimate what one call of :meth:`read` holds beside a result of `nbytes` bytes."""
        return int(_DECODE_FACTOR * nbytes)

    held_bytes = 0
    fetch_s = 0.0
    waited_s = 0.0

    def fetch_bytes(self, block: int, start: int, stop: int) -> int:
        """Return 0: bytes come as they are read."""
        return 0

    def fetch(self, block: int, start: int, stop: int) -> "Future[None]":
        """Return a future that is done."""
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @property
    def traffic(self) -> Traffic:
        """What was asked of the server."""
        return self._traffic


def _condition(where: str | None, split: Split | None) -> str | None:
    """Return the condition of the rows to read, in SQL."""
    if split is None or split.by is None:
        return where
    below = int(float(split.held_out) * 2**_HASH_BITS)
    held = f"hash_record_extended(ROW({quoted(split.by)}), 0) & {2**_HASH_BITS - 1} < {below}"
    mine = held if split.part == "held_out" else f"NOT ({held})"
    return mine if where is None else f"(\n{where}\n) AND {mine}"

"""A new table of a PostgreSQL server: written by COPY in one transaction, so it is whole or not there."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from corgiarrow.errors import AccessDeniedError, ConversionError, OptionError
from corgiarrow.sources.postgres.connections import Connection, Server, literal, quoted, raised
from corgiarrow.sources.postgres.snapshots import drop


@dataclass(frozen=True, slots=True)
class NewTable:
    """A table that is not there yet.

    Attributes
    ----------
    url
        The database, as for :class:`PostgresSource`.
    name
        ``name``, or ``schema.name``, spelt as it is to stand in the catalog. A name without a schema goes where CREATE
        TABLE puts it.
    """

    url: str
    name: str

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"NewTable({Server(self.url)}, {self.name!r})"

    @property
    def _place(self) -> tuple[str | None, str]:
        schema, dot, name = self.name.partition(".")
        return (schema, name) if dot else (None, self.name)

    @property
    def _quoted(self) -> str:
        return quoted(*(part for part in self._place if part is not None))

    def check(self) -> None:
        """Raise where the table cannot be made.

        Raises
        ------
        OptionError
            There is one of this name already, or no such schema.
        AccessDeniedError
            The role may not make tables there.
        StorageError
            The server cannot be reached.
        """
        if not all(self._place[1:]) or self._place[0] == "":
            raise OptionError(f"into={self.name!r} must be the name of a table, or schema.table")
        with raised(f"cannot make table {self.name!r} in {Server(self.url)}"):
            connection = Server(self.url).connect()
            try:
                self._check(connection)
            finally:
                drop(connection)

    def _check(self, connection: Connection) -> None:
        ((taken,),) = connection.rows(f"SELECT to_regclass({literal(self._quoted)}) IS NOT NULL")
        if taken:
            raise OptionError(f"into={self.name!r} is there already: drop it, or choose another name")
        ((schema, role),) = connection.rows("SELECT current_schema()::text, current_user::text")
        schema = self._place[0] or schema
        if schema is None:
            raise OptionError(f"into={self.name!r}: the search path names no schema: give schema.{self.name}")
        known = connection.rows(
            f"SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = {literal(schema)}"
        )
        if not known:
            raise OptionError(f"into={self.name!r}: there is no schema {schema!r}: CREATE SCHEMA {quoted(schema)}")
        if not known[0][0]:
            raise AccessDeniedError(
                f"into={self.name!r}: this role may not make tables there: GRANT CREATE ON SCHEMA {quoted(schema)} TO "
                f"{quoted(role)}"
            )

    def write(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Make the table of batches of one schema, and return its rows.

        Raises
        ------
        OptionError, AccessDeniedError
            As for :meth:`check`.
        ConversionError
            A value does not fit the server's types.
        StorageError
            The server refuses, or the connection is lost; the table is not there then.
        """
        rows = 0
        failed: list[BaseException] = []
        source = iter(batches)
        first = next(source)

        def sent() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            batch: pa.RecordBatch | None = first
            try:
                while batch is not None:
                    rows += batch.num_rows
                    yield _sendable(batch)
                    batch = next(source, None)
            except BaseException as error:
                failed.append(error)
                raise

        what = f"cannot write table {self.name!r} of {Server(self.url)}"
        with raised(what):
            connection = Server(self.url).connect()
        try:
            with raised(what):
                self._check(connection)
                connection.run("BEGIN")
                stream = pa.RecordBatchReader.from_batches(_sendable(first).schema, sent())
                try:
                    connection.ingest(*self._place, stream)
                except BaseException:
                    if failed:  # What the driver makes of it is only its text.
                        raise failed[0] from None
                    raise
                connection.run("COMMIT")
        finally:
            drop(connection)
        return rows


def _sendable(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give a batch types that the server has: whole numbers of 64 bits with a sign, times in microseconds."""
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        kind = field.type
        if pa.types.is_uint64(kind):
            kind = pa.int64()
        elif pa.types.is_timestamp(kind):
            kind = pa.timestamp("us", tz=kind.tz)
        try:
            columns.append(column if kind.equals(field.type) else column.cast(kind))
        except pa.ArrowInvalid as error:
            raise ConversionError(f"column {field.name!r} does not fit the server's {kind}: {error}") from None
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

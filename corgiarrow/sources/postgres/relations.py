"""What a table is: the relations that hold its rows, their pages, its columns: what the catalog says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import NoReturn

import pyarrow as pa

from corgiarrow.errors import AccessDeniedError, ColumnNotFoundError, OptionError, SchemaMismatchError
from corgiarrow.sources.postgres.connections import Connection, literal, quoted
from corgiarrow.sources.postgres.types import Column, Dimension, ServerType, TypeMap, has_lengths

MIN_SERVER = 14
"""The first version that scans a range of row addresses."""

_KINDS = {
    "v": "is a view, whose rows lie in no pages: read the tables behind it, with the view's condition as where=, or "
    "make it a materialized view",
    "f": "is a foreign table, whose rows lie in no pages of this server: read it where it lies, or copy it by CREATE "
    "TABLE … AS",
    "S": "is a sequence, not a table",
    "i": "is an index, not a table",
    "I": "is an index, not a table",
    "c": "is a composite type, not a table",
    "t": "is a TOAST table: name the table that it belongs to",
}
_HAVE_PAGES = ("r", "m")

_HEAP = 2
"""Number of the access method of ordinary tables in ``pg_am``."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A table or partition that holds rows itself.

    Attributes
    ----------
    oid, schema, name
        Its number and name.
    filenode
        Number of its file, which changes whenever it is written anew as a whole.
    pages
        Pages of its heap.
    nbytes
        Bytes of it on disk, with what is TOASTed.
    """

    oid: int
    schema: str
    name: str
    filenode: int
    pages: int
    nbytes: int

    @property
    def quoted(self) -> str:
        """Its name in SQL."""
        return quoted(self.schema, self.name)

    @property
    def shown(self) -> str:
        """Its name for a person."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class Table:
    """A table, partitioned or not.

    Attributes
    ----------
    root
        The table as it was named; its pages and bytes are those of itself only.
    relations
        Those that hold its rows: itself, or its partitions and heirs, by name.
    page_bytes
        Bytes of a page.
    key
        Columns of its primary key.
    """

    root: Relation
    relations: tuple[Relation, ...]
    page_bytes: int
    key: tuple[str, ...]

    def hold(self, connection: Connection) -> None:
        """Keep the table from being dropped, emptied or rewritten until the connection's transaction ends."""
        ((lockable,),) = connection.rows(
            f"SELECT has_table_privilege(oid, 'SELECT') AND relkind <> 'm' FROM pg_class WHERE oid = {self.root.oid}"
        )
        if lockable:
            connection.run(f"LOCK TABLE {self.root.quoted} IN ACCESS SHARE MODE")
            return
        # A materialized view, or a role that may read some columns only: to read from it locks it as well.
        for relation in self.relations:
            connection.run(f"SELECT FROM ONLY {relation.quoted} LIMIT 0")


_RELATION = "c.oid::int8, n.nspname::text, c.relname::text, pg_relation_filenode(c.oid)::int8"
_FROM = "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"


def find_table(connection: Connection, name: str) -> Table:
    """Look a table up.

    Parameters
    ----------
    connection
        In a transaction.
    name
        ``table`` or ``schema.table``, spelt as in the catalog, without quotes.

    Raises
    ------
    OptionError
        There is none of that name, or its rows lie in no pages that can be addressed.
    AccessDeniedError
        This role may not read all of it.
    """
    version = int(connection.rows("SELECT current_setting('server_version_num')")[0][0])
    if version // 10_000 < MIN_SERVER:
        raise OptionError(
            f"the server is PostgreSQL {version // 10_000}: reading by pages takes {MIN_SERVER} or a later one"
        )
    oid = _find_oid(connection, name)
    ((kind, persistence, access, row_security),) = connection.rows(
        "SELECT c.relkind::text, c.relpersistence::text, c.relam::int8, row_security_active(c.oid) "
        f"{_FROM} WHERE c.oid = {oid}"
    )
    if kind in _KINDS:
        raise OptionError(f"table={name!r} {_KINDS[kind]}")
    if persistence == "t":
        raise OptionError(f"table={name!r} is temporary, so no other connection sees it: make it an ordinary table")
    if access not in (0, _HEAP):
        raise OptionError(f"table={name!r} is not stored as a heap, so its rows cannot be read by pages")
    ((page_bytes,),) = connection.rows("SELECT current_setting('block_size')")
    root = _relation(connection.rows(f"SELECT {_RELATION} {_FROM} WHERE c.oid = {oid}")[0])
    key = connection.rows(
        "SELECT a.attname::text FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY k(n, place) "
        "JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.n "
        f"WHERE i.indrelid = {oid} AND i.indisprimary ORDER BY k.place"
    )
    found = _members(connection, oid, name)
    # Told before the table is held, which takes the right to read some column.
    for relation in found:
        ((allowed,),) = connection.rows(f"SELECT has_any_column_privilege({relation.oid}::oid, 'SELECT')")
        if not allowed:
            _deny(connection, relation)
    if row_security and len(found) > 1:
        raise OptionError(
            f"table={name!r} has row-level security, which does not hold for its partitions when they are read one by "
            "one: take a role that it does not concern, or read the partitions as tables of their own"
        )
    return Table(root, found, int(page_bytes), tuple(column for (column,) in key))


def with_sizes(connection: Connection, table: Table) -> Table:
    """Return a table with the pages that its relations have now; call it after the snapshot was taken."""
    oids = ", ".join(str(relation.oid) for relation in table.relations)
    found = {
        oid: (filenode, pages, nbytes)
        for oid, filenode, pages, nbytes in connection.rows(
            "SELECT c.oid::int8, pg_relation_filenode(c.oid)::int8, pg_relation_size(c.oid) / "
            f"{table.page_bytes}, pg_table_size(c.oid) FROM pg_class c WHERE c.oid IN ({oids})"
        )
    }
    sized = []
    for relation in table.relations:
        filenode, pages, nbytes = found[relation.oid]
        sized.append(replace(relation, filenode=filenode, pages=pages, nbytes=nbytes))
    return replace(table, relations=tuple(sized))


def find_columns(
    connection: Connection,
    table: Table,
    names: Sequence[str] | None,
    schema: Mapping[str, pa.DataType],
    dimension: Dimension,
) -> tuple[Column, ...]:
    """Return columns of a table, in the order of `names`, or all.

    Raises
    ------
    ColumnNotFoundError
        One is not there.
    OptionError
        There is no Arrow type for one, or an option names none.
    AccessDeniedError
        This role may not read one.
    """
    oid = table.root.oid
    attributes = {
        name: (int(kind), int(modifier), bool(not_null), str(shown))
        for name, kind, modifier, not_null, shown in connection.rows(
            "SELECT attname::text, atttypid::int8, atttypmod::int8, attnotnull, format_type(atttypid, atttypmod) "
            f"FROM pg_attribute WHERE attrelid = {oid} AND attnum > 0 AND NOT attisdropped ORDER BY attnum"
        )
    }
    given = dimension if isinstance(dimension, Mapping) else {}
    for option, asked in (("columns", names or ()), ("schema", schema), ("dimension", given)):
        missing = [name for name in asked if name not in attributes]
        if missing:
            raise ColumnNotFoundError(
                f"{option}= names {missing}, which {table.root.shown} does not have: choose from "
                f"{', '.join(list(attributes)[:50])}"
            )
    chosen = list(attributes) if names is None else list(names)
    if twice := sorted({name for name in chosen if chosen.count(name) > 1}):
        raise OptionError(f"columns={chosen} names {twice} twice")
    if not chosen:
        raise OptionError(f"columns=[] of {table.root.shown}: name at least one column")
    _check_rights(connection, table, chosen)
    types = {
        int(row[0]): ServerType(int(row[0]), *row[1:])
        for row in connection.rows(
            "SELECT oid::int8, typname::text, typtype::text, typbasetype::int8, typtypmod::int8, "
            "CASE WHEN typcategory = 'A' THEN typelem::int8 ELSE 0 END FROM pg_type"
        )
    }
    if dimension == "first":
        made = TypeMap(types, schema, None)
        dimension = {}
        for name in chosen:
            column = made.column(name, *attributes[name])
            if has_lengths(column.field.type) and (length := _first_length(connection, table, column)):
                dimension[name] = length
    made = TypeMap(types, schema, dimension)
    return tuple(made.column(name, *attributes[name]) for name in chosen)


def _first_length(connection: Connection, table: Table, column: Column) -> int | None:
    """Return the length of the first array of a column that is there."""
    array = column.expression
    for relation in table.relations:
        rows = connection.rows(
            f"SELECT cardinality({array}) FROM ONLY {relation.quoted} WHERE {array} IS NOT NULL LIMIT 1"
        )
        if rows:
            return int(rows[0][0])
    return None


def _find_oid(connection: Connection, name: str) -> int:
    candidates = [quoted(name)]
    if "." in name:
        candidates.append(quoted(*name.split(".", 1)))
    for candidate in candidates:
        ((oid,),) = connection.rows(f"SELECT to_regclass({literal(candidate)})::int8")
        if oid is not None:
            return int(oid)
    known = [
        text
        for (text,) in connection.rows(
            "SELECT CASE WHEN pg_table_is_visible(c.oid) THEN c.relname ELSE n.nspname || '.' || c.relname END "
            f"{_FROM} WHERE c.relkind IN ('r', 'p', 'm') AND NOT c.relispartition AND n.nspname !~ '^pg_' AND "
            "n.nspname <> 'information_schema' ORDER BY 1 LIMIT 1000"
        )
    ]
    near = get_close_matches(name.lower(), known, 3, 0.5)
    raise OptionError(
        f"table={name!r} is not in the database: "
        + (f"did you mean {', '.join(near)}? " if near else "")
        + (f"There are {', '.join(known[:20])}" if known else "There are no tables that this role sees")
        + "; names are spelt as the catalog has them, without quotes, with a schema as schema.table"
    )


def _members(connection: Connection, oid: int, name: str) -> tuple[Relation, ...]:
    """Return the relations that hold a table's rows."""
    rows = connection.rows(
        f"WITH RECURSIVE tree AS (SELECT {oid}::oid AS oid UNION SELECT i.inhrelid FROM pg_inherits i JOIN tree t ON "
        f"i.inhparent = t.oid) SELECT {_RELATION}, c.relkind::text, c.relam::int8 FROM tree t JOIN pg_class c ON "
        "c.oid = t.oid JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind <> 'p' ORDER BY 2, 3"
    )
    for row in rows:
        kind, access = row[4:]
        if kind not in _HAVE_PAGES or access != _HEAP:
            why = _KINDS.get(kind, "is not stored as a heap, so its rows cannot be read by pages")
            raise OptionError(f"table={name!r} has the partition {row[1]}.{row[2]}, which {why}")
    return tuple(_relation(row[:4]) for row in rows)


def _relation(row: Sequence[object]) -> Relation:
    oid, schema, name, filenode = row
    return Relation(int(str(oid)), str(schema), str(name), int(str(filenode or 0)), 0, 0)


def _check_rights(connection: Connection, table: Table, columns: Sequence[str]) -> None:
    names = ", ".join(literal(column) for column in columns)
    for relation in table.relations:
        rows = connection.rows(
            f"SELECT a.attname::text, has_column_privilege({relation.oid}::oid, a.attnum, 'SELECT') "
            f"FROM pg_attribute a WHERE a.attrelid = {relation.oid} AND NOT a.attisdropped AND "
            f"(a.attnum > 0 AND a.attname IN ({names}) OR a.attnum < 0 AND a.attname IN ('ctid', 'xmin')) "
            "ORDER BY a.attnum DESC"
        )
        # Rights to some columns do not hold for those in which the server keeps where a row lies, and who wrote it.
        if len(rows) != len(columns) + 2:
            raise SchemaMismatchError(f"{relation.shown} lacks columns of {table.root.shown}")
        ((usage,),) = connection.rows(f"SELECT has_schema_privilege({literal(relation.schema)}, 'USAGE')")
        if not usage or not all(allowed for _, allowed in rows):
            _deny(connection, relation, usage, [name for name, allowed in rows if not allowed])


def _deny(connection: Connection, relation: Relation, usage: bool = True, columns: Sequence[str] = ()) -> NoReturn:
    ((role,),) = connection.rows("SELECT current_user::text")
    what = f"SELECT ON {relation.quoted}" if usage else f"USAGE ON SCHEMA {quoted(relation.schema)}"
    lacking = f" (it lacks the columns {', '.join(columns)})" if usage and columns else ""
    raise AccessDeniedError(f"this role may not read {relation.shown}{lacking}: GRANT {what} TO {quoted(role)}")

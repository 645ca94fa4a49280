"""Types of a real PostgreSQL server and what they become; what is refused, and passwords that are never told."""

import datetime as dt
import itertools
import json
import pickle
import re
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import LOCKED_ROLE, Postgres, Session

import corgiarrow as ca
from corgiarrow.sources.postgres.packed import unpacked

pytestmark = pytest.mark.timeout(60)

NUMBERS = itertools.count()
UTC = dt.UTC
DAY, TIME = dt.date, dt.datetime
ID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"


@pytest.fixture(scope="module")
def session(postgres: Postgres) -> Iterator[Session]:
    with postgres.session() as session:
        if session.rows("SELECT to_regtype('mood') IS NULL") == [(True,)]:  # Another set-up may have made them.
            session.run(
                "CREATE TYPE mood AS ENUM ('sad', 'it''s ok')",
                "CREATE TYPE pair AS (a int, b int)",
                "CREATE DOMAIN percent AS numeric(5, 2) CHECK (VALUE <= 100)",
                "CREATE DOMAIN share AS percent",
            )
        yield session


def made(session: Session, kind: str, *values: str) -> str:
    """Make a table of a column `v`, with these values as SQL, in this order; return its name."""
    name = f"v{next(NUMBERS)}"
    session.run(f"CREATE TABLE {name} (v {kind})")
    if values:
        session.run(f"INSERT INTO {name} VALUES " + ", ".join(f"({value})" for value in values))
    return name


def read(postgres: Postgres, table: str, **options: Any) -> pa.Table:
    with ca.Reader(postgres.url(), table=table, shuffle=False, **options) as reader:
        found = pa.Table.from_batches(reader, reader.schema)
        assert found.num_rows == reader.num_rows
        return found


TYPES: list[tuple[str, pa.DataType, dict[str, Any]]] = [
    ("bool", pa.bool_(), {"true": True, "false": False}),
    ("int2", pa.int16(), {"-32768": -(2**15), "32767": 2**15 - 1}),
    ("int4", pa.int32(), {"-2147483648": -(2**31), "2147483647": 2**31 - 1}),
    ("int8", pa.int64(), {"-9223372036854775808": -(2**63), "1152921504606846977": 2**60 + 1}),
    ("oid", pa.int64(), {"4294967295": 2**32 - 1}),
    ("float4", pa.float32(), {"'3.4028235e38'": np.finfo(np.float32).max, "'-inf'": float("-inf"), "0.5": 0.5}),
    ("float8", pa.float64(), {"'1.7976931348623157e308'": np.finfo(np.float64).max, "'5e-324'": 5e-324}),
    ("numeric(10,2)", pa.decimal128(10, 2), {"-99999999.99": Decimal("-99999999.99"), "0.01": Decimal("0.01")}),
    ("numeric(38,0)", pa.decimal128(38, 0), {"9" * 38: Decimal("9" * 38)}),
    ("numeric(76,10)", pa.decimal256(76, 10), {"9" * 66 + "." + "9" * 10: Decimal("9" * 66 + "." + "9" * 10)}),
    ("numeric(3,-2)", pa.decimal128(5, 0), {"12345": Decimal(12300)}),
    ("numeric(2,4)", pa.decimal128(4, 4), {"0.0012": Decimal("0.0012")}),
    ("numeric", pa.decimal128(38, 18), {f"{'9' * 20}.5": Decimal(f"{'9' * 20}.5"), "-1e-18": Decimal("-1e-18")}),
    ("text", pa.string(), {"''": "", "'naïve 🐕'": "naïve 🐕", r"E'\\N'": r"\N"}),
    ("varchar(3)", pa.string(), {"'abc'": "abc"}),
    ("char(4)", pa.string(), {"'ab'": "ab"}),
    ('"char"', pa.string(), {"'x'": "x"}),
    ("name", pa.string(), {"'pg_class'": "pg_class"}),
    ("bytea", pa.binary(), {r"'\x00ff27'": b"\x00\xff'", "''": b""}),
    ("date", pa.date32(), {"'9999-12-31'": DAY(9999, 12, 31), "'0001-01-01'": DAY(1, 1, 1)}),
    ("time", pa.time64("us"), {"'23:59:59.999999'": dt.time(23, 59, 59, 999999), "'00:00'": dt.time()}),
    ("timestamp", pa.timestamp("us"), {"'9999-12-31 23:59:59.999999'": TIME.max, "'0001-01-01'": TIME.min}),
    ("timestamptz", pa.timestamp("us", "UTC"), {"'2024-02-29 12:00+05'": TIME(2024, 2, 29, 7, tzinfo=UTC)}),
    ("uuid", pa.uuid(), {f"'{ID}'": uuid.UUID(ID)}),
    ("json", pa.string(), {"""'{"a":  1}'""": '{"a":  1}'}),
    ("jsonb", pa.string(), {"""'{"b":1,"a":[null]}'""": '{"a": [null], "b": 1}'}),
    ("xml", pa.string(), {"'<a/>'": "<a/>"}),
    ("mood", pa.string(), {"'sad'": "sad", "'it''s ok'": "it's ok"}),
    ("percent", pa.decimal128(5, 2), {"99.99": Decimal("99.99")}),
    ("share", pa.decimal128(5, 2), {"0.5": Decimal("0.50")}),
    ("int4[]", pa.list_(pa.int32()), {"'{1,NULL,3}'": [1, None, 3], "'{}'": []}),
    ("text[]", pa.list_(pa.string()), {"""'{a,NULL,"c,d"}'""": ["a", None, "c,d"]}),
    ("float8[]", pa.list_(pa.float64()), {"'{1.5,NULL}'": [1.5, None]}),
    ("bool[]", pa.list_(pa.bool_()), {"'{t,f}'": [True, False]}),
    ("vector(3)", pa.list_(pa.float32(), 3), {"'[1,2.5,-3]'": [1, 2.5, -3]}),
    ("vector", pa.list_(pa.float32()), {"'[1]'": [1], "'[1,2]'": [1, 2]}),
    ("halfvec(2)", pa.list_(pa.float32(), 2), {"'[0.5,65504]'": [0.5, 65504]}),
]


@pytest.mark.parametrize(("kind", "arrow", "values"), TYPES, ids=[kind for kind, _, _ in TYPES])
def test_a_type(postgres: Postgres, session: Session, kind: str, arrow: pa.DataType, values: dict[str, Any]) -> None:
    """Its values and nulls, where rows are many, few, all null, or none."""
    try:
        table = made(session, kind, "NULL", *values, "NULL")
    except Exception:
        if kind != "xml":  # A server may be built without it.
            raise
        return
    expected = [None, *values.values(), None]
    found = read(postgres, table)
    assert found.schema == pa.schema([pa.field("v", arrow)])
    assert found["v"].to_pylist() == expected
    assert found.equals(read(postgres, table, batch_size=1)), "row by row"
    for rows in (0, 3):
        empty = read(postgres, made(session, kind, *["NULL"] * rows))
        assert empty.schema == found.schema
        assert empty["v"].to_pylist() == [None] * rows
    session.run(f"CREATE TABLE {table}_not_null AS SELECT v FROM {table} WHERE v IS NOT NULL")
    session.run(f"ALTER TABLE {table}_not_null ALTER v SET NOT NULL")
    assert not read(postgres, f"{table}_not_null").schema.field("v").nullable


def test_dates_before_the_common_era(postgres: Postgres, session: Session) -> None:
    """Python has none, Arrow does: the first that the server has."""
    days = read(postgres, made(session, "date", "'4713-01-01 BC'", "'5874897-12-31'"))["v"]
    epoch = "'1970-01-01'::date"
    ((least, most),) = session.rows(f"SELECT '4713-01-01 BC'::date - {epoch}, '5874897-12-31'::date - {epoch}")
    assert pc.cast(days, pa.int32()).to_pylist() == [least, most]
    times = read(postgres, made(session, "timestamp", "'4713-01-01 BC'", "'294246-12-31'"))["v"]
    assert pc.cast(times, pa.int64()).to_pylist()[0] == least * 86_400_000_000


@pytest.mark.parametrize(
    ("kind", "value"),
    [(kind, value) for kind in ("date", "timestamp", "timestamptz") for value in ("infinity", "-infinity")],
)
def test_infinities_are_told(postgres: Postgres, session: Session, kind: str, value: str) -> None:
    table = made(session, kind, "'2000-01-01'", f"'{value}'")
    with pytest.raises(ca.ReadError, match=r"column 'v' holds an infinity.*where='isfinite\(\"v\"\)'") as raised:
        read(postgres, table)
    where = re.search("where='(.*)'$", str(raised.value))
    assert where
    assert read(postgres, table, where=where[1]).num_rows == 1


def test_numerics_that_do_not_fit(postgres: Postgres, session: Session) -> None:
    for value in ("'NaN'", "'Infinity'", "1e30", "1e-30"):
        table = made(session, "numeric", "1", value)
        with pytest.raises(ca.ReadError, match=f"public.{table}, page 0: column 'v'"):
            read(postgres, table)
        floats = read(postgres, table, schema={"v": pa.float64()})["v"].to_pylist()
        assert floats[0] == 1
        assert str(floats[1]) == str(float(value.strip("'")))
    wide = made(session, "numeric", "1e30")
    assert read(postgres, wide, schema={"v": pa.decimal256(76, 30)})["v"].to_pylist() == [Decimal(10) ** 30]
    with pytest.raises(ca.OptionError, match=r"column 'v' is of type numeric\(100,2\), which has no Arrow type"):
        read(postgres, made(session, "numeric(100,2)"))


UNSUPPORTED = {
    "point": ("'(1,2)'", "(1,2)"),
    "money": ("'12.34'", "$12.34"),
    "pair": ("'(1,2)'", "(1,2)"),
    "interval": ("'1 day'", "1 day"),
    "int4range": ("'[1,3)'", "[1,3)"),
    "bit(3)": ("B'101'", "101"),
    "inet": ("'::1'", "::1/128"),
    "time with time zone": ("'12:00+00'", "12:00:00+00"),
    "numeric[]": ("'{1.5}'", "{1.5}"),
    "mood[]": ("'{sad}'", "{sad}"),
}


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_a_type_without_an_arrow_type(postgres: Postgres, session: Session, kind: str) -> None:
    """It is told with what to do, and that works."""
    value, text = UNSUPPORTED[kind]
    table = made(session, kind, "NULL", value)
    remedy = re.escape(f"column 'v' is of type {kind}, which has no Arrow type") + r".*schema=\{'v': pa.string\(\)\}"
    with pytest.raises(ca.OptionError, match=remedy):
        read(postgres, table)
    assert read(postgres, table, schema={"v": pa.string()}).to_pydict() == {"v": [None, text]}
    session.run(f"ALTER TABLE {table} ADD id int DEFAULT 7")
    assert read(postgres, table, columns=["id"])["id"].to_pylist() == [7, 7]


def test_types_that_are_asked_for(postgres: Postgres, session: Session) -> None:
    table = made(session, "int4", "1", "NULL", "300")
    for kind in (pa.int64(), pa.float64(), pa.int16(), pa.decimal128(12, 2)):
        found = read(postgres, table, schema=pa.schema([("v", kind)]))
        assert found.schema.field("v").type == kind
        assert found["v"].to_pylist() == [1, None, 300]
    with pytest.raises(ca.ReadError, match="column 'v' does not fit int8"):
        read(postgres, table, schema={"v": pa.int8()})
    with pytest.raises(ca.ColumnNotFoundError, match=r"schema= names \['w'\].*choose from v"):
        read(postgres, table, schema={"w": pa.int8()})


def test_dimension(postgres: Postgres, session: Session) -> None:
    table = made(session, "float4[]", "'{1,2}'", "NULL", "'{3,4}'")
    session.run(f"ALTER TABLE {table} ADD w float8[] DEFAULT '{{5,6,7}}', ADD n int[] DEFAULT '{{1}}'")
    found = read(postgres, table, dimension={"v": 2})
    assert [field.type for field in found.schema] == [
        pa.list_(pa.float32(), 2),
        pa.list_(pa.float64()),
        pa.list_(pa.int32()),
    ]
    assert found["v"].to_pylist() == [[1, 2], None, [3, 4]]
    assert read(postgres, table, columns=["v", "n"], dimension=2).schema.field("v").type == pa.list_(pa.float32(), 2)
    with pytest.raises(ca.ReadError, match=r"column 'w'.*other lengths than dimension=2"):
        read(postgres, table, dimension=2)
    with pytest.raises(ca.OptionError, match="column 'n' holds no arrays of float4 or float8"):
        read(postgres, table, dimension={"n": 1})
    with pytest.raises(ca.ColumnNotFoundError, match="dimension= names"):
        read(postgres, table, dimension={"gone": 1})
    for wrong in (0, -1, True, 1.5, {"v": 0}):
        with pytest.raises(ca.OptionError, match="dimension"):
            read(postgres, table, dimension=wrong)
    session.run(f"INSERT INTO {table} (v) VALUES ('{{1,2,3}}')")
    with pytest.raises(ca.ReadError, match=r"column 'v'.*dimension=2"):
        read(postgres, table, dimension={"v": 2})


def test_arrays_of_arrays(postgres: Postgres, session: Session) -> None:
    table = made(session, "float4[]", "'{{1,2},{3,4}}'")
    with pytest.raises(ca.ReadError, match="more than one dimension"):
        read(postgres, table, dimension=2)


SENT = {
    pa.int32(): (">i4", st.integers(-(2**31), 2**31 - 1)),
    pa.int64(): (">i8", st.integers(-(2**63), 2**63 - 1)),
    pa.float32(): (">f4", st.floats(width=32, allow_nan=False)),
    pa.float64(): (">f8", st.floats(allow_nan=False)),
}


def sent(values: list[Any] | None, inner: pa.DataType) -> bytes | None:
    """What ``array_send`` gives."""
    if values is None:
        return None
    ends = np.array([len(values), 1] if values else [], ">i4").tobytes()
    flag = any(value is None for value in values)
    length = np.array(inner.bit_width // 8, ">i4").tobytes()
    items = [
        b"\xff\xff\xff\xff" if value is None else length + np.array(value, SENT[inner][0]).tobytes()
        for value in values
    ]
    return np.array([bool(values), flag, 701], ">i4").tobytes() + ends + b"".join(items)


@pytest.mark.parametrize("inner", list(SENT), ids=str)
@pytest.mark.parametrize("nulls", [False, True], ids=["", "null elements"])
@given(drawn=st.data())
def test_arrays_are_unpacked_wherever_they_lie_in_memory(inner: pa.DataType, nulls: bool, drawn: st.DataObject) -> None:
    element = st.none() | SENT[inner][1] if nulls else SENT[inner][1]
    length = drawn.draw(st.none() | st.integers(0, 4))
    least, most = (0, 4) if length is None else (length, length)
    row = st.none() | st.lists(element, min_size=least, max_size=most)
    rows = drawn.draw(st.lists(row if drawn.draw(st.booleans()) else st.lists(element, min_size=least, max_size=most)))
    first = drawn.draw(st.integers(0, len(rows)))
    stop = drawn.draw(st.integers(first, len(rows)))
    found = unpacked(pa.array([sent(r, inner) for r in rows], pa.binary()).slice(first, stop - first), inner)
    expected = pa.array(rows[first:stop], pa.list_(inner))
    if any(value is None for r in rows[first:stop] for value in r or ()):
        assert found is None
    else:
        found.validate(full=True)
        assert found.equals(expected)


@settings(max_examples=15)
@given(rows=st.lists(st.none() | st.lists(st.none() | SENT[pa.int64()][1], max_size=4), max_size=60))
def test_any_arrays(postgres: Postgres, session: Session, rows: list[list[int | None] | None]) -> None:
    """Blocks in which arrays have null elements are read after others, and before."""
    texts = [None if r is None else "{" + ", ".join("NULL" if v is None else str(v) for v in r) + "}" for r in rows]
    table = made(session, "int8[]", *("NULL" if text is None else f"'{text}'" for text in texts))
    found = read(postgres, table, batch_size=7, block_bytes=8192)
    assert found["v"].to_pylist() == rows
    session.run(f"DROP TABLE {table}")


def test_arrays_of_other_kinds(postgres: Postgres, session: Session) -> None:
    """Domains, lower bounds other than 1, a search path with an impostor, and a block with nulls among others."""
    session.run(
        "CREATE DOMAIN embedding AS float4[] CHECK (cardinality(VALUE) < 5)",
        "CREATE FUNCTION public.array_send(anyarray) RETURNS bytea LANGUAGE sql AS $$ SELECT ''::bytea $$",
    )
    table = made(session, "embedding", "'{1,2}'", "'[5:6]={3,4}'", "'{}'")
    assert read(postgres, table)["v"].to_pylist() == [[1, 2], [3, 4], []]
    url = postgres.url() + ("&" if "?" in postgres.url() else "?") + "options=-c%20search_path%3Dpublic,pg_catalog"
    with ca.Reader(url, table=table, shuffle=False) as reader:
        assert [v for batch in reader for v in batch["v"].to_pylist()] == [[1, 2], [3, 4], []]
    session.run("DROP FUNCTION public.array_send(anyarray)")
    table = made(session, "float8[]", *["'{1,2,3}'"] * 2000, "'{4,NULL,6}'", *["'{7,8,9}'"] * 2000)
    expected = [[1, 2, 3]] * 2000 + [[4, None, 6]] + [[7, 8, 9]] * 2000
    with ca.Reader(postgres.url(), table=table, shuffle=False, block_bytes="16 KiB") as reader:
        for _ in range(2):
            assert [v for batch in reader for v in batch["v"].to_pylist()] == expected
    with ca.Reader(postgres.url(), table=table, shuffle="block", block_bytes="16 KiB", dimension=3) as reader:
        assert sorted(v[0] for batch in reader for v in batch["v"].to_pylist()) == sorted(v[0] for v in expected)


@settings(max_examples=15)
@given(
    rows=st.lists(
        st.tuples(
            st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.floats(), st.none() | st.binary(max_size=40)
        ),
        max_size=60,
    )
)
def test_any_values(postgres: Postgres, session: Session, rows: list[tuple[Any, Any, Any]]) -> None:
    table = f"v{next(NUMBERS)}"
    session.run(f"CREATE TABLE {table} (i int8, f float8, b bytea)")

    def sql(value: Any) -> str:
        if value is None:
            return "NULL"
        return f"'\\x{value.hex()}'" if isinstance(value, bytes) else f"'{value!r}'"

    if rows:
        session.run(f"INSERT INTO {table} VALUES " + ", ".join(f"({', '.join(map(sql, row))})" for row in rows))
    found = read(postgres, table, batch_size=7)
    columns = [[row[n] for row in rows] for n in range(3)]
    assert [found["i"].to_pylist(), found["b"].to_pylist()] == columns[::2]
    assert repr(found["f"].to_pylist()) == repr(columns[1])
    session.run(f"DROP TABLE {table}")


def test_what_is_no_table(postgres: Postgres, session: Session) -> None:
    session.run(
        "CREATE TABLE flights (id serial PRIMARY KEY, v int)",
        "CREATE VIEW a_view AS SELECT * FROM flights",
        "CREATE MATERIALIZED VIEW a_copy AS SELECT generate_series(1, 3) AS id",
        "CREATE TEMP TABLE of_one_session (id int)",
        "CREATE UNLOGGED TABLE unlogged AS SELECT 1 AS id",
        "CREATE TABLE no_columns ()",
    )
    ((temporary,),) = session.rows("SELECT nspname FROM pg_namespace WHERE oid = pg_my_temp_schema()")
    ((toast,),) = session.rows("SELECT 'pg_toast_' || 'pg_rewrite'::regclass::oid")
    for table, why in {
        "a_view": "is a view, whose rows lie in no pages: read the tables behind it",
        "flights_id_seq": "is a sequence",
        "flights_pkey": "is an index",
        "pair": "is a composite type",
        f"pg_toast.{toast}": "is a TOAST table",
        "of_one_session": "is not in the database",
        f"{temporary}.of_one_session": "is temporary",
        "no_columns": "name at least one column",
        "flightz": "is not in the database: did you mean flights?",
        "Flights": "did you mean flights?.*spelt as the catalog has them",
        "gone.flights": "is not in the database",
    }.items():
        with pytest.raises(ca.OptionError, match=why) as raised:
            ca.Reader(postgres.url(), table=table)
        assert table in str(raised.value)
    for table in ("a_copy", "unlogged", "public.flights"):
        with ca.Reader(postgres.url(), table=table) as reader:
            assert sum(batch.num_rows for batch in reader) == reader.num_rows


def test_options(postgres: Postgres, session: Session, tmp_path: Any) -> None:
    session.run("CREATE SEQUENCE IF NOT EXISTS counted")
    table = made(session, "int", *map(str, range(50)))
    url = postgres.url()
    for options, error, text in [
        ({"columns": ["v", "nope"]}, ca.ColumnNotFoundError, r"columns= names \['nope'\].*choose from v"),
        ({"columns": []}, ca.OptionError, "name at least one column"),
        ({"columns": ["v", "v"]}, ca.OptionError, "twice"),
        ({"columns": "v"}, ca.OptionError, "must be a list of names"),
        ({"filter": pc.field("v") > 1}, ca.OptionError, "of a database where= chooses rows"),
        ({"cache": str(tmp_path)}, ca.OptionError, "cache= goes with files"),
        ({"storage_options": {"a": 1}}, ca.OptionError, "storage_options= goes with files"),
        ({"where": ""}, ca.OptionError, "must be a condition in SQL"),
        ({"where": "nope > 1"}, ca.OptionError, 'where=\'nope > 1\'.*column "nope" does not exist'),
        ({"where": "v >"}, ca.OptionError, "where='v >'.*syntax error"),
        ({"where": "v"}, ca.OptionError, "where='v'.*must be type boolean"),
        ({"where": "v / 0 > 1"}, ca.ReadError, f"public.{table}.*division by zero"),
        ({"where": "nextval('counted') > 0"}, ca.CorgiArrowError, "read-only transaction"),
        ({"split": ca.Split(part="train", by="nope")}, ca.OptionError, "nope"),
        ({"split": ca.Split(part="train")}, ca.OptionError, "at least 1 of at least 2"),
        ({"timeout": 0}, ca.OptionError, "timeout=0"),
        ({"block_bytes": "1 parsec"}, ca.OptionError, "block_bytes="),
        ({"table": ""}, ca.OptionError, "table='' must be the name of a table"),
        ({"table": "a\0b"}, ca.OptionError, "zero byte"),
        ({"nope": 1}, TypeError, "nope"),
    ]:
        with pytest.raises(error, match=text):
            ca.Reader(url, **{"table": table, **options})
    with pytest.raises(ca.OptionError, match="needs table="):
        ca.Reader(url)
    for name in ("table", "where", "dimension"):
        with pytest.raises(ca.OptionError, match=f"{name}= goes with the URL of a database"):
            ca.Reader(str(tmp_path), **{name: "x"})
    with pytest.raises(ca.SourceChangedError, match=r"where='random\(\) < 0.5' must give the same for a row each time"):
        for _ in range(20):  # By chance as many may come as were counted.
            list(ca.Reader(url, table=table, where="random() < 0.5"))
    for where, expected in {"v < 9 -- few": list(range(9)), "v < 3 OR v > 47": [0, 1, 2, 48, 49]}.items():
        assert read(postgres, table, where=where)["v"].to_pylist() == expected


SECRET = "HUSHSECRET"


@pytest.mark.parametrize("secret", ["WR0NGSECRET", "p@ss:/?#w%d"])
@pytest.mark.parametrize("how", ["password", "host", "database", "role", "port", "table", "parameter"])
def test_a_password_is_never_told(
    postgres: Postgres, how: str, secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    hidden, folder = quote(secret, safe=""), postgres.folder
    url = {
        "password": f"postgresql://{LOCKED_ROLE}:{hidden}@/postgres?host={folder}",
        "host": f"postgresql://postgres:{hidden}@nowhere.invalid/postgres",
        "database": f"postgresql://postgres:{hidden}@/nowhere?host={folder}",
        "role": f"postgresql://nobody:{hidden}@/postgres?host={folder}",
        "port": f"postgresql://postgres:{hidden}@127.0.0.1:1/postgres",
        "table": f"postgresql://postgres:{hidden}@/postgres?host={folder}",
        "parameter": f"postgresql://{LOCKED_ROLE}@/postgres?host={folder}&password={hidden}",
    }[how]
    caplog.set_level(0)
    with pytest.raises(ca.CorgiArrowError) as raised:
        ca.Reader(url, table="nowhere", timeout=1)
    error: BaseException | None = raised.value
    assert isinstance(error, PermissionError) == (how in ("password", "parameter"))
    said = [caplog.text]
    while error is not None:
        said.append(f"{error} {error!r} {error.args}")
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert not any(text in line for text in (secret, hidden) for line in said), said


def test_a_password_that_is_right(postgres: Postgres, session: Session) -> None:
    table = made(session, "int", "1")
    session.run(f"GRANT SELECT ON {table} TO {LOCKED_ROLE}")
    url = f"postgresql://{LOCKED_ROLE}:{SECRET}@/postgres?host={postgres.folder}"
    with ca.Reader(url, table=table) as reader:
        assert [batch["v"].to_pylist() for batch in reader] == [[1]]
        for text in (repr(reader), repr(reader.source), str(reader.source.server), json.dumps(reader.state_dict())):
            assert SECRET not in text
        with pickle.loads(pickle.dumps(reader)) as again:
            reader.set_epoch(0)
            assert [batch["v"].to_pylist() for batch in again] == [[1]], "a reader that pickles reads on"
        session.run(f"DROP OWNED BY {LOCKED_ROLE}")
        reader.close()
        with pytest.raises(ca.AccessDeniedError) as raised:
            list(reader)
        assert SECRET not in str(raised.value)


def test_a_password_from_the_environment(postgres: Postgres, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(session, "int", "1")
    session.run(f"GRANT SELECT ON {table} TO {LOCKED_ROLE}")
    monkeypatch.setenv("PGPASSWORD", SECRET)
    with ca.Reader(postgres.url(LOCKED_ROLE), table=table) as reader:
        assert reader.num_rows == 1
    monkeypatch.delenv("PGPASSWORD")
    with pytest.raises(ca.AccessDeniedError, match="no password supplied"):
        ca.Reader(postgres.url(LOCKED_ROLE), table=table)

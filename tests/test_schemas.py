"""One schema for files that disagree: what is widened, filled, cast, found in paths, and what raises."""

import datetime as dt
import decimal
import itertools
import string
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import half_floats
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

import corgiarrow as ca
from corgiarrow.schemas import FileLayout, plain_type, unify, wider
from corgiarrow.sources.parquet import ParquetSource
from corgiarrow.strategies import BY_NAME

ONCE_EACH = sorted(set(BY_NAME) - {"mrs"})
NAN = "not a number"


def cells(column: pa.ChunkedArray | pa.Array) -> list[Any]:
    """Values of a column as Python compares them: floats by their bits (but any NaN is one), times as integers."""
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in cells(chunk)]
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return cells(column.storage)
    if pa.types.is_dictionary(kind):
        values = cells(column.dictionary)
        # Below a null struct an index may point nowhere.
        return [None if i is None or i >= len(values) else values[i] for i in column.indices.to_pylist()]
    valid = column.is_valid().to_pylist()
    if pa.types.is_struct(kind):
        parts = zip(*(cells(column.field(n)) for n in range(kind.num_fields)), strict=True)
        return [part if ok else None for part, ok in zip(parts, valid, strict=True)]
    if pa.types.is_fixed_size_list(kind):
        values, size = cells(column.values), kind.list_size
        return [
            tuple(values[(n + column.offset) * size :][:size]) if ok else None for n, ok in enumerate(valid)
        ]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        ends = column.offsets.to_pylist()
        pairs = pa.types.is_map(kind)
        values = list(zip(cells(column.keys), cells(column.items), strict=True)) if pairs else cells(column.values)
        return [tuple(values[ends[n] : ends[n + 1]]) if ok else None for n, ok in enumerate(valid)]
    if pa.types.is_floating(kind):
        bits = column.view({16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}[kind.bit_width]).to_pylist()
        return [NAN if value != value else b for b, value in zip(bits, column.to_pylist(), strict=True)]
    if pa.types.is_temporal(kind):
        column = column.view({32: pa.int32(), 64: pa.int64()}[kind.bit_width])
    return column.to_pylist()


def rows_of(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """The rows of a table, as a multiset."""
    return Counter(zip(*map(cells, table.columns), strict=True))


def read_all(data: object, **options: Any) -> pa.Table:
    """What one epoch delivers."""
    if options.get("memory"):
        options.setdefault("batch_size", 1)  # A batch must fit, too.
    reader = ca.Reader(data, **options)
    table = pa.Table.from_batches(list(reader), schema=reader.schema)
    table.validate(full=True)
    return table


def write_files(folder: Path, *tables: pa.Table, **options: Any) -> Path:
    """Write each table to a file of its own: a.parquet, b.parquet, and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in zip(string.ascii_lowercase, tables, strict=False):
        pq.write_table(table, folder / f"{name}.parquet", **options)
    return folder


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let even tiny row groups be read in pieces: a cursor is taken to cost next to nothing."""
    monkeypatch.setattr(ParquetSource, "_cursor_bytes", lambda source, block: 1.0)


# Types ------------------------------------------------------------------------------------------------------------

INTS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FLOATS = [pa.float16(), pa.float32(), pa.float64()]
FLAT = [
    *INTS,
    *FLOATS,
    pa.bool_(),
    pa.null(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.large_binary(),
    pa.binary(3),
    pa.decimal128(5, 2),
    pa.decimal128(20, 0),
    pa.decimal256(50, 10),
    pa.date32(),
    pa.date64(),
    pa.time32("s"),
    pa.time32("ms"),
    pa.time64("us"),
    pa.time64("ns"),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")),
    *(pa.duration(unit) for unit in ("s", "ms", "us", "ns")),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int32(), pa.int64()),
]


def nested_of(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.lists(st.tuples(st.sampled_from("pqr"), inner, st.booleans()), min_size=1, max_size=3)
    return st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.builds(lambda kind, size: pa.list_(kind, size), inner, st.integers(1, 2)),
        st.builds(pa.map_, st.sampled_from([pa.string(), pa.int32()]), inner),
        fields.map(lambda found: pa.struct([_field(*f) for f in {f[0]: f for f in found}.values()])),
    )


def _field(name: str, kind: pa.DataType, nullable: bool) -> pa.Field:
    return pa.field(name, kind, nullable or pa.types.is_null(kind))


TYPES = st.recursive(st.sampled_from(FLAT), nested_of, max_leaves=4)


def sorted_fields(kind: pa.DataType | None) -> str:
    """A type's text, with struct fields by name."""
    if kind is None or not pa.types.is_nested(kind):
        return str(kind)
    parts = [(kind.field(n).name, sorted_fields(kind.field(n).type)) for n in range(kind.num_fields)]
    nullable = [kind.field(n).nullable for n in range(kind.num_fields)]
    return f"{kind.id} {sorted(zip(parts, nullable, strict=True))} {getattr(kind, 'list_size', '')}"


@given(TYPES, TYPES)
@settings(max_examples=300)
def test_widening_is_symmetric_and_settles(one: pa.DataType, two: pa.DataType) -> None:
    found = wider(one, two)
    assert wider(one, one) == one
    assert sorted_fields(found) == sorted_fields(wider(two, one))
    if found is not None:
        for side in (one, two):
            assert sorted_fields(wider(found, side)) == sorted_fields(found), "a wider type holds both sides"
        assert plain_type(found) == found


def test_the_schema_does_not_depend_on_the_order_of_files() -> None:
    def unified(order: Sequence[pa.DataType]) -> str:
        layouts = [FileLayout(pa.schema([("x", kind)]), ("x",)) for kind in order]
        try:
            return str(unify(layouts, [str(kind) for kind in order], None, pa.schema([])))
        except ca.SchemaMismatchError:
            return "mismatch"

    found = {
        kinds: {unified(order) for order in itertools.permutations(kinds)}
        for kinds in itertools.combinations([pa.null(), *INTS, *FLOATS], 3)
    }
    assert not {kinds: results for kinds, results in found.items() if len(results) > 1}


@pytest.mark.parametrize(
    ("one", "two", "both"),
    [
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.int8(), pa.int16()),
        (pa.uint32(), pa.int64(), pa.int64()),
        (pa.uint64(), pa.int64(), None),
        (pa.int16(), pa.float32(), pa.float32()),
        (pa.int32(), pa.float32(), pa.float64()),
        (pa.uint32(), pa.float64(), pa.float64()),
        (pa.int64(), pa.float64(), None),
        (pa.int8(), pa.float16(), pa.float32()),
        (pa.float16(), pa.float32(), pa.float32()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.decimal128(5, 2), pa.decimal128(10, 4), pa.decimal128(10, 4)),
        (pa.decimal128(38, 0), pa.decimal128(4, 4), pa.decimal256(42, 4)),
        (pa.decimal256(76, 0), pa.decimal128(2, 2), None),
        (pa.decimal128(5, 0), pa.int32(), None),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.binary(), pa.large_binary(), pa.large_binary()),
        (pa.string(), pa.binary(), None),
        (pa.string(), pa.int64(), None),
        (pa.bool_(), pa.int8(), None),
        (pa.null(), pa.list_(pa.int8()), pa.list_(pa.int8())),
        (pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.string()),
        (pa.dictionary(pa.int32(), pa.string()), pa.null(), pa.dictionary(pa.int32(), pa.string())),
        (pa.timestamp("s"), pa.timestamp("us"), pa.timestamp("us")),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
        (pa.timestamp("us"), pa.timestamp("ns"), None),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), None),
        (pa.date32(), pa.timestamp("us"), None),
        (pa.time32("ms"), pa.time64("ns"), pa.time64("ns")),
        (pa.list_(pa.int8()), pa.large_list(pa.int64()), pa.large_list(pa.int64())),
        (pa.list_(pa.int8(), 3), pa.list_(pa.int16(), 3), pa.list_(pa.int16(), 3)),
        (pa.list_(pa.int8(), 3), pa.list_(pa.int16(), 4), pa.list_(pa.int16())),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int32())),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.int8(), pa.int8()), None),
        (
            pa.struct([("p", pa.int8())]),
            pa.struct([("q", pa.string()), ("p", pa.int16())]),
            pa.struct([("p", pa.int16()), ("q", pa.string())]),
        ),
        (pa.struct([("p", pa.int8())]), pa.struct([pa.field("q", pa.int8(), nullable=False), ("p", pa.int8())]), None),
    ],
)
def test_widening_table(one: pa.DataType, two: pa.DataType, both: pa.DataType | None) -> None:
    assert sorted_fields(wider(one, two)) == sorted_fields(both)


# Random datasets --------------------------------------------------------------------------------------------------

NARROWER: list[tuple[pa.DataType, list[pa.DataType]]] = [
    (pa.int64(), [pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32(), pa.null()]),
    (pa.uint64(), [pa.uint8(), pa.uint32()]),
    (pa.float64(), [pa.float32(), pa.int8(), pa.uint16(), pa.int32(), pa.uint32(), pa.null()]),
    (pa.float32(), [pa.float16(), pa.int8(), pa.uint16()]),
    (pa.decimal128(20, 4), [pa.decimal128(9, 2), pa.decimal128(16, 0)]),
    (pa.decimal256(50, 10), [pa.decimal128(30, 10)]),
    (pa.large_string(), [pa.string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view(), pa.null()]),
    (pa.string(), [pa.dictionary(pa.int32(), pa.string()), pa.null()]),
    (pa.dictionary(pa.int32(), pa.string()), [pa.null()]),
    (pa.dictionary(pa.int8(), pa.string()), []),
    (pa.large_binary(), [pa.binary(), pa.binary_view()]),
    (pa.binary(3), [pa.null()]),
    (pa.bool_(), [pa.null()]),
    (pa.date32(), [pa.null()]),
    (pa.time64("ns"), [pa.time32("ms"), pa.time64("us")]),
    (pa.timestamp("us"), [pa.timestamp("s"), pa.timestamp("ms"), pa.null()]),
    (pa.timestamp("us", "UTC"), [pa.timestamp("ms", "UTC")]),
    (pa.timestamp("ns"), []),
    (pa.duration("us"), [pa.duration("s"), pa.duration("ms")]),
]
ALPHABET = "ab é\x00"


@st.composite
def columns(draw: st.DrawFn, depth: int = 2) -> pa.Field:
    """The widest form of a column."""
    nullable = draw(st.sampled_from([True, True, False]))
    kinds = ["flat", "flat", "list", "large_list", "struct", "map", "fixed"] if depth else ["flat"]
    shape = draw(st.sampled_from(kinds))
    if shape == "flat":
        kind = draw(st.sampled_from([wide for wide, _ in NARROWER]))
    elif shape == "list":
        kind = pa.list_(draw(columns(depth - 1)).with_name("item"))
    elif shape == "large_list":
        kind = pa.large_list(draw(columns(depth - 1)).with_name("item"))
    elif shape == "fixed":
        kind = pa.list_(pa.field("item", draw(st.sampled_from([pa.float32(), pa.int64()])), nullable=False), 2)
    elif shape == "map":
        kind = pa.map_(draw(st.sampled_from([pa.string(), pa.int32()])), draw(columns(depth - 1)).with_name("value"))
    else:
        names = draw(st.lists(st.sampled_from(["p", "q", "r.s"]), min_size=1, max_size=3, unique=True))
        kind = pa.struct([draw(columns(depth - 1)).with_name(name) for name in names])
    # Required dictionaries inside of structs have a test of their own.
    return pa.field("", kind, nullable or (depth < 2 and pa.types.is_dictionary(kind)))


@st.composite
def drifted(draw: st.DrawFn, field: pa.Field) -> pa.Field:
    """A column as one file may store it: narrower, with fields missing, in another order, or required."""
    kind = field.type
    nullable = field.nullable and (pa.types.is_dictionary(kind) or draw(st.sampled_from([True, True, False])))
    if pa.types.is_struct(kind):
        kept = [f for f in kind.fields if not f.nullable or draw(st.sampled_from([True, True, False]))]
        kept = draw(st.permutations(kept or kind.fields[:1]))
        # A field that another file may lack has to be nullable everywhere.
        fields = [draw(drifted(f)) for f in kept]
        kind = pa.struct([f.with_nullable(f.nullable or w.nullable) for f, w in zip(fields, kept, strict=True)])
    elif pa.types.is_map(kind):
        kind = pa.map_(kind.key_field, draw(drifted(kind.item_field)))
    elif pa.types.is_large_list(kind):
        inner = draw(drifted(kind.value_field))
        kind = draw(st.sampled_from([pa.list_(inner), pa.large_list(inner)]))
    elif pa.types.is_list(kind):
        kind = pa.list_(draw(drifted(kind.value_field)))
    elif not pa.types.is_fixed_size_list(kind):
        narrow = next(n for wide, n in NARROWER if wide == kind)
        kind = draw(st.sampled_from([kind, kind, *narrow]))
    return pa.field(field.name, kind, nullable or pa.types.is_null(kind))


def values_of(field: pa.Field) -> st.SearchStrategy[Any]:
    """Python values that a field can hold."""
    found = _valid_values(field.type)
    return st.none() | found if field.nullable else found


def _valid_values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    t = pa.types
    if t.is_null(kind):
        return st.none()
    if t.is_struct(kind):
        return st.fixed_dictionaries({f.name: values_of(f) for f in kind.fields})
    if t.is_map(kind):
        return st.dictionaries(_valid_values(kind.key_type), values_of(kind.item_field), max_size=2).map(
            lambda found: list(found.items())
        )
    if t.is_fixed_size_list(kind):
        return st.lists(values_of(kind.value_field), min_size=kind.list_size, max_size=kind.list_size)
    if t.is_list(kind) or t.is_large_list(kind):
        return st.lists(values_of(kind.value_field), max_size=3)
    if t.is_dictionary(kind):
        return st.sampled_from(["", "a", "bb", "é"])
    if t.is_integer(kind):
        signed = t.is_signed_integer(kind)
        low = -(2 ** (kind.bit_width - 1)) if signed else 0
        return st.integers(low, 2 ** (kind.bit_width - signed) - 1)
    if t.is_floating(kind):
        return half_floats() if t.is_float16(kind) else st.floats(width=kind.bit_width)
    if t.is_decimal(kind):
        most = 10**kind.precision - 1
        context = decimal.Context(prec=100)
        return st.integers(-most, most).map(lambda n: decimal.Decimal(n).scaleb(-kind.scale, context))
    if t.is_timestamp(kind):
        zone = dt.UTC if kind.tz else None
        whole = {"s": 1_000_000, "ms": 1000}.get(kind.unit, 1)
        first = dt.datetime(1900, 1, 1, tzinfo=zone)
        return st.integers(0, 6 * 10**15 // whole).map(lambda n: first + dt.timedelta(microseconds=n * whole))
    if t.is_duration(kind):
        whole = {"s": 1_000_000, "ms": 1000}.get(kind.unit, 1)
        return st.integers(-(10**12), 10**12).map(lambda n: dt.timedelta(microseconds=n * whole))
    if t.is_time(kind):
        whole = 1000 if kind.unit == "ms" else 1
        return st.integers(0, 86_399_999_999 // whole).map(
            lambda n: (dt.datetime(2000, 1, 1) + dt.timedelta(microseconds=n * whole)).time()
        )
    if t.is_date(kind):
        return st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31))
    if t.is_boolean(kind):
        return st.booleans()
    if t.is_fixed_size_binary(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind):
        return st.binary(max_size=5)
    return st.text(ALPHABET, max_size=5)


@st.composite
def datasets(draw: st.DrawFn) -> list[pa.Table]:
    """One to three files of one dataset."""
    widest = [draw(columns()).with_name(f"c{n}") for n in range(draw(st.integers(1, 4)))]
    tables = []
    for _ in range(draw(st.integers(1, 3))):
        here = [f for f in widest if not f.nullable or draw(st.sampled_from([True, True, False]))] or widest[:1]
        here = [draw(drifted(f)) for f in draw(st.permutations(here))]
        required = {w.name for w in widest if not w.nullable}
        here = [f.with_nullable(pa.types.is_null(f.type) or f.name not in required) for f in here]
        rows = draw(st.integers(0, 12))
        values = [draw(st.lists(values_of(f), min_size=rows, max_size=rows)) for f in here]
        repeats = draw(st.sampled_from([1, 7, 20]))
        arrays = [pa.array(v * repeats, f.type) for f, v in zip(here, values, strict=True)]
        tables.append(pa.table(arrays, schema=pa.schema(here)))
    return tables


def expected_rows(tables: Sequence[pa.Table], schema: pa.Schema) -> Counter[tuple[Any, ...]]:
    """Rows of tables in another schema, by way of Python values, so without any cast."""
    found: Counter[tuple[Any, ...]] = Counter()
    for table in tables:
        columns = [
            pa.array(table[f.name].to_pylist() if f.name in table.column_names else [None] * len(table), f.type)
            for f in schema
        ]
        found += rows_of(pa.Table.from_arrays(columns, schema=schema))
    return found


@pytest.mark.usefixtures("small_pages")
@given(
    tables=datasets(),
    group_rows=st.integers(1, 30),
    name=st.sampled_from(ONCE_EACH),
    batch_size=st.integers(1, 20),
    part=st.sampled_from([None, 4.0, 2.0, 1.0, 0.5]),
    threads=st.integers(1, 2),
    written=st.fixed_dictionaries(
        {"use_dictionary": st.booleans(), "data_page_version": st.sampled_from(["1.0", "2.0"])}
    ),
)
@settings(max_examples=100)
def test_random_drifting_datasets_come_whole(
    tmp_path_factory: pytest.TempPathFactory,
    tables: list[pa.Table],
    group_rows: int,
    name: str,
    batch_size: int,
    part: float | None,
    threads: int,
    written: dict[str, Any],
) -> None:
    folder = tmp_path_factory.mktemp("random")
    try:
        write_files(folder, *tables, row_group_size=group_rows, **written)
        for file in folder.iterdir():
            pq.read_table(file, partitioning=None)
    except (pa.ArrowException, IndexError):
        assume(False)  # Some dictionaries inside of lists pyarrow itself cannot write or read.
    options = {"shuffle": name, "batch_size": batch_size, "threads": threads}
    try:
        memory = None if part is None else max(int(part * sum(t.nbytes for t in tables)), 1)
        reader = ca.Reader(folder, memory=memory, **options)
    except ca.BudgetError:
        reader = ca.Reader(folder, **options)
    event("in pieces" if reader.plan().pieces is not None else "whole")
    found = pa.Table.from_batches(list(reader), schema=reader.schema)
    found.validate(full=True)
    assert set(found.column_names) == {name for t in tables for name in t.column_names}
    assert rows_of(found) == expected_rows(tables, reader.schema)


def test_a_required_dictionary_below_a_null_struct(tmp_path: Path) -> None:
    kind = pa.struct([pa.field("p", pa.dictionary(pa.int32(), pa.string()), nullable=False)])
    folder = write_files(tmp_path, pa.table({"c": pa.array([None, None], kind)}))
    reader = ca.Reader(folder)
    assert [row for batch in reader for row in batch.to_pylist()] == [{"c": None}] * 2


# Table tests ------------------------------------------------------------------------------------------------------


def test_columns_come_by_name_in_the_first_files_order(tmp_path: Path) -> None:
    one, two = pa.table({"x": [1], "y": ["a"]}), pa.table({"y": ["b"], "x": [2]})
    found = read_all(write_files(tmp_path, one, two), shuffle="none")
    assert found.to_pylist() == [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]
    assert found.column_names == ["x", "y"]


def test_a_missing_nullable_column_is_null(tmp_path: Path) -> None:
    folder = write_files(tmp_path, pa.table({"x": [1, 2]}), pa.table({"x": [3], "y": ["a"]}))
    found = read_all(folder, shuffle="none")
    assert found["y"].to_pylist() == [None, None, "a"]
    assert found.schema.field("y").nullable
    alone = read_all(folder, columns=["y"], shuffle="none")
    assert alone["y"].to_pylist() == [None, None, "a"]


def test_a_missing_required_column_raises_unless_cast(tmp_path: Path) -> None:
    required = pa.schema([("x", pa.int64()), pa.field("y", pa.int32(), nullable=False)])
    folder = write_files(tmp_path, pa.table({"x": [1]}), pa.table([[2], [3]], schema=required))
    with pytest.raises(ca.SchemaMismatchError) as caught:
        ca.Reader(folder)
    for text in ("a.parquet", "b.parquet", "'y'", "int32", "schema={'y': pa.int32()}"):
        assert text in str(caught.value)
    assert read_all(folder, schema={"y": pa.int32()}, shuffle="none")["y"].to_pylist() == [None, 3]


def test_a_column_required_everywhere_stays_required(tmp_path: Path) -> None:
    required = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    folder = write_files(tmp_path, pa.table([[1]], schema=required), pa.table([[2]], schema=required))
    assert not ca.Reader(folder).schema.field("x").nullable
    write_files(tmp_path, pa.table({"x": [3]}))
    assert ca.Reader(folder).schema.field("x").nullable


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (pa.int64(), pa.string()),
        (pa.int64(), pa.float64()),
        (pa.timestamp("us"), pa.timestamp("ns")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.string(), pa.binary()),
        (pa.list_(pa.int64()), pa.list_(pa.string())),
        (pa.struct([("p", pa.int64())]), pa.struct([("p", pa.string())])),
        (pa.struct([("p", pa.int64())]), pa.int64()),
    ],
)
def test_unsafe_drift_raises_before_any_batch(tmp_path: Path, one: pa.DataType, two: pa.DataType) -> None:
    tables = [pa.table({"x": pa.nulls(2, kind), "ok": [1, 2]}) for kind in (one, two)]
    folder = write_files(tmp_path, *tables)
    with pytest.raises(ca.SchemaMismatchError) as caught:
        ca.Reader(folder)
    for text in ("a.parquet", "b.parquet", str(one), str(two), "schema={'x'"):
        assert text.replace("item", "element") in str(caught.value)  # As Parquet calls what a list holds.


def test_the_files_named_hold_the_types_named(tmp_path: Path) -> None:
    tables = [pa.table({"x": pa.nulls(1, kind)}) for kind in (pa.int8(), pa.int64(), pa.int8(), pa.string())]
    with pytest.raises(ca.SchemaMismatchError) as caught:
        ca.Reader(write_files(tmp_path, *tables))
    assert "int64 in" in str(caught.value)
    assert "b.parquet" in str(caught.value)
    assert "string in" in str(caught.value)
    assert "d.parquet" in str(caught.value)


CASTS: list[tuple[pa.Array, pa.DataType, list[Any]]] = [
    (pa.array([1, 2**40]), pa.float64(), [1.0, 2.0**40]),
    (pa.array([1, 200]), pa.uint8(), [1, 200]),
    (pa.array(["1", "-20", None]), pa.int32(), [1, -20, None]),
    (pa.array([1.0, 2.0]), pa.int64(), [1, 2]),
    (pa.array([1, 2]), pa.string(), ["1", "2"]),
    (pa.array(["a", "b"]), pa.dictionary(pa.int8(), pa.string()), ["a", "b"]),
    (pa.array(["a", "b"]).dictionary_encode(), pa.large_string(), ["a", "b"]),
    (pa.array([b"a", "é".encode()]), pa.string(), ["a", "é"]),
    (pa.array([1_000_000], pa.timestamp("us")), pa.timestamp("s"), [dt.datetime(1970, 1, 1, 0, 0, 1)]),
    (pa.array([[1, None], None]), pa.list_(pa.int8()), [[1, None], None]),
    (pa.array([{"p": 1}]), pa.struct([("p", pa.float32()), ("q", pa.string())]), [{"p": 1.0, "q": None}]),
    (pa.array([1.5, float("nan")]), pa.float32(), [1.5, NAN]),
    (pa.array([dt.date(2020, 2, 29)]), pa.timestamp("us"), [dt.datetime(2020, 2, 29)]),
]


@pytest.mark.parametrize(("stored", "kind", "values"), CASTS, ids=lambda x: str(x)[:20] if x is not None else "")
@pytest.mark.parametrize("as_schema", [False, True])
def test_schema_casts(tmp_path: Path, stored: pa.Array, kind: pa.DataType, values: list[Any], as_schema: bool) -> None:
    folder = write_files(tmp_path, pa.table({"x": stored, "other": pa.nulls(len(stored), pa.int8())}))
    request = pa.schema([("x", kind)]) if as_schema else {"x": kind}
    found = read_all(folder, schema=request, shuffle="none")
    assert found.schema.field("x").type == plain_type(kind)
    assert found.column_names == ["x", "other"]
    assert [NAN if v != v else v for v in found["x"].to_pylist()] == values


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize(
    ("stored", "kind"),
    [
        (pa.array([1, 2, 2**53 + 1]), pa.float64()),
        (pa.array([1, 2, 300]), pa.uint8()),
        (pa.array([1, 2, -1]), pa.uint64()),
        (pa.array([1.0, 2.0, 2.5]), pa.int64()),
        (pa.array(["1", "2", "x"]), pa.int64()),
        (pa.array([1000, 2000, 1500], pa.timestamp("ms")), pa.timestamp("s")),
        (pa.array([b"a", b"b", b"\xff"]), pa.string()),
        (pa.array([[1], [2], [300]]), pa.list_(pa.int8())),
        (pa.array([decimal.Decimal("1.00"), decimal.Decimal("2.00"), decimal.Decimal("2.55")]), pa.decimal128(5, 1)),
    ],
    ids=str,
)
@pytest.mark.parametrize("memory", [None, "2 kB"])
def test_a_lossy_value_raises_where_it_lies(
    tmp_path: Path, stored: pa.Array, kind: pa.DataType, memory: str | None
) -> None:
    """Two row groups of the second file fit; the third, or its last piece, does not."""
    fine = pa.table({"x": stored.slice(0, 2), "pad": ["p" * 300] * 2})
    folder = write_files(tmp_path, fine)
    lossy = pa.table({"x": stored, "pad": ["p" * 300] * 3})
    with pq.ParquetWriter(tmp_path / "b.parquet", lossy.schema) as writer:
        for table in (fine, fine, lossy):
            writer.write_table(table)
    with pytest.raises(ca.ReadError) as caught:
        read_all(folder, schema={"x": kind}, shuffle="none", memory=memory)
    for text in ("b.parquet", "row group 2", "column 'x'"):
        assert text in str(caught.value)
    assert "a.parquet" not in str(caught.value)
    assert len(read_all(folder, schema={"x": kind}, columns=["pad"])) == 9


def test_schema_of_an_unknown_column_raises(tmp_path: Path) -> None:
    folder = write_files(tmp_path, pa.table({"x": [1]}))
    with pytest.raises(ca.ColumnNotFoundError, match="'y'"):
        ca.Reader(folder, schema={"y": pa.int64()})
    with pytest.raises(ca.OptionError, match="twice"):
        ca.Reader(folder, schema=pa.schema([("x", pa.int64()), ("x", pa.int32())]))


def test_schema_unites_what_no_type_holds(tmp_path: Path) -> None:
    folder = write_files(tmp_path, pa.table({"x": [1]}), pa.table({"x": ["2"]}), pa.table({"y": [0]}))
    assert sorted(read_all(folder, schema={"x": pa.int32()})["x"].to_pylist(), key=str) == [1, 2, None]


def test_schema_goes_into_the_index_and_its_fingerprint(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "data", pa.table({"x": [1, 2]}))
    index = ca.BlockIndex.build(folder, schema={"x": pa.string()})
    index.save(tmp_path / "index")
    loaded = ca.BlockIndex.load(tmp_path / "index")
    assert loaded.schema == index.schema
    assert read_all(loaded, shuffle="none")["x"].to_pylist() == ["1", "2"]
    assert index.fingerprint == loaded.fingerprint != ca.BlockIndex.build(folder).fingerprint
    with pytest.raises(ca.OptionError, match=r"BlockIndex\.build"):
        ca.Reader(index, schema={"x": pa.int8()})


def test_duplicate_names_raise(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(ca.SchemaMismatchError, match=r"a\.parquet has columns \['x'\] twice"):
        ca.Reader(write_files(tmp_path, table))


def test_a_pandas_index_is_an_ordinary_column(tmp_path: Path) -> None:
    """As pandas writes it: the column __index_level_0__, and metadata that names it an index."""
    metadata = {"pandas": '{"index_columns": ["__index_level_0__"], "columns": [], "pandas_version": "2.2.0"}'}
    table = pa.table({"x": [1, 2], "__index_level_0__": ["i", "j"]}).replace_schema_metadata(metadata)
    found = read_all(write_files(tmp_path, table), shuffle="none")
    assert found.to_pylist() == [{"x": 1, "__index_level_0__": "i"}, {"x": 2, "__index_level_0__": "j"}]
    assert read_all(tmp_path, columns=["__index_level_0__"], shuffle="none").column_names == ["__index_level_0__"]
    assert read_all(tmp_path, columns=["x"]).column_names == ["x"]


NESTED = pa.table(
    {
        "a": pa.array(
            [{"b": 1, "c": {"d": "x", "e": 1}}, None, {"b": None, "c": None}, {"b": 4, "c": {"d": None, "e": 4}}],
            pa.struct([("b", pa.int32()), ("c", pa.struct([("d", pa.string()), ("e", pa.int8())]))]),
        ),
        "z": [1, 2, 3, 4],
    }
)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("memory", [None, 4000])
def test_fields_of_structs_by_name(tmp_path: Path, memory: int | None) -> None:
    """A field is null where its struct is, at any depth."""
    folder = write_files(tmp_path, *[pa.concat_tables([NESTED] * 50)] * 2)
    names = ["a.c.d", "z", "a.b", "a.c", "a"]
    reader = ca.Reader(folder, columns=names, shuffle="none", memory=memory, batch_size=8)
    assert (reader.plan().pieces is None) == (memory is None)
    found = pa.Table.from_batches(list(reader))
    assert found.column_names == names
    expected = [
        {"a.c.d": "x", "z": 1, "a.b": 1},
        {"a.c.d": None, "z": 2, "a.b": None},
        {"a.c.d": None, "z": 3, "a.b": None},
        {"a.c.d": None, "z": 4, "a.b": 4},
    ]
    assert found.select(["a.c.d", "z", "a.b"]).to_pylist() == expected * 100
    assert found["a"].to_pylist() == NESTED["a"].to_pylist() * 100
    assert found["a.c"].to_pylist() == [v and v["c"] for v in NESTED["a"].to_pylist()] * 100


@pytest.mark.parametrize("name", ["a.b", "a.c.d", "a.c"])
def test_a_struct_field_alone_reads_only_its_bytes(tmp_path: Path, name: str) -> None:
    reader = ca.Reader(write_files(tmp_path, NESTED), columns=[name], shuffle="none")
    column = pa.Table.from_batches(list(reader))[name]
    values = NESTED["a"].to_pylist()
    for part in name.split(".")[1:]:
        values = [v and v[part] for v in values]
    assert column.to_pylist() == values
    group = pq.read_metadata(tmp_path / "a.parquet").row_group(0)
    chunks = [group.column(n) for n in range(group.num_columns)]
    assert reader.stats.fetched_bytes == sum(
        c.total_compressed_size for c in chunks if c.path_in_schema == name or c.path_in_schema.startswith(f"{name}.")
    )


def test_a_required_field_of_a_nullable_struct_is_nullable(tmp_path: Path) -> None:
    kind = pa.struct([pa.field("b", pa.int64(), nullable=False)])
    folder = write_files(tmp_path, pa.table({"a": pa.array([{"b": 1}, None], kind)}))
    found = read_all(folder, columns=["a.b"], shuffle="none")
    assert found["a.b"].to_pylist() == [1, None]
    assert found.schema.field("a.b").nullable


def test_a_column_with_a_dot_in_its_name(tmp_path: Path) -> None:
    table = pa.table({"a.b": [1, 2], "a": [{"b": 3, "x": 0}, {"b": 4, "x": 0}], "c.d": [{"e.f": 5}, {"e.f": 6}]})
    folder = write_files(tmp_path, table)
    assert read_all(folder, shuffle="none").equals(table)
    for name in table.column_names:
        assert read_all(folder, columns=[name], shuffle="none").equals(table.select([name])), name
    assert read_all(folder, columns=["a", "a.b"], shuffle="none")["a.b"].to_pylist() == [1, 2]


def test_struct_fields_missing_in_some_files(tmp_path: Path) -> None:
    one = pa.table({"a": pa.array([{"b": 1}, None]), "z": [1, 2]})
    two = pa.table({"a": pa.array([{"c": "x", "b": 2}])})
    three = pa.table({"z": [3]})
    folder = write_files(tmp_path, one, two, three)
    found = read_all(folder, shuffle="none")
    assert found["a"].to_pylist() == [{"b": 1, "c": None}, None, {"b": 2, "c": "x"}, None]
    for columns in (["a.c"], ["a.b", "a.c"], ["z", "a.c"]):
        part = read_all(folder, columns=columns, shuffle="none")
        assert part["a.c"].to_pylist() == [None, None, "x", None]


@pytest.mark.parametrize(
    ("asked", "meant"), [("Label", "label"), ("LABEL", "label"), ("labell", "label"), ("zzz", None), ("s.q", None)]
)
def test_an_unknown_column_raises_and_says_what_may_be_meant(tmp_path: Path, asked: str, meant: str | None) -> None:
    folder = write_files(tmp_path, pa.table({"label": [1], "s": [{"p": 1}]}))
    with pytest.raises(ca.ColumnNotFoundError) as caught:
        ca.Reader(folder, columns=[asked])
    assert repr(asked) in str(caught.value)
    assert ("did you mean 'label'" in str(caught.value)) == (meant is not None)
    assert "label, s" in str(caught.value)


@pytest.mark.parametrize("columns", [[], ["x", "x"]])
def test_columns_must_be_some_and_none_twice(tmp_path: Path, columns: list[str]) -> None:
    with pytest.raises(ca.CorgiArrowError, match="columns="):
        ca.Reader(write_files(tmp_path, pa.table({"x": [1]})), columns=columns)


def test_old_timestamps_do_not_wrap(tmp_path: Path) -> None:
    """INT96 reaches far; nanoseconds in 64 bits do not."""
    times = [dt.datetime(1, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), None, dt.datetime(9999, 12, 31)]
    table = pa.table({"t": pa.array(times, pa.timestamp("us"))})
    folder = write_files(tmp_path / "int96", table, use_deprecated_int96_timestamps=True)
    assert pq.read_metadata(folder / "a.parquet").row_group(0).column(0).physical_type == "INT96"
    found = read_all(folder, shuffle="none")
    assert found.schema.field("t").type == pa.timestamp("us")
    assert found["t"].to_pylist() == times
    both = write_files(tmp_path / "both", table)
    (both / "b.parquet").write_bytes((folder / "a.parquet").read_bytes())
    assert read_all(both, shuffle="none")["t"].to_pylist() == times * 2


# Hive folders -----------------------------------------------------------------------------------------------------


def write_hive(root: Path, files: dict[str, pa.Table]) -> Path:
    """Write each table below its folders."""
    for path, table in files.items():
        (root / path).mkdir(parents=True, exist_ok=True)
        pq.write_table(table, root / path / "f.parquet")
    return root


def numbered(*ids: int) -> pa.Table:
    return pa.table({"id": ids})


@pytest.mark.parametrize(
    ("folders", "kind", "values"),
    [
        (["1", "20", "-3"], pa.int64(), [1, 20, -3]),
        (["007", "8"], pa.int64(), [7, 8]),
        (["1", "x"], pa.string(), ["1", "x"]),
        (["1", "1.5"], pa.string(), ["1", "1.5"]),
        (["1", "__HIVE_DEFAULT_PARTITION__"], pa.int64(), [1, None]),
        (["x", "__HIVE_DEFAULT_PARTITION__"], pa.string(), ["x", None]),
        (["a%20b", "c%2Fd", "e%3D1", "%C3%A9"], pa.string(), ["a b", "c/d", "e=1", "é"]),
        (["2024-01-31", "2024-02-01"], pa.string(), ["2024-01-31", "2024-02-01"]),
        (["12345678901234567890", "1"], pa.string(), ["12345678901234567890", "1"]),
        (["", "1"], pa.string(), ["", "1"]),
    ],
)
def test_folders_become_a_column(tmp_path: Path, folders: list[str], kind: pa.DataType, values: list[Any]) -> None:
    root = write_hive(tmp_path, {f"k={text}": numbered(n, n + 100) for n, text in enumerate(folders)})
    found = read_all(root)
    assert found.schema.field("k").type == kind
    expected = {(n + more, value) for n, value in enumerate(values) for more in (0, 100)}
    assert set(zip(found["id"].to_pylist(), found["k"].to_pylist(), strict=True)) == expected
    assert Counter(read_all(root, columns=["k"])["k"].to_pylist()) == Counter(values * 2)
    assert Counter(read_all(root, columns=["id"]).column_names) == Counter(["id"])


def test_all_null_folders(tmp_path: Path) -> None:
    root = write_hive(tmp_path, {"k=__HIVE_DEFAULT_PARTITION__": numbered(1, 2)})
    assert read_all(root)["k"].to_pylist() == [None, None]


def test_two_keys_and_uneven_folders(tmp_path: Path) -> None:
    root = write_hive(tmp_path, {"y=1/m=a": numbered(1), "y=2/m=b": numbered(2), "y=3": numbered(3)})
    found = sorted(read_all(root).to_pylist(), key=lambda row: row["id"])
    assert found == [{"id": 1, "y": 1, "m": "a"}, {"id": 2, "y": 2, "m": "b"}, {"id": 3, "y": 3, "m": None}]


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("kind", [pa.int64(), pa.int8(), pa.float64()])
def test_a_key_that_the_file_also_has(tmp_path: Path, statistics: bool, kind: pa.DataType) -> None:
    for key in (1, 2):
        folder = tmp_path / f"k={key}"
        folder.mkdir()
        table = pa.table({"id": [key], "k": pa.array([key], kind)})
        pq.write_table(table, folder / "f.parquet", write_statistics=statistics)
    assert sorted(read_all(tmp_path).select(["id", "k"]).to_pylist(), key=str) == [
        {"id": 1, "k": 1},
        {"id": 2, "k": 2},
    ]


@pytest.mark.parametrize("statistics", [True, False])
@pytest.mark.parametrize("values", [[2, 2], [1, 2], [1, None], [None, None]])
def test_a_key_that_the_file_contradicts(tmp_path: Path, statistics: bool, values: list[int | None]) -> None:
    """With statistics the index says so, without them the read."""
    (tmp_path / "k=1").mkdir()
    table = pa.table({"id": [1, 2], "k": pa.array(values, pa.int64())})
    pq.write_table(table, tmp_path / "k=1" / "f.parquet", write_statistics=statistics)
    with pytest.raises(ca.SchemaMismatchError, match=r"f\.parquet: the path says k=1"):
        read_all(tmp_path)


def test_a_key_takes_the_type_asked_for(tmp_path: Path) -> None:
    root = write_hive(tmp_path / "data", {"k=01": numbered(1), "k=2": numbered(2)})
    for kind, values in (
        (pa.int8(), [1, 2]),
        (pa.string(), ["01", "2"]),
        (pa.dictionary(pa.int32(), pa.string()), ["01", "2"]),
        (pa.float64(), [1.0, 2.0]),
    ):
        index = ca.BlockIndex.build(root, schema={"k": kind})
        index.save(tmp_path / "index")
        for data in (index, ca.BlockIndex.load(tmp_path / "index")):
            found = read_all(data)
            assert found.schema.field("k").type == kind
            assert sorted(zip(*(found[n].to_pylist() for n in ("id", "k")), strict=True)) == list(
                zip([1, 2], values, strict=True)
            )
    dates = write_hive(tmp_path / "dates", {"day=2024-02-29": numbered(1)})
    assert read_all(dates, schema={"day": pa.date32()})["day"].to_pylist() == [dt.date(2024, 2, 29)]
    with pytest.raises(ca.SchemaMismatchError, match="day="):
        ca.Reader(dates, schema={"day": pa.int64()})


def test_folders_and_drift_survive_saving(tmp_path: Path) -> None:
    files = {
        "k=1/j=a%20b": pa.table({"x": pa.array([1], pa.int8())}),
        "k=2/j=__HIVE_DEFAULT_PARTITION__": pa.table({"x": pa.array([2], pa.int32()), "s": [{"p": 1}]}),
        "k=3/j=c": pa.table({"s": [{"p": 2, "q": "x"}]}),
    }
    index = ca.BlockIndex.build(write_hive(tmp_path / "data", files))
    index.save(tmp_path / "index")
    loaded = ca.BlockIndex.load(tmp_path / "index")
    assert loaded.fingerprint == index.fingerprint
    assert loaded.layouts == index.layouts
    table = read_all(index)
    assert rows_of(read_all(loaded)) == rows_of(table)
    assert sorted(table.to_pylist(), key=lambda row: row["k"]) == [
        {"x": 1, "s": None, "k": 1, "j": "a b"},
        {"x": 2, "s": {"p": 1, "q": None}, "k": 2, "j": None},
        {"x": None, "s": {"p": 2, "q": "x"}, "k": 3, "j": "c"},
    ]


@given(
    keys=st.lists(st.text("ab=%/ é.0123456789-", min_size=1, max_size=5), min_size=1, max_size=4, unique=True),
    name=st.text("kK é=%.", min_size=1, max_size=3).filter(lambda s: not s.startswith(".")),
)
@settings(max_examples=40)
def test_any_value_survives_a_folders_name(
    tmp_path_factory: pytest.TempPathFactory, keys: list[str], name: str
) -> None:
    """Folders as pyarrow writes them come back as the text that was written."""
    root = tmp_path_factory.mktemp("any")
    quoted: Callable[[str], str] = lambda s: "".join(f"%{b:02X}" for b in s.encode())  # noqa: E731
    write_hive(root, {f"{quoted(name)}={quoted(key)}": numbered(n) for n, key in enumerate(keys)})
    found = read_all(root, schema={name: pa.string()})
    assert set(zip(found["id"].to_pylist(), found[name].to_pylist(), strict=True)) == set(enumerate(keys))


def test_as_pyarrow_writes_a_partitioned_dataset(tmp_path: Path) -> None:
    table = pa.table({"k": ["a/b", "c=d", "é f", None], "n": [1, 2, 3, 4], "id": np.arange(4)})
    pq.write_to_dataset(table, tmp_path, partition_cols=["k", "n"])
    found = read_all(tmp_path)
    assert rows_of(found.select(["k", "n", "id"])) == rows_of(table)

"""Arrays hold what the batches hold, in dtypes and shapes that follow from the schema and the options alone."""

import pickle
from collections.abc import Sequence
from decimal import Context, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import half_floats
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import corgiarrow as ca
from corgiarrow.arrays import ArraySpec, Converter, Ragged

DAY_MS = 86_400_000
EXACT = Context(prec=100)


def flat_kinds() -> list[pa.DataType]:
    units = ("s", "ms", "us", "ns")
    return [
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.date32(), pa.date64()),
        *(pa.timestamp(u) for u in units),
        *(pa.timestamp("ns", "Europe/Berlin"), pa.timestamp("ms", "UTC")),
        *(pa.duration(u) for u in units),
        *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
        *(pa.decimal128(7, 2), pa.decimal128(38, 10), pa.decimal256(60, 5)),
        *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3)),
        pa.dictionary(pa.int16(), pa.string()),
    ]


KINDS = st.recursive(
    st.sampled_from(flat_kinds()),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        st.tuples(inner, st.integers(1, 3)).map(lambda t: pa.list_(*t)),
        st.lists(inner, min_size=1, max_size=3).map(lambda ks: pa.struct([(f"f{i}", k) for i, k in enumerate(ks)])),
        inner.map(lambda k: pa.map_(pa.string(), k)),
    ),
    max_leaves=4,
)


def values_of(kind: pa.DataType, nulls: bool) -> st.SearchStrategy[Any]:
    """Values of a type as `pa.array` takes them, with points in time as counts; nulls only where a mask can tell."""
    if pa.types.is_struct(kind):
        found: st.SearchStrategy[Any] = st.fixed_dictionaries({f.name: values_of(f.type, nulls) for f in kind})
    elif pa.types.is_map(kind):
        found = st.lists(st.tuples(st.text(max_size=3), values_of(kind.item_type, nulls)), max_size=3)
    elif pa.types.is_fixed_size_list(kind):
        found = st.lists(values_within(kind, nulls), min_size=kind.list_size, max_size=kind.list_size)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        found = st.lists(values_within(kind, nulls), max_size=3)
    else:
        found = flat_values(kind)
    return st.none() | found if nulls else found


def values_within(kind: pa.DataType, nulls: bool) -> st.SearchStrategy[Any]:
    """Of a list: only the fields of structs have masks there."""
    inner = kind.value_type
    return values_of(inner, nulls and pa.types.is_struct(inner))


def flat_values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_dictionary(kind):
        return st.sampled_from(["a", "b", "", "ü"])
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_floating(kind):
        if pa.types.is_float16(kind):
            return half_floats()
        return st.floats(width=kind.bit_width, allow_nan=False) | st.just(float("nan"))
    if pa.types.is_decimal(kind):
        limit = 10**kind.precision - 1
        return st.integers(-limit, limit).map(lambda n: Decimal(n).scaleb(-kind.scale, EXACT))
    if pa.types.is_fixed_size_binary(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return st.binary(max_size=4)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return st.text(max_size=4)
    if pa.types.is_date64(kind):
        return st.integers(-30_000, 30_000).map(lambda n: n * DAY_MS)
    if pa.types.is_time(kind):
        return st.integers(0, 86_399)
    if pa.types.is_integer(kind):
        info = np.iinfo(kind.to_pandas_dtype())
        return st.integers(int(info.min), int(info.max))
    # INT64's least is NaT.
    return st.integers(-(2 ** (kind.bit_width - 1)) + 1, 2 ** (kind.bit_width - 1) - 1)


# The oracle: from Python values, one at a time.


def expected(kind: pa.DataType, values: Sequence[Any], masked: bool) -> Any:
    if pa.types.is_struct(kind):
        return fields([(f.name, f.type, [None if v is None else v[f.name] for v in values]) for f in kind], masked)
    if pa.types.is_map(kind):
        pairs = [pair for v in values for pair in v or ()]
        keys, items = [k for k, _ in pairs], [v for _, v in pairs]
        inner = fields([("key", kind.key_type, keys), ("value", kind.item_type, items)], masked)
        return Ragged(inner, offsets(values))
    if pa.types.is_fixed_size_list(kind) and is_plain(kind.value_type):
        size = kind.list_size
        zeros = [zero(kind.value_type)] * size
        found = expected(kind.value_type, [x for v in values for x in (zeros if v is None else v)], masked)
        return found.reshape(len(values), size, *found.shape[1:])
    if pa.types.is_nested(kind):
        return Ragged(expected(kind.value_type, [x for v in values for x in v or ()], masked), offsets(values))
    return flat(kind, [zero(kind) if v is None else v for v in values])


def fields(parts: Sequence[tuple[str, pa.DataType, Sequence[Any]]], masked: bool) -> dict[str, Any]:
    found = {}
    for name, kind, values in parts:
        found[name] = expected(kind, values, masked)
        if masked and not pa.types.is_struct(kind):
            found[f"{name}_valid"] = np.array([v is not None for v in values], dtype=bool)
    return found


def offsets(values: Sequence[Any]) -> np.ndarray:
    return np.cumsum([0, *(len(v or ()) for v in values)], dtype=np.int64)


def is_plain(kind: pa.DataType) -> bool:
    return not pa.types.is_nested(kind) or (pa.types.is_fixed_size_list(kind) and is_plain(kind.value_type))


def zero(kind: pa.DataType) -> Any:
    if pa.types.is_fixed_size_list(kind):
        return [zero(kind.value_type)] * kind.list_size
    if pa.types.is_fixed_size_binary(kind):
        return bytes(kind.byte_width)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return b""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        return ""
    if pa.types.is_boolean(kind):
        return False
    return Decimal(0) if pa.types.is_decimal(kind) else 0


def flat(kind: pa.DataType, values: Sequence[Any]) -> np.ndarray:
    if pa.types.is_fixed_size_binary(kind):
        return np.array([list(v) for v in values], dtype=np.uint8).reshape(len(values), kind.byte_width)
    if zero(kind) in ("", b"") or pa.types.is_decimal(kind):
        found = np.empty(len(values), dtype=object)
        found[:] = values
        return found
    if pa.types.is_temporal(kind):
        return np.array(values, dtype=np.int64).astype(time_dtype(kind))
    return np.array(values, dtype="?" if pa.types.is_boolean(kind) else kind.to_pandas_dtype())


def time_dtype(kind: pa.DataType) -> str:
    if pa.types.is_date(kind):
        return "M8[D]" if pa.types.is_date32(kind) else "M8[ms]"
    return f"M8[{kind.unit}]" if pa.types.is_timestamp(kind) else f"m8[{kind.unit}]"


def assert_same(found: Any, wanted: Any, place: str = "") -> None:
    """Equal to the bit, but for NaNs, of the same dtype, shape and structure."""
    assert type(found) is type(wanted), place
    if isinstance(wanted, dict):
        assert list(found) == list(wanted), place
        for name in wanted:
            assert_same(found[name], wanted[name], f"{place}.{name}")
    elif isinstance(wanted, Ragged):
        assert_same(found.values, wanted.values, f"{place}.values")
        assert_same(found.offsets, wanted.offsets, f"{place}.offsets")
    else:
        assert found.dtype == wanted.dtype, place
        assert found.shape == wanted.shape, place
        if wanted.dtype == object:
            assert found.tolist() == wanted.tolist(), place
        elif wanted.dtype.kind == "f":
            np.testing.assert_array_equal(found, wanted, err_msg=place)
            assert (np.signbit(found) == np.signbit(wanted))[~np.isnan(wanted)].all()
        else:
            assert found.tobytes() == wanted.tobytes(), place


def assert_fits(found: Any, spec: Any) -> None:
    """What `spec` says holds of the arrays."""
    if isinstance(spec, dict):
        assert list(found) == list(spec)
        for name in spec:
            assert_fits(found[name], spec[name])
    elif isinstance(spec, Ragged):
        assert_fits(found.values, spec.values)
        assert_fits(found.offsets, spec.offsets)
    else:
        assert isinstance(spec, ArraySpec)
        assert found.dtype == spec.dtype
        assert len(found.shape) == len(spec.shape)
        assert all(wanted in (None, size) for size, wanted in zip(found.shape, spec.shape, strict=True))
        assert (spec.content is not None) == (spec.dtype == object)
        if spec.content:
            assert all(type(x) is spec.content for x in found.flat)
        assert found.flags.writeable


def leaves_of(arrays: Any) -> list[np.ndarray]:
    if isinstance(arrays, dict):
        return [leaf for value in arrays.values() for leaf in leaves_of(value)]
    return [*leaves_of(arrays.values), arrays.offsets] if isinstance(arrays, Ragged) else [arrays]


@st.composite
def columns(draw: st.DrawFn, kinds: st.SearchStrategy[pa.DataType] = KINDS) -> tuple[pa.DataType, list[Any], bool]:
    kind, nulls = draw(kinds), draw(st.booleans())
    return kind, draw(st.lists(values_of(kind, nulls), max_size=12)), nulls


def batch_of(array: pa.Array) -> pa.RecordBatch:
    return pa.record_batch([array], names=["c"])


@settings(max_examples=150)
@given(columns(), st.data())
def test_arrays_hold_what_batches_hold(column: tuple[pa.DataType, list[Any], bool], data: st.DataObject) -> None:
    kind, values, nulls = column
    begin = data.draw(st.integers(0, len(values)))
    end = data.draw(st.integers(begin, len(values)))
    rows = batch_of(pa.array(values, kind))
    converter = Converter(rows.schema, nulls="mask" if nulls else "error")
    batch = rows.slice(begin, end - begin)
    found = converter(batch)
    assert_same(found, fields([("c", kind, values[begin:end])], nulls))
    assert_fits(found, converter.spec)
    # Nothing of it was written to.
    assert rows.equals(batch_of(pa.array(values, kind)), check_metadata=True) or "nan" in str(values)


def every_kind() -> list[pa.DataType]:
    flat = flat_kinds()
    outer = [pa.list_(k) for k in flat] + [pa.list_(k, 2) for k in flat if not pa.types.is_dictionary(k)]
    deep = [pa.list_(pa.list_(pa.int8(), 2), 3), pa.large_list(pa.list_(pa.string())), pa.map_(pa.string(), pa.int8())]
    structs = [pa.struct([("a", pa.int8()), ("l", pa.list_(pa.struct([("b", pa.bool_())])))])]
    return [*flat, *outer, *deep, *structs, pa.list_(structs[0]), pa.list_(structs[0], 2)]


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("kind", every_kind(), ids=str)
@settings(max_examples=3)
@given(st.data())
def test_every_type(kind: pa.DataType, nulls: bool, data: st.DataObject) -> None:
    """Called, split, with and without nulls among the rows and before them."""
    values = data.draw(st.lists(values_of(kind, nulls), min_size=9, max_size=9))
    rows = batch_of(pa.array([None, *values], kind)).slice(1)
    converter = Converter(rows.schema, nulls="mask" if nulls else "error")
    wanted = [fields([("c", kind, values[n : n + 3])], nulls) for n in (2, 5, 8)]
    assert_same(converter(rows), fields([("c", kind, values)], nulls))
    for part, each in zip(converter.split(rows, 2, 3), wanted, strict=True):
        assert_same(part, each)
        assert_fits(part, converter.spec)


@settings(max_examples=60)
@given(columns(), st.integers(0, 5), st.integers(1, 5))
def test_split_equals_a_call_for_each_batch(column: tuple[pa.DataType, list[Any], bool], first: int, size: int) -> None:
    kind, values, nulls = column
    rows = batch_of(pa.array([*values, *values, *values], kind)).slice(len(values))
    converter = Converter(rows.schema, nulls="mask" if nulls else "error")
    parts = list(converter.split(rows, first, size))
    assert len(parts) == -(-max(rows.num_rows - first, 0) // size)
    for number, part in enumerate(parts):
        assert_same(part, converter(rows.slice(first + number * size, size)))


@settings(max_examples=60)
@given(KINDS)
def test_spec_follows_from_the_schema_alone(kind: pa.DataType) -> None:
    """Empty batches, one row, nothing but nulls: dtype, shape and structure are the same."""
    schema = pa.schema([("c", kind)])
    converter = Converter(schema, nulls="mask")
    assert converter.spec == Converter(schema, nulls="mask").spec == pickle.loads(pickle.dumps(converter)).spec
    for rows in (0, 1, 3):
        assert_fits(converter(batch_of(pa.nulls(rows, kind))), converter.spec)
    assert_fits(converter(batch_of(pa.array([], kind))), converter.spec)


def is_kept_by_parquet(kind: pa.DataType) -> bool:
    """It has no seconds, and one type for dates."""
    return not any(name in str(kind) for name in ("time32[s]", "timestamp[s", "date64"))


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    columns(KINDS.filter(is_kept_by_parquet)),
    st.integers(1, 7),
    st.integers(1, 5),
    st.sampled_from(["none", "corgipile"]),
)
def test_arrays_of_files(
    tmp_path: Path, column: tuple[pa.DataType, list[Any], bool], batch_size: int, group_rows: int, shuffle: str
) -> None:
    kind, values, nulls = column
    values = values * 3 or [zero_row(kind)]
    path = tmp_path / "a.parquet"
    table = pa.table({"c": pa.array(values, kind), "id": np.arange(len(values))})
    pq.write_table(table, path, row_group_size=group_rows)
    reader = ca.Reader(path, batch_size=batch_size, shuffle=shuffle)
    loader = ca.Loader(reader, nulls="mask" if nulls else "error")
    seen = []
    for arrays in loader:
        ids = arrays.pop("id").tolist()
        arrays.pop("id_valid", None)
        assert_same(arrays, fields([("c", kind, [values[i] for i in ids])], nulls))
        assert_fits(arrays, {name: spec for name, spec in loader.spec.items() if not name.startswith("id")})
        seen += ids
    assert sorted(seen) == list(range(len(values)))


def zero_row(kind: pa.DataType) -> Any:
    if pa.types.is_struct(kind):
        return {f.name: zero_row(f.type) for f in kind}
    if pa.types.is_fixed_size_list(kind):
        return [zero_row(kind.value_type)] * kind.list_size
    return [] if pa.types.is_nested(kind) else zero(kind)


BIG = [2**60 + 1, -(2**60) - 1, 2**63 - 1, -(2**63)]


def test_no_value_changes_silently(tmp_path: Path) -> None:
    whole = Decimal("12345678901234567890123456789012345.678")
    table = pa.table(
        {
            "i": pa.array([*BIG, None], pa.int64()),
            "u": pa.array([2**64 - 1, 2**63, 2**53 + 1, 0, None], pa.uint64()),
            "d": pa.array([whole, -whole, Decimal("0.001"), Decimal(0), None], pa.decimal128(38, 3)),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    (found,) = ca.Loader(ca.Reader(tmp_path, shuffle=False), nulls="mask")
    assert found["i"].tolist() == [*BIG, 0]
    assert found["u"].tolist() == [2**64 - 1, 2**63, 2**53 + 1, 0, 0]
    assert found["d"].tolist() == [whole, -whole, Decimal("0.001"), Decimal(0), Decimal(0)]
    with pytest.raises(ca.ConversionError, match="column 'i' holds 1152921504606846977"):
        list(ca.Loader(ca.Reader(tmp_path, columns=["i"], shuffle=False), nulls="mask", dtype={"i": "float64"}))
    with pytest.raises(ca.OptionError, match=r"'x'.*no dtype that holds all values"):
        ca.Loader(ca.Reader(tmp_path, columns=["i", "u"]), nulls="mask", stack={"x": ["i", "u"]})


@given(
    st.sampled_from([pa.decimal128(15, 5), pa.decimal128(9, 0), pa.decimal128(38, 10), pa.decimal256(60, 25)]),
    st.data(),
)
def test_decimals(kind: pa.DataType, data: st.DataObject) -> None:
    values = data.draw(st.lists(flat_values(kind), max_size=8))
    batch = batch_of(pa.array(values, kind))
    nearest = Converter(batch.schema, decimals="float64")(batch)["c"]
    assert nearest.tolist() == [float(v) for v in values]
    if kind.precision <= 18:
        counts = Converter(batch.schema, decimals={"c": "unscaled"})(batch)["c"]
        assert counts.tolist() == [int(v.scaleb(kind.scale)) for v in values]
    else:
        with pytest.raises(ca.OptionError, match=r"decimals={'c': 'unscaled'}.*18 digits.*'objects'"):
            Converter(batch.schema, decimals={"c": "unscaled"})


@pytest.mark.parametrize("kind", [pa.decimal32(5, 2), pa.decimal64(12, 2), pa.decimal128(12, 2), pa.decimal256(12, 2)])
def test_decimals_of_all_widths(kind: pa.DataType) -> None:
    values = [Decimal("-1.25"), Decimal("0.00"), Decimal("123.45")]
    batch = batch_of(pa.array([Decimal(9), *values], kind)).slice(1)
    assert Converter(batch.schema)(batch)["c"].tolist() == values
    assert Converter(batch.schema, decimals="unscaled")(batch)["c"].tolist() == [-125, 0, 12345]
    assert Converter(batch.schema, decimals="float64")(batch)["c"].tolist() == [-1.25, 0, 123.45]


# Memory: shared where no value would change, by address; a copy elsewhere.


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def fixed_width() -> list[pa.DataType]:
    """Types whose arrays may lie in Arrow's memory: not bits, nor dates and times that NumPy counts in 64 bits."""
    copied = (pa.types.is_boolean, pa.types.is_date32, pa.types.is_time32, pa.types.is_decimal)
    flat = [k for k in flat_kinds() if pa.types.is_primitive(k) or pa.types.is_fixed_size_binary(k)]
    return [k for k in flat if not any(is_copied(k) for is_copied in copied)]


@pytest.mark.parametrize("kind", fixed_width(), ids=str)
def test_numbers_share_memory(kind: pa.DataType) -> None:
    array = pa.array([zero(kind)] * 9, kind)
    batch = batch_of(array).slice(2, 5)
    width = kind.bit_width // 8
    assert address(Converter(batch.schema)(batch)["c"]) == array.buffers()[1].address + 2 * width
    first, second = Converter(batch.schema).split(batch, 1, 2)
    assert address(first["c"]) == array.buffers()[1].address + 3 * width
    assert address(second["c"]) == array.buffers()[1].address + 5 * width
    # So do values of lists, and rows of fixed size.
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3, 6, 9], pa.int32()), array)
    rows = batch_of(lists).slice(1, 2)
    assert address(Converter(rows.schema)(rows)["c"].values) == array.buffers()[1].address + width
    fixed = pa.FixedSizeListArray.from_arrays(array, 3)
    rows = batch_of(fixed).slice(1)
    assert address(Converter(rows.schema)(rows)["c"]) == array.buffers()[1].address + 3 * width
    (part,) = Converter(rows.schema).split(rows, 1, 9)
    assert address(part["c"]) == array.buffers()[1].address + 6 * width
    rows = batch_of(lists).slice(2, 2)
    assert address(Converter(rows.schema, shape={"c": 3})(rows)["c"]) == array.buffers()[1].address + 3 * width


def test_tensors_share_memory_unless_permuted() -> None:
    values = pa.array(np.arange(24, dtype=np.float32))
    storage = pa.FixedSizeListArray.from_arrays(values, 6)
    for permutation in (None, [1, 0]):
        kind = pa.fixed_shape_tensor(pa.float32(), [2, 3], permutation=permutation)
        rows = batch_of(pa.ExtensionArray.from_storage(kind, storage)).slice(1, 2)
        converter = Converter(rows.schema)
        found = converter(rows)["c"]
        wanted = np.arange(24, dtype=np.float32).reshape(4, 2, 3)[1:3]
        assert_same(found, wanted if permutation is None else np.ascontiguousarray(wanted.transpose(0, 2, 1)))
        assert found.flags.c_contiguous
        assert_fits({"c": found}, converter.spec)
        assert (address(found) == values.buffers()[1].address + 24) == (permutation is None)
        assert_same(next(converter.split(rows, 1, 1))["c"], found[1:])


def test_bytes_share_memory() -> None:
    array = pa.array([b"abcd", b"efgh", b"ijkl"])
    rows = batch_of(array).slice(1)
    for options in ({"shape": {"c": (2, 2)}}, {"ragged": ["c"]}):
        found = Converter(rows.schema, **options)(rows)["c"]
        data = found.values if isinstance(found, Ragged) else found
        assert address(data) == array.buffers()[2].address + 4
        assert data.tobytes() == b"efghijkl"
    (part,) = Converter(rows.schema, shape={"c": 4}).split(rows, 1, 4)
    assert address(part["c"]) == array.buffers()[2].address + 8


def test_a_copy_where_memory_is_not_to_be_written() -> None:
    data = pa.py_buffer(np.arange(4).tobytes())  # Of bytes, which are immutable.
    rows = batch_of(pa.Array.from_buffers(pa.int64(), 4, [None, data]))
    found = Converter(rows.schema)(rows)["c"]
    assert found.flags.writeable
    assert address(found) != data.address
    found[:] = 7
    assert Converter(rows.schema)(rows)["c"].tolist() == [0, 1, 2, 3]
    text = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(np.array([0, 2], "i4").tobytes()), data])
    found = Converter(pa.schema([("c", pa.binary())]), ragged=["c"])(batch_of(text))["c"].values
    assert found.flags.writeable
    assert address(found) != data.address


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (pa.bool_(), {}),
        (pa.date32(), {}),
        (pa.time32("s"), {}),
        (pa.int64(), {"nulls": "mask"}),
        (pa.float64(), {"nulls": "nan"}),
        (pa.int64(), {"dtype": {"c": "float64"}}),
        (pa.list_(pa.int64()), {"pad": {"c": 2}}),
        (pa.decimal128(9, 2), {"decimals": "unscaled"}),
    ],
)
def test_a_copy_where_something_changes(kind: pa.DataType, options: dict[str, Any]) -> None:
    value: Any = [1] if pa.types.is_list(kind) else (Decimal(1) if pa.types.is_decimal(kind) else 1)
    value = True if pa.types.is_boolean(kind) else value
    values = [value, value, None] if "nulls" in options else [value, value, value]
    array = pa.array(values, kind)
    found = Converter(pa.schema([("c", kind)]), **options)(batch_of(array))["c"]
    found[:] = 0
    assert array.to_pylist() == pa.array(values, kind).to_pylist()


MANY = {
    "i": pa.int64(),
    "b": pa.bool_(),
    "t": pa.timestamp("us"),
    "text": pa.string(),
    "raw": pa.binary(2),
    "vector": pa.list_(pa.float32(), 2),
    "list": pa.list_(pa.int32()),
    "s": pa.struct([("a", pa.int32()), ("l", pa.list_(pa.uint8()))]),
}


def many(rows: int) -> pa.Table:
    columns = {
        "i": range(rows),
        "b": [n % 3 == 0 for n in range(rows)],
        "t": range(rows),
        "text": [f"row {n}" for n in range(rows)],
        "raw": [bytes([n % 256, 1]) for n in range(rows)],
        "vector": [[n, -n] for n in range(rows)],
        "list": [[n] * (n % 4) for n in range(rows)],
        "s": [{"a": n, "l": [n % 256] * (n % 3)} for n in range(rows)],
    }
    return pa.table([pa.array(columns[name], kind) for name, kind in MANY.items()], names=list(MANY))


@pytest.mark.parametrize("shuffle", ["none", "corgipile"])
@pytest.mark.parametrize("workers", [0, 2])
def test_arrays_are_the_callers_to_change(tmp_path: Path, shuffle: str, workers: int) -> None:
    """Whatever is written to one batch: no later one, no later epoch, no repeat of padding knows of it."""
    (tmp_path / "part=7").mkdir()
    (tmp_path / "part=8").mkdir()
    pq.write_table(many(47), tmp_path / "part=7" / "a.parquet", row_group_size=9)
    pq.write_table(many(35).drop_columns(["i"]), tmp_path / "part=8" / "b.parquet", row_group_size=9)

    def passes(change: bool) -> list[dict[str, Any]]:
        found = []
        for rank in range(2):
            reader = ca.Reader(tmp_path, batch_size=5, shuffle=shuffle, rank=rank, world_size=2, buffer_blocks=4)
            loader = ca.Loader(reader, nulls="mask", workers=workers)
            for _ in range(2):
                for arrays in loader:
                    found.append(pickle.loads(pickle.dumps(arrays)))
                    for leaf in leaves_of(arrays) if change else ():
                        leaf[...] = np.full(leaf.shape, 90).astype(leaf.dtype)
        return found

    for changed, wanted in zip(passes(True), passes(False), strict=True):
        assert_same(changed, wanted)


def test_padding_repeats_what_was_not_changed(tmp_path: Path) -> None:
    pq.write_table(pa.table({"i": np.arange(15)}), tmp_path / "a.parquet", row_group_size=4)
    for shuffle in ("none", "corgipile"):
        wanted, found = [], []
        for change in (False, True):
            rank = [ca.Loader(ca.Reader(tmp_path, batch_size=5, shuffle=shuffle, rank=r, world_size=2)) for r in (0, 1)]
            assert [len(r) for r in rank] == [2, 2]
            for loader in rank:
                for arrays in loader:
                    (found if change else wanted).append(arrays["i"].tolist())
                    arrays["i"][:] = -1
        assert found == wanted
        assert found[2] == found[3], "the second rank's only batch comes twice"

"""What users may ask of arrays: what to do with nulls, categories, shapes; and what they hear if it cannot be done."""

import datetime
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import corgiarrow as ca
from corgiarrow.arrays import Converter, Image, Pad, Ragged
from corgiarrow.loader import find_categories

STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string()), ("f", pa.float32())])


def convert(array: pa.Array, **options: Any) -> dict[str, Any]:
    """One column `c`; what comes must be as told beforehand, whatever the values."""
    batch = pa.record_batch([array], names=["c"])
    converter = Converter(batch.schema, **options)
    found: dict[str, Any] = converter(batch)
    for rows in (pa.array([], array.type), array):
        check(converter(pa.record_batch([rows], names=["c"])), converter.spec)
    for split in converter.split(pa.record_batch([pa.concat_arrays([array, array])], names=["c"]), len(array), 99):
        assert str(plain(split)) == str(plain(found))
    return found


def check(found: Any, spec: Any) -> None:
    if isinstance(spec, dict):
        assert list(found) == list(spec)
        for name in spec:
            check(found[name], spec[name])
    elif isinstance(spec, Ragged):
        check(found.values, spec.values)
        check(found.offsets, spec.offsets)
    else:
        assert (found.dtype, found.shape[1:]) == (spec.dtype, spec.shape[1:])
        assert found.flags.writeable


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return (plain(value.values), plain(value.offsets)) if isinstance(value, Ragged) else value.tolist()


# Nulls.

NULLS: list[tuple[pa.DataType, Any, Any, Any]] = [
    # Type, a value, a value for nulls, and what masks put in their place.
    (pa.int64(), 2**60 + 1, -7, 0),
    (pa.uint8(), 3, 255, 0),
    (pa.float16(), 1.5, 2.5, 0.0),
    (pa.float64(), 1.5, 0.1, 0.0),
    (pa.bool_(), True, True, False),
    (pa.date32(), datetime.date(2020, 1, 2), datetime.date(1999, 1, 1), datetime.date(1970, 1, 1)),
    (pa.timestamp("us"), datetime.datetime(2020, 1, 2), datetime.datetime(1999, 1, 1), datetime.datetime(1970, 1, 1)),
    (pa.duration("ms"), datetime.timedelta(1), datetime.timedelta(2), datetime.timedelta(0)),
    (pa.decimal128(9, 2), Decimal("1.25"), Decimal("-1.00"), Decimal(0)),
    (pa.string(), "a", "none", ""),
    (pa.large_binary(), b"a", b"none", b""),
    (pa.binary(2), b"ab", b"no", b"\0\0"),
    (pa.dictionary(pa.int8(), pa.string()), "a", "none", ""),
]


@pytest.mark.parametrize(
    ("kind", "value", "fill", "zero"), NULLS, ids=lambda x: str(x) if isinstance(x, pa.DataType) else ""
)
def test_null_policies_of_flat_types(kind: pa.DataType, value: Any, fill: Any, zero: Any) -> None:
    column = pa.array([value, value, None, value], kind).slice(1)

    def listed(x: Any) -> Any:
        return list(x) if pa.types.is_fixed_size_binary(kind) else x

    with pytest.raises(ca.ConversionError, match=r"column 'c' has 1 nulls.*fill_null={'c'.*'mask'.*filter"):
        convert(column)
    found = convert(column, fill_null={"c": fill})
    assert found["c"].tolist() == [listed(value), listed(fill), listed(value)]
    for nulls in ("mask", {"c": "mask"}):
        found = convert(column, nulls=nulls)
        assert found["c"].tolist() == [listed(value), listed(zero), listed(value)]
        assert found["c_valid"].tolist() == [True, False, True]
    if pa.types.is_floating(kind):
        assert np.isnan(convert(column, nulls="nan")["c"]).tolist() == [False, True, False]
    else:
        with pytest.raises(ca.ConversionError):  # For all columns: it goes with those that are floats.
            convert(column, nulls="nan")
        with pytest.raises(ca.OptionError, match=r"nulls={'c': 'nan'} goes with floating-point"):
            convert(column, nulls={"c": "nan"})
    # Nulls of the values of lists of fixed size, and rows that are null.
    if not pa.types.is_dictionary(kind):
        fixed = pa.array([[value, value], None], pa.list_(kind, 2))
        assert convert(fixed, nulls="mask")["c"].tolist() == [[listed(value)] * 2, [listed(zero)] * 2]
        assert convert(fixed, fill_null={"c": fill})["c"].tolist() == [[listed(value)] * 2, [listed(fill)] * 2]
        within = pa.array([[value, None]], pa.list_(kind, 2))
        assert convert(within, fill_null={"c": fill})["c"].tolist() == [[listed(value), listed(fill)]]
        with pytest.raises(ca.ConversionError, match=r"column 'c' has 1 nulls within its lists"):
            convert(within, nulls="mask")


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.float32(), pa.bool_(), pa.date32(), pa.timestamp("s"), pa.binary(1)], ids=str
)
def test_what_lies_below_nulls_does_not_show(kind: pa.DataType) -> None:
    value: Any = {"bool": True, "fixed_size_binary[1]": b"a"}.get(str(kind), 1)
    whole, valid = pa.array([value] * 3, kind), pa.array([True, False, True])
    column = pa.Array.from_buffers(kind, 3, [valid.buffers()[1], whole.buffers()[1]])
    found, clean = convert(column, nulls="mask"), convert(pa.array([value, None, value], kind), nulls="mask")
    assert plain(found) == plain(clean)
    assert not found["c"].astype(np.int64 if found["c"].dtype.kind in "mM" else found["c"].dtype)[1].any()
    filled = convert(column, fill_null={"c": value})["c"]
    assert (filled == filled[0]).all()


def test_null_rows_of_vectors() -> None:
    deep = pa.list_(pa.list_(pa.float32(), 2), 2)
    column = pa.array([None, [[1, 2], [3, 4]], [None, [5, None]]], deep)
    nan = convert(column, nulls="nan")["c"]
    np.testing.assert_array_equal(nan[2], np.array([[np.nan, np.nan], [5, np.nan]], "f4"))
    assert np.isnan(nan[0]).all()
    assert convert(column, fill_null={"c": -1})["c"].tolist() == [[[-1, -1]] * 2, [[1, 2], [3, 4]], [[-1, -1], [5, -1]]]
    assert convert(column.slice(0, 2), nulls="mask")["c"].tolist() == [[[0, 0]] * 2, [[1, 2], [3, 4]]]
    with pytest.raises(ca.ConversionError, match="1 nulls within its lists"):
        convert(column, nulls="mask")
    # What lies below a null row is anything, also nulls and lists of other lengths.
    below = pa.FixedSizeListArray.from_arrays(pa.array([1, None, 3, 4]), 2, mask=pa.array([True, False]))
    assert convert(below, nulls="mask")["c"].tolist() == [[0, 0], [3, 4]]
    lists = pa.array([None, [1, 2]], pa.list_(pa.int16()))
    assert convert(lists, shape={"c": 2}, nulls="mask")["c"].tolist() == [[0, 0], [1, 2]]
    assert convert(lists, shape={"c": (1, 2)}, fill_null={"c": 9})["c"].tolist() == [[[9, 9]], [[1, 2]]]
    with pytest.raises(ca.ConversionError, match="column 'c' has 1 nulls"):
        convert(lists, shape={"c": 2})
    tensor = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int16(), [2]), pa.array([None, [1, 2]], pa.list_(pa.int16(), 2))
    )
    assert convert(tensor, nulls="mask")["c"].tolist() == [[0, 0], [1, 2]]
    assert convert(tensor, fill_null={"c": 4})["c"].tolist() == [[4, 4], [1, 2]]


def test_nulls_of_lists() -> None:
    rows = pa.array([[1], None, [], [2]], pa.list_(pa.int64()))
    found = convert(rows, nulls="mask")
    assert plain(found) == {"c": ([1, 2], [0, 1, 1, 1, 2]), "c_valid": [True, False, True, True]}
    assert plain(convert(rows, nulls="mask", pad={"c": 2}))["c"] == [[1, 0], [0, 0], [0, 0], [2, 0]]
    for options in ({}, {"fill_null": {"c": 1}}, {"pad": {"c": 2}}, {"nulls": "nan"}):
        with pytest.raises(ca.ConversionError, match=r"column 'c' has 1 null lists.*nulls={'c': 'mask'}"):
            convert(rows, **options)
    within = pa.array([[1, None], [2]], pa.list_(pa.int64()))
    assert plain(convert(within, fill_null={"c": 9})["c"]) == ([1, 9, 2], [0, 2, 3])
    with pytest.raises(ca.ConversionError, match=r"1 nulls within its lists.*fill_null={'c'"):
        convert(within, nulls="mask")
    floats = pa.array([[1, None], [2]], pa.list_(pa.float32()))
    assert np.isnan(convert(floats, nulls={"c": "nan"})["c"].values).tolist() == [False, True, False]
    pairs = pa.array([[("k", None)], None], pa.map_(pa.string(), pa.int8()))
    assert plain(convert(pairs, nulls={"c": "mask"}, fill_null={"c.value": 5})["c"]) == (
        {"key": ["k"], "value": [5]},
        [0, 1, 1],
    )
    deep = pa.array([[[1], None]], pa.list_(pa.list_(pa.int64())))
    with pytest.raises(ca.ConversionError, match="1 null lists"):
        convert(deep, nulls="mask")


def test_nulls_of_struct_fields() -> None:
    column = pa.array([{"a": 1, "b": None, "f": None}, None], STRUCT)
    found = convert(column, nulls={"c.a": "mask", "c.f": "nan"}, fill_null={"c.b": "none"})
    assert plain(found)["c"]["a"] == [1, 0]
    assert plain(found)["c"]["a_valid"] == [True, False]
    assert plain(found)["c"]["b"] == ["none", "none"]
    assert np.isnan(found["c"]["f"]).all()
    with pytest.raises(ca.ConversionError, match=r"column 'c.b' has 2 nulls.*fill_null={'c.b'"):
        convert(column, nulls={"c.a": "mask", "c.f": "nan"})
    with pytest.raises(ca.OptionError, match=r"nulls={'c'.*struct.*name its fields"):
        convert(column, nulls={"c": "mask"})


def test_a_mask_does_not_take_the_name_of_a_column() -> None:
    schema = pa.schema([("x", pa.int8()), ("x_valid", pa.bool_())])
    assert list(Converter(schema, nulls={"x_valid": "mask"}).spec) == ["x", "x_valid", "x_valid_valid"]
    for options in ({"nulls": "mask"}, {"nulls": {"x": "mask"}}):
        with pytest.raises(ca.OptionError, match=r"adds a column 'x_valid', but there is one already.*policy for 'x'"):
            Converter(schema, **options)
    struct = pa.struct(list(schema))
    with pytest.raises(ca.OptionError, match=r"adds a column 's.x_valid'"):
        Converter(pa.schema([("s", struct)]), nulls={"s.x": "mask"})


# Shapes, padding, raw bytes, stacks.


@given(st.lists(st.lists(st.integers(-99, 99), max_size=6)), st.integers(1, 5), st.booleans())
def test_padding(rows: list[list[int]], length: int, truncate: bool) -> None:
    column = pa.array([[5, 5], *rows], pa.list_(pa.int16())).slice(1)
    pad = Pad(length=length, value=-100, truncate=truncate)
    if not truncate and any(len(row) > length for row in rows):
        with pytest.raises(ca.ConversionError, match=rf"column 'c'.*more than the {length} of pad=.*truncate=True"):
            convert(column, pad={"c": pad})
    else:
        wanted = [(row + [-100] * length)[:length] for row in rows]
        assert convert(column, pad={"c": pad})["c"].tolist() == wanted


def test_padding_other_values() -> None:
    vectors = pa.array([[[1, 2]], []], pa.list_(pa.list_(pa.float32(), 2)))
    assert convert(vectors, pad={"c": 2})["c"].tolist() == [[[1, 2], [0, 0]], [[0, 0], [0, 0]]]
    assert convert(pa.array([[True]]), pad={"c": 2}, dtype={"c": "f4"})["c"].tolist() == [[1, 0]]
    words = convert(pa.array([["b", "a"], ["a"]]), categories={"c": ["a", "b"]}, pad={"c": Pad(length=3, value=-1)})
    assert words["c"].tolist() == [[1, 0, -1], [0, -1, -1]]
    big = Pad(length=1, value=2**64 - 1)
    assert convert(pa.array([[]], pa.list_(pa.uint64())), pad={"c": big})["c"].tolist() == [[2**64 - 1]]


def test_shapes_of_lists_and_bytes() -> None:
    assert convert(pa.array([[1, 2, 3, 4]]), shape={"c": (2, 2)})["c"].tolist() == [[[1, 2], [3, 4]]]
    assert convert(pa.array([[1, 2]], pa.list_(pa.int8(), 2)), shape={"c": (2, 1)})["c"].tolist() == [[[1], [2]]]
    raw = pa.array([b"\0\1", b"\2\0", None])
    assert convert(raw.slice(1), shape={"c": 2}, nulls="mask")["c"].tolist() == [[2, 0], [0, 0]]
    assert convert(raw.slice(1), shape={"c": 2}, fill_null={"c": b"\7\7"})["c"].tolist() == [[2, 0], [7, 7]]
    with pytest.raises(ca.ConversionError, match=r"column 'c' has a row of 3 values.*\(2,\)} takes 2"):
        convert(pa.array([[1, 2], [1, 2, 3]]), shape={"c": 2})
    with pytest.raises(ca.ConversionError, match=r"column 'c' has a row of 1 values"):
        convert(pa.array([b"ab", b"a"]), shape={"c": 2})


def test_bytes_keep_their_zeros() -> None:
    values = [b"a\0", b"\0", b"", b"\0\0b"]
    assert convert(pa.array(values))["c"].tolist() == values
    found = convert(pa.array(["ü", "", "a\0"]), ragged=["c"])["c"]
    assert found.values.tobytes() == "üa\0".encode()
    assert found.offsets.tolist() == [0, 2, 2, 4]


def test_stacks() -> None:
    batch = pa.record_batch(
        {
            "i": pa.array([1, 2], pa.int16()),
            "b": pa.array([True, False]),
            "v": pa.array([[1.5, 2.5], [3.5, 4.5]], pa.list_(pa.float32(), 2)),
            "n": pa.array([None, 7], pa.int8()),
            "t": pa.array(["x", "y"]),
            "big": pa.array([2**53 + 1, 2**24 + 1]),
        }
    )
    converter = Converter(batch.schema, stack={"x": ["v", "i", "b", "n"]}, nulls={"n": "mask"})
    found = converter(batch)
    assert sorted(found) == ["big", "n_valid", "t", "x"]
    assert found["x"].dtype == np.float32
    assert found["x"].tolist() == [[1.5, 2.5, 1, 1, 0], [3.5, 4.5, 2, 0, 7]]
    assert converter.spec["x"].shape == (None, 5)
    for part, wanted in zip(converter.split(batch, 0, 1), found["x"], strict=True):
        assert part["x"].tolist() == [wanted.tolist()]
    codes = Converter(batch.schema, nulls="mask", stack={"x": ["t", "i"]}, categories={"t": ["y", "x"]})(batch)
    assert codes["x"].tolist() == [[1, 1], [0, 2]]
    with pytest.raises(ca.OptionError, match=r"no dtype that holds all values: 'big' is int64.*give dtype={'x'"):
        Converter(batch.schema, nulls="mask", stack={"x": ["v", "big"]})
    asked = Converter(batch.schema, nulls="mask", stack={"x": ["v", "big"]}, dtype={"x": "float64"})
    with pytest.raises(ca.ConversionError, match="column 'x' holds 9007199254740993, which is no float64"):
        asked(batch)
    assert asked(batch.slice(1))["x"].tolist() == [[3.5, 4.5, 2**24 + 1]]


# Categories.


def test_codes_are_the_same_whatever_the_files(tmp_path: Path) -> None:
    parts = [["b", "a", None], ["c", "b"], ["a", "a"]]
    for number, values in enumerate(parts):
        column = (
            pa.array(values).dictionary_encode()
            if number != 1
            else pa.array(values).dictionary_encode().cast(pa.dictionary(pa.int16(), pa.string()))
        )
        pq.write_table(pa.table({"c": column, "n": range(len(values))}), tmp_path / f"{number}.parquet")
    found = find_categories(tmp_path, ["c"])
    assert found == {"c": ["a", "b", "c"]}
    for workers in (0, 2):
        loader = ca.Loader(
            ca.Reader(tmp_path, shuffle=False, batch_size=2), categories=found, nulls={"c": "mask"}, workers=workers
        )
        batches = list(loader)
        assert [x for b in batches for x in b["c"].tolist()] == [1, 0, 0, 2, 1, 0, 0]
        assert [x for b in batches for x in b["c_valid"].tolist()] == [True, True, False, True, True, True, True]
        assert {b["c"].dtype for b in batches} == {np.dtype("i4")}
    with pytest.raises(ca.ConversionError, match=r"column 'c' holds c, which is none of its 2 categories"):
        list(ca.Loader(ca.Reader(tmp_path), categories={"c": ["a", "b"]}, nulls="mask"))


CATEGORIES = [
    (pa.int64(), [2**60 + 1, 2**60]),
    (pa.uint64(), [2**64 - 1, 0]),
    (pa.bool_(), [True, False]),
    (pa.large_string(), ["b", "a"]),
    (pa.binary(), [b"\0", b""]),
    (pa.binary(1), [b"b", b"a"]),
    (pa.date32(), [datetime.date(2020, 1, 1)]),
    (pa.timestamp("us", "UTC"), [datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)]),
    (pa.duration("s"), [datetime.timedelta(5)]),
    (pa.decimal128(9, 2), [Decimal("1.25"), Decimal("0.00")]),
    (pa.float64(), [0.5, -1.0]),
    (pa.dictionary(pa.int8(), pa.string()), ["b", "a"]),
]


@pytest.mark.parametrize(("kind", "values"), CATEGORIES, ids=str)
def test_categories_of_all_types(kind: pa.DataType, values: list[Any]) -> None:
    column = pa.array([*values[::-1], None, *values], kind)
    wanted = list(range(len(values)))
    found = convert(column, categories={"c": values}, nulls="mask")
    assert found["c"].tolist() == [*wanted[::-1], 0, *wanted]
    assert found["c"].dtype == np.int32
    filled = convert(column, categories={"c": values}, fill_null={"c": values[-1]}, dtype={"c": "int64"})
    assert filled["c"].tolist() == [*wanted[::-1], wanted[-1], *wanted]
    assert filled["c"].dtype == np.int64
    with pytest.raises(ca.ConversionError, match="column 'c' has 1 nulls"):
        convert(column, categories={"c": values})
    lists = pa.array([values, []], pa.list_(kind)) if not pa.types.is_dictionary(kind) else pa.array([values, []])
    assert plain(convert(lists, categories={"c": values})["c"]) == (wanted, [0, len(values), len(values)])


def test_nulls_in_a_dictionary_are_nulls() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["x", None]))
    for options in ({"categories": {"c": ["x"]}}, {}):
        assert convert(column, nulls="mask", **options)["c_valid"].tolist() == [True, False, False]
        with pytest.raises(ca.ConversionError, match="column 'c' has 2 nulls"):
            convert(column, **options)


def test_find_categories(tmp_path: Path) -> None:
    unused = pa.DictionaryArray.from_arrays(pa.array([0, None], pa.int8()), pa.array(["used", "unused"]))
    table = pa.table(
        {"t": ["b", None], "i": [2**60 + 1, 2**60], "d": unused, "l": [[1], []], "f": [0.5, None], "n": [1, 2]}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    found = find_categories(tmp_path, ["t", "i", "d", "f"])
    assert found == {"t": ["b"], "i": [2**60, 2**60 + 1], "d": ["used"], "f": [0.5]}
    import pyarrow.compute as pc

    assert find_categories(tmp_path, ["i"], filter=pc.field("n") == 1) == {"i": [2**60 + 1]}
    assert find_categories(tmp_path, ["t"], limit=1) == {"t": ["b"]}
    with pytest.raises(ca.OptionError, match=r"column 'i' has more than limit=1 values"):
        find_categories(tmp_path, ["t", "i"], limit=1)
    with pytest.raises(ca.OptionError, match=r"column 'l' is of type list.*no categories"):
        find_categories(tmp_path, ["l"])
    with pytest.raises(ca.ColumnNotFoundError):
        find_categories(tmp_path, ["z"])


# Extension types, and types that have no array.


def test_extension_types(tmp_path: Path) -> None:
    tensor = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int32(), [2, 3], permutation=[1, 0]),
        pa.array([list(range(6))] * 2, pa.list_(pa.int32(), 6)),
    )
    uuid = pa.array([bytes(range(16)), bytes(16)], pa.uuid())
    bool8 = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([0, 2], pa.int8()))
    json = pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}", "[1]"]))
    kind = Unknown()
    pa.register_extension_type(kind)
    try:
        unknown = pa.ExtensionArray.from_storage(kind, pa.array([1, 2], pa.int16()))
        table = pa.table({"tensor": tensor, "uuid": uuid, "bool8": bool8, "json": json, "unknown": unknown})
        pq.write_table(table, tmp_path / "a.parquet")
    finally:
        pa.unregister_extension_type(kind.extension_name)
    batch = table.to_batches()[0]
    (read,) = ca.Loader(ca.Reader(tmp_path, shuffle=False))
    for found in (Converter(batch.schema)(batch), read):
        assert found["tensor"].tolist() == [[[0, 3], [1, 4], [2, 5]]] * 2
        assert found["uuid"].dtype == np.uint8
        assert found["uuid"].tolist() == [list(range(16)), [0] * 16]
        assert found["bool8"].dtype == bool
        assert found["bool8"].tolist() == [False, True]
        assert found["json"].tolist() == ["{}", "[1]"]
        assert found["unknown"].tolist() == [1, 2]
        assert found["unknown"].dtype == np.int16


class Unknown(pa.ExtensionType):
    def __init__(self) -> None:
        super().__init__(pa.int16(), "tests.unknown")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> "Unknown":
        return cls()


@pytest.mark.parametrize(
    "kind",
    [
        *(pa.string_view(), pa.binary_view(), pa.null(), pa.month_day_nano_interval()),
        *(pa.list_view(pa.int8()), pa.large_list_view(pa.int8()), pa.run_end_encoded(pa.int32(), pa.int8())),
        *(pa.sparse_union([pa.field("a", pa.int8())]), pa.dense_union([pa.field("a", pa.int8())])),
    ],
    ids=str,
)
def test_types_without_an_array(kind: pa.DataType) -> None:
    for column, path in ((kind, "c"), (pa.struct([("f", kind)]), "c.f"), (pa.list_(kind), "c")):
        with pytest.raises(
            ca.OptionError, match=rf"column '{path}' is of type .*, which becomes no array: leave it out"
        ):
            Converter(pa.schema([("c", column)]))


# What users hear.

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float32()),
        ("t", pa.string()),
        ("raw", pa.binary()),
        ("fixed", pa.binary(4)),
        ("when", pa.timestamp("s")),
        ("d", pa.decimal128(9, 2)),
        ("l", pa.list_(pa.int64())),
        ("texts", pa.list_(pa.string())),
        ("v", pa.list_(pa.float32(), 4)),
        ("s", STRUCT),
        ("deep", pa.list_(pa.list_(pa.int8()))),
    ]
)

WRONG: list[tuple[dict[str, Any], str]] = [
    # Wrong types.
    *(
        ({name: value}, rf"{name}=.* must be a dict by name of column")
        for name in ("nulls", "fill_null", "categories", "pad", "shape", "decode", "dtype", "decimals", "stack")
        for value in (5, ["i"], {5: "i"})
    ),
    *(({name: "i"}, rf"{name}='i' must be") for name in ("fill_null", "pad", "shape", "dtype", "decode", "ragged")),
    *(
        ({name: {"i": None}}, rf"{name}={{'i': None}} asks for nothing")
        for name in ("nulls", "fill_null", "categories", "pad", "shape", "decode", "dtype", "decimals")
    ),
    # Values out of bounds.
    ({"nulls": "zero"}, "nulls='zero' must be one of: error, nan, mask"),
    ({"nulls": {"i": "zero"}}, "nulls='zero' must be one of"),
    ({"nulls": {"i": ["mask"]}}, r"nulls=\['mask'\] must be one of"),
    ({"decimals": "float"}, "decimals='float' must be one of: objects, unscaled, float64"),
    ({"dtype": {"i": "integer"}}, "dtype={'i': 'integer'} is no dtype"),
    ({"dtype": {"i": "U3"}}, "dtype={'i': 'U3'} must be a dtype of numbers"),
    ({"dtype": {"i": object()}}, "dtype={'i': .*} "),
    ({"dtype": {"when": "int64"}}, r"dtype={'when': 'int64'} goes with numbers, but the column is timestamp\[s\]"),
    ({"shape": {"l": 0}}, "shape={'l': 0} must be whole numbers of at least 1"),
    ({"shape": {"l": (2, 1.5)}}, "shape={'l': .*must be whole numbers"),
    ({"shape": {"l": "2"}}, "shape={'l': '2'} must be whole numbers"),
    ({"shape": {"l": True}}, "shape={'l': True} must be whole numbers"),
    ({"shape": {"l": []}}, "shape={'l': .*must be whole numbers"),
    ({"shape": {"v": 3}}, r"shape={'v': \[3\]} takes 3 values, but a row has 4"),
    ({"shape": {"fixed": 3}}, r"shape={'fixed': \[3\]} takes 3 bytes, but a row has 4"),
    ({"shape": {"deep": 3}}, "shape= and pad= take lists of numbers, but column 'deep'"),
    ({"pad": {"deep": 3}}, "shape= and pad= take lists of numbers, but column 'deep'"),
    ({"pad": {"texts": 3}}, "pad={'texts': .*takes lists of numbers"),
    ({"pad": {"l": 0}}, "length=0 must be a whole number of at least 1"),
    ({"pad": {"l": "3"}}, "length='3' must be a whole number"),
    ({"pad": {"l": Pad(length=2, value=0.5)}}, "pad={'l': .*has a value that is no int64"),
    ({"pad": {"l": Pad(length=2, value=2**70)}}, "pad={'l': .*has a value that is no int64"),
    ({"pad": {"l": 2}, "shape": {"l": 2}}, "shape= and pad= both name 'l'"),
    ({"decode": {"raw": "CMYK"}}, "mode='CMYK' must be one of: L, RGB, RGBA"),
    ({"decode": {"raw": 3}}, "mode=3 must be one of"),
    ({"decode": {"t": "RGB"}}, "decode={'t': .*takes a column of binary, but it is string"),
    ({"decode": {"raw": "RGB"}, "fill_null": {"raw": b""}}, "'raw' holds images, whose nulls can be masked only"),
    ({"decode": {"raw": "RGB"}, "nulls": {"raw": "nan"}}, "'raw' holds images, whose nulls can be masked only"),
    # Fill values that Arrow would cut.
    ({"fill_null": {"i": 0.5}}, "fill_null={'i': 0.5} is no int64"),
    ({"fill_null": {"i": 2**70}}, "fill_null={'i': .*} is no int64"),
    ({"fill_null": {"i": "0"}}, "fill_null={'i': '0'} is no int64"),
    ({"fill_null": {"f": 2**24 + 1}}, "fill_null={'f': 16777217} is no float"),
    ({"fill_null": {"f": 1e300}}, "fill_null={'f': .*} is no float"),
    ({"fill_null": {"when": datetime.datetime(2020, 1, 1, microsecond=5)}}, r"fill_null={'when'.*is no timestamp\[s\]"),
    ({"fill_null": {"d": Decimal("0.001")}}, "fill_null={'d': .*is no decimal"),
    ({"fill_null": {"fixed": b"abc"}}, "fill_null={'fixed': b'abc'}"),
    ({"fill_null": {"raw": b"abc"}, "shape": {"raw": 4}}, "fill_null={'raw': b'abc'} must have the 4 bytes"),
    ({"fill_null": {"i": 5}, "nulls": {"i": "mask"}}, "nulls= and fill_null= both name 'i'"),
    # Categories.
    ({"categories": {"t": "ab"}}, "categories={'t': 'ab'} must be a list of values"),
    ({"categories": {"t": {"a", "b"}}}, "categories={'t': .*must be a list of values"),
    ({"categories": {"t": []}}, r"categories={'t': \[\]} must be some values"),
    ({"categories": {"t": ["a", "a"]}}, "categories={'t': .*each once"),
    ({"categories": {"t": ["a", None]}}, "categories={'t': .*without nulls"),
    ({"categories": {"t": [1]}}, "categories={'t': .*are no string"),
    ({"categories": {"i": [0.5]}}, "categories={'i': .*are no int64"),
    ({"categories": {"t": ["a"]}, "fill_null": {"t": "b"}}, "fill_null={'t': b} must be one of its categories"),
    ({"categories": {"t": ["a"]}, "nulls": {"t": "nan"}}, "nulls={'t': 'nan'} goes with floating-point"),
    # Stacks.
    ({"stack": {"x": "i"}}, "stack={'x': 'i'} must be a list of names"),
    ({"stack": {"x": ["i", "i"]}}, "stack={'x': .*each once"),
    ({"stack": {"x": 5}}, "stack={'x': 5} must be a list of names"),
    ({"stack": {"x": ["t"]}}, r"stack={'x': .*takes columns of numbers.*'t'.*categories="),
    ({"stack": {"x": ["l"]}}, r"stack={'x': .*takes columns of numbers.*'l'"),
    ({"stack": {"t": ["i"]}}, "stack={'t': .*has the name of a column"),
    # Options that would do nothing.
    *(
        ({option: {name: value}}, rf"{option}={{'{name}': …}} does not go with")
        for option, name, value in [
            *(("pad", name, 2) for name in ("i", "v", "t", "s")),
            *(("shape", name, 2) for name in ("i", "t", "s")),
            *(("dtype", name, "f4") for name in ("t", "raw", "d", "s")),
            *(("decimals", name, "unscaled") for name in ("i", "f", "s")),
            *(("fill_null", name, 1) for name in ("s",)),
            *(("categories", name, [1]) for name in ("s",)),
        ]
    ),
    *(({"ragged": [name]}, rf"ragged={{'{name}': …}} does not go with") for name in ("i", "l", "fixed")),
    ({"stack": {"x": ["i"]}, "pad": {"x": 2}}, "pad={'x': …} does not go with what is made here"),
]


@pytest.mark.parametrize(("options", "text"), WRONG, ids=lambda x: "-".join(x) if isinstance(x, dict) else "")
def test_options_that_do_not_fit(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ca.OptionError, match=text):
        Converter(SCHEMA, **options)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("nulls", {n: "mask"}) for n in ("z", "s.z", "i.a")),
        *((name, {"z": value}) for name, value in [("fill_null", 1), ("categories", [1]), ("pad", 2), ("shape", 2)]),
        *((name, {"z": value}) for name, value in [("decode", "L"), ("dtype", "f4"), ("decimals", "float64")]),
        ("ragged", ["z"]),
        ("stack", {"x": ["z"]}),
        ("stack", {"x": []}),
        ("stack", {"x": ["s.a"]}),
    ],
)
def test_names_that_are_not_there(option: str, value: Any) -> None:
    with pytest.raises(ca.ColumnNotFoundError, match=rf"{option}=.* names? .*: .*i"):
        Converter(SCHEMA, **{option: value})


def test_other_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match=r"unexpected options \['padding'\]: choose from stack, nulls"):
        Converter(SCHEMA, padding=5)
    twice = pa.schema([("a", pa.int8()), ("a", pa.int8())])
    with pytest.raises(ca.OptionError, match=r"columns \['a'\] are there more than once"):
        Converter(twice)
    with pytest.raises(ca.OptionError, match=r"columns \['s.a'\] are there more than once"):
        Converter(pa.schema([("s", pa.struct(list(twice)))]))
    for size in (5, (1,), (1, 0), (1.5, 2), "ab", (True, 1)):
        with pytest.raises(ca.OptionError, match=r"size=.* must be a height and a width"):
            Image(size=size)
    for wrong in ("x", None, [1]):
        with pytest.raises(ca.OptionError, match=r"value=.* must be a number"):
            Pad(length=1, value=wrong)
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ca.MissingExtraError, match=r"pip install 'corgiarrow\[images\]'"):
        Converter(SCHEMA, decode={"raw": "RGB"})

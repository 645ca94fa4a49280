"""A dataset with a column of every type that becomes arrays, and how to compare batches of frameworks with NumPy's."""

from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import corgiarrow as ca
from corgiarrow.arrays import Ragged
from corgiarrow.loader import as_reader

ROWS = 203


def write_all_types(path: Path) -> Path:
    """Write one file of `ROWS` rows in small row groups; the names of 64-bit columns begin with ``wide``."""
    ids, days = np.arange(ROWS), [date(2020, 1, 1) + timedelta(days=i) for i in range(ROWS)]
    texts = [f"é{i}" * (i % 3) for i in ids]
    columns: dict[str, Any] = {
        "id": pa.array(ids, pa.int32()),
        "i8": pa.array(ids % 100 - 50, pa.int8()),
        "u16": pa.array(ids * 300, pa.uint16()),
        "u32": pa.array(ids * 2**24, pa.uint32()),
        "f16": pa.array((ids / 7).astype(np.float16)),
        "f32": pa.array(ids / 3, pa.float32()),
        "flag": pa.array(ids % 3 == 0),
        "some": pa.array([None if i % 5 == 0 else i / 9 for i in ids], pa.float32()),
        "code": pa.array([f"c{i % 4}" for i in ids]).dictionary_encode(),
        "vector": pa.array([[i, i + 1, i + 2] for i in ids], pa.list_(pa.float32(), 3)),
        "raw": pa.array([bytes([i % 256, 0]) for i in ids], pa.binary(2)),
        "image": pa.array([bytes([i % 256]) * 6 for i in ids], pa.binary()),
        "padded": pa.array([list(range(i % 4)) for i in ids], pa.list_(pa.int16())),
        "ragged": pa.array([list(range(i % 4)) for i in ids], pa.list_(pa.int16())),
        "vectors": pa.array([[[i, j] for j in range(i % 3)] for i in ids], pa.list_(pa.list_(pa.float32(), 2))),
        "nested": pa.array([[[j] * (i % 2) for j in range(i % 3)] for i in ids], pa.list_(pa.list_(pa.uint8()))),
        "letters": pa.array(texts),
        "point": pa.array([{"x": i / 2, "inner": {"y": i}} for i in ids], pa.struct(
            [("x", pa.float32()), ("inner", pa.struct([("y", pa.int16())]))]
        )),
        "points": pa.array([[{"x": i, "y": j} for j in range(i % 3)] for i in ids], pa.list_(
            pa.struct([("x", pa.int32()), ("y", pa.float32())])
        )),
        "a": pa.array(ids, pa.int16()),
        "b": pa.array(ids / 2, pa.float32()),
        "wide_i64": pa.array(ids + 2**60),
        "wide_u64": pa.array(ids.astype(np.uint64) + np.uint64(2**63)),
        "wide_f64": pa.array(ids / 3),
        "wide_day": pa.array(days),
        "wide_when": pa.array([datetime(2020, 1, 1, 0, 0, i % 60) for i in ids], pa.timestamp("us")),
        "wide_span": pa.array([timedelta(seconds=int(i)) for i in ids], pa.duration("ms")),
        "wide_clock": pa.array([time(1, 2, i % 60) for i in ids], pa.time32("s")),
        "wide_price": pa.array([Decimal(int(i)) / 100 for i in ids], pa.decimal128(10, 2)),
        "wide_list": pa.array([list(range(i % 4)) for i in ids], pa.list_(pa.int64())),
        "text": pa.array(texts),
        "bytes": pa.array([bytes(i % 3) for i in ids]),
        "texts": pa.array([[f"{i}", ""][: i % 3] for i in ids]),
        "map": pa.array([[(f"k{i}", i)] * (i % 2) for i in ids], pa.map_(pa.string(), pa.int64())),
    }
    pq.write_table(pa.table(columns), path, row_group_size=17)
    return path


OBJECTS = ["text", "bytes", "texts", "map"]
"""Columns that hold Python objects."""
WIDE = [
    *("wide_i64", "wide_u64", "wide_f64", "wide_day", "wide_when", "wide_span", "wide_clock", "wide_price"),
    "wide_list",
]
NARROW = [
    *("id", "i8", "u16", "u32", "f16", "f32", "flag", "some", "code", "vector", "raw", "image", "padded", "ragged"),
    *("vectors", "nested", "letters", "point", "points", "a", "b"),
]
RAGGED = ["ragged", "vectors", "nested", "letters", "points"]
OPTIONS: dict[str, Any] = {
    "stack": {"ab": ["a", "b"]},
    "nulls": {"some": "mask"},
    "categories": {"code": ["c0", "c1", "c2", "c3"]},
    "shape": {"image": (2, 3)},
    "pad": {"padded": 3},
    "ragged": ["letters"],
}


def options_for(columns: list[str], **more: Any) -> dict[str, Any]:
    """Return options that make arrays of these columns."""
    found = {
        option: {name: each for name, each in value.items() if name in [*columns, *(["ab"] if "a" in columns else [])]}
        if isinstance(value, dict)
        else [name for name in value if name in columns]
        for option, value in OPTIONS.items()
    }
    decimals = {"wide_price": "float64"} if "wide_price" in columns else {}
    return found | {"columns": columns, "decimals": decimals, "batch_size": 32, "shuffle": "corgipile"} | more


def in_numpy(data: Path, options: dict[str, Any]) -> ca.Loader:
    """Return the loader whose batches those of a framework must equal."""
    place = {name: value for name, value in options.items() if name in ("batch_size", "rank", "world_size")}
    reader, arrays = as_reader(data, {name: value for name, value in options.items() if name not in place}, **place)
    return ca.Loader(reader, **arrays)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Each array of a batch, with its path."""
    if isinstance(value, Mapping):
        for name in sorted(value):
            yield from leaves(value[name], f"{path}.{name}")
    elif isinstance(value, Ragged):
        yield from leaves(value.offsets, f"{path}[offsets]")
        yield from leaves(value.values, f"{path}[]")
    else:
        yield path, value


def same_bits(found: np.ndarray, wanted: np.ndarray) -> bool:
    """Whether two arrays have one dtype, shape and content; points in time count as int64."""
    if wanted.dtype.kind in "mM":
        wanted = wanted.view(np.int64)
    if wanted.dtype.kind == "O":
        return found.tolist() == wanted.tolist()
    return found.dtype == wanted.dtype and found.shape == wanted.shape and found.tobytes() == wanted.tobytes()

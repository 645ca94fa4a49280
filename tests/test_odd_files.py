"""Odd, old, damaged and encrypted files: read as pyarrow reads them, or refused by name; and what `skip` does."""

import base64
import decimal
import functools
import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from test_schemas import ONCE_EACH, cells, read_all, rows_of, small_pages

import corgiarrow as ca

__all__ = ["small_pages"]

ROWS = 90
IDS = pa.array(range(ROWS), pa.int64())
TEXT = pa.array([None if n % 5 == 0 else f"text {n % 11}" for n in range(ROWS)])
UNIQUE = pa.array([f"text {n:04}" for n in range(ROWS)])
FLOATS = pa.array(np.linspace(-1, 1, ROWS), pa.float64())


class Unknown(pa.ExtensionType):
    """A type that is registered nowhere."""

    def __init__(self, storage: pa.DataType):
        super().__init__(storage, "tests.unknown")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"unit=parsec"

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> "Unknown":
        return cls(storage)


def extension(kind: pa.DataType, storage: Sequence[Any]) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array(storage, kind.storage_type))


def numbers(kind: pa.DataType) -> pa.Array:
    return pa.array([None if n % 7 == 0 else decimal.Decimal(n - 40).scaleb(-2) for n in range(ROWS)], kind)


PLAIN = {"use_dictionary": False}
ODDITIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no rows": ({"x": pa.array([], pa.int64()), "s": pa.array([], pa.string())}, {}),
    "all null": ({"x": pa.nulls(ROWS, pa.int64()), "s": pa.nulls(ROWS, pa.string()), "id": IDS}, {"data_page_size": 1}),
    "null type": ({"x": pa.nulls(ROWS), "id": IDS}, {}),
    "pages v2": ({"s": TEXT, "x": FLOATS, "l": [[n, None] for n in range(ROWS)]}, {"data_page_version": "2.0"}),
    "nulls in pages v2": ({"s": pa.nulls(ROWS, pa.string())}, {"data_page_version": "2.0", "compression": "snappy"}),
    "tiny pages": (
        {"s": TEXT, "x": FLOATS, "l": [[str(n)] * (n % 4) for n in range(ROWS)]},
        {"data_page_size": 1, "write_batch_size": 3, **PLAIN},
    ),
    "dictionary given up": ({"s": UNIQUE, "id": IDS}, {"dictionary_pagesize_limit": 64, "write_batch_size": 8}),
    "page index": ({"s": TEXT, "x": FLOATS}, {"write_page_index": True}),
    "checksums": ({"s": TEXT, "x": FLOATS}, {"write_page_checksum": True}),
    "no stored schema": ({"s": TEXT, "d": TEXT.dictionary_encode(), "x": FLOATS}, {"store_schema": False}),
    "no statistics": ({"s": TEXT, "x": FLOATS}, {"write_statistics": False}),
    "version 1.0": ({"s": TEXT, "x": FLOATS, "u": IDS.cast(pa.uint32())}, {"version": "1.0"}),
    **{
        f"codec {codec}": ({"s": TEXT, "x": FLOATS}, {"compression": codec})
        for codec in ("none", "snappy", "gzip", "brotli", "zstd", "lz4")
        if codec == "none" or pa.Codec.is_available(codec)
    },
    "byte stream split": (
        {
            "f": FLOATS.cast(pa.float32()),
            "d": FLOATS,
            "i": IDS,
            "b": pa.array([n.to_bytes(3, "big") for n in range(ROWS)], pa.binary(3)),
            "h": FLOATS.cast(pa.float16()),
        },
        {"use_byte_stream_split": True, **PLAIN},
    ),
    "delta": (
        {"i": IDS, "j": IDS.cast(pa.int32()), "s": UNIQUE, "t": TEXT, "b": TEXT.cast(pa.binary())},
        {
            "column_encoding": {
                "i": "DELTA_BINARY_PACKED",
                "j": "DELTA_BINARY_PACKED",
                "s": "DELTA_BYTE_ARRAY",
                "t": "DELTA_LENGTH_BYTE_ARRAY",
                "b": "DELTA_BYTE_ARRAY",
            },
            **PLAIN,
        },
    ),
    "run-length booleans": (
        {"b": [None if n % 9 == 0 else n % 3 == 0 for n in range(ROWS)]},
        {"column_encoding": {"b": "RLE"}, **PLAIN},
    ),
    "float16": ({"h": pa.array([None, float("nan"), float("inf"), -0.0, 1.5] * 18, pa.float16())}, {}),
    "decimals": (
        {
            "a": numbers(pa.decimal128(5, 2)),
            "b": numbers(pa.decimal128(15, 2)),
            "c": numbers(pa.decimal128(30, 2)),
            "d": numbers(pa.decimal256(60, 2)),
        },
        {},
    ),
    "decimals as integers": (
        {"a": numbers(pa.decimal128(5, 2)), "b": numbers(pa.decimal128(15, 2))},
        {"store_decimal_as_integer": True},
    ),
    "old list structure": (
        {"l": [None if n % 7 == 0 else [[n], None, []] for n in range(ROWS)]},
        {"use_compliant_nested_type": False},
    ),
    "maps": (
        {
            "m": pa.array(
                [None if n % 7 == 0 else [(f"k{i}", None if i else n) for i in range(n % 3)] for n in range(ROWS)],
                pa.map_(pa.string(), pa.int32()),
            ),
            "n": pa.array(
                [[(n, [("x", [n])])] for n in range(ROWS)],
                pa.map_(pa.int64(), pa.map_(pa.string(), pa.list_(pa.int8()))),
            ),
        },
        {},
    ),
    "nulls at each level": (
        {"a": [None, {"b": None}, {"b": {"c": None}}, {"b": {"c": [None]}}, {"b": {"c": [{"d": 1}]}}] * 20},
        {},
    ),
    "old timestamps": ({"t": pa.array(range(ROWS), pa.timestamp("us"))}, {"use_deprecated_int96_timestamps": True}),
    "uuid and json": (
        {
            "u": extension(pa.uuid(), [n.to_bytes(16, "big") for n in range(ROWS)]),
            "j": extension(pa.json_(), [None if n % 3 == 0 else f'{{"n": {n}}}' for n in range(ROWS)]),
            "nested": pa.array([[{"p": n}] for n in range(ROWS)]),
        },
        {},
    ),
    "extensions without a stored schema": (
        {"u": extension(pa.uuid(), [n.to_bytes(16, "big") for n in range(ROWS)])},
        {"store_schema": False},
    ),
    "unknown extension": ({"x": extension(Unknown(pa.int32()), range(ROWS)), "id": IDS}, {}),
    "views and large": (
        {"v": TEXT.cast(pa.string_view()), "b": TEXT.cast(pa.binary_view()), "l": TEXT.cast(pa.large_string())},
        {},
    ),
    "fixed-size lists": (
        {"f": pa.array([None if n % 8 == 0 else [n, None, 2.5] for n in range(ROWS)], pa.list_(pa.float32(), 3))},
        {},
    ),
    "odd names": (
        {"": IDS, "é\n": IDS, "a.b": IDS, "a": [{"b": n} for n in range(ROWS)], " ": IDS, "list": [[1]] * ROWS},
        {},
    ),
}


def write_odd(path: Path, name: str, group_rows: int = 40) -> Path:
    columns, options = ODDITIES[name]
    pq.write_table(pa.table(columns), path, row_group_size=group_rows, **options)
    return path


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("name", list(ODDITIES))
def test_odd_files_are_read_as_pyarrow_reads_them(tmp_path: Path, name: str) -> None:
    path = write_odd(tmp_path / "odd.parquet", name)
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        expected = file.read()
    in_pieces = 0
    for shuffle in ("none", "block", "corgipile"):
        for memory in (None, max(expected.nbytes, 1), max(expected.nbytes // 3, 1)):
            try:
                reader = ca.Reader(path, shuffle=shuffle, memory=memory, batch_size=7, threads=2)
            except ca.BudgetError:
                continue
            in_pieces += reader.plan().pieces is not None
            found = pa.Table.from_batches(list(reader), schema=reader.schema)
            found.validate(full=True)
            assert found.column_names == expected.column_names
            assert rows_of(found) == rows_of(expected)
            if shuffle == "none":
                assert [cells(c) for c in found.columns] == [cells(c) for c in expected.columns]
    assert in_pieces or not expected.num_rows


@pytest.mark.parametrize("name", [n for n in ODDITIES if n != "no rows"])
def test_each_column_of_an_odd_file_alone(tmp_path: Path, name: str) -> None:
    path = write_odd(tmp_path / "odd.parquet", name)
    with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
        expected = file.read()
    for column in expected.column_names:
        found = read_all(path, columns=[column], shuffle="none")
        assert found.column_names == [column]
        assert rows_of(found) == rows_of(expected.select([column]))


def test_types_that_differ_from_what_was_written(tmp_path: Path) -> None:
    schema = ca.Reader(write_odd(tmp_path / "views.parquet", "views and large")).schema
    assert [field.type for field in schema] == [pa.string(), pa.binary(), pa.large_string()]
    schema = ca.Reader(write_odd(tmp_path / "known.parquet", "uuid and json")).schema
    assert schema.field("u").type == pa.uuid()
    assert schema.field("j").type == pa.json_()


def test_an_unknown_extension_keeps_its_name(tmp_path: Path) -> None:
    path = write_odd(tmp_path / "unknown.parquet", "unknown extension")
    reader = ca.Reader(path, shuffle="none")
    for schema in (reader.schema, next(iter(reader)).schema):
        field = schema.field("x")
        assert field.type == pa.int32()
        assert field.metadata[b"ARROW:extension:name"] == b"tests.unknown"
        assert field.metadata[b"ARROW:extension:metadata"] == b"unit=parsec"
    reader.close()
    ca.BlockIndex.build(path).save(tmp_path / "index")
    loaded = ca.BlockIndex.load(tmp_path / "index")
    assert loaded.schema.equals(reader.schema, check_metadata=True)
    (tmp_path / "both").mkdir()
    write_odd(tmp_path / "both" / "a.parquet", "unknown extension")
    pq.write_table(pa.table({"x": IDS.cast(pa.int32())}), tmp_path / "both" / "b.parquet")
    with pytest.raises(ca.SchemaMismatchError, match=r"tests\.unknown in .*a\.parquet and int32 in .*b\.parquet"):
        ca.Reader(tmp_path / "both")


def test_a_file_without_row_groups(tmp_path: Path) -> None:
    schema = pa.schema([("x", pa.int64()), ("s", pa.string())])
    pq.ParquetWriter(tmp_path / "none.parquet", schema).close()
    assert pq.read_metadata(tmp_path / "none.parquet").num_row_groups == 0
    for shuffle in ONCE_EACH:
        reader = ca.Reader(tmp_path, shuffle=shuffle)
        assert list(reader) == []
        assert reader.schema == schema
        assert len(reader) == reader.num_rows == 0


# Refused files ----------------------------------------------------------------------------------------------------


class OpenKms(pe.KmsClient):
    """A key service for tests: it wraps nothing."""

    def __init__(self, config: pe.KmsConnectionConfig):
        super().__init__()

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str:
        return base64.b64encode(key_bytes).decode()

    def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:
        return base64.b64decode(wrapped_key)


def write_encrypted(path: Path, **options: Any) -> Path:
    factory = pe.CryptoFactory(OpenKms)
    config = pe.EncryptionConfiguration(footer_key="footer", **options)
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
    table = pa.table({"id": IDS, "s": TEXT})
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    return path


@pytest.mark.parametrize("plaintext_footer", [True, False])
@pytest.mark.parametrize("columns", [["s"], ["id", "s"]])
def test_encrypted_files_are_refused(tmp_path: Path, plaintext_footer: bool, columns: list[str]) -> None:
    """In a process of its own: Arrow ends the process when asked for an encrypted column's metadata."""
    path = write_encrypted(tmp_path / "secret.parquet", column_keys={"key": columns}, plaintext_footer=plaintext_footer)
    pq.write_table(pa.table({"id": IDS, "s": TEXT}), tmp_path / "open.parquet")
    program = (
        "import sys, corgiarrow as ca\n"
        "try:\n"
        f"    ca.Reader({str(path)!r})\n"
        "except ca.NotParquetError as error:\n"
        "    print(error)\n"
        f"reader = ca.Reader({str(tmp_path)!r}, on_error='skip')\n"
        "print(sum(b.num_rows for b in reader), reader.source.index.left_out[0][0])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    refused, left = done.stdout.splitlines()
    assert "secret.parquet" in refused
    assert "crypt" in refused
    assert left == f"{ROWS} secret.parquet"


def plain_file(path: Path, rows: int = 200, group_rows: int = 50) -> Path:
    table = pa.table({"id": range(rows), "s": [f"text {n:04}" for n in range(rows)]})
    pq.write_table(table, path, row_group_size=group_rows, compression="none", write_page_checksum=True, **PLAIN)
    return path


@pytest.mark.parametrize(
    "cut",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data[:3],
        lambda data: b"",
        lambda data: b"PAR1",
        lambda data: data[:-8] + b"\xff\xff\xff\xffPAR1",
        lambda data: data[:-8] + b"\x01\x00\x00\x00PAR1",
        lambda data: b"x" * 1000,
    ],
)
def test_cut_files(tmp_path: Path, cut: Any) -> None:
    """Refused by name; with `skip` left out, and listed."""
    path = plain_file(tmp_path / "cut.parquet")
    path.write_bytes(cut(path.read_bytes()))
    with pytest.raises(ca.NotParquetError, match=r"cut\.parquet"):
        ca.Reader(path)
    with pytest.raises(ca.NotParquetError, match=r"cut\.parquet"):
        ca.Reader(path, on_error="skip")
    plain_file(tmp_path / "fine.parquet")
    with pytest.raises(ca.NotParquetError, match=r"cut\.parquet"):
        ca.Reader(tmp_path)
    index = ca.BlockIndex.build(tmp_path, on_error="skip")
    assert [name for name, _ in index.left_out] == ["cut.parquet"]
    assert "cut.parquet" in index.left_out[0][1]
    index.save(tmp_path / "index")
    assert ca.BlockIndex.load(tmp_path / "index").left_out == index.left_out
    alone = read_all(tmp_path / "fine.parquet")
    assert sorted(read_all(index)["id"].to_pylist()) == sorted(alone["id"].to_pylist())


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("memory", [None, "1 kB"])
def test_data_cut_out_of_the_middle(tmp_path: Path, memory: str | None) -> None:
    """The footer is fine, but what it points to is not there."""
    path = plain_file(tmp_path / "hole.parquet")
    data = path.read_bytes()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    path.write_bytes(data[:100] + data[-footer:])
    with pytest.raises(ca.ReadError, match=r"hole\.parquet, row group \d"):
        read_all(path, memory=memory)


def chunk_of(path: Path, row_group: int, column: int) -> tuple[int, int]:
    """Where the data pages of a column chunk begin, and where the chunk ends."""
    chunk = pq.read_metadata(path).row_group(row_group).column(column)
    first = min(x for x in (chunk.dictionary_page_offset, chunk.data_page_offset) if x)
    return chunk.data_page_offset, first + chunk.total_compressed_size


def overwrite(path: Path, place: int, new: bytes) -> None:
    data = bytearray(path.read_bytes())
    assert data[place : place + len(new)] != new
    data[place : place + len(new)] = new
    path.write_bytes(data)


def flip(path: Path, place: int) -> None:
    overwrite(path, place, bytes([path.read_bytes()[place] ^ 0xFF]))


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("memory", [None, "1 kB"])
@pytest.mark.parametrize("shuffle", ["none", "block", "corgipile"])
@pytest.mark.parametrize("column", [0, 1])
def test_a_wrong_checksum_is_found(tmp_path: Path, memory: str | None, shuffle: str, column: int) -> None:
    path = plain_file(tmp_path / "flipped.parquet")
    flip(path, chunk_of(path, 2, column)[1] - 3)
    with pytest.raises(ca.ReadError) as caught:
        read_all(path, memory=memory, shuffle=shuffle)
    for text in ("flipped.parquet", "row group 2", f"column {('id', 's')[column]!r}"):
        assert text in str(caught.value)
    assert len(read_all(path, memory=memory, shuffle=shuffle, columns=[("s", "id")[column]])) == 200


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("memory", [None, "1 kB"])
@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize("shape", ["text", "list", "struct", "map", "dictionary", "large"])
def test_text_that_is_no_utf8_is_found(tmp_path: Path, memory: str | None, use_dictionary: bool, shape: str) -> None:
    words = [f"word {n % 9:03}" for n in range(60)]
    arrays = {
        "text": words,
        "list": [[w, None] for w in words],
        "struct": [{"p": w} for w in words],
        "map": pa.array([[("k", w)] for w in words], pa.map_(pa.string(), pa.string())),
        "dictionary": pa.array(words).dictionary_encode(),
        "large": pa.array(words, pa.large_string()),
    }
    path = tmp_path / "latin.parquet"
    table = pa.table({"s": arrays[shape], "id": range(60)})
    options = {"compression": "none", "use_dictionary": use_dictionary, "write_statistics": False}
    pq.write_table(table, path, row_group_size=20, **options)
    begin, end = chunk_of(path, 1, 1 if shape == "map" else 0)
    data = path.read_bytes()
    overwrite(path, data.rindex(b"word 003", 0, end), b"w\xf6rd 003")
    assert begin < end
    with pytest.raises(ca.ReadError) as caught:
        read_all(path, memory=memory)
    for text in ("latin.parquet", "row group 1", "column 's'"):
        assert text in str(caught.value)
    if shape in ("text", "large"):
        found = read_all(path, schema={"s": pa.binary()}, shuffle="none")
        assert sorted(set(found["s"].to_pylist()) - {w.encode() for w in words}) == [b"w\xf6rd 003"]
    assert len(read_all(path, columns=["id"], memory=memory)) == 60


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("memory", [None, "1 kB"])
@pytest.mark.parametrize(
    "values",
    [["a", "b", "c"], [1, 2, 3], [1.5, 2.5, 3.5], [b"a", b"b", b"c"]],
    ids=["text", "int", "float", "binary"],
)
@pytest.mark.parametrize("nested", [False, True])
def test_an_index_beyond_its_dictionary_is_found(
    tmp_path: Path, memory: str | None, values: list[Any], nested: bool
) -> None:
    kind = pa.array(values).type
    column = pa.array([values[n % 3] for n in range(64)], kind)
    schema = pa.schema([pa.field("x", kind, nullable=False), pa.field("id", pa.int64())])
    arrays: list[Any] = [column, range(64)]
    if nested:
        inner = pa.struct([pa.field("p", kind, nullable=False)])
        schema = schema.set(0, pa.field("x", inner, nullable=False))
        arrays[0] = [{"p": v} for v in column.to_pylist()]
    path = tmp_path / "beyond.parquet"
    pq.write_table(pa.table(arrays, schema=schema), path, compression="none", row_group_size=32)
    overwrite(path, chunk_of(path, 1, 0)[1] - 2, b"\xff\xff")
    with pytest.raises(ca.ReadError) as caught:
        read_all(path, memory=memory)
    for text in ("beyond.parquet", "row group 1", "column 'x'"):
        assert text in str(caught.value)


# Skipping ---------------------------------------------------------------------------------------------------------

GROUPS = {"a.parquet": [40, 25, 60], "b.parquet": [33, 50], "c.parquet": [7, 44, 31]}
TOTAL = sum(map(sum, GROUPS.values()))


def write_groups(folder: Path, page_rows: int = 16) -> Path:
    """Files of several row groups with checksums; `id` counts through all rows."""
    folder.mkdir()
    first = 0
    for name, sizes in GROUPS.items():
        schema = pa.schema([("id", pa.int64()), ("s", pa.string())])
        # Without statistics, text lies in the data alone; small batches of rows make small pages.
        options = {"write_page_checksum": True, "write_statistics": False, "use_dictionary": False}
        options |= {"compression": "none", "data_page_size": 1, "write_batch_size": page_rows}
        with pq.ParquetWriter(folder / name, schema, **options) as writer:
            for rows in sizes:
                ids = range(first, first + rows)
                writer.write_table(pa.table([ids, [f"text {i % 5}" for i in ids]], schema=schema))
                first += rows
    return folder


@functools.cache
def ids_of_group(file: str, group: int) -> range:
    first = 0
    for name, sizes in GROUPS.items():
        for number, rows in enumerate(sizes):
            if (name, number) == (file, group):
                return range(first, first + rows)
            first += rows
    raise KeyError(file)


Broken = list[tuple[str, int]]
BROKEN: dict[str, Broken] = {
    "one": [("b.parquet", 0)],
    "the first": [("a.parquet", 0)],
    "the last": [("c.parquet", 2)],
    "a whole file": [("b.parquet", 0), ("b.parquet", 1)],
    "all but one": [(f, g) for f, sizes in GROUPS.items() for g in range(len(sizes)) if (f, g) != ("a.parquet", 2)],
}


def damage(folder: Path, broken: Broken) -> Path:
    """Flip a byte in the first data page of these row groups."""
    for file, group in broken:
        damage_text(folder / file, group, 0.0)
    return folder


def damage_text(path: Path, group: int, place: float) -> None:
    """Flip a byte of the text at some place, in [0, 1), of a row group."""
    begin, end = chunk_of(path, group, 1)
    flip(path, path.read_bytes().index(b"text ", begin + int((end - begin) * place)))


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_groups(tmp_path_factory.mktemp("skip") / "intact")


def ids(batches: Any) -> list[list[int]]:
    return [batch.column("id").to_pylist() for batch in batches]


@pytest.mark.parametrize(
    ("which", "world"),
    # With two streams one of them is left without a block that can be read, which raises.
    [(which, world) for which in BROKEN for world in (1, 2) if (which, world) != ("all but one", 2)],
)
@pytest.mark.parametrize("shuffle", ONCE_EACH)
def test_skipping_moves_no_other_row(intact: Path, tmp_path: Path, which: str, shuffle: str, world: int) -> None:
    """Each place of a broken row holds a row of some block that can be read; everything else is as without damage."""
    broken = BROKEN[which]
    folder = damage(write_groups(tmp_path / "damaged"), broken)
    lost = {i for file, group in broken for i in ids_of_group(file, group)}
    buffer = {} if shuffle in ("epoch", "once") else {"buffer_blocks": 2 * world}
    options = {"shuffle": shuffle, "batch_size": 9, "world_size": world, **buffer}
    replaced = 0
    for rank in range(world):
        whole = ids(ca.Reader(intact, rank=rank, **options))
        for threads in (1, 3):
            reader = ca.Reader(folder, rank=rank, on_error="skip", threads=threads, **options)
            found = ids(reader)
            assert [len(b) for b in found] == [len(b) for b in whole]
            pairs = [(a, b) for x, y in zip(whole, found, strict=True) for a, b in zip(x, y, strict=True)]
            assert all(b not in lost for _, b in pairs)
            assert all(a == b for a, b in pairs if a not in lost)
            assert len(reader.stats.skipped) <= len(broken)
            for name, reason in reader.stats.skipped.items():
                assert any(f"{file}, row group {group}" in name for file, group in broken), name
                assert "column 's'" in reason
        replaced += reader.stats.skipped_rows
    if world == 1:
        assert replaced == len(lost)
        assert len(reader.stats.skipped) == len(broken)
    with pytest.raises(ca.ReadError, match=r"[abc]\.parquet, row group \d, column 's'"):
        for rank in range(world):
            list(ca.Reader(folder, rank=rank, **options))


@pytest.mark.parametrize("shuffle", ONCE_EACH)
def test_resume_after_a_fault(tmp_path: Path, shuffle: str) -> None:
    folder = damage(write_groups(tmp_path / "damaged"), BROKEN["a whole file"])
    buffer = {} if shuffle in ("epoch", "once") else {"buffer_blocks": 2}
    index = ca.BlockIndex.build(folder)
    options = {"shuffle": shuffle, "batch_size": 17, "on_error": "skip", "provenance": True, **buffer}
    whole = [b.to_pylist() for b in ca.Reader(index, threads=1, **options)]
    for step in range(len(whole)):
        reader = ca.Reader(index, **options)
        reader.seek(0, step)
        assert [b.to_pylist() for b in reader] == whole[step:]


def test_repeats_say_where_they_come_from(tmp_path: Path) -> None:
    """With provenance a repeat names the row that it repeats."""
    folder = damage(write_groups(tmp_path / "damaged"), BROKEN["one"])
    reader = ca.Reader(folder, on_error="skip", provenance=True, batch_size=10, buffer_blocks=3)
    for row in pa.Table.from_batches(list(reader)).to_pylist():
        assert ids_of_group(row["_file"], row["_row_group"])[row["_row"]] == row["id"]


@pytest.mark.parametrize("shuffle", ONCE_EACH)
def test_nothing_to_repeat_raises(tmp_path: Path, shuffle: str) -> None:
    everything = [(file, group) for file, sizes in GROUPS.items() for group in range(len(sizes))]
    folder = damage(write_groups(tmp_path / "damaged"), everything)
    reader = ca.Reader(folder, on_error="skip", shuffle=shuffle)
    with pytest.raises(ca.ReadError, match=r"[abc]\.parquet, row group \d.*nor can any other"):
        list(reader)


def test_a_column_that_is_not_read_does_no_harm(intact: Path, tmp_path: Path) -> None:
    folder = damage(write_groups(tmp_path / "damaged"), BROKEN["all but one"])
    assert ids(ca.Reader(folder, columns=["id"], seed=4)) == ids(ca.Reader(intact, columns=["id"], seed=4))


def test_skipping_is_logged_once_a_pass(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = damage(write_groups(tmp_path / "damaged"), BROKEN["one"])
    reader = ca.Reader(folder, on_error="skip", batch_size=10)
    with caplog.at_level(logging.WARNING, "corgiarrow"):
        list(reader)
    assert len(caplog.records) == 1
    assert "b.parquet, row group 0" in caplog.text
    assert json.loads(json.dumps(reader.stats.as_dict()))["skipped_rows"] == 33


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("shuffle", ["none", "block", "corgipile"])
@pytest.mark.parametrize("place", [0.0, 0.4, 0.9])
def test_a_fault_inside_of_a_row_group_read_in_pieces(tmp_path: Path, shuffle: str, place: float) -> None:
    """Pieces before the fault are delivered; what cannot be read is replaced, and nothing else moves."""
    intact, folder = (write_groups(tmp_path / name, page_rows=4) for name in ("intact", "damaged"))
    damage_text(folder / "a.parquet", 2, place)
    options = {"shuffle": shuffle, "batch_size": 8, "memory": 4000}
    whole = [i for b in ids(ca.Reader(intact, **options)) for i in b]
    lost = set(ids_of_group("a.parquet", 2))
    runs = []
    for threads in (1, 3):
        reader = ca.Reader(folder, on_error="skip", threads=threads, **options)
        assert reader.plan().pieces is not None
        batches = ids(reader)
        assert len(batches) == len(reader)
        found = [i for b in batches for i in b]
        assert [a for a, b in zip(whole, found, strict=True) if a not in lost] == [
            b for a, b in zip(whole, found, strict=True) if a not in lost
        ]
        gone = lost - set(found)
        assert reader.stats.skipped_rows >= len(gone) > 0, "rows after the fault cannot come from elsewhere"
        assert sum(a != b for a, b in zip(whole, found, strict=True)) <= reader.stats.skipped_rows <= len(lost)
        if place > 0.5:
            assert len(gone) < len(lost), "pieces before the fault can be read"
        assert len(reader.stats.skipped) == 1
        runs.append(batches)
    assert runs[0] == runs[1]
    for step in range(0, len(runs[0]), 5):
        reader = ca.Reader(folder, on_error="skip", **options)
        reader.seek(0, step)
        assert ids(reader) == runs[0][step:]


@pytest.mark.parametrize("filtered", ["id", "s"])
def test_skipping_with_a_filter(intact: Path, tmp_path: Path, filtered: str) -> None:
    """A filter on the broken column keeps no row of a row group that cannot be read; on another, repeats fill in."""
    broken = BROKEN["one"]
    lost = {i for file, group in broken for i in ids_of_group(file, group)}
    folder = damage(write_groups(tmp_path / "damaged"), broken)
    expression = {"id": pc.field("id") >= 100, "s": pc.field("s") != "text 1"}
    reader = ca.Reader(folder, filter=expression[filtered], on_error="skip", batch_size=8, seed=2)
    found = [i for b in ids(reader) for i in b]
    kept = [i for b in ids(ca.Reader(intact, filter=expression[filtered], batch_size=8)) for i in b]
    if filtered == "id":
        assert len(found) == len(kept)
    assert set(found) == set(kept) - lost


FLIPS = """
import os, signal, sys
import pyarrow as pa
import corgiarrow as ca
pa.set_cpu_count(1)
path = sys.argv[1]
data = open(path, "rb").read()
footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
dense = [(place, (10, 34, 136)[place % 3]) for place in range(footer + 15, footer + 85)]
sparse = [(place, 231) for place in [*range(4, footer, 150), *range(footer + 85, len(data), 50)]]
for place, bits in dense + sparse:
    new = bytearray(data)
    new[place] ^= bits
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        signal.alarm(20)
        with open(path, "wb") as file:
            file.write(new)
        try:
            rows = sum(batch.num_rows for batch in ca.Reader(path, threads=1))
            print("" if rows == 60 else f"{place - footer}: {rows} rows")
        except ca.CorgiArrowError as error:
            print("" if "flipped.parquet" in str(error) else f"{place - footer}: no file name: {error}")
        except Exception as error:
            print(f"{place - footer}: {error!r}")
        sys.stdout.flush()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if status:
        print(f"{place - footer}: status {status}")
"""


@pytest.fixture(scope="module")
def flipped(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What goes wrong with a file of which one byte is flipped, mostly in its footer, in a process for each byte."""
    table = pa.table(
        {
            "id": range(60),
            "s": [None if n % 4 == 0 else f"t{n % 7}" for n in range(60)],
            "l": [[n, None] for n in range(60)],
            "a": [{"b": n} for n in range(60)],
        }
    )
    path = tmp_path_factory.mktemp("flip") / "flipped.parquet"
    pq.write_table(table, path, row_group_size=20)
    command = [sys.executable, "-c", FLIPS, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return [line for line in done.stdout.splitlines() if line]


def test_any_flipped_byte_gives_rows_or_an_error_of_ours(flipped: list[str]) -> None:
    """Never another exception, fewer rows, or an error that does not name the file."""
    assert not [line for line in flipped if "status" not in line]

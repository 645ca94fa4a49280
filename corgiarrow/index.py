"""The block index: which row groups a dataset has, known from its footers alone."""

import hashlib
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import fsspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from corgiarrow.errors import (
    ColumnNotFoundError,
    IndexFormatError,
    NotParquetError,
    SchemaMismatchError,
    SourceChangedError,
    StorageError,
)
from corgiarrow.storage import FileInfo, Storage, StorageOptions, find_files, redact, write_atomic

DEFAULT_BLOCK_BYTES = 4 * 2**20
"""Bytes on disk towards which small row groups are merged; chosen by ``benchmarks/block_bytes.py``."""

MIN_BLOCKS = 1000
"""Row groups are only merged while at least so many blocks remain, since fewer blocks mix worse."""

_FORMAT = 1
_TAIL_BYTES = 64 * 1024
_FOOTER_CACHE_BYTES = 256 * 2**20
_FOOTER_THREADS = 16
_SAMPLED_FILES = 16

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BlockIndex:
    """Files and row groups of a dataset.

    Make one with :meth:`build` or :meth:`load`. Row groups are numbered through all files, in file order.

    Attributes
    ----------
    storage
        Where the files lie.
    schema
        The dataset's schema.
    files
        The files, sorted by path.
    group_file, group_number
        File of each row group, and its number in that file, int64 [row groups].
    group_rows
        Rows of each row group, int64 [row groups].
    group_disk_bytes
        Bytes of each row group on disk, int64 [row groups]: its file's size shared out by uncompressed size.
    variable_bytes
        For columns without a fixed width their uncompressed bytes in each row group, int64 [row groups].
    disk_share
        Part of the data on disk that each column takes, by name, from a sample of the files.
    """

    storage: Storage
    schema: pa.Schema
    files: tuple[FileInfo, ...] = field(repr=False)
    group_file: Int64s = field(repr=False)
    group_number: Int64s = field(repr=False)
    group_rows: Int64s = field(repr=False)
    group_disk_bytes: Int64s = field(repr=False)
    variable_bytes: dict[str, Int64s] = field(repr=False)
    disk_share: dict[str, float] = field(repr=False)
    footers: "FooterCache" = field(default_factory=lambda: FooterCache(), repr=False, compare=False)

    @classmethod
    def build(
        cls,
        data: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        storage_options: StorageOptions | None = None,
        filesystem: fsspec.AbstractFileSystem | None = None,
    ) -> "BlockIndex":
        """Read the footers of all files of `data`, in parallel.

        Raises
        ------
        NoFilesError, StorageError
            Nothing is there, or it cannot be reached.
        NotParquetError
            A file is not Parquet, or cut.
        SchemaMismatchError
            Two files have different columns or types.
        """
        storage, files = find_files(data, storage_options, filesystem)
        with ThreadPoolExecutor(min(_FOOTER_THREADS, len(files))) as executor:
            footers = list(executor.map(lambda file: read_footer(storage, file), files))
        schema = _common_schema(storage, files, footers)
        counts = np.array([f.num_row_groups for f in footers], dtype=np.int64)
        group_file = np.repeat(np.arange(len(files)), counts)
        group_number = np.arange(len(group_file)) - np.repeat(np.cumsum(counts) - counts, counts)
        groups = [f.row_group(g) for f in footers for g in range(f.num_row_groups)]
        raw_bytes = np.array([g.total_byte_size for g in groups], dtype=np.float64)
        file_raw = np.bincount(group_file, raw_bytes, minlength=len(files))
        sizes = np.array([f.size for f in files], dtype=np.int64)
        share = raw_bytes / np.maximum(file_raw[group_file], 1)
        leaves = leaf_columns(schema)
        index = cls(
            storage=storage,
            schema=schema,
            files=tuple(files),
            group_file=group_file,
            group_number=group_number,
            group_rows=np.array([g.num_rows for g in groups], dtype=np.int64),
            group_disk_bytes=(sizes[group_file] * share).astype(np.int64),
            variable_bytes={
                name: np.array(
                    [sum(g.column(c).total_uncompressed_size for c in columns) for g in groups], dtype=np.int64
                )
                for name, columns in leaves.items()
                if fixed_bytes(schema.field(name).type) is None
            },
            disk_share=_disk_share(footers, leaves),
        )
        for number, footer in enumerate(footers):
            index.footers.put(number, footer)
        return index

    @property
    def num_rows(self) -> int:
        """Rows of the dataset."""
        return int(self.group_rows.sum())

    @cached_property
    def fingerprint(self) -> str:
        """What the order depends on, 16 hex digits: schema, relative paths, rows of each row group.

        Not the time of change, the etag or where the folder lies: a copy of the data has the same fingerprint.
        """
        digest = hashlib.sha256()
        for column in self.schema:
            digest.update(f"{column.name}\0{column.type}\0{column.nullable}\0".encode())
        for file in self.files:
            digest.update(f"{file.path}\0".encode())
        digest.update(self.group_file.astype("<i8").tobytes())
        digest.update(self.group_rows.astype("<i8").tobytes())
        return digest.hexdigest()[:16]

    def column_names(self, columns: Sequence[str] | None) -> list[str]:
        """Return the names of `columns`, or all, after checking that they exist.

        Raises
        ------
        ColumnNotFoundError
            One is not in the dataset.
        """
        if columns is None:
            return list(self.schema.names)
        missing = [c for c in columns if c not in self.schema.names]
        if missing:
            raise ColumnNotFoundError(
                f"columns {missing} are in no file of {self.storage.shown('')}: it has {', '.join(self.schema.names)}"
            )
        if not columns or len(set(columns)) < len(columns):
            raise ColumnNotFoundError(f"columns={list(columns)} must name at least one column, and none twice")
        return list(columns)

    def memory_bytes(self, columns: Sequence[str]) -> Int64s:
        """Estimate the bytes of each row group in memory when `columns` are read, int64 [row groups]."""
        total = np.zeros(len(self.group_rows), dtype=np.float64)
        for name in columns:
            column = self.schema.field(name)
            width = fixed_bytes(column.type)
            if width is None:
                total += self.variable_bytes[name] + 4.0 * self.group_rows
            else:
                total += (width + (0.125 if column.nullable else 0)) * self.group_rows
        return np.ceil(total).astype(np.int64)

    def merge(self, columns: Sequence[str], block_bytes: int) -> tuple[Int64s, Int64s]:
        """Cut the row groups into blocks: return first and one-past-last row group of each, int64 [blocks].

        Neighbours in one file are merged while a block takes at most about `block_bytes` on disk, counting only
        `columns`, and as long as :data:`MIN_BLOCKS` blocks remain. Row groups without rows belong to no block.
        """
        groups = np.flatnonzero(self.group_rows)
        files = self.group_file[groups]
        part = sum(self.disk_share[c] for c in columns)
        disk = np.maximum(self.group_disk_bytes[groups] * part, 1)
        new_file = np.diff(files, prepend=-1) != 0
        ends = np.cumsum(disk)
        begins = ends - disk
        # Only the place inside its file decides where a row group goes, so files are cut independently.
        within = begins - np.repeat(begins[new_file], np.diff(np.flatnonzero(new_file), append=len(groups)))

        def firsts(target: float) -> npt.NDArray[np.bool_]:
            # The middle of a row group decides which stretch of `target` bytes it falls in.
            slot = ((within + disk / 2) // target).astype(np.int64)
            first: npt.NDArray[np.bool_] = new_file | (np.diff(slot, prepend=-1) != 0)
            return first

        first = firsts(float(block_bytes))
        low, high = 1.0, float(block_bytes)
        if first.sum() < MIN_BLOCKS:
            while high - low > max(0.01 * low, 1):
                middle = (low + high) / 2
                low, high = (middle, high) if firsts(middle).sum() >= MIN_BLOCKS else (low, middle)
            first = firsts(low) if firsts(low).sum() >= MIN_BLOCKS else np.ones(len(groups), dtype=np.bool_)
        places = np.flatnonzero(first)
        lasts = np.append(places[1:], len(groups)) - 1
        return groups[places], groups[lasts] + 1 if len(groups) else groups

    def footer(self, file: int) -> pq.FileMetaData:
        """Return the footer of file number `file`, parsed once a process (as far as memory for footers goes).

        Raises
        ------
        SourceChangedError
            The file is not the one that was indexed.
        """
        footer = self.footers.get(file)
        if footer is None:
            self.check_unchanged(file)
            footer = read_footer(self.storage, self.files[file])
            self.footers.put(file, footer)
        return footer

    def check_unchanged(self, file: int) -> None:
        """Compare a file's size and etag or time of change with those that were indexed.

        Raises
        ------
        SourceChangedError
            They differ, or the file is gone.
        """
        indexed = self.files[file]
        try:
            found = self.storage.info(indexed)
        except FileNotFoundError:
            raise SourceChangedError(
                f"{self.storage.shown(indexed.path)}: the file is gone since it was indexed"
            ) from None
        if found != indexed:
            raise SourceChangedError(
                f"{self.storage.shown(indexed.path)}: the file changed since it was indexed "
                f"(then {indexed.size} bytes, version {indexed.version}; now {found.size} bytes, version "
                f"{found.version}): build the index again"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Save the index to one local file (Arrow IPC), whole or not at all. No credential is saved."""
        table = pa.table(
            {
                "path": [[f.path for f in self.files]],
                "size": pa.array([[f.size for f in self.files]], pa.list_(pa.int64())),
                "version": [[f.version for f in self.files]],
                **{
                    name: _one_list(values)
                    for name, values in (
                        ("group_file", self.group_file),
                        ("group_number", self.group_number),
                        ("group_rows", self.group_rows),
                        ("group_disk_bytes", self.group_disk_bytes),
                        *((f"bytes:{name}", values) for name, values in self.variable_bytes.items()),
                    )
                },
                "disk_share": pa.array([[self.disk_share[n] for n in self.schema.names]], pa.list_(pa.float64())),
                "schema": pa.array([self.schema.serialize().to_pybytes()], pa.binary()),
                "url": [redact(self.storage.url)],
                "root": [redact(self.storage.root)],
            }
        ).replace_schema_metadata({"corgiarrow": f"block index {_FORMAT}"})

        def write(beside: Path) -> None:
            with pa.OSFile(str(beside), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)

        write_atomic(path, write)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        storage_options: StorageOptions | None = None,
        filesystem: fsspec.AbstractFileSystem | None = None,
    ) -> "BlockIndex":
        """Load a saved index. Each file is checked against it when it is first read.

        Raises
        ------
        IndexFormatError
            `path` is not a saved index of this version.
        """
        try:
            with pa.OSFile(os.fspath(path), "rb") as source:
                table = pa.ipc.open_file(source).read_all()
        except FileNotFoundError:
            raise IndexFormatError(f"{path}: no such file; save an index there first") from None
        except (pa.ArrowException, OSError) as error:
            raise IndexFormatError(f"{path}: not a saved block index ({error})") from None
        kind = (table.schema.metadata or {}).get(b"corgiarrow", b"no block index").decode()
        if kind != f"block index {_FORMAT}":
            raise IndexFormatError(f"{path}: {kind}, this version reads block index {_FORMAT}: build it again")
        row = table.to_batches()[0]

        def numbers(name: str) -> Int64s:
            return np.asarray(row.column(name).values)

        schema = pa.ipc.read_schema(pa.py_buffer(row.column("schema")[0].as_py()))
        files = zip(
            row.column("path").values.to_pylist(),
            row.column("size").values.to_pylist(),
            row.column("version").values.to_pylist(),
            strict=True,
        )
        return cls(
            storage=Storage(row["url"][0].as_py(), row["root"][0].as_py(), storage_options or {}, filesystem),
            schema=schema,
            files=tuple(FileInfo(*file) for file in files),
            group_file=numbers("group_file"),
            group_number=numbers("group_number"),
            group_rows=numbers("group_rows"),
            group_disk_bytes=numbers("group_disk_bytes"),
            variable_bytes={
                name.removeprefix("bytes:"): numbers(name) for name in row.schema.names if name.startswith("bytes:")
            },
            disk_share=dict(zip(schema.names, row.column("disk_share").values.to_pylist(), strict=True)),
        )


class FooterCache:
    """Parsed footers by file number, bounded, safe for threads; empty in another process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._footers: OrderedDict[int, pq.FileMetaData] = OrderedDict()
        self._bytes = 0

    def __reduce__(self) -> tuple[type["FooterCache"], tuple[()]]:
        return FooterCache, ()

    def get(self, file: int) -> pq.FileMetaData | None:
        """Return the footer of file number `file` when it is held."""
        with self._lock:
            if file in self._footers:
                self._footers.move_to_end(file)
            return self._footers.get(file)

    def put(self, file: int, footer: pq.FileMetaData) -> None:
        """Hold a footer; those used longest ago make room."""
        with self._lock:
            if file not in self._footers:
                self._footers[file] = footer
                self._bytes += _parsed_bytes(footer)
            while self._bytes > _FOOTER_CACHE_BYTES and len(self._footers) > 1:
                self._bytes -= _parsed_bytes(self._footers.popitem(last=False)[1])


def read_footer(storage: Storage, file: FileInfo) -> pq.FileMetaData:
    """Read and parse one footer.

    Raises
    ------
    NotParquetError
        The file is not Parquet, is cut, or its footer is encrypted or damaged.
    """
    try:
        if storage.is_local:
            return pq.read_metadata(storage.full(file.path))
        start = max(file.size - _TAIL_BYTES, 0)
        (tail,) = storage.fetch(file.path, [(start, file.size)]) if file.size else (b"",)
        if tail[-4:] == b"PAR1":
            (length,) = struct.unpack("<I", tail[-8:-4])
            if length + 8 > len(tail) and length + 8 <= file.size:
                (tail,) = storage.fetch(file.path, [(file.size - length - 8, file.size)])
        return pq.read_metadata(pa.BufferReader(tail))
    except StorageError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise NotParquetError(
            f"{storage.shown(file.path)} ({file.size} bytes) is not a readable Parquet file: {redact(str(error))}"
        ) from None


def leaf_columns(schema: pa.Schema) -> dict[str, range]:
    """Numbers of the Parquet leaf columns below each top-level column of `schema`."""
    leaves, first = {}, 0
    for column in schema:
        count = _leaf_count(column.type)
        leaves[column.name] = range(first, first + count)
        first += count
    return leaves


def fixed_bytes(kind: pa.DataType) -> float | None:
    """Bytes of one value in memory, or None when they vary."""
    if isinstance(kind, pa.BaseExtensionType):
        return fixed_bytes(kind.storage_type)
    if pa.types.is_fixed_size_list(kind):
        inner = fixed_bytes(kind.value_type)
        return None if inner is None else inner * kind.list_size
    if pa.types.is_struct(kind):
        parts = [fixed_bytes(kind.field(i).type) for i in range(kind.num_fields)]
        return None if None in parts else sum(p for p in parts if p is not None)
    if pa.types.is_null(kind):
        return 0
    if pa.types.is_dictionary(kind) or pa.types.is_nested(kind) or pa.types.is_run_end_encoded(kind):
        return None
    try:
        return float(kind.bit_width) / 8
    except ValueError:
        return None


def _leaf_count(kind: pa.DataType) -> int:
    if isinstance(kind, pa.BaseExtensionType):
        return _leaf_count(kind.storage_type)
    if pa.types.is_map(kind):
        return _leaf_count(kind.key_type) + _leaf_count(kind.item_type)
    if pa.types.is_struct(kind):
        return sum(_leaf_count(kind.field(i).type) for i in range(kind.num_fields))
    if pa.types.is_nested(kind) and hasattr(kind, "value_type"):
        return _leaf_count(kind.value_type)
    return 1


def _common_schema(storage: Storage, files: Sequence[FileInfo], footers: Sequence[pq.FileMetaData]) -> pa.Schema:
    first = _arrow_schema(storage, files[0], footers[0])
    names = first.names
    if len(set(names)) < len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise SchemaMismatchError(f"{storage.shown(files[0].path)} has columns {twice} twice: rename them")
    for file, footer in zip(files[1:], footers[1:], strict=True):
        if footer.schema.equals(footers[0].schema) and _stored_schema(footer) == _stored_schema(footers[0]):
            continue
        other = _arrow_schema(storage, file, footer)
        if other.equals(first):
            continue
        pairs = f"{storage.shown(files[0].path)} and {storage.shown(file.path)}"
        for name in sorted({*names, *other.names}):
            one, two = (str(s.field(name)) if name in s.names else "absent" for s in (first, other))
            if one != two:
                raise SchemaMismatchError(f"{pairs} differ in column {name!r}: {one} against {two}")
        raise SchemaMismatchError(f"{pairs} have their columns in a different order: {names} and {other.names}")
    return first


def _arrow_schema(storage: Storage, file: FileInfo, footer: pq.FileMetaData) -> pa.Schema:
    try:
        schema = footer.schema.to_arrow_schema()
    except pa.ArrowException as error:
        raise NotParquetError(f"{storage.shown(file.path)}: its schema has no Arrow form: {error}") from None
    return pa.schema([f.remove_metadata() for f in schema])


def _stored_schema(footer: pq.FileMetaData) -> bytes | None:
    return (footer.metadata or {}).get(b"ARROW:schema")


def _disk_share(footers: Sequence[pq.FileMetaData], leaves: dict[str, range]) -> dict[str, float]:
    holding = [f for f in footers if f.num_row_groups]
    sample = [f.row_group(0) for f in holding[:: max(len(holding) // _SAMPLED_FILES, 1)]]
    sizes = {
        name: sum(g.column(c).total_compressed_size for g in sample for c in columns)
        for name, columns in leaves.items()
    }
    total = max(sum(sizes.values()), 1)
    return {name: size / total for name, size in sizes.items()}


def _parsed_bytes(footer: pq.FileMetaData) -> int:
    return 500 * int(footer.num_row_groups) * int(footer.num_columns) + 1000


def _one_list(values: npt.NDArray[np.generic]) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), pa.array(values))

"""The block index: which row groups a dataset has, known from its footers alone."""

import hashlib
import os
import pickle
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq

from corgiarrow import index_cache
from corgiarrow.errors import (
    IndexFormatError,
    NotParquetError,
    OptionError,
    SchemaMismatchError,
    SourceChangedError,
)
from corgiarrow.footers import FooterCache, open_parquet, read_footer, read_footers
from corgiarrow.partitions import path_columns, path_values
from corgiarrow.schemas import (
    Column,
    FileLayout,
    SchemaRequest,
    check_names,
    fixed_bytes,
    leaf_types,
    resolve,
    unify,
    without_metadata,
)
from corgiarrow.storage import (
    AccessOptions,
    FileInfo,
    Storage,
    find_files,
    open_access,
    read_whole,
    without_secrets,
    write_atomic,
    write_whole,
)

DEFAULT_BLOCK_BYTES = 4 * 2**20
"""Bytes on disk towards which small row groups are merged; chosen by ``benchmarks/block_bytes.py``."""

MIN_BLOCKS = 1000
"""Row groups are only merged while at least so many blocks remain, since fewer blocks mix worse."""

_FORMAT = 2
_SAMPLED_FILES = 16
_DICTIONARY_INDEX_BYTES = 4
"""Plain text takes at least 4 bytes a value, its length; a number of a dictionary takes less than that."""

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
        The dataset's schema: all files' columns, unified, and those that their paths hold.
    files
        The files, sorted by path.
    layouts, file_layout
        What the files store where they differ, and the number of each file's layout, int64 [files].
    group_file, group_number
        File of each row group, and its number in that file, int64 [row groups].
    group_rows
        Rows of each row group, int64 [row groups].
    group_disk_bytes
        Bytes of each row group on disk, int64 [row groups]: its file's size shared out by uncompressed size.
    variable_bytes
        For columns and struct fields without a fixed width, by :func:`key_of`, bytes in each row group as far as the
        footers tell, int64 [row groups].
    disk_share
        Part of the data on disk that each column or struct field takes, by :func:`key_of`, from a sample of the files.
    dictionaries
        Text columns whose values repeat so much that they are held as dictionaries until they are delivered.
    left_out
        Files that cannot be read, each with the reason; only with ``on_error="skip"``.
    path_filter
        The filter by which files were left out for their paths, as :func:`filter_key` gives it, or "".
    kept_rows
        Rows of each row group that a filter keeps, int64 [row groups], by :func:`filter_key`: what was counted so far.
    """

    storage: Storage
    schema: pa.Schema
    files: tuple[FileInfo, ...] = field(repr=False)
    layouts: tuple[FileLayout, ...] = field(repr=False)
    file_layout: Int64s = field(repr=False)
    group_file: Int64s = field(repr=False)
    group_number: Int64s = field(repr=False)
    group_rows: Int64s = field(repr=False)
    group_disk_bytes: Int64s = field(repr=False)
    variable_bytes: dict[str, Int64s] = field(repr=False)
    disk_share: dict[str, float] = field(repr=False)
    dictionaries: tuple[str, ...] = field(repr=False, default=())
    left_out: tuple[tuple[str, str], ...] = field(repr=False, default=())
    path_filter: str = field(repr=False, default="")
    kept_rows: dict[str, Int64s] = field(repr=False, compare=False, default_factory=dict)
    footers: FooterCache = field(default_factory=FooterCache, repr=False, compare=False)

    @classmethod
    def build(
        cls,
        data: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *,
        schema: SchemaRequest | None = None,
        filter: pc.Expression | None = None,
        on_error: str = "raise",
        **access: Unpack[AccessOptions],
    ) -> "BlockIndex":
        """Read the footers of all files of `data`, in parallel.

        Parameters
        ----------
        data
            Path, URL, glob, folder, or a list of them.
        schema
            Types to give to columns, by name: what files store is cast to them where no value is lost.
        filter
            Leave out files that this expression excludes by their paths alone (``key=value`` folders), without opening
            them. The index can then be read with this filter only.
        on_error
            ``"raise"``, or ``"skip"`` to leave out files whose footer cannot be read.
        **access
            How to reach the files, see :class:`corgiarrow.storage.AccessOptions`.

        Raises
        ------
        NoFilesError, StorageError
            Nothing is there, or it cannot be reached.
        NotParquetError
            A file is not Parquet, or cut.
        SchemaMismatchError
            Two files disagree about a column, so that no type holds the values of both exactly.
        ColumnNotFoundError
            `schema` names a column that no file has.
        """
        check_on_error(on_error)
        storage, files = find_files(data, **access)
        in_paths = path_columns([f.path for f in files])
        if filter is not None and len(in_paths):
            files = _possible(storage, files, in_paths, filter)
        path_filter = "" if filter is None or not len(in_paths) else filter_key(filter)
        key = "" if not access.get("index_cache", True) else index_cache.key_of(
            storage, files, (_FORMAT, path_filter, on_error, "" if schema is None else _text_of(schema))
        )
        if key and (kept := index_cache.get(key, lambda path: cls._loaded(path, storage=storage))) is not None:
            return kept
        index = cls._built(storage, files, in_paths, schema, on_error, path_filter)
        if key:
            index_cache.put(key, index.save)
        return index

    @classmethod
    def _built(
        cls,
        storage: Storage,
        files: Sequence[FileInfo],
        in_paths: pa.Schema,
        schema: SchemaRequest | None,
        on_error: str,
        path_filter: str,
    ) -> "BlockIndex":
        found = list(read_footers(storage, files, on_error))
        left_out = tuple((f.path, str(e)) for f, e in zip(files, found, strict=True) if isinstance(e, NotParquetError))
        kept = [(f, x) for f, x in zip(files, found, strict=True) if not isinstance(x, NotParquetError)]
        if not kept:
            raise NotParquetError(left_out[0][1])
        files, footers = [f for f, _ in kept], [x for _, x in kept]
        layouts, file_layout = _layouts(storage, files, footers)
        firsts = [storage.shown(files[int(np.argmax(file_layout == n))].path) for n in range(len(layouts))]
        unified = unify(layouts, firsts, schema, in_paths)
        counts = np.array([f.num_row_groups for f in footers], dtype=np.int64)
        group_file = np.repeat(np.arange(len(files)), counts)
        group_number = np.arange(len(group_file)) - np.repeat(np.cumsum(counts) - counts, counts)
        groups = [f.row_group(g) for f in footers for g in range(f.num_row_groups)]
        raw_bytes = np.array([g.total_byte_size for g in groups], dtype=np.float64)
        file_raw = np.bincount(group_file, raw_bytes, minlength=len(files))
        sizes = np.array([f.size for f in files], dtype=np.int64)
        share = raw_bytes / np.maximum(file_raw[group_file], 1)
        group_rows = np.array([g.num_rows for g in groups], dtype=np.int64)
        spots = [_spots(unified, layout) for layout in layouts]
        sampled = _sample(footers)
        index = cls(
            storage=storage,
            schema=unified,
            files=tuple(files),
            layouts=tuple(layouts),
            file_layout=file_layout,
            group_file=group_file,
            group_number=group_number,
            group_rows=group_rows,
            group_disk_bytes=(sizes[group_file] * share).astype(np.int64),
            variable_bytes={
                key_of(path): np.array(
                    [
                        _decoded_bytes(widths, nested, group, spots[layout][path])
                        for group, layout in zip(groups, file_layout[group_file], strict=True)
                    ],
                    dtype=np.int64,
                )
                for path, kind in terminals(unified)
                if fixed_bytes(kind) is None
                for widths, nested in [([fixed_bytes(leaf) for leaf in leaf_types(kind)], pa.types.is_nested(kind))]
            },
            disk_share=_disk_share(unified, [(footers[f], spots[file_layout[f]]) for f in sampled]),
            dictionaries=_dictionaries(unified, [(footers[f], spots[file_layout[f]]) for f in sampled]),
            left_out=left_out,
            path_filter=path_filter,
        )
        index._check_paths(footers)
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

    def fingerprint_with(self, key: str, rows: Int64s) -> str:
        """Fingerprint of what a filter (by its key) keeps: `rows` of each row group, int64 [row groups]."""
        return hashlib.sha256(f"{self.fingerprint}{key}".encode() + rows.astype("<i8").tobytes()).hexdigest()[:16]

    def columns(self, names: Sequence[str] | None) -> list[Column]:
        """Return the columns of these names, or all.

        Raises
        ------
        ColumnNotFoundError
            One is not in the dataset.
        """
        return resolve(self.schema, names, self.storage.shown(""))

    @cached_property
    def in_paths(self) -> dict[str, pa.Array]:
        """Columns that the files' paths hold, by name: a value for each file, in the dataset's type."""
        return path_values([f.path for f in self.files], self.schema)

    def _check_paths(self, footers: Sequence[pq.FileMetaData]) -> None:
        """Compare what paths say with the files' own columns of the same names, as far as statistics tell."""
        for name, values in self.in_paths.items():
            for number, footer in enumerate(footers):
                leaves = self.layouts[self.file_layout[number]].leaves(name)
                for group in range(footer.num_row_groups if len(leaves) == 1 else 0):
                    statistics = footer.row_group(group).column(leaves[0]).statistics
                    if statistics is None or not statistics.has_min_max:
                        continue
                    value = values[number].as_py()
                    other = next((x for x in (statistics.min, statistics.max) if x != value), None)
                    if other is not None and type(other) is type(value):
                        shown = self.storage.shown(self.files[number].path)
                        raise SchemaMismatchError(
                            f"{shown}: the path says {name}={value}, but the file's own column {name!r} holds "
                            f"{other!r} in row group {group}: rename the folder or the column"
                        )

    def memory_bytes(self, columns: Sequence[Column]) -> Int64s:
        """Estimate the bytes of each row group in memory when `columns` are read, int64 [row groups]."""
        total = np.zeros(len(self.group_rows), dtype=np.float64)
        for column in columns:
            for path, kind in terminals_below(column):
                width = fixed_bytes(kind)
                total += self.variable_bytes[key_of(path)] if width is None else width * self.group_rows
                total += 0.125 * self.group_rows
        return np.ceil(total).astype(np.int64)

    def share_of(self, column: Column) -> float:
        """Part of the data on disk that a column takes, in [0, 1]."""
        return sum(self.disk_share[key_of(path)] for path, _ in terminals_below(column))

    def merge(self, columns: Sequence[Column], block_bytes: int, rows: Int64s) -> tuple[Int64s, Int64s]:
        """Cut the row groups into blocks: return first and one-past-last row group of each, int64 [blocks].

        Neighbours in one file are merged while a block takes at most about `block_bytes` on disk, counting only
        `columns`, and as long as :data:`MIN_BLOCKS` blocks remain. A block begins and ends with a row group that has
        some of `rows` (int64 [row groups]).
        """
        groups = np.flatnonzero(rows)
        files = self.group_file[groups]
        part = sum(self.share_of(c) for c in columns)
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
            if self.storage.is_local or not self.storage.fetcher.is_conditional(self.files[file]):
                self.check_unchanged(file)
            with self.unchanged(file):
                footer = read_footer(self.storage, self.files[file])
            self.footers.put(file, footer)
        return footer

    @contextmanager
    def unchanged(self, file: int) -> Iterator[None]:
        """Say of a file that is gone that it was there when it was indexed."""
        try:
            yield
        except FileNotFoundError:
            shown = self.storage.shown(self.files[file].path)
            raise SourceChangedError(f"{shown}: the file is gone since it was indexed") from None

    def check_unchanged(self, file: int) -> None:
        """Compare a file's size and etag or time of change with those that were indexed.

        Raises
        ------
        SourceChangedError
            They differ, or the file is gone.
        """
        with self.unchanged(file):
            found = self.storage.info(self.files[file])
        self._compare(file, found)

    async def ask_whether_unchanged(self, file: int) -> None:
        """Compare a remote file with the indexed one, as :meth:`check_unchanged`, in the requests' own thread."""
        with self.unchanged(file):
            found = await self.storage.ask_info(self.files[file])
        self._compare(file, found)

    def _compare(self, file: int, found: FileInfo) -> None:
        indexed = self.files[file]
        if found != indexed:
            raise SourceChangedError(
                f"{self.storage.shown(indexed.path)}: the file changed since it was indexed "
                f"(then {indexed.size} bytes, version {indexed.version}; now {found.size} bytes, version "
                f"{found.version}): build the index again"
            )

    def save(self, path: str | os.PathLike[str], **access: Unpack[AccessOptions]) -> None:
        """Save the index to one file (Arrow IPC), whole or not at all. No credential is saved.

        Parameters
        ----------
        path
            A local path, or a URL: beside the data with a name that begins with ``_``, which readers skip.
        **access
            How to reach the URL, see :class:`corgiarrow.storage.AccessOptions`.
        """
        table = pa.table(
            {
                "path": [[f.path for f in self.files]],
                "size": pa.array([[f.size for f in self.files]], pa.list_(pa.int64())),
                "version": [[f.version for f in self.files]],
                **{
                    name: _one_list(values)
                    for name, values in (
                        ("file_layout", self.file_layout),
                        ("group_file", self.group_file),
                        ("group_number", self.group_number),
                        ("group_rows", self.group_rows),
                        ("group_disk_bytes", self.group_disk_bytes),
                        *((f"bytes:{name}", values) for name, values in self.variable_bytes.items()),
                        *((f"kept:{key}", values) for key, values in self.kept_rows.items()),
                    )
                },
                "disk_share": _one_map(self.disk_share, pa.float64()),
                "dictionaries": pa.array([self.dictionaries], pa.list_(pa.string())),
                "left_out": _one_map(dict(self.left_out), pa.string()),
                "path_filter": [self.path_filter],
                "layout_schemas": pa.array(
                    [[x.schema.serialize().to_pybytes() for x in self.layouts]], pa.list_(pa.binary())
                ),
                "layout_paths": pa.array([[x.paths for x in self.layouts]], pa.list_(pa.list_(pa.string()))),
                "schema": pa.array([self.schema.serialize().to_pybytes()], pa.binary()),
                "url": [without_secrets(self.storage.url)],
                "root": [without_secrets(self.storage.root)],
            }
        ).replace_schema_metadata({"corgiarrow": f"block index {_FORMAT}"})

        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        content = sink.getvalue().to_pybytes()
        if _is_url(path):
            write_whole(str(path), content, access)
        else:
            write_atomic(path, lambda beside: beside.write_bytes(content))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        **access: Unpack[AccessOptions],
    ) -> "BlockIndex":
        """Load a saved index. Each file is checked against it when it is first read.

        Parameters
        ----------
        path
            The file, a local path or a URL.
        **access
            How to reach the indexed files, and that URL, see :class:`corgiarrow.storage.AccessOptions`.

        Raises
        ------
        IndexFormatError
            `path` is not a saved index of this version.
        """
        return cls._loaded(path, access)

    @classmethod
    def _loaded(
        cls, path: str | os.PathLike[str], access: AccessOptions | None = None, storage: Storage | None = None
    ) -> "BlockIndex":
        """Load a saved index of files on a storage, or where the index says, reached by some keywords."""
        try:
            content = read_whole(str(path), access or {}) if _is_url(path) else Path(path).read_bytes()
            table = pa.ipc.open_file(content).read_all()
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

        def named(prefix: str) -> dict[str, Int64s]:
            return {n.removeprefix(prefix): numbers(n) for n in row.schema.names if n.startswith(prefix)}

        schema = pa.ipc.read_schema(pa.py_buffer(row.column("schema")[0].as_py()))
        files = zip(*(row.column(name)[0].as_py() for name in ("path", "size", "version")), strict=True)
        layouts = zip(*(row.column(name)[0].as_py() for name in ("layout_schemas", "layout_paths")), strict=True)
        if storage is None:
            reached, cache = open_access(row["url"][0].as_py(), access or {})
            storage = Storage(reached, row["root"][0].as_py(), cache)
        return cls(
            storage=storage,
            schema=schema,
            files=tuple(FileInfo(*file) for file in files),
            layouts=tuple(FileLayout(pa.ipc.read_schema(pa.py_buffer(x)), tuple(paths)) for x, paths in layouts),
            file_layout=numbers("file_layout"),
            group_file=numbers("group_file"),
            group_number=numbers("group_number"),
            group_rows=numbers("group_rows"),
            group_disk_bytes=numbers("group_disk_bytes"),
            variable_bytes=named("bytes:"),
            disk_share=dict(row.column("disk_share")[0].as_py()),
            dictionaries=tuple(row.column("dictionaries")[0].as_py()),
            left_out=tuple(row.column("left_out")[0].as_py()),
            path_filter=row.column("path_filter")[0].as_py(),
            kept_rows=named("kept:"),
        )


def filter_key(filter: pc.Expression) -> str:
    """Return 16 hex digits that tell a filter from others."""
    return hashlib.sha256(pickle.dumps(filter)).hexdigest()[:16]


def _is_url(path: str | os.PathLike[str]) -> bool:
    return isinstance(path, str) and "://" in path


def _text_of(request: SchemaRequest) -> str:
    fields = request if isinstance(request, pa.Schema) else [pa.field(*item) for item in request.items()]
    return "\n".join(str(field) for field in fields)


def check_on_error(on_error: str) -> str:
    """Return `on_error`; raise an OptionError unless it is one of the two."""
    if on_error not in ("raise", "skip"):
        raise OptionError(f"on_error={on_error!r} must be 'raise' or 'skip'")
    return on_error


def key_of(path: tuple[str, ...]) -> str:
    """Text that stands for the path of a column or struct field; a name may hold a dot."""
    return "\x1f".join(path)


def terminals(schema: pa.Schema) -> list[tuple[tuple[str, ...], pa.DataType]]:
    """Columns and, instead of structs, their fields at any depth: path and type of each."""
    return [x for field in schema for x in terminals_below(Column(field, (field.name,)))]


def terminals_below(column: Column) -> list[tuple[tuple[str, ...], pa.DataType]]:
    """Paths and types of what can be read by itself below a column."""
    kind = column.field.type
    if not pa.types.is_struct(kind) or isinstance(kind, pa.BaseExtensionType):
        return [(column.path, kind)]
    return [x for field in kind.fields for x in terminals_below(Column(field, (*column.path, field.name)))]


def _possible(
    storage: Storage, files: Sequence[FileInfo], in_paths: pa.Schema, filter: pc.Expression
) -> list[FileInfo]:
    """Leave out files that a filter excludes by their paths; none of them is opened, but for one to learn its types."""
    schema = in_paths
    try:
        schema.empty_table().filter(filter)
    except (pa.ArrowException, NotImplementedError):
        layout = _layout(storage, files[0], read_footer(storage, files[0]))
        known = [f for f in layout.schema if f.name not in in_paths.names]
        schema = pa.schema([*known, *in_paths])
        try:
            schema.empty_table().filter(filter)
        except (pa.ArrowException, NotImplementedError):
            return list(files)  # Whether it fits at all is checked against the whole dataset's schema.
    values = path_values([f.path for f in files], schema)
    number = "corgiarrow file number"
    nowhere = pa.fs.LocalFileSystem()
    # Only here: it brings pandas, where that is installed.
    import pyarrow.dataset as ds

    form = ds.ParquetFileFormat()
    fragments = []
    for place in range(len(files)):
        known_here = pc.scalar(True)
        for name, column in values.items():
            here = pc.field(name)
            known_here &= here.is_null() if not column[place].is_valid else here == column[place]
        fragments.append(form.make_fragment(f"{number}/{place}", nowhere, partition_expression=known_here))
    possible = ds.FileSystemDataset(fragments, schema, form, nowhere).get_fragments(filter)
    return [files[int(f.path.rpartition("/")[2])] for f in possible] or [files[0]]


def _layouts(
    storage: Storage, files: Sequence[FileInfo], footers: Sequence[pq.FileMetaData]
) -> tuple[list[FileLayout], Int64s]:
    """Return the different layouts, and the number of each file's."""
    layouts: list[FileLayout] = []
    examples: list[pq.FileMetaData] = []
    numbers = np.zeros(len(files), dtype=np.int64)
    for place, (file, footer) in enumerate(zip(files, footers, strict=True)):
        for number, example in enumerate(examples):
            if footer.schema.equals(example.schema) and _stored_schema(footer) == _stored_schema(example):
                numbers[place] = number
                break
        else:
            layout = _layout(storage, file, footer)
            same = next((n for n, x in enumerate(layouts) if x == layout), len(layouts))
            numbers[place] = same
            if same == len(layouts):
                check_names(layout, storage.shown(file.path))
                layouts.append(layout)
                examples.append(footer)
    return layouts, numbers


def _layout(storage: Storage, file: FileInfo, footer: pq.FileMetaData) -> FileLayout:
    try:
        schema = without_metadata(open_parquet(pa.BufferReader(b""), footer).schema_arrow)
        paths = tuple(footer.schema.column(n).path for n in range(footer.num_columns))
        return FileLayout(schema, paths)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise NotParquetError(f"{storage.shown(file.path)}: its schema has no Arrow form: {error}") from None


def _stored_schema(footer: pq.FileMetaData) -> bytes | None:
    return (footer.metadata or {}).get(b"ARROW:schema")


Spots = dict[tuple[str, ...], tuple[int, ...]]
"""For each column or struct field, the numbers of its leaf columns in a file."""


def _spots(schema: pa.Schema, layout: FileLayout) -> Spots:
    return {path: leaves_of(layout, path) for path, _ in terminals(schema)}


def leaves_of(layout: FileLayout, path: tuple[str, ...]) -> tuple[int, ...]:
    """Numbers of the leaf columns of a column or struct field in a file; empty when the file does not have it."""
    prefix = ".".join(path)
    return tuple(
        n for n in layout.leaves(path[0]) if layout.paths[n] == prefix or layout.paths[n].startswith(f"{prefix}.")
    )


def _decoded_bytes(
    widths: Sequence[float | None], nested: bool, group: pq.RowGroupMetaData, leaves: Sequence[int]
) -> float:
    """Bytes of a column without a fixed width in memory: exact for numbers, as stored for text."""
    if not leaves:
        return 4.0 * float(group.num_rows)
    total = 0.0
    for place, leaf in enumerate(leaves):
        chunk = group.column(leaf)
        width = widths[place] if len(widths) == len(leaves) else None
        total += chunk.total_uncompressed_size if width is None else width * chunk.num_values
        # An offset a value at each level; text inside of lists has one more.
        total += 4.0 * (group.num_rows + (chunk.num_values if nested and width is None else 0))
    return total


def _sample(footers: Sequence[pq.FileMetaData]) -> list[int]:
    holding = [n for n, f in enumerate(footers) if f.num_row_groups]
    return holding[:: max(len(holding) // _SAMPLED_FILES, 1)]


def _disk_share(schema: pa.Schema, sample: Sequence[tuple[pq.FileMetaData, Spots]]) -> dict[str, float]:
    sizes = {
        key_of(path): sum(
            footer.row_group(0).column(leaf).total_compressed_size for footer, spots in sample for leaf in spots[path]
        )
        for path, _ in terminals(schema)
    }
    total = max(sum(sizes.values()), 1)
    return {name: size / total for name, size in sizes.items()}


def _dictionaries(schema: pa.Schema, sample: Sequence[tuple[pq.FileMetaData, Spots]]) -> tuple[str, ...]:
    """Text columns whose sampled chunks hold a dictionary, and beside it hardly more than a number a row."""
    found = []
    for column in schema:
        kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not (pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or kind in (pa.string(), pa.binary())):
            continue
        spots = [(footer, spots[(column.name,)]) for footer, spots in sample if spots.get((column.name,))]
        if spots and all(_repeats(footer.row_group(0).column(leaves[0])) for footer, leaves in spots):
            found.append(column.name)
    return tuple(found)


def _repeats(chunk: pq.ColumnChunkMetaData) -> bool:
    if not chunk.has_dictionary_page or not chunk.dictionary_page_offset or not chunk.num_values:
        return False
    indices = chunk.total_compressed_size - (chunk.data_page_offset - chunk.dictionary_page_offset)
    part = indices / max(chunk.total_compressed_size, 1)
    return bool(chunk.total_uncompressed_size * part < _DICTIONARY_INDEX_BYTES * chunk.num_values + 64)


def _one_map(values: dict[str, Any], kind: pa.DataType) -> pa.MapArray:
    return pa.array([list(values.items())], pa.map_(pa.string(), kind))


def _one_list(values: npt.NDArray[np.generic]) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), pa.array(values))

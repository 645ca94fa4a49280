"""Facts about a dataset that decide how well and how fast it can be shuffled, from footers alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from corgiarrow.index import DEFAULT_BLOCK_BYTES, BlockIndex, leaves_of
from corgiarrow.schemas import Column, fixed_bytes
from corgiarrow.sources.parquet import ParquetSource
from corgiarrow.units import show_bytes

_SAMPLED_GROUPS = 64
"""Row groups whose column chunks are looked at: reading all would take minutes for a large dataset."""

_LARGE_GROUP_BYTES = 256_000_000
_FEW_GROUPS = 100
_GOOD_GROUPS = 200
_TINY_GROUP_BYTES = 64 * 1024
_MANY_GROUPS = 10_000
_SMALL_DATA_BYTES = 256 * 2**20
_JUDGED_VALUES = 10_000
"""Fewer values say little about a dictionary."""
_USELESS_DICTIONARY = 0.9
"""A dictionary that leaves more than this part of the plain size only costs time."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Least, median and greatest of some sizes."""

    min: int
    median: int
    max: int

    @classmethod
    def of(cls, sizes: npt.NDArray[np.int64]) -> "Sizes":
        """Summarise int64 [sizes]; zeros when there are none."""
        return cls(int(sizes.min()), int(np.median(sizes)), int(sizes.max())) if len(sizes) else cls(0, 0, 0)


@dataclass(frozen=True, slots=True)
class ColumnFacts:
    """One column.

    Attributes
    ----------
    name, type, nullable
        As the dataset's schema has them.
    encodings, compression
        Found in the sampled row groups, without the encodings of levels; of all leaves of a nested column.
    disk_share
        Part of the data on disk, in [0, 1].
    """

    name: str
    type: str
    nullable: bool
    encodings: tuple[str, ...]
    compression: tuple[str, ...]
    disk_share: float


@dataclass(frozen=True, slots=True)
class Inspection:
    """A dataset.

    Attributes
    ----------
    files, file_bytes, rows, row_groups
        Counts, and bytes on disk.
    memory_bytes
        Bytes of all rows in memory, estimated.
    row_group_rows, row_group_bytes, row_group_memory_bytes
        Sizes of the row groups: rows, bytes on disk, bytes in memory (estimated); empty ones left out.
    blocks, block_rows
        Row groups after merging small neighbours.
    sampled_row_groups
        Row groups whose encodings were looked at.
    columns
        The columns that were asked for.
    path_columns
        Columns that the files' paths hold (``key=value``).
    drift
        Columns that files store in different types, or not all files store, each with what it is read as.
    left_out
        Files that cannot be read, each with the reason.
    warnings
        What stands in the way of shuffling well or fast, each with a remedy.
    """

    files: int
    file_bytes: int
    rows: int
    row_groups: int
    memory_bytes: int
    row_group_rows: Sizes
    row_group_bytes: Sizes
    row_group_memory_bytes: Sizes
    blocks: int
    block_rows: Sizes
    sampled_row_groups: int
    columns: tuple[ColumnFacts, ...]
    path_columns: tuple[str, ...]
    drift: tuple[str, ...]
    left_out: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(slots=True)
class _Chunks:
    """What the sampled column chunks of one column say."""

    encodings: set[str]
    compression: set[str]
    dictionary_bytes: int = 0
    """Uncompressed bytes of its chunks with a dictionary."""
    dictionary_values: int = 0
    """Values in those chunks."""


def inspect(
    index: BlockIndex, *, columns: Sequence[str] | None = None, block_bytes: int | str = DEFAULT_BLOCK_BYTES
) -> Inspection:
    """Collect the facts.

    Parameters
    ----------
    index
        The dataset.
    columns, block_bytes
        As for :class:`corgiarrow.Reader`.

    Raises
    ------
    ColumnNotFoundError
        A column is not in the data.
    OptionError
        `block_bytes` is no number of bytes.
    """
    source = ParquetSource(index, columns, block_bytes)
    filled = np.flatnonzero(index.group_rows)
    memory = index.memory_bytes(source.columns)
    sample = filled[:: max(len(filled) // _SAMPLED_GROUPS, 1)]
    chunks = _look_at_chunks(index, source.columns, sample)
    return Inspection(
        files=len(index.files),
        file_bytes=sum(f.size for f in index.files),
        rows=index.num_rows,
        row_groups=len(filled),
        memory_bytes=int(memory.sum()),
        row_group_rows=Sizes.of(index.group_rows[filled]),
        row_group_bytes=Sizes.of(index.group_disk_bytes[filled]),
        row_group_memory_bytes=Sizes.of(memory[filled]),
        blocks=len(source.block_rows),
        block_rows=Sizes.of(source.block_rows),
        sampled_row_groups=len(sample),
        columns=tuple(
            ColumnFacts(
                name=column.name,
                type=str(column.type),
                nullable=column.nullable,
                encodings=tuple(sorted(chunks[column.name].encodings)),
                compression=tuple(sorted(chunks[column.name].compression)),
                disk_share=index.share_of(asked),
            )
            for asked, column in zip(source.columns, source.schema, strict=True)
        ),
        path_columns=tuple(index.in_paths),
        drift=tuple(_drift(index, source.columns)),
        left_out=tuple(reason for _, reason in index.left_out),
        warnings=(
            *_size_warnings(index, filled, memory[filled]),
            *_column_warnings(source.schema, chunks),
            *_name_warnings(index),
            *_old_time_warnings(index, source.columns, sample),
        ),
    )


def _look_at_chunks(
    index: BlockIndex, columns: Sequence[Column], groups: npt.NDArray[np.intp]
) -> dict[str, _Chunks]:
    found = {column.field.name: _Chunks(set(), set()) for column in columns}
    for group in groups:
        file = int(index.group_file[group])
        row_group = index.footer(file).row_group(int(index.group_number[group]))
        for column in columns:
            for leaf in leaves_of(index.layouts[index.file_layout[file]], column.path):
                _note(found[column.field.name], row_group.column(leaf))
    return found


def _note(facts: _Chunks, chunk: pq.ColumnChunkMetaData) -> None:
    encodings = set(chunk.encodings)
    dictionary = {e for e in encodings if "DICTIONARY" in e}
    # Levels are RLE everywhere, and a dictionary's own page is PLAIN: neither says how values are stored.
    facts.encodings |= dictionary or encodings - {"RLE", "BIT_PACKED"} or encodings
    facts.compression.add(chunk.compression)
    if dictionary:
        facts.dictionary_bytes += chunk.total_uncompressed_size
        facts.dictionary_values += chunk.num_values


def _size_warnings(
    index: BlockIndex, filled: npt.NDArray[np.intp], memory: npt.NDArray[np.int64]
) -> Iterator[str]:
    if not len(filled):
        yield "no rows: every row group is empty"
        return
    rows, largest = index.num_rows, int(memory.max())
    if largest > _LARGE_GROUP_BYTES:
        bound = _LARGE_GROUP_BYTES // 1_000_000
        count = int((memory > _LARGE_GROUP_BYTES).sum())
        # Where the largest row group becomes a sixteenth of the bound.
        better = max(int(index.group_rows[filled][memory.argmax()] * _LARGE_GROUP_BYTES / 16 / largest), 1)
        yield (
            f"row groups of {largest / 1e6:,.0f} MB in memory ({count:,} above {bound} MB): where they do not fit into "
            f"memory= they are read in pieces, a few row groups at a time, which mixes less than small row groups do; "
            f"rewrite the data with row_group_size={better:,}"
        )
    if len(filled) < _FEW_GROUPS and rows > _FEW_GROUPS:
        small = int(memory.sum()) < _SMALL_DATA_BYTES
        yield (
            f"only {len(filled):,} row group{'s' * (len(filled) > 1)}: a buffer of 10 % merges few blocks "
            f"and mixes little; rewrite the data with row_group_size={-(-rows // _GOOD_GROUPS):,} or less"
            + (f", or take shuffle='epoch', which holds all {show_bytes(memory.sum())}" if small else "")
        )
    median = int(np.median(index.group_disk_bytes[filled]))
    if len(filled) >= _MANY_GROUPS and median < _TINY_GROUP_BYTES:
        better = max(int(np.median(index.group_rows[filled])) * 2**20 // max(median, 1), 1)
        yield (
            f"{len(filled):,} row groups of about {show_bytes(median)} on disk: footers and reads cost more "
            f"than the data; rewrite it with row_group_size={better:,}"
        )


def _column_warnings(schema: pa.Schema, chunks: dict[str, _Chunks]) -> Iterator[str]:
    useless = [c.name for c in schema if _wastes_dictionary(c.type, chunks[c.name])]
    if useless:
        yield (
            f"{_named(useless)}: dictionary encoding of floats that hardly repeat makes files larger and "
            "reading slower; write them without (use_dictionary=False)"
        )
    bytes_lists = [c.name for c in schema if _is_bytes_list(c.type)]
    if bytes_lists:
        yield (
            f"{_named(bytes_lists)}: fixed-size lists of bytes are stored as lists of 4-byte numbers, slow "
            "to decode; store the same bytes as binary, many times as fast"
        )


def _drift(index: BlockIndex, columns: Sequence[Column]) -> Iterator[str]:
    """Say for each column that files store differently what they store, and as what it is read."""
    for column in columns:
        name = column.path[0]
        if len(column.path) > 1:
            continue
        stored = [x.schema.field(name).type if name in x.schema.names else None for x in index.layouts]
        counts = np.bincount(index.file_layout, minlength=len(index.layouts))
        files: dict[str, int] = {}
        for kind, count in zip(stored, counts, strict=True):
            known = "absent" if kind is None else str(kind)
            files[known] = files.get(known, 0) + int(count)
        if len(files) > 1 and not (set(files) == {"absent"} or name in index.in_paths):
            parts = ", ".join(f"{kind} in {count:,} files" for kind, count in files.items())
            yield f"{name}: {parts}; read as {column.field.type}"


def _name_warnings(index: BlockIndex) -> Iterator[str]:
    names = index.schema.names
    lower = [n.lower() for n in names]
    alike = [n for n, low in zip(names, lower, strict=True) if lower.count(low) > 1]
    if alike:
        yield f"{_named(alike)} differ only in case, and are read as different columns: rename them if they are one"
    rows = [n for n in names if n.startswith("__index_level_")]
    if rows:
        yield (
            f"{_named(rows)}: pandas' row index, read as a column like any other; leave it out by columns=, or "
            "write the data with index=False"
        )


def _old_time_warnings(
    index: BlockIndex, columns: Sequence[Column], groups: npt.NDArray[np.intp]
) -> Iterator[str]:
    old = set()
    for group in groups[:1]:
        file = int(index.group_file[group])
        row_group = index.footer(file).row_group(int(index.group_number[group]))
        for column in columns:
            leaves = leaves_of(index.layouts[index.file_layout[file]], column.path)
            if any(row_group.column(leaf).physical_type == "INT96" for leaf in leaves):
                old.add(column.field.name)
    if old:
        yield (
            f"{_named(sorted(old))}: old INT96 timestamps, read in microseconds; what is finer is lost. Write the data "
            "with int64 timestamps"
        )


def _wastes_dictionary(kind: pa.DataType, facts: _Chunks) -> bool:
    while pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    width = fixed_bytes(kind)
    if not pa.types.is_floating(kind) or not width or facts.dictionary_values < _JUDGED_VALUES:
        return False
    return facts.dictionary_bytes > _USELESS_DICTIONARY * width * facts.dictionary_values


def _is_bytes_list(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return bool(pa.types.is_fixed_size_list(kind) and kind.value_type in (pa.uint8(), pa.int8()))


def _named(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")
    return f"column{'s' * (len(names) > 1)} {shown}"

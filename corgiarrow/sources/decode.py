"""From the column chunks of a file to columns of the dataset's types."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from corgiarrow.errors import ReadError, SchemaMismatchError
from corgiarrow.index import BlockIndex, Int64s, leaves_of
from corgiarrow.schemas import Column, leaf_types
from corgiarrow.storage import redact


class Decoder:
    """Reads columns of a dataset's files, and brings them to one type.

    Parameters
    ----------
    index
        The dataset.
    columns
        What to read.
    """

    def __init__(self, index: BlockIndex, columns: Sequence[Column]):
        self.index = index
        self.columns = list(columns)
        self.held_types = [_held_type(index, column) for column in columns]
        """Types in which columns are held: text that repeats as a dictionary."""
        self.dictionaries = [
            ".".join(c.path) for c, t in zip(columns, self.held_types, strict=True) if pa.types.is_dictionary(t)
        ]
        self._leaves = [[leaves_of(layout, column.path) for column in columns] for layout in index.layouts]
        self._text = [any(map(_is_text, leaf_types(column.field.type))) for column in columns]

    def stored(self, file: int) -> list[int]:
        """Numbers of the columns that a file stores."""
        leaves = self._leaves[self.index.file_layout[file]]
        return [number for number in range(len(self.columns)) if leaves[number]]

    def leaf_numbers(self, file: int) -> list[int]:
        """Numbers of the leaf columns that are read of a file."""
        return [leaf for leaves in self._leaves[self.index.file_layout[file]] for leaf in leaves]

    def chunk_ranges(
        self, file: int, footer: pq.FileMetaData, row_groups: Sequence[int], columns: Sequence[int] | None = None
    ) -> list[tuple[int, int]]:
        """Byte ranges of the column chunks, of all columns or of some."""
        leaves = self._leaves[self.index.file_layout[file]]
        ranges = []
        for number in row_groups:
            group = footer.row_group(number)
            for column in range(len(self.columns)) if columns is None else columns:
                for leaf in leaves[column]:
                    chunk = group.column(leaf)
                    start = chunk.data_page_offset
                    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                        start = min(start, chunk.dictionary_page_offset)
                    ranges.append((start, start + chunk.total_compressed_size))
        return ranges

    def names(self, columns: Sequence[int]) -> list[str]:
        """Dotted paths of columns, as pyarrow takes them."""
        return [".".join(self.columns[c].path) for c in columns]

    def fit(self, file: int, number: int, table: pa.Table | pa.RecordBatch | None, rows: int) -> pa.ChunkedArray:
        """Return column number `number` in the type in which it is held.

        Parameters
        ----------
        file
            Number of the file.
        table
            What was read of the file, the column in it; None when the file does not store it.
        rows
            Rows to fill where it does not.

        Raises
        ------
        ReadError, SchemaMismatchError
            Values are no text, do not fit the type, or differ from what the file's path says.
        """
        column, kind = self.columns[number], self.held_types[number]
        in_path = self.index.in_paths.get(column.path[0]) if len(column.path) == 1 else None
        if table is None:
            return pa.chunked_array([_constant(None if in_path is None else in_path[file], rows, kind)], kind)
        found = table.column(column.path[0])
        if isinstance(found, pa.Array):
            found = pa.chunked_array([found])
        if self._text[number]:
            for chunk in found.chunks:
                chunk.validate(full=True)
        for name in column.path[1:]:
            found = pc.struct_field(found, name)
        fitted = _cast(found, kind)
        if in_path is not None and not _all_equal(fitted, in_path[file]):
            raise SchemaMismatchError(
                f"{self.index.storage.shown(self.index.files[file].path)}: the path says {column.field.name}="
                f"{in_path[file]}, but the file's own column of that name holds other values: rename one of them"
            )
        return fitted

    def read(
        self, reader: pq.ParquetFile, file: int, row_groups: Sequence[int], columns: Sequence[int]
    ) -> list[pa.ChunkedArray]:
        """Read whole row groups of some columns.

        Raises
        ------
        ReadError
            A column cannot be read; the text names it.
        """
        groups = list(row_groups)
        rows = sum(reader.metadata.row_group(g).num_rows for g in groups)
        stored = set(self.stored(file))
        held = [c for c in columns if c in stored]

        def read(wanted: Sequence[int]) -> pa.Table | None:
            if not wanted:
                return None
            return reader.read_row_groups(groups, columns=self.names(wanted), use_threads=False)

        try:
            table = read(held)
            return [self.fit(file, c, table if c in stored else None, rows) for c in columns]
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            if isinstance(error, ReadError | SchemaMismatchError):
                raise
            raise self.blame(held, lambda c: self.fit(file, c, read([c]), rows), error) from None

    def blame(self, columns: Sequence[int], read: Callable[[int], object], error: Exception) -> ReadError:
        """Find the column that cannot be read, by reading each alone; return the error to raise."""
        for number in columns:
            try:
                read(number)
            except (pa.ArrowException, OSError) as found:
                return ReadError(f"column {self.columns[number].field.name!r}: {redact(str(found))}")
        return ReadError(redact(str(error)))


def _held_type(index: BlockIndex, column: Column) -> pa.DataType:
    kind = column.field.type
    if column.field.name in index.dictionaries and len(column.path) == 1 and not pa.types.is_dictionary(kind):
        return pa.dictionary(pa.int32(), kind)
    return kind


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        kind in (pa.string(), pa.large_string())
        or (pa.types.is_dictionary(kind)
        and kind.value_type in (pa.string(), pa.large_string()))
    )


def _constant(value: pa.Scalar | None, rows: int, kind: pa.DataType) -> pa.Array:
    if value is None or not value.is_valid:
        return pa.nulls(rows, kind)
    if pa.types.is_dictionary(kind):
        values = pa.array([value.as_py()], value.type).cast(kind.value_type)
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, dtype=np.int32)), values, ordered=kind.ordered)
    return pa.repeat(value, rows)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type.equals(kind):
        return column
    return pa.chunked_array([_cast_chunk(chunk, kind) for chunk in column.chunks], kind)


def _cast_chunk(chunk: pa.Array, kind: pa.DataType) -> pa.Array:
    if isinstance(chunk, pa.RunEndEncodedArray):
        chunk = pc.run_end_decode(chunk)
    if isinstance(kind, pa.DictionaryType):
        if not isinstance(chunk, pa.DictionaryArray):
            chunk = _cast_chunk(chunk, kind.value_type).dictionary_encode()
        values, indices = chunk.dictionary, chunk.indices.cast(pa.int32())
        return pa.DictionaryArray.from_arrays(indices, _cast_chunk(values, kind.value_type), ordered=kind.ordered)
    if isinstance(chunk, pa.DictionaryArray):
        chunk = chunk.dictionary_decode()
    return chunk if chunk.type.equals(kind) else chunk.cast(kind)


def _all_equal(column: pa.ChunkedArray, value: pa.Scalar) -> bool:
    if not value.is_valid:
        return bool(column.null_count == len(column))
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return bool(column.null_count == 0 and pc.all(pc.equal(column, value), min_count=0).as_py())


def rows_of(arrays: Sequence[pa.ChunkedArray], indices: Int64s | None) -> list[pa.ChunkedArray]:
    """Take rows of columns; all of them with None."""
    if indices is None:
        return list(arrays)
    # By chunk, so that nothing is joined whose bytes might not fit into one array.
    return [_rows_by_chunk(column, indices) for column in arrays]


def _rows_by_chunk(column: pa.ChunkedArray, indices: Int64s) -> pa.ChunkedArray:
    found, first = [], 0
    for chunk in column.chunks:
        begin, end = np.searchsorted(indices, [first, first + len(chunk)])
        if end > begin:
            found.append(chunk.take(pa.array(indices[begin:end] - first)))
        first += len(chunk)
    return pa.chunked_array(found, column.type)

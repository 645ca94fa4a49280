"""From the column chunks of a file to columns of the dataset's types."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from corgiarrow.errors import ReadError, SchemaMismatchError
from corgiarrow.index import BlockIndex, Int64s, leaves_of
from corgiarrow.schemas import Column, fixed_bytes, leaf_types
from corgiarrow.sources.ranges import Chunk
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
        self._leaves = [[leaves_of(layout, column.path) for column in columns] for layout in index.layouts]
        self._stored = [[number for number, found in enumerate(leaves) if found] for leaves in self._leaves]
        self.decode_factors = [_decode_factor(column.field.type) for column in columns]
        """What decoding each column holds beside its result, in units of the result."""
        self._as_stored = [
            len(column.path) == 1 and not _has_dictionary(kind) and not any(map(_is_text, leaf_types(kind)))
            for column, kind in zip(columns, self.held_types, strict=True)
        ]
        """Whether a column needs no look when it has the right type already."""
        self._text = [any(map(_is_text, leaf_types(column.field.type))) for column in columns]

    def stored(self, file: int) -> list[int]:
        """Numbers of the columns that a file stores."""
        return self._stored[self.index.file_layout[file]]

    def dictionaries(self, file: int, columns: Sequence[int] | None = None) -> list[str]:
        """Dotted paths of the columns, of all or of some, that are to be read of a file as dictionaries."""
        stored = set(self.stored(file)) & set(range(len(self.columns)) if columns is None else columns)
        return self.names([c for c in sorted(stored) if pa.types.is_dictionary(self.held_types[c])])

    def leaf_numbers(self, file: int, *, in_lists: bool = False) -> list[int]:
        """Numbers of the leaf columns that are read of a file, all or those of nested columns."""
        chosen = zip(self.columns, self._leaves[self.index.file_layout[file]], strict=True)
        return [n for c, leaves in chosen for n in leaves if not in_lists or pa.types.is_nested(c.field.type)]

    def chunks(
        self, file: int, footer: pq.FileMetaData, row_groups: Sequence[int], columns: Sequence[int] | None = None
    ) -> list[Chunk]:
        """Column chunks of row groups, of all columns or of some."""
        leaves = self._leaves[self.index.file_layout[file]]
        found = []
        first_row = 0
        for number in row_groups:
            group = footer.row_group(number)
            for column in range(len(self.columns)) if columns is None else columns:
                for leaf in leaves[column]:
                    chunk = group.column(leaf)
                    data_start = start = chunk.data_page_offset
                    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                        start = min(start, chunk.dictionary_page_offset)
                    stop = start + chunk.total_compressed_size
                    found.append(Chunk(start, stop, data_start, first_row, group.num_rows))
            first_row += group.num_rows
        return found

    def chunk_ranges(
        self, file: int, footer: pq.FileMetaData, row_groups: Sequence[int], columns: Sequence[int] | None = None
    ) -> list[tuple[int, int]]:
        """Byte ranges of the column chunks, of all columns or of some."""
        return [(chunk.start, chunk.stop) for chunk in self.chunks(file, footer, row_groups, columns)]

    def names(self, columns: Sequence[int]) -> list[str]:
        """Dotted paths of columns, as pyarrow takes them."""
        return [".".join(self.columns[c].path) for c in columns]

    def fit(self, file: int, number: int, table: pa.Table | None, rows: int) -> pa.ChunkedArray:
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
        if self._as_stored[number] and in_path is None and found.type.equals(kind):
            return found
        if _has_dictionary(found.type):
            for chunk in found.chunks:
                _check_indices(chunk)
        for name in column.path[1:]:
            found = pc.struct_field(found, name)
        fitted = _cast(found, kind)
        if self._text[number]:
            for chunk in fitted.chunks:
                _check_text(chunk)
        if in_path is not None and not _all_equal(fitted, in_path[file]):
            raise SchemaMismatchError(
                f"{self.index.storage.shown(self.index.files[file].path)}: the path says {column.field.name}="
                f"{in_path[file]}, but the file's own column of that name holds other values: rename one of them"
            )
        return fitted

    def _fits(self, file: int, columns: Sequence[int], table: pa.Table) -> bool:
        """Whether a table holds just these columns, each as :meth:`fit` would return it."""
        paths = [self.columns[c].path[0] for c in columns]
        return (
            all(self._as_stored[c] for c in columns)
            and self.index.in_paths.keys().isdisjoint(paths)
            and table.schema.names == paths
            and table.schema.types == [self.held_types[c] for c in columns]
        )

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
            if table is not None and len(held) == len(columns) and self._fits(file, held, table):
                return table.columns  # type: ignore[no-any-return]
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


def _decode_factor(kind: pa.DataType) -> float:
    """What decoding a type holds beside its result, in units of the result: measured over types and writers.

    Numbers grow in a buffer of at least 4 bytes each that doubles; values of lists carry two levels of 2 bytes.
    """
    factor = 2.0
    for leaf in leaf_types(kind):
        width = fixed_bytes(leaf)
        if width:
            levels = 4 if pa.types.is_nested(kind) else 0
            factor = max(factor, (2.5 * max(width, 4.0) + levels) / max(width, 1.0))
    return factor


def _held_type(index: BlockIndex, column: Column) -> pa.DataType:
    kind = column.field.type
    if column.field.name in index.dictionaries and len(column.path) == 1 and not pa.types.is_dictionary(kind):
        return pa.dictionary(pa.int32(), kind)
    return kind


def _is_text(kind: pa.DataType) -> bool:
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(values in (pa.string(), pa.large_string()))


def _has_dictionary(kind: pa.DataType) -> bool:
    return any(map(pa.types.is_dictionary, leaf_types(kind)))


def _check_indices(array: pa.Array) -> None:
    """Raise an ArrowInvalid where a dictionary has not the value asked for: Arrow does not check when it reads one."""
    if isinstance(array, pa.DictionaryArray):
        # Seen as unsigned, what is negative is large.
        asked = array.indices.drop_null().to_numpy().view(f"u{array.indices.type.bit_width // 8}")
        if len(asked) and asked.max() >= len(array.dictionary):
            raise pa.ArrowInvalid(f"value {asked.max()} of a dictionary that has {len(array.dictionary)}")
    for part in _parts(array):
        _check_indices(part)


def _check_text(array: pa.Array) -> None:
    """Raise an ArrowInvalid where text is no UTF-8, at any depth."""
    if isinstance(array, pa.DictionaryArray):
        _check_text(array.dictionary)
    elif _is_text(array.type):
        array.validate(full=True)
    for part in _parts(array):
        _check_text(part)


def _parts(array: pa.Array) -> list[pa.Array]:
    """Arrays that a nested array is made of, without what lies below its nulls."""
    if isinstance(array, pa.ExtensionArray):
        return [array.storage]
    if isinstance(array, pa.StructArray):
        return list(array.flatten())
    if isinstance(array, pa.MapArray):
        return [array.keys, array.items]
    return [array.flatten()] if pa.types.is_nested(array.type) and hasattr(array, "flatten") else []


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
    if chunk.type.equals(kind):
        return chunk
    return _cast_nested(chunk, kind) if pa.types.is_nested(kind) else chunk.cast(kind)


def _cast_nested(chunk: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast level by level: Arrow's own cast refuses nulls above values that may not be null."""
    is_list = any(isinstance(chunk, t) for t in (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray))
    if isinstance(chunk, pa.StructArray) and pa.types.is_struct(kind):
        held = chunk.type.names
        children = [
            _cast_chunk(chunk.field(f.name), f.type) if f.name in held else pa.nulls(len(chunk), f.type)
            for f in kind.fields
        ]
        return pa.StructArray.from_arrays(children, fields=kind.fields, mask=chunk.is_null())
    if chunk.offset or not is_list:
        chunk = pa.concat_arrays([chunk])  # So that offsets begin at its own first value.
    nulls = chunk.is_null()
    if isinstance(chunk, pa.MapArray) and pa.types.is_map(kind):
        keys, items = _cast_chunk(chunk.keys, kind.key_type), _cast_chunk(chunk.items, kind.item_type)
        return pa.MapArray.from_arrays(chunk.offsets, keys, items, type=kind, mask=nulls)
    if isinstance(chunk, pa.FixedSizeListArray) and pa.types.is_fixed_size_list(kind):
        values = _cast_chunk(chunk.values[: len(chunk) * kind.list_size], kind.value_type)
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=nulls)
    if is_list and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        values = _cast_chunk(chunk.values, kind.value_type)
        offsets = (
            pa.array(np.arange(len(chunk) + 1) * chunk.type.list_size)
            if isinstance(chunk, pa.FixedSizeListArray)
            else chunk.offsets
        )
        wide = pa.types.is_large_list(kind)
        made = pa.LargeListArray if wide else pa.ListArray
        return made.from_arrays(offsets.cast(pa.int64() if wide else pa.int32()), values, type=kind, mask=nulls)
    return chunk.cast(kind)


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

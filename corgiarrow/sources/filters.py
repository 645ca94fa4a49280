"""Filters: which row groups statistics rule out, and which rows of the others are kept."""

import io
from collections.abc import Sequence
from itertools import chain, combinations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from corgiarrow.errors import ColumnNotFoundError, OptionError
from corgiarrow.index import BlockIndex, filter_key
from corgiarrow.schemas import Column, resolve, wider

_ROW = "row of the table"
_MOST_FLOATS = 4
"""Float columns of a filter whose NaN are thought through; with more of them statistics are not used."""


class RowFilter:
    """A filter, bound to a dataset.

    Parameters
    ----------
    index
        The dataset.
    expression
        What rows must satisfy; a row for which it is null is dropped, as Arrow does.

    Raises
    ------
    ColumnNotFoundError
        It names a column that no file has.
    OptionError
        It is no condition, compares what cannot be compared, or the index was built for another filter.
    """

    def __init__(self, index: BlockIndex, expression: pc.Expression):
        if not isinstance(expression, pc.Expression):
            raise OptionError(f"filter={expression!r} must be a pyarrow expression such as pc.field('x') > 1")
        self.expression = expression
        self.key = filter_key(expression)
        plain = pa.schema([field.with_type(_plain(field.type)) for field in index.schema])
        self._bind(plain, index)
        self.columns: list[Column] = resolve(index.schema, self._references(plain), "") if len(plain) else []
        self.schema = pa.schema([plain.field(c.field.name) for c in self.columns])

    def _bind(self, schema: pa.Schema, index: BlockIndex) -> None:
        try:
            schema.empty_table().filter(self.expression)
        except (pa.ArrowException, NotImplementedError, TypeError) as error:
            text = str(error).splitlines()[0]
            if "No match for FieldRef" in text:
                raise ColumnNotFoundError(
                    f"filter={self.expression} names a column that is in no file of {index.storage.shown('')} "
                    f"({text}): it has {', '.join(schema.names[:50])}"
                ) from None
            raise OptionError(
                f"filter={self.expression} does not fit the data: {text}; compare a column with a value of its own type"
            ) from None

    def _references(self, schema: pa.Schema) -> list[str]:
        """Names of the columns without which the expression cannot be bound."""
        found = []
        for place, name in enumerate(schema.names):
            try:
                schema.remove(place).empty_table().filter(self.expression)
            except (pa.ArrowException, NotImplementedError):
                found.append(name)
        return found or list(schema.names[:1])

    def kept(self, columns: Sequence[pa.ChunkedArray]) -> np.ndarray:
        """Numbers of the rows that are kept, int64, ascending; `columns` are those of :attr:`columns`."""
        plain = [column.cast(field.type) for column, field in zip(columns, self.schema, strict=True)]
        table = pa.Table.from_arrays(plain, schema=self.schema)
        rows = pa.array(np.arange(table.num_rows))
        found: np.ndarray = table.append_column(_ROW, rows).filter(self.expression).column(_ROW).to_numpy()
        return found

    def possible(self, index: BlockIndex, file: int, footer: pq.FileMetaData) -> list[int]:
        """Numbers of the row groups of a file that statistics do not rule out."""
        import pyarrow.dataset as ds  # Only here: it brings pandas, where that is installed.

        groups = list(range(footer.num_row_groups))
        layout = index.layouts[index.file_layout[file]]
        for column in self.columns:
            name = column.path[0]
            if name not in layout.schema.names:
                continue
            stored, kind = layout.schema.field(name).type, self.schema.field(name).type
            # Text cast to numbers sorts in another way than its statistics say.
            if wider(_plain(stored), kind) != kind:
                return groups
        floats = [f.name for f in self.schema if pa.types.is_floating(f.type) and f.name in layout.schema.names]
        if len(floats) > _MOST_FLOATS:
            return groups
        footer.write_metadata_file(sink := io.BytesIO())
        known = pc.scalar(True)
        for name, values in index.in_paths.items():
            if name in self.schema.names and name not in layout.schema.names and values[file].is_valid:
                known &= pc.field(name) == values[file]
        possible: set[int] = set()
        # Statistics do not tell of NaN, so each choice of columns that may hold one is asked for by itself.
        for holding in chain.from_iterable(combinations(floats, n) for n in range(len(floats) + 1)):
            here = known
            for name in holding:
                here &= pc.field(name) == pa.scalar(float("nan"), pa.float64()).cast(self.schema.field(name).type)
            fragment = ds.ParquetFileFormat().make_fragment(
                pa.BufferReader(sink.getvalue()), partition_expression=here
            )
            found = fragment.subset(self.expression, schema=self.schema)
            possible.update(group.id for group in found.row_groups)
        return sorted(possible)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


"""Two list columns, of indices and of values, as one matrix of sparse rows."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from corgiarrow.arrays.casts import cast_checked
from corgiarrow.arrays.leaves import Int64s, extents, view
from corgiarrow.arrays.options import is_whole
from corgiarrow.arrays.values import Array, SparseSpec
from corgiarrow.errors import ColumnNotFoundError, ConversionError, MissingExtraError, OptionError

_MAX_INT32 = np.iinfo(np.int32).max


class SparsePair(NamedTuple):
    """What ``sparse=`` asks for one matrix.

    Attributes
    ----------
    indices, values
        Names of the columns.
    dimension
        Columns of the matrix.
    """

    indices: str
    values: str
    dimension: int

    @classmethod
    def asked(cls, name: str, given: Any) -> "SparsePair":
        """Return what a user gave, checked as far as that goes without a schema.

        Raises
        ------
        OptionError
            It is something else.
        """
        listed = isinstance(given, Sequence) and not isinstance(given, str) and len(given) == 3
        if not listed or not all(isinstance(column, str) for column in given[:2]):
            raise OptionError(
                f"sparse={{{name!r}: {given!r}}} must be the column of indices, the column of values, and the "
                f"dimension: sparse={{{name!r}: ('features_k', 'features_v', 1000)}}"
            )
        if given[0] == given[1]:
            raise OptionError(f"sparse={{{name!r}: {given!r}}} names {given[0]!r} twice: give indices and values")
        check_dimension(given[2])
        return cls(*given)


def check_dimension(dimension: object) -> None:
    """Raise where this is no number of columns of a matrix.

    Raises
    ------
    OptionError
        It is none.
    """
    if not is_whole(dimension) or not 1 <= dimension <= np.iinfo(np.int64).max:  # type: ignore[operator]
        raise OptionError(f"dimension={dimension!r} must be a whole number of at least 1: the greatest index and one")


def is_indices(kind: pa.DataType) -> bool:
    """Whether a type may hold the indices of sparse rows: lists of whole numbers."""
    return _is_list(kind) and bool(pa.types.is_integer(kind.value_type))


def is_values(kind: pa.DataType) -> bool:
    """Whether a type may hold the values of sparse rows: lists of numbers."""
    return _is_list(kind) and bool(pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


class SparseRows:
    """Converts two list columns of a batch to a ``scipy.sparse.csr_array``.

    Its indices ascend in each row, each once: values of an index that a row names again are added up.

    Parameters
    ----------
    name
        What the matrix is called.
    pair
        Its columns.
    schema
        Schema of the batches.
    dtype
        Dtype of the values; None for the column's.

    Raises
    ------
    OptionError
        A column does not hold what it should.
    ColumnNotFoundError
        A column is not there.
    MissingExtraError
        SciPy is not installed.
    """

    def __init__(self, name: str, pair: SparsePair, schema: pa.Schema, dtype: np.dtype[Any] | None):
        try:
            import scipy.sparse  # noqa: F401
        except ImportError:
            raise MissingExtraError("sparse= needs SciPy: pip install 'corgiarrow[sklearn]'") from None
        self._name, self._pair = name, pair
        for column, fits, what in ((pair.indices, is_indices, "whole numbers"), (pair.values, is_values, "numbers")):
            kind = schema.field(column).type
            if not fits(kind):
                raise OptionError(
                    f"sparse={{{name!r}: …}} takes lists of {what} from {column!r}, but it is {kind}: name another "
                    "column, indices first"
                )
        self._places = [schema.get_field_index(column) for column in (pair.indices, pair.values)]
        kinds = [schema.field(place).type.value_type for place in self._places]
        self._stored = [np.dtype(kind.to_pandas_dtype()) for kind in kinds]
        dtype = self._stored[1] if dtype is None else dtype
        if dtype == np.float16:
            raise OptionError(f"SciPy has no sparse matrix of {dtype}: give dtype={{{name!r}: 'float32'}}")
        self.spec = SparseSpec(dtype, (None, pair.dimension))

    def shared(self, rows: pa.RecordBatch) -> None:
        """Tell that each batch is converted by itself: a slice of a matrix is no cheaper."""

    def convert(self, batch: pa.RecordBatch) -> Any:
        """Return the matrix of a batch, ``[rows, dimension]``.

        Raises
        ------
        ConversionError
            Indices are out of their bounds, lists of a row differ in length, or there are nulls.
        """
        from scipy.sparse import csr_array

        lists = [self._list(batch, n) for n in (0, 1)]
        (indices, offsets), (values, ends) = lists
        if not np.array_equal(offsets, ends):
            lengths = np.diff(offsets), np.diff(ends)
            row = int(np.argmax(lengths[0] != lengths[1]))
            raise ConversionError(
                f"columns {self._pair.indices!r} and {self._pair.values!r} have {lengths[0][row]} indices and "
                f"{lengths[1][row]} values in row {row} of the batch, which must be as many: filter such rows out"
            )
        self._check_bounds(indices, offsets)
        shape = len(offsets) - 1, self._pair.dimension
        kind = np.int32 if max(self._pair.dimension, len(indices)) <= _MAX_INT32 else np.int64
        indices, offsets = indices.astype(kind, copy=False), offsets.astype(kind, copy=False)
        if _ascend(indices, offsets):
            values = cast_checked(values, self.spec.dtype, self._name)
            found = csr_array((values, indices, offsets), shape=shape)
        else:
            wide = {"f": np.float64, "i": np.int64, "u": np.uint64}[values.dtype.kind]
            # It sorts in place, and the indices may be Arrow's.
            found = csr_array((values.astype(wide), indices.copy(), offsets), shape=shape)
            found.sum_duplicates()
            found.data = cast_checked(found.data, self.spec.dtype, self._name)
        # Known already, so that nobody looks at all indices again.
        found.has_canonical_format = True
        return found

    def _list(self, batch: pa.RecordBatch, which: int) -> tuple[Array, Int64s]:
        column, name = batch.column(self._places[which]), self._pair[which]
        if column.null_count:
            row = int(np.argmin(column.is_valid().to_numpy(zero_copy_only=False)))
            raise ConversionError(
                f"column {name!r} has {column.null_count} null lists, the first in row {row} of the batch, which are "
                "no sparse rows: filter them out, or write empty lists"
            )
        listed, offsets = extents(column)
        if listed.null_count:
            place = int(np.argmin(listed.is_valid().to_numpy(zero_copy_only=False)))
            raise ConversionError(
                f"column {name!r} has {listed.null_count} nulls within its lists, the first in row "
                f"{_row(offsets, place)} of the batch, which no sparse row holds: filter these rows out, or leave out "
                "index and value"
            )
        return view(listed, self._stored[which]), offsets

    def _check_bounds(self, indices: Array, offsets: Int64s) -> None:
        dimension = self._pair.dimension
        if not len(indices) or (int(indices.min()) >= 0 and int(indices.max()) < dimension):
            return
        place = int(np.argmax((indices < 0) | (indices >= dimension)))
        raise ConversionError(
            f"column {self._pair.indices!r} has the index {indices[place]} in row {_row(offsets, place)} of the batch, "
            f"which must be in [0, dimension={dimension}): give a greater dimension, or filter these rows out"
        )


def pairs_of(given: dict[str, Any], schema: pa.Schema) -> dict[str, SparsePair]:
    """Return the pairs of ``sparse=``, each column of which is there and in one pair.

    Raises
    ------
    OptionError, ColumnNotFoundError
        They are not.
    """
    found = {name: SparsePair.asked(name, pair) for name, pair in given.items()}
    columns = [column for pair in found.values() for column in pair[:2]]
    missing = [column for column in columns if column not in schema.names]
    if missing:
        raise ColumnNotFoundError(
            f"sparse= names {missing}, but the batches have: {', '.join(schema.names[:50])}"
        )
    # The matrices would share memory, which SciPy sorts in place.
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise OptionError(f"sparse= names {twice} in more than one pair: read such a column by another Loader")
    return found


def _row(offsets: Int64s, place: int) -> int:
    """Return the row that holds a value."""
    return int(np.searchsorted(offsets, place, side="right")) - 1


def _ascend(indices: Array, offsets: Array) -> bool:
    """Whether each row's indices ascend, each once."""
    falls = indices[1:] <= indices[:-1]
    begins = offsets[1:-1]
    falls[begins[(begins > 0) & (begins < len(indices))] - 1] = False
    return not falls.any()

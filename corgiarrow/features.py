"""What a model learns from: the features of a batch as one matrix, and its labels."""

from collections.abc import Sequence
from typing import Any, Unpack, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from corgiarrow.arrays import ArrayOptions, Converter
from corgiarrow.arrays.options import ColumnOptions
from corgiarrow.arrays.sparse import check_dimension, is_indices, is_values
from corgiarrow.errors import ColumnNotFoundError, ConversionError, OptionError
from corgiarrow.scaling import Scaling
from corgiarrow.schemas import is_numeric

Array = npt.NDArray[Any]

_MATRIX = "features"
_VALID = "_valid"
_NAMED = ("fill_null", "categories", "pad", "shape", "decode")
"""Options that may make numbers of a column which holds none."""

DENSE_COLUMN = "features_v"
"""Column of dense rows in tables of the paper's schema (id, features_v, label)."""

SPARSE_COLUMNS = ("features_k", "features_v")
"""What the columns of sparse rows are called by custom: indices and values."""

MAX_FOUND_DIMENSION = 2**27
"""A greater index is an error of the data, unless a dimension was given: a GiB of weights for each array of them."""

_SPARSE_ROW_VALUES = 128
"""Values of a sparse row, about, which nothing tells beforehand."""


def feature_names(schema: pa.Schema, label: str | None) -> list[str]:
    """Return the names of all columns that hold numbers or fixed-size lists of them, but for the label.

    Where there are vectors called :data:`DENSE_COLUMN`, they are all that there is to learn from: a column of numbers
    beside them is the row's id.

    Raises
    ------
    OptionError
        There is none.
    """
    if DENSE_COLUMN in schema.names and pa.types.is_fixed_size_list(schema.field(DENSE_COLUMN).type):
        return [DENSE_COLUMN]
    names = [field.name for field in schema if field.name != label and is_numeric(field.type)]
    if not names:
        raise OptionError(f"no column beside label={label!r} holds numbers or fixed-size lists of numbers")
    return names


def has_sparse_columns(schema: pa.Schema) -> bool:
    """Whether there are :data:`SPARSE_COLUMNS`, and they hold the indices and the values of sparse rows."""
    if not all(name in schema.names for name in SPARSE_COLUMNS):
        return False
    indices, values = (schema.field(name).type for name in SPARSE_COLUMNS)
    return is_indices(indices) and is_values(values)


def row_values(width: int, *, sparse: bool) -> int:
    """Return how many values a row of a matrix holds, about."""
    return min(width, _SPARSE_ROW_VALUES) if sparse else width


class FeatureMatrix:
    """Turns batches into matrices: the features side by side, in the order of their names; or sparse rows.

    Parameters
    ----------
    schema
        Schema of the batches; columns that are no features are not looked at.
    features
        Names of columns of numbers, of booleans, or of vectors of either.
    sparse
        Instead of `features`, the two list columns of sparse rows: indices and values.
    dimension
        Columns of the matrix of sparse rows; None for those of `scaling`, or without one for
        :data:`MAX_FOUND_DIMENSION`.
    scaling
        What to scale them by; sparse rows only by one that has mean 0.
    **options
        As for :class:`corgiarrow.Loader`; ``dtype={"features": "float32"}`` is for the matrix, which is float64.
        Beside its policies, ``nulls`` may be ``"mean"``: nulls, NaN and infinities become the mean that `scaling`
        has; without one they become NaN. By default they raise, and those of sparse rows always do.

    Raises
    ------
    OptionError
        A column is no numbers, or an option is out of its bounds.
    ColumnNotFoundError
        A column is not there.
    """

    def __init__(
        self,
        schema: pa.Schema,
        features: Sequence[str] | None = None,
        *,
        sparse: Sequence[str] | None = None,
        dimension: int | None = None,
        scaling: Scaling | None = None,
        **options: Unpack[ColumnOptions],
    ):
        check_choice(features, sparse, dimension)
        self.scaling = scaling
        self._mean = options.get("nulls") == "mean"
        self._raises = options.get("nulls", "error") == "error"
        self._filled = set(options.get("fill_null", {}))
        self._sparse = sparse is not None
        if sparse is not None:
            self._take_sparse(schema, sparse, dimension, options)
        else:
            self._take_dense(schema, features or (), options)

    def _take_sparse(
        self, schema: pa.Schema, sparse: Sequence[str], dimension: int | None, options: ColumnOptions
    ) -> None:
        if not self._raises:
            raise OptionError(
                f"nulls={options['nulls']!r} does not go with sparse rows, where what is left out is 0 and not null: "
                "leave nulls out, and rows with nulls by a filter"
            )
        if dimension is None:
            dimension = MAX_FOUND_DIMENSION if self.scaling is None else len(self.scaling.mean)
        if self.scaling is not None and len(self.scaling.mean) != dimension:
            raise OptionError(
                f"dimension={dimension} must be {len(self.scaling.mean)}, the columns of scaling=: leave it out"
            )
        if self.scaling is not None and self.scaling.mean.any():
            raise OptionError(
                "scaling= has means other than 0, and would make sparse rows dense: take that of "
                "find_scaling(reader, sparse=…)"
            )
        dtype = {_MATRIX: "float64"} | dict(options.get("dtype", {}))
        asked = {**options, "dtype": dtype, "sparse": {_MATRIX: (*sparse, dimension)}}
        self._columns = list(sparse)
        missing = [name for name in sparse if name not in schema.names]
        if missing:
            raise ColumnNotFoundError(f"sparse={missing} are no columns: choose from {', '.join(schema.names[:50])}")
        self._schema = pa.schema([schema.field(name) for name in sparse])
        self._converter = Converter(self._schema, **cast(ArrayOptions, asked))
        self._width = dimension

    def _take_dense(self, schema: pa.Schema, features: Sequence[str], options: ColumnOptions) -> None:
        if isinstance(features, str):
            raise OptionError(f"features={features!r} must be a list of names: give features=[{features!r}]")
        twice = sorted({name for name in features if list(features).count(name) > 1})
        if twice:
            raise OptionError(f"features={list(features)} names {twice} more than once")
        self._columns = self._find(schema, features, options)
        chosen = pa.schema([self._field(schema.field(name)) for name in self._columns])
        asked = cast(ArrayOptions, {"decimals": "float64", **options, **({"nulls": "nan"} if self._mean else {})})
        plain = {name: kind for name, kind in asked.get("dtype", {}).items() if name != _MATRIX}
        specs = Converter(chosen, **cast(ArrayOptions, {**asked, "dtype": plain})).spec
        matrix = {"dtype": {_MATRIX: "float64"} | dict(asked.get("dtype", {})), "stack": {_MATRIX: list(features)}}
        self._converter = Converter(chosen, **cast(ArrayOptions, {**asked, **matrix}))
        self._schema = chosen
        shapes = {name: specs[name].shape[1:] for name in features}
        self._names = [name for name in features for _ in range(shapes[name][0] if shapes[name] else 1)]
        self._width = len(self._names)

    @property
    def width(self) -> int:
        """Columns of the matrix."""
        return self._width

    @property
    def row_values(self) -> int:
        """Values of a row that the matrix holds, about."""
        return row_values(self._width, sparse=self._sparse)

    @property
    def columns(self) -> list[str]:
        """Names of the columns of a batch that are looked at."""
        return self._columns

    def __call__(self, batch: pa.RecordBatch) -> Any:
        """Return the matrix of a batch, ``[rows, width]``: an array, or a ``csr_array`` of sparse rows.

        Raises
        ------
        ConversionError
            A value is null, NaN or infinite, or does not fit.
        """
        columns = [batch.column(name) for name in self._columns]
        for name, column in zip(self._columns, columns, strict=True):
            if self._raises and column.null_count and name not in self._filled:
                raise hole(name, f"{column.null_count} nulls", fills=not self._sparse)
        found = self._converter(_as_trained(columns, self._schema))[_MATRIX]
        if self._sparse and not np.isfinite(found.data).all():
            raise hole(self._columns[1], "NaN or infinite values", fills=False)
        if self._sparse:
            return found if self.scaling is None else self.scaling.apply_sparse(found)
        if self.scaling is not None:
            found = self.scaling.apply(found)
        if self._raises or (self._mean and self.scaling is not None):
            finite = np.isfinite(found)
            if not finite.all():
                if self._raises:
                    raise hole(self._names[int(np.argmin(finite.all(0)))], "NaN or infinite values")
                found[~finite] = 0.0
        return found

    def _field(self, field: pa.Field) -> pa.Field:
        flat = pa.types.is_integer(field.type) or pa.types.is_boolean(field.type) or pa.types.is_decimal(field.type)
        return pa.field(field.name, pa.float64()) if self._mean and flat else field

    @staticmethod
    def _find(schema: pa.Schema, features: Sequence[str], options: ColumnOptions) -> list[str]:
        """Return the columns that the features come from; ``x_valid`` comes from ``x``."""
        columns = [f if f in schema.names else f.removesuffix(_VALID) for f in features]
        missing = [f for f, column in zip(features, columns, strict=True) if column not in schema.names]
        if missing or not columns:
            raise ColumnNotFoundError(f"features {missing} are no columns: choose from {', '.join(schema.names[:50])}")
        treated = {name for option in _NAMED for name in options.get(option, {})}  # type: ignore[attr-defined]
        unfit = [f"{n} ({schema.field(n).type})" for n in columns if not is_numeric(schema.field(n).type)]
        unfit = [text for text in unfit if text.split(" (")[0] not in treated]
        if unfit:
            raise OptionError(
                f"{', '.join(unfit)}: a feature must hold numbers or fixed-size lists of numbers; leave it out, or "
                "make it numbers by categories=, shape= or pad="
            )
        return list(dict.fromkeys(columns))


class Labels:
    """Turns the label column of batches into an array.

    Parameters
    ----------
    schema
        Schema of the batches.
    label
        Name of the column.
    classes
        Its values, sorted, where it is a class; None where it is a quantity, which becomes float64.
    scaling
        What to scale a quantity by.

    Raises
    ------
    OptionError
        A quantity is no number, or the classes cannot be labels.
    ColumnNotFoundError
        The column is not there.
    """

    def __init__(
        self, schema: pa.Schema, label: str, classes: Sequence[Any] | None, *, scaling: Scaling | None = None
    ):
        kind = label_type(schema, label)
        self.name = label
        self._scaling = scaling
        self._schema = pa.schema([schema.field(label)])
        self.classes = None if classes is None else np.array(list(classes))
        if self.classes is None:
            if not is_numeric(kind) or pa.types.is_fixed_size_list(kind):
                raise OptionError(f"label={label!r} is of type {kind}, but a quantity to predict must be a number")
            options: dict[str, Any] = {"dtype": {label: "float64"}}
            if pa.types.is_decimal(kind):
                options = {"decimals": "float64"}
        else:
            # NumPy drops zero bytes from the ends of texts.
            if self.classes.ndim != 1 or self.classes.tolist() != list(classes or ()):
                raise OptionError(f"label={label!r} has values that cannot be classes: {list(classes or ())[:5]}")
            options = {"categories": {label: classes}}
        self._converter = Converter(self._schema, **cast(ArrayOptions, options))

    def __call__(self, batch: pa.RecordBatch) -> Array:
        """Return the labels of a batch, ``[rows]``: values of the classes, or float64.

        Raises
        ------
        ConversionError
            A label is null, NaN, infinite, or none of the classes.
        """
        column = batch.column(self.name)
        if column.null_count:
            raise hole(self.name, f"{column.null_count} nulls")
        found: Array = self._converter(_as_trained([column], self._schema))[self.name]
        if self.classes is not None:
            return self.classes[found]
        if not np.isfinite(found).all():
            raise hole(self.name, "NaN or infinite values")
        return found if self._scaling is None else self._scaling.apply(found[:, None])[:, 0]


def label_type(schema: pa.Schema, label: str) -> pa.DataType:
    """Return the type of the label column.

    Raises
    ------
    ColumnNotFoundError
        It is not there.
    """
    if label not in schema.names:
        raise ColumnNotFoundError(
            f"label={label!r} is no column of the data: choose the label from {', '.join(schema.names[:50])}"
        )
    return schema.field(label).type


def check_choice(features: Sequence[str] | None, sparse: Sequence[str] | None, dimension: int | None) -> None:
    """Raise where it is not clear what to learn from.

    Raises
    ------
    OptionError
        There are neither features nor sparse rows, or both; or an option does not go with them.
    """
    if (features is None) == (sparse is None):
        raise OptionError(f"features={features!r} and sparse={sparse!r}: give one of them")
    if sparse is None:
        if dimension is not None:
            raise OptionError(
                f"dimension={dimension} goes with sparse rows: give sparse=(indices, values), or leave it out"
            )
        return
    pair = not isinstance(sparse, str) and len(sparse) == 2 and all(isinstance(name, str) for name in sparse)
    if not pair or sparse[0] == sparse[1]:
        raise OptionError(f"sparse={sparse!r} must be two columns, of indices and of values: sparse={SPARSE_COLUMNS}")
    if dimension is not None:
        check_dimension(dimension)


def hole(name: str, what: str, *, fills: bool = True) -> ConversionError:
    """Return the error to raise for values from which nothing can be learnt; `fills` where a mean may replace them."""
    example = f", such as --where \"{name} is not null\"" if "nulls" in what else ""
    means = "; or, for a feature, train with nulls='mean' (--nulls mean), which puts the mean there" if fills else ""
    return ConversionError(
        f"column {name!r} has {what}, from which nothing can be learnt: leave these rows out by a filter{example}"
        f"{means}"
    )


def _as_trained(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Give columns the types that the training had: those of held-out rows may differ."""
    found = []
    for column, field in zip(columns, schema, strict=True):
        try:
            found.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            raise ConversionError(
                f"column {field.name!r} is {column.type} here, and {field.type} where the model learns: {error}"
            ) from None
    return pa.RecordBatch.from_arrays(found, schema=schema)

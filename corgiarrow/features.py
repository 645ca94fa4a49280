"""What a model learns from: the features of a batch as one matrix, and its labels."""

from collections.abc import Sequence
from typing import Any, Unpack, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from corgiarrow.arrays import ArrayOptions, Converter
from corgiarrow.errors import ColumnNotFoundError, ConversionError, OptionError
from corgiarrow.scaling import Scaling
from corgiarrow.schemas import is_numeric

Array = npt.NDArray[Any]

_MATRIX = "features"
_VALID = "_valid"
_NAMED = ("fill_null", "categories", "pad", "shape", "decode")
"""Options that may make numbers of a column which holds none."""


def feature_names(schema: pa.Schema, label: str | None) -> list[str]:
    """Return the names of all columns that hold numbers or fixed-size lists of them, but for the label.

    Raises
    ------
    OptionError
        There is none.
    """
    names = [field.name for field in schema if field.name != label and is_numeric(field.type)]
    if not names:
        raise OptionError(f"no column beside label={label!r} holds numbers or fixed-size lists of numbers")
    return names


class FeatureMatrix:
    """Turns batches into matrices: the features side by side, in the order of their names.

    Parameters
    ----------
    schema
        Schema of the batches; columns that are no features are not looked at.
    features
        Names of columns of numbers, of booleans, or of vectors of either.
    scaling
        What to scale them by.
    **options
        As for :class:`corgiarrow.Loader`; ``dtype={"features": "float32"}`` is for the matrix, which is float64.
        Beside its policies, ``nulls`` may be ``"mean"``: nulls, NaN and infinities become the mean that `scaling`
        has; without one they become NaN. By default they raise.

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
        features: Sequence[str],
        *,
        scaling: Scaling | None = None,
        **options: Unpack[ArrayOptions],
    ):
        if isinstance(features, str):
            raise OptionError(f"features={features!r} must be a list of names: give features=[{features!r}]")
        twice = sorted({name for name in features if list(features).count(name) > 1})
        if twice:
            raise OptionError(f"features={list(features)} names {twice} more than once")
        self._columns = self._find(schema, features, options)
        self.scaling = scaling
        self._mean = options.get("nulls") == "mean"
        self._raises = options.get("nulls", "error") == "error"
        self._filled = set(options.get("fill_null", {}))
        chosen = pa.schema([self._field(schema.field(name)) for name in self._columns])
        asked = cast(ArrayOptions, {"decimals": "float64", **options, **({"nulls": "nan"} if self._mean else {})})
        plain = {name: kind for name, kind in asked.get("dtype", {}).items() if name != _MATRIX}
        specs = Converter(chosen, **cast(ArrayOptions, {**asked, "dtype": plain})).spec
        matrix = {"dtype": {_MATRIX: "float64"} | dict(asked.get("dtype", {})), "stack": {_MATRIX: list(features)}}
        self._converter = Converter(chosen, **cast(ArrayOptions, {**asked, **matrix}))
        self._schema = chosen
        shapes = {name: specs[name].shape[1:] for name in features}
        self._names = [name for name in features for _ in range(shapes[name][0] if shapes[name] else 1)]

    @property
    def width(self) -> int:
        """Columns of the matrix."""
        return len(self._names)

    @property
    def columns(self) -> list[str]:
        """Names of the columns of a batch that are looked at."""
        return self._columns

    def __call__(self, batch: pa.RecordBatch) -> Array:
        """Return the matrix of a batch, ``[rows, width]``.

        Raises
        ------
        ConversionError
            A value is null, NaN or infinite, or does not fit.
        """
        columns = [batch.column(name) for name in self._columns]
        for name, column in zip(self._columns, columns, strict=True):
            if self._raises and column.null_count and name not in self._filled:
                raise hole(name, f"{column.null_count} nulls")
        found: Array = self._converter(_as_trained(columns, self._schema))[_MATRIX]
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
    def _find(schema: pa.Schema, features: Sequence[str], options: ArrayOptions) -> list[str]:
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


def hole(name: str, what: str) -> ConversionError:
    """Return the error to raise for values from which nothing can be learnt."""
    example = f", such as --where \"{name} is not null\"" if "nulls" in what else ""
    return ConversionError(
        f"column {name!r} has {what}, from which nothing can be learnt: leave these rows out by a filter{example}; or, "
        "for a feature, train with nulls='mean' (--nulls mean), which puts the mean there"
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

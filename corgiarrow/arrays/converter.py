"""The contract: which arrays a schema becomes."""

from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from math import prod
from typing import Any, Unpack

import numpy as np
import pyarrow as pa

from corgiarrow.arrays import leaves
from corgiarrow.arrays.casts import cast_checked, holds_all
from corgiarrow.arrays.leaves import Leaf, Nulls
from corgiarrow.arrays.options import DECIMALS, NULL_POLICIES, ArrayOptions, Image, Pad
from corgiarrow.arrays.values import Array, ArraySpec, NumpyOut, Out, map_leaves
from corgiarrow.errors import ColumnNotFoundError, MissingExtraError, OptionError

_VALID = "_valid"
_MAX_UNSCALED = 18
"""Digits that every int64 has room for."""


class Converter:
    """Turns record batches into dicts of arrays.

    Which arrays come, of which dtypes and shapes, depends on the schema and the options only; :attr:`spec` tells.
    No value changes, but where an option asks for it. Arrays share Arrow's memory where that is possible without a
    change; they are the caller's, to change in place, and nothing here writes to them again.

    Parameters
    ----------
    schema
        Schema of the batches.
    out
        How a framework takes arrays over; NumPy's own by default.
    **options
        See :class:`ArrayOptions`.

    Raises
    ------
    OptionError
        An option does not fit its column, or a column has no array that could hold it.
    ColumnNotFoundError
        An option names a column that is not there.
    """

    def __init__(self, schema: pa.Schema, *, out: Out | None = None, **options: Unpack[ArrayOptions]):
        unknown = sorted(set(options) - set(ArrayOptions.__annotations__))
        if unknown:
            raise TypeError(f"unexpected options {unknown}: choose from {', '.join(ArrayOptions.__annotations__)}")
        self.schema = schema
        self.options = options
        self._out = out or NumpyOut()
        asked = _Asked(options, schema)
        self._columns: dict[str, _Column | _Stack] = {
            name: _Column(place, leaf) for name, place, leaf in asked.fields(list(schema), "")
        }
        for name, members in asked.stacks.items():
            self._stack(name, members, asked)
        asked.check_names(self._columns)

    @property
    def spec(self) -> dict[str, Any]:
        """For each name the :class:`ArraySpec` of its array, :class:`Ragged` of two, or a dict of them for a struct."""
        return {name: column.spec for name, column in self._columns.items()}

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return the arrays of one batch.

        Raises
        ------
        ConversionError
            Values do not fit: the text names column, value and remedy.
        """
        return {
            name: map_leaves(self._out.whole, column.convert(batch)) for name, column in self._columns.items()
        }

    def split(self, rows: pa.RecordBatch, first: int, size: int) -> Iterator[dict[str, Any]]:
        """Yield the arrays of the batches of `size` rows that follow row number `first`; the last may be shorter.

        What all of them need is done once.
        """
        names = list(self._columns)
        parts = [self._parts(column, rows, first, size) for column in self._columns.values()]
        for values in zip(*parts, strict=True):
            yield dict(zip(names, values, strict=True))

    def _parts(self, column: "_Column | _Stack", rows: pa.RecordBatch, first: int, size: int) -> Iterable[Any]:
        shared = column.shared(rows)
        if shared is not None:
            return self._out.split(shared[first:], size)
        whole = partial(map_leaves, self._out.whole)
        return (whole(column.convert(rows.slice(n, size))) for n in range(first, rows.num_rows, size))

    def _stack(self, name: str, members: Sequence[str], asked: "_Asked") -> None:
        missing = [m for m in members if m not in self._columns]
        if missing or not members:
            raise ColumnNotFoundError(
                f"stack={{{name!r}: …}} names {missing}, but has to name some of: {', '.join(self._columns)}"
            )
        found: list[_Column] = []
        for member in members:
            column = self._columns.pop(member)
            spec = column.spec
            numbers = isinstance(spec, ArraySpec) and spec.dtype.kind in "fiub" and len(spec.shape) <= 2
            if not isinstance(column, _Column) or not numbers:
                raise OptionError(
                    f"stack={{{name!r}: …}} takes columns of numbers, or of vectors of them, but {member!r} is "
                    f"{spec}: leave it out, or give categories= or dtype= for it"
                )
            found.append(column)
        if name in self._columns:
            raise OptionError(f"stack={{{name!r}: …}} has the name of a column: choose another")
        dtypes = [column.spec.dtype for column in found]
        given = asked.dtype(name)
        dtype = given or np.result_type(*dtypes)
        for member, each in zip(members, dtypes, strict=True):
            if given is None and not holds_all(dtype, each):
                raise OptionError(
                    f"stack={{{name!r}: …}} has no dtype that holds all values: {member!r} is {each}, the others make "
                    f"it {dtype}; give dtype={{{name!r}: 'float32'}}, say"
                )
        self._columns[name] = _Stack(name, found, dtype)


class _Column:
    """One column of a batch, and its leaf."""

    def __init__(self, place: int, leaf: Leaf):
        self._place, self._leaf = place, leaf
        self.spec = leaf.spec

    def convert(self, batch: pa.RecordBatch) -> Any:
        return self._leaf.convert(batch.column(self._place))

    def shared(self, rows: pa.RecordBatch) -> Array | None:
        return self._leaf.shared(rows.column(self._place))


class _Stack:
    """Columns side by side as one matrix."""

    def __init__(self, name: str, members: Sequence[_Column], dtype: np.dtype[Any]):
        self._name, self._members, self._dtype = name, members, dtype
        widths = [column.spec.shape[1] if len(column.spec.shape) == 2 else 1 for column in members]
        self._ends = np.cumsum(widths).tolist()
        self.spec = ArraySpec(dtype, (None, self._ends[-1]))

    def convert(self, batch: pa.RecordBatch) -> Array:
        found = np.empty((batch.num_rows, self._ends[-1]), dtype=self._dtype)
        begin = 0
        for column, end in zip(self._members, self._ends, strict=True):
            part = cast_checked(column.convert(batch), self._dtype, self._name)
            found[:, begin:end] = part[:, None] if part.ndim == 1 else part
            begin = end
        return found

    def shared(self, rows: pa.RecordBatch) -> None:
        return None


class _Asked:
    """The options, looked up by the path of a column or field."""

    def __init__(self, options: ArrayOptions, schema: pa.Schema):
        self._options = options
        self._seen: set[str] = set()
        nulls = options.get("nulls", "error")
        self._null_default, self._nulls = (nulls, {}) if isinstance(nulls, str) else ("error", nulls)
        decimals = options.get("decimals", "objects")
        self._decimals_default, self._decimals = (
            (decimals, {}) if isinstance(decimals, str) else ("objects", decimals)
        )
        for option, values, allowed in (
            ("nulls", [self._null_default, *self._nulls.values()], NULL_POLICIES),
            ("decimals", [self._decimals_default, *self._decimals.values()], DECIMALS),
        ):
            for value in values:
                if value not in allowed:
                    raise OptionError(f"{option}={value!r} must be one of: {', '.join(allowed)}")
        duplicates = sorted({name for name in schema.names if schema.names.count(name) > 1})
        if duplicates:
            raise OptionError(f"columns {duplicates} are there more than once, so no dict can hold them")
        self.stacks = options.get("stack", {})

    def _option(self, option: str, path: str) -> Any:
        return self._options.get(option, {}).get(path)  # type: ignore[attr-defined]

    def check_names(self, names: Iterable[str]) -> None:
        """Raise for options that name nothing that there is."""
        known = self._seen | set(names)
        given: dict[str, Iterable[str]] = {
            "nulls": self._nulls,
            "decimals": self._decimals,
            **{
                option: self._options.get(option, {})  # type: ignore[misc]
                for option in ("fill_null", "categories", "pad", "shape", "decode", "dtype", "ragged")
            },
        }
        for option, named in given.items():
            missing = sorted(set(named) - known)
            if missing:
                raise ColumnNotFoundError(
                    f"{option}= names {missing}, but the batches have: {', '.join(sorted(known)[:50])}"
                )

    def dtype(self, path: str) -> np.dtype[Any] | None:
        """The dtype that was asked for."""
        found = self._option("dtype", path)
        if found is None:
            return None
        try:
            dtype: np.dtype[Any] = np.dtype(found)
        except TypeError:
            raise OptionError(f"dtype={{{path!r}: {found!r}}} is no dtype that NumPy knows") from None
        if dtype.kind not in "fiub":
            raise OptionError(f"dtype={{{path!r}: {found!r}}} must be a dtype of numbers or booleans")
        return dtype

    def fields(self, fields: Sequence[pa.Field], prefix: str) -> list[tuple[str, int, Leaf]]:
        """Name, place and leaf of each array that columns, or fields of a struct, become."""
        found: list[tuple[str, int, Leaf]] = []
        for place, field in enumerate(fields):
            path = f"{prefix}{field.name}"
            self._seen.add(path)
            found.append((field.name, place, self.leaf(field.type, path)))
            if self._policy(path) == "mask" and not pa.types.is_struct(_bare(field.type)):
                found.append((f"{field.name}{_VALID}", place, leaves.Valid()))
        names = [name for name, _, _ in found]
        for name in names:
            if names.count(name) > 1:
                raise OptionError(
                    f"nulls='mask' adds a column {name!r}, but there is one already: choose another policy for "
                    f"{prefix}{name.removesuffix(_VALID)!r}"
                )
        return found

    def _policy(self, path: str) -> str:
        return "fill" if self._option("fill_null", path) is not None else self._nulls.get(path, self._null_default)

    def _null_value(self, kind: pa.DataType, path: str) -> pa.Scalar | None:
        """What takes the place of nulls in an array of a flat type; None where they raise."""
        policy = self._policy(path)
        floating = pa.types.is_floating(kind)
        if policy == "nan" and not floating:
            if path in self._nulls:
                raise OptionError(
                    f"nulls={{{path!r}: 'nan'}} goes with floating-point columns, but it is {kind}: give "
                    f"fill_null={{{path!r}: value}}, or 'mask'"
                )
            return None
        if policy == "error":
            return None
        value = {"nan": float("nan"), "mask": _zero(kind)}.get(policy, self._option("fill_null", path))
        try:
            return pa.scalar(value, kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise OptionError(f"fill_null={{{path!r}: {value!r}}} is no {kind}: {error}") from None

    def leaf(self, kind: pa.DataType, path: str, inside: bool = False) -> Leaf:
        """Return the leaf of a column, or (`inside`) of the values of a list.

        A null row that is masked hides what is below it, so within lists the policy ``"mask"`` is ``"error"``.
        """
        if isinstance(kind, pa.FixedShapeTensorType):
            inner = self._tensor(kind.value_type, path, kind.shape, kind.permutation)
            return leaves.Stored(inner)
        if isinstance(kind, pa.BaseExtensionType):
            if kind.extension_name == "arrow.bool8":
                return leaves.Stored(leaves.Numbers(self._nulls_of(pa.int8(), path, inside), _dtype("i1"), _dtype("?")))
            return leaves.Stored(self.leaf(kind.storage_type, path, inside))
        if self._option("categories", path) is not None:
            return self._codes(kind, path)
        if pa.types.is_dictionary(kind):
            return leaves.Stored(self.leaf(kind.value_type, path, inside))
        if self._option("decode", path) is not None and not inside:
            return self._images(kind, path)
        for fits, make in (
            (_is_numeric, self._numbers),
            (pa.types.is_decimal, self._decimal),
            (_is_bytes, self._bytes),
            (pa.types.is_fixed_size_list, self._fixed_size_list),
            (_is_list, self._list),
        ):
            if fits(kind):
                return make(kind, path, inside)
        if pa.types.is_struct(kind):
            return leaves.Structs(self.fields(list(kind.fields), f"{path}."))
        raise OptionError(f"column {path!r} is of type {kind}, which becomes no array: leave it out of columns=")

    def _nulls_of(self, kind: pa.DataType, path: str, inside: bool = False) -> Nulls:
        if inside and self._policy(path) == "mask":
            return Nulls(path)
        return Nulls(path, self._null_value(kind, path))

    def _numbers(self, kind: pa.DataType, path: str, inside: bool) -> Leaf:
        stored, dtype = _dtypes(kind)
        asked = self.dtype(path)
        if asked is not None and dtype.kind not in "fiub":
            raise OptionError(f"dtype={{{path!r}: '{asked}'}} goes with numbers, but the column is {kind}")
        return leaves.Numbers(self._nulls_of(kind, path, inside), stored, asked or dtype)

    def _codes(self, kind: pa.DataType, path: str) -> Leaf:
        values = kind.value_type if pa.types.is_dictionary(kind) else kind
        given = self._option("categories", path)
        try:
            categories = pa.array(given, values)
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise OptionError(f"categories={{{path!r}: …}} are no {values}: {error}") from None
        if not len(categories) or categories.null_count or len(categories.unique()) < len(categories):
            raise OptionError(f"categories={{{path!r}: …}} must be some values, without nulls, each once")
        policy, fill = self._policy(path), None
        if policy == "nan" and path in self._nulls:
            raise OptionError(f"nulls={{{path!r}: 'nan'}} goes with floating-point arrays: codes are int32")
        if policy == "mask":
            fill = 0
        elif policy == "fill":
            value = self._option("fill_null", path)
            if value not in categories.to_pylist():
                raise OptionError(f"fill_null={{{path!r}: {value!r}}} must be one of its categories")
            fill = categories.to_pylist().index(value)
        return leaves.Codes(Nulls(path), categories, fill)

    def _images(self, kind: pa.DataType, path: str) -> Leaf:
        given = self._option("decode", path)
        image = given if isinstance(given, Image) else Image(mode=given)
        if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            raise OptionError(f"decode={{{path!r}: …}} takes a column of binary, but it is {kind}")
        if self._policy(path) not in ("error", "mask"):
            raise OptionError(f"{path!r} holds images, whose nulls can be masked only: give nulls={{{path!r}: 'mask'}}")
        try:
            import PIL.Image
        except ImportError:
            raise MissingExtraError("decode= needs Pillow: pip install 'corgiarrow[images]'") from None
        return leaves.Images(Nulls(path, None, self._policy(path) == "mask"), image, PIL.Image)

    def _decimal(self, kind: pa.DataType, path: str, inside: bool) -> Leaf:
        how = self._decimals.get(path, self._decimals_default)
        nulls = self._nulls_of(kind, path, inside)
        if how == "objects":
            return leaves.Objects(nulls, Decimal)
        if how == "unscaled" and kind.precision > _MAX_UNSCALED:
            raise OptionError(
                f"decimals={{{path!r}: 'unscaled'}} takes up to {_MAX_UNSCALED} digits, but it is {kind}: choose "
                "'objects' or 'float64'"
            )
        return leaves.Decimals(nulls, kind, how == "unscaled")

    def _bytes(self, kind: pa.DataType, path: str, inside: bool) -> Leaf:
        nulls = self._nulls_of(kind, path, inside)
        shape = None if inside else self._shape(path)
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if shape is not None and text:
            raise OptionError(f"shape={{{path!r}: …}} takes lists or bytes, but the column is {kind}")
        if pa.types.is_fixed_size_binary(kind):
            return leaves.Bytes(nulls, shape or [kind.byte_width])
        if shape is not None:
            return leaves.Bytes(nulls, shape)
        if path in self._options.get("ragged", ()):
            return leaves.RaggedBytes(nulls)
        return leaves.Objects(nulls, str if text else bytes)

    def _shape(self, path: str) -> list[int] | None:
        given = self._option("shape", path)
        if given is None:
            return None
        shape = [given] if isinstance(given, int) else list(given)
        if not shape or not all(isinstance(n, int) and n > 0 for n in shape):
            raise OptionError(f"shape={{{path!r}: {given!r}}} must be whole numbers of at least 1")
        return shape

    def _fixed_size_list(self, kind: pa.DataType, path: str, inside: bool) -> Leaf:
        shape = None if inside else self._shape(path)
        if shape is not None and prod(shape) != kind.list_size:
            raise OptionError(f"shape={{{path!r}: {shape}}} takes {prod(shape)} values, but a row has {kind.list_size}")
        return self._tensor(kind.value_type, path, shape or [kind.list_size], inside=inside)

    def _tensor(
        self,
        kind: pa.DataType,
        path: str,
        shape: Sequence[int],
        permutation: Sequence[int] | None = None,
        inside: bool = False,
    ) -> Leaf:
        values = self.leaf(kind, path, inside=True)
        if not isinstance(values.spec, ArraySpec):
            return leaves.Lists(self._row_nulls(path), values)
        flat = not pa.types.is_nested(kind)
        fill = self._null_value(kind, path) if flat and not inside else None
        return leaves.Tensors(Nulls(path, fill, fill is not None), values, shape, permutation)

    def _row_nulls(self, path: str) -> Nulls:
        return Nulls(path, None, self._policy(path) == "mask")

    def _list(self, kind: pa.DataType, path: str, inside: bool) -> Leaf:
        if pa.types.is_map(kind):
            entries = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
            values = self.leaf(entries, path, inside=True)
        else:
            values = self.leaf(kind.value_type, path, inside=True)
        shape, pad = (None, None) if inside else (self._shape(path), self._option("pad", path))
        plain = isinstance(values.spec, ArraySpec)
        if (shape is not None or pad is not None) and not plain:
            raise OptionError(f"shape= and pad= take lists of numbers, but column {path!r} is {kind}")
        if shape is not None:
            return leaves.Tensors(Nulls(path), values, shape)
        lists = leaves.Lists(self._row_nulls(path), values)
        if pad is None:
            return lists
        if values.spec.dtype.kind not in "fiub":
            raise OptionError(f"pad={{{path!r}: …}} takes lists of numbers, but it is {kind}")
        return leaves.Padded(Nulls(path), lists, values, pad if isinstance(pad, Pad) else Pad(length=pad))


def _bare(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(name)


def _dtypes(kind: pa.DataType) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """Dtype of a flat type's buffer, and of its array."""
    if pa.types.is_boolean(kind):
        return _dtype("?"), _dtype("?")
    width = _dtype(f"i{kind.bit_width // 8}")
    if pa.types.is_date32(kind):
        return width, _dtype("M8[D]")
    if pa.types.is_date64(kind):
        return _dtype("M8[ms]"), _dtype("M8[ms]")
    if pa.types.is_timestamp(kind):
        return _dtype(f"M8[{kind.unit}]"), _dtype(f"M8[{kind.unit}]")
    if pa.types.is_duration(kind) or pa.types.is_time(kind):
        unit = _dtype(f"m8[{kind.unit}]")
        return (unit if kind.bit_width == 64 else width), unit
    number = np.dtype(kind.to_pandas_dtype())
    return number, number


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_time(kind)
    )


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind))


def _zero(kind: pa.DataType) -> Any:
    if pa.types.is_decimal(kind):
        return Decimal(0)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return ""
    if _is_bytes(kind):
        return bytes(kind.byte_width) if pa.types.is_fixed_size_binary(kind) else b""
    return False if pa.types.is_boolean(kind) else 0

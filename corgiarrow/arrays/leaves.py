"""From one Arrow column to arrays: a leaf for each kind of type, chosen once from the schema.

A leaf's :meth:`Leaf.convert` gives arrays of rows; :meth:`Leaf.shared` gives them for many batches at once, where that
takes no copy worth speaking of. What comes out depends on type and options only, never on the values.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from io import BytesIO
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from corgiarrow.arrays.casts import cast_checked
from corgiarrow.arrays.options import MODES, Image, Pad
from corgiarrow.arrays.values import Array, ArraySpec, Ragged
from corgiarrow.errors import ConversionError

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]


class Nulls:
    """What to do with a column's nulls.

    Parameters
    ----------
    name
        The column, for errors.
    fill
        What comes in their place, of the column's type or that of its values; None where they raise.
    masks
        Whether a null row of a list may pass as an empty one, that of an image as black.
    inside
        Whether these are nulls of a list's values, which no policy masks.
    """

    def __init__(self, name: str, fill: pa.Scalar | None = None, masks: bool = False, inside: bool = False):
        self.name, self.fill, self.masks, self.inside = name, fill, masks, inside

    def filled(self, column: pa.Array) -> pa.Array:
        """Return the column without nulls.

        Raises
        ------
        ConversionError
            It has some, and nothing to put in their place.
        """
        if not column.null_count:
            return column
        if self.fill is None:
            raise self.error(column.null_count)
        return pc.fill_null(column, self.fill)

    def error(self, count: int) -> ConversionError:
        """Return the error to raise for nulls that nothing replaces."""
        fill, nan, mask = (f"{{{self.name!r}: {value}}}" for value in ("…", "'nan'", "'mask'"))
        where = " within its lists" if self.inside else ""
        masked = "" if self.inside else f"nulls={mask}, "
        return ConversionError(
            f"column {self.name!r} has {count} nulls{where}, which no array can hold: give fill_null={fill}, {masked}"
            f"nulls={nan} for floating-point numbers, or filter these rows out"
        )


class Leaf(ABC):
    """Arrays of one column."""

    spec: Any

    @abstractmethod
    def convert(self, column: pa.Array) -> Any:
        """Return the arrays of these rows.

        Raises
        ------
        ConversionError
            Values do not fit.
        """

    def shared(self, column: pa.Array) -> Array | None:
        """Return one array ``[rows, …]`` that may be cut into batches; None where each batch is converted by itself."""
        return None


class Numbers(Leaf):
    """Numbers, booleans, points in time and spans of time.

    Parameters
    ----------
    stored, dtype
        Dtype of Arrow's buffer (bool for its bits), and of the array to give.
    """

    def __init__(self, nulls: Nulls, stored: np.dtype[Any], dtype: np.dtype[Any]):
        self._nulls, self._stored, self._dtype = nulls, stored, dtype
        # Dates, and times of 32 bits, are counted in 64 by NumPy.
        self._counts = dtype.kind in "mM" and stored.itemsize < dtype.itemsize
        self.spec = ArraySpec(dtype, (None,))

    def convert(self, column: pa.Array) -> Array:
        column = self._nulls.filled(column)
        bits = self._stored.kind == "b"
        found: Array = column.to_numpy(zero_copy_only=False) if bits else view(column, self._stored)
        if self._counts:
            counts: Array = found.astype(np.int64).view(self._dtype)
            return counts
        return cast_checked(found, self._dtype, self._nulls.name)

    def shared(self, column: pa.Array) -> Array | None:
        return self.convert(column) if self._stored == self._dtype and not column.null_count else None


class Codes(Leaf):
    """Places of values in a list of categories, int32 or the dtype asked for."""

    def __init__(self, nulls: Nulls, categories: pa.Array, fill: int | None, dtype: np.dtype[Any]):
        self._nulls, self._categories, self._fill, self._dtype = nulls, categories, fill, dtype
        self.spec = ArraySpec(dtype, (None,))

    def convert(self, column: pa.Array) -> Array:
        if isinstance(column, pa.DictionaryArray):
            codes = pc.index_in(column.dictionary, value_set=self._categories).take(column.indices)
        else:
            codes = pc.index_in(column, value_set=self._categories)
        if codes.null_count:
            unknown = pc.and_(codes.is_null(), column.is_valid())
            if pc.any(unknown).as_py():
                value = column.filter(unknown)[0]
                raise ConversionError(
                    f"column {self._nulls.name!r} holds {value}, which is none of its {len(self._categories)} "
                    f"categories: add it to categories={{{self._nulls.name!r}: [...]}}, or filter these rows out"
                )
            if self._fill is None:
                raise self._nulls.error(codes.null_count)
            codes = pc.fill_null(codes, self._fill)
        return cast_checked(view(codes, np.dtype(np.int32)), self._dtype, self._nulls.name)

    def shared(self, column: pa.Array) -> Array | None:
        # Each call builds a table of all categories; the codes are small.
        return self.convert(column)


class Objects(Leaf):
    """Text, bytes or decimals, as Python objects."""

    def __init__(self, nulls: Nulls, content: type):
        self._nulls = nulls
        self.spec = ArraySpec(np.dtype(object), (None,), content)

    def convert(self, column: pa.Array) -> Array:
        filled = self._nulls.filled(column)
        found = np.empty(len(filled), dtype=object)
        found[:] = filled.to_pylist()
        return found


_EXACT_DIGITS, _EXACT_POWER = 15, 22
"""Whole numbers of so many digits are exact as float64, and so are powers of ten up to this one."""


class Decimals(Leaf):
    """Decimals as whole numbers of their last digit, int64, or as the nearest float64."""

    def __init__(self, nulls: Nulls, kind: pa.DataType, unscaled: bool):
        self._nulls, self._kind, self._unscaled = nulls, kind, unscaled
        self.spec = ArraySpec(np.dtype(np.int64 if unscaled else np.float64), (None,))

    def convert(self, column: pa.Array) -> Array:
        column = self._nulls.filled(column)
        if self._unscaled:
            return self._counts(column)
        # Arrow's own cast is often off by the last bit. A division of two exact numbers is not.
        if self._kind.precision <= _EXACT_DIGITS and 0 <= self._kind.scale <= _EXACT_POWER:
            quotients: Array = self._counts(column) / 10.0**self._kind.scale
            return quotients
        return np.array([float(value) for value in column.to_pylist()], dtype=np.float64)

    def _counts(self, column: pa.Array) -> Int64s:
        words = self._kind.bit_width // 64
        if words == 0:
            return view(column, np.dtype(np.int32)).astype(np.int64)
        if words == 1:
            return view(column, np.dtype(np.int64))
        lowest: Int64s = view(column, np.dtype((np.int64, words)))[:, 0].copy()  # It holds all that fits into int64.
        return lowest


class Tensors(Leaf):
    """Rows of one shape: fixed-size lists, tensors, lists that `shape=` fixes.

    Parameters
    ----------
    values
        The leaf of the values, which gives plain arrays.
    stored
        Shape of each row as Arrow stores it.
    permutation
        Order of its axes to give, None for as stored.
    blank
        What a null row consists of; None where it raises.
    """

    def __init__(
        self,
        nulls: Nulls,
        values: Leaf,
        stored: Sequence[int],
        permutation: Sequence[int] | None = None,
        blank: Any = None,
    ):
        self._nulls, self._values, self._stored, self._blank = nulls, values, tuple(stored), blank
        self._axes = None if permutation is None else (0, *(axis + 1 for axis in permutation))
        shape = self._stored if permutation is None else tuple(self._stored[axis] for axis in permutation)
        inner = values.spec
        self._shape = (*shape, *inner.shape[1:])
        self.spec = ArraySpec(inner.dtype, (None, *self._shape), inner.content)

    def convert(self, column: pa.Array) -> Array:
        if not column.null_count:
            return self._shaped(self._values.convert(self._rows(column)), len(column))
        if self._blank is None:
            raise self._nulls.error(column.null_count)
        # What lies below a null row is anything, so only the others are converted.
        found = np.full((len(column), *self._shape), self._blank, dtype=self.spec.dtype)
        found[column.is_valid().to_numpy(zero_copy_only=False)] = self.convert(column.drop_null())
        return found

    def shared(self, column: pa.Array) -> Array | None:
        if column.null_count or self._axes is not None:
            return None
        found = self._values.shared(self._rows(column))
        return None if found is None else self._shaped(found, len(column))

    def _shaped(self, values: Array, rows: int) -> Array:
        found = values.reshape(rows, *self._stored, *values.shape[1:])
        if self._axes is None:
            return found
        return np.ascontiguousarray(found.transpose(*self._axes, *range(len(self._axes), found.ndim)))

    def _rows(self, column: pa.Array) -> pa.Array:
        """Return the values of all rows, none of which is null."""
        values, offsets = extents(column)
        lengths, size = np.diff(offsets), prod(self._stored)
        if (lengths != size).any():
            raise _shape_error(self._nulls.name, int(lengths[lengths != size][0]), size, self._stored)
        return values


class Bytes(Leaf):
    """Raw bytes: each row of binary, or of fixed-size binary, as uint8 of one shape."""

    def __init__(self, nulls: Nulls, shape: Sequence[int]):
        self._nulls, self._shape = nulls, tuple(shape)
        self.spec = ArraySpec(np.dtype(np.uint8), (None, *self._shape))

    def convert(self, column: pa.Array) -> Array:
        column, size = self._nulls.filled(column), prod(self._shape)
        if pa.types.is_fixed_size_binary(column.type):
            return view(column, np.dtype((np.uint8, (size,)))).reshape(len(column), *self._shape)
        data, offsets = bytes_of(column)
        lengths = np.diff(offsets)
        if (lengths != size).any():
            raise _shape_error(self._nulls.name, int(lengths[lengths != size][0]), size, self._shape)
        return data.reshape(len(column), *self._shape)

    def shared(self, column: pa.Array) -> Array | None:
        return None if column.null_count else self.convert(column)


class RaggedBytes(Leaf):
    """Text or bytes as uint8 and offsets."""

    def __init__(self, nulls: Nulls):
        self._nulls = nulls
        self.spec = Ragged(ArraySpec(np.dtype(np.uint8), (None,)), _OFFSETS)

    def convert(self, column: pa.Array) -> Ragged:
        return Ragged(*bytes_of(self._nulls.filled(column)))


class Lists(Leaf):
    """Lists of anything, and maps, as their values and offsets."""

    def __init__(self, nulls: Nulls, values: Leaf):
        self._nulls, self._values = nulls, values
        self.spec = Ragged(values.spec, _OFFSETS)

    def convert(self, column: pa.Array) -> Ragged:
        values, offsets = self.parts(column)
        return Ragged(self._values.convert(values), offsets)

    def parts(self, column: pa.Array) -> tuple[pa.Array, Int64s]:
        """Return the values of all rows, and where each row begins and ends; null rows are empty."""
        if not column.null_count:
            return extents(column)
        if not self._nulls.masks:
            raise ConversionError(
                f"column {self._nulls.name!r} has {column.null_count} null lists, which differ from empty ones: "
                f"give nulls={{{self._nulls.name!r}: 'mask'}}, or filter these rows out"
            )
        values, packed = extents(column.drop_null())
        lengths = np.zeros(len(column), dtype=np.int64)
        lengths[column.is_valid().to_numpy(zero_copy_only=False)] = np.diff(packed)
        return values, np.concatenate([[0], np.cumsum(lengths)])


class Padded(Leaf):
    """Lists of numbers as rows of one length."""

    def __init__(self, nulls: Nulls, lists: Lists, values: Leaf, pad: Pad):
        self._nulls, self._lists, self._values, self._pad = nulls, lists, values, pad
        inner: ArraySpec = values.spec
        self._fill = cast_checked(np.array([pad.value]), inner.dtype, nulls.name)[0]
        self.spec = ArraySpec(inner.dtype, (None, pad.length, *inner.shape[1:]))

    def convert(self, column: pa.Array) -> Array:
        listed, offsets = self._lists.parts(column)
        values: Array = self._values.convert(listed)
        lengths, length = np.diff(offsets), self._pad.length
        if len(lengths) and lengths.max() > length:
            if not self._pad.truncate:
                row = int(np.argmax(lengths))
                raise ConversionError(
                    f"column {self._nulls.name!r} has a list of {lengths[row]} values, more than the {length} of "
                    f"pad={{{self._nulls.name!r}: {length}}}: give a larger length, or Pad(length=…, truncate=True)"
                )
            values = values[np.arange(len(values)) - np.repeat(offsets[:-1], lengths) < length]
        found = np.full((len(column), length, *values.shape[1:]), self._fill, dtype=values.dtype)
        found[np.arange(length) < lengths[:, None]] = values
        return found


class Images(Leaf):
    """Encoded images as pixels."""

    def __init__(self, nulls: Nulls, image: Image):
        self._nulls, self._image = nulls, image
        self._pixel = MODES[image.mode]
        dtype = np.dtype(np.uint8 if image.size else object)
        shape = (None, *image.size, *self._pixel) if image.size else (None,)
        self.spec = ArraySpec(dtype, shape, None if image.size else np.ndarray)

    def convert(self, column: pa.Array) -> Array:
        if column.null_count and not self._nulls.masks:
            raise self._nulls.error(column.null_count)
        size = self._image.size
        if size:
            found = np.zeros((len(column), *size, *self._pixel), dtype=np.uint8)
        else:
            found = np.empty(len(column), dtype=object)
        for row, encoded in enumerate(column):
            if encoded.is_valid:
                found[row] = self._pixels(encoded.as_buffer())
            elif not size:
                found[row] = np.zeros((0, 0, *self._pixel), dtype=np.uint8)
        return found

    def _pixels(self, encoded: pa.Buffer) -> Array:
        import PIL.Image as pillow  # noqa: N813 - an extra, and no module that is held can be pickled

        name = self._nulls.name
        try:
            with pillow.open(BytesIO(encoded)) as image:
                limit = pillow.MAX_IMAGE_PIXELS
                if limit is not None and image.width * image.height > limit:
                    raise ConversionError(
                        f"column {name!r} has an image of {image.width} × {image.height} pixels, more than Pillow's "
                        f"limit of {limit}: raise PIL.Image.MAX_IMAGE_PIXELS if you trust the data"
                    )
                # Pillow has no mode for 16 bits of several channels: it would drop half of them.
                if image.mode.startswith(("I", "F")) or any(";16" in str(tile) for tile in image.tile):
                    raise ConversionError(
                        f"column {name!r} has an image of {image.mode!r} whose values do not fit into uint8: leave it "
                        "as bytes, and decode it in transform="
                    )
                converted = image.convert(self._image.mode)
                if self._image.size and converted.size != (wanted := self._image.size[::-1]):
                    converted = converted.resize(wanted, pillow.Resampling.BILINEAR)
                return np.array(converted)
        except (ConversionError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - Pillow's readers raise what they like on broken bytes
            raise ConversionError(
                f"column {name!r} has an image that cannot be decoded: {error}; filter these rows out, or read the "
                "column as bytes"
            ) from None


class Structs(Leaf):
    """Structs as dicts of their fields."""

    def __init__(self, fields: Sequence[tuple[str, int, Leaf]]):
        self._fields = fields
        self.spec = {name: leaf.spec for name, _, leaf in fields}

    def convert(self, column: pa.Array) -> dict[str, Any]:
        parts = column.flatten()
        return {name: leaf.convert(parts[place]) for name, place, leaf in self._fields}


class Valid(Leaf):
    """Which rows are no nulls, bool."""

    spec = ArraySpec(np.dtype(np.bool_), (None,))

    def convert(self, column: pa.Array) -> Array:
        found: Array = column.is_valid().to_numpy(zero_copy_only=False)
        return found


class Stored(Leaf):
    """An extension type, a dictionary or run-end encoding, as what it stands for."""

    def __init__(self, inner: Leaf):
        self._inner = inner
        self.spec = inner.spec

    def convert(self, column: pa.Array) -> Any:
        return self._inner.convert(_plain(column))

    def shared(self, column: pa.Array) -> Array | None:
        # What a dictionary spells out is a copy, so made for one batch at a time.
        return self._inner.shared(_plain(column)) if isinstance(column, pa.ExtensionArray) else None


def _plain(column: pa.Array) -> pa.Array:
    if isinstance(column, pa.Bool8Array):
        return pc.not_equal(column.storage, 0)
    if isinstance(column, pa.ExtensionArray):
        return column.storage
    return column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column


_OFFSETS = ArraySpec(np.dtype(np.int64), (None,))


def view(column: pa.Array, dtype: np.dtype[Any]) -> Array:
    """Return the values of an array of fixed width, whatever lies below nulls, in Arrow's own memory.

    A copy only where that memory may not be written: what is handed out is the caller's, to change in place.
    """
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return np.zeros(len(column), dtype=dtype)
    found = np.frombuffer(buffer, dtype, len(column), column.offset * dtype.itemsize)
    return found if found.flags.writeable else found.copy()


def extents(column: pa.Array) -> tuple[pa.Array, Int64s]:
    """Return the values of lists or maps without null rows, and where each row begins and ends, from 0."""
    if pa.types.is_fixed_size_list(column.type):
        size = column.type.list_size
        return column.values.slice(column.offset * size, len(column) * size), np.arange(len(column) + 1) * size
    offsets = _offsets(column)
    if isinstance(column, pa.MapArray):
        values = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])
    else:
        values = column.values
    return values.slice(offsets[0], offsets[-1] - offsets[0]), offsets - offsets[0]


def bytes_of(column: pa.Array) -> tuple[npt.NDArray[np.uint8], Int64s]:
    """Return the bytes of text or binary without nulls, and where each row begins and ends, from 0."""
    offsets = _offsets(column)
    buffer, count = column.buffers()[2], int(offsets[-1] - offsets[0])
    if buffer is None or not count:
        return np.zeros(0, dtype=np.uint8), offsets - offsets[0]
    found = np.frombuffer(buffer, np.uint8, count, int(offsets[0]))
    return found if found.flags.writeable else found.copy(), offsets - offsets[0]


def _offsets(column: pa.Array) -> Int64s:
    if not len(column):
        return np.zeros(1, dtype=np.int64)
    kind = column.type
    wide = pa.types.is_large_list(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind)
    stored = np.dtype(np.int64 if wide else np.int32)
    found = np.frombuffer(column.buffers()[1], stored, len(column) + 1, column.offset * stored.itemsize)
    return found.astype(np.int64)


def _shape_error(name: str, found: int, wanted: int, shape: Sequence[int]) -> ConversionError:
    return ConversionError(
        f"column {name!r} has a row of {found} values, but shape={{{name!r}: {tuple(shape)}}} takes {wanted}: give "
        "another shape, or none, or pad= for lists of numbers"
    )

"""What a user may ask of the arrays that batches become."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from corgiarrow.errors import OptionError

NULL_POLICIES = ("error", "nan", "mask")
DECIMALS = ("objects", "unscaled", "float64")
MODES = {"L": (), "RGB": (3,), "RGBA": (4,)}
"""Pillow's modes that images may be decoded to, with the shape of a pixel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pad:
    """Lists of numbers as rows of one length.

    Parameters
    ----------
    length
        Values of a row, at least 1.
    value
        What fills rows that are shorter.
    truncate
        Cut rows that are longer, instead of raising.
    """

    length: int
    value: float = 0
    truncate: bool = False

    def __post_init__(self) -> None:
        if not is_whole(self.length) or self.length < 1:
            raise OptionError(f"length={self.length!r} must be a whole number of at least 1")
        if not isinstance(self.value, (bool, int, float, np.number)):
            raise OptionError(f"value={self.value!r} must be a number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """Encoded images (PNG, JPEG, whatever Pillow reads) as uint8 pixels.

    Parameters
    ----------
    mode
        ``"L"`` (grey, ``[height, width]``), ``"RGB"`` (``[height, width, 3]``) or ``"RGBA"``.
    size
        Height and width that every image is resized to (bilinear) where it has another. With None, images keep their
        sizes and come as a list of arrays.
    """

    mode: str = "RGB"
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.mode, str) or self.mode not in MODES:
            raise OptionError(f"mode={self.mode!r} must be one of: {', '.join(MODES)}")
        if self.size is None:
            return
        pair = isinstance(self.size, (tuple, list)) and len(self.size) == 2
        if not pair or not all(is_whole(n) and n >= 1 for n in self.size):
            raise OptionError(f"size={self.size!r} must be a height and a width, whole numbers of at least 1")


class ColumnOptions(TypedDict, total=False):
    """How columns become arrays. Columns go by name, fields of a struct column as ``"a.b"``.

    Attributes
    ----------
    stack
        Matrices to make of several columns of numbers: ``{"x": ["f0", "f1"]}`` gives ``x`` of shape ``[B, 2]`` in the
        place of both. Their common dtype must hold all values exactly, or be given in `dtype`.
    nulls
        What to do with nulls, for all columns or by name: ``"error"`` (the default), ``"nan"`` (of floating-point
        columns), or ``"mask"``, which puts zeros in their place and adds a column ``<name>_valid``, false where a null
        was.
    fill_null
        Values to put in the place of nulls, by name.
    categories
        Columns (or lists) whose values become int32 codes: the place of each in the list given, or in what
        :func:`corgiarrow.loader.find_categories` found.
    pad
        Lists of numbers that become rows of one length: a number, or a :class:`Pad`.
    shape
        Shape of each row of a list, or of raw bytes (then uint8), by name; every row must have just so many values.
    decode
        Columns of encoded images: an :class:`Image`, or its mode.
    dtype
        Dtype to convert numbers to, by name of a column or a stack. Floating-point numbers may be rounded; a whole
        number that changes raises.
    decimals
        ``"objects"`` (:class:`decimal.Decimal`, the default), ``"unscaled"`` (int64, in units of the last digit) or
        ``"float64"`` (the nearest), for all columns or by name.
    ragged
        Columns of text or bytes that become a :class:`Ragged` of uint8 instead of objects.
    """

    stack: Mapping[str, Sequence[str]]
    nulls: str | Mapping[str, str]
    fill_null: Mapping[str, Any]
    categories: Mapping[str, Sequence[Any]]
    pad: Mapping[str, int | Pad]
    shape: Mapping[str, int | Sequence[int]]
    decode: Mapping[str, str | Image]
    dtype: Mapping[str, npt.DTypeLike]
    decimals: str | Mapping[str, str]
    ragged: Sequence[str]


class ArrayOptions(ColumnOptions, total=False):
    """Options of :class:`Converter`: those of :class:`ColumnOptions`, and sparse rows.

    Attributes
    ----------
    sparse
        Matrices to make of two list columns each, the indices and the values of sparse rows, in the place of both:
        ``{"x": ("features_k", "features_v", dimension)}`` gives ``x``, a ``scipy.sparse.csr_array`` ``[B, dimension]``
        of the values' dtype, or that of `dtype`. Values of an index that a row names again are added up. Nulls always
        raise.
    """

    sparse: Mapping[str, tuple[str, str, int]]


def is_whole(value: object) -> bool:
    """Whether a value is a whole number, and no bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)

"""What arrays come in: their specification, ragged rows, and how a framework takes them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Ragged(NamedTuple):
    """Rows of differing lengths: row ``i`` is ``values[offsets[i]:offsets[i + 1]]``.

    Attributes
    ----------
    values
        All rows' values, one after the other: an array ``[N, …]``, or what else the values of the column become.
    offsets
        int64 ``[B + 1]``, from 0.
    """

    values: Any
    offsets: Any


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Dtype and shape of an array.

    Attributes
    ----------
    dtype
        NumPy's dtype; object for text, bytes and decimals.
    shape
        Its shape; None where batches differ.
    content
        The Python type of the objects where dtype is object: ``str``, ``bytes``, ``decimal.Decimal``, or
        ``numpy.ndarray`` for images that keep their sizes.
    """

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    content: type | None = None


@dataclass(frozen=True, slots=True)
class SparseSpec:
    """Dtype and shape of a matrix of sparse rows, a ``scipy.sparse.csr_array``.

    Attributes
    ----------
    dtype
        NumPy's dtype of its values.
    shape
        ``(None, dimension)``.
    """

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]


class Out(Protocol):
    """How a framework takes arrays over."""

    def whole(self, array: Any) -> Any:
        """Return an array, or a ``csr_array``, as the framework's own, without a copy where it can."""

    def split(self, array: Array, size: int) -> Sequence[Any]:
        """Cut an array into parts of `size` rows (the last may be shorter), each as the framework's own."""


class NumpyOut:
    """Arrays as they are."""

    def whole(self, array: Any) -> Any:
        """Return the array."""
        return array

    def split(self, array: Array, size: int) -> Sequence[Any]:
        """Return views of it."""
        return [array[first : first + size] for first in range(0, len(array), size)]


def is_sparse(value: Any) -> bool:
    """Whether a value is a ``csr_array`` of SciPy, which need not be there."""
    return getattr(value, "format", None) == "csr"


def map_leaves(change: Callable[[Any], Any], value: Any) -> Any:
    """Return a tree of dicts and :class:`Ragged` with each leaf changed."""
    if isinstance(value, Mapping):
        return {name: map_leaves(change, part) for name, part in value.items()}
    if isinstance(value, Ragged):
        return Ragged(map_leaves(change, value.values), map_leaves(change, value.offsets))
    return change(value)

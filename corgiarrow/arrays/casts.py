"""Casts of numbers that raise where a whole number would change."""

from typing import Any

import numpy as np

from corgiarrow.arrays.values import Array
from corgiarrow.errors import ConversionError


def holds_all(wide: np.dtype[Any], narrow: np.dtype[Any]) -> bool:
    """Whether every value of `narrow` is exactly a value of `wide`: NumPy's rule, but for 64-bit numbers as floats."""
    if wide.kind == "f" and narrow.kind in "iu" and narrow.itemsize >= 8:
        return False
    return np.can_cast(narrow, wide, "safe")


def cast_checked(values: Array, dtype: np.dtype[Any], name: str) -> Array:
    """Return numbers in another dtype.

    Floating-point numbers are rounded to narrower ones; whole numbers, and what becomes one, must stay as they are.

    Raises
    ------
    ConversionError
        A value does not fit; the text names column `name`, the value and the dtype.
    """
    if values.dtype == dtype:
        return values
    with np.errstate(all="ignore"):
        found = values.astype(dtype)
    if holds_all(dtype, values.dtype) or not values.size:
        return found
    changed = _changed(values, found)
    if changed.any():
        value = values[changed].flat[0]
        raise ConversionError(
            f"column {name!r} holds {value}, which is no {dtype}: give dtype={{{name!r}: …}} a dtype that holds it, or "
            f"none, which keeps {values.dtype}"
        )
    return found


def _changed(values: Array, found: Array) -> Any:
    before, after = values.dtype.kind, found.dtype.kind
    if before == "f" and after == "f":
        return np.isfinite(values) & ~np.isfinite(found)
    if before == "f":
        low, high = (0, 1) if after == "b" else (np.iinfo(found.dtype).min, np.iinfo(found.dtype).max)
        if values.dtype.itemsize < 8:
            values = values.astype(np.float64)  # The bounds need not fit into theirs.
        # The greatest number itself need not be a float, the one above it is.
        return ~((values >= low) & (values < float(int(high) + 1)) & (np.trunc(values) == values))
    if after == "b":
        return (values != 0) & (values != 1)
    if after == "f":
        return _rounded(values, found)
    info = np.iinfo(found.dtype)
    if int(values.min()) >= info.min and int(values.max()) <= info.max:
        return np.zeros(values.shape, dtype=np.bool_)
    return np.array([not info.min <= int(v) <= info.max for v in values.flat]).reshape(values.shape)


def _rounded(values: Array, found: Array) -> Any:
    """Which whole numbers are not what they were as floating-point numbers."""
    exact = 2 ** (np.finfo(found.dtype).nmant + 1)
    changed = (values > exact) | (values < -exact)
    # Beyond, some are exact all the same. Python compares a whole number with a float exactly.
    changed[changed] = [int(v) != float(f) for v, f in zip(values[changed], found[changed], strict=True)]
    return changed

"""A cast never changes a whole number silently, raises only where it would, and rounds floats only."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from conftest import half_floats
from hypothesis import given, settings
from hypothesis import strategies as st

import corgiarrow as ca
from corgiarrow.arrays.casts import cast_checked, holds_all

INTEGERS = [np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)]
FLOATS = [np.dtype(f"f{size}") for size in (2, 4, 8)]
BOOL = np.dtype("?")
DTYPES = [BOOL, *INTEGERS, *FLOATS]
EDGES = sorted(
    {
        sign * edge + step
        for edge in (0, 1, *(2**n for n in (7, 8, 11, 15, 16, 24, 31, 32, 53, 60, 63, 64)), 65504, 65520)
        for sign in (1, -1)
        for step in range(-2, 3)
    }
)


def edges(dtype: np.dtype[Any]) -> list[Any]:
    """Those that the dtype holds exactly."""
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            rounded = np.array(EDGES, dtype="f8").astype(dtype).tolist()
        return [found for found, edge in zip(rounded, EDGES, strict=True) if found == edge]
    low, high = (0, 1) if dtype == BOOL else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    return [edge for edge in EDGES if low <= edge <= high]


def values(dtype: np.dtype[Any]) -> st.SearchStrategy[Any]:
    some = st.sampled_from(edges(dtype))
    if dtype == BOOL:
        return some
    if dtype.kind in "iu":
        return some | st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    special = [0.5, -0.0, float("nan"), float("inf"), -float("inf"), float(np.finfo(dtype).max)]
    usual = half_floats() if dtype.itemsize == 2 else st.floats(width=8 * dtype.itemsize)
    return some | st.sampled_from(special) | usual


def changes(value: Any, found: Any, source: np.dtype[Any], target: np.dtype[Any]) -> bool:
    """Whether a value may not become this, by exact arithmetic."""
    if source.kind == "f" and target.kind == "f":
        return bool(np.isfinite(value)) and not bool(np.isfinite(found))
    if source.kind == "f" and not np.isfinite(value):
        return True
    exact = Fraction(value.item())
    if target == BOOL:
        return exact not in (0, 1)
    if target.kind in "iu":
        info = np.iinfo(target)
        return exact.denominator != 1 or not info.min <= exact <= info.max
    return not np.isfinite(found) or Fraction(float(found)) != exact


@settings(max_examples=400)
@given(st.data())
def test_casts(data: st.DataObject) -> None:
    source, target = data.draw(st.sampled_from(DTYPES)), data.draw(st.sampled_from(DTYPES))
    given_values = np.array(data.draw(st.lists(values(source), max_size=4)), dtype=source)
    before = given_values.copy()
    with np.errstate(all="ignore"):
        plain = given_values.astype(target)
    bad = [v for v, f in zip(given_values, plain, strict=True) if changes(v, f, source, target)]
    for array in (given_values, given_values.reshape(-1, 1)):
        if bad:
            with pytest.raises(ca.ConversionError, match="column 'c' holds") as error:
                cast_checked(array, target, "c")
            assert f"holds {bad[0]}, which is no {target}" in str(error.value)
        else:
            found = cast_checked(array, target, "c")
            assert found.dtype == target
            assert found.tobytes() == plain.tobytes()
    assert given_values.tobytes() == before.tobytes()


@pytest.mark.parametrize("source", DTYPES, ids=str)
@pytest.mark.parametrize("target", DTYPES, ids=str)
def test_a_dtype_that_holds_all_never_raises(source: np.dtype[Any], target: np.dtype[Any]) -> None:
    """And one that does not raises for the numbers at its edges."""
    raised = False
    for edge in [*edges(source), *([float("inf")] if source.kind == "f" else [])]:
        try:
            found = cast_checked(np.array([edge], dtype=source), target, "c")
        except ca.ConversionError:
            raised = True
        else:
            assert found.tolist() == [edge] or source.kind == target.kind == "f"
    narrower = target == np.float16 and source.kind == "f" and source != target
    assert raised == (narrower or not (holds_all(target, source) or source.kind == target.kind == "f"))


def test_the_same_dtype_is_no_copy() -> None:
    array = np.arange(3)
    assert cast_checked(array, np.dtype("i8"), "c") is array
    assert cast_checked(np.zeros(0), np.dtype("i1"), "c").dtype == np.int8

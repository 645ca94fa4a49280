"""What is known of columns after one pass, means or greatest values, and features brought to one scale by it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from corgiarrow.errors import OptionError

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Scaling:
    """What brings columns to mean 0 and one scale.

    Attributes
    ----------
    mean, scale
        ``(values - mean) / scale``, float64 ``[columns]``; no scale is 0.
    """

    mean: Floats
    scale: Floats

    def apply(self, values: npt.NDArray[Any]) -> Floats:
        """Return scaled values, float64 ``[rows, columns]``; NaN stays NaN."""
        found: Floats = (values - self.mean) / self.scale
        return found

    def apply_sparse(self, rows: Any) -> Any:
        """Return sparse rows, a ``csr_array``, divided by the scales: for them the mean must be 0."""
        return type(rows)((rows.data / self.scale[rows.indices], rows.indices, rows.indptr), shape=rows.shape)

    def undo(self, values: npt.NDArray[Any]) -> Floats:
        """Return values as they were before they were scaled."""
        found: Floats = values * self.scale + self.mean
        return found


class Moments:
    """Mean and deviation of each column, over batches: exact also where the mean is large.

    Only finite values count. They are counted from the first one of their column, so that a constant column has no
    deviation at all, and joined by the update of Chan, Golub and LeVeque (1983).
    """

    def __init__(self, columns: int):
        self._origin = np.zeros(columns)
        self._count = np.zeros(columns)
        self._mean = np.zeros(columns)
        self._squares = np.zeros(columns)

    def update(self, values: npt.NDArray[Any]) -> None:
        """Add rows, ``[rows, columns]``."""
        if not len(values):
            return
        known = np.isfinite(values)
        first = values[known.argmax(0), np.arange(values.shape[1])]
        seen = known.sum(0)
        self._origin = np.where((self._count == 0) & (seen > 0), first, self._origin)
        shifted = np.where(known, values, self._origin) - self._origin
        mean = shifted.sum(0) / np.maximum(seen, 1)
        squares = (np.where(known, shifted - mean, 0.0) ** 2).sum(0)
        total = np.maximum(self._count + seen, 1)
        shift = mean - self._mean
        self._squares += squares + shift**2 * self._count * seen / total
        self._mean += shift * seen / total
        self._count += seen

    @property
    def count(self) -> Floats:
        """Finite values, float64 ``[columns]``."""
        return self._count

    @property
    def mean(self) -> Floats:
        """Their mean, float64 ``[columns]``; 0 where there is none."""
        found: Floats = self._origin + self._mean
        return found

    @property
    def squares(self) -> Floats:
        """Sum of the squares of their differences from the mean, float64 ``[columns]``."""
        return self._squares

    def scaling(self, *, unit_rows: bool = False) -> Scaling:
        """Return what brings the columns to mean 0 and deviation 1; columns without a deviation only to mean 0.

        Parameters
        ----------
        unit_rows
            Make rows about 1 long instead, which lets one step size serve any number of columns.
        """
        deviation = np.sqrt(self._squares / np.maximum(self._count, 1))
        scale = np.where(deviation > 0, deviation, 1.0)
        return Scaling(self.mean, scale * np.sqrt(len(scale)) if unit_rows else scale)


class Sizes:
    """Greatest absolute value of each column of sparse rows, over batches.

    Beside it lies the sum of squares, of values divided by that greatest one, so that none becomes infinite.

    Parameters
    ----------
    dimension
        Columns; None for one more than the greatest index that comes.
    """

    def __init__(self, dimension: int | None):
        self._given = dimension
        self._columns = dimension or 0
        self._greatest = np.zeros(self._columns)
        self._squares = np.zeros(self._columns)
        self._rows = 0

    def update(self, rows: Any) -> None:
        """Add rows, a ``csr_array`` of finite values with each index once in a row."""
        self._rows += rows.shape[0]
        indices, sizes = rows.indices, np.abs(rows.data)
        if not len(indices):
            return
        if self._given is None:
            self._columns = max(self._columns, int(indices.max()) + 1)
            more = self._columns - len(self._greatest)
            if more > 0:
                more = max(more, len(self._greatest))
                self._greatest, self._squares = (np.pad(x, (0, more)) for x in (self._greatest, self._squares))
        before = self._greatest[indices]
        np.maximum.at(self._greatest, indices, sizes)
        now = self._greatest[indices]
        now[now == 0] = 1.0
        # A column that is there several times is assigned the same each time.
        self._squares[indices] *= (before / now) ** 2
        np.add.at(self._squares, indices, (sizes / now) ** 2)

    def scaling(self, *, unit_rows: bool = False) -> Scaling:
        """Return what brings each column to [-1, 1], and 0 to 0; columns of nothing but zeros stay.

        Parameters
        ----------
        unit_rows
            Make rows about 1 long instead, the mean of the squares of their lengths 1.

        Raises
        ------
        OptionError
            No row has an index, and no dimension was given.
        """
        if not self._columns:
            raise OptionError("no sparse row has an index, so there is no feature to learn from: give dimension=")
        greatest = self._greatest[: self._columns]
        scale = np.where(greatest > 0, greatest, 1.0)
        total = float(self._squares.sum())
        factor = np.sqrt(total / self._rows) if unit_rows and total else 1.0
        return Scaling(np.zeros(self._columns), scale * factor)

"""Which rows of a dataset are read: those that a filter keeps and that lie in one part of a split."""

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from corgiarrow.errors import OptionError
from corgiarrow.index import BlockIndex, Int64s
from corgiarrow.schemas import Column
from corgiarrow.sources.filters import RowFilter
from corgiarrow.split import Split, can_hash


class Selection:
    """A filter and a part of a split, or one of them or none, bound to a dataset.

    Parameters
    ----------
    index
        The dataset.
    filter
        What rows must satisfy.
    split
        The part in which they must lie.

    Attributes
    ----------
    key
        Text that tells the selection from others; empty when it is everything.
    options
        Names of the options that select, as they may stand in an error.
    by_rows
        Whether only some rows of a row group may be selected, so that they must be counted.
    columns
        Columns that tell which.
    groups
        Row groups that may have selected rows, as far as nothing is read to know them, bool [row groups].

    Raises
    ------
    ColumnNotFoundError
        A column that filter or split name is in no file.
    OptionError
        One of them does not fit the data, or the index was built for another filter.
    """

    def __init__(self, index: BlockIndex, filter: pc.Expression | None, split: Split | None):
        if split is not None and not isinstance(split, Split):
            raise OptionError(f"split={split!r} must be a corgiarrow.Split, such as Split(part='train')")
        self.filter = None if filter is None else RowFilter(index, filter)
        self.split = split
        self._check_index(index, filter)
        self.groups: npt.NDArray[np.bool_] = np.ones(len(index.group_rows), dtype=np.bool_)
        self.columns = list(self.filter.columns) if self.filter else []
        self._hashed: int | None = None
        """Place of the column by which the split goes."""
        if split is not None and split.by is None:
            paths = [file.path for file in index.files]
            self.groups = split.groups(paths, index.group_file, index.group_number, index.group_rows)
        elif split is not None and split.by is not None:
            column = _column_to_hash(index, split.by)
            if column.path not in [c.path for c in self.columns]:
                self.columns.append(column)
            self._hashed = [c.path for c in self.columns].index(column.path)
        self.by_rows = self.filter is not None or self._hashed is not None
        self.options = " and ".join(n for n, given in (("filter=", filter), ("split=", split)) if given is not None)

    def _check_index(self, index: BlockIndex, filter: pc.Expression | None) -> None:
        if not index.path_filter:
            return
        if self.filter is None or self.filter.key != index.path_filter:
            raise OptionError(
                f"the index was built with a filter and lacks files that it excludes; filter={filter} is another: "
                "build the index without filter=, or read it with the same"
            )
        if self.split is not None and self.split.by is None:
            raise OptionError(
                "the index was built with a filter and lacks files that it excludes, but split= chooses among the row "
                "groups of all files: build the index without filter=, or hold out rows by a column, as by='id'"
            )

    @property
    def key(self) -> str:
        """Text that tells this selection from others, empty when everything is selected."""
        return self._key(self.split)

    @property
    def other_key(self) -> str:
        """Key of the same filter with the other part of the split."""
        return self._key(None if self.split is None else self.split.other)

    def _key(self, split: Split | None) -> str:
        chosen = "" if self.filter is None else self.filter.key
        return chosen if split is None else hashlib.sha256(f"{chosen}{split.key}".encode()).hexdigest()[:16]

    def kept(self, columns: Sequence[pa.ChunkedArray]) -> Int64s:
        """Numbers of the rows that are selected, int64, ascending; `columns` are those of :attr:`columns`."""
        kept: Int64s | None = None
        if self.filter is not None:
            kept = self.filter.kept(columns[: len(self.filter.columns)])
        if self.split is not None and self._hashed is not None:
            in_part = self.split.rows(columns[self._hashed])
            kept = np.flatnonzero(in_part) if kept is None else kept[in_part[kept]]
        assert kept is not None, "nothing tells rows apart"
        return kept

    def possible(self, index: BlockIndex, file: int) -> list[int]:
        """Numbers through all files of the row groups of a file of which rows may be selected."""
        first, stop = np.searchsorted(index.group_file, [file, file + 1])
        groups = np.arange(first, stop)
        if self.filter is not None:
            groups = first + np.array(self.filter.possible(index, file, index.footer(file)), dtype=np.int64)
        found: list[int] = groups[self.groups[groups] & (index.group_rows[groups] > 0)].tolist()
        return found


def _column_to_hash(index: BlockIndex, name: str) -> Column:
    (column,) = index.columns([name])
    if not can_hash(column.field.type):
        fitting = [f.name for f in index.schema if can_hash(f.type)]
        others = f", such as {', '.join(fitting[:10])}" if fitting else ""
        raise OptionError(
            f"by={name!r} of split= is of type {column.field.type}: it must be a column of numbers, booleans, text, "
            f"binary, decimals, dates or times{others}"
        )
    return column


def whole_files_filter(filter: pc.Expression | None, split: Split | None) -> pc.Expression | None:
    """Return the filter by which files may be left out of an index: none where whole row groups are held out.

    Which ones depends on all of them, and must not change with the filter.
    """
    return None if isinstance(split, Split) and split.by is None else filter

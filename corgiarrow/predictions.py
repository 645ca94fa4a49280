"""Predictions of a model, streamed in file order to Parquet, or a table, that is whole or not there."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from corgiarrow.errors import ColumnNotFoundError, OptionError
from corgiarrow.features import Array
from corgiarrow.reader import Reader
from corgiarrow.sources.postgres import NewTable
from corgiarrow.storage import PARQUET_SUFFIXES, local_path, write_atomic

PREDICTION = "prediction"
PROBABILITIES = "probabilities"

_GROUP_ROWS = 65_536
_GROUP_BYTES = 16 * 2**20
"""Rows of a row group, at most; and bytes held until one is written, about."""
_FILE_ROWS = 4_194_304
"""Rows of one file of a folder, about."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """What was written.

    Attributes
    ----------
    path
        The file or folder; or the table.
    rows
        Its rows.
    """

    path: Path | NewTable
    rows: int


def write_predictions(
    reader: Reader,
    out: str | os.PathLike[str] | NewTable,
    predict: Callable[[pa.RecordBatch], tuple[Array, Array | None]],
    *,
    keep: Sequence[str] = (),
    classes: Sequence[Any] | None = None,
) -> Predicted:
    """Write a prediction for each row of a reader.

    Parameters
    ----------
    reader
        The rows, in file order; a pass over all of them is made.
    out
        A Parquet file; a name that does not end as one becomes a folder of files. Or a new table of a database.
    predict
        Gives the predictions of a batch, ``[rows]``, and, or None, probabilities, ``[rows, classes]``.
    keep
        Columns of the reader to write beside them.
    classes
        Which classes the probabilities are of; written into the metadata of their column, as JSON.

    Raises
    ------
    OptionError
        The reader is not in file order, `out` is there already, or is neither a local path nor a table.
    ColumnNotFoundError
        A column to keep is not there.
    """
    check_in_file_order(reader)
    if isinstance(out, NewTable):
        out.check()
    else:
        out = new_local_path(out, "out")
    missing = [name for name in keep if name not in reader.schema.names]
    if missing:
        raise ColumnNotFoundError(f"keep={missing} are no columns: choose from {', '.join(reader.schema.names[:50])}")
    taken = sorted({PREDICTION, PROBABILITIES} & set(keep)) or sorted({k for k in keep if list(keep).count(k) > 1})
    if taken:
        raise OptionError(f"keep={list(keep)}: {taken} would be there twice; rename them, or leave them out")
    metadata = {"classes": json.dumps([] if classes is None else np.asarray(classes).tolist())}

    def columns(batch: pa.RecordBatch) -> pa.RecordBatch:
        predicted, shares = predict(batch)
        arrays = [*(batch.column(name) for name in keep), pa.array(predicted)]
        fields = [*(reader.schema.field(name) for name in keep), pa.field(PREDICTION, arrays[-1].type)]
        if shares is not None:
            values = pa.array(np.ascontiguousarray(shares, dtype=np.float64).reshape(-1))
            arrays.append(pa.FixedSizeListArray.from_arrays(values, shares.shape[1]))
            fields.append(pa.field(PROBABILITIES, arrays[-1].type, metadata=metadata))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    reader.seek(reader.epoch, 0)
    with closing(reader.slices()) as slices:
        predicted = (columns(part.batch) for part in slices)
        if isinstance(out, NewTable):
            return Predicted(out, out.write(predicted))
        return Predicted(out, _write_parquet(out, _groups(predicted)))


def check_in_file_order(reader: Reader) -> None:
    """Raise where the batches of a reader are not all rows, in file order.

    Raises
    ------
    OptionError
        They are not; the text says what to pass.
    """
    order = reader.plan()
    if order.strategy.name != "none" or order.streams > 1:
        raise OptionError(
            f"predictions come in file order, but this reader has shuffle={order.strategy.name!r} and "
            f"{order.streams} streams: make it with shuffle='none', without ranks and streams, or take "
            "reader.in_file_order()"
        )
    if not reader.num_rows:
        raise OptionError("the data has no rows to predict")
    if len(reader) * reader.batch_size < reader.num_rows:
        raise OptionError("drop_last=True would leave rows without a prediction: make the reader without it")


def new_local_path(path: str | os.PathLike[str], option: str) -> Path:
    """Return a path that may be written.

    Raises
    ------
    OptionError
        It is there already, its folder is not, or it is a URL.
    """
    target = local_path(path, option)
    if target.exists() or target.is_symlink():
        raise OptionError(f"{option}={str(path)!r} is there already: remove it, or choose another name")
    return target


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Join batches to row groups."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        rows = sum(part.num_rows for part in held)
        if rows >= _GROUP_ROWS or sum(part.nbytes for part in held) >= _GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _write_parquet(target: Path, groups: Iterator[pa.Table]) -> int:
    """Write a file, or a folder of them, and return its rows."""
    rows = 0

    def write(beside: Path) -> None:
        nonlocal rows
        if target.suffix in PARQUET_SUFFIXES:
            rows = _write_file(beside, groups)
            return
        beside.mkdir()
        for number, first in enumerate(groups):
            # A file ends after a row group, so that the next begins with the one after it.
            rows += _write_file(beside / f"part-{number:05}.parquet", chain([first], groups), _FILE_ROWS)

    write_atomic(target, write)
    return rows


def _write_file(path: Path, groups: Iterator[pa.Table], most_rows: float = math.inf) -> int:
    """Write row groups until a file is full, and return its rows."""
    table = next(groups)
    rows: int = 0
    with pq.ParquetWriter(path, table.schema, compression="zstd") as writer:
        while True:
            writer.write_table(table, row_group_size=_GROUP_ROWS)
            rows += table.num_rows
            if rows >= most_rows or (table := next(groups, None)) is None:
                return rows

"""How well an order is mixed: measured, and predicted from the labels of the blocks.

A batch stands for the data when its mean is near that of all rows: of the labels, one-hot for classes and standardised
for numbers. **Clumping** is the mean square of that difference, over what batches of rows drawn independently would
have (survey sampling's *design effect* of a batch): 1 is ideal, a batch of one class among many has about its rows.

What a model would see are gradients; without a model, labels stand in their place.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from corgiarrow.errors import OptionError
from corgiarrow.plan import EpochPlan
from corgiarrow.strategies import CorgiPile, Floats, Int64s, Spread

MOST_CLASSES = 1_000
"""Distinct values up to which whole numbers and texts are classes."""

_WHOLE_FLOATS = 100
"""Distinct values up to which whole floats are classes."""

_CELLS = 2**22
"""Counts that are held at a time."""

_PAIRS = 200_000

_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_temporal)


@dataclass(frozen=True)
class Targets:
    """What batches are judged by: a label of each row.

    Attributes
    ----------
    name
        Name of the column.
    codes
        Number of each row's class, integers [rows]; None where the label is a number.
    values
        Labels with mean 0 and variance 1, float64 [rows]; None where they are classes.
    classes
        Classes; 0 where the label is a number.
    """

    name: str
    codes: npt.NDArray[np.integer] | None
    values: Floats | None
    classes: int

    @property
    def rows(self) -> int:
        """Rows."""
        return len(self.values if self.codes is None else self.codes)  # type: ignore[arg-type]

    @cached_property
    def shares(self) -> Floats:
        """Part of the rows that each class has, float64 [classes]."""
        assert self.codes is not None
        return np.bincount(self.codes, minlength=self.classes) / len(self.codes)

    @property
    def variance(self) -> float:
        """Mean square of a row's difference from the mean."""
        return 1.0 if self.codes is None else float(1 - (self.shares**2).sum())

    def distances(self, runs: Int64s, ids: "Int64s | None" = None) -> Floats:
        """Return the square of the difference between the mean of each run and that of all rows, float64 [runs].

        Parameters
        ----------
        runs
            Where each run begins and the last one ends, ascending, int64 [runs + 1].
        ids
            Rows in the order in which they form runs; None for the order of the data.
        """
        sizes = np.diff(runs)
        if self.values is not None:
            taken = self.values[runs[0] : runs[-1]] if ids is None else self.values[ids]
            sums = np.add.reduceat(np.append(taken, 0.0), runs[:-1] - runs[0])
            found: Floats = np.where(sizes > 0, sums, 0.0) ** 2 / np.maximum(sizes, 1) ** 2
            return found
        assert self.codes is not None
        shares = self.shares
        at_once = max(_CELLS // self.classes, 1)
        parts = []
        for first in range(0, len(sizes), at_once):
            some = runs[first : first + at_once + 1]
            rows = slice(some[0], some[-1]) if ids is None else ids[some[0] - runs[0] : some[-1] - runs[0]]
            count = len(some) - 1
            run = np.repeat(np.arange(count) * self.classes, np.diff(some))
            cells = np.bincount(run + self.codes[rows], minlength=count * self.classes).reshape(count, self.classes)
            parts.append(((cells / np.maximum(np.diff(some), 1)[:, None] - shares) ** 2).sum(axis=1))
        return np.concatenate([np.empty(0), *parts])


def targets_of(column: pa.ChunkedArray | pa.Array, name: str, kind: str | None = None) -> Targets:
    """Return what batches are judged by, from a label column in the data's order.

    Parameters
    ----------
    column
        Labels: texts, truth values, numbers, or times.
    name
        Name of the column.
    kind
        ``"classes"`` or ``"values"``. By default texts, truth values and whole numbers of at most 1,000 distinct values
        (floats: 100) are classes, of which null is one; other numbers are values, of which null and NaN count as
        the mean.

    Raises
    ------
    OptionError
        The label is constant, is of a type that is neither, or has too many values to be classes.
    """
    if kind not in (None, "classes", "values"):
        raise OptionError(f"kind={kind!r} must be 'classes' or 'values'")
    if isinstance(column, pa.Array):
        column = pa.chunked_array([column])
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    type_ = column.type
    if pa.types.is_nested(type_):
        raise OptionError(f"label column {name!r} is of type {type_}: give a column of texts or numbers")
    encoded = pc.dictionary_encode(column, null_encoding="encode").combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0) if encoded.num_chunks else pa.array([], type_).dictionary_encode()
    distinct = len(encoded.dictionary)
    numeric = any(is_kind(type_) for is_kind in _NUMBERS)
    if distinct < 2:
        what = f"{str(encoded.dictionary[0].as_py())[:40]!r} in every row" if distinct else "empty"
        raise OptionError(f"label column {name!r} is {what}: every order mixes it alike; name another column")
    if kind is None:
        most = _WHOLE_FLOATS if pa.types.is_floating(type_) or pa.types.is_decimal(type_) else MOST_CLASSES
        few = distinct <= most and not pa.types.is_temporal(type_)
        kind = "classes" if not numeric or (few and _are_whole(encoded.dictionary)) else "values"
    if kind == "classes":
        if distinct > MOST_CLASSES and (numeric or distinct > len(column) // 2):
            raise OptionError(
                f"label column {name!r} has {distinct:,} distinct values in {len(column):,} rows, which are no classes "
                f"(at most {MOST_CLASSES:,})" + (": give kind='values'" if numeric else ": name another column")
            )
        width = np.min_scalar_type(distinct - 1)
        return Targets(name, encoded.indices.to_numpy().astype(width), None, distinct)
    if not numeric:
        raise OptionError(f"label column {name!r} is of type {type_}, which holds no numbers: give kind='classes'")
    values = _as_floats(column)
    known = np.isfinite(values)
    deviation = values[known].std() if known.any() else 0.0
    if not deviation > 0:
        raise OptionError(f"label column {name!r} is constant where it is finite: name another column")
    scaled = np.where(known, (values - values[known].mean()) / deviation, 0.0)
    return Targets(name, None, scaled / np.sqrt((scaled**2).mean()), 0)


def _are_whole(distinct: pa.Array) -> bool:
    values = _as_floats(pa.chunked_array([distinct]))
    return bool((np.isnan(values) | (np.floor(values) == values)).all())


def _as_floats(column: pa.ChunkedArray) -> Floats:
    if pa.types.is_temporal(column.type):
        width = pa.int32() if column.type.bit_width == 32 else pa.int64()
        column = column.cast(width)
    found: Floats = column.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy()
    return found


def h_d(targets: Targets, block_rows: Int64s) -> float:
    """How alike the rows of a block are: 1 as if they were shuffled, the rows of a block if all are of one kind.

    The paper's h_D = b · mean over blocks of ‖block mean − mean‖² ÷ variance, with labels in the place of gradients,
    and blocks of unequal rows weighted by their squares.

    Parameters
    ----------
    targets
        Labels.
    block_rows
        Rows of each block, int64 [blocks].
    """
    return float(block_rows.mean()) * _between(targets, block_rows) / targets.variance


def _between(targets: Targets, block_rows: Int64s) -> float:
    """Mean over blocks of the square of a block's difference from the mean, by the square of its relative rows."""
    runs = np.concatenate([[0], np.cumsum(block_rows)])
    weights = (block_rows / block_rows.mean()) ** 2
    return float((targets.distances(runs) * weights).mean())


def clumping(targets: Targets, tables: Iterable[Int64s]) -> float:
    """Return the clumping of some batches of equal size.

    Parameters
    ----------
    targets
        Labels.
    tables
        Row ids of batches, int64 [batches, batch_size] each, as :meth:`corgiarrow.plan.EpochPlan.tables` gives them.
    """
    total, batches, size = 0.0, 0, 1
    for table in tables:
        size = table.shape[1]
        runs = np.arange(0, table.size + 1, size)
        total += float(targets.distances(runs, table.ravel()).sum())
        batches += len(table)
    return total / max(batches, 1) * size / targets.variance


def clumping_of_batches(batches: Iterable[pa.RecordBatch], label: str, kind: str | None = None) -> float:
    """Return the clumping of batches that were really delivered, all of one size but the last, which does not count.

    Parameters
    ----------
    batches
        What a reader gave in an epoch, or more of them.
    label, kind
        Column to judge them by, see :func:`targets_of`.

    Raises
    ------
    OptionError
        The batches have no such column, or there is no whole batch.
    """
    columns: list[pa.Array] = []
    for batch in batches:
        if label not in batch.schema.names:
            raise OptionError(f"label={label!r} is none of the batches' columns: {', '.join(batch.schema.names)}")
        columns.append(batch.column(label))
    size = len(columns[0]) if columns else 0
    whole = [c for c in columns if len(c) == size]
    if not size:
        raise OptionError("there is no batch to measure")
    targets = targets_of(pa.chunked_array(columns), label, kind)
    return clumping(targets, [np.arange(len(whole) * size).reshape(-1, size)])


@dataclass(frozen=True, slots=True)
class Mixing:
    """How well the order of an epoch is mixed.

    Attributes
    ----------
    clumping
        1 is ideal; see above. NaN without labels.
    blocks_a_batch
        Distinct blocks that a batch has rows of, on average.
    correlation
        Pearson's correlation of a row's place in the epoch and in the data, in [-1, 1]; 0 is ideal.
    kendall_tau
        Part of pairs of rows in their old order less the part in reversed order (of 200,000 random pairs): 1 for file
        order, 0 is ideal. Neither of the two says whether neighbours stay together.
    """

    clumping: float
    blocks_a_batch: float
    correlation: float
    kendall_tau: float


def measure(plan: EpochPlan, targets: Targets | None = None) -> Mixing:
    """Measure the order of an epoch, without reading anything but the labels that are given.

    Parameters
    ----------
    plan
        The order.
    targets
        Labels of all rows.

    Raises
    ------
    OptionError
        The labels are of other rows.
    """
    if targets is not None and targets.rows != plan.num_rows:
        raise OptionError(f"labels of {targets.rows:,} rows do not fit a plan of {plan.num_rows:,} rows")
    blocks, batches = 0, 0
    tables = list(plan.tables())
    for table in tables:
        block = np.sort(np.searchsorted(plan.first_id, table.ravel(), side="right").reshape(table.shape), axis=1)
        blocks += len(table) + int((np.diff(block, axis=1) != 0).sum())
        batches += len(table)
    ids = plan.row_ids()
    place = np.arange(len(ids), dtype=np.float64)
    correlation = float(np.corrcoef(place, ids)[0, 1]) if len(ids) > 1 else float("nan")
    pairs = np.random.Generator(np.random.PCG64(0)).integers(0, max(len(ids), 1), (2, _PAIRS if len(ids) else 0))
    signs = np.sign(pairs[0] - pairs[1]) * np.sign(ids[pairs[0]] - ids[pairs[1]])
    clumped = float("nan") if targets is None else clumping(targets, tables)
    tau = float(signs.sum() / max(np.count_nonzero(signs), 1))
    return Mixing(clumped, blocks / max(batches, 1), correlation, tau)


def predict(plan: EpochPlan, targets: Targets) -> float | None:
    """Predict the clumping of an epoch from how unlike its blocks are, without drawing its order.

    A buffer's mean is that of n blocks drawn without replacement from N: variance (N − n) / (N − 1) · V / n, with V the
    mean square difference of a block. A batch of B rows lies in one buffer of M rows or across the border of two: q,
    the sum of the squares of its parts, is 1 − B / 3M on average. Its rows are drawn without replacement: the variance
    that is left ÷ B · (1 − q B / M). For ``spread`` M is of the loads that leave together, and n Kish's effective
    number of their blocks; ``block`` is the same with runs of rows in the place of blocks, and for ``none`` the runs
    themselves are measured.

    Returns
    -------
    float or None
        None for orders that have no such formula: ``window``, ``mrs``, and blocks that are read in pieces.
    """
    strategy, size = plan.sized, plan.batch_size
    if plan.pieces is not None or not plan.num_rows:
        return None
    if strategy.name == "none":
        whole = plan.num_rows // size
        return float(targets.distances(np.arange(whole + 1) * size).mean()) * size / targets.variance if whole else None
    if strategy.name == "block":
        return _of_blocks_in_order(plan, targets)
    if not isinstance(strategy, CorgiPile | Spread):
        return None
    count, between, variance = len(plan.block_rows), _between(targets, plan.block_rows), targets.variance
    total, weight = 0.0, 0
    for stream in map(plan.stream, range(plan.streams)):
        loads = strategy.loads(stream.rows, plan.buffer_blocks)
        spans, loaded = np.diff(loads), np.diff(np.concatenate([[0], np.cumsum(stream.rows)])[loads])
        # Of each load that leaves at a step how many rows do, how many blocks it has, and how many rows.
        leaving = loaded[:, None]
        if isinstance(strategy, Spread):
            leaving = strategy.emitted_of_loads(stream.rows, plan.buffer_blocks)
        before = np.maximum(np.arange(len(loaded))[:, None] - np.arange(leaving.shape[1]), 0)
        emitted = leaving.sum(axis=1)
        merged = emitted.astype(np.float64) ** 2 / np.maximum((leaving**2 / spans[before]).sum(axis=1), 1e-9)
        drawn_of = np.where(leaving > 0, loaded[before], 0).sum(axis=1)
        filled = emitted > 0
        found = _of_buffers(merged[filled], drawn_of[filled], size, count, between, variance)
        total += float((found * emitted[filled]).sum())
        weight += int(emitted.sum())
    return total / max(weight, 1)


def _of_buffers(n: Floats, rows: Int64s, size: int, count: int, between: float, variance: float) -> Floats:
    """Clumping of batches of buffers of `n` of `count` blocks, which have so many rows, float64 [buffers]."""
    part = size / np.maximum(rows, 1)
    # Mean of the sum of squares of the parts that lie in one buffer each, for batches that begin anywhere.
    squares = np.where(part <= 1, 1 - part / 3, (1 - 1 / (3 * np.maximum(part, 1))) / np.maximum(part, 1))
    merged = n * np.maximum(part, 1)
    left = np.clip((count - merged) / max(count - 1, 1), 0, 1)
    of_buffer = between / n * np.clip((count - n) / max(count - 1, 1), 0, 1)
    within = np.maximum(variance - of_buffer, 0) / size
    drawn = 1 - squares * part
    found: Floats = (between / n * left * squares + within * drawn) * size / variance
    return found


def _of_blocks_in_order(plan: EpochPlan, targets: Targets) -> float | None:
    rows, size = plan.block_rows, plan.batch_size
    mean_rows = float(rows.mean())
    if size >= mean_rows:
        between = _between(targets, rows)
        count = np.ones(1)
        merged = _of_buffers(count, np.array([round(mean_rows)]), size, len(rows), between, targets.variance)
        return float(merged[0])
    # Runs of a batch's rows from each block's start on; those across two blocks are two shorter ones.
    first = np.concatenate([[0], np.cumsum(rows)])
    runs = np.concatenate([np.arange(a, b - size + 1, size) for a, b in pairwise(first)])
    if not len(runs):
        return None
    inside = float(targets.distances(np.stack([runs, runs + size], axis=1).ravel())[::2].mean())
    of_rows = targets.variance / size
    crossing = 1 - size / (3 * mean_rows)
    return (of_rows + (inside - of_rows) * crossing) / of_rows

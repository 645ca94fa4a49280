"""What to do about the order of a dataset: clumping by strategy and memory, and the least memory that is enough."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from corgiarrow import quality
from corgiarrow.errors import BudgetError, OptionError
from corgiarrow.index import BlockIndex
from corgiarrow.plan import EpochPlan
from corgiarrow.quality import Targets
from corgiarrow.reader import Reader
from corgiarrow.strategies import as_strategy
from corgiarrow.units import parse_bytes, show_bytes

STRATEGIES = ("none", "block", "window", "mrs", "corgipile", "spread")

_PARTS = (0.01, 0.02, 0.05, 0.1, 0.25)
"""Budgets by default, as parts of the data in memory."""

_ADVISED = ("corgipile", "spread")
_STEP = 1.5
"""Factor between the budgets among which the least is looked for."""

_MEASURED_ROWS = 20_000_000
"""Rows up to which an order that has no formula is drawn while the least budget is looked for."""

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Result:
    """One strategy in one budget.

    Attributes
    ----------
    strategy
        Its name.
    buffer_blocks
        Blocks (or pieces of blocks) that a buffer merges.
    memory_bytes
        The budget, of the whole job.
    in_pieces
        Whether large row groups are read in pieces.
    predicted_clumping
        From the blocks' labels; None where there is no formula.
    measured_clumping
        Of an order that was drawn; None where it was not.
    """

    strategy: str
    buffer_blocks: int
    memory_bytes: int
    in_pieces: bool
    predicted_clumping: float | None
    measured_clumping: float | None

    @property
    def clumping(self) -> float | None:
        """Measured, else predicted."""
        return self.predicted_clumping if self.measured_clumping is None else self.measured_clumping

    def within(self, tolerance: float) -> bool:
        """Whether the clumping is known, and at most `tolerance`."""
        return self.clumping is not None and self.clumping <= tolerance


@dataclass(frozen=True, slots=True)
class Assessment:
    """How well the orders of a dataset mix it.

    Attributes
    ----------
    label, kind, classes
        The column; ``"classes"`` or ``"values"``; how many classes.
    rows, blocks, data_bytes
        Rows, blocks, and bytes of all columns read, in memory.
    batch_size
        Rows of a batch.
    h_d
        How alike the rows of a block are: 1 as if shuffled, `mean_block_rows` if each block is of one kind.
    mean_block_rows
        Rows of a block.
    tolerance
        Clumping that is taken for good enough.
    results
        By strategy and budget.
    advice
        What to do, a sentence each.
    """

    label: str
    kind: str
    classes: int
    rows: int
    blocks: int
    data_bytes: int
    batch_size: int
    h_d: float
    mean_block_rows: float
    tolerance: float
    results: tuple[Result, ...]
    advice: tuple[str, ...]


def assess(
    index: BlockIndex,
    label: str,
    *,
    kind: str | None = None,
    budgets: Sequence[int | str] = (),
    strategies: Sequence[str] = STRATEGIES,
    tolerance: float = 2.0,
    draw: bool = True,
    say: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Assessment:
    """Judge strategies on a dataset by one of its columns, the only one that is read.

    Parameters
    ----------
    index
        The dataset.
    label
        Column to judge batches by.
    kind
        See :func:`corgiarrow.quality.targets_of`.
    budgets
        Memory of the whole job, one or more; by default 1, 2, 5, 10 and 25 % of the data.
    strategies
        Names.
    tolerance
        Clumping that is good enough, above 1.
    draw
        Draw orders and measure them, beside predicting.
    say
        Called with what is being done.
    **options
        Further options of :class:`Reader`, such as ``batch_size``, ``columns`` and ``streams``.

    Raises
    ------
    OptionError
        An option is out of its bounds, or the label is no measure (see :func:`corgiarrow.quality.targets_of`).
    ColumnNotFoundError
        The data has no such column.
    """
    if not tolerance > 1:
        raise OptionError(f"tolerance={tolerance} must be above 1, the clumping of independent draws")
    columns = options.pop("columns", None)
    options = {name: value for name, value in options.items() if name != "shuffle"}
    say(f"reading column {label!r}")
    # Its rows alone, as the reader would train on them.
    asked = {"memory": "1 GiB", **options, "shuffle": "none"}
    with Reader(index, columns=[label], **asked) as narrow:
        scan = narrow.in_file_order()
        name = scan.schema.names[0]
        found = [batch.column(name) for batch in scan]
        targets = quality.targets_of(pa.chunked_array(found, scan.schema.field(name).type), label, kind)
    look = _Look(index, {**options, "columns": columns}, targets, draw, say)
    data_bytes = look.data_bytes
    if budgets:
        sizes = sorted({parse_bytes("memory", size) for size in budgets})
    else:
        sizes = sorted({max(int(np.ceil(data_bytes * part / _MIB)) * _MIB, _MIB) for part in _PARTS})
    results = [
        result
        for strategy in strategies
        for memory in (sizes if as_strategy(strategy).copies else [None])
        if (result := look.at(strategy, memory)) is not None
    ]
    h_d = quality.h_d(targets, look.block_rows)
    mean_rows = float(look.block_rows.mean())
    advice = _advise(look, h_d, mean_rows, tolerance)
    return Assessment(
        label=label,
        kind="classes" if targets.classes else "values",
        classes=targets.classes,
        rows=targets.rows,
        blocks=len(look.block_rows),
        data_bytes=data_bytes,
        batch_size=look.batch_size,
        h_d=h_d,
        mean_block_rows=mean_rows,
        tolerance=tolerance,
        results=tuple(results),
        advice=tuple(advice),
    )


class _Look:
    """Looks at one dataset with several strategies and budgets."""

    def __init__(
        self, index: BlockIndex, options: dict[str, Any], targets: Targets, draw: bool, say: Callable[[str], None]
    ):
        self._index = index
        self._options = options
        self._targets = targets
        self._draw = draw
        self._say = say
        first = self._reader("none", None)
        self.block_rows = first.source.block_rows
        self.data_bytes = int(first.source.block_bytes.sum())
        self.batch_size = first.batch_size

    def _reader(self, strategy: str, memory: int | None) -> Reader:
        budget = {"buffer_blocks": self._options.get("streams") or 1} if memory is None else {"memory": memory}
        return Reader(self._index, shuffle=strategy, **budget, **self._options)

    def at(self, strategy: str, memory: int | None, *, draw: bool = True) -> Result | None:
        """Return what a strategy does in a budget (None: of one block a buffer), or None where it does not fit."""
        try:
            reader = self._reader(strategy, memory)
        except BudgetError:
            return None
        plan = reader.plan(0)
        predicted = quality.predict(plan, self._targets)
        measured = None
        no_formula = predicted is None and plan.num_rows <= _MEASURED_ROWS
        if self._draw if draw else no_formula:
            self._say(f"drawing the order of {strategy} in {show_bytes(reader.memory_bytes)}")
            measured = quality.clumping(self._targets, plan.tables())
        return Result(strategy, reader.buffer_blocks, reader.memory_bytes, _in_pieces(plan), predicted, measured)

    def least(self, strategy: str, tolerance: float) -> Result | None:
        """Return the least budget of a strategy with a clumping within a tolerance, to a few per cent."""
        memory, below, most = float(_MIB), 0.0, 2.0 * self.data_bytes + 64 * _MIB
        found = None
        while memory < most:
            found = self._enough(strategy, memory, tolerance)
            if found is not None:
                break
            below, memory = memory, memory * _STEP
        while found is not None and memory - below > max(memory / 16, _MIB):
            middle = (below + memory) / 2
            better = self._enough(strategy, middle, tolerance)
            found, below, memory = (found, middle, memory) if better is None else (better, below, middle)
        return found

    def _enough(self, strategy: str, memory: float, tolerance: float) -> Result | None:
        result = self.at(strategy, int(np.ceil(memory / _MIB)) * _MIB, draw=False)
        return result if result is not None and result.within(tolerance) else None


def _in_pieces(plan: EpochPlan) -> bool:
    return plan.pieces is not None and bool((plan.pieces > 1).any())


def _advise(look: _Look, h_d: float, mean_rows: float, tolerance: float) -> list[str]:
    told = []
    file_order = look.at("none", None, draw=False)
    if file_order is not None and file_order.within(tolerance):
        told.append(
            f"File order has a clumping of {file_order.clumping:.2f} already, within {tolerance:g}: the rows are "
            "mixed by this label. Shuffling still gives each epoch another order."
        )
    elif h_d > mean_rows / 2:
        told.append(f"Blocks are nearly of one kind (h_D {h_d:,.0f} of {mean_rows:,.0f} rows): many must be merged.")
    least = {strategy: look.least(strategy, tolerance) for strategy in _ADVISED}
    reached = {name: found for name, found in least.items() if found is not None}
    for name, found in reached.items():
        how = ", in pieces of row groups" if found.in_pieces else ""
        told.append(
            f"{name} reaches a clumping of {found.clumping:.2f} with memory={show_bytes(found.memory_bytes)!r} "
            f"({found.buffer_blocks:,} {'pieces' if found.in_pieces else 'blocks'} a buffer{how})."
        )
    if len(reached) == len(_ADVISED):
        plain, spread = least["corgipile"], least["spread"]
        assert plain is not None
        assert spread is not None
        if spread.memory_bytes < 0.9 * plain.memory_bytes:
            less = 1 - spread.memory_bytes / plain.memory_bytes
            told.append(f"So shuffle='spread' saves {less:.0%} of the memory; each row is copied once more.")
    smallest = min((found.memory_bytes for found in reached.values()), default=None)
    if smallest is None:
        told.append(
            f"No budget of up to twice the data ({show_bytes(2 * look.data_bytes)}) reaches {tolerance:g}: only "
            "rewriting helps. Write the rows once in random order, or in smaller row groups."
        )
    elif smallest > look.data_bytes / 2:
        told.append(
            f"That is more than half of the data ({show_bytes(look.data_bytes)}): where it is too much, only rewriting "
            "helps. Write the rows once in random order, or in smaller row groups."
        )
    return told

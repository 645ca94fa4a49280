"""The command ``plot``."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer

from corgiarrow import plots
from corgiarrow.cli import options as opt
from corgiarrow.cli.options import open_index, reader_options, selecting
from corgiarrow.cli.output import print_facts, print_json, say
from corgiarrow.errors import BudgetError, OptionError
from corgiarrow.index import BlockIndex
from corgiarrow.plan import EpochPlan
from corgiarrow.reader import Reader
from corgiarrow.strategies import BY_NAME, CorgiPile, Int64s, Strategy

WHAT = ("order", "labels")

_BUFFER_FRACTION = 0.1
_BUDGET = ("memory", "buffer_blocks", "buffer_fraction")
_SCANNED_ROWS = 65_536
_MOST_VALUES = 100
"""Of more labels nearly all would be "others"."""


def add_plot_command(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(plot)


def plot(
    ctx: typer.Context,
    src: opt.Src,
    out: Annotated[str, typer.Option(metavar="PATH", help="File to write, .png or .svg; replaced if it is there.")],
    what: Annotated[
        str,
        typer.Option(
            metavar="order|labels",
            help="order: which row comes when; labels: how many rows of each label are in every 20 rows.",
        ),
    ] = "order",
    label: Annotated[str, typer.Option(help="With --what labels: the column.")] = "label",
    shuffle: Annotated[
        str | None,
        typer.Option(metavar="A,B", help=f"Strategies to draw; by default all: {opt.STRATEGY_NAMES}."),
    ] = None,
    epoch: Annotated[int, typer.Option(help="The epoch to draw, from 0.")] = 0,
    batch_size: opt.BatchSize = 1024,
    memory: Annotated[
        str | None,
        typer.Option(metavar="BYTES", help="Memory of the whole job, such as '2 GiB'; by default a --buffer-fraction."),
    ] = None,
    buffer_blocks: opt.BufferBlocks = None,
    buffer_fraction: Annotated[
        float | None,
        typer.Option(
            help="Instead of --memory: part of all blocks that all buffers merge; by default 0.1, in whose memory "
            "spread merges more."
        ),
    ] = None,
    block_bytes: opt.BlockBytes = None,
    seed: opt.Seed = 0,
    streams: opt.Streams = None,
    columns: opt.Columns = None,
    where: opt.Where = None,
    split: opt.SplitPart = None,
    held_out: opt.HeldOut = None,
    held_out_by: opt.HeldOutBy = None,
    on_error: opt.OnError = "raise",
    storage_options: opt.StorageOptions = None,
    json: opt.Json = False,
) -> None:
    """Draw the order of an epoch, or the labels along it, as each strategy makes it."""
    if what not in WHAT:
        raise OptionError(f"what={what!r} must be one of: {', '.join(WHAT)}")
    names = _strategies(opt.names(shuffle or ""))
    target = plots.figure_path(out, "out")
    given = {name: value for name, value in reader_options(ctx.params).items() if name != "shuffle"}
    index = open_index(src, storage_options, on_error, **selecting(given))
    storage = index.storage
    if target.exists() and storage.is_local and any(target.samefile(storage.full(f.path)) for f in index.files):
        raise OptionError(f"out={out!r} is one of the files to read: give another name")
    plans = _plans(index, names, epoch, given, leave_out=not shuffle)
    some = next(iter(plans.values()))
    rows, blocks = some.num_rows, len(some.block_rows)
    if not rows:
        raise OptionError("the data has no rows: there is nothing to draw")
    orders = _Orders(plans)
    texts: dict[str, Any] = {
        "notes": {name: _buffer(plan) for name, plan in plans.items()},
        "title": f"{rows:,} rows in {blocks:,} blocks, epoch {epoch}, seed {seed}",
    }
    if what == "labels":
        figure = plots.labels(orders, _labels(index, label, given), name=label, **texts)
    else:
        figure = plots.order(orders, **texts)
    plots.save(figure, target)
    points = plots.points(figure)
    if json:
        drawn = [
            {"strategy": n, "buffer_blocks": p.buffer_blocks, "rows": orders.rows[n], "points": k}
            for (n, p), k in zip(plans.items(), points, strict=True)
        ]
        print_json({"out": str(target), "what": what, "rows": rows, "blocks": blocks, "epoch": epoch, "drawn": drawn})
        return
    of_what = "runs of 20 rows" if what == "labels" else "rows"
    print_facts(
        [
            ("written to", str(target)),
            ("strategies", ", ".join(plans)),
            ("rows", f"{rows:,} in {blocks:,} blocks"),
            ("drawn", f"{max(points):,} {of_what} a strategy"),
        ]
    )


class _Orders(Mapping[str, Int64s]):
    """The order of each plan, made when it is asked for: one at a time is in memory.

    Attributes
    ----------
    rows
        Rows of each order that was made.
    """

    def __init__(self, plans: Mapping[str, EpochPlan]):
        self._plans = plans
        self.rows: dict[str, int] = {}

    def __getitem__(self, name: str) -> Int64s:
        ids = self._plans[name].row_ids()
        self.rows[name] = len(ids)
        return ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._plans)

    def __len__(self) -> int:
        return len(self._plans)


def _strategies(asked: Sequence[str]) -> list[str]:
    # What mixes everything comes last, to compare with.
    names = sorted(BY_NAME, key=lambda name: BY_NAME[name].merges_all) if not asked else list(asked)
    for name in names:
        if name not in BY_NAME:
            raise OptionError(f"shuffle={name!r} must be one of: {', '.join(BY_NAME)}")
        if names.count(name) > 1:
            raise OptionError(f"shuffle={name!r} is given twice: give each strategy once")
    return names


def _plans(
    index: BlockIndex, names: Sequence[str], epoch: int, given: Mapping[str, Any], *, leave_out: bool
) -> dict[str, EpochPlan]:
    """Return the plan of each strategy, without those that the budget cannot hold if they may be left out."""
    budget = {name: given[name] for name in _BUDGET if name in given}
    others = {name: value for name, value in given.items() if name not in _BUDGET}
    least = given.get("streams", 1)
    tenth = 0
    if not budget:
        some = Reader(index, **others, shuffle="none", buffer_blocks=least)
        tenth = max(round(_BUFFER_FRACTION * len(some.source.block_rows)), least)
    plans = {}
    failed: BudgetError | None = None
    for name in names:
        # Nothing is held: what mixes all rows is drawn as it is, to compare with.
        buffer = budget or {"buffer_blocks": _in_the_same_memory(BY_NAME[name], tenth)}
        buffer = {"buffer_fraction": 1.0} if BY_NAME[name].merges_all else buffer
        try:
            plans[name] = Reader(index, **others, **buffer, shuffle=name).plan(epoch)
        except BudgetError as error:
            if not leave_out:
                raise
            say(f"left out: {error}")
            failed = error
    if failed is not None and not plans:
        raise failed
    return plans


def _in_the_same_memory(strategy: Strategy, blocks: int) -> int:
    """Return the blocks that a strategy merges in the memory in which CorgiPile merges so many, and no fewer."""
    number = np.array([blocks])
    return max(int(blocks * CorgiPile().memory_factor(number)[0] / strategy.memory_factor(number)[0]), blocks)


def _buffer(plan: EpochPlan) -> str:
    """Return what a buffer merges, for a person."""
    if plan.strategy.merges_all:
        return "buffer: all blocks"
    each = f"{plan.streams:,} × " if plan.streams > 1 else ""
    unit = "block" if plan.pieces is None else "piece"
    return f"buffer: {each}{plan.buffer_blocks:,} {unit}{'s' * (plan.buffer_blocks > 1)}"


def _labels(index: BlockIndex, label: str, given: Mapping[str, Any]) -> pa.ChunkedArray:
    """Read the label of each row, in file order, and no other column.

    Raises
    ------
    ColumnNotFoundError
        It is not there.
    OptionError
        It has too many values to be told apart, or is a list or a struct.
    """
    options = {name: given[name] for name in ("filter", "split", "on_error") if name in given}
    reader = Reader(index, columns=[label], shuffle="none", batch_size=_SCANNED_ROWS, **options)
    kind = reader.schema.field(0).type
    if pa.types.is_nested(kind):
        raise OptionError(f"label={label!r} is of type {kind}, but a label must be one value: name another column")
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    say(f"reading {label!r} of {reader.num_rows:,} rows")
    found, values = [], pa.array([], kind)
    with closing(reader.slices()) as slices:
        for part in slices:
            column = part.batch.column(0)
            plain = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
            found.append(plain.dictionary_encode())
            values = pa.concat_arrays([values, found[-1].dictionary]).unique()
            if len(values) > _MOST_VALUES:
                raise OptionError(
                    f"label={label!r} has more than {_MOST_VALUES} values, which no figure tells apart: name another "
                    "column, or draw --what order"
                )
    return pa.chunked_array(found)

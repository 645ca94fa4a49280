"""The commands: each reads its options, calls the module that does the work, and prints what it found."""

from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
import typer

from corgiarrow import bench as bench_module
from corgiarrow import check as check_module
from corgiarrow import demo as demo_module
from corgiarrow import inspection
from corgiarrow.cli import options as opt
from corgiarrow.cli.data import open_data
from corgiarrow.cli.models import add_model_commands
from corgiarrow.cli.options import open_index, reader_options, selecting
from corgiarrow.cli.output import (
    Commands,
    json_value,
    print_facts,
    print_json,
    print_table,
    print_text,
    say,
    show_count,
    show_value,
)
from corgiarrow.cli.plots import add_plot_command
from corgiarrow.cli.quality import add_quality_command
from corgiarrow.errors import OptionError
from corgiarrow.example import example_path
from corgiarrow.strategies import as_strategy
from corgiarrow.units import show_bytes

app = typer.Typer(
    cls=Commands,
    help="Train from Parquet where it lies, shuffled well enough for SGD, inside a memory budget.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_EPOCHS_SHOWN = 7
_COLUMNS_SHOWN = 40
_COLUMNS_ACROSS = 5
_ROWS_ACROSS = 4


@app.command()
def demo(
    ctx: typer.Context,
    src: opt.OptionalSrc = None,
    label: Annotated[str, typer.Option(help="Column to predict: whole numbers or booleans.")] = "label",
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 6,
    batch_size: opt.BatchSize = 128,
    buffer_fraction: Annotated[
        float, typer.Option(help="Part of all blocks that CorgiPile's buffer merges.")
    ] = 0.1,
    block_bytes: opt.BlockBytes = None,
    seed: opt.Seed = 0,
    threads: opt.Threads = None,
    columns: opt.Columns = None,
    storage_options: opt.StorageOptions = None,
    json: opt.Json = False,
) -> None:
    """Train a linear model on data in several orders, and show what the order does to it."""
    index = open_index(src or [str(example_path())], storage_options)
    found = demo_module.demo(index, label=label, epochs=epochs, say=say, **reader_options(ctx.params))
    if json:
        results = [asdict(r) | {"mean_accuracy": r.mean_accuracy} for r in found.results]
        print_json(asdict(found) | {"results": results, "conclusion": found.conclusion()})
        return
    shown = sorted({round(e) for e in np.linspace(0, epochs - 1, min(epochs, _EPOCHS_SHOWN))})
    print_text(
        f"{found.rows:,} rows in {found.blocks:,} blocks, {found.features:,} features, "
        f"{found.classes} classes; {found.held_out_rows:,} rows are held out."
    )
    print_table(
        "Part of them classified right after each epoch, in %:",
        ["order", *(str(e + 1) for e in shown), "mean", "rows/s"],
        (
            [
                r.strategy,
                *(f"{r.accuracy[e]:.1%}"[:-1] for e in shown),
                f"{r.mean_accuracy:.1%}"[:-1],
                show_count(r.rows_per_s),
            ]
            for r in found.results
        ),
    )
    print_text(found.conclusion())


@app.command()
def inspect(
    src: opt.Src,
    block_bytes: opt.BlockBytes = None,
    columns: opt.Columns = None,
    on_error: opt.OnError = "raise",
    storage_options: opt.StorageOptions = None,
    json: opt.Json = False,
) -> None:
    """Show files, row groups, columns, and what stands in the way of shuffling them."""
    given = reader_options({"block_bytes": block_bytes, "columns": columns})
    found = inspection.inspect(open_index(src, storage_options, on_error=on_error), **given)
    if json:
        print_json(asdict(found))
        return
    print_facts(
        [
            ("files", f"{found.files:,} ({show_bytes(found.file_bytes)})"),
            ("rows", f"{found.rows:,} (about {show_bytes(found.memory_bytes)} in memory)"),
            ("row groups", f"{found.row_groups:,}"),
            ("blocks", f"{found.blocks:,} (row groups after merging small neighbours)"),
            *([("in paths", ", ".join(found.path_columns))] if found.path_columns else []),
        ]
    )
    sizes = (
        ("rows of a row group", found.row_group_rows, "{:,}".format),
        ("  its bytes on disk", found.row_group_bytes, show_bytes),
        ("  its bytes in memory", found.row_group_memory_bytes, show_bytes),
        ("rows of a block", found.block_rows, "{:,}".format),
    )
    print_table(
        "Sizes",
        ["", "least", "median", "greatest"],
        ([name, show(s.min), show(s.median), show(s.max)] for name, s, show in sizes),
    )
    more = len(found.columns) - _COLUMNS_SHOWN
    print_table(
        "Columns" + (f" (and {more:,} more: see --json)" if more > 0 else ""),
        ["name", "type", "encoding", "compression", "disk"],
        (
            [c.name, c.type, ", ".join(c.encodings), ", ".join(c.compression), f"{c.disk_share:.1%}"]
            for c in found.columns[:_COLUMNS_SHOWN]
        ),
        left=4,
    )
    for fact in found.drift:
        print_text(f"files differ: {fact}")
    for reason in found.left_out:
        print_text(f"left out: {reason}")
    for warning in found.warnings:
        print_text(f"warning: {warning}")


@app.command()
def head(
    ctx: typer.Context,
    src: opt.DataSrc,
    rows: Annotated[int, typer.Option(help="Rows to show.")] = 10,
    columns: opt.Columns = None,
    table: opt.Table = None,
    where: opt.Where = None,
    split: opt.SplitPart = None,
    held_out: opt.HeldOut = None,
    held_out_by: opt.HeldOutBy = None,
    on_error: opt.OnError = "raise",
    storage_options: opt.StorageOptions = None,
    json: opt.Json = False,
) -> None:
    """Show the first rows, in file order."""
    if rows < 1:
        raise OptionError(f"rows={rows} must be at least 1")
    data = open_data(src, ctx.params)
    # Small batches and one block ahead: a few rows cost few reads.
    look: dict[str, Any] = {"shuffle": "none", "batch_size": rows, "buffer_blocks": 1, "threads": 1}
    with data.reader(opt.names(columns) if columns else None, **look) as reader:
        batch = next(iter(reader), reader.schema.empty_table())
    found = batch.to_pylist()
    names = reader.schema.names
    if json:
        print_json({"columns": names, "rows": [json_value(row) for row in found]})
    elif len(names) <= _COLUMNS_ACROSS:
        shown = ([show_value(row[name]) for name in names] for row in found)
        print_table(f"First {len(found):,} of {reader.num_rows:,} rows", names, shown, left=len(names))
    else:
        found = found[:_ROWS_ACROSS]
        shown = ([name, *(show_value(row[name]) for row in found)] for name in names)
        print_table(
            f"First {len(found):,} of {reader.num_rows:,} rows, one a column",
            ["column", *(str(n) for n in range(len(found)))],
            shown,
            left=1 + len(found),
        )


@app.command()
def plan(
    ctx: typer.Context,
    src: opt.DataSrc,
    batch_size: opt.BatchSize = 1024,
    drop_last: opt.DropLast = False,
    shuffle: opt.Shuffle = "corgipile",
    memory: opt.Memory = None,
    buffer_blocks: opt.BufferBlocks = None,
    buffer_fraction: opt.BufferFraction = None,
    block_bytes: opt.BlockBytes = None,
    seed: opt.Seed = 0,
    world_size: opt.WorldSize = 1,
    num_workers: opt.NumWorkers = 1,
    streams: opt.Streams = None,
    columns: opt.Columns = None,
    table: opt.Table = None,
    where: opt.Where = None,
    split: opt.SplitPart = None,
    held_out: opt.HeldOut = None,
    held_out_by: opt.HeldOutBy = None,
    on_error: opt.OnError = "raise",
    storage_options: opt.StorageOptions = None,
    json: opt.Json = False,
) -> None:
    """Show what an epoch would read and hold, from footers alone."""
    reader = open_data(src, ctx.params).reader(opt.names(columns) if columns else None)
    order = reader.plan()
    steps = sum(len(order.stream(s).step_rows) for s in range(order.streams)) if order.num_rows else 0
    found = {
        "rows": order.num_rows,
        "emitted_rows": order.emitted_rows,
        "repeated_rows": order.repeated_rows,
        "blocks": len(order.block_rows),
        "buffer_blocks": reader.buffer_blocks,
        "steps": steps,
        "batches_per_rank": order.num_steps(world_size, drop_last),
        "memory_bytes": reader.memory_bytes,
        "streams": order.streams,
        "data_bytes": int(reader.source.block_bytes.sum()),
        "blocks_in_pieces": 0 if order.pieces is None else int((order.pieces > 1).sum()),
        "pieces": len(order.block_rows) if order.pieces is None else int(order.pieces.sum()),
        "open_blocks": order.open_blocks,
    }
    if json:
        print_json(found)
        return
    unit, in_pieces, repeats = "blocks", "", order.strategy.repeats_rows
    emitted = f"{order.emitted_rows:,} rows, {order.repeated_rows:,} of them repeats"
    if found["blocks_in_pieces"]:
        unit = "pieces"
        in_pieces = (
            f", {found['blocks_in_pieces']:,} of them too large to be held whole: read in {found['pieces']:,} pieces, "
            f"{order.open_blocks:,} open at a time"
        )
    print_facts(
        [
            ("rows", f"{found['rows']:,} (about {show_bytes(found['data_bytes'])} in memory)"),
            ("blocks", f"{found['blocks']:,}{in_pieces}"),
            ("order", f"{order.strategy.name}, seed {seed}"),
            *([("an epoch gives", emitted)] if repeats else []),
            ("buffer", f"{found['buffer_blocks']:,} {unit} in each of {order.streams:,} streams"),
            ("steps", f"{steps:,} buffers to load and emit"),
            (
                "batches",
                f"{found['batches_per_rank']:,} a rank, of {batch_size:,} rows, for {world_size:,} ranks",
            ),
            ("memory", f"at most {show_bytes(found['memory_bytes'])} over the whole job"),
        ]
    )


@app.command()
def check(
    ctx: typer.Context,
    src: opt.Src,
    resumes: Annotated[int, typer.Option(help="Random positions to resume from.")] = 3,
    batch_size: opt.BatchSize = 1024,
    drop_last: opt.DropLast = False,
    shuffle: opt.Shuffle = "corgipile",
    memory: opt.Memory = None,
    buffer_blocks: opt.BufferBlocks = None,
    buffer_fraction: opt.BufferFraction = None,
    block_bytes: opt.BlockBytes = None,
    seed: opt.Seed = 0,
    world_size: opt.WorldSize = 1,
    num_workers: opt.NumWorkers = 1,
    streams: opt.Streams = None,
    threads: opt.Threads = None,
    columns: opt.Columns = None,
    where: opt.Where = None,
    split: opt.SplitPart = None,
    held_out: opt.HeldOut = None,
    held_out_by: opt.HeldOutBy = None,
    on_error: opt.OnError = "raise",
    storage_options: opt.StorageOptions = None,
    json: opt.Json = False,
) -> None:
    """Read an epoch as a whole job would, and prove that every promise holds; exit 1 when one does not."""
    given = reader_options(ctx.params)
    index = open_index(src, storage_options, on_error, **selecting(given))
    found = check_module.check(index, resumes=resumes, say=say, **given)
    if json:
        print_json(asdict(found) | {"holds": found.holds})
    else:
        repeats = as_strategy(given.get("shuffle", True)).repeats_rows
        verdicts = (
            ("every row as often as planned" if repeats else "every row exactly once", found.exactly_once),
            ("equal steps on every rank", found.equal_steps),
            ("in the plan's order", found.plan_order),
            ("exact after resuming", found.resume_exact),
            ("values as in the files", found.values_match),
        )
        print_table(
            f"{found.rows:,} rows over {found.parts:,} parts, {found.batches_per_rank:,} batches a rank",
            ["promise", "holds"],
            ([name, "yes" if holds else "NO"] for name, holds in verdicts),
        )
        print_text(
            f"{found.repeated_rows:,} rows repeated by padding, {found.dropped_rows:,} dropped, "
            f"{len(found.resumes):,} positions resumed from."
        )
    if not found.holds:
        raise typer.Exit(1)


@app.command()
def bench(
    ctx: typer.Context,
    src: opt.Src,
    shuffle: Annotated[
        str, typer.Option(metavar="A,B", help=f"Strategies to compare: {opt.STRATEGY_NAMES}.")
    ] = ",".join(bench_module.STRATEGIES),
    repeat: Annotated[int, typer.Option(help="Rounds; medians are shown.")] = 3,
    consumer_s: Annotated[float, typer.Option(help="Seconds that the consumer takes for each batch.")] = 0.0,
    batch_size: opt.BatchSize = 1024,
    drop_last: opt.DropLast = False,
    memory: opt.Memory = None,
    buffer_blocks: opt.BufferBlocks = None,
    buffer_fraction: opt.BufferFraction = None,
    block_bytes: opt.BlockBytes = None,
    seed: opt.Seed = 0,
    streams: opt.Streams = None,
    threads: opt.Threads = None,
    columns: opt.Columns = None,
    storage_options: opt.StorageOptions = None,
    cache: opt.Cache = None,
    cache_bytes: opt.CacheBytes = None,
    json: opt.Json = False,
) -> None:
    """Measure how fast batches come, beside a plain scan and beside random access."""
    index = open_index(src, storage_options, cache=cache, cache_bytes=cache_bytes)
    found = bench_module.bench(
        index,
        strategies=opt.names(shuffle),
        repeat=repeat,
        consumer_s=consumer_s,
        say=say,
        **{name: value for name, value in reader_options(ctx.params).items() if name != "shuffle"},
    )
    if json:
        print_json(asdict(found))
        return
    print_table(
        f"{found.rows:,} rows, {found.threads} threads, median of {found.rounds} round{'s' * (found.rounds > 1)}",
        ["order", "rows/s", "MB/s", "first s", "wait", "peak", "÷ scan", "÷ none"],
        (
            [
                r.strategy,
                show_count(r.rows_per_s),
                f"{r.bytes_per_s / 1e6:,.{int(r.bytes_per_s < 1e8)}f}",
                f"{r.first_batch_s:.3f}",
                "" if r is found.scan else f"{r.wait_share:.0%}",
                show_bytes(r.peak_arrow_bytes),
                f"{r.vs_scan:.2f}" if r.vs_scan else "",
                f"{r.vs_none:.2f}" if r.vs_none else "",
            ]
            for r in (found.scan, *found.results)
        ),
    )
    print_table(
        "Random access, one thread",
        ["what", "rows of a read", "on disk", "reads", "rows/s"],
        (
            [
                "single rows" if a.kind == "row" else "whole blocks",
                show_count(a.block_rows),
                show_bytes(a.block_bytes),
                str(a.reads),
                show_count(a.rows_per_s),
            ]
            for a in found.random_access
        ),
    )


add_plot_command(app)
add_quality_command(app)
add_model_commands(app)

"""The command ``quality``."""

from dataclasses import asdict
from typing import Annotated

import typer

from corgiarrow import advisor
from corgiarrow.cli import options as opt
from corgiarrow.cli.options import open_index, reader_options, selecting
from corgiarrow.cli.output import print_facts, print_json, print_table, print_text, say
from corgiarrow.units import show_bytes


def add_quality_command(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command()(quality)


def quality(
    ctx: typer.Context,
    src: opt.Src,
    label: Annotated[str, typer.Option(help="Column to judge batches by, the only one that is read.")] = "label",
    kind: Annotated[
        str | None,
        typer.Option(metavar="classes|values", help="What the label is; by default told from its type and values."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Budgets of the whole job; by default 1, 2, 5, 10 and 25 % of the data."),
    ] = None,
    shuffle: Annotated[
        str, typer.Option(metavar="A,B", help=f"Strategies to judge, of: {opt.STRATEGY_NAMES}.")
    ] = ",".join(advisor.STRATEGIES),
    tolerance: Annotated[float, typer.Option(help="Clumping that is good enough; 1 is ideal.")] = 2.0,
    draw: Annotated[bool, typer.Option(help="Draw orders and measure them, beside predicting.")] = True,
    batch_size: opt.BatchSize = 1024,
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
    """Say how well each strategy mixes the rows by a label, in how much memory, and what to do."""
    given = {k: v for k, v in reader_options(ctx.params).items() if k not in ("shuffle", "memory")}
    index = open_index(src, storage_options, on_error, **selecting(given))
    found = advisor.assess(
        index,
        label,
        kind=kind,
        budgets=[int(size) if size.isdecimal() else size for size in opt.names(memory or "")],
        strategies=opt.names(shuffle),
        tolerance=tolerance,
        draw=draw,
        say=say,
        **given,
    )
    if json:
        print_json(asdict(found))
        return
    of_what = f"{found.classes:,} classes" if found.classes else "numbers"
    print_facts(
        [
            ("rows", f"{found.rows:,} (about {show_bytes(found.data_bytes)} in memory)"),
            ("blocks", f"{found.blocks:,}, of {found.mean_block_rows:,.0f} rows"),
            ("label", f"{label}, {of_what}"),
            ("h_D", f"{found.h_d:,.1f} (1: as if shuffled; {found.mean_block_rows:,.0f}: blocks of one kind each)"),
        ]
    )
    print_table(
        f"Clumping of batches of {found.batch_size:,} rows (1 is ideal; {found.tolerance:g} is taken for good enough)",
        ["strategy", "memory", "blocks a buffer", "predicted", "measured"],
        (
            [
                result.strategy,
                show_bytes(result.memory_bytes),
                f"{result.buffer_blocks:,}" + (" pieces" if result.in_pieces else ""),
                _shown(result.predicted_clumping),
                _shown(result.measured_clumping),
            ]
            for result in found.results
        ),
    )
    for sentence in found.advice:
        print_text(sentence)


def _shown(clumping: float | None) -> str:
    return "–" if clumping is None else f"{clumping:,.2f}"

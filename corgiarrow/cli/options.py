"""The options that commands share, named as the parameters of :class:`corgiarrow.Reader` are."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pyarrow.compute as pc
import typer

from corgiarrow.cli.where import parse_where
from corgiarrow.errors import OptionError
from corgiarrow.index import BlockIndex
from corgiarrow.sources.postgres import is_postgres
from corgiarrow.sources.selection import whole_files_filter
from corgiarrow.split import Split
from corgiarrow.storage import AccessOptions
from corgiarrow.strategies import BY_NAME

STRATEGY_NAMES = ", ".join(BY_NAME)

Src = Annotated[list[str], typer.Argument(metavar="SRC", help="Paths, URLs, globs or folders of Parquet.")]
DataSrc = Annotated[
    list[str],
    typer.Argument(metavar="SRC", help="Paths, URLs, globs or folders of Parquet; or postgresql://…, with --table."),
]
OptionalSrc = Annotated[
    list[str] | None,
    typer.Argument(metavar="SRC", help="Paths, URLs, globs or folders; by default the embedded digits."),
]
Table = Annotated[
    str | None, typer.Option(metavar="NAME", help="Where SRC is postgresql://…: the table, or schema.table.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Columns = Annotated[str | None, typer.Option(metavar="A,B", help="Columns to read; by default all.")]
StorageOptions = Annotated[
    str | None, typer.Option(metavar="JSON", help="""Options of the file system, such as '{"anon": true}'.""")
]
Cache = Annotated[str | None, typer.Option(metavar="DIR", help="Keep fetched bytes of remote files in a local folder.")]
CacheBytes = Annotated[str | None, typer.Option(metavar="BYTES", help="With --cache: how much it may hold; 32 GiB.")]
BatchSize = Annotated[int, typer.Option(help="Rows of a batch.")]
DropLast = Annotated[bool, typer.Option("--drop-last", help="Drop the rows past the last whole step.")]
Shuffle = Annotated[str, typer.Option(metavar="NAME", help=f"Strategy: {STRATEGY_NAMES}.")]
Memory = Annotated[
    str | None,
    typer.Option(metavar="BYTES", help="Memory of the whole job, such as '2 GiB'; by default 512 MiB."),
]
BufferBlocks = Annotated[int | None, typer.Option(help="Instead of --memory: blocks that all buffers merge.")]
BufferFraction = Annotated[
    float | None, typer.Option(help="Instead of --memory: part of all blocks that all buffers merge.")
]
BlockBytes = Annotated[
    str | None, typer.Option(metavar="BYTES", help="Merge small row groups towards so much on disk; 4 MiB.")
]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="COND", help="Rows to read, such as \"carrier == 'AA' and distance > 1000\"; SQL for a database."
    ),
]
SplitPart = Annotated[
    str | None, typer.Option("--split", metavar="train|held_out", help="Part of the data to read; by default all.")
]
HeldOut = Annotated[float | None, typer.Option(help="With --split: how much is held out, in (0, 1); 0.1.")]
HeldOutBy = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="With --split: hold out rows by a column's values, not whole row groups."),
]
OnError = Annotated[
    str, typer.Option(metavar="raise|skip", help="What to do about data that cannot be read; skip repeats other rows.")
]
Seed = Annotated[int, typer.Option(help="The order is a function of it.")]
WorldSize = Annotated[int, typer.Option(help="Ranks of the job.")]
NumWorkers = Annotated[int, typer.Option(help="Loader workers of each rank.")]
Streams = Annotated[int | None, typer.Option(help="Logical readers; by default ranks × workers.")]
Threads = Annotated[int | None, typer.Option(help="Threads that read; by default one a CPU, at most 8.")]

_READER_OPTIONS = (
    *("batch_size", "drop_last", "shuffle", "memory", "buffer_blocks", "buffer_fraction", "block_bytes"),
    *("seed", "world_size", "num_workers", "streams", "threads", "columns", "on_error"),
)


def reader_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Pick the Reader's options from a command's parameters; what is not given keeps the Reader's default."""
    options = {name: given[name] for name in _READER_OPTIONS if given.get(name) is not None}
    if "columns" in options:
        options["columns"] = names(options["columns"])
    if given.get("where"):
        options["filter"] = parse_where(given["where"])
    if (split := split_option(given)) is not None:
        options["split"] = split
    for name in ("memory", "block_bytes"):
        if name in options and options[name].isdecimal():
            options[name] = int(options[name])
    return options


def selecting(options: Mapping[str, Any]) -> dict[str, Any]:
    """Pick those of the Reader's options on which depends what is indexed."""
    return {name: options[name] for name in ("filter", "split") if name in options}


def split_option(given: Mapping[str, Any]) -> Split | None:
    """Make the Split that a command's parameters ask for.

    Raises
    ------
    OptionError
        One of them is out of its bounds, or goes with another that is not given.
    """
    part = given.get("split")
    details = {"held_out": given.get("held_out"), "by": given.get("held_out_by")}
    chosen = {name: value for name, value in details.items() if value is not None}
    if part is not None:
        return Split(part=part, **chosen)
    if chosen:
        option = "--held-out" if "held_out" in chosen else "--held-out-by"
        raise OptionError(f"{option} goes with --split: add --split train or --split held_out")
    return None


def names(text: str) -> list[str]:
    """Split ``a,b``."""
    return [part.strip() for part in text.split(",") if part.strip()]


def open_index(
    src: Sequence[str],
    storage_options: str | None,
    on_error: str = "raise",
    *,
    filter: pc.Expression | None = None,
    split: Split | None = None,
    cache: str | None = None,
    cache_bytes: str | None = None,
) -> BlockIndex:
    """Read the footers of `src`, for readers with this filter and split.

    Raises
    ------
    OptionError
        `storage_options` is not a JSON object.
    CorgiArrowError
        The data cannot be read.
    """
    if any(is_postgres(url) for url in src):
        raise OptionError("this command reads files; of a database plan, head, train and predict read a --table")
    try:
        options = json.loads(storage_options or "{}")
    except json.JSONDecodeError as error:
        # The text itself may hold a secret.
        raise OptionError(
            f"--storage-options must be a JSON object: {error.msg} at character {error.pos}"
        ) from None
    if not isinstance(options, dict):
        raise OptionError("""--storage-options must be a JSON object such as '{"anon": true}'""")
    chosen = whole_files_filter(filter, split)
    access: AccessOptions = {"storage_options": options}
    if cache is not None:
        access["cache"] = cache
    if cache_bytes is not None:
        access["cache_bytes"] = cache_bytes
    return BlockIndex.build(src, filter=chosen, on_error=on_error, **access)

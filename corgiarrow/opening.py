"""From what a user names to a block source: Parquet by its index, a table by its database."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, cast

import pyarrow.compute as pc

from corgiarrow.errors import OptionError
from corgiarrow.index import DEFAULT_BLOCK_BYTES, BlockIndex
from corgiarrow.schemas import SchemaRequest
from corgiarrow.sources import BlockSource
from corgiarrow.sources.parquet import ParquetSource
from corgiarrow.sources.postgres import DatabaseOptions, PostgresSource, is_postgres
from corgiarrow.sources.selection import whole_files_filter
from corgiarrow.split import Split
from corgiarrow.storage import AccessOptions

Data = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | BlockIndex | BlockSource


class DataOptions(AccessOptions, DatabaseOptions, total=False):
    """How to reach the data: keywords of a file system, and those of a database."""


def open_source(
    data: Data,
    columns: Sequence[str] | None,
    block_bytes: int | str,
    schema: SchemaRequest | None,
    filter: pc.Expression | None,
    split: Split | None,
    on_error: str,
    threads: int,
    given: DataOptions,
) -> BlockSource:
    """Return the source of blocks that a reader's arguments ask for; `given` says how to reach the data."""
    if isinstance(columns, str):
        raise OptionError(f"columns={columns!r} must be a list of names: give columns=[{columns!r}]")
    if is_postgres(data):
        return _open_table(str(data), columns, block_bytes, schema, filter, split, threads, given)
    if isinstance(data, BlockSource):
        chosen = {"columns": columns, "filter": filter, "split": split, "schema": schema, "cache": given.get("cache")}
        for name, value in {**chosen, **_of_database(given)}.items():
            if value is not None:
                raise OptionError(f"{name}= goes with a path or URL: choose it when you make the block source")
        return data
    if named := list(_of_database(given)):
        raise OptionError(
            f"{named[0]}= goes with the URL of a database, postgresql://…"
            + ("; of Parquet filter= chooses rows" if named[0] == "where" else "")
        )
    access = cast(AccessOptions, {n: value for n, value in given.items() if n in AccessOptions.__annotations__})
    if not isinstance(data, BlockIndex):
        whole_files = whole_files_filter(filter, split)
        data = BlockIndex.build(data, schema=schema, filter=whole_files, on_error=on_error, **access)
    elif named := [name for name in ("cache", "cache_bytes", "timeout") if access.get(name) is not None]:
        raise OptionError(f"{named[0]}= goes with a path: give it to BlockIndex.build or load")
    elif schema is not None:
        raise OptionError("schema= goes with a path: give it to BlockIndex.build, which unifies the files' types")
    return ParquetSource(data, columns, block_bytes, filter=filter, split=split, on_error=on_error, threads=threads)


def _of_database(given: DataOptions) -> dict[str, Any]:
    return {n: value for n, value in given.items() if n in DatabaseOptions.__annotations__ and value is not None}


def _open_table(
    url: str,
    columns: Sequence[str] | None,
    block_bytes: int | str,
    schema: SchemaRequest | None,
    filter: pc.Expression | None,
    split: Split | None,
    threads: int,
    given: DataOptions,
) -> BlockSource:
    for name in ("storage_options", "filesystem", "cache", "cache_bytes"):
        if given.get(name) is not None:
            raise OptionError(f"{name}= goes with files, not with a database")
    if filter is not None:
        raise OptionError("filter= goes with Parquet: of a database where= chooses rows, in SQL")
    options = _of_database(given)
    if "table" not in options:
        raise OptionError("the URL of a database needs table=, the name of a table")
    if given.get("timeout") is not None:
        options["timeout"] = given["timeout"]
    exact = None if block_bytes == DEFAULT_BLOCK_BYTES else block_bytes
    return PostgresSource(
        url, columns=columns, block_bytes=exact, schema=schema, split=split, threads=threads, **options
    )

"""What a command reads: files of Parquet, or a table of a database. Both give readers of some columns and rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from corgiarrow.cli.options import open_index, reader_options, selecting, split_option
from corgiarrow.errors import OptionError
from corgiarrow.reader import Reader
from corgiarrow.sources.postgres import PostgresSource, is_postgres
from corgiarrow.split import Split

_SPLIT = ("split", "held_out", "held_out_by")


class Files:
    """Files of Parquet.

    Parameters
    ----------
    src
        Their paths.
    given
        The command's parameters.
    """

    key: tuple[str, ...] = ()
    """Columns that tell rows apart, as far as known."""

    def __init__(self, src: Sequence[str], given: Mapping[str, Any]):
        if given.get("table") is not None:
            raise OptionError(f"--table goes with the URL of a database, postgresql://…, not with {src[0]}")
        self._options = reader_options({**given, "columns": None})
        self._index = open_index(
            src,
            given.get("storage_options"),
            given.get("on_error") or "raise",
            cache=given.get("cache"),
            cache_bytes=given.get("cache_bytes"),
            **selecting(self._options),
        )

    @property
    def schema(self) -> pa.Schema:
        """Schema of the dataset."""
        return self._index.schema

    def reader(self, columns: Sequence[str] | None, *, held_out: bool = False, **options: Any) -> Reader:
        """Return a reader of some columns; of the other part of the split where it is `held_out`."""
        given = {**self._options, "columns": columns, **options}
        if held_out:
            given["split"] = given["split"].other
        return Reader(self._index, **given)


class DatabaseTable:
    """A table of a database.

    Parameters
    ----------
    url, given
        Its URL, and the command's parameters.
    """

    def __init__(self, url: str, given: Mapping[str, Any]):
        for name in ("storage_options", "cache", "cache_bytes"):
            if given.get(name) is not None:
                raise OptionError(f"--{name.replace('_', '-')} goes with files, not with a database")
        if given.get("table") is None:
            raise OptionError("the URL of a database needs --table NAME")
        self._options = reader_options({**given, "columns": None, "where": None, **dict.fromkeys(_SPLIT)})
        self._split: Split | None = split_option(given)
        block_bytes, threads = self._options.pop("block_bytes", None), self._options.get("threads") or 4
        where = given.get("where")
        self._source = PostgresSource(
            url, given["table"], where=where, block_bytes=block_bytes, threads=threads
        )
        self.key = self._source.table.key

    @property
    def schema(self) -> pa.Schema:
        """Schema of the table."""
        return self._source.schema

    def set_dimension(self, dimension: int | None) -> None:
        """Make vectors of arrays of floats: of this length, or of the first array's."""
        self._source = self._source.with_dimension(dimension or "first")

    def reader(self, columns: Sequence[str] | None, *, held_out: bool = False, **options: Any) -> Reader:
        """Return a reader of some columns; of the other part of the split where it is `held_out`."""
        source = self._source if columns is None else self._source.narrowed(columns)
        if self._split is not None:
            source = source.with_split(self._split.other if held_out else self._split)
        return Reader(source, **{**self._options, **options})


def open_data(src: Sequence[str], given: Mapping[str, Any]) -> Files | DatabaseTable:
    """Open what a command reads.

    Raises
    ------
    OptionError
        An option does not go with this kind of data.
    CorgiArrowError
        It cannot be read.
    """
    if not any(is_postgres(url) for url in src):
        return Files(src, given)
    if len(src) > 1:
        raise OptionError("SRC may be the URL of one database, alone")
    return DatabaseTable(src[0], given)

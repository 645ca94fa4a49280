"""Reading row groups by pyarrow alone: what the reader is compared with."""

import contextlib
from collections.abc import Sequence

import pyarrow as pa

from corgiarrow.errors import ReadError, StorageError
from corgiarrow.footers import open_parquet
from corgiarrow.index import BlockIndex
from corgiarrow.storage import redact


def read_plain(index: BlockIndex, groups: Sequence[int], columns: Sequence[str]) -> pa.Table:
    """Read whole row groups of one file in one call, in this thread.

    Parameters
    ----------
    index
        The dataset.
    groups
        Numbers of the row groups through all files; all lie in one file.
    columns
        Names of the columns.

    Raises
    ------
    ReadError
        They cannot be read.
    """
    file = int(index.group_file[groups[0]])
    numbers = [int(index.group_number[g]) for g in groups]
    storage, path = index.storage, index.files[file].path
    try:
        with contextlib.ExitStack() as stack:
            origin = storage.full(path)
            if not storage.is_local:
                origin = stack.enter_context(storage.fs.open(origin, "rb"))
            footer = index.footer(file)
            # As pyarrow does by itself: of a remote file neighbouring columns are asked for together.
            reader = stack.enter_context(open_parquet(origin, footer, pre_buffer=not storage.is_local))
            return reader.read_row_groups(numbers, columns=list(columns), use_threads=False)
    except (ReadError, StorageError):
        raise
    except (pa.ArrowException, OSError) as error:
        raise ReadError(f"{storage.shown(path)}, row group {numbers[0]}: {redact(str(error))}") from None

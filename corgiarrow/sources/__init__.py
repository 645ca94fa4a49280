"""Where blocks come from: the interface that order and pipeline see."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from corgiarrow.storage import Traffic

Int64s = npt.NDArray[np.int64]


class Session(Protocol):
    """One pass of one stream. Threads may call :meth:`read` at the same time, for different blocks."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of the tables: the source's, but a column may come as a dictionary of its type; and the rows' ids."""

    def stop(self) -> None:
        """Let reads that still run stop soon."""

    def close(self) -> None:
        """Let go of everything; no read runs any more."""

    def expect(self, block: int) -> None:
        """Learn that a thread is about to read this block, so that nothing of it is let go meanwhile."""

    def read(self, block: int, start: int, stop: int) -> pa.Table:
        """Read rows ``start .. stop`` of a block; the table keeps no other row's memory alive.

        The spans of one block are asked for one after the other, in ascending order.

        Raises
        ------
        ReadError
            They cannot be read; the text names file and row group.
        """

    def bytes_beside(self, block: int, nbytes: int) -> int:
        """Estimate what one call of :meth:`read` holds beside a result of `nbytes` bytes."""

    @property
    def held_bytes(self) -> int:
        """Bytes of files that are held for blocks which are open, as far as ``cursor_bytes`` does not tell."""

    def fetch_bytes(self, block: int, start: int, stop: int) -> int:
        """Estimate what :meth:`fetch` of a span holds until the span is read; 0 when there is nothing to fetch."""

    def fetch(self, block: int, start: int, stop: int) -> "Future[None]":
        """Begin to bring the bytes of a span from a remote storage, for a call of :meth:`read` that follows.

        It returns at once; :meth:`stop` breaks it off. The future raises what :meth:`read` would raise.
        """

    @property
    def traffic(self) -> Traffic:
        """What was asked of a storage so far."""

    @property
    def fetch_s(self) -> float:
        """Seconds from the beginning to the end of fetching, summed over what was fetched."""

    @property
    def waited_s(self) -> float:
        """Seconds that :meth:`read` has waited for a storage, summed over threads."""


@runtime_checkable
class BlockSource(Protocol):
    """Rows in blocks that can be read in any order. It pickles, and may cross a fork."""

    @property
    def schema(self) -> pa.Schema:
        """Schema of what is read."""

    @property
    def fingerprint(self) -> str:
        """A short text that changes when schema, names or row counts of the whole dataset do."""

    @property
    def block_rows(self) -> Int64s:
        """Rows of each block, int64 [blocks]; none is zero."""

    @property
    def block_bytes(self) -> Int64s:
        """Bytes of each block in memory, int64 [blocks], as far as known before reading."""

    @property
    def decode_bytes(self) -> Int64s:
        """Bytes that reading each block whole takes beside its rows, int64 [blocks]."""

    @property
    def largest_column(self) -> float:
        """Part of ``block_bytes`` that the largest column takes, in [0, 1]."""

    @property
    def cursor_bytes(self) -> Callable[[Int64s], int] | None:
        """Says how much reading one of some blocks in pieces holds beside them, at most; None where it cannot."""

    @property
    def piece_factor(self) -> float:
        """What decoding a piece takes beside its rows, in units of them; counts where blocks are read in pieces."""

    def session(
        self,
        pieces: Int64s | None = None,
        *,
        open_blocks: int = 1,
        compact: bool = True,
        threads: int = 1,
        row_ids: bool = False,
    ) -> Session:
        """Start a pass of reading.

        Parameters
        ----------
        pieces
            Pieces in which each block will be read, int64 [blocks]; None reads all whole.
        open_blocks
            Blocks in several pieces that are open at a time, at most.
        compact
            Copy every piece to exactly its size, because many will be held together.
        threads
            Threads that may read one piece together.
        row_ids
            Add each row's id as a last column: what :meth:`locate` takes.
        """

    def locate(self, row_ids: Int64s) -> pa.RecordBatch:
        """Say where rows lie: columns ``_file`` (string), ``_row_group`` (int32), ``_row`` (int64, in its row group).

        Parameters
        ----------
        row_ids
            Ids that a session gave, int64.
        """

    def describe(self, block: int) -> str:
        """Name a block for a person."""

    def close(self) -> None:
        """Let go of what is held between passes, if anything; a later one takes it up again."""

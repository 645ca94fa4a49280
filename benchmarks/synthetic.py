"""Block sources without data, for the other benchmarks: as many blocks as one likes, in no time."""

import time

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from corgiarrow.storage import Traffic

Int64s = npt.NDArray[np.int64]


class SyntheticSource:
    """Blocks of one column, float32 zeros; notes when it is first read.

    Attributes
    ----------
    first_read
        ``time.perf_counter()`` at the first read, None before.
    """

    schema = pa.schema([("x", pa.float32())])
    fingerprint = "synthetic"
    largest_column = 1.0
    cursor_bytes = None
    traffic = Traffic()
    held_bytes = 0
    fetch_s = waited_s = 0.0

    def __init__(self, blocks: int, rows: int):
        self.block_rows: Int64s = np.full(blocks, rows, dtype=np.int64)
        self.block_bytes: Int64s = 4 * self.block_rows
        self.decode_bytes: Int64s = np.zeros(blocks, dtype=np.int64)
        self.first_read: float | None = None

    def session(self, pieces: Int64s | None = None, **options: object) -> "SyntheticSource":
        """Start a pass of reading."""
        return self

    def stop(self) -> None:
        """End reads."""

    def close(self) -> None:
        """End it."""

    def expect(self, block: int) -> None:
        """Nothing is open."""

    def fetch_bytes(self, block: int, start: int, stop: int) -> int:
        return 0

    def bytes_beside(self, block: int, nbytes: int) -> int:
        """Reading holds nothing beside its result."""
        return 0

    def read(self, block: int, start: int, stop: int) -> pa.Table:
        """Make rows of a block."""
        if self.first_read is None:
            self.first_read = time.perf_counter()
        return pa.table({"x": np.zeros(stop - start, dtype=np.float32)}, schema=self.schema)

    def locate(self, row_ids: Int64s) -> pa.RecordBatch:
        """Name the blocks of rows."""
        block, row = np.divmod(row_ids, self.block_rows[0])
        return pa.record_batch(
            {
                "_file": pa.array(["synthetic"] * len(row_ids), pa.string()),
                "_row_group": pa.array(block.astype(np.int32)),
                "_row": pa.array(row),
            }
        )

    def describe(self, block: int) -> str:
        """Name a block."""
        return f"synthetic block {block}"

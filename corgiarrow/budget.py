"""How many blocks a buffer merges: from a budget of bytes, blocks or a fraction of the dataset."""

from dataclasses import dataclass

import numpy as np

from corgiarrow.errors import BudgetError, OptionError
from corgiarrow.strategies import Int64s, Strategy
from corgiarrow.units import parse_bytes

DEFAULT_MEMORY = "512 MiB"

_SHUFFLE_FACTOR = 1.15
"""The buffer, and some room for decoding, while a column is shuffled beside it."""

@dataclass(frozen=True, slots=True)
class Request:
    """The budget as asked: at most one of the three, of the whole job.

    Raises
    ------
    OptionError
        More than one is given, or one is out of its bounds.
    """

    memory: int | str | None = None
    buffer_blocks: int | None = None
    buffer_fraction: float | None = None

    def __post_init__(self) -> None:
        given = [f"{n}={v!r}" for n in self.__slots__ if (v := getattr(self, n)) is not None]
        if len(given) > 1:
            raise OptionError(f"{' and '.join(given)} each set the buffer: give only one")
        if self.memory is not None:
            parse_bytes("memory", self.memory)
        if self.buffer_blocks is not None and self.buffer_blocks < 1:
            raise OptionError(f"buffer_blocks={self.buffer_blocks} must be at least 1")
        if self.buffer_fraction is not None and not 0 < self.buffer_fraction <= 1:
            raise OptionError(f"buffer_fraction={self.buffer_fraction} must be in (0, 1]")


@dataclass(frozen=True, slots=True)
class Budget:
    """What a stream may hold.

    Attributes
    ----------
    buffer_blocks
        Blocks that one buffer of one stream merges (the paper's n, of one process).
    stream_bytes
        Bytes of one stream: its buffer, what is read ahead, and what is being decoded and shuffled.
    """

    buffer_blocks: int
    stream_bytes: int


def resolve(
    request: Request, block_bytes: Int64s, largest_column: float, strategy: Strategy, streams: int
) -> Budget:
    """Return the budget of each of `streams` streams.

    Parameters
    ----------
    block_bytes
        Bytes of each block in memory, int64 [blocks].
    largest_column
        Part of those bytes that the largest column takes: shuffling needs room for one column beside the buffer.

    Raises
    ------
    BudgetError
        The budget holds less than one block a stream, or less than the strategy's whole buffer.
    """
    if not len(block_bytes):
        return Budget(1, parse_bytes("memory", request.memory or DEFAULT_MEMORY))
    largest = np.cumsum(np.sort(block_bytes)[::-1])
    per_stream = min(-(-len(block_bytes) // streams) + 1, len(block_bytes))

    factor = max(strategy.memory_factor, _SHUFFLE_FACTOR + largest_column if strategy.copies else 0)

    def needed(blocks: int) -> int:
        return int(largest[blocks - 1] * factor)

    if request.buffer_blocks is None and request.buffer_fraction is None:
        memory = parse_bytes("memory", request.memory or DEFAULT_MEMORY)
        share = memory // streams
        fits = int(np.searchsorted(largest * factor, share, side="right"))
        option, count, room = "memory", f"{memory / 2**20:,.0f} MiB", share
    else:
        whole = request.buffer_blocks or round((request.buffer_fraction or 0) * len(block_bytes))
        fits = min(whole // streams, len(block_bytes))
        option = "buffer_blocks" if request.buffer_blocks else "buffer_fraction"
        count, room = f"{whole} blocks", None
    asked = strategy.buffer_blocks(per_stream, max(fits, 1))
    if fits < asked:
        raise BudgetError(
            f"{option} of {count} over {streams} streams holds {fits} blocks a stream, but shuffle={strategy.name!r} "
            f"needs {asked}: give memory='{-(-needed(asked) * streams // 2**20)} MiB' or more"
            + (", or fewer streams" if streams > 1 else "")
            + (", or smaller row groups" if asked == 1 else "")
        )
    if room is None:  # Two blocks read ahead keep the disk busy also where a buffer merges one or two.
        room = max(needed(fits), int(largest[fits - 1] + 2 * largest[0]))
    return Budget(asked, room)

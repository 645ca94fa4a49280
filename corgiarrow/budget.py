"""How many blocks a buffer merges: from a budget of bytes, blocks or a fraction of the dataset."""

from dataclasses import dataclass

import numpy as np

from corgiarrow.errors import BudgetError, OptionError
from corgiarrow.strategies import Int64s, Strategy
from corgiarrow.units import parse_bytes, show_bytes

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


def resolve(request: Request, block_bytes: Int64s, largest_column: float, strategy: Strategy, streams: int) -> Budget:
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
    factor = max(strategy.memory_factor, _SHUFFLE_FACTOR + largest_column if strategy.copies else 0)
    # A buffer of n blocks takes at most what the n largest blocks take.
    needed = np.cumsum(np.sort(block_bytes)[::-1]) * factor
    if strategy.merges_all:
        # A stream's piece of the line may end inside of a block on either side.
        whole = int(block_bytes.sum() / streams + (2 * block_bytes.max() if streams > 1 else 0)) * factor
        needed = np.full(len(block_bytes), whole)
    if request.buffer_blocks is None and request.buffer_fraction is None:
        memory = parse_bytes("memory", request.memory or DEFAULT_MEMORY)
        option, room = f"memory of {show_bytes(memory)}", memory // streams
        fits = int(np.searchsorted(needed, room, side="right"))
    else:
        blocks = request.buffer_blocks or round((request.buffer_fraction or 0) * len(block_bytes))
        option = f"{'buffer_blocks' if request.buffer_blocks else 'buffer_fraction'} of {blocks} blocks"
        fits = min(blocks // (1 if strategy.merges_all else streams), len(block_bytes))
        # Two blocks read ahead keep the disk busy also where a buffer merges one or two.
        room = int(needed[fits - 1] + 2 * block_bytes.max())
    asked = strategy.buffer_blocks(len(block_bytes), max(fits, 1))
    if fits < asked:
        remedy = f"memory='{-(-int(needed[asked - 1]) * streams // 2**20)} MiB'"
        if request.buffer_blocks or request.buffer_fraction:
            remedy = f"buffer_blocks={asked * (1 if strategy.merges_all else streams)}"
        raise BudgetError(
            f"{option} over {streams} streams holds {fits} blocks a stream, but shuffle={strategy.name!r} "
            f"needs {asked}: give {remedy} or more"
            + (", or fewer streams" if streams > 1 else "")
            + (", or rewrite the data in smaller row groups" if asked == 1 else "")
        )
    return Budget(asked, room)

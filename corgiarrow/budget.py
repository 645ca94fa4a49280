"""How many blocks a buffer merges, and which are read in pieces: from a budget of bytes, blocks or a fraction."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from corgiarrow.errors import BudgetError, OptionError
from corgiarrow.strategies import Floats, Int64s, Strategy
from corgiarrow.units import parse_bytes, show_bytes

DEFAULT_MEMORY = "512 MiB"

_SHUFFLE_FACTOR = 1.15
"""The buffer, and some room for decoding, while a column is shuffled beside it."""

_PERMUTATION_BYTES = 12
"""A row's share of a permutation that is being made: a random number of 8 bytes, and then its place, of 4."""

_ALLOCATOR_PART = 0.1
"""Part of the bytes that is left to the allocator: pages that it keeps, and memory that it cannot use again at once."""

_WHOLE_BLOCKS = 8
"""A buffer that merges fewer whole blocks than this mixes little: larger blocks are read in pieces."""

_PIECES = 32
"""Pieces that a buffer merges where blocks are read in pieces, about."""

_OPEN_BLOCKS = 16
"""Blocks in pieces that are read at a time, at most."""

_CURSOR_PART = 0.4
"""Part of a stream's bytes that the cursors of all open blocks may take."""

_MOST_CURSOR_PART = 0.8
"""Part that a single cursor may take where there is no other way."""


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
        Blocks, or pieces of blocks, that one buffer of one stream merges (the paper's n, of one process).
    stream_bytes
        Bytes of one stream: its buffer, what is read ahead, what is being decoded and shuffled, and `reserved_bytes`.
    reserved_bytes
        Bytes set aside for blocks that are open while they are read in pieces, for a buffer's permutation, and for the
        allocator.
    pieces
        Pieces in which each block is read, int64 [blocks]; None where all are read whole.
    open_blocks
        Blocks in several pieces that are read at a time.
    """

    buffer_blocks: int
    stream_bytes: int
    reserved_bytes: int = 0
    pieces: Int64s | None = field(default=None, compare=False)
    open_blocks: int = 1


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a budget depends on, of a source's blocks.

    Attributes
    ----------
    rows, nbytes
        Rows and bytes in memory of each block, int64 [blocks].
    decode_bytes
        Bytes that reading each block whole takes beside its rows, int64 [blocks].
    largest_column
        Part of those bytes that the largest column takes: shuffling needs room for one column beside the buffer.
    cursor_bytes
        Says how much reading one of some blocks (their numbers, int64) in pieces holds beside them, at most; None
        where that cannot be done.
    batch_rows
        Rows of a batch.
    piece_factor
        What decoding a piece of a block takes beside its rows, in units of them.
    """

    rows: Int64s
    nbytes: Int64s
    decode_bytes: Int64s
    largest_column: float
    cursor_bytes: Callable[[Int64s], int] | None = None
    batch_rows: int = 0
    piece_factor: float = 0.0

    @property
    def batch_bytes(self) -> int:
        """Bytes of a batch: one is joined from what is held, where it does not lie in one piece of it."""
        return int(self.batch_rows * self.nbytes.sum() / max(self.rows.sum(), 1))


def resolve(request: Request, sizes: Sizes, strategy: Strategy, streams: int) -> Budget:
    """Return the budget of each of `streams` streams.

    Raises
    ------
    BudgetError
        The budget holds less than one block a stream, or less than the strategy's whole buffer.
    """
    if not len(sizes.nbytes):
        return Budget(1, parse_bytes("memory", request.memory or DEFAULT_MEMORY))
    merged = np.arange(1, len(sizes.nbytes) + 1)
    factor, each = _factors(merged, sizes, strategy)
    indices = each * _needed(sizes.rows, 1.0, strategy, streams)
    # The last block of a buffer is decoded beside the others.
    needed = indices + np.maximum(
        _needed(sizes.nbytes, factor, strategy, streams),
        _needed(sizes.nbytes, strategy.held_factor(merged), strategy, streams) + sizes.decode_bytes.max(),
    )
    if request.buffer_blocks is None and request.buffer_fraction is None:
        memory = parse_bytes("memory", request.memory or DEFAULT_MEMORY)
        option, room = f"memory of {show_bytes(memory)}", memory // streams
        fits = int(np.searchsorted(needed, int(room * (1 - _ALLOCATOR_PART)) - sizes.batch_bytes, side="right"))
        in_pieces = _in_pieces(sizes, strategy, streams, room, fits)
        if in_pieces is not None:
            return in_pieces
    else:
        blocks = request.buffer_blocks or round((request.buffer_fraction or 0) * len(sizes.nbytes))
        option = f"{'buffer_blocks' if request.buffer_blocks else 'buffer_fraction'} of {blocks} blocks"
        fits = min(blocks // (1 if strategy.merges_all else streams), len(sizes.nbytes))
        # Blocks read ahead keep the disk, or the line, busy also where a buffer merges one or two.
        room = int((needed[fits - 1] + 4 * sizes.nbytes.max() + sizes.batch_bytes) / (1 - _ALLOCATOR_PART))
    asked = strategy.buffer_blocks(sizes.rows, max(fits, 1), streams)
    if fits < asked:
        whole = int((needed[asked - 1] + sizes.batch_bytes) / (1 - _ALLOCATOR_PART)) + 1
        least = _least(sizes, strategy, streams, whole)
        remedy = f"memory='{-(-least * streams // 2**20)} MiB'"
        if request.buffer_blocks or request.buffer_fraction:
            remedy = f"buffer_blocks={asked * (1 if strategy.merges_all else streams)}"
        raise BudgetError(
            f"{option} over {streams} streams holds {fits} blocks a stream, but shuffle={strategy.name!r} "
            f"needs {asked}: give {remedy} or more"
            + (", or fewer streams" if streams > 1 else "")
            + (", or rewrite the data in smaller row groups" if asked == 1 else "")
        )
    return Budget(asked, room, int(indices[asked - 1]) + int(room * _ALLOCATOR_PART) + sizes.batch_bytes)


def _least(sizes: Sizes, strategy: Strategy, streams: int, whole: int) -> int:
    """Bytes with which a stream can go on: what whole blocks need, or less where they can be read in pieces."""
    room = 2**20
    while room < whole and _in_pieces(sizes, strategy, streams, room, 0) is None:
        room += max(room // 16, 1)
    return min(room, whole)


def _factors(blocks: Int64s, sizes: Sizes, strategy: Strategy) -> tuple[Floats, Floats]:
    """Return what a strategy needs for buffers of so many blocks, float64 [blocks] each.

    Memory in units of the buffer, and bytes of a permutation for each of its rows.
    """
    factor = strategy.memory_factor(blocks)
    if not strategy.copies:
        return factor, np.zeros(len(blocks))
    gathered = strategy.gathered_factor(blocks)
    beside = (_SHUFFLE_FACTOR - 1 + sizes.largest_column) * gathered
    return np.maximum(factor, strategy.held_factor(blocks) + beside), _PERMUTATION_BYTES * gathered


def _needed(nbytes: Int64s, factor: "Floats | float", strategy: Strategy, streams: int) -> Int64s:
    """Bytes that a stream needs for a buffer of 1, 2, … blocks, int64 [blocks]."""
    if strategy.merges_all:
        # A stream's piece of the line may end inside of a block on either side.
        whole = int(nbytes.sum() / streams + (2 * nbytes.max() if streams > 1 else 0))
        return np.asarray(np.full(len(nbytes), whole) * factor, dtype=np.int64)
    # A buffer of n blocks takes at most what the n largest blocks take.
    return np.asarray(np.cumsum(np.sort(nbytes)[::-1]) * factor, dtype=np.int64)


def _in_pieces(sizes: Sizes, strategy: Strategy, streams: int, room: int, fits: int) -> Budget | None:
    """Return a budget that reads large blocks in pieces, or None where whole blocks serve as well or better.

    Parameters
    ----------
    room
        Bytes of a stream.
    fits
        Whole blocks that a buffer of so many bytes could merge.
    """
    enough = min(_WHOLE_BLOCKS, len(sizes.nbytes)) if strategy.mixes_pieces else 1
    if strategy.merges_all or fits >= enough or sizes.cursor_bytes is None:
        return None
    share = room * (1 - _ALLOCATOR_PART) / (_WHOLE_BLOCKS if strategy.mixes_pieces else 1)
    factor, each = (float(x[0]) for x in _factors(np.array([_PIECES]), sizes, strategy))
    taken = sizes.nbytes * factor + each * sizes.rows
    room_whole = room * (1 - _ALLOCATOR_PART) - sizes.batch_bytes
    large = ((taken > share) | (sizes.nbytes + sizes.decode_bytes > room_whole)) & (sizes.rows > 1)
    if not large.any():
        return None
    cursor = sizes.cursor_bytes(np.flatnonzero(large))
    most = min(_OPEN_BLOCKS, int(large.sum())) if strategy.mixes_pieces else 1
    open_blocks = min(most, int(room * _CURSOR_PART / max(cursor, 1)))
    if open_blocks < 1:
        if fits or cursor >= _MOST_CURSOR_PART * room:
            return None
        open_blocks = 1
    reserved = open_blocks * cursor + int(room * _ALLOCATOR_PART) + sizes.batch_bytes
    # A row costs its bytes, some times over, and its share of the permutation.
    row_bytes = sizes.nbytes[large] / sizes.rows[large]
    if reserved >= room:
        return None
    piece_bytes = (room - reserved) / _PIECES * row_bytes / (row_bytes * factor + each)
    pieces = np.ones(len(sizes.nbytes), dtype=np.int64)
    piece_rows = np.maximum(piece_bytes / row_bytes, 1).astype(np.int64)
    # What is left of a large block may be small where most rows are left out, but it cannot be decoded whole.
    pieces[large] = np.maximum(-(-sizes.rows[large] // piece_rows), 2)
    # As many as there are when all but the last have as many rows as the first.
    pieces = -(-sizes.rows // -(-sizes.rows // pieces))
    nbytes, rows = (np.repeat(-(-sizes_of // pieces), pieces) for sizes_of in (sizes.nbytes, sizes.rows))
    blocks = np.arange(1, len(nbytes) + 1)
    factors, indices_each = _factors(blocks, sizes, strategy)
    indices = indices_each * _needed(rows, 1.0, strategy, 1)
    needed = indices + _needed(nbytes, factors, strategy, 1)
    decoding = indices + _needed(nbytes, strategy.held_factor(blocks), strategy, 1) + sizes.piece_factor * nbytes.max()
    # Where rows are so large that decoding one piece is the most of it, a buffer of one is tried all the same.
    least = min(int(np.searchsorted(needed, room - reserved, side="right")), 1)
    merged = max(int(np.searchsorted(np.maximum(needed, decoding), room - reserved, side="right")), least)
    if merged < 1:
        return None
    asked = strategy.buffer_blocks(rows, merged, streams)
    if asked > merged:
        return None
    return Budget(asked, room, reserved + int(indices[asked - 1]), pieces, open_blocks)

"""What a strategy is: a pure function from block sizes and random bits to an order, in steps."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from corgiarrow.randomness import Bits, StepBits, permutation
from corgiarrow.strategies.steps import Floats, Int64s, Step


@dataclass(frozen=True, slots=True)
class Line:
    """The rows of an epoch in the order of their blocks, which is cut into streams at multiples of `batch_size`.

    Attributes
    ----------
    rows, spans
        Rows, and the blocks or pieces of blocks in which they are read.
    batch_size, streams
        Rows of a batch, and logical readers.
    """

    rows: int
    spans: int
    batch_size: int
    streams: int

    @property
    def num_batches(self) -> int:
        """Batches that hold all rows, the last of which may be short."""
        return -(-self.rows // self.batch_size)

    @property
    def mean_rows(self) -> float:
        """Rows of a span."""
        return self.rows / max(self.spans, 1)

    @property
    def least_rows(self) -> int:
        """Rows of the stream that has the fewest."""
        short, extra = divmod(self.num_batches, self.streams)
        missing = 0 if extra else self.num_batches * self.batch_size - self.rows
        return short * self.batch_size - missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy(ABC):
    """A way to make order. Subclasses are frozen dataclasses; their fields are the strategy's parameters."""

    name: ClassVar[str]
    copies: ClassVar[bool] = True
    """Whether rows are copied on their way; blocks that pass as they are need no room for it."""
    merges_all: ClassVar[bool] = False
    """Whether one buffer holds everything that a stream reads in an epoch."""
    reorders_each_epoch: ClassVar[bool] = True
    mixes_pieces: ClassVar[bool] = False
    """Whether pieces of several blocks that are too large to be held whole are read in turn."""
    repeats_rows: ClassVar[bool] = False
    """Whether an epoch gives some rows several times, and others not at all."""

    def memory_factor(self, blocks: Int64s) -> Floats:
        """Memory that a stream needs, in units of buffers of so many of its largest blocks, float64 [blocks].

        For CorgiPile 1 for the buffer that is being consumed or made, and room to read ahead while it drains.
        """
        return np.full(len(blocks), 1.5)

    def held_factor(self, blocks: Int64s) -> Floats:
        """Part of that which is held while rows are gathered, in the same units."""
        return np.ones(len(blocks))

    def gathered_factor(self, blocks: Int64s) -> Floats:
        """What one step gathers rows of, in the same units."""
        return np.ones(len(blocks))

    @property
    def described(self) -> str:
        """Name and parameters, as text."""
        return f"{self.name}({','.join(f'{f.name}={getattr(self, f.name)}' for f in fields(self))})"

    @abstractmethod
    def buffer_blocks(self, block_rows: Int64s, asked: int, streams: int) -> int:
        """Blocks that one buffer of one stream merges, when the budget has room for `asked`.

        Parameters
        ----------
        block_rows
            Rows of each block of the data, int64 [blocks].
        asked
            Blocks of a stream's buffer.
        streams
            Streams of the job.

        Raises
        ------
        OptionError
            A parameter of the strategy does not suit the data.
        """

    def sized(self, line: Line, buffer_blocks: int) -> "Strategy":
        """Return the strategy with what it leaves open settled for an epoch, for each of its streams."""
        return self

    def epoch_rows(self, line: Line) -> int:
        """Rows that an epoch emits; asked of what :meth:`sized` returned."""
        return line.rows

    def repeated_rows(self, line: Line) -> int:
        """Rows among them that the strategy gives beside those which it passes on once."""
        return 0

    def block_order(self, num_blocks: int, bits: Bits) -> Int64s:
        """Order in which an epoch visits its blocks, int64 [num_blocks]."""
        return permutation(num_blocks, bits).astype(np.int64)

    def piece_order(
        self, num_blocks: int, pieces: Int64s | None, open_blocks: int, bits: Bits
    ) -> tuple[Int64s, Int64s]:
        """Order in which an epoch visits its blocks, in pieces where they are large.

        A block's pieces come in ascending order, since it is read from its start to its end.

        Parameters
        ----------
        pieces
            Pieces of each block, int64 [blocks]; None for one each.
        open_blocks
            Blocks in several pieces that may be read at a time.

        Returns
        -------
        Block, and number of the piece in it, int64 [all pieces].
        """
        order = self.block_order(num_blocks, bits)
        if pieces is None:
            return order, np.zeros(num_blocks, dtype=np.int64)
        counts = pieces[order]
        block = np.repeat(order, counts)
        if self.mixes_pieces:
            # Blocks in several pieces go together in groups of `open_blocks`; small ones stay near their place. In
            # a group each block's pieces are spread evenly, at random places of as many equal stretches.
            large = counts > 1
            group = np.repeat((np.cumsum(large) - large) // open_blocks, counts)
            stretch = np.arange(len(block)) - np.repeat(np.cumsum(counts) - counts, counts)
            place = (stretch + (bits.random_raw(len(block)) >> np.uint64(11)) * 2.0**-53) / np.repeat(counts, counts)
            block = block[np.lexsort((place, group))]
        places = np.argsort(block, kind="stable")
        piece = np.empty(len(block), dtype=np.int64)
        piece[places] = np.arange(len(block)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        return block, piece

    @abstractmethod
    def emitted(self, rows: Int64s, buffer_blocks: int, total: int) -> Int64s:
        """Rows that each step emits, int64 [steps].

        Parameters
        ----------
        rows
            Rows of the stream's spans, int64 [spans].
        buffer_blocks
            Blocks that one buffer merges.
        total
            Rows that the stream emits: all of `rows`, unless the strategy repeats some.
        """

    @abstractmethod
    def steps(self, rows: Int64s, buffer_blocks: int, total: int, bits: StepBits, first: int = 0) -> Iterator[Step]:
        """Yield the steps from number `first` on, as far as they follow from the loads of those steps."""

    def replay_from(self, step: int, buffer_blocks: int) -> int:
        """First step whose loads matter to what `step` and its followers emit."""
        return step

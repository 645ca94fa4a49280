"""Strategies: pure functions from block sizes and random bits to an order, in steps of load, emit and keep.

A stream holds a **pool** of rows as a list of *pieces*. Each span that is loaded becomes a piece whose number is the
span's position in the stream; a strategy numbers the pieces that it makes itself below zero. A :class:`Step` says
which spans to load and which *gathers* to run: a gather takes rows of its source pieces, in the given order, either
out to the consumer or into a new piece that later steps use. After a step its sources are gone, every other piece
stays.

Nothing here reads a file or knows Arrow, so an order can be drawn, measured and tested without data.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from corgiarrow.errors import OptionError
from corgiarrow.randomness import Bits, StepBits, permutation

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Gather:
    """Rows of some pieces, in an order.

    Attributes
    ----------
    sources
        Numbers of the pieces; their rows, one piece after the other, are what `index` counts.
    index
        Rows to take, unsigned [rows out]; None takes all rows as they stand.
    piece
        Number of the piece to make, below zero; None emits the rows.
    """

    sources: tuple[int, ...]
    index: npt.NDArray[np.unsignedinteger] | None
    piece: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What a stream does next: load these spans, then run these gathers (at most one of them emits).

    No gather uses a piece that the same step makes, and two gathers share all of their sources or none.
    """

    load: tuple[int, ...]
    gathers: tuple[Gather, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy(ABC):
    """A way to make order. Subclasses are frozen dataclasses; their fields are the strategy's parameters."""

    name: ClassVar[str]
    memory_factor: ClassVar[float] = 1.5
    """Memory that a stream needs, in units of its `buffer_blocks` largest blocks: 1 for the buffer that is being
    consumed or made, and room to read ahead while it drains."""
    copies: ClassVar[bool] = True
    """Whether rows are copied on their way; blocks that pass as they are need no room for it."""
    merges_all: ClassVar[bool] = False
    """Whether one buffer holds everything that a stream reads in an epoch."""
    reorders_each_epoch: ClassVar[bool] = True
    mixes_pieces: ClassVar[bool] = False
    """Whether pieces of several blocks that are too large to be held whole are read in turn."""

    @abstractmethod
    def buffer_blocks(self, num_blocks: int, asked: int) -> int:
        """Blocks that one buffer merges, out of `num_blocks`, when the budget has room for `asked`."""

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
    def emitted(self, rows: Int64s, buffer_blocks: int) -> Int64s:
        """Rows that each step emits, int64 [steps], for spans of `rows` rows (int64 [spans])."""

    @abstractmethod
    def steps(self, rows: Int64s, buffer_blocks: int, bits: StepBits, first: int = 0) -> Iterator[Step]:
        """Yield the steps from number `first` on, as far as they follow from the loads of those steps."""

    def replay_from(self, step: int, buffer_blocks: int) -> int:
        """First step whose loads matter to what `step` and its followers emit."""
        return step

    def parameters(self) -> dict[str, int | float]:
        """Parameters by name, as plain numbers."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _BlockAtATime(Strategy):
    """One block a step, its rows in file order."""

    copies: ClassVar[bool] = False

    def buffer_blocks(self, num_blocks: int, asked: int) -> int:
        return 1

    def emitted(self, rows: Int64s, buffer_blocks: int) -> Int64s:
        return rows

    def steps(self, rows: Int64s, buffer_blocks: int, bits: StepBits, first: int = 0) -> Iterator[Step]:
        for span in range(first, len(rows)):
            yield Step((span,), (Gather((span,), None),))


@dataclass(frozen=True, slots=True, kw_only=True)
class NoShuffle(_BlockAtATime):
    """The paper's No Shuffle: rows in file order (with several streams, each reads its own stretch of the files)."""

    name: ClassVar[str] = "none"

    def block_order(self, num_blocks: int, bits: Bits) -> Int64s:
        return np.arange(num_blocks, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockOnly(_BlockAtATime):
    """The paper's Block-Only Shuffle: blocks in random order, rows within a block as they stand."""

    name: ClassVar[str] = "block"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorgiPile(Strategy):
    """The paper's CorgiPile (Algorithm 1): sample n blocks without replacement, merge them, permute their rows.

    Where n does not divide the number of blocks, the epoch's first buffer is the smaller one, and an epoch of more
    than four buffers begins with one of at most a quarter of n blocks: the first batch comes sooner, and no epoch ends
    on thinly mixed rows, just before the model is judged.
    """

    name: ClassVar[str] = "corgipile"
    mixes_pieces: ClassVar[bool] = True

    def buffer_blocks(self, num_blocks: int, asked: int) -> int:
        return min(asked, num_blocks)

    def emitted(self, rows: Int64s, buffer_blocks: int) -> Int64s:
        return np.add.reduceat(rows, self._starts(len(rows), buffer_blocks)) if len(rows) else rows

    def steps(self, rows: Int64s, buffer_blocks: int, bits: StepBits, first: int = 0) -> Iterator[Step]:
        starts = [*self._starts(len(rows), buffer_blocks).tolist(), len(rows)]
        for step in range(first, len(starts) - 1):
            load = tuple(range(starts[step], starts[step + 1]))
            total = int(rows[load[0] : load[-1] + 1].sum())
            yield Step(load, (Gather(load, as_index(permutation(total, bits(step)))),))

    @staticmethod
    def _starts(spans: int, buffer_blocks: int) -> Int64s:
        """First span of each step, int64 [steps]."""
        starts = np.maximum(np.arange(-(-spans % buffer_blocks), spans, buffer_blocks), 0)
        quarter = -(-buffer_blocks // 4)
        if len(starts) > 4 and starts[1] > quarter:
            starts = np.insert(starts, 1, quarter)
        return starts


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochShuffle(CorgiPile):
    """The paper's Epoch Shuffle: every epoch a new permutation of all rows (of each stream's), held in memory."""

    name: ClassVar[str] = "epoch"
    memory_factor: ClassVar[float] = 1.25
    merges_all: ClassVar[bool] = True
    mixes_pieces: ClassVar[bool] = False

    def buffer_blocks(self, num_blocks: int, asked: int) -> int:
        return num_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleOnce(EpochShuffle):
    """The paper's Shuffle Once: one permutation of all rows (of each stream's), the same in every epoch."""

    name: ClassVar[str] = "once"
    reorders_each_epoch: ClassVar[bool] = False


BY_NAME: Mapping[str, Strategy] = {
    s.name: s for s in (NoShuffle(), ShuffleOnce(), EpochShuffle(), BlockOnly(), CorgiPile())
}


def as_strategy(shuffle: "str | bool | Strategy") -> Strategy:
    """Return the strategy that ``shuffle=`` names: True is ``"corgipile"``, False is ``"none"``.

    Raises
    ------
    OptionError
        No strategy has that name.
    """
    if isinstance(shuffle, Strategy):
        return shuffle
    if isinstance(shuffle, bool):
        return BY_NAME["corgipile" if shuffle else "none"]
    if shuffle not in BY_NAME:
        raise OptionError(f"shuffle={shuffle!r} must be True, False, a Strategy, or one of: {', '.join(BY_NAME)}")
    return BY_NAME[shuffle]


def as_index(rows: npt.NDArray[np.uint64]) -> npt.NDArray[np.unsignedinteger]:
    """Return `rows` in the narrowest type that Arrow takes fast: uint32 where the numbers fit."""
    return rows.astype(np.uint32) if len(rows) < 2**32 else rows


@dataclass(slots=True)
class Pool:
    """The pool as arrays of row ids: what a step does, without any data.

    Attributes
    ----------
    span_ids
        For each span of the stream its rows' ids are ``start .. start + rows``: int64 [spans] of starts.
    rows
        Rows of each span, int64 [spans].
    pieces
        Row ids of each piece that is held, by piece number.
    """

    span_ids: Int64s
    rows: Int64s
    pieces: dict[int, Int64s] = field(default_factory=dict)

    def apply(self, step: Step) -> Int64s:
        """Do one step; return the ids of the rows that it emits."""
        for span in step.load:
            self.pieces[span] = self.span_ids[span] + np.arange(self.rows[span])
        out = np.empty(0, dtype=np.int64)
        made: dict[int, Int64s] = {}
        for gather in step.gathers:
            # Of a pool rebuilt from the middle, pieces that no longer matter are missing.
            held = [self.pieces[p] for p in gather.sources if p in self.pieces]
            ids = np.concatenate(held) if held else out
            if gather.index is not None:
                ids = ids[gather.index] if len(held) == len(gather.sources) else ids
            if gather.piece is None:
                out = ids
            else:
                made[gather.piece] = ids
        for gather in step.gathers:
            for piece in gather.sources:
                self.pieces.pop(piece, None)
        self.pieces.update(made)
        return out


def restoring_step(pool: Pool) -> Step:
    """Return the step that rebuilds `pool`: load each span that has a row in it, gather each piece again."""
    owner = {p: np.searchsorted(pool.span_ids, ids, side="right") - 1 for p, ids in pool.pieces.items()}
    load = tuple(int(s) for s in np.unique(np.concatenate([*owner.values(), np.empty(0, np.int64)])))
    whole = {p for p in pool.pieces if p >= 0}
    needed = tuple(s for s in load if s not in whole)
    offset = np.zeros(len(pool.rows), dtype=np.int64)
    offset[list(needed)] = np.cumsum([0, *pool.rows[list(needed)][:-1]]) if needed else 0
    gathers = tuple(
        Gather(needed, (ids - pool.span_ids[owner[p]] + offset[owner[p]]).astype(np.uint64), p)
        for p, ids in pool.pieces.items()
        if p not in whole
    )
    return Step(load, gathers)

"""Strategies that read blocks in file order or in random order, and merge none, some or all of them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from corgiarrow.randomness import Bits, StepBits, permutation
from corgiarrow.strategies.base import Strategy
from corgiarrow.strategies.steps import Floats, Gather, Int64s, Step, as_index


@dataclass(frozen=True, slots=True, kw_only=True)
class _BlockAtATime(Strategy):
    """One block a step, its rows in file order."""

    copies: ClassVar[bool] = False

    def buffer_blocks(self, block_rows: Int64s, asked: int, streams: int) -> int:
        return 1

    def emitted(self, rows: Int64s, buffer_blocks: int, total: int) -> Int64s:
        return rows

    def steps(self, rows: Int64s, buffer_blocks: int, total: int, bits: StepBits, first: int = 0) -> Iterator[Step]:
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

    def buffer_blocks(self, block_rows: Int64s, asked: int, streams: int) -> int:
        return min(asked, len(block_rows))

    def emitted(self, rows: Int64s, buffer_blocks: int, total: int) -> Int64s:
        return np.add.reduceat(rows, self.load_starts(len(rows), buffer_blocks)) if len(rows) else rows

    def steps(self, rows: Int64s, buffer_blocks: int, total: int, bits: StepBits, first: int = 0) -> Iterator[Step]:
        starts = self.loads(rows, buffer_blocks).tolist()
        for step in range(first, len(starts) - 1):
            load = tuple(range(starts[step], starts[step + 1]))
            merged = int(rows[load[0] : load[-1] + 1].sum())
            yield Step(load, (Gather(load, as_index(permutation(merged, bits(step)))),))

    def loads(self, rows: Int64s, buffer_blocks: int) -> Int64s:
        """First span of each load, and the number of spans, int64 [loads + 1]."""
        return np.append(self.load_starts(len(rows), buffer_blocks), len(rows))

    @staticmethod
    def load_starts(spans: int, buffer_blocks: int) -> Int64s:
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
    merges_all: ClassVar[bool] = True
    mixes_pieces: ClassVar[bool] = False

    def memory_factor(self, blocks: Int64s) -> Floats:
        return np.full(len(blocks), 1.25)

    def buffer_blocks(self, block_rows: Int64s, asked: int, streams: int) -> int:
        return len(block_rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShuffleOnce(EpochShuffle):
    """The paper's Shuffle Once: one permutation of all rows (of each stream's), the same in every epoch."""

    name: ClassVar[str] = "once"
    reorders_each_epoch: ClassVar[bool] = False

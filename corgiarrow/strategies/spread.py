"""Spreading the rows of each load over several steps: more blocks are mixed in the same memory."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np

from corgiarrow.errors import OptionError
from corgiarrow.randomness import StepBits, permutation
from corgiarrow.strategies.base import Line, Strategy
from corgiarrow.strategies.blocks import CorgiPile
from corgiarrow.strategies.steps import Floats, Gather, Int64s, Step, as_index


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread(Strategy):
    """CorgiPile whose loads leave over several steps: each is cut at random in `over_steps` equal parts.

    Part a of what step k loads leaves at step k + a, in random order with the parts of other loads. So a step loads
    1/`over_steps` of the n blocks that its rows come from, and at any time little more than half of n blocks is held.
    The last loads are cut in as many parts as there are steps left, so that no epoch ends on rows of few blocks. The
    first steps are smaller, and mix fewer. Where a buffer is of fewer blocks than `over_steps`, it is spread over as
    many steps as it has blocks. ``over_steps=1`` is exactly :class:`CorgiPile`.

    Attributes
    ----------
    over_steps
        Steps over which the rows of a load leave, the paper's notion of a buffer being 1.

    Raises
    ------
    OptionError
        `over_steps` is out of its bounds.
    """

    name: ClassVar[str] = "spread"
    mixes_pieces: ClassVar[bool] = True
    over_steps: int = 8

    def __post_init__(self) -> None:
        if isinstance(self.over_steps, bool) or not isinstance(self.over_steps, int) or not 1 <= self.over_steps <= 64:
            raise OptionError(f"over_steps={self.over_steps!r} must be a whole number in [1, 64]")

    def memory_factor(self, blocks: Int64s) -> Floats:
        # Of A loads 1 + (A - 1) / 2 are held; half a one is read ahead.
        return 0.5 + 1 / self._over(blocks)

    def held_factor(self, blocks: Int64s) -> Floats:
        return 0.5 + 0.5 / self._over(blocks)

    def gathered_factor(self, blocks: Int64s) -> Floats:
        # A load, and one part of each of A - 1 others.
        return 2 / self._over(blocks) - 1 / self._over(blocks) ** 2

    def _over(self, blocks: Int64s) -> Floats:
        return np.minimum(float(self.over_steps), blocks)

    def buffer_blocks(self, block_rows: Int64s, asked: int, streams: int) -> int:
        most = min(asked, len(block_rows))
        return most // self.over_steps * self.over_steps or most

    def sized(self, line: Line, buffer_blocks: int) -> Self:
        return replace(self, over_steps=min(self.over_steps, max(buffer_blocks, 1)))

    def emitted(self, rows: Int64s, buffer_blocks: int, total: int) -> Int64s:
        found: Int64s = self.emitted_of_loads(rows, buffer_blocks).sum(axis=1)
        return found

    def emitted_of_loads(self, rows: Int64s, buffer_blocks: int) -> Int64s:
        """Rows that each step emits of its load, of the one before, and so on, int64 [steps, over_steps]."""
        loaded = self._loaded(rows, buffer_blocks)
        step, part = np.ogrid[: len(loaded), : self.over_steps]
        load = step - part
        found: Int64s = np.where(load >= 0, self._part_rows(loaded, load, part), 0)
        return found

    def steps(self, rows: Int64s, buffer_blocks: int, total: int, bits: StepBits, first: int = 0) -> Iterator[Step]:
        starts = self.loads(rows, buffer_blocks).tolist()
        loaded = self._loaded(rows, buffer_blocks)
        leaving = self.emitted_of_loads(rows, buffer_blocks)
        for step in range(first, len(loaded)):
            load = tuple(range(starts[step], starts[step + 1]))
            held = [self._piece(step - a, a) for a in range(1, min(self.over_steps, step + 1)) if leaving[step, a]]
            sources = (*load, *held)
            drawn = bits(step)
            order = permutation(int(loaded[step]), drawn)
            sizes = self._part_rows(loaded, np.int64(step), np.arange(self.over_steps))
            out, *later = np.split(order, np.cumsum(sizes)[:-1])
            kept = [
                Gather(sources, as_index(part), self._piece(step, a)) for a, part in enumerate(later, 1) if len(part)
            ]
            if held:
                last = len(order) + int(leaving[step, 1:].sum())
                every = np.concatenate([out, np.arange(len(order), last, dtype=np.uint64)])
                out = every[permutation(len(every), drawn)]
            emitting = [Gather(sources, as_index(out))] if len(out) else []
            yield Step(load, (*emitting, *kept))

    def replay_from(self, step: int, buffer_blocks: int) -> int:
        return max(step - self.over_steps + 1, 0)

    def loads(self, rows: Int64s, buffer_blocks: int) -> Int64s:
        """First span of each load, and the number of spans, int64 [loads + 1].

        They are of equal size: the first rows of an epoch, of one load alone, come from as many blocks as can be.
        """
        each = max(buffer_blocks // self.over_steps, 1)
        if self.over_steps == 1:
            return CorgiPile().loads(rows, each)
        count = -(-len(rows) // each)
        return np.arange(count + 1) * len(rows) // max(count, 1)

    def _loaded(self, rows: Int64s, buffer_blocks: int) -> Int64s:
        """Rows of each load, int64 [loads]."""
        return np.add.reduceat(rows, self.loads(rows, buffer_blocks)[:-1]) if len(rows) else rows

    def _part_rows(self, loaded: Int64s, load: Any, part: Any) -> Int64s:
        """Rows of parts of loads, by their numbers, int64."""
        parts = np.clip(len(loaded) - load, 1, self.over_steps)
        rows = loaded[np.maximum(load, 0)]
        found: Int64s = np.minimum(part + 1, parts) * rows // parts - np.minimum(part, parts) * rows // parts
        return found

    def _piece(self, load: int, part: int) -> int:
        return -(load * self.over_steps + part) - 1

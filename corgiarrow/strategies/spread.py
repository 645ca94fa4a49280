"""Spreading the rows of each load over several steps: more blocks are mixed in the same memory."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from corgiarrow.errors import OptionError
from corgiarrow.randomness import StepBits, permutation
from corgiarrow.strategies.base import Line, Strategy
from corgiarrow.strategies.blocks import CorgiPile
from corgiarrow.strategies.steps import Floats, Gather, Int64s, Step, as_index


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread(Strategy):
    """CorgiPile whose loads leave over several steps: each is cut at random in `over_steps` equal parts.

    Part a of what step k loads leaves at step k + a, in random order with the parts of earlier loads. So a step loads
    1/`over_steps` of the n blocks that its rows come from, and at any time little more than half of n blocks is held.
    The first and the last steps of an epoch are smaller, and mix fewer blocks. Where a buffer is of fewer blocks than
    `over_steps`, it is spread over as many steps as it has blocks. ``over_steps=1`` is exactly :class:`CorgiPile`.

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
        loaded = self._loaded(rows, buffer_blocks)
        if not len(loaded):
            return loaded
        out = np.zeros(len(loaded) + self.over_steps - 1, dtype=np.int64)
        for part in range(self.over_steps):
            out[part : part + len(loaded)] += self._cut(loaded, part + 1) - self._cut(loaded, part)
        return out

    def steps(self, rows: Int64s, buffer_blocks: int, total: int, bits: StepBits, first: int = 0) -> Iterator[Step]:
        starts = self.loads(rows, buffer_blocks).tolist()
        loaded = self._loaded(rows, buffer_blocks)
        for step in range(first, len(loaded) + self.over_steps - 1 if len(loaded) else 0):
            earlier = range(max(step - self.over_steps + 1, 0), min(step, len(loaded)))
            leaving = [(load, step - load) for load in earlier]
            sizes = [int(self._cut(loaded[load], a + 1) - self._cut(loaded[load], a)) for load, a in leaving]
            sources = tuple(self._piece(*one) for one, size in zip(leaving, sizes, strict=True) if size)
            drawn = bits(step)
            load: tuple[int, ...] = ()
            here = np.empty(0, dtype=np.uint64)
            kept: list[Gather] = []
            if step < len(loaded):
                load = tuple(range(starts[step], starts[step + 1]))
                sources = (*load, *sources)
                order = permutation(int(loaded[step]), drawn)
                cuts = [int(self._cut(loaded[step], a)) for a in range(self.over_steps + 1)]
                here = order[: cuts[1]]
                for a in range(1, self.over_steps):
                    if cuts[a] < cuts[a + 1]:
                        part = as_index(order[cuts[a] : cuts[a + 1]])
                        kept.append(Gather(sources, part, self._piece(step, a)))
            if sum(sizes):
                there = np.arange(sum(sizes), dtype=np.uint64) + np.uint64(loaded[step] if load else 0)
                every = np.concatenate([here, there])
                here = every[permutation(len(every), drawn)]
            out = (Gather(sources, as_index(here)),) if len(here) else ()
            yield Step(load, (*out, *kept))

    def replay_from(self, step: int, buffer_blocks: int) -> int:
        return max(step - self.over_steps + 1, 0)

    def loads(self, rows: Int64s, buffer_blocks: int) -> Int64s:
        """First span of each load, and the number of spans, int64 [loads + 1]."""
        starts = CorgiPile.load_starts(len(rows), max(buffer_blocks // self.over_steps, 1))
        return np.append(starts, len(rows))

    def _loaded(self, rows: Int64s, buffer_blocks: int) -> Int64s:
        """Rows of each load, int64 [loads]."""
        return np.add.reduceat(rows, self.loads(rows, buffer_blocks)[:-1]) if len(rows) else rows

    def _cut(self, loaded: Int64s, part: int) -> Int64s:
        """Where part number `part` of loads begins, in their random order."""
        return loaded * part // self.over_steps

    def _piece(self, load: int, part: int) -> int:
        return -(load * self.over_steps + part) - 1

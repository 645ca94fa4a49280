"""Strategies that scan the blocks in file order and hold some rows back: TensorFlow's and Bismarck's."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt

from corgiarrow.errors import OptionError
from corgiarrow.randomness import Bits, StepBits, permutation
from corgiarrow.strategies.base import Line, Strategy
from corgiarrow.strategies.steps import Floats, Gather, Int64s, Step, as_index

_LOADS = 4
"""Loads after the first that pass while as many rows as are held back come in: at each, all of those are copied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _HoldsBack(Strategy):
    """Rows in file order, of which all streams of the job together hold some back."""

    rows: int | None = None

    def __post_init__(self) -> None:
        if self.rows is not None and (
            isinstance(self.rows, bool) or not isinstance(self.rows, int | np.integer) or self.rows < 0
        ):
            raise OptionError(f"rows={self.rows!r} must be a whole number of at least 0")

    def memory_factor(self, blocks: Int64s) -> Floats:
        # What is held back, a load, and what it drives out.
        return np.full(len(blocks), 1 + 3 / _LOADS)

    def held_factor(self, blocks: Int64s) -> Floats:
        return np.full(len(blocks), 1 + 1 / _LOADS)

    def gathered_factor(self, blocks: Int64s) -> Floats:
        return np.full(len(blocks), 1 + 1 / _LOADS)

    def block_order(self, num_blocks: int, bits: Bits) -> Int64s:
        return np.arange(num_blocks, dtype=np.int64)

    def buffer_blocks(self, block_rows: Int64s, asked: int, streams: int) -> int:
        if self.rows is None or not len(block_rows):
            return min(asked, len(block_rows))
        return min(max(int(np.ceil(self.rows / streams / block_rows.mean())), 1), len(block_rows))

    def replay_from(self, step: int, buffer_blocks: int) -> int:
        return 0

    def _held(self, line: Line, buffer_blocks: int) -> int:
        """Rows that a stream is to hold back."""
        if self.rows is None:
            return max(round(buffer_blocks * line.mean_rows), 1)
        return max(self.rows // line.streams, 1)

    def _load_starts(self, rows: Int64s) -> Int64s:
        """First span of each load, int64 [loads]: the first one fills what is held back."""
        first = min(int(np.searchsorted(np.cumsum(rows), self.rows or 0)) + 1, len(rows))
        each = max(first // _LOADS, 1)
        return np.concatenate([[0], np.arange(first, len(rows), each)]).astype(np.int64)

    def _driven_out(self, rows: Int64s) -> Int64s:
        """Rows that were driven out after each load, int64 [loads]."""
        ends = np.append(self._load_starts(rows)[1:], len(rows))
        found: Int64s = np.maximum(np.cumsum(rows)[ends - 1] - (self.rows or 0), 0)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow(_HoldsBack):
    """TensorFlow's ``shuffle(rows)``, the paper's Sliding-Window Shuffle.

    A window is filled with the first rows; each further row takes the place of one at random, which leaves. At the end
    of the data the window leaves in random order. A window that holds all rows of a stream shuffles them fully.

    Attributes
    ----------
    rows
        Rows of the windows of all streams together; None for as many as `buffer_blocks` blocks have.

    Raises
    ------
    OptionError
        `rows` is out of its bounds.
    """

    name: ClassVar[str] = "window"

    def sized(self, line: Line, buffer_blocks: int) -> Self:
        return replace(self, rows=self._held(line, buffer_blocks))

    def emitted(self, rows: Int64s, buffer_blocks: int, total: int) -> Int64s:
        if not len(rows):
            return rows
        out = np.diff(self._driven_out(rows), prepend=0)
        out[-1] += total - out.sum()  # The window itself.
        return out

    def steps(self, rows: Int64s, buffer_blocks: int, total: int, bits: StepBits, first: int = 0) -> Iterator[Step]:
        for step, load, sources, window, coming in _scan(rows, self._load_starts(rows), self.rows or 0):
            drawn = bits(step)
            slots = _below(np.full(len(coming), len(window), dtype=np.uint64), drawn)
            out = _exchange(window, slots, coming)
            if load.stop == len(rows):
                out = np.concatenate([out, window[permutation(len(window), drawn)]])
            yield _step(step, load, sources, out, None if load.stop == len(rows) else window)


@dataclass(frozen=True, slots=True, kw_only=True)
class MRS(_HoldsBack):
    """Bismarck's Multiplexed Reservoir Sampling.

    One thread scans the rows and keeps a reservoir of them: row number k past its fill takes slot s, drawn from
    [0, rows + k), if s < rows. The row that is dropped or driven out is given to SGD. A second thread meanwhile goes
    round and round a copy of the reservoir, taken before each load, and gives its rows to SGD too. What is in the
    reservoir at the end is not given out otherwise. So an epoch repeats rows and leaves out others, and is longer or
    shorter than the data: ``(data - rows) / (1 - ratio)`` rows, to whole batches.

    Attributes
    ----------
    rows
        Rows of the reservoirs of all streams together; None for as many as `buffer_blocks` blocks have, and at most
        half of the data.
    ratio
        Part of the rows given out that comes from the second thread.

    Raises
    ------
    OptionError
        A number is out of its bounds.
    """

    name: ClassVar[str] = "mrs"
    repeats_rows: ClassVar[bool] = True
    ratio: float = 0.4

    def __post_init__(self) -> None:
        _HoldsBack.__post_init__(self)
        if not 0 <= self.ratio <= 0.9:
            raise OptionError(f"ratio={self.ratio!r} must be in [0, 0.9]")

    def memory_factor(self, blocks: Int64s) -> Floats:
        # What a load drives out leaves together with rows of the reservoir.
        return np.full(len(blocks), 1 + (2 + 1 / (1 - self.ratio)) / _LOADS)

    def buffer_blocks(self, block_rows: Int64s, asked: int, streams: int) -> int:
        most = int(block_rows.sum()) // streams
        if self.rows is not None and most and self.rows // streams >= most:
            raise OptionError(
                f"MRS(rows={self.rows}) over {streams} streams must be less than the {int(block_rows.sum())} rows of "
                "the data: a reservoir that holds all rows gives none out; give fewer rows, or shuffle='epoch'"
            )
        return _HoldsBack.buffer_blocks(self, block_rows, asked, streams)

    def sized(self, line: Line, buffer_blocks: int) -> Self:
        return replace(self, rows=min(self._held(line, buffer_blocks), line.least_rows // 2))

    def epoch_rows(self, line: Line) -> int:
        if not self.rows:
            return line.rows
        wanted = round((line.rows - line.streams * self.rows) / (1 - self.ratio) / line.batch_size)
        # Whole batches, and no fewer than hold what the reservoirs do not keep.
        longest = -(-line.num_batches // line.streams) * line.batch_size
        least = line.streams * -(-(longest - self.rows) // line.batch_size)
        return max(wanted, least) * line.batch_size

    def repeated_rows(self, line: Line) -> int:
        return self.epoch_rows(line) - (line.rows - line.streams * (self.rows or 0))

    def emitted(self, rows: Int64s, buffer_blocks: int, total: int) -> Int64s:
        if not len(rows):
            return rows
        out = self._driven_out(rows)
        return np.diff(out + _extra(out, int(out[-1]), total), prepend=0)

    def steps(self, rows: Int64s, buffer_blocks: int, total: int, bits: StepBits, first: int = 0) -> Iterator[Step]:
        reservoir = self.rows or 0
        dropped_in_all = int(rows.sum()) - reservoir
        dropped = 0
        for step, load, sources, window, coming in _scan(rows, self._load_starts(rows), reservoir):
            found = window.copy()
            bounds = np.arange(dropped + 1, dropped + len(coming) + 1, dtype=np.uint64) + np.uint64(reservoir)
            slots = _below(bounds, bits(step))
            hits = np.flatnonzero(slots < reservoir)
            out = coming.copy()
            out[hits] = _exchange(window, slots[hits], coming[hits])
            # How many rows of the second thread stand before each of the first, and in all.
            before = _extra(np.arange(dropped, dropped + len(coming) + 1), dropped_in_all, total)
            merged = np.empty(len(coming) + int(before[-1] - before[0]), dtype=np.int64)
            mine = np.zeros(len(merged), dtype=bool)
            mine[np.arange(len(coming)) + before[:-1] - before[0]] = True
            merged[mine] = out
            if len(found):
                merged[~mine] = found[np.arange(before[0], before[-1]) % len(found)]
            dropped += len(coming)
            yield _step(step, load, sources, merged, None if load.stop == len(rows) else window)


def _extra(dropped: Int64s, dropped_in_all: int, total: int) -> Int64s:
    """Rows that the second thread has given when the first has given `dropped`: evenly, up to `total` in all."""
    return dropped * (total - dropped_in_all) // max(dropped_in_all, 1)


def _scan(rows: Int64s, starts: Int64s, held_rows: int) -> Iterator[tuple[int, range, tuple[int, ...], Int64s, Int64s]]:
    """Yield for each load its number, its spans, the pieces there are, and which of their rows are held and coming.

    Rows are numbered through the pieces, int64. What is held is an array of its own, to be written in.
    """
    held = 0
    for step, (start, stop) in enumerate(zip(starts, [*starts[1:], len(rows)], strict=True)):
        load = range(int(start), int(stop))
        joined = held + int(rows[start:stop].sum())
        window = np.arange(min(held_rows, joined))
        sources = ((-step,) if held else ()) + tuple(load)
        yield step, load, sources, window, np.arange(len(window), joined)
        held = len(window)


def _step(step: int, load: range, sources: tuple[int, ...], out: Int64s, window: Int64s | None) -> Step:
    gathers = [Gather(sources, as_index(out))] if len(out) else []
    if window is not None and len(window):
        gathers.append(Gather(sources, as_index(window), -step - 1))
    return Step(tuple(load), tuple(gathers))


def _below(bounds: npt.NDArray[np.uint64], bits: Bits) -> Int64s:
    """Random whole numbers below bounds less than 2³², int64 of their shape."""
    high = bits.random_raw(len(bounds)) >> np.uint64(32)
    return ((high * bounds) >> np.uint64(32)).astype(np.int64)


def _exchange(window: Int64s, slots: Int64s, coming: Int64s) -> Int64s:
    """Put rows into slots of a window, one after the other; return what each drives out, int64 [coming].

    What one drives out is what the last one before it put into that slot.
    """
    keys = (slots.astype(np.uint64) << np.uint64(32)) | np.arange(len(slots), dtype=np.uint64)
    keys.sort()
    order = (keys & np.uint64(2**32 - 1)).astype(np.int64)
    slot = slots[order]
    first = np.ones(len(slots), dtype=bool)
    first[1:] = slot[1:] != slot[:-1]
    out = np.empty(len(slots), dtype=np.int64)
    again = np.flatnonzero(~first)
    out[order[first]] = window[slot[first]]
    out[order[again]] = coming[order[again - 1]]
    last = np.ones(len(slots), dtype=bool)
    last[:-1] = first[1:]
    window[slot[last]] = coming[order[last]]
    return out

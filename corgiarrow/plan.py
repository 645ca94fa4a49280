"""Who reads what: streams, parts, steps and exact counts, without reading anything.

The blocks of an epoch, in the strategy's block order, are one line of rows. It is cut at multiples of `batch_size`
into `streams` pieces whose batch counts differ by at most one. Batch ``g`` of the epoch is batch ``g // streams`` of
stream ``g % streams``; a part (one physical reader) delivers the batches ``part, part + parts, part + 2·parts, …``.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from corgiarrow.errors import OptionError
from corgiarrow.randomness import block_bits, row_bits
from corgiarrow.strategies import Int64s, Line, Pool, Step, Strategy, restoring_steps


@dataclass(frozen=True, slots=True)
class Part:
    """One physical reader among ``world_size × num_workers``.

    Raises
    ------
    OptionError
        A number is out of its bounds.
    """

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 1

    def __post_init__(self) -> None:
        for name, value, bound_name, bound in (
            ("rank", self.rank, "world_size", self.world_size),
            ("worker", self.worker, "num_workers", self.num_workers),
        ):
            if bound < 1:
                raise OptionError(f"{bound_name}={bound} must be at least 1")
            if not 0 <= value < bound:
                raise OptionError(f"{name}={value} must be in [0, {bound_name}={bound})")

    @property
    def number(self) -> int:
        """Number of the part in [0, num_parts)."""
        return self.worker * self.world_size + self.rank

    @property
    def num_parts(self) -> int:
        """Parts in the whole job."""
        return self.world_size * self.num_workers


def check_streams(num_rows: int, batch_size: int, streams: int) -> None:
    """Raise an OptionError when some stream would get no batch at all."""
    batches = -(-num_rows // batch_size)
    if 0 < batches < streams:
        raise OptionError(
            f"streams={streams} must not exceed the epoch's {batches} batches of batch_size={batch_size}: "
            "use fewer streams (ranks × workers) or smaller batches"
        )


@dataclass(frozen=True, slots=True)
class StreamPlan:
    """What one stream reads and emits in one epoch.

    Attributes
    ----------
    stream
        Number of the stream.
    batches
        Batches that the stream emits, without padding.
    num_rows
        Rows that the stream emits: those of its spans, unless the strategy repeats some.
    block, start, stop
        The spans in order: rows ``start .. stop`` of ``block``, int64 [spans]; none is empty.
    """

    epoch: "EpochPlan"
    stream: int
    batches: int
    num_rows: int
    block: Int64s
    start: Int64s
    stop: Int64s

    @property
    def rows(self) -> Int64s:
        """Rows of each span, int64 [spans]."""
        return self.stop - self.start

    @property
    def step_rows(self) -> Int64s:
        """Rows that each step emits, int64 [steps]."""
        return self.epoch.sized.emitted(self.rows, self.epoch.buffer_blocks, self.num_rows)

    def batch_rows(self, batch: int) -> int:
        """Rows of the stream's batch number `batch`; every number past the last is the last one again."""
        return min(self.epoch.batch_size, self.num_rows - self.first_row(batch))

    def first_row(self, batch: int) -> int:
        """Place in the stream of the first row of batch number `batch`, as :meth:`batch_rows` counts them."""
        return min(batch, self.batches - 1) * self.epoch.batch_size

    def steps(self, batch: int = 0) -> tuple[int, Iterator[Step]]:
        """Return how many emitted rows to skip, and the steps, so as to go on at batch number `batch`.

        The first steps restore what the pool held, where the strategy keeps rows from step to step.
        """
        row = self.first_row(batch)
        ends = np.cumsum(self.step_rows)
        first = int(np.searchsorted(ends, row, side="right")) if row else 0
        skip = row - (int(ends[first - 1]) if first else 0)
        return skip, self._steps_from(first)

    def _steps_from(self, first: int) -> Iterator[Step]:
        plan, strategy = self.epoch, self.epoch.sized
        bits = row_bits(plan.seed, plan.order_epoch, self.stream)
        replay = strategy.replay_from(first, plan.buffer_blocks)
        steps = strategy.steps(self.rows, plan.buffer_blocks, self.num_rows, bits, replay)
        if replay < first:
            rows = self.rows
            pool = Pool(np.cumsum(rows) - rows, rows)
            for _ in range(replay, first):
                pool.apply(next(steps))
            yield from restoring_steps(pool, plan.restored_at_once)
        yield from steps

    def row_ids(self) -> Int64s:
        """Ids of the stream's rows in the order of delivery, int64; a row's id is its place in the dataset."""
        return np.concatenate([np.empty(0, np.int64), *self._step_ids()])

    def batch_ids(self) -> Iterator[Int64s]:
        """Yield the row ids of each batch, int64 [rows]: a few steps of the strategy at a time."""
        for table in self.tables():
            yield from table

    def tables(self) -> Iterator[Int64s]:
        """Yield the row ids of some batches at a time, int64 [batches, rows]; a short last one comes alone."""
        held = np.empty(0, np.int64)
        for ids in self._step_ids():
            held = np.concatenate([held, ids])
            whole = len(held) // self.epoch.batch_size * self.epoch.batch_size
            if whole:
                yield held[:whole].reshape(-1, self.epoch.batch_size)
            held = held[whole:]
        if len(held):
            yield held.reshape(1, -1)

    def _step_ids(self) -> Iterator[Int64s]:
        first_id = self.epoch.first_id
        pool = Pool(first_id[self.block] + self.start, self.rows)
        return (pool.apply(step) for step in self._steps_from(0))


@dataclass(frozen=True)
class EpochPlan:
    """The order of one epoch, a pure function of its fields.

    Parameters
    ----------
    block_rows
        Rows of each block, int64 [blocks]; none is zero.
    strategy, buffer_blocks
        How order is made, and the blocks that one stream's buffer merges.
    seed, epoch
        What the random bits follow from.
    streams, batch_size
        Logical readers, and rows of a batch.
    pieces
        Pieces in which each block is read, int64 [blocks]: of equal rows, but for the last. None reads all whole.
    open_blocks
        Blocks in several pieces that are read at a time.
    """

    block_rows: Int64s = field(repr=False)
    strategy: Strategy
    buffer_blocks: int
    seed: int
    epoch: int
    streams: int
    batch_size: int
    pieces: Int64s | None = field(default=None, repr=False)
    open_blocks: int = 1

    def __post_init__(self) -> None:
        check_streams(self.num_rows, self.batch_size, self.streams)

    @property
    def order_epoch(self) -> int:
        """The epoch whose order this one has."""
        return self.epoch if self.strategy.reorders_each_epoch else 0

    @cached_property
    def num_rows(self) -> int:
        """Rows of the dataset."""
        return int(self.block_rows.sum())

    @cached_property
    def _spans(self) -> Line:
        spans = len(self.block_rows) if self.pieces is None else int(self.pieces.sum())
        return Line(self.num_rows, spans, self.batch_size, self.streams)

    @cached_property
    def sized(self) -> Strategy:
        """The strategy with what it leaves open settled."""
        return self.strategy.sized(self._spans, self.buffer_blocks)

    @property
    def restored_at_once(self) -> int:
        """Blocks that are read at a time to restore the rows that a strategy keeps: a part of what it may hold."""
        return max(self.buffer_blocks // 4, 1)

    @cached_property
    def emitted_rows(self) -> int:
        """Rows that the epoch gives: those of the dataset, unless the strategy repeats some and leaves out others."""
        return self.sized.epoch_rows(self._spans)

    @property
    def repeated_rows(self) -> int:
        """Rows among them that the strategy repeats, as the second thread of ``mrs`` does."""
        return self.sized.repeated_rows(self._spans)

    @property
    def num_batches(self) -> int:
        """Batches of the epoch over all streams, the short last one included, padding not."""
        return -(-self.emitted_rows // self.batch_size)

    @cached_property
    def first_id(self) -> Int64s:
        """Id of each block's first row, int64 [blocks]."""
        return np.cumsum(self.block_rows) - self.block_rows

    @cached_property
    def _line(self) -> tuple[Int64s, Int64s, Int64s, Int64s]:
        """Block, first and one-past-last row of each span of the epoch, and where in the epoch it ends."""
        bits = block_bits(self.seed, self.order_epoch)
        block, piece = self.strategy.piece_order(len(self.block_rows), self.pieces, self.open_blocks, bits)
        rows = self.block_rows[block]
        if self.pieces is None:
            start, stop = np.zeros_like(rows), rows
        else:
            each = -(-rows // self.pieces[block])
            start, stop = piece * each, np.minimum((piece + 1) * each, rows)
        return block, start, stop, np.cumsum(stop - start)

    def stream(self, stream: int) -> StreamPlan:
        """Return what stream number `stream` reads and emits."""
        line_block, line_start, line_stop, ends = self._line
        short, extra = divmod(self._spans.num_batches, self.streams)
        # The stream of the line's last batch comes last in it, so that only that batch can be short.
        place = (stream - extra) % self.streams
        longer = max(place - (self.streams - extra), 0)
        begin = (place * short + longer) * self.batch_size
        end = min(begin + (short + (stream < extra)) * self.batch_size, self.num_rows)
        first = int(np.searchsorted(ends, begin, side="right"))
        last = int(np.searchsorted(ends, end, side="left")) + 1 if end > begin else first
        block = line_block[first:last]
        start, stop = line_start[first:last].copy(), line_stop[first:last].copy()
        if len(block):
            start[0] = stop[0] - (ends[first] - begin)
            stop[-1] -= ends[last - 1] - end
        batches = len(range(stream, self.num_batches, self.streams))
        has_last = self.num_batches and stream == (self.num_batches - 1) % self.streams
        missing = self.num_batches * self.batch_size - self.emitted_rows if has_last else 0
        return StreamPlan(self, stream, batches, batches * self.batch_size - missing, block, start, stop)

    def num_steps(self, world_size: int, drop_last: bool) -> int:
        """Batches that each of `world_size` ranks gets."""
        if drop_last:
            return self.emitted_rows // self.batch_size // world_size
        return -(-self.num_batches // world_size)

    def part_batches(self, part: Part, drop_last: bool) -> int:
        """Batches that a part delivers, padding included."""
        steps = self.num_steps(part.world_size, drop_last)
        return max(-(-(steps - part.worker) // part.num_workers), 0)

    def part_rows(self, part: Part, drop_last: bool) -> int:
        """Rows that a part delivers, padding included."""
        batches = self.part_batches(part, drop_last)
        mine = [self.stream(s) for s in range(part.number, self.streams, part.num_parts)]
        rows = batches * self.batch_size
        for place, stream in enumerate(mine):
            # Only a stream's last batch can be short, and is what padding repeats.
            lasts = len(range(place, batches, len(mine))) - stream.batches + 1
            rows -= max(lasts, 0) * (self.batch_size - stream.batch_rows(stream.batches))
        return rows

    def part_ids(self, part: Part, drop_last: bool) -> Iterator[Int64s]:
        """Yield the row ids of each batch that a part delivers, padding included, int64 [rows]."""
        mine = [self.stream(s).batch_ids() for s in range(part.number, self.streams, part.num_parts)]
        last: list[Int64s] = [np.empty(0, np.int64)] * len(mine)
        for number in range(self.part_batches(part, drop_last)):
            place = number % len(mine)
            last[place] = next(mine[place], last[place])
            yield last[place]

    def tables(self) -> Iterator[Int64s]:
        """Yield the row ids of all whole batches, some of one stream at a time, int64 [batches, batch_size]."""
        for stream in range(self.streams):
            yield from (table for table in self.stream(stream).tables() if table.shape[1] == self.batch_size)

    def row_ids(self) -> Int64s:
        """Ids of all rows in the order of delivery (batch by batch over the streams), int64; no padding."""
        per_stream = [self.stream(s).row_ids() for s in range(self.streams)]
        if self.streams == 1:
            return per_stream[0]
        cuts = [range(0, len(ids), self.batch_size) for ids in per_stream]
        out = [
            per_stream[s][cuts[s][k] : cuts[s][k] + self.batch_size]
            for k in range(len(cuts[0]))
            for s in range(self.streams)
            if k < len(cuts[s])
        ]
        return np.concatenate(out)

"""The paper's three operators, taken apart: BlockShuffle → TupleShuffle → SGD.

Each is pulled by ``next()`` until that gives None, and begins an epoch by ``rescan(epoch)``, as the operators of a
Volcano-style executor do (Xu et al. 2022, section 6). Together they do what :class:`corgiarrow.Reader` and
:func:`corgiarrow.sklearn.fit` do, in the same order, bit for bit, but one thing after the other: they are for those who
read the paper, or measure what double buffering saves. The reader is what is fast: it reads ahead with several threads.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import pyarrow as pa

from corgiarrow.errors import OptionError
from corgiarrow.gathering import decoded
from corgiarrow.plan import StreamPlan
from corgiarrow.reader import Reader
from corgiarrow.sources import Session
from corgiarrow.strategies import Step


class BlockShuffle:
    """Reads blocks in the random order of an epoch.

    Parameters
    ----------
    reader
        The data, the strategy, the seed; of one stream. Its position is not used, and stays.

    Raises
    ------
    OptionError
        The reader has several streams.
    """

    def __init__(self, reader: Reader):
        if reader.streams != 1:
            raise OptionError(f"streams={reader.streams}: the operators read one stream, so give streams=1")
        self.reader = reader
        self._session: Session | None = None
        self._spans: Iterator[int] = iter(())
        self._stream: StreamPlan | None = None

    def rescan(self, epoch: int) -> None:
        """Shuffle the blocks anew, and begin with the first."""
        self.close()
        plan = self.reader.plan(epoch)
        self._stream = plan.stream(0)
        self._session = self.reader.source.session(plan.pieces, open_blocks=plan.open_blocks)
        self._spans = (span for step in self._stream.steps()[1] for span in step.load)

    def next(self) -> pa.Table | None:
        """Return the rows of the next block, or None after the last.

        Raises
        ------
        ReadError
            They cannot be read.
        """
        span = next(self._spans, None)
        if span is None or self._session is None or self._stream is None:
            return None
        block, start, stop = (int(of[span]) for of in (self._stream.block, self._stream.start, self._stream.stop))
        self._session.expect(block)
        return self._session.read(block, start, stop)

    def close(self) -> None:
        """End the epoch."""
        if self._session is not None:
            self._session.stop()
            self._session.close()
            self._session = None


class TupleShuffle:
    """Fills a buffer of blocks, shuffles its rows, and gives them out in batches.

    Parameters
    ----------
    blocks
        Where blocks come from.
    double_buffering
        Fill and shuffle the next buffer in a thread while this one is given out.
    """

    def __init__(self, blocks: BlockShuffle, *, double_buffering: bool = True):
        self._blocks = blocks
        self._filler = ThreadPoolExecutor(1, "corgiarrow-tuples") if double_buffering else None
        self._filling: Future[pa.Table | None] | None = None
        self._steps: Iterator[Step] = iter(())
        self._pool: dict[int, pa.Table] = {}
        self._rows: pa.Table | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def rescan(self, epoch: int) -> None:
        """Begin an epoch with an empty buffer."""
        self._end()
        self._blocks.rescan(epoch)
        self._steps = self._blocks.reader.plan(epoch).stream(0).steps()[1]
        if self._filler is not None:
            self._filling = self._filler.submit(self._fill)

    def next(self) -> pa.RecordBatch | None:
        """Return the next batch, or None after the last."""
        size = self._blocks.reader.batch_size
        rows = self._rows
        while rows is None or rows.num_rows < size:
            buffer = self._next_buffer()
            if buffer is None:
                break
            rows = buffer if rows is None or not rows.num_rows else pa.concat_tables([rows, buffer])
        if rows is None or not rows.num_rows:
            return None
        self._rows = rows.slice(size)
        return rows.slice(0, size).combine_chunks().to_batches()[0]

    def close(self) -> None:
        """End the epoch, and the thread."""
        self._end()
        if self._filler is not None:
            self._filler.shutdown()

    def _end(self) -> None:
        if self._filling is not None:
            self._filling.exception()  # What it met belongs to an epoch that nobody wants any more.
            self._filling = None
        self._blocks.close()
        self._pool, self._rows = {}, None

    def _next_buffer(self) -> pa.Table | None:
        if self._filler is None:
            return self._fill()
        if self._filling is None:
            return None
        filled = self._filling.result()
        self._filling = self._filler.submit(self._fill) if filled is not None else None
        return filled

    def _fill(self) -> pa.Table | None:
        """Do steps of the strategy until one emits rows: load blocks, and gather rows of them in a random order."""
        for step in self._steps:
            for span in step.load:
                block = self._blocks.next()
                assert block is not None, "a step loads what BlockShuffle reads"
                self._pool[span] = block
            emitted = None
            made = {}
            for gather in step.gathers:
                rows = pa.concat_tables([self._pool[piece] for piece in gather.sources])
                if gather.index is not None:
                    rows = rows.take(pa.array(gather.index))
                if gather.piece is None:
                    emitted = rows
                else:
                    made[gather.piece] = rows
            for piece in {piece for gather in step.gathers for piece in gather.sources}:
                del self._pool[piece]
            self._pool |= made
            if emitted is not None:
                return self._delivered(emitted)
        return None

    def _delivered(self, rows: pa.Table) -> pa.Table:
        """Return rows in the reader's types: without the dictionaries in which a source may hold some columns."""
        schema = self._blocks.reader.source.schema
        columns = [
            pa.chunked_array([decoded(chunk, field.type, field.name) for chunk in column.chunks], field.type)
            for field, column in zip(schema, rows.columns, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=schema)


class SGD:
    """Pulls the rows of an epoch, and lets a model step.

    Parameters
    ----------
    tuples
        Where batches come from.
    step
        Called with each batch.
    epochs
        Passes over the data.
    """

    def __init__(self, tuples: TupleShuffle, step: Callable[[pa.RecordBatch], object], *, epochs: int):
        self._tuples = tuples
        self._step = step
        self._epochs = epochs
        self._epoch = 0

    def next(self) -> int | None:
        """Run an epoch, and return the rows that it stepped on; None after the last."""
        if self._epoch >= self._epochs:
            return None
        self._tuples.rescan(self._epoch)
        rows = 0
        while (batch := self._tuples.next()) is not None:
            self._step(batch)
            rows += batch.num_rows
        self._epoch += 1
        return rows

"""From steps to batches: threads that read ahead and shuffle, under a byte budget.

A few equal threads work on one list of tasks under one lock, the most urgent first:

1. *gather* the rows of a step whose blocks are all there, some columns a task and one column at a time (concatenate,
   let the sources go, take), so that a shuffled buffer takes its pool's place instead of standing beside it;
2. *mend* a step some of whose blocks are broken, where that is asked for: put repeats of other rows in their place;
3. *prepare* the index arithmetic of a step ahead;
4. *fetch* the next span in the order of need from a remote storage, while the stream's bytes allow: a thread only
   begins it, so many are under way at a time;
5. *load* (decode) what was fetched, or the next span of a local file.

What a step emits is gathered into *segments*, so that memory comes back as the consumer goes along; batches are slices
of them, but for some that lie across two. No task depends on a strategy's name.
"""

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import islice, pairwise
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from corgiarrow.errors import CorgiArrowError, ReadError, tells_of_broken_data
from corgiarrow.gathering import Chunks, decoded, fits, join, nbytes_of, take, take_each, take_from_bins
from corgiarrow.sources import Session
from corgiarrow.strategies import Gather, Int64s, Step

_GATHER_TASKS = 8
_TASK_BYTES = 2**19
"""A gather is cut in tasks of at least so many bytes, so that small steps do not drown in hand-overs."""

_FETCHED_AHEAD = 32
"""Spans of a remote storage that are looked for ahead of the step that is gathered, as far as bytes allow."""

_SEGMENTS = 8

_INTERRUPTIBLE_S = 0.5
"""Seconds after which the consumer looks for Ctrl-C."""

_GIVES_BACK = os.environ.get("MIMALLOC_PURGE_DELAY") != "-1"
"""Whether memory that is not used goes back to the system; -1 says that the process shall keep it."""

Piece = list[Chunks]
"""Chunks of each column."""
_Indexed = tuple[Gather, pa.ChunkedArray | None]


@dataclass(slots=True)
class Stats:
    """What a reader did, summed over its passes.

    Attributes
    ----------
    rows, batches
        Delivered, padding included.
    blocks
        Spans that were read, whole blocks or parts.
    memory_bytes
        Bytes of the tables that were read, decoded.
    fetched_bytes
        Bytes of the column chunks that were read from storage.
    cached_bytes
        Bytes that came from the local cache instead.
    requests, retries
        Requests to a remote storage, and those among them that repeat one which failed.
    read_s
        Seconds from the beginning to the end of fetching a block's remote bytes, summed over blocks, of which many are
        under way at a time; 0 for local files, whose reads count as decoding.
    decode_s, shuffle_s
        Seconds that threads spent on decoding, and on ordering and gathering rows.
    wait_s
        Seconds that the consumer waited for a batch.
    peak_bytes
        Most bytes held at one time: pool, blocks being read, shuffled rows not yet delivered, and what is set aside
        for blocks that are read in pieces.
    skipped_rows
        Rows that could not be read, and were replaced by repeats, counted each time.
    skipped
        Blocks that could not be read, by name, each with the reason.
    """

    rows: int = 0
    batches: int = 0
    blocks: int = 0
    memory_bytes: int = 0
    fetched_bytes: int = 0
    cached_bytes: int = 0
    requests: int = 0
    retries: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0
    shuffle_s: float = 0.0
    wait_s: float = 0.0
    peak_bytes: int = 0
    skipped_rows: int = 0
    skipped: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, int | float]:
        """Return the figures by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "skipped"}


@dataclass(frozen=True, slots=True)
class StreamInput:
    """What one stream is to read and emit.

    Attributes
    ----------
    open_session
        Opens what reads the spans; the pipeline owns the session, and closes it.
    steps
        The steps; pulled by one thread at a time.
    block, start, stop
        The spans that the steps number, int64 [spans].
    span_bytes
        Bytes of each span in memory as far as known, int64 [spans].
    in_pieces
        Whether each span is a piece of a block that is read in several, bool [spans].
    skip
        Rows to leave out of what the steps emit first.
    """

    open_session: Callable[[], Session]
    steps: Iterator[Step]
    block: Int64s
    start: Int64s
    stop: Int64s
    span_bytes: Int64s
    in_pieces: npt.NDArray[np.bool_]
    skip: int = 0


@dataclass(slots=True)
class _Segment:
    rows: pa.RecordBatch
    num_rows: int
    nbytes: int
    ends_step: bool


@dataclass(slots=True)
class _StepState:
    """A step on its way: spans still to load, columns still to gather, and what came out so far."""

    step: Step
    to_load: deque[int]
    """Spans of which nothing is under way."""
    fetching: int = 0
    fetched: list[tuple[int, int]] = field(default_factory=list)
    """Spans whose bytes have come, each with the bytes that are booked for it."""
    loading: int = 0
    failed: CorgiArrowError | None = None
    broken: list[int] = field(default_factory=list)
    """Spans that could not be read, to be replaced by repeats."""
    mending: bool = False
    columns: deque[list[int]] | None = None
    gathering: int = 0
    joined: dict[int, Chunks] | None = None
    """Columns whose first segment is out already, because the consumer waits for it; None for all at once."""
    spelled_bytes: int = 0
    """Bytes booked for columns whose dictionaries are resolved while they are gathered; 0 leaves it to the batches."""
    hurried: bool = False
    """Whether the first segment is being gathered alone."""
    indices: list[pa.ChunkedArray | None] = field(default_factory=list)
    """For each gather the rows to take, a chunk for each segment to make; None where all rows pass."""
    out: dict[int, list[pa.Array]] = field(default_factory=dict)
    made: dict[int, Piece] = field(default_factory=dict)

    @property
    def read(self) -> bool:
        """Whether every span was read, well or not."""
        return not self.to_load and not self.fetching and not self.fetched and not self.loading

    @property
    def loaded(self) -> bool:
        return self.read and self.failed is None and not self.broken


class _Stream:
    """The mutable side of one stream; everything but `current` and `offset` is under the pipeline's lock."""

    def __init__(self, work: StreamInput):
        self.work = work
        self.session = work.open_session()
        self.busy: set[int] = set()
        """Blocks that are being read: spans of one block come one after the other."""
        self.broken: dict[int, int] = {}
        """For blocks that could not be read, the first row that was asked for."""
        self.inflation = 1.0
        """By how much blocks were larger of late than was known before."""
        self.queue: deque[_StepState] = deque()
        self.pool: dict[int, Piece] = {}
        self.pool_bytes: dict[int, int] = {}
        self.used = 0
        self.skip = work.skip
        self.position = 0
        self.preparing = False
        self.exhausted = False
        self.fetches = False
        """Whether spans are fetched from a remote storage before they are read."""
        self.alive = 0
        """Steps that are prepared and not yet wholly delivered."""
        self.segments: deque[_Segment] = deque()
        self.current: _Segment | None = None
        self.offset = 0
        self.retired = 0
        """Bytes of segments that were delivered, but whose last batch the consumer may still hold."""


class Pipeline:
    """Threads that turn the steps of some streams into rows, in order. Use it in a ``with``; leaving ends the threads.

    Parameters
    ----------
    schema
        Schema of the rows to deliver; columns that sessions add at the end come as they are.
    streams
        The streams of this process.
    batch_size
        Rows that are asked for at a time.
    stream_bytes
        Bytes that one stream may hold.
    largest_column
        Part of a row's bytes that its largest column takes.
    threads
        Number of threads.
    stats
        Where to add up what is done.
    describe
        Names a block.
    skip_errors
        Replace the rows of a span that cannot be read by repeats of others, instead of raising.
    reserved_bytes
        Bytes that sessions hold beside what `stream_bytes` counts, over all streams.
    """

    def __init__(
        self,
        schema: pa.Schema,
        streams: Sequence[StreamInput],
        *,
        batch_size: int,
        stream_bytes: int,
        largest_column: float,
        threads: int,
        stats: Stats,
        describe: Callable[[int], str],
        skip_errors: bool = False,
        reserved_bytes: int = 0,
    ):
        self._streams = [_Stream(work) for work in streams]
        self._schema = self._streams[0].session.schema
        added = [self._schema.field(n) for n in range(len(schema), len(self._schema))]
        self._delivered = pa.schema([*schema, *added])
        self._describe = describe
        self._skip_errors = skip_errors
        self._reserved_bytes = reserved_bytes
        self._batch_size = batch_size
        self._stream_bytes = stream_bytes
        self._largest_column = largest_column
        self._stats = stats
        # A lock that knows its owner: after Ctrl-C nobody can let go of another's.
        self._lock = threading.RLock()
        self._tasks_changed = threading.Condition(self._lock)
        self._rows_ready = threading.Condition(self._lock)
        self._thread_ended = threading.Condition(self._lock)
        self._ended: set[str] = set()
        """Names of the threads that have ended."""
        self._closed = False
        self._error: BaseException | None = None
        self._noted: dict[str, float] = {}
        self._pid = os.getpid()
        self._threads = [
            threading.Thread(target=self._run, name=f"corgiarrow-{n}", daemon=True) for n in range(threads)
        ]

    def __enter__(self) -> Self:
        _LIVE.add(self)
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the threads and let go of all rows."""
        if self._pid != os.getpid():
            return  # A forked copy: the threads and their rows belong to the parent.
        try:
            self._end()
        except KeyboardInterrupt:
            self._end()  # The threads are about to end; none is left behind, whenever Ctrl-C comes.
            raise

    def _end(self) -> None:
        with self._lock:
            self._closed = True
            self._tasks_changed.notify_all()
            self._rows_ready.notify_all()
        for stream in self._streams:
            stream.session.stop()
        # Not by join() alone: interrupted by Ctrl-C, Python 3.11 takes the thread for ended from then on.
        with _interrupts_told(), self._lock:
            while not self._thread_ended.wait_for(self._all_ended, timeout=1.0):
                if not any(thread.ident for thread in self._threads if thread.name not in self._ended):
                    break  # What Ctrl-C interrupted was the very start of the last one.
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        for stream in self._streams:
            stream.session.close()
            # An error that ended a read holds the stream, and the stream the error: only what they hold is let go.
            stream.queue.clear()
            stream.segments.clear()
            stream.pool.clear()
            stream.current = None
        self._streams = []
        _LIVE.discard(self)

    def _all_ended(self) -> bool:
        known = threading.enumerate()
        return all(thread.name in self._ended or thread not in known for thread in self._threads)

    def next_rows(self, stream: int, rows: int) -> tuple[pa.RecordBatch, int]:
        """Return the next `rows` rows of stream number `stream` of this pipeline: rows, and the number of the first.

        What comes may be much longer than asked for, and the same at the next calls: then nothing needs to be done
        twice for the batches that lie in it.

        Raises
        ------
        CorgiArrowError
            What a thread met while reading.
        RuntimeError
            The pipeline is closed, or belongs to another process.
        """
        if self._pid != os.getpid():
            raise RuntimeError("this pass began in another process: iterate over the reader in the process that reads")
        if not self._streams:
            raise RuntimeError("this pass has ended: iterate over the reader again")
        at = self._streams[stream]
        if at.retired:
            self._release(at)
        parts: list[pa.RecordBatch] = []
        while rows:
            if at.current is None:
                at.current, at.offset = self._next_segment(at), 0
            segment, offset = at.current, at.offset
            count = min(rows, segment.num_rows - offset)
            rows -= count
            at.offset = offset + count
            if at.offset == segment.num_rows:
                self._retire(at, segment)
                at.current = None
            if not parts and not rows and segment.rows.schema.equals(self._delivered):
                return segment.rows, offset
            parts.append(self._spelled_out(segment.rows.slice(offset, count)))
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts), 0

    def _spelled_out(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows in the delivered types: without the dictionaries in which some columns are held."""
        if batch.schema.equals(self._delivered):
            return batch
        columns = [
            decoded(column, field.type, field.name)
            for column, field in zip(batch.columns, self._delivered, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._delivered)

    def _next_segment(self, at: _Stream) -> _Segment:
        with _interrupts_told(), self._lock:
            began = time.perf_counter()
            while not at.segments:
                # What was read before a fault is delivered, whatever the threads' timing.
                failed = at.queue[0].failed if at.queue else None
                if failed or self._error:
                    raise failed or self._error or AssertionError
                if self._closed:
                    raise RuntimeError("this pass has ended: iterate over the reader again")
                if at.exhausted and not at.queue:
                    raise RuntimeError("the strategy's steps emit fewer rows than it says")
                # Not for ever: where a library has set SA_RESTART for Ctrl-C, as polars does, it interrupts no wait.
                self._rows_ready.wait(_INTERRUPTIBLE_S)
            self._stats.wait_s += time.perf_counter() - began
            return at.segments.popleft()

    def _retire(self, at: _Stream, segment: _Segment) -> None:
        with self._lock:
            at.retired += segment.nbytes
            if segment.ends_step:
                at.alive -= 1
                self._tasks_changed.notify_all()

    def _release(self, at: _Stream) -> None:
        with self._lock:
            at.used -= at.retired
            at.retired = 0
            self._tasks_changed.notify_all()

    def _run(self) -> None:
        try:
            while (task := self._next_task()) is not None:
                task()
        except BaseException as error:  # noqa: BLE001 - handed over to the consumer, who raises it
            with self._lock:
                self._fail(error)
        finally:
            with self._lock:
                self._ended.add(threading.current_thread().name)
                self._thread_ended.notify_all()

    def _fail(self, error: BaseException) -> None:
        """Let the consumer raise an error that no step of a stream accounts for, under the lock."""
        if self._error is None:
            self._error = error
        self._closed = True
        self._tasks_changed.notify_all()
        self._rows_ready.notify_all()

    def _next_task(self) -> Callable[[], None] | None:
        with self._lock:
            while not self._closed:
                live = [s for s in self._streams if s.queue or not s.exhausted]
                if not live:
                    return None
                live.sort(key=lambda s: s.position)
                for choose in _CHOICES:
                    for stream in live:
                        task = choose(self, stream)
                        if task is not None:
                            return task
                self._tasks_changed.wait()
            return None

    # Each of those below runs under the lock, and books what its task will hold before it is given out.

    def _gather_task(self, stream: _Stream) -> Callable[[], None] | None:
        if not stream.queue or not stream.queue[0].loaded:
            return None
        state = stream.queue[0]
        sources = {p for g in state.step.gathers if g.index is not None for p in g.sources}
        if state.columns is None:
            state.made = {g.piece: [[]] * len(self._schema) for g in state.step.gathers if g.piece is not None}
            state.indices = [self._index_slices(stream, gather) for gather in state.step.gathers]
            state.columns = self._column_tasks(stream, sources)
            self._spell_out_early(stream, state)
            # Only the first buffer of a pass: later ones are made ahead, where two rounds over the columns would cost.
            whole = state.indices[0]
            if stream.position == 0 and len(state.step.gathers) == 1 and whole is not None and whole.num_chunks > 1:
                state.hurried, state.joined = True, {}
        if not state.columns:
            return None
        beside = max(
            nbytes_of([*(x for p in sources for x in stream.pool[p][c]), *(state.joined or {}).get(c, [])])
            for c in state.columns[0]
        )
        if state.gathering and stream.used + beside > self._stream_bytes:
            return None
        columns = state.columns.popleft()
        state.gathering += 1
        stream.used += beside
        return lambda: self._gather(stream, state, columns, beside)

    def _spell_out_early(self, stream: _Stream, state: _StepState) -> None:
        """Where there is room, let the threads resolve dictionaries, whole segments at a time, not the consumer."""
        emitting = [g for g in state.step.gathers if g.piece is None]
        if not emitting:
            return
        nbytes = 0.0
        for column, (held, wanted) in enumerate(zip(self._schema.types, self._delivered.types, strict=True)):
            if not held.equals(wanted):
                for chunk in (x for p in emitting[0].sources for x in stream.pool[p][column]):
                    nbytes += len(chunk) * (chunk.dictionary.nbytes / max(len(chunk.dictionary), 1) + 8)
        if nbytes > 0 and stream.used + nbytes < self._stream_bytes:
            state.spelled_bytes = int(nbytes)
            stream.used += state.spelled_bytes

    def _column_tasks(self, stream: _Stream, sources: Iterable[int]) -> deque[list[int]]:
        width = len(self._schema)
        tasks = sum(stream.pool_bytes[p] for p in sources) // _TASK_BYTES
        cut = np.array_split(np.arange(width), min(max(tasks, 1), _GATHER_TASKS, width))
        return deque([int(c) for c in part] for part in cut)

    def _prepare_task(self, stream: _Stream) -> Callable[[], None] | None:
        ahead = 2
        if stream.queue:
            spans = _FETCHED_AHEAD if stream.fetches else 2 * len(self._threads) + 2
            ahead += spans // max(len(stream.queue[-1].step.load), 1)
        if stream.preparing or stream.exhausted or stream.alive >= ahead:
            return None
        if stream.queue and stream.queue[-1].failed:
            return None
        stream.preparing = True
        return lambda: self._prepare(stream)

    def _fetch_task(self, stream: _Stream) -> Callable[[], None] | None:
        """Begin to fetch the next span, where it is a remote one."""
        found = self._next_span(stream)
        if found is None:
            return None
        state, span, place = found
        work = stream.work
        block, start, stop = int(work.block[span]), int(work.start[span]), int(work.stop[span])
        fetched = stream.session.fetch_bytes(block, start, stop)
        if not fetched:
            return None
        stream.fetches = True
        nbytes = int(work.span_bytes[span] * stream.inflation)
        booked = nbytes + fetched
        if not self._has_room(stream, state, place, booked):
            return None  # What decoding takes beside is booked when that begins: there are only so many threads.
        self._begin(stream, state, span, booked)
        state.fetching += 1
        return lambda: self._fetch(stream, state, span, booked)

    def _load_task(self, stream: _Stream) -> Callable[[], None] | None:
        """Read what was fetched, or the next span of local bytes."""
        for state in stream.queue:
            if state.fetched and not state.failed:
                span, booked = min(state.fetched)  # In the order of need.
                block = int(stream.work.block[span])
                beside = stream.session.bytes_beside(block, booked)
                # What is booked for later steps keeps no fetched block from being decoded: one goes on in any case.
                alone = not any(s.loading or s.gathering for s in stream.queue)
                if not alone and stream.used + stream.session.held_bytes + beside > self._stream_bytes:
                    return None
                state.fetched.remove((span, booked))
                stream.session.expect(block)
                return self._loading(stream, state, span, booked, beside)
        found = self._next_span(stream)
        if found is None:
            return None
        state, span, place = found
        work = stream.work
        block = int(work.block[span])
        if stream.session.fetch_bytes(block, int(work.start[span]), int(work.stop[span])):
            return None  # There was no room to fetch it.
        nbytes = int(work.span_bytes[span] * stream.inflation)
        estimate = nbytes + stream.session.bytes_beside(block, nbytes)
        if not self._has_room(stream, state, place, estimate):
            return None
        self._begin(stream, state, span, 0)
        stream.session.expect(block)
        return self._loading(stream, state, span, 0, estimate)

    def _loading(
        self, stream: _Stream, state: _StepState, span: int, booked: int, beside: int
    ) -> Callable[[], None]:
        state.loading += 1
        stream.used += beside
        self._note_peak()
        return lambda: self._load(stream, state, span, booked + beside)

    def _next_span(self, stream: _Stream) -> tuple[_StepState, int, int] | None:
        """Return the next span in the order of need of which nothing is under way, with its step and that one's place.

        None where there is none, or where the block of each is busy: spans of one block come one after the other.
        """
        for place, state in enumerate(stream.queue):
            if state.failed:
                return None
            if state.to_load:
                span = next((n for n in state.to_load if int(stream.work.block[n]) not in stream.busy), None)
                return None if span is None else (state, span, place)
        return None

    def _has_room(self, stream: _Stream, state: _StepState, place: int, nbytes: int) -> bool:
        beside = 0.0
        if any(gather.index is not None for gather in state.step.gathers):
            # Room for one column that is joined beside its buffer.
            beside = self._largest_column * (sum(stream.pool_bytes.values()) + nbytes)
        if stream.used + stream.session.held_bytes + nbytes + beside <= self._stream_bytes:
            return True
        # The next step to emit always goes on, when nothing that is under way would make room for it.
        idle = not any(s.fetching or s.fetched or s.loading or s.gathering for s in stream.queue)
        return not place and idle and not stream.segments and stream.current is None

    def _begin(self, stream: _Stream, state: _StepState, span: int, booked: int) -> None:
        state.to_load.remove(span)
        stream.busy.add(int(stream.work.block[span]))
        stream.used += booked
        self._note_peak()

    def _mend_task(self, stream: _Stream) -> Callable[[], None] | None:
        state = stream.queue[0] if stream.queue else None
        if state is None or not state.broken or state.mending or not state.read or state.failed:
            return None
        state.mending = True
        return lambda: self._mend(stream, state)

    def _note_peak(self) -> None:
        held = sum(s.used + s.session.held_bytes for s in self._streams)
        self._stats.peak_bytes = max(self._stats.peak_bytes, self._reserved_bytes + held)

    # The tasks themselves run without the lock, and take it to hand over what they made.

    def _prepare(self, stream: _Stream) -> None:
        began = time.perf_counter()
        step = next(stream.work.steps, None)
        with self._lock:
            self._stats.shuffle_s += time.perf_counter() - began
            stream.preparing = False
            if step is None:
                stream.exhausted = True
                self._rows_ready.notify_all()
            else:
                stream.queue.append(_StepState(step, deque(step.load)))
                stream.alive += 1
            self._tasks_changed.notify_all()

    def _fetch(self, stream: _Stream, state: _StepState, span: int, booked: int) -> None:
        work = stream.work
        block, start, stop = int(work.block[span]), int(work.start[span]), int(work.stop[span])
        try:
            future = stream.session.fetch(block, start, stop)
        except CorgiArrowError as error:
            with self._lock:
                state.fetching -= 1
                self._note_broken(stream, state, span, booked, error)
            return
        future.add_done_callback(lambda done: self._fetched(stream, state, span, booked, done))

    def _fetched(self, stream: _Stream, state: _StepState, span: int, booked: int, done: "Future[None]") -> None:
        """Hand over that a span's bytes have come; it runs in the thread that fetched them."""
        failed = CancelledError() if done.cancelled() else done.exception()
        with self._lock:
            state.fetching -= 1
            self._note_fetched()
            if self._closed:
                return
            if failed is None:
                state.fetched.append((span, booked))
            elif isinstance(failed, CorgiArrowError):
                self._note_broken(stream, state, span, booked, failed)
            else:
                self._fail(failed)
            self._tasks_changed.notify_all()

    def _note_broken(
        self, stream: _Stream, state: _StepState, span: int, booked: int, error: CorgiArrowError
    ) -> None:
        """Remember a span that cannot be read, under the lock."""
        block, start, stop = (int(x[span]) for x in (stream.work.block, stream.work.start, stream.work.stop))
        stream.busy.discard(block)
        stream.used -= booked
        if self._skip_errors and tells_of_broken_data(error):
            state.broken.append(span)
            stream.broken[block] = min(start, stream.broken.get(block, start))
            self._stats.skipped_rows += stop - start
            self._stats.skipped.setdefault(self._describe(block), str(error))
        else:
            state.failed = error
        self._rows_ready.notify_all()
        self._tasks_changed.notify_all()

    def _load(self, stream: _Stream, state: _StepState, span: int, booked: int) -> None:
        work = stream.work
        block, start, stop = int(work.block[span]), int(work.start[span]), int(work.stop[span])
        began = time.perf_counter()
        try:
            table = stream.session.read(block, start, stop)
            if table.num_rows != stop - start:
                raise ReadError(f"block {block}: {table.num_rows} rows came where {stop - start} were asked for")
        except CorgiArrowError as error:
            with self._lock:
                state.loading -= 1
                self._note_broken(stream, state, span, booked, error)
            return
        piece: Piece = [column.chunks for column in table.columns]
        nbytes = sum(nbytes_of(chunks, not work.in_pieces[span]) for chunks in piece)
        taken = time.perf_counter() - began
        with self._lock:
            stream.busy.discard(block)
            stream.used += nbytes - booked
            stream.inflation = max(nbytes / max(int(work.span_bytes[span]), 1), 0.9 * stream.inflation, 1.0)
            stream.pool[span] = piece
            stream.pool_bytes[span] = nbytes
            state.loading -= 1
            self._stats.blocks += 1
            self._stats.memory_bytes += nbytes
            self._stats.decode_s += taken
            self._note_fetched()
            self._note_peak()
            self._tasks_changed.notify_all()

    def _mend(self, stream: _Stream, state: _StepState) -> None:
        """Put repeats of other rows of the buffer where rows could not be read."""
        whole = [span for span in state.step.load if span not in state.broken]
        rows = stream.work.stop - stream.work.start
        piece = stream.pool[whole[0]] if whole else self._rows_elsewhere(stream, state.broken[0])
        held = sum(len(chunk) for chunk in piece[0])
        made: dict[int, Piece] = {}
        for span in state.broken:
            index = pa.array(np.arange(rows[span]) % held)
            made[span] = [
                [take(join(chunks, field.type), index)] if fits(chunks) else take_from_bins(chunks, index, field.type)
                for chunks, field in zip(piece, self._schema, strict=True)
            ]
        with self._lock:
            for span, mended in made.items():
                stream.pool[span] = mended
                stream.pool_bytes[span] = sum(map(nbytes_of, mended))
                stream.used += stream.pool_bytes[span]
            state.broken = []
            self._tasks_changed.notify_all()

    def _rows_elsewhere(self, stream: _Stream, broken: int) -> Piece:
        """Read the next span of the stream that can be read: the same one whatever was read before."""
        work = stream.work
        session = work.open_session()
        try:
            for span in (*range(broken + 1, len(work.block)), *range(broken - 1, -1, -1)):
                block, start = int(work.block[span]), int(work.start[span])
                if block in stream.broken and start >= stream.broken[block]:
                    continue
                try:
                    table = session.read(block, start, int(work.stop[span]))
                except CorgiArrowError as error:
                    if not tells_of_broken_data(error):
                        raise
                else:
                    return [column.chunks for column in table.columns]
                if self._closed:
                    break
        finally:
            session.stop()
            session.close()
        raise ReadError(
            f"{next(iter(self._stats.skipped.values()), '')}; nor can any other block of this stream be read"
        )

    def _note_fetched(self) -> None:
        """Add to the statistics what sessions have asked of storages since the last time, under the lock."""
        sessions = [s.session for s in self._streams]
        for name in ("fetched_bytes", "cached_bytes", "requests", "retries"):
            self._note(name, sum(getattr(session.traffic, name) for session in sessions))
        self._note("read_s", sum(session.fetch_s for session in sessions))
        self._stats.decode_s -= self._note("waited_s", sum(session.waited_s for session in sessions))

    def _note(self, name: str, total: float) -> float:
        more = total - self._noted.get(name, 0)
        self._noted[name] = total
        if hasattr(self._stats, name):
            setattr(self._stats, name, getattr(self._stats, name) + more)
        return more

    def _gather(self, stream: _Stream, state: _StepState, columns: list[int], beside: int) -> None:
        began = time.perf_counter()
        groups = _by_sources(zip(state.step.gathers, state.indices, strict=True))
        for column in columns:
            for group in groups:
                self._gather_column(stream, state, group, column)
        if _GIVES_BACK and any(gather.index is not None for gather in state.step.gathers):
            # What was let go lies scattered among other columns' memory: the allocator gives back what it can.
            pa.default_memory_pool().release_unused()
        with self._lock:
            self._stats.shuffle_s += time.perf_counter() - began
            stream.used -= beside
            state.gathering -= 1
            if not state.columns and not state.gathering:
                if state.hurried:
                    self._emit(stream, state, ends_step=False)
                    state.hurried = False
                    state.columns = self._column_tasks(stream, state.step.load)
                else:
                    self._finish(stream, state)
            self._note_peak()
            self._tasks_changed.notify_all()

    def _gather_column(self, stream: _Stream, state: _StepState, gathers: "list[_Indexed]", column: int) -> None:
        """Gather one column for gathers that share their sources, which are let go as soon as they are joined."""
        if state.joined is not None:
            self._gather_hurried(stream, state, gathers[0], column)
            return
        sources = gathers[0][0].sources
        chunks = [chunk for piece in sources for chunk in stream.pool[piece][column]]
        for piece in sources:
            stream.pool[piece][column] = []
        kind = self._schema.field(column).type
        if any(index is not None for _, index in gathers):
            chunks = _as_few(chunks, kind)
        for gather, made in zip((g for g, _ in gathers), _taken_by_all(chunks, gathers, kind), strict=True):
            if gather.piece is None:
                state.out[column] = self._resolved(state, column, made)
            else:
                state.made[gather.piece][column] = made

    def _gather_hurried(self, stream: _Stream, state: _StepState, indexed: _Indexed, column: int) -> None:
        """Gather the first segment alone, at the second call the rest: a waiting consumer goes on sooner."""
        gather, index = indexed
        assert index is not None
        assert state.joined is not None
        kind = self._schema.field(column).type
        if state.hurried:
            chunks = [chunk for piece in gather.sources for chunk in stream.pool[piece][column]]
            for piece in gather.sources:
                stream.pool[piece][column] = []
            state.joined[column] = _as_few(chunks, kind)
            first = index.slice(0, len(index.chunk(0)))
            state.out[column] = self._resolved(state, column, _taken(state.joined[column], first, kind))
        else:
            joined = state.joined.pop(column)
            rest = index.slice(len(index.chunk(0)))
            state.out[column] = self._resolved(state, column, _taken(joined, rest, kind))

    def _resolved(self, state: _StepState, column: int, chunks: Chunks) -> Chunks:
        field = self._delivered.field(column)
        return [decoded(x, field.type, field.name) for x in chunks] if state.spelled_bytes else chunks

    def _index_slices(self, stream: _Stream, gather: Gather) -> pa.ChunkedArray | None:
        """Cut a gather's index where segments end."""
        if gather.piece is not None or gather.index is None:
            return None if gather.index is None else pa.chunked_array([gather.index])
        index = pa.array(gather.index).slice(stream.skip)
        rows = max((int(stream.work.stop[s] - stream.work.start[s]) for s in gather.sources if s >= 0), default=0)
        parts = max(_SEGMENTS, len(gather.sources))
        # About as large as what they are made of, so that the allocator puts them where that was; on the batch grid, so
        # that few batches have to be joined from two.
        if parts > _SEGMENTS and rows > _SEGMENTS * self._batch_size:
            size = -(-rows // self._batch_size) * self._batch_size
        else:
            size = max(-(-len(index) // (parts * self._batch_size)), 1) * self._batch_size
        first = -stream.position % self._batch_size + size
        cuts = [0, *range(first, len(index), size), len(index)]
        return pa.chunked_array([index.slice(a, b - a) for a, b in pairwise(cuts)])

    def _finish(self, stream: _Stream, state: _StepState) -> None:
        """Hand over what a step emitted and made, under the lock."""
        gone = {piece for gather in state.step.gathers for piece in gather.sources}
        for piece in gone:
            del stream.pool[piece]
            stream.used -= stream.pool_bytes.pop(piece)
        for number, piece_columns in state.made.items():
            nbytes = sum(map(nbytes_of, piece_columns))
            stream.pool[number] = piece_columns
            stream.pool_bytes[number] = nbytes
            stream.used += nbytes
        if not self._emit(stream, state, ends_step=True):
            stream.alive -= 1
        stream.used -= state.spelled_bytes
        stream.queue.popleft()

    def _emit(self, stream: _Stream, state: _StepState, ends_step: bool) -> bool:
        """Hand over the segments that were gathered; return whether there are any."""
        batches = self._segments(state, stream)
        for number, batch in enumerate(batches, start=1):
            nbytes = batch.nbytes
            stream.segments.append(_Segment(batch, batch.num_rows, nbytes, ends_step and number == len(batches)))
            stream.used += nbytes
            stream.position += batch.num_rows
        state.out = {}
        self._rows_ready.notify_all()
        return bool(batches)

    def _segments(self, state: _StepState, stream: _Stream) -> list[pa.RecordBatch]:
        if not state.out:
            return []
        schema = self._delivered if state.spelled_bytes else self._schema
        columns = [pa.chunked_array(state.out[c], field.type) for c, field in enumerate(schema)]
        table = pa.Table.from_arrays(columns, schema=schema)
        emitting = next(g for g in state.step.gathers if g.piece is None)
        if emitting.index is None:
            table = table.slice(stream.skip)
        stream.skip = 0
        return [batch for batch in table.to_batches() if batch.num_rows]


_CHOICES = (
    Pipeline._gather_task,
    Pipeline._mend_task,
    Pipeline._prepare_task,
    Pipeline._fetch_task,
    Pipeline._load_task,
)
"""How a thread chooses what to do, the most urgent first."""


def _by_sources(gathers: Iterable[_Indexed]) -> list[list[_Indexed]]:
    groups: dict[tuple[int, ...], list[_Indexed]] = {}
    for indexed in gathers:
        groups.setdefault(indexed[0].sources, []).append(indexed)
    return list(groups.values())


def _as_few(chunks: Chunks, kind: pa.DataType) -> Chunks:
    """Join chunks where they fit into one array."""
    return [join(chunks, kind)] if fits(chunks) else chunks


def _taken(chunks: Chunks, indices: pa.ChunkedArray, kind: pa.DataType) -> Chunks:
    if len(chunks) == 1:
        return take_each(chunks[0], indices)
    return [array for index in indices.chunks for array in take_from_bins(chunks, index, kind)]


def _taken_by_all(chunks: Chunks, gathers: "list[_Indexed]", kind: pa.DataType) -> list[Chunks]:
    """Take rows for several gathers of the same sources, by one call of Arrow where they are one array."""
    indices = [index for _, index in gathers if index is not None]
    same = len({index.type for index in indices}) == 1
    if len(gathers) == 1 or len(chunks) != 1 or len(indices) < len(gathers) or not same:
        return [chunks if index is None else _taken(chunks, index, kind) for _, index in gathers]
    found = iter(take_each(chunks[0], pa.chunked_array([chunk for index in indices for chunk in index.chunks])))
    return [list(islice(found, index.num_chunks)) for index in indices]


@contextmanager
def _interrupts_told() -> Iterator[None]:
    """Raise Ctrl-C as such where it came in the midst of a condition's ``wait()``.

    That may have given up the lock already, and then it is leaving ``with lock:`` that raises last.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


_LIVE: "weakref.WeakSet[Pipeline]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """End passes that a program leaves open when it exits."""
    for pipeline in list(_LIVE):
        pipeline.close()

"""The reader: where a plan meets I/O, and the owner of the position."""

import copy
import hashlib
import logging
import os
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corgiarrow import budget
from corgiarrow.errors import OptionError, StateMismatchError
from corgiarrow.index import DEFAULT_BLOCK_BYTES, check_on_error
from corgiarrow.opening import Data, DataOptions, open_source
from corgiarrow.pipeline import Pipeline, Stats, StreamInput
from corgiarrow.plan import EpochPlan, Part, check_streams
from corgiarrow.randomness import ORDER_VERSION, check_seed
from corgiarrow.schemas import SchemaRequest
from corgiarrow.sources import BlockSource
from corgiarrow.sources.parquet import ParquetSource
from corgiarrow.sources.postgres import PostgresSource
from corgiarrow.split import Split
from corgiarrow.storage import check_keywords
from corgiarrow.strategies import Strategy, as_strategy

_LOG = logging.getLogger("corgiarrow")

PROVENANCE = ("_file", "_row_group", "_row")
"""Columns that ``provenance=True`` adds."""


_SCANNED_PART = 0.05
"""Part of the budget that a batch of a look beside the training may take."""

_OTHER = "make the reader with what the state has, or begin anew"
_MISMATCHES = {
    "order_version": "another version of corgiarrow made it, with another order",
    "data": "the fingerprints of files, row groups, schema, filter= and split= differ (of a table, its rows and "
    "their places: it may have been written to), so it belongs to other data or another part of it",
    "blocks": "row groups or pages are merged into other blocks, as with another block_bytes or other columns",
    "columns": "the names of the columns read, or their order, differ",
    "pieces": "another budget or number of streams reads large row groups in other pieces; give the same memory",
    "buffer_blocks": "another budget or number of streams merges other buffers; give buffer_blocks to fix it",
}
"""What to say of a difference whose values tell a person little."""


class Slice(NamedTuple):
    """A batch, as a part of the longer run of rows in which it was made.

    Attributes
    ----------
    rows
        Rows of which some are the batch; neighbouring batches of a stream often share them.
    start, stop
        The batch is the rows ``start .. stop``.
    stream
        Number of the stream that the batch belongs to, among those of this part.
    """

    rows: pa.RecordBatch
    start: int
    stop: int
    stream: int

    @property
    def batch(self) -> pa.RecordBatch:
        """The batch alone, without a copy."""
        return self.rows.slice(self.start, self.stop - self.start)


class Reader:
    """Batches of a dataset in shuffled order, under a memory budget, resumable anywhere.

    Iterating gives the batches of one epoch. A pass that is exhausted moves the reader on to the next epoch; one that
    is abandoned does not, and the next pass begins that epoch anew.

    Parameters
    ----------
    data
        Path, URL, glob, folder, a list of them, a :class:`BlockIndex`, or any :class:`BlockSource`; or
        ``postgresql://…``, a database, with ``table=``.
    columns
        Names of the columns to read; None for all. ``"a.b"`` is field ``b`` of struct column ``a``.
    batch_size
        Rows of a batch.
    drop_last
        Drop the rows past the last whole step (``world_size × batch_size`` rows) instead of giving a short batch
        and, to ranks that would get none, their last batch again.
    shuffle
        A strategy's name, a :class:`Strategy`, True for ``"corgipile"`` or False for ``"none"``.
    memory
        Bytes that the whole job may hold, a number or a string such as ``"512 MiB"`` (the default); each stream gets
        an equal share. Blocks a buffer follow from it.
    buffer_blocks, buffer_fraction
        Instead of `memory`: blocks (or the part of all blocks) that the buffers of all streams merge together.
    block_bytes
        Small row groups of one file are merged towards blocks of so many bytes on disk, see
        :data:`corgiarrow.index.MIN_BLOCKS`.
    schema
        Types to give to columns, by name: what files store is cast to them where no value is lost.
    filter
        Which rows to read, a pyarrow expression such as ``pc.field("year") == 2024``. Rows for which it is null are
        dropped. Rows are counted first, in the columns that the filter names.
    split
        The part of the data to read, a :class:`Split`: the rows to train on, or those that are held out to score.
        Together with `filter` both apply.
    on_error
        ``"raise"``, or ``"skip"``: in the place of rows that cannot be read come repeats from the same buffer, counted
        and listed in :attr:`stats`; files whose footer cannot be read are left out.
    seed
        The order is a function of it, in [0, 2³²).
    rank, world_size
        This process's place in the job.
    worker, num_workers
        This reader's place among the loader workers of its rank.
    streams
        Logical readers. The order depends on it, but not on ranks and workers, whose product must divide it. None
        means that product at first use.
    threads
        Threads that read and shuffle; None for the number of CPUs, at most 8.
    provenance
        Add the columns ``_file``, ``_row_group`` and ``_row``.
    progress
        Show a progress bar on stderr.
    **access
        How to reach the files: ``storage_options``, ``filesystem``, ``cache``, ``cache_bytes`` and ``timeout``, see
        :class:`corgiarrow.storage.AccessOptions`. Of a database: ``table``, ``where`` (SQL, instead of `filter`),
        ``dimension`` and ``timeout``, see :class:`corgiarrow.sources.postgres.PostgresSource`.

    Raises
    ------
    OptionError
        An option is out of its bounds.
    BudgetError
        The budget holds less than one block a stream.
    NoFilesError, NotParquetError, ColumnNotFoundError, SchemaMismatchError, StorageError
        The dataset cannot be read as asked.
    """

    def __init__(
        self,
        data: Data,
        *,
        columns: Sequence[str] | None = None,
        batch_size: int = 1024,
        drop_last: bool = False,
        shuffle: str | bool | Strategy = "corgipile",
        memory: int | str | None = None,
        buffer_blocks: int | None = None,
        buffer_fraction: float | None = None,
        block_bytes: int | str = DEFAULT_BLOCK_BYTES,
        schema: SchemaRequest | None = None,
        filter: pc.Expression | None = None,
        split: Split | None = None,
        on_error: str = "raise",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        worker: int = 0,
        num_workers: int = 1,
        streams: int | None = None,
        threads: int | None = None,
        provenance: bool = False,
        progress: bool = False,
        **access: Unpack[DataOptions],
    ):
        check_keywords(access, DataOptions)
        for name, value in (("batch_size", batch_size), ("streams", streams), ("threads", threads)):
            left_open = value is None and name != "batch_size"
            if not left_open and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise OptionError(f"{name}={value!r} must be a whole number of at least 1")
        self._part = Part(rank, world_size, worker, num_workers)
        self._strategy = as_strategy(shuffle)
        self._request = budget.Request(memory, buffer_blocks, buffer_fraction)
        self._seed = check_seed("seed", seed)
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._threads = threads or share_of_cpus()
        self._provenance = provenance
        self._progress = progress
        self._skip_errors = check_on_error(on_error) == "skip"
        self._source = open_source(data, columns, block_bytes, schema, filter, split, on_error, self._threads, access)
        if provenance and (taken := set(PROVENANCE) & set(self._source.schema.names)):
            raise OptionError(f"provenance=True adds columns {PROVENANCE}, but the data has {sorted(taken)} already")
        self._streams_asked = streams
        self._stats = Stats()
        if isinstance(self._source, ParquetSource):
            self._stats.skipped.update(self._source.uncounted)
        # Weak, so that a pass ends with the loop that drops it.
        self._pass: weakref.ref[Generator[Slice, None, None]] | None = None
        self._epoch = 0
        self._delivered = 0
        """Batches of this part that were delivered in `_epoch`."""
        self._resume = False
        """Whether the next pass begins at `_delivered` instead of at the epoch's start."""
        self._set_streams(streams or self._part.num_parts)

    def _set_streams(self, streams: int) -> None:
        parts = self._part.num_parts
        if streams % parts:
            raise OptionError(
                f"streams={streams} must be a multiple of the {parts} parts (world_size={self._part.world_size} × "
                f"num_workers={self._part.num_workers}), so that each serves as many"
            )
        check_streams(self.num_rows, self._batch_size, streams)
        self._streams = streams
        sizes = budget.Sizes(
            rows=self._source.block_rows,
            nbytes=self._source.block_bytes,
            decode_bytes=self._source.decode_bytes,
            largest_column=self._source.largest_column,
            cursor_bytes=self._source.cursor_bytes,
            batch_rows=self._batch_size,
            piece_factor=self._source.piece_factor,
        )
        self._budget = budget.resolve(self._request, sizes, self._strategy, streams)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pass": None}

    def __repr__(self) -> str:
        return (
            f"Reader({self.num_rows} rows in {len(self._source.block_rows)} blocks, shuffle={self._strategy.name!r}, "
            f"buffer_blocks={self._budget.buffer_blocks}, streams={self._streams}, part {self._part.number} of "
            f"{self._part.num_parts}, epoch {self._epoch})"
        )

    @property
    def schema(self) -> pa.Schema:
        """Schema of every batch."""
        schema = self._source.schema
        if self._provenance:
            located = self._source.locate(np.empty(0, dtype=np.int64)).schema
            for column in located:
                schema = schema.append(column)
        return schema

    @property
    def num_rows(self) -> int:
        """Rows of the dataset, over all parts."""
        return int(self._source.block_rows.sum())

    @property
    def num_batches(self) -> int:
        """Batches that this part delivers in an epoch; also ``len(reader)``."""
        return self.plan().part_batches(self._part, self._drop_last)

    def __len__(self) -> int:
        return self.num_batches

    @property
    def batch_size(self) -> int:
        """Rows of a batch."""
        return self._batch_size

    @property
    def drop_last(self) -> bool:
        """Whether rows past the last whole step are dropped."""
        return self._drop_last

    @property
    def streams(self) -> int:
        """Logical readers of the job, which fix the order: its parts share them out."""
        return self._streams

    @property
    def part(self) -> Part:
        """The place of this reader in the job."""
        return self._part

    @property
    def position(self) -> tuple[int, int]:
        """The epoch, and the batches of this part that were delivered in it."""
        return self._epoch, self._delivered

    @property
    def next_pass(self) -> tuple[int, int]:
        """The epoch of the next pass, and the number of the batch of this part that it begins with."""
        return self._epoch, self._delivered if self._resume else 0

    def mark(self, slices: Generator[Slice, None, None], position: tuple[int, int]) -> bool:
        """Say which of the positions that a pass went through its batches have reached their user.

        For those who take batches ahead of their user: :meth:`state_dict` describes what was marked last.

        Parameters
        ----------
        slices
            The pass.
        position
            One of its positions.

        Returns
        -------
        bool
            False, and nothing is marked, if that pass was closed, or another one begun.
        """
        if self._pass is None or self._pass() is not slices:
            return False
        self._epoch, self._delivered = position
        return True

    def for_part(
        self,
        *,
        rank: int = 0,
        world_size: int = 1,
        worker: int = 0,
        num_workers: int = 1,
        streams: int | None = None,
        threads: int | None = None,
    ) -> "Reader":
        """Return a reader of the same data and options for another part of the job, at the start of epoch 0.

        Parameters
        ----------
        rank, world_size, worker, num_workers
            Its place, as for :class:`Reader`.
        streams
            Logical readers, where this reader leaves that open.
        threads
            Threads that it reads with; None for as many as this one's.

        Raises
        ------
        OptionError, BudgetError
            The place is out of its bounds, or does not fit `streams`.
        """
        other = self._anew()
        other._part = Part(rank, world_size, worker, num_workers)
        other._threads = threads or self._threads
        other._streams_asked = self._streams_asked or streams
        other._set_streams(other._streams_asked or other._part.num_parts)
        return other

    def in_file_order(self, columns: Sequence[str] | None = None, *, batch_size: int | None = None) -> "Reader":
        """Return a reader of the same rows in file order, of the whole job, for a look at them beside the training.

        Parameters
        ----------
        columns
            Those to read, of this reader's; None for all. Sources that cannot be narrowed give all of their columns.
        batch_size
            Rows of a batch, or fewer where they would take much of the budget; None for as many as this reader's.
        """
        other = self._anew()
        row_bytes = self._source.block_bytes.sum() / max(self.num_rows, 1)
        most = max(int(_SCANNED_PART * self.memory_bytes / max(row_bytes, 1)), self._batch_size)
        if columns is not None and isinstance(self._source, ParquetSource):
            other._source = self._source.narrowed(columns, "skip" if self._skip_errors else "raise")
        elif columns is not None and isinstance(self._source, PostgresSource):
            other._source = self._source.narrowed(columns)
        if self._request.memory is None and self._request != budget.Request():
            other._request = budget.Request(buffer_blocks=1)
        other._strategy, other._part, other._streams_asked = as_strategy("none"), Part(0, 1, 0, 1), 1
        other._batch_size = min(batch_size or self._batch_size, most)
        other._drop_last, other._provenance, other._progress = False, False, False
        other._set_streams(1)
        return other

    def _anew(self) -> "Reader":
        """Return a copy that has read nothing yet."""
        other = copy.copy(self)
        other._stats, other._pass = Stats(), None
        other._epoch, other._delivered, other._resume = 0, 0, False
        return other

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return self._epoch

    @property
    def buffer_blocks(self) -> int:
        """Blocks that one buffer of one stream merges."""
        return self._budget.buffer_blocks

    @property
    def memory_bytes(self) -> int:
        """Bytes that all streams of the job may hold."""
        return self._budget.stream_bytes * self._streams

    @property
    def source(self) -> BlockSource:
        """Where the blocks come from."""
        return self._source

    @property
    def stats(self) -> Stats:
        """What this reader did so far."""
        return self._stats

    def plan(self, epoch: int | None = None) -> EpochPlan:
        """Return the order of an epoch (of the current one by default), without reading anything."""
        return EpochPlan(
            block_rows=self._source.block_rows,
            strategy=self._strategy,
            buffer_blocks=self._budget.buffer_blocks,
            seed=self._seed,
            epoch=self._epoch if epoch is None else check_seed("epoch", epoch),
            streams=self._streams,
            batch_size=self._batch_size,
            pieces=self._budget.pieces,
            open_blocks=self._budget.open_blocks,
        )

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass. The position within it is kept when it is the current epoch."""
        if check_seed("epoch", epoch) != self._epoch:
            self._move(epoch, 0)

    def seek(self, epoch: int, step: int) -> None:
        """Begin the next pass at step number `step` of an epoch, as a trainer counts its steps (batches of a rank).

        Raises
        ------
        OptionError
            The epoch has fewer steps, or the loader workers of a rank would begin in the middle of their turns.
        """
        steps = self.plan(epoch).num_steps(self._part.world_size, self._drop_last)
        if not 0 <= step <= steps:
            raise OptionError(f"step={step} must be in [0, {steps}], the steps of an epoch")
        if step % self._part.num_workers and step < steps:
            raise OptionError(f"step={step} must be a multiple of num_workers={self._part.num_workers}")
        if step == steps:
            self._move(epoch + 1, 0)
        else:
            self._move(epoch, step // self._part.num_workers)

    def _move(self, epoch: int, delivered: int) -> None:
        self.end_pass()
        self._epoch, self._delivered, self._resume = epoch, delivered, True

    def state_dict(self) -> dict[str, int | str]:
        """Return the position after the batches delivered so far: small, of plain values, quick to make."""
        return {
            **self._identity(),
            "streams": self._streams,
            "epoch": self._epoch,
            "batches": self._delivered * self._part.num_parts,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position; the next pass begins there.

        The number of parts may differ from the one that saved it, as long as it divides `streams` and the batches
        delivered.

        Raises
        ------
        StateMismatchError
            The state belongs to other data or parameters, or cannot go on with this number of parts.
        """
        identity = self._identity()
        if not isinstance(state, Mapping):
            raise StateMismatchError(f"the state is {state!r}: give what state_dict() returned")
        missing = sorted({*identity, "streams", "epoch", "batches"} - set(state))
        if missing:
            raise StateMismatchError(f"the state lacks {', '.join(missing)}: it was not made by state_dict()")
        # The number of blocks a buffer depends on `streams`, so that is settled first.
        streams = int(state["streams"])
        if self._streams_asked is not None and streams != self._streams_asked:
            raise StateMismatchError(
                f"the state has streams={streams}, this reader streams={self._streams_asked}: leave streams= out, or "
                "give the state's"
            )
        parts = self._part.num_parts
        if streams % parts:
            raise StateMismatchError(f"the state has streams={streams}, which {parts} parts do not divide")
        if streams != self._streams:
            self._set_streams(streams)
            identity = self._identity()
        for name, value in identity.items():
            if state[name] != value:
                why = _MISMATCHES.get(name, _OTHER)
                raise StateMismatchError(f"the state has {name}={state[name]!r}, this reader {name}={value!r}: {why}")
        batches = int(state["batches"])
        if batches % parts:
            nearest = min(
                (p for p in range(1, streams + 1) if streams % p == 0 and batches % p == 0),
                key=lambda p: abs(p - parts),
            )
            raise StateMismatchError(
                f"the state has {batches} batches delivered, which {parts} parts do not divide: load it with "
                f"{nearest} parts"
            )
        self._move(int(state["epoch"]), batches // parts)

    def _identity(self) -> dict[str, int | str]:
        """What the order depends on, by name."""
        pieces = self._budget.pieces
        return {
            "order_version": ORDER_VERSION,
            "data": self._source.fingerprint,
            "blocks": _digest(self._source.block_rows.astype("<i8").tobytes()),
            "columns": _digest("\0".join(self._source.schema.names).encode()),
            "shuffle": self._strategy.described,
            "buffer_blocks": self._budget.buffer_blocks,
            "pieces": "" if pieces is None else f"{_digest(pieces.astype('<i8').tobytes())}/{self._budget.open_blocks}",
            "batch_size": self._batch_size,
            "seed": self._seed,
        }

    def close(self) -> None:
        """End the pass under way, if there is one: threads end, memory is let go, connections are closed.

        Another pass may begin afterwards. Of a database's table it takes another snapshot, and raises if the rows are
        no longer the same.
        """
        self.end_pass()
        self._source.close()

    def end_pass(self) -> None:
        """End the pass under way, if there is one, and keep what the source holds for the next."""
        under_way = None if self._pass is None else self._pass()
        if under_way is not None:
            under_way.close()
        self._pass = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return (part.batch for part in self.slices())

    def slices(self) -> Generator[Slice, None, None]:
        """Begin a pass like ``iter(reader)``, but give each batch as a part of the rows in which it was made.

        For those who convert batches: what is done once for these rows need not be done for each batch.
        """
        self.end_pass()
        begin = self._delivered if self._resume else 0
        self._resume = False
        self._delivered = begin
        batches = self._batches(self.plan(), begin)
        self._pass = weakref.ref(batches)
        return batches

    def _batches(self, plan: EpochPlan, begin: int) -> Generator[Slice, None, None]:
        total = plan.part_batches(self._part, self._drop_last)
        if begin >= total:
            self._epoch, self._delivered = plan.epoch + 1, 0
            return
        mine = range(self._part.number, self._streams, self._part.num_parts)
        streams = [plan.stream(s) for s in mine]
        nexts = [-(-(begin - place) // len(mine)) for place in range(len(mine))]
        inputs = []
        pieces = self._budget.pieces
        # Where fewer blocks are open than threads run, several threads read one of them together.
        together = -(-self._threads // (self._budget.open_blocks * len(mine)))
        open_session = partial(
            self._source.session,
            pieces,
            open_blocks=self._budget.open_blocks,
            compact=self._strategy.copies,
            threads=together,
            row_ids=self._provenance,
        )
        skipped_before = set(self._stats.skipped)
        for stream, batch in zip(streams, nexts, strict=True):
            skip, steps = stream.steps(batch)
            bytes_a_row = self._source.block_bytes[stream.block] / self._source.block_rows[stream.block]
            span_bytes = (bytes_a_row * stream.rows).astype(np.int64)
            in_pieces = np.zeros(len(stream.block), np.bool_) if pieces is None else pieces[stream.block] > 1
            inputs.append(
                StreamInput(
                    open_session, steps, stream.block, stream.start, stream.stop, span_bytes, in_pieces, skip
                )
            )
        again: dict[int, Slice] = {}
        with (
            _progress_bar(self._progress, plan.epoch, begin, total) as advance,
            Pipeline(
                self._source.schema,
                inputs,
                batch_size=self._batch_size,
                stream_bytes=self._budget.stream_bytes - self._budget.reserved_bytes,
                largest_column=self._source.largest_column,
                threads=self._threads,
                stats=self._stats,
                describe=self._source.describe,
                skip_errors=self._skip_errors,
                reserved_bytes=self._budget.reserved_bytes * len(mine),
            ) as pipeline,
        ):
            for number in range(begin, total):
                batch_number, place = divmod(number, len(mine))
                rows = self._batch_size
                last = batch_number >= streams[place].batches - 1
                if last:
                    rows = streams[place].batch_rows(batch_number)
                if place in again:
                    part = again[place]
                else:
                    found, start = pipeline.next_rows(place, rows)
                    part = Slice(found, start, start + rows, place)
                    if self._provenance:
                        part = Slice(self._located(part.batch), 0, rows, place)
                    if number + len(mine) < total and last:
                        # What padding repeats, in memory of its own: who changes arrays in place changes them once.
                        again[place] = Slice(pa.concat_batches([part.batch, part.batch[:0]]), 0, rows, place)
                self._stats.rows += rows
                self._stats.batches += 1
                if number + 1 == total:
                    self._epoch, self._delivered = plan.epoch + 1, 0
                else:
                    self._delivered = number + 1
                if advance is not None:
                    advance()
                yield part
        if new := [text for name, text in self._stats.skipped.items() if name not in skipped_before]:
            _LOG.warning("%d blocks could not be read, repeats came in their place: %s", len(new), "; ".join(new))

    def _located(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        located = self._source.locate(batch.column(batch.num_columns - 1).to_numpy())
        columns = [*batch.columns[:-1], *located.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def share_of_cpus(processes: int = 1) -> int:
    """Threads for each of so many processes of this machine: its share of the CPUs, at most 8."""
    return min(max(len(os.sched_getaffinity(0)) // processes, 1), 8)


class _progress_bar:  # noqa: N801 - reads as a word in `with _progress_bar(…) as advance:`
    def __init__(self, shown: bool, epoch: int, begin: int, total: int):
        self._bar = None
        if shown:
            from rich.console import Console
            from rich.progress import Progress

            self._bar = Progress(console=Console(stderr=True))
            self._task = self._bar.add_task(f"epoch {epoch}", completed=begin, total=total)

    def __enter__(self) -> Callable[[], None] | None:
        if self._bar is None:
            return None
        bar, task = self._bar, self._task
        bar.start()
        return lambda: bar.advance(task)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]

"""Reading an epoch as a whole job would, and proving that the promises hold on this data.

All parts are read one after the other in this process. What is kept for comparing is a few bytes a row (ids)
and 16 bytes a batch (digests), never the batches.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from corgiarrow.errors import OptionError
from corgiarrow.index import BlockIndex
from corgiarrow.plain import read_plain
from corgiarrow.plan import EpochPlan, Part
from corgiarrow.reader import PROVENANCE, Reader
from corgiarrow.sources import BlockSource
from corgiarrow.sources.decode import Decoder
from corgiarrow.sources.parquet import ParquetSource

_COMPARED_ROWS = 8
"""Rows of a probed batch that are looked up in the file again, each by reading its row group."""

Int64s = npt.NDArray[np.int64]
State = dict[str, int | str]


@dataclass(frozen=True, slots=True)
class Check:
    """What a check found.

    Attributes
    ----------
    rows, parts, batches_per_rank
        Of the data and the job.
    repeated_rows, dropped_rows
        Rows that padding gives again, or ``drop_last`` leaves out.
    exactly_once
        Every row came once, but for those, and they are fewer than ``world_size`` batches. Of a strategy that repeats
        rows: each came as often as the plan says.
    equal_steps
        Every rank got as many batches as the plan says.
    plan_order
        Every row came at the place that the plan says.
    resume_exact
        Readers that went on from a saved state gave the remaining batches bit for bit.
    values_match
        Rows of the probed batches equal what pyarrow alone reads at their places.
    resumes
        The positions that were probed and resumed from, as (part, batches delivered before).
    """

    rows: int
    parts: int
    batches_per_rank: int
    repeated_rows: int
    dropped_rows: int
    exactly_once: bool
    equal_steps: bool
    plan_order: bool
    resume_exact: bool
    values_match: bool
    resumes: tuple[tuple[int, int], ...]

    @property
    def holds(self) -> bool:
        """Whether everything does."""
        whole = self.exactly_once and self.equal_steps and self.plan_order
        return whole and self.resume_exact and self.values_match


def check(
    index: BlockIndex,
    *,
    world_size: int = 1,
    num_workers: int = 1,
    resumes: int = 3,
    say: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Check:
    """Read one epoch with all parts of a job, and the rest of it again from some saved states.

    Parameters
    ----------
    index
        The dataset.
    world_size, num_workers
        Ranks, and loader workers of each.
    resumes
        Number of random positions to resume from (the same ones for the same `seed`).
    say
        Called with what is being done.
    options
        Further options of :class:`Reader`, the same for every part.

    Raises
    ------
    CorgiArrowError
        The data cannot be read as asked. A promise that does not hold is not an error, but in the result.
    """
    if resumes < 0:
        raise OptionError(f"resumes={resumes} must be at least 0")
    ranks = [(worker, rank) for worker in range(num_workers) for rank in range(world_size)]
    parts = [Part(rank, world_size, worker, num_workers) for worker, rank in ranks]

    def reader(part: Part) -> Reader:
        job = {"rank": part.rank, "world_size": world_size, "worker": part.worker, "num_workers": num_workers}
        return Reader(index, **{**options, **job, "provenance": True})

    # Bounds are the reader's to check, also of a job without parts.
    first = reader(parts[0] if parts else Part(0, world_size, 0, num_workers))
    plan = first.plan(0)
    drop_last = bool(options.get("drop_last", False))
    points = _resume_points(resumes, [plan.part_batches(p, drop_last) for p in parts], options.get("seed", 0))
    tally = _Tally(first.source, plan)
    delivered = np.zeros(world_size, dtype=np.int64)
    resume_exact = True
    for part in parts:
        name = f"part {part.number + 1} of {len(parts)}"
        say(f"reading {name}")
        digests, states = _read_part(reader(part), part, points[part.number], tally)
        delivered[part.rank] += len(digests)
        for batches, state in states.items():
            say(f"resuming {name} after {batches} of {len(digests)} batches")
            again = reader(part)
            again.load_state_dict(json.loads(json.dumps(state)))
            resume_exact &= [_digest(batch) for batch in again] == digests[batches:]
    steps = plan.num_steps(world_size, drop_last)
    dropped = max(plan.emitted_rows - steps * world_size * plan.batch_size, 0)
    few = max(tally.repeated_rows, dropped) < world_size * plan.batch_size
    return Check(
        rows=plan.num_rows,
        parts=len(parts),
        batches_per_rank=steps,
        repeated_rows=tally.repeated_rows,
        dropped_rows=dropped,
        exactly_once=tally.all_but_last(dropped) and few,
        equal_steps=bool((delivered == steps).all()),
        plan_order=tally.plan_order,
        resume_exact=resume_exact,
        values_match=tally.values_match,
        resumes=tuple((part, batches) for part, at in enumerate(points) for batches in sorted(at)),
    )


def _resume_points(resumes: int, batches: list[int], seed: int) -> list[set[int]]:
    """Choose positions before a part's end: for each part the numbers of batches delivered before."""
    rng = np.random.default_rng(seed)
    points: list[set[int]] = [set() for _ in batches]
    fitting = [part for part, count in enumerate(batches) if count]
    for _ in range(resumes if fitting else 0):
        part = int(rng.choice(fitting))
        points[part].add(int(rng.integers(0, batches[part])))
    return points


def _read_part(
    reader: Reader, part: Part, probes: set[int], tally: "_Tally"
) -> tuple[list[bytes], dict[int, State]]:
    """Read one part; return the digest of each batch, and the states at the probed positions."""
    digests: list[bytes] = []
    states = {0: reader.state_dict()} if 0 in probes else {}
    for number, batch in enumerate(reader):
        digests.append(_digest(batch))
        tally.add(batch, part.number + number * part.num_parts, probed=number in probes)
        if number + 1 in probes:
            states[number + 1] = reader.state_dict()
    return digests, states


@dataclass
class _Tally:
    """What was seen so far."""

    source: BlockSource
    plan: EpochPlan
    repeated_rows: int = 0
    plan_order: bool = True
    values_match: bool = True
    seen: npt.NDArray[np.uint32] = field(init=False)

    def __post_init__(self) -> None:
        self.seen = np.zeros(self.plan.num_rows, dtype=np.uint32)

    @cached_property
    def planned(self) -> Int64s:
        """Ids of all rows in the plan's order, int64 [rows]."""
        return self.plan.row_ids()

    @cached_property
    def index(self) -> BlockIndex:
        """The dataset."""
        assert isinstance(self.source, ParquetSource)
        return self.source.index

    @cached_property
    def kept(self) -> Int64s | None:
        """Places in the dataset of the rows that are selected, as pyarrow alone finds them; None for all."""
        assert isinstance(self.source, ParquetSource)
        selection = self.source.selection
        if not selection.key:
            return None
        decoder = Decoder(self.index, selection.columns)
        found = [np.empty(0, dtype=np.int64)]
        for group in np.flatnonzero(selection.groups & (self.index.group_rows > 0)):
            rows = np.arange(self.index.group_rows[group])
            if selection.by_rows:
                rows = selection.kept(read_fitted(decoder, int(group)))
            found.append(rows + self._group_first[group])
        return np.concatenate(found)

    @cached_property
    def _paths(self) -> pa.Array:
        return pa.array([f.path for f in self.index.files])

    @cached_property
    def _file_first(self) -> Int64s:
        return np.searchsorted(self.index.group_file, np.arange(len(self.index.files)))

    @cached_property
    def _group_first(self) -> Int64s:
        return np.cumsum(self.index.group_rows) - self.index.group_rows

    def add(self, batch: pa.RecordBatch, place: int, probed: bool) -> None:
        """Count the rows of the epoch's batch number `place`; numbers past the last are padding."""
        file_name, number, row = (batch.column(name) for name in PROVENANCE)
        groups = self._file_first[pc.index_in(file_name, self._paths).to_numpy()] + number.to_numpy()
        ids = self._group_first[groups] + row.to_numpy()
        if self.kept is not None:
            found = np.searchsorted(self.kept, ids)
            if not np.array_equal(self.kept[np.minimum(found, len(self.kept) - 1)], ids):
                self.plan_order = self.values_match = False  # A row that is not selected.
                return
            ids = found
        if place < self.plan.num_batches:
            np.add.at(self.seen, ids, 1)
        else:
            self.repeated_rows += len(ids)
            # Padding is the last batch of its stream again.
            stream = place % self.plan.streams
            place = stream + (self.plan.stream(stream).batches - 1) * self.plan.streams
        size = self.plan.batch_size
        self.plan_order &= bool(np.array_equal(ids, self.planned[place * size : (place + 1) * size]))
        if probed:
            self.values_match &= self._matches_file(batch, groups, row.to_numpy())

    def all_but_last(self, dropped: int) -> bool:
        """Whether each row was counted once, but for the last `dropped` ones of the plan, which were not.

        Where the strategy repeats rows, as often as the plan has them.
        """
        kept = self.planned[: len(self.planned) - dropped]
        if self.plan.strategy.repeats_rows:
            return bool(np.array_equal(self.seen, np.bincount(kept, minlength=len(self.seen))))
        wanted = np.zeros_like(self.seen)
        wanted[kept] = 1
        if len(kept) != len(self.seen) - dropped:
            return False
        return bool(np.array_equal(self.seen, wanted))

    def _matches_file(self, batch: pa.RecordBatch, groups: Int64s, rows: Int64s) -> bool:
        assert isinstance(self.source, ParquetSource)
        columns = batch.schema.names[: -len(PROVENANCE)]
        here = batch.select(columns)
        decoder = Decoder(self.index, self.source.columns)
        for place in np.unique(np.linspace(0, batch.num_rows - 1, _COMPARED_ROWS).astype(np.int64)):
            found = [c.slice(rows[place], 1).combine_chunks() for c in read_fitted(decoder, int(groups[place]))]
            there = pa.RecordBatch.from_arrays(found, names=columns)
            if _digest(here.slice(place, 1)) != _digest(there):
                return False
        return True


def read_fitted(decoder: Decoder, group: int) -> list[pa.ChunkedArray]:
    """Read a row group whole by pyarrow alone; only the types are then brought to the dataset's."""
    index = decoder.index
    file, rows = int(index.group_file[group]), int(index.group_rows[group])
    stored = decoder.stored(file)
    names = decoder.names(stored)
    table = read_plain(index, [group], names) if names else None
    return [decoder.fit(file, c, table if c in stored else None, rows) for c in range(len(decoder.columns))]


def _digest(batch: pa.RecordBatch) -> bytes:
    """Hash of the values of a batch, 16 bytes: wherever it was cut from, whatever lies under its nulls."""
    digest = hashlib.blake2b(digest_size=16)
    for column in batch.columns:
        _add(digest, column)
    return digest.digest()


def _add(digest: "hashlib.blake2b", column: pa.Array) -> None:
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if isinstance(column, pa.DictionaryArray):
        column = column.dictionary_decode()
    if isinstance(column, pa.MapArray):
        # Nothing flattens a map as such.
        pair = pa.struct([column.type.key_field.with_name("key"), column.type.item_field.with_name("value")])
        column = column.cast(pa.list_(pair))
    digest.update(len(column).to_bytes(8, "little") + column.null_count.to_bytes(8, "little"))
    if column.null_count:
        digest.update(column.is_valid().to_numpy(zero_copy_only=False).tobytes())
        column = column.drop_null()
    if isinstance(column, pa.StructArray):
        for part in column.flatten():
            _add(digest, part)
    elif isinstance(column, pa.FixedSizeListArray):
        _add(digest, column.flatten())
    elif isinstance(column, pa.ListArray | pa.LargeListArray):
        _add(digest, pc.pairwise_diff(column.offsets)[1:])
        _add(digest, column.flatten())
    else:
        # A gathered copy has no offset, and no other rows' bits past its end.
        values = column.take(pa.array(np.arange(len(column))))
        digest.update(pa.RecordBatch.from_arrays([values], names=["values"]).serialize())

"""How fast a dataset is read in several orders, beside a plain scan and beside random access.

Everything that is compared runs in turn in this process, round after round, so that a busy machine slows all
alike.
"""

import contextlib
import ctypes
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from corgiarrow.errors import OptionError
from corgiarrow.index import BlockIndex
from corgiarrow.plain import read_plain
from corgiarrow.reader import Reader, share_of_cpus

STRATEGIES = ("none", "block", "corgipile")

_ACCESS_S = 1.0
"""Seconds for each way of random access, about: one read more may begin at the end."""
_ACCESS_ROWS = 64
"""Single rows to fetch, at most."""
_ACCESS_BYTES = (1, *(2**power for power in range(12, 29, 2)))
"""Sizes on disk of the random blocks to read; one row group at least."""
_ACCESS_BLOCKS = 4
"""Fewer blocks than these are no random access."""


@dataclass(frozen=True, slots=True)
class Speed:
    """One way of reading a whole epoch; medians over the rounds.

    Attributes
    ----------
    strategy
        Name of the strategy, or ``"scan"``.
    rows_per_s, bytes_per_s
        Rows, and decoded bytes, a second.
    first_batch_s
        Seconds from asking to the first batch (of the scan: to the first row group).
    wait_share
        Part of the time that the consumer waited, in [0, 1] (1 for the scan, which nothing consumes).
    peak_arrow_bytes
        Most bytes that Arrow held.
    vs_scan, vs_none
        Rows a second as a ratio to the scan's and to ``none``'s (None when that did not run).
    """

    strategy: str
    rows_per_s: float
    bytes_per_s: float
    first_batch_s: float
    wait_share: float
    peak_arrow_bytes: int
    vs_scan: float | None = None
    vs_none: float | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """Random access of one kind, in one thread.

    Attributes
    ----------
    kind
        ``"row"``: a row group is read for each row, as a map-style dataset would; ``"block"``: all rows of a
        block are used.
    block_rows, block_bytes
        Rows and bytes on disk of what one access reads, on average.
    reads
        Accesses timed.
    rows_per_s
        Rows got a second.
    """

    kind: str
    block_rows: float
    block_bytes: float
    reads: int
    rows_per_s: float


@dataclass(frozen=True, slots=True)
class Bench:
    """What was measured.

    Attributes
    ----------
    rows, threads, rounds
        Rows of the data, threads that read, and rounds run.
    scan
        Plain pyarrow, each thread reading the next row group.
    results
        One entry a strategy.
    random_access
        Single rows first, then blocks of growing sizes.
    """

    rows: int
    threads: int
    rounds: int
    scan: Speed
    results: tuple[Speed, ...]
    random_access: tuple[Access, ...]


def bench(
    index: BlockIndex,
    *,
    strategies: Sequence[str] = STRATEGIES,
    threads: int | None = None,
    repeat: int = 3,
    consumer_s: float = 0.0,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
    **options: Any,
) -> Bench:
    """Measure some strategies, a plain scan of the same columns, and random access.

    Parameters
    ----------
    index
        The dataset.
    strategies
        Names of strategies.
    threads
        Threads that read, of the reader and of the scan; None for the number of CPUs, at most 8.
    repeat
        Rounds; each runs the scan and every strategy once.
    consumer_s
        Seconds that the consumer takes for each batch, as a training step on an accelerator would.
    seed
        Of the orders, and of the rows and blocks that random access picks.
    say
        Called with what is being done.
    options
        Further options of :class:`Reader`.

    Raises
    ------
    OptionError
        An option is out of its bounds.
    ReadError
        The data cannot be read.
    """
    if repeat < 1:
        raise OptionError(f"repeat={repeat} must be at least 1")
    if consumer_s < 0:
        raise OptionError(f"consumer_s={consumer_s} must be at least 0 seconds")
    if not strategies or len(set(strategies)) < len(strategies):
        raise OptionError(f"shuffle={','.join(strategies)!r} must name at least one strategy, and none twice")
    threads = threads or share_of_cpus()

    def reader(strategy: str) -> Reader:
        return Reader(index, **{**options, "shuffle": strategy, "threads": threads, "seed": seed})

    # All options are checked before anything is timed.
    readers = [reader(s) for s in strategies]
    columns = readers[0].source.schema.names
    del readers
    if not index.num_rows:
        raise OptionError("the data has no rows to read")
    runs: dict[str, list[Speed]] = {name: [] for name in ("scan", *strategies)}
    for number in range(repeat):
        for name, speeds in runs.items():
            say(f"round {number + 1} of {repeat}: {name}")
            with _counting_pool() as pool:
                run = _scan(index, columns, threads) if name == "scan" else _read(reader(name), consumer_s)
                speeds.append(run(pool.max_memory()))
    say("random access")
    access = tuple(_random_access(index, columns, seed))
    scan = _median(runs.pop("scan"), None, None)
    none = statistics.median(s.rows_per_s for s in runs["none"]) if "none" in runs else None
    results = tuple(_median(speeds, scan.rows_per_s, none) for speeds in runs.values())
    return Bench(index.num_rows, threads, repeat, scan, results, access)


@contextlib.contextmanager
def _counting_pool() -> Iterator[pa.MemoryPool]:
    """Make Arrow allocate from a fresh pool that counts; the one before comes back at the end."""
    base = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(base)
    # Arrow memory that outlives the run, in a traceback say, is freed through its pool, so no pool may ever go: not
    # even when modules are torn down at exit.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(base)


def _read(reader: Reader, consumer_s: float) -> Callable[[int], Speed]:
    first_s = 0.0
    began = time.perf_counter()
    with reader:
        for batch in reader:
            del batch
            first_s = first_s or time.perf_counter() - began
            if consumer_s:
                time.sleep(consumer_s)
    taken_s = time.perf_counter() - began
    strategy, stats = reader.plan().strategy.name, reader.stats
    return lambda peak: Speed(
        strategy, stats.rows / taken_s, stats.memory_bytes / taken_s, first_s, stats.wait_s / taken_s, peak
    )


def _scan(index: BlockIndex, columns: Sequence[str], threads: int) -> Callable[[int], Speed]:
    def read(group: int) -> tuple[int, int, float]:
        table = read_plain(index, [group], columns)
        return table.num_rows, table.nbytes, time.perf_counter()

    groups = [int(g) for g in np.flatnonzero(index.group_rows)]
    began = time.perf_counter()
    with ThreadPoolExecutor(threads) as executor:
        rows, sizes, ends = zip(*executor.map(read, groups), strict=True)
    taken_s = time.perf_counter() - began
    return lambda peak: Speed("scan", sum(rows) / taken_s, sum(sizes) / taken_s, min(ends) - began, 1.0, peak)


def _median(speeds: Sequence[Speed], scan: float | None, none: float | None) -> Speed:
    rows_per_s = statistics.median(s.rows_per_s for s in speeds)
    return Speed(
        strategy=speeds[0].strategy,
        rows_per_s=rows_per_s,
        bytes_per_s=statistics.median(s.bytes_per_s for s in speeds),
        first_batch_s=statistics.median(s.first_batch_s for s in speeds),
        wait_share=statistics.median(s.wait_share for s in speeds),
        # The budget is a promise about the worst case.
        peak_arrow_bytes=max(s.peak_arrow_bytes for s in speeds),
        vs_scan=rows_per_s / scan if scan else None,
        vs_none=rows_per_s / none if none else None,
    )


def _random_access(index: BlockIndex, columns: Sequence[str], seed: int) -> Iterator[Access]:
    """Time single random rows, then random blocks of growing sizes (Figure 20 of the CorgiPile paper)."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, index.num_rows, _ACCESS_ROWS)
    owner = np.searchsorted(np.cumsum(index.group_rows), ids, side="right")
    row = ids - (np.cumsum(index.group_rows) - index.group_rows)[owner]
    picks = [np.array([g]) for g in owner]

    def one_row(number: int, table: pa.Table) -> int:
        return int(table.slice(row[number], 1).combine_chunks().num_rows)

    yield _timed(index, columns, "row", picks, one_row)
    before = 0
    for target in _ACCESS_BYTES:
        blocks = _neighbours(index, target)
        if before and (len(blocks) == before or len(blocks) < _ACCESS_BLOCKS):
            continue  # Not larger than the last, or nothing to choose from.
        before = len(blocks)
        order = rng.permutation(len(blocks))
        yield _timed(index, columns, "block", [blocks[b] for b in order], lambda n, table: table.num_rows)


def _timed(
    index: BlockIndex,
    columns: Sequence[str],
    kind: str,
    picks: Sequence[npt.NDArray[np.intp]],
    use: Callable[[int, pa.Table], int],
) -> Access:
    reads = rows = 0
    began = time.perf_counter()
    for number, groups in enumerate(picks):
        rows += use(number, read_plain(index, [int(g) for g in groups], columns))
        reads = number + 1
        if time.perf_counter() - began > _ACCESS_S:
            break
    taken_s = time.perf_counter() - began
    read = np.concatenate(picks[:reads])
    share = sum(map(index.share_of, index.columns(columns)))
    return Access(
        kind,
        float(index.group_rows[read].sum() / reads),
        float(index.group_disk_bytes[read].sum() * share / reads),
        reads,
        rows / taken_s,
    )


def _neighbours(index: BlockIndex, target: int) -> list[npt.NDArray[np.intp]]:
    """Cut the row groups into runs of neighbours in one file, of about `target` bytes on disk each."""
    groups = np.flatnonzero(index.group_rows)
    ends = np.cumsum(index.group_disk_bytes[groups])
    slots = ends // target
    files = index.group_file[groups]
    cuts = np.flatnonzero((np.diff(slots) != 0) | (np.diff(files) != 0)) + 1
    return np.split(groups, cuts)

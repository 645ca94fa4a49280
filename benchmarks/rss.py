"""Measure what a process holds that reads row groups of 1 GB with ``memory="256 MiB"``, and how fast it is.

Run ``python benchmarks/rss.py`` (``--megabytes 128`` for a quick try: row groups of that size). It makes one file
of two row groups for each kind of data, about 4 GB in all, and keeps them.

- *narrow*: 28 float32 and a label, without dictionaries; *text*: an id, and about 500 bytes of words;
  *images*: 784 bytes as ``binary``; *lists*: the same as ``fixed_size_list<uint8>[784]``, a quarter of the size;
  *dictionary*: eight columns of a few thousand different strings, small on disk.
- Each run is a fresh process over a warm page cache, and reads one epoch, dropping each batch.
- *peak RSS*: most that the process held resident, less what it held after its imports.
- *CPU ÷ iter_batches*: CPU seconds, which tell more than speed where other programs run.
- *before the first batch*: bytes that the process asked of files until the first batch came.
- *scan*: pyarrow alone, two threads, a whole row group each, as ``corgiarrow bench`` scans; *iter_batches*: the same
  a few thousand rows at a time, the fastest way to read such files and in little memory, but in file order, two places
  at a time. Rounds are interleaved; a ratio is of the medians; memory is the most of all rounds.
"""

import argparse
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import data
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MEMORY = "256 MiB"
MEMORY_BYTES = 256 * 2**20
RSS_GOAL = 1.3
FIRST_GOAL_MB = 64
SPEED_GOAL = 0.8
ROW_GROUPS = 2
MODES = ("none", "corgipile")
SCAN, STREAM = "scan", "iter_batches"
PIXELS = 784
SCAN_ROWS = 16_384
SCAN_BUFFER_BYTES = 64 * 1024
PART_ROWS = 8_192
"""Rows that are made at a time."""


def narrow(rng: np.random.Generator, rows: int, first: int) -> pa.RecordBatch:
    """28 float32 and a label, 116 bytes a row."""
    columns = {f"f{c}": rng.standard_normal(rows, dtype=np.float32) for c in range(28)}
    return pa.record_batch(columns | {"label": ((first + np.arange(rows)) >> 16).astype(np.int32)})


def text(rng: np.random.Generator, rows: int, first: int) -> pa.RecordBatch:
    """An id and words of a vocabulary, the more frequent first: about 500 bytes a row."""
    words = rng.integers(10, 120, rows)
    ends = np.concatenate([[0], np.cumsum(words)]).astype(np.int32)
    # By the logarithm, about as often as words are in natural text.
    vocabulary = _words(20_001, 2, 10)
    which = (len(vocabulary) ** rng.random(int(ends[-1]))).astype(np.int32)
    lists = pa.ListArray.from_arrays(pa.array(ends), vocabulary.take(pa.array(which)))
    return pa.record_batch({"id": first + np.arange(rows), "text": pc.binary_join(lists, " ")})


def images(rng: np.random.Generator, rows: int, first: int) -> pa.RecordBatch:
    """Bytes of 784 pixels."""
    pixels = _pixels(rng, rows)
    ends = np.arange(rows + 1, dtype=np.int32) * PIXELS
    column = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(ends), pa.py_buffer(pixels)])
    return pa.record_batch({"label": (first + np.arange(rows)) >> 16, "image": column})


def lists(rng: np.random.Generator, rows: int, first: int) -> pa.RecordBatch:
    """784 pixels as a list of fixed size."""
    column = pa.FixedSizeListArray.from_arrays(pa.array(_pixels(rng, rows)), PIXELS)
    return pa.record_batch({"label": (first + np.arange(rows)) >> 16, "image": column})


def dictionary(rng: np.random.Generator, rows: int, first: int) -> pa.RecordBatch:
    """Eight columns of about 60 bytes, of 3,000 values each."""
    strings = _words(3_000, 50, 70)
    return pa.record_batch({f"s{c}": strings.take(pa.array(rng.integers(0, 3_000, rows))) for c in range(8)})


def _pixels(rng: np.random.Generator, rows: int) -> npt.NDArray[np.uint8]:
    # Noise, as of photographs that are compressed already: a compressor finds little.
    return rng.integers(0, 256, rows * PIXELS, dtype=np.uint8) & np.uint8(0x3C)


@cache
def _words(count: int, least: int, most: int) -> pa.Array:
    rng = np.random.default_rng(1)
    alphabet = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    return pa.array(["".join(rng.choice(alphabet, rng.integers(least, most))) for _ in range(count)])


KINDS: dict[str, tuple[Callable[[np.random.Generator, int, int], pa.RecordBatch], float]] = {
    "narrow": (narrow, 1.0),
    "text": (text, 1.0),
    "images": (images, 1.0),
    "lists": (lists, 0.25),
    "dictionary": (dictionary, 1.0),
}
"""How to make rows of each kind, and the size of its row groups."""


def make(kind: str, beside: Path, megabytes: int) -> None:
    """Write a file; a row group is held in memory at a time."""
    rows_of, size = KINDS[kind]
    rng = np.random.default_rng(0)
    first = 0
    writer = None
    for _ in range(ROW_GROUPS):
        parts: list[pa.RecordBatch] = []
        held = 0
        while held < size * megabytes * 1e6:
            parts.append(rows_of(rng, PART_ROWS, first))
            first += PART_ROWS
            held += parts[-1].nbytes
        table = pa.Table.from_batches(parts)
        writer = writer or pq.ParquetWriter(beside, table.schema, use_dictionary=kind != "narrow")
        writer.write_table(table, row_group_size=table.num_rows)
    assert writer is not None
    writer.close()


def file_of(kind: str, folder: Path, megabytes: int) -> Path:
    """Return the file of a kind, which a process of its own makes unless it is there."""

    def write(beside: Path) -> None:
        _fresh("make", kind, beside, str(megabytes))

    return data.made_once(folder / f"rss-{kind}-{megabytes}.parquet", write)


def plain(path: Path, mode: str) -> int:
    """Read the row groups of a file by pyarrow alone, each in a thread of its own; return how many rows came."""
    footer = pq.read_metadata(path)
    rows = [0] * footer.num_row_groups

    def work(group: int) -> None:
        size = 0 if mode == SCAN else SCAN_BUFFER_BYTES
        with pq.ParquetFile(path, metadata=footer, pre_buffer=False, buffer_size=size) as file:
            if mode == SCAN:
                rows[group] = file.read_row_group(group, use_threads=False).num_rows
                return
            for batch in file.iter_batches(SCAN_ROWS, row_groups=[group], use_threads=False):
                rows[group] += batch.num_rows

    workers = [threading.Thread(target=work, args=(g,)) for g in range(footer.num_row_groups)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(rows)


def measure(path: Path, mode: str) -> dict[str, float]:
    """Read a file in this process once."""
    import corgiarrow as ca

    pa.array([0])  # So that the allocator is there.
    before = data.memory_status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew.
    read_before = _bytes_asked()
    cpu_before, began = time.process_time(), time.perf_counter()
    found: dict[str, float] = {}
    rows = allocated = 0
    if mode in (SCAN, STREAM):
        rows = plain(path, mode)
    else:
        reader = ca.Reader(path, shuffle=mode, memory=MEMORY, threads=2)
        for batch in reader:
            if not rows:
                found["first_batch_s"] = time.perf_counter() - began
                found["first_asked_bytes"] = _bytes_asked() - read_before
                found["first_fetched_bytes"] = reader.stats.fetched_bytes
            rows += batch.num_rows
            del batch
            allocated = max(allocated, pa.total_allocated_bytes())
        found["booked_peak_bytes"] = reader.stats.peak_bytes
        found["expected_rows"] = reader.num_rows
        if rows != reader.num_rows:
            raise SystemExit(f"{path}, {mode}: {rows} rows came, {reader.num_rows} should")
        plan = reader.plan()
        found["pieces"] = 0 if plan.pieces is None else int(plan.pieces.sum())
        found["buffer_pieces"] = reader.buffer_blocks
        found["open_row_groups"] = plan.open_blocks
        found["sampled_arrow_bytes"] = allocated
    seconds = time.perf_counter() - began
    cpu_s = time.process_time() - cpu_before
    peak = data.memory_status("VmHWM")
    return found | {
        "rows": rows,
        "seconds": seconds,
        "cpu_s": cpu_s,
        "asked_bytes": _bytes_asked() - read_before,
        "imported_bytes": before,
        "peak_bytes": peak - before,
        "largest_ever_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "arrow_peak_bytes": pa.default_memory_pool().max_memory(),
    }


def _bytes_asked() -> int:
    """Bytes that this process asked of files so far."""
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])


def _fresh(task: str, *arguments: str | Path) -> str:
    return data.in_fresh_process(__file__, "--task", task, *arguments)


def line_of(kind: str, mode: str, runs: dict[str, list[dict[str, float]]]) -> list[str]:
    """Return the table's line of one kind and mode."""
    speeds = {m: median(r["rows"] / r["seconds"] for r in each) for m, each in runs.items()}
    peak = max(r["peak_bytes"] for r in runs[mode])
    line = [kind, mode, f"{peak / 2**20:.0f}"]
    if mode in (SCAN, STREAM):
        return [*line, "–", "–", "–", "–", f"{speeds[mode] / 1e3:.0f}", "–", "–", "–", ""]
    first = max(r["first_asked_bytes"] for r in runs[mode]) / 1e6
    ratio, speed = peak / MEMORY_BYTES, speeds[mode] / speeds[SCAN]
    missed = [
        name
        for name, bad in (
            ("RSS", ratio > RSS_GOAL),
            ("first", first > FIRST_GOAL_MB),
            ("speed", speed < SPEED_GOAL),
        )
        if bad
    ]
    return [
        *line,
        f"{ratio:.2f}",
        f"{max(r['arrow_peak_bytes'] for r in runs[mode]) / 2**20:.0f}",
        f"{max(r['booked_peak_bytes'] for r in runs[mode]) / 2**20:.0f}",
        f"{first:.1f}",
        f"{speeds[mode] / 1e3:.0f}",
        f"{speed:.2f}",
        f"{speeds[mode] / speeds[STREAM]:.2f}",
        f"{median(r['cpu_s'] for r in runs[mode]) / median(r['cpu_s'] for r in runs[STREAM]):.2f}",
        "MISSED " + ", ".join(missed) if missed else "reached",
    ]


def main() -> None:
    parser = data.parser(__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--megabytes", type=int, default=1_000, help="size of a row group in memory (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--task", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        task, first, second, *more = arguments.task
        if task == "make":
            make(first, Path(second), int(more[0]))
        else:
            json.dump(measure(Path(first), second), sys.stdout)
        return
    purge = os.environ.get("MIMALLOC_PURGE_DELAY", "unset")
    print(f"memory={MEMORY!r}, MIMALLOC_PURGE_DELAY {purge}; {data.machine()}\n")
    figures: dict[str, Any] = {}
    lines = []
    for kind in arguments.kinds:
        path = file_of(kind, arguments.data, arguments.megabytes)
        data.warm_page_cache(path)
        print(f"{path.name}: {path.stat().st_size / 1e6:.0f} MB, {pq.read_metadata(path).num_rows} rows", flush=True)
        runs: dict[str, list[dict[str, float]]] = {mode: [] for mode in (*MODES, SCAN, STREAM)}
        for _ in range(arguments.rounds):
            for mode, each in runs.items():
                each.append(json.loads(_fresh("measure", path, mode)))
        figures[kind] = {"file_bytes": path.stat().st_size, "runs": runs}
        lines += [line_of(kind, mode, runs) for mode in runs]
        data.print_table(HEAD, lines[-len(runs) :])
    data.print_table(HEAD, lines)
    data.save_json(arguments.json, {"megabytes": arguments.megabytes, "kinds": figures})


HEAD = [
    "kind",
    "shuffle",
    "peak RSS MiB",
    f"÷ 256 MiB (≤ {RSS_GOAL})",
    "Arrow peak MiB",
    "booked MiB",
    f"read before the first batch MB (≤ {FIRST_GOAL_MB})",
    "krow/s",
    f"÷ scan (≥ {SPEED_GOAL})",
    "÷ iter_batches",
    "CPU ÷ iter_batches",
    "",
]


if __name__ == "__main__":
    main()

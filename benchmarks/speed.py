"""Measure ``none`` against a plain scan, and ``corgipile`` against ``none``; and what they hold in memory.

Run ``python benchmarks/speed.py`` (``--rows 400000 --rounds 2`` for a quick try).

- *scan*: threads that each take the next row group and decode it, all columns at once; *scan by 4*: the same,
  but four columns at a time, which is faster because the data stay in the CPU's cache: a harder baseline.
- *waiting*: the consumer sleeps for twice ``none``'s time a batch, as if a GPU were at work.
- Rounds are interleaved (A, B, A, B …), the first one is dropped; a ratio is the median of the rounds'
  ratios.
- All of it in one fresh process for each setting of ``MIMALLOC_PURGE_DELAY``, which Arrow's allocator reads
  when pyarrow is imported: *unset* returns freed memory to the system and faults it in again; *-1* never
  returns it ("memory warm"). The goals are for memory warm.
- *peak*: most bytes that Arrow's memory pool held in one pass, of a consumer that keeps one batch.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import data
import pyarrow as pa
import pyarrow.parquet as pq

import corgiarrow as ca

GOALS = {
    "none@128 ÷ scan": 0.95,
    "corgipile@128 ÷ none@128": 0.73,
    "corgipile@512 ÷ none@512": 0.65,
    "corgipile@128 waiting ÷ none@128 waiting": 0.92,
}
RATIOS = [
    ("none@128", "scan"),
    ("none@128", "scan by 4"),
    ("none@512", "scan"),
    ("corgipile@128", "none@128"),
    ("corgipile@512", "none@512"),
    ("corgipile@128 waiting", "none@128 waiting"),
]
MEMORY = {"128": "128 MiB", "512": "512 MiB"}
PEAK_GOAL = 128 * 2**20
SETTINGS = {"unset": None, "-1": "-1"}

_KEPT_POOLS: list[pa.MemoryPool] = []
"""Kept for the process's life: one that is destroyed while memory of it is alive ends the process."""


def scan(path: Path, footer: pq.FileMetaData, threads: int, at_once: int) -> None:
    """Decode every row group once, `at_once` columns at a time, and throw it away."""
    groups = iter(range(footer.num_row_groups))
    lock = threading.Lock()
    names = footer.schema.to_arrow_schema().names
    parts = [names[i : i + at_once] for i in range(0, len(names), at_once)]
    faults: list[BaseException] = []

    def work() -> None:
        try:
            while True:
                with lock:
                    group = next(groups, None)
                if group is None:
                    return
                with pq.ParquetFile(path, metadata=footer, pre_buffer=False, buffer_size=0) as file:
                    for part in parts:
                        columns = None if len(parts) == 1 else part
                        file.read_row_group(group, columns=columns, use_threads=False)
        except BaseException as fault:  # noqa: BLE001 - raised again by the thread that waits
            faults.append(fault)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if faults:
        raise faults[0]


def consume(reader: ca.Reader, wait_s: float = 0.0) -> int:
    """Run through an epoch, waiting `wait_s` a batch on average; return the rows."""
    rows = 0
    owed = 0.0
    for batch in reader:
        rows += batch.num_rows
        if wait_s:
            # A sleep takes longer than asked: what it was too long is taken off the next.
            owed += wait_s
            began = time.perf_counter()
            time.sleep(max(owed, 0))
            owed -= time.perf_counter() - began
    return rows


def interleaved(cases: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each case in each round but the first."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, run in cases.items():
            gc.collect()
            began = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def peak_bytes(run: Callable[[], object]) -> int:
    """Most bytes that Arrow held during `run`."""
    base = pa.default_memory_pool()
    proxy = pa.proxy_memory_pool(base)
    _KEPT_POOLS.append(proxy)
    pa.set_memory_pool(proxy)
    try:
        run()
        gc.collect()
        return int(proxy.max_memory())
    finally:
        pa.set_memory_pool(base)


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure everything in this process."""
    path = data.floats(arguments.data, arguments.rows, use_dictionary=not arguments.plain)
    data.warm_page_cache(path)
    footer = pq.read_metadata(path)
    index = ca.BlockIndex.build(path)

    def reader(shuffle: str, size: str) -> ca.Reader:
        return ca.Reader(
            index, shuffle=shuffle, memory=MEMORY[size], batch_size=1024, threads=arguments.threads
        )

    readers = {f"{s}@{m}": reader(s, m) for m in MEMORY for s in ("none", "corgipile")}
    width = footer.num_columns
    cases: dict[str, Callable[[], object]] = {
        "scan": lambda: scan(path, footer, arguments.threads, width),
        "scan by 4": lambda: scan(path, footer, arguments.threads, 4),
        **{name: (lambda r=r: consume(r)) for name, r in readers.items()},
    }
    seconds = interleaved(cases, arguments.rounds)
    wait_s = 2 * median(seconds["none@128"]) / len(readers["none@128"])
    waiting = {
        f"{s}@128 waiting": (lambda r=readers[f"{s}@128"]: consume(r, wait_s)) for s in ("none", "corgipile")
    }
    seconds |= interleaved(waiting, max(arguments.rounds // 2, 1))
    peaks = {
        name: peak_bytes(lambda s=s, m=m: consume(reader(s, m)))
        for m in MEMORY
        for s in ("none", "corgipile")
        for name in [f"{s}@{m}"]
    }
    allocated = []
    flat = reader("corgipile", "128")
    for _ in range(5):
        consume(flat)
        gc.collect()
        allocated.append(pa.total_allocated_bytes())
    return {
        "wait_ms": 1000 * wait_s,
        "seconds": seconds,
        "rows": footer.num_rows,
        "buffer_blocks": {name: r.buffer_blocks for name, r in readers.items()},
        "peak_bytes": peaks,
        "booked_peak_bytes": {name: r.stats.peak_bytes for name, r in readers.items()},
        "allocated_after_epochs": allocated,
    }


def in_fresh_process(setting: str | None, command: list[str]) -> dict[str, Any]:
    """Measure in a new process, with a setting of MIMALLOC_PURGE_DELAY."""
    environment = {k: v for k, v in os.environ.items() if k != "MIMALLOC_PURGE_DELAY"}
    if setting is not None:
        environment["MIMALLOC_PURGE_DELAY"] = setting
    done = subprocess.run(
        [sys.executable, __file__, *command, "--here"],
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def report(name: str, found: dict[str, Any]) -> dict[str, float]:
    """Print one setting's tables; return the ratios."""
    seconds, rows = found["seconds"], found["rows"]
    warm = name == "-1"
    print(
        f"MIMALLOC_PURGE_DELAY {name}{' (memory warm)' if warm else ''}; rounds: {len(seconds['scan'])}; "
        f"blocks a buffer: {found['buffer_blocks']}; wait {found['wait_ms']:.3f} ms a batch\n"
    )
    data.print_table(
        ["case", "median s", "min s", "max s", "Mrow/s"],
        [
            [case, f"{median(s):.3f}", f"{min(s):.3f}", f"{max(s):.3f}", f"{rows / median(s) / 1e6:.2f}"]
            for case, s in seconds.items()
        ],
    )
    ratios = {}
    lines = []
    for case, base in RATIOS:
        each = [b / a for a, b in zip(seconds[case], seconds[base], strict=True)]
        title = f"{case} ÷ {base}"
        ratios[title] = median(each)
        goal = GOALS.get(title)
        verdict = "" if goal is None or not warm else ("reached" if ratios[title] >= goal else "MISSED")
        lines.append(
            [
                title,
                f"{ratios[title]:.3f}",
                f"{min(each):.3f} – {max(each):.3f}",
                f"≥ {goal}" if goal else "",
                verdict,
            ]
        )
    data.print_table(["speed", "ratio", "rounds", "goal (memory warm)", ""], lines)
    lines = []
    for case, peak in found["peak_bytes"].items():
        goal = PEAK_GOAL if case.endswith("@128") else None
        verdict = "" if goal is None else ("reached" if peak <= goal else "MISSED")
        lines.append(
            [
                case,
                f"{peak / 2**20:.1f}",
                f"{found['booked_peak_bytes'][case] / 2**20:.1f}",
                f"≤ {goal / 2**20:.0f}" if goal else "",
                verdict,
            ]
        )
    data.print_table(["Arrow memory", "peak MiB", "booked MiB", "goal", ""], lines)
    print(f"bytes allocated after each of 5 epochs (goal: flat): {found['allocated_after_epochs']}\n")
    return ratios


def main() -> None:
    parser = data.parser(__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument(
        "--rounds", type=int, default=7, help="measured rounds, after one to warm up (%(default)s)"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--plain", action="store_true", help="read data that were written without dictionaries"
    )
    parser.add_argument("--purge", choices=[*SETTINGS], help="only this setting of MIMALLOC_PURGE_DELAY")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.here:
        json.dump(measure(arguments), sys.stdout)
        sys.stdout.flush()
        os._exit(0)  # The interpreter's own exit would destroy proxy pools in any order.
    path = data.floats(arguments.data, arguments.rows, use_dictionary=not arguments.plain)
    print(f"{path.name}: {path.stat().st_size / 2**20:.0f} MiB, {arguments.threads} threads\n", flush=True)
    command = [
        f"--data={arguments.data}",
        f"--rows={arguments.rows}",
        f"--rounds={arguments.rounds}",
        f"--threads={arguments.threads}",
        *(["--plain"] if arguments.plain else []),
    ]
    figures: dict[str, Any] = {
        "threads": arguments.threads,
        "plain": arguments.plain,
        "goals": GOALS,
        "purge": {},
    }
    for name in [arguments.purge] if arguments.purge else SETTINGS:
        found = in_fresh_process(SETTINGS[name], command)
        figures["purge"][name] = {"ratios": report(name, found), **found}
    data.save_json(arguments.json, figures)


if __name__ == "__main__":
    main()

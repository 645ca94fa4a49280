"""Make the data that the benchmarks read, once; describe the machine; print and save figures.

Run ``python benchmarks/data.py --data FOLDER`` to make all of it ahead of time; the other scripts make what
they need.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

DEFAULT_FOLDER = Path(tempfile.gettempdir()) / "corgiarrow-bench"
CLASSES = 10


def floats(
    folder: Path,
    rows: int = 4_000_000,
    columns: int = 28,
    row_group: int = 65_536,
    *,
    use_dictionary: bool = True,
) -> Path:
    """Return a file of float32 standard normal ``f0`` … and an int32 ``label``, sorted, of ten classes.

    zstd, else pyarrow's default writer options. Its defaults encode floats by dictionary first, which makes
    such data larger and slower to read; ``use_dictionary=False`` is the better way to write it.
    """
    kind = "dictionary" if use_dictionary else "plain"
    names = [f"f{c}" for c in range(columns)]
    schema = pa.schema([*((name, pa.float32()) for name in names), ("label", pa.int32())])

    def write(beside: Path) -> None:
        rng = np.random.default_rng(0)
        with pq.ParquetWriter(beside, schema, compression="zstd", use_dictionary=use_dictionary) as writer:
            for start in range(0, rows, row_group):
                count = min(row_group, rows - start)
                features = [pa.array(rng.standard_normal(count, dtype=np.float32)) for _ in names]
                label = (np.arange(start, start + count) * CLASSES // rows).astype(np.int32)
                writer.write_table(
                    pa.Table.from_arrays([*features, pa.array(label)], schema=schema), row_group
                )

    return made_once(folder / f"floats-{rows}x{columns}-{row_group}-{kind}.parquet", write)


def many_files(folder: Path, files: int = 4_000, row_groups: int = 10, rows: int = 100) -> Path:
    """Return a folder of small files, of `row_groups` row groups of `rows` rows: four float32 and a label."""

    def write(beside: Path) -> None:
        beside.mkdir()
        rng = np.random.default_rng(0)
        count = row_groups * rows
        for number in range(files):
            table = pa.table(
                {
                    **{f"f{c}": rng.standard_normal(count, dtype=np.float32) for c in range(4)},
                    "label": np.full(count, number * CLASSES // files, dtype=np.int32),
                }
            )
            pq.write_table(
                table, beside / f"part-{number:06}.parquet", row_group_size=rows, compression="zstd"
            )

    return made_once(folder / f"many-{files}x{row_groups}x{rows}", write)


def made_once(target: Path, write: Callable[[Path], None]) -> Path:
    """Make a file or folder unless it is there: beside, then renamed, so that it is whole or not there."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        write(beside)
        beside.replace(target)
    finally:
        if beside.is_dir():
            shutil.rmtree(beside)
        else:
            beside.unlink(missing_ok=True)
    return target


def warm_page_cache(path: Path) -> None:
    """Read a file through, so that its pages are in memory."""
    with path.open("rb", buffering=0) as file:
        while file.read(2**24):
            pass


def drop_page_cache(path: Path) -> None:
    """Ask the system to forget a file's pages (a virtual machine's host may still hold them)."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def machine() -> dict[str, Any]:
    """Describe machine, date and versions."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line
        ]
        cpu = names[0] if names else cpu
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": platform.platform(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "numpy": np.__version__,
    }


def memory_status(key: str) -> int:
    """Return a size of this process in bytes from ``/proc/self/status``: ``VmRSS`` now, ``VmHWM`` at most."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {key}")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks share."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--data", type=Path, default=DEFAULT_FOLDER, help="cache folder of the data (%(default)s)"
    )
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    return made


def print_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table; numbers are aligned to the right."""
    lines = [[str(cell) for cell in line] for line in (head, *rows)]
    widths = [max(len(line[c]) for line in lines) for c in range(len(head))]
    right = [
        bool(rows) and all(line[c][:1] in "0123456789-–≥≤" for line in lines[1:]) for c in range(len(head))
    ]
    for number, line in enumerate(lines):
        cells = [
            cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(line, widths, right, strict=True)
        ]
        print(f"| {' | '.join(cells)} |")
        if not number:
            dashes = ["-" * (w + 1) + (":" if r else "-") for w, r in zip(widths, right, strict=True)]
            print(f"|{'|'.join(dashes)}|")
    print(flush=True)


def save_json(path: Path | None, figures: dict[str, Any]) -> None:
    """Write figures and the machine's description to `path`, unless it is None."""
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), **figures}, indent=1) + "\n")
        print(f"figures: {path}")


def main() -> None:
    arguments = parser(__doc__).parse_args()
    for path in (
        floats(arguments.data),
        floats(arguments.data, use_dictionary=False),
        many_files(arguments.data),
    ):
        print(path)


if __name__ == "__main__":
    main()


def in_fresh_process(script: str, *arguments: object) -> str:
    """Run a benchmark's script anew; return what it prints."""
    command = [sys.executable, script, *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

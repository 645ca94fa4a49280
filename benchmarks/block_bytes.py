"""Measure the throughput of random block reads against the size of a block, on a local disk.

Run ``python benchmarks/block_bytes.py`` (``--megabytes 20`` for a quick try). It is what
``corgiarrow.index.DEFAULT_BLOCK_BYTES`` is chosen by.

- *row groups*: a file for each size, every block one row group (``shuffle="block"``, no merging).
- *merged*: one file of the smallest row groups, merged by ``block_bytes=`` (here also below 1,000 blocks,
  where the library would not merge any more).
- *cold*: the page cache is told to forget the file before each pass. A disk of a virtual machine may still be
  cached by its host, so cold figures tell more about a request's price than about a real disk's.
- Rounds are interleaved, the first is dropped.
"""

import gc
import time
from pathlib import Path
from statistics import median
from typing import Any

import data

import corgiarrow as ca
import corgiarrow.index

SIZES_MB = (0.1, 0.25, 0.5, 1, 2, 4, 8, 16)
COLUMNS = 28


def bytes_a_row(folder: Path, use_dictionary: bool) -> float:
    """Bytes on disk of one row, from a small file."""
    path = data.floats(folder, 65_536, COLUMNS, 16_384, use_dictionary=use_dictionary)
    return path.stat().st_size / 65_536


def one_pass(index: ca.BlockIndex, block_bytes: int, threads: int, cold: Path | None) -> tuple[float, int]:
    """Return seconds and blocks of one pass over all blocks in random order."""
    reader = ca.Reader(
        index, shuffle="block", block_bytes=block_bytes, memory="512 MiB", batch_size=4096, threads=threads
    )
    if cold is not None:
        data.drop_page_cache(cold)
    gc.collect()
    began = time.perf_counter()
    for _ in reader:
        pass
    return time.perf_counter() - began, len(reader.source.block_rows)


def main() -> None:
    parser = data.parser(__doc__)
    parser.add_argument("--megabytes", type=int, default=128, help="size of each file (%(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=7, help="measured rounds, after one to warm up (%(default)s)"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES_MB, metavar="MB")
    parser.add_argument("--plain", action="store_true", help="write the data without dictionaries")
    arguments = parser.parse_args()
    corgiarrow.index.MIN_BLOCKS = 1
    row_bytes = bytes_a_row(arguments.data, not arguments.plain)
    rows = int(arguments.megabytes * 1e6 / row_bytes)
    kinds: dict[str, tuple[Path, ca.BlockIndex, int]] = {}
    for size in arguments.sizes:
        group = max(int(size * 1e6 / row_bytes), 1)
        path = data.floats(arguments.data, rows, COLUMNS, group, use_dictionary=not arguments.plain)
        index = ca.BlockIndex.build(path)
        kinds[f"row groups {size:g}"] = (path, index, 1)
    path, index, _ = next(iter(kinds.values()))
    for size in arguments.sizes[1:]:
        kinds[f"merged {size:g}"] = (path, index, int(size * 1e6))
    seconds: dict[str, dict[str, list[float]]] = {k: {"warm": [], "cold": []} for k in kinds}
    blocks: dict[str, int] = {}
    for number in range(arguments.rounds + 1):
        for name, (path, index, block_bytes) in kinds.items():
            for state in ("cold", "warm"):  # What the cold pass read makes the warm one warm.
                taken, blocks[name] = one_pass(
                    index, block_bytes, arguments.threads, path if state == "cold" else None
                )
                if number:
                    seconds[name][state].append(taken)
    lines = []
    figures: list[dict[str, Any]] = []
    for name, (path, index, block_bytes) in kinds.items():
        size = path.stat().st_size / 1e6
        figure: dict[str, Any] = {
            "kind": name,
            "block_bytes": block_bytes,
            "blocks": blocks[name],
            "file_mb": size,
            "seconds": seconds[name],
        }
        speeds = []
        for state in ("warm", "cold"):
            middle = median(seconds[name][state])
            figure[f"{state}_mb_s"] = size / middle
            speeds += [f"{size / middle:.0f}", f"{index.num_rows / middle / 1e6:.2f}"]
        figures.append(figure)
        lines.append([name, blocks[name], f"{size / blocks[name]:.2f}", *speeds])
    best = {s: max(f[f"{s}_mb_s"] for f in figures) for s in ("warm", "cold")}
    for line, figure in zip(lines, figures, strict=True):
        line += [f"{figure['warm_mb_s'] / best['warm']:.2f}", f"{figure['cold_mb_s'] / best['cold']:.2f}"]
    head = [
        "kind, MB",
        "blocks",
        "MB a block",
        "warm MB/s",
        "warm Mrow/s",
        "cold MB/s",
        "cold Mrow/s",
        "warm ÷ best",
        "cold ÷ best",
    ]
    print(
        f"{rows} rows, {row_bytes:.0f} bytes a row on disk, {'plain' if arguments.plain else 'dictionary'}, "
        f"{arguments.threads} threads\n"
    )
    data.print_table(head, lines)
    data.save_json(arguments.json, {"threads": arguments.threads, "plain": arguments.plain, "sizes": figures})


if __name__ == "__main__":
    main()

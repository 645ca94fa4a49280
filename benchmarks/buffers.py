"""Measure the time a row of ``corgipile`` against the blocks that a buffer merges.

Run ``python benchmarks/buffers.py`` (``--rows 200000 --rounds 1`` for a quick try). Shuffling gathers each
column at random places, so a buffer whose columns outgrow the CPU's cache costs more a row. Nothing consumes;
the page cache is warm; rounds are interleaved, the first is dropped. Set ``MIMALLOC_PURGE_DELAY=-1`` to
measure with memory warm.
"""

import os
from statistics import median
from typing import Any

import data
from speed import consume, interleaved

import corgiarrow as ca

BUFFERS = (2, 4, 8, 16, 32, 64, 100, 200)


def main() -> None:
    parser = data.parser(__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--row-group", type=int, default=8_192, help="rows of a row group, which is a block")
    parser.add_argument(
        "--rounds", type=int, default=3, help="measured rounds, after one to warm up (%(default)s)"
    )
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    path = data.floats(arguments.data, arguments.rows, row_group=arguments.row_group)
    data.warm_page_cache(path)
    index = ca.BlockIndex.build(path)

    def reader(**options: Any) -> ca.Reader:
        return ca.Reader(index, block_bytes=1, threads=arguments.threads, **options)

    readers = {"none": reader(shuffle="none")}
    num_blocks = len(readers["none"].source.block_rows)
    readers |= {f"corgipile {n}": reader(buffer_blocks=n) for n in BUFFERS if n <= num_blocks}
    seconds = interleaved({name: (lambda r=r: consume(r)) for name, r in readers.items()}, arguments.rounds)
    print(
        f"{num_blocks} blocks of {arguments.row_group} rows, {arguments.threads} threads, "
        f"MIMALLOC_PURGE_DELAY={os.environ.get('MIMALLOC_PURGE_DELAY', 'unset')}\n"
    )
    base = median(seconds["none"])
    lines = []
    for name, each in seconds.items():
        stats = readers[name].stats
        values = 4 * arguments.row_group * readers[name].buffer_blocks / 2**20
        lines.append(
            [
                name,
                "" if name == "none" else f"{values:.2f}",
                f"{median(each) / arguments.rows * 1e9:.0f}",
                f"{min(each) / arguments.rows * 1e9:.0f}",
                f"{base / median(each):.2f}",
                f"{1e9 * stats.decode_s / stats.rows:.0f}",
                f"{1e9 * stats.shuffle_s / stats.rows:.0f}",
                f"{stats.peak_bytes / 2**20:.0f}",
            ]
        )
    head = [
        "strategy, blocks",
        "column MiB",
        "ns a row",
        "min",
        "speed ÷ none",
        "decode ns",
        "shuffle ns",
        "booked MiB",
    ]
    data.print_table(head, lines)
    data.save_json(
        arguments.json,
        {
            "rows": arguments.rows,
            "row_group": arguments.row_group,
            "threads": arguments.threads,
            "purge": os.environ.get("MIMALLOC_PURGE_DELAY"),
            "seconds": seconds,
        },
    )


if __name__ == "__main__":
    main()

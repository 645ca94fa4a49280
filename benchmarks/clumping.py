"""Measure how clumped batches are: buffers of whole row groups against reading them in pieces, in the same memory.

Run ``python benchmarks/clumping.py``. One file of 16 row groups of a million rows, sorted by a label of 20 classes.
Only orders are drawn: of the file, nothing but the footer is read.

- *clumping*: for a batch of B rows, the squared differences of its labels' shares from those of all rows, over what
  B independent draws would give: Σ (share − p)² ÷ (Σ p (1 − p) ÷ B); the mean over all whole batches. 1 is as good as
  independent draws; sorted rows have about B.
- *whole*: as many whole row groups a buffer as the memory holds; *in pieces*: what ``Reader(memory=…)`` chooses.
- *epoch*: a permutation of all rows, for comparison.
"""

from pathlib import Path
from statistics import mean

import data
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

import corgiarrow as ca
from corgiarrow import budget, quality
from corgiarrow.plan import EpochPlan
from corgiarrow.strategies import BY_NAME

LABELS = 20
GROUP_ROWS = 1_000_000
ROW_GROUPS = 16


def sorted_rows(folder: Path) -> Path:
    """Return a file of four float32 and an int32 label, sorted by the label."""

    def write(beside: Path) -> None:
        rng = np.random.default_rng(0)
        schema = pa.schema([*((f"f{c}", pa.float32()) for c in range(4)), ("label", pa.int32())])
        with pq.ParquetWriter(beside, schema, use_dictionary=["label"]) as writer:
            for group in range(ROW_GROUPS):
                ids = np.arange(group * GROUP_ROWS, (group + 1) * GROUP_ROWS)
                features = [rng.standard_normal(GROUP_ROWS, dtype=np.float32) for _ in range(4)]
                table = pa.Table.from_arrays([*map(pa.array, [*features, labels_of(ids)])], schema=schema)
                writer.write_table(table, row_group_size=GROUP_ROWS)

    return data.made_once(folder / f"sorted-{ROW_GROUPS}x{GROUP_ROWS}-{LABELS}.parquet", write)


def labels_of(row_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
    """Labels of rows by their ids, int32 [rows]."""
    return (row_ids * LABELS // (ROW_GROUPS * GROUP_ROWS)).astype(np.int32)


def blocks_held(reader: ca.Reader, memory: str, strategy: str) -> int:
    """Most whole blocks that a buffer of `memory` merges; 0 where it does not hold one."""
    source = reader.source
    sizes = budget.Sizes(
        rows=source.block_rows,
        nbytes=source.block_bytes,
        decode_bytes=source.decode_bytes,
        largest_column=source.largest_column,
    )
    try:
        return budget.resolve(budget.Request(memory=memory), sizes, BY_NAME[strategy], 1).buffer_blocks
    except ca.BudgetError:
        return 0


def main() -> None:
    parser = data.parser(__doc__)
    parser.add_argument("--memory", nargs="+", default=["16 MiB", "32 MiB", "64 MiB", "128 MiB", "256 MiB"])
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--seeds", type=int, default=5, help="the mean of so many orders (%(default)s)")
    arguments = parser.parse_args()
    index = ca.BlockIndex.build(sorted_rows(arguments.data))
    seeds = range(arguments.seeds)
    lines, figures = [], {}

    targets = quality.targets_of(pa.array(labels_of(np.arange(ROW_GROUPS * GROUP_ROWS))), "label")

    def measured(plan: EpochPlan) -> float:
        return quality.clumping(targets, plan.tables())

    def reader(shuffle: str, seed: int, **buffer: str | int) -> ca.Reader:
        return ca.Reader(index, shuffle=shuffle, seed=seed, batch_size=arguments.batch_size, **buffer)  # type: ignore[arg-type]

    for memory in arguments.memory:
        chosen = reader("corgipile", 0, memory=memory)
        plan = chosen.plan()
        blocks = blocks_held(chosen, memory, "corgipile")
        whole = [measured(reader("corgipile", s, buffer_blocks=blocks).plan()) for s in seeds if blocks]
        pieces = [measured(reader("corgipile", s, memory=memory).plan()) for s in seeds]
        figures[memory] = {
            "whole_blocks": blocks,
            "whole_clumping": whole,
            "buffer_pieces": plan.buffer_blocks,
            "pieces": None if plan.pieces is None else plan.pieces.tolist(),
            "open_row_groups": None if plan.pieces is None else plan.open_blocks,
            "pieces_clumping": pieces,
        }
        pieces_in_all = 0 if plan.pieces is None else int(plan.pieces.sum())
        lines.append(
            [
                memory,
                blocks,
                f"{mean(whole):.1f}" if whole else "–",
                f"{plan.buffer_blocks} of {pieces_in_all}" if pieces_in_all else "– (whole)",
                plan.open_blocks if pieces_in_all else "–",
                f"{mean(pieces):.1f}",
                f"{mean(whole) / mean(pieces):.1f}" if whole else "–",
            ]
        )
    ideal = mean(measured(reader("epoch", s, memory="8 GiB").plan()) for s in seeds)
    megabytes = chosen.source.block_bytes.mean() / 1e6
    print(
        f"{ROW_GROUPS} row groups of {GROUP_ROWS:,} rows ({megabytes:.0f} MB in memory each), sorted by {LABELS} "
        "labels; "
        f"batches of {arguments.batch_size}; means of {arguments.seeds} seeds; epoch: {ideal:.2f}\n"
    )
    data.print_table(
        ["memory", "whole: n", "clumping", "pieces: in a buffer", "open row groups", "clumping", "whole ÷ pieces"],
        lines,
    )
    data.save_json(arguments.json, {"batch_size": arguments.batch_size, "epoch": ideal, "memory": figures})


if __name__ == "__main__":
    main()

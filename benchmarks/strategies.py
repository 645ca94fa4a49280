"""Measure strategies: how fast orders are made, `spread` beside `corgipile` in the same memory, and beside training.

Run ``python benchmarks/strategies.py`` (about 3 minutes). Everything that is compared runs in turn, round after round.

- *orders*: rows a second of ``EpochPlan.row_ids()``, 2M rows in 2,000 blocks, a tenth of them in the buffer.
- *spread*: 1M rows of 20 float32 and a label, sorted by it, in 1,000 row groups; batches of 256 rows. For each budget
  clumping of three epochs, rows a second without a consumer, with one that takes 0.5 ms a batch, and the peak of what
  was booked as a part of the budget.
- *training*: the seconds of an epoch of per-row SGD (scikit-learn's ``SGDClassifier``) on the same file, `corgipile`
  with a tenth of the blocks over `none`.
"""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from typing import Any

import data
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.linear_model import SGDClassifier

import corgiarrow as ca
from corgiarrow import quality
from corgiarrow.strategies import BY_NAME

ROWS, BLOCKS, COLUMNS, CLASSES = 1_000_000, 1_000, 20, 10
BATCH = 256
CONSUMER_S = 0.0005


def table(folder: Path) -> Path:
    """Return a file of float32 ``f0`` …, shifted by the label, and an int32 ``label``, sorted by it."""

    def write(beside: Path) -> None:
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((CLASSES, COLUMNS), dtype=np.float32)
        names = [f"f{c}" for c in range(COLUMNS)]
        schema = pa.schema([*((name, pa.float32()) for name in names), ("label", pa.int32())])
        each = ROWS // BLOCKS
        with pq.ParquetWriter(beside, schema, use_dictionary=["label"]) as writer:
            for block in range(BLOCKS):
                label = block * CLASSES // BLOCKS
                values = rng.standard_normal((each, COLUMNS), dtype=np.float32) + centres[label]
                columns = [pa.array(values[:, c]) for c in range(COLUMNS)]
                labels = pa.array(np.full(each, label, dtype=np.int32))
                writer.write_table(pa.Table.from_arrays([*columns, labels], schema=schema))

    return data.made_once(folder / f"classes-{ROWS}x{COLUMNS}-{BLOCKS}.parquet", write)


def seconds(call: Callable[[], Any]) -> float:
    """Call something; return the seconds it took."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def orders(rounds: int) -> list[list[Any]]:
    """Time the making of orders."""
    rows = np.full(2_000, 1_000)
    lines = []
    for name in ("window", "mrs", "spread", "corgipile"):
        plan = ca.EpochPlan(rows, BY_NAME[name], 200, 0, 0, 1, BATCH)
        taken = median(seconds(plan.row_ids) for _ in range(rounds))
        lines.append([name, f"{plan.emitted_rows / taken / 1e6:.1f}"])
    return lines


def consume(reader: ca.Reader, each_s: float = 0.0) -> None:
    """Read an epoch."""
    for _ in reader:
        if each_s:
            time.sleep(each_s)


def spread(index: ca.BlockIndex, budgets: list[str], rounds: int) -> list[list[Any]]:
    """Compare `spread` with `corgipile`."""
    labels = pq.read_table(index.storage.full(index.files[0].path), columns=["label"])["label"]
    targets = quality.targets_of(labels, "label")
    lines = []
    for memory in budgets:
        readers = {
            name: ca.Reader(index, shuffle=name, memory=memory, batch_size=BATCH, block_bytes=1)
            for name in ("corgipile", "spread")
        }
        clumping = {
            name: mean(quality.clumping(targets, reader.plan(epoch).tables()) for epoch in range(3))
            for name, reader in readers.items()
        }
        taken: dict[tuple[str, float], list[float]] = {(n, s): [] for n in readers for s in (0.0, CONSUMER_S)}
        for _ in range(rounds + 1):
            for (name, each_s), found in taken.items():
                found.append(seconds(lambda r=readers[name], s=each_s: consume(r, s)))
        for name, reader in readers.items():
            ratio = [
                median(a / b for a, b in zip(taken["corgipile", s][1:], taken[name, s][1:], strict=True))
                for s in (0.0, CONSUMER_S)
            ]
            lines.append(
                [
                    memory,
                    name,
                    reader.buffer_blocks,
                    f"{clumping[name]:.2f}",
                    f"{clumping[name] / clumping['corgipile']:.2f}",
                    f"{ROWS / median(taken[name, 0.0][1:]) / 1e6:.2f}",
                    f"{ratio[0]:.2f}",
                    f"{ratio[1]:.2f}",
                    f"{reader.stats.peak_bytes / reader.memory_bytes:.2f}",
                ]
            )
    return lines


def training(index: ca.BlockIndex, rounds: int) -> float:
    """Return the ratio of an epoch with training, `corgipile` over `none`."""
    names = [f"f{c}" for c in range(COLUMNS)]

    def train(shuffle: str) -> None:
        model = SGDClassifier(loss="log_loss")
        with ca.Reader(index, shuffle=shuffle, buffer_fraction=0.1, batch_size=4096, block_bytes=1) as reader:
            for batch in ca.Loader(reader, stack={"x": names}):
                model.partial_fit(batch["x"], batch["label"], classes=np.arange(CLASSES))

    taken: dict[str, list[float]] = {"none": [], "corgipile": []}
    for _ in range(rounds + 1):
        for name, found in taken.items():
            found.append(seconds(lambda n=name: train(n)))
    return median(a / b for a, b in zip(taken["corgipile"][1:], taken["none"][1:], strict=True))


def main() -> None:
    parser = data.parser(__doc__)
    parser.add_argument("--memory", nargs="+", default=["8 MiB", "16 MiB"])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    index = ca.BlockIndex.build(table(arguments.data))
    made = orders(arguments.rounds)
    data.print_table(["strategy", "M rows/s of order"], made)
    lines = spread(index, arguments.memory, arguments.rounds)
    head = ["memory", "strategy", "n", "clumping", "÷ corgipile", "M rows/s", "÷ corgipile", "with a consumer", "peak"]
    data.print_table(head, lines)
    ratio = training(index, max(arguments.rounds // 2, 2))
    print(f"\nan epoch with training, corgipile ÷ none: {ratio:.3f}")
    data.save_json(arguments.json, {"orders": made, "spread": lines, "training": ratio})


if __name__ == "__main__":
    main()

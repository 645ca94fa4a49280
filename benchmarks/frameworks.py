"""Measure how fast tensors come: beside the reader's own batches, a bare scan, worker processes, and a rival.

Run ``python benchmarks/frameworks.py`` (``--rivals`` makes an environment with Hugging Face ``datasets`` and
measures it as well; ``--rounds 2`` for a quick try).

- The table: 1M rows of 28 float32 and 2 int64, sorted by label, 80 row groups of 12,500 rows, zstd; batches of 1,024;
  ``memory="64 MiB"``.
- *scan*: two threads that each decode the next row group whole, by pyarrow alone.
- *by hand*: what one writes with pyarrow and torch alone: row groups in random order, four at a time concatenated,
  permuted and cut into batches.
- *datasets*: ``load_dataset(streaming=True).with_format("torch").batch(1024)`` in a ``DataLoader(batch_size=None)``,
  the fastest way found, in file order; *datasets shuffled*: the same after ``.shuffle(buffer_size=1000)``.
- *2 processes*: ``corgiarrow.torch.loader(processes=2)``; *DataLoader, 2 workers*: a ``CorgiPileDataset`` in a
  ``DataLoader`` with persistent workers.
- Each entrant runs four epochs in a fresh process, and the median of the last three counts (*datasets*: one epoch);
  entrants in turn, the first round is dropped; a ratio is the median of the rounds' ratios.
- Images: rows of 32,448 bytes as ``binary``, 256 a batch (8.3 MB), as uint8 ``[256, 104, 104, 3]`` by ``shape=``.
- Imports: ``import corgiarrow`` over ``import pyarrow``, each in a fresh process.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

# Only what every environment has: a rival runs this script in its own.
ROWS, COLUMNS, ROW_GROUP, BATCH = 1_000_000, 28, 12_500, 1_024
IMAGE_SHAPE, IMAGES, IMAGE_BATCH = (104, 104, 3), 20_480, 256
MEMORY = "64 MiB"
FEATURES = [f"f{c}" for c in range(COLUMNS)]
GOALS = [
    ("tensors", "reader", 0.9),
    ("tensors", "scan", 0.65),
    ("stacked", "tensors", 0.8),
    ("2 processes", "tensors", 0.8),
    ("tensors", "datasets", 4.0),
]
MORE = [
    ("reader", "scan"),
    ("DataLoader, 2 workers", "tensors"),
    ("tensors", "by hand"),
    ("tensors", "datasets shuffled"),
]
RIVAL_PACKAGES = ["datasets", "torch==2.13.0"]


def table_file(folder: Path) -> Path:
    """Return the file of the table."""
    import data
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(beside: Path) -> None:
        rng = np.random.default_rng(0)
        columns = {name: rng.standard_normal(ROWS, dtype=np.float32) for name in FEATURES}
        columns["user"] = rng.integers(0, 2**62, ROWS)
        columns["label"] = np.arange(ROWS) * 10 // ROWS
        pq.write_table(pa.table(columns), beside, row_group_size=ROW_GROUP, compression="zstd")

    return data.made_once(folder / f"table-{ROWS}x{COLUMNS}.parquet", write)


def image_file(folder: Path) -> Path:
    """Return the file of images."""
    import data
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(beside: Path) -> None:
        rng = np.random.default_rng(0)
        size = int(np.prod(IMAGE_SHAPE))
        schema = pa.schema([("image", pa.binary()), ("label", pa.int64())])
        with pq.ParquetWriter(beside, schema, compression="none", use_dictionary=False) as writer:
            for first in range(0, IMAGES, IMAGE_BATCH):
                pixels = rng.integers(0, 256, (IMAGE_BATCH, size), dtype=np.uint8)
                rows = [[row.tobytes() for row in pixels], np.arange(first, first + IMAGE_BATCH)]
                writer.write_table(pa.table(rows, schema=schema))

    return data.made_once(folder / f"images-{IMAGES}.parquet", write)


def scan(path: Path) -> Callable[[], Iterator[int]]:
    """Decode row groups whole in two threads."""
    import pyarrow.parquet as pq

    footer = pq.ParquetFile(path).metadata

    def read(group: int) -> int:
        with pq.ParquetFile(path, metadata=footer, pre_buffer=False) as file:
            return int(file.read_row_group(group, use_threads=False).num_rows)

    def run() -> Iterator[int]:
        with ThreadPoolExecutor(2) as executor:
            yield from executor.map(read, range(footer.num_row_groups))

    return run


def by_hand(path: Path) -> Callable[[], Iterator[int]]:
    """Mix four row groups at a time with pyarrow and torch."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch

    footer = pq.ParquetFile(path).metadata
    rng = np.random.default_rng(0)

    def buffer(groups: Any) -> pa.Table:
        with pq.ParquetFile(path, metadata=footer, pre_buffer=False) as file:
            table = pa.concat_tables([file.read_row_group(int(g), use_threads=False) for g in groups])
        return table.combine_chunks().take(pa.array(rng.permutation(table.num_rows)))

    def run() -> Iterator[int]:
        order = rng.permutation(footer.num_row_groups)
        with ThreadPoolExecutor(2) as executor:
            ahead = [executor.submit(buffer, order[first : first + 4]) for first in range(0, len(order), 4)]
            for made in ahead:
                table = made.result()
                columns = {name: torch.tensor(table[name].to_numpy()) for name in table.schema.names}
                for first in range(0, table.num_rows, BATCH):
                    batch = {name: column[first : first + BATCH] for name, column in columns.items()}
                    yield len(batch["label"])

    return run


def reader(path: Path) -> Callable[[], Iterator[int]]:
    """Take the reader's record batches."""
    import corgiarrow as ca

    batches = ca.Reader(path, memory=MEMORY, batch_size=BATCH)
    return lambda: (batch.num_rows for batch in batches)


def tensors(path: Path, **options: Any) -> Callable[[], Iterator[int]]:
    """Take dicts of tensors in one process."""
    import corgiarrow.torch as ct

    batches = ct.loader(path, memory=MEMORY, batch_size=BATCH, **options)
    return lambda: (len(batch["label"]) for batch in batches)


def stacked(path: Path) -> Callable[[], Iterator[int]]:
    """Take a matrix ``[B, 28]``, and two columns."""
    return tensors(path, stack={"x": FEATURES})


def two_processes(path: Path) -> Callable[[], Iterator[int]]:
    """Take dicts of tensors from two worker processes of our loader."""
    return tensors(path, processes=2)


def two_workers(path: Path) -> Callable[[], Iterator[int]]:
    """Take dicts of tensors from two workers of a DataLoader, which persist."""
    from torch.utils.data import DataLoader

    import corgiarrow.torch as ct

    dataset = ct.CorgiPileDataset(path, memory=MEMORY, batch_size=BATCH)
    batches = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    return lambda: (len(batch["label"]) for batch in batches)


def datasets(path: Path, shuffled: bool = False) -> Callable[[], Iterator[int]]:
    """Stream by Hugging Face ``datasets``."""
    from datasets import load_dataset
    from torch.utils.data import DataLoader

    stream = load_dataset("parquet", data_files=str(path), split="train", streaming=True)
    if shuffled:
        stream = stream.shuffle(seed=0, buffer_size=1_000)
    batches = DataLoader(stream.with_format("torch").batch(BATCH), batch_size=None)
    return lambda: (len(batch["label"]) for batch in batches)


def datasets_shuffled(path: Path) -> Callable[[], Iterator[int]]:
    """Stream by Hugging Face ``datasets`` through its shuffle buffer."""
    return datasets(path, shuffled=True)


def images(path: Path) -> Callable[[], Iterator[int]]:
    """Take images as tensors."""
    import corgiarrow.torch as ct

    batches = ct.loader(path, memory="256 MiB", batch_size=IMAGE_BATCH, shape={"image": IMAGE_SHAPE})
    return lambda: (len(batch["image"]) for batch in batches)


ENTRANTS = {
    "scan": scan,
    "reader": reader,
    "tensors": tensors,
    "stacked": stacked,
    "2 processes": two_processes,
    "DataLoader, 2 workers": two_workers,
    "by hand": by_hand,
    "datasets": datasets,
    "datasets shuffled": datasets_shuffled,
    "images": images,
}


def run_entrant(name: str, path: Path) -> None:
    """Run some epochs; print the rows a second of the later ones."""
    epoch = ENTRANTS[name](path)
    rates = []
    for _ in range(1 if "datasets" in name else 4):
        began = time.perf_counter()
        rows = sum(epoch())
        rates.append(rows / (time.perf_counter() - began))
        expected = IMAGES if name == "images" else ROWS
        if rows != expected:
            raise SystemExit(f"{name}: {rows} rows came, not {expected}")
    print(median(rates[1:] or rates), flush=True)


def in_turn(names: list[str], path: Path, rounds: int, pythons: dict[str, str]) -> dict[str, list[float]]:
    """Run entrants one after the other, `rounds` times and once to warm up; return rows a second."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name in names:
            command = [pythons.get(name, sys.executable), __file__, "--entrant", name, "--path", str(path)]
            # Each prints alone; `datasets` tells of its progress on stderr.
            told = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            if number:
                found[name].append(float(told.stdout.split()[-1]))
    return found


def rival_python(folder: Path) -> str:
    """Return the interpreter of an environment with the rival, made once."""
    home = folder / "rivals"
    python = home / "bin" / "python"
    if not (home / "done").exists():
        venv.create(home, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *RIVAL_PACKAGES], check=True)
        (home / "done").touch()
    return str(python)


def import_seconds(module: str, rounds: int) -> float:
    """Seconds that importing takes, in a fresh process each, the median."""
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    taken = [
        float(subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout)
        for _ in range(rounds + 1)
    ]
    return median(taken[1:])


def measure(folder: Path, rounds: int, rivals: bool) -> dict[str, Any]:
    """Measure all of it, and print tables."""
    import data

    table, pictures = table_file(folder), image_file(folder)
    data.warm_page_cache(table)
    theirs = [name for name in ENTRANTS if name.startswith("datasets")] if rivals else []
    names = [name for name in ENTRANTS if name != "images" and not name.startswith("datasets")] + theirs
    pythons = {name: rival_python(folder) for name in theirs}
    rates = in_turn(names, table, rounds, pythons)
    data.print_table(["entrant", "Mrow/s"], [[name, f"{median(rates[name]) / 1e6:.2f}"] for name in names])
    ratios = []
    for one, other, goal in (*GOALS, *((a, b, None) for a, b in MORE)):
        if one in rates and other in rates:
            found = median(a / b for a, b in zip(rates[one], rates[other], strict=True))
            ratios.append({"ratio": f"{one} ÷ {other}", "found": found, "goal": goal})
    data.print_table(
        ["ratio", "found", "goal", "reached"],
        [
            [name, f"{found:.2f}", goal or "", ("no", "yes")[found >= goal] if goal else ""]
            for name, found, goal in (r.values() for r in ratios)
        ],
    )
    data.warm_page_cache(pictures)
    size = IMAGE_SHAPE[0] * IMAGE_SHAPE[1] * IMAGE_SHAPE[2]
    speed = median(in_turn(["images"], pictures, rounds, {})["images"]) * size / 1e9
    over = import_seconds("corgiarrow", rounds) - import_seconds("pyarrow", rounds)
    print(f"images: {speed:.2f} GB/s (goal 1); import corgiarrow over pyarrow: {over:.2f} s (goal 0.5)\n")
    return {"rows_per_s": rates, "ratios": ratios, "images_gb_per_s": speed, "import_s": over}


def main() -> None:
    if "--entrant" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--entrant")
        parser.add_argument("--path", type=Path)
        arguments = parser.parse_args()
        run_entrant(arguments.entrant, arguments.path)
        return
    import data

    parser = data.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rivals", action="store_true", help="measure Hugging Face datasets, in its own environment")
    arguments = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    print(json.dumps(data.machine()))
    data.save_json(arguments.json, measure(arguments.data, arguments.rounds, arguments.rivals))


if __name__ == "__main__":
    main()

"""Measure how long it takes to start: index many small files, load a saved index, get the first batch.

Run ``python benchmarks/start.py`` (``--files 200`` for a quick try). Each round is a fresh process, with a
warm page cache; importing is told apart.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

import data

LINES = [
    ("import corgiarrow", "import_s", None),
    ("index the files (BlockIndex.build)", "build_s", 5.0),
    ("save the index", "save_s", None),
    ("load the saved index, fresh process", "load_s", 0.5),
    ("make a Reader of it", "reader_s", None),
    ("first batch after that", "batch_s", None),
]
BUFFER_FRACTION = 0.02


def build(folder: Path, saved: Path) -> dict[str, float]:
    """Index the folder and save the index, in this process."""
    import corgiarrow as ca

    began = time.perf_counter()
    index = ca.BlockIndex.build(folder)
    built = time.perf_counter()
    index.save(saved)
    return {
        "build_s": built - began,
        "save_s": time.perf_counter() - built,
        "row_groups": len(index.group_rows),
    }


def load(saved: Path) -> dict[str, float]:
    """Load the index and read the first batch, in this process."""
    began = time.perf_counter()
    import corgiarrow as ca

    imported = time.perf_counter()
    index = ca.BlockIndex.load(saved)
    loaded = time.perf_counter()
    reader = ca.Reader(index, buffer_fraction=BUFFER_FRACTION)
    made = time.perf_counter()
    batches = iter(reader)
    next(batches)
    first = time.perf_counter()
    reader.close()
    return {
        "import_s": imported - began,
        "load_s": loaded - imported,
        "reader_s": made - loaded,
        "batch_s": first - made,
    }


def in_fresh_process(task: str, folder: Path, saved: Path) -> dict[str, float]:
    """Run :func:`build` or :func:`load` in a new process."""
    arguments = ("--task", task, "--folder", folder, "--saved", saved)
    found: dict[str, float] = json.loads(data.in_fresh_process(__file__, *arguments))
    return found


def main() -> None:
    parser = data.parser(__doc__)
    parser.add_argument("--files", type=int, default=4_000)
    parser.add_argument("--row-groups", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    for hidden in ("--task", "--folder", "--saved"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.task:
        folder, saved = Path(arguments.folder), Path(arguments.saved)
        json.dump(build(folder, saved) if arguments.task == "build" else load(saved), sys.stdout)
        return
    folder = data.many_files(arguments.data, arguments.files, arguments.row_groups)
    saved = arguments.data / f"{folder.name}.index"
    for file in folder.iterdir():
        data.warm_page_cache(file)
    rounds: list[dict[str, float]] = []
    for _ in range(arguments.rounds):
        found = in_fresh_process("build", folder, saved)
        rounds.append(found | in_fresh_process("load", folder, saved))
    size = saved.stat().st_size / 1e6
    print(f"{arguments.files} files, {rounds[0]['row_groups']:.0f} row groups; saved index {size:.1f} MB\n")
    lines = []
    for title, key, goal in LINES:
        each = [r[key] for r in rounds]
        verdict = "" if goal is None else ("reached" if median(each) <= goal else "MISSED")
        lines.append([title, f"{median(each):.3f}", f"{max(each):.3f}", f"≤ {goal}" if goal else "", verdict])
    data.print_table(["what", "median s", "max s", "goal s", ""], lines)
    data.save_json(
        arguments.json, {"files": arguments.files, "index_bytes": saved.stat().st_size, "rounds": rounds}
    )


if __name__ == "__main__":
    main()

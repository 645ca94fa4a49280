"""What order does to SGD: eight strategies on six data sets, sorted and shuffled; accuracy, mean ± sd over seeds.

Run ``python benchmarks/convergence.py --real FOLDER``, a folder with ``fashion_mnist_train.parquet``,
``fashion_mnist_t10k.parquet``, ``nycflights13_flights.parquet`` and ``text_cpython_stdlib.parquet`` (without it: the
three generated data sets alone). Every run that ends is added to a file at once (``--runs``); started again, the script
does what is missing. Then it prints tables and writes ``convergence.csv``, ``convergence_curves.csv``,
``convergence.json`` (machine, date, settings) and figures to ``--results``.

- Data sets: see ``convergence_data.py``. Rows to score on are held out. About 800 row groups a file, each a block.
- Sorted by label: every strategy, with buffers of 1, 2, 5 and 10 % of the blocks. In other orders: ``none``, ``once``,
  ``corgipile``, ``spread`` at 10 %. ``label_time``: by label and within each by time; also at 30 %.
- Models: scikit-learn's ``SGDClassifier`` with a step a row (logistic, hinge), torch with a step a batch of 128 rows
  (logistic by SGD and by Adam; on images also a small CNN, SGD with momentum 0.9 and Adam). The step size falls by 5 %
  an epoch, as the paper's does.
- Equal steps: every run takes ``epochs × rows`` rows; ``mrs``, which repeats rows, is cut there.
- *final*: accuracy after the last epoch; the CSV also has the mean over the last three (*last3*). ``none`` does the
  same for each seed where the model begins at zero, so it runs once there.
- The order is the library's, ``reader.plan(epoch).row_ids()``, a pure function; the rows are taken from memory in that
  order, since a hundred runs read the same file. ``--check`` compares with batches that were really read.
- Step sizes, one for each data set and model, the same for all strategies: of 1, 3, 10, 30, … the one at which Shuffle
  Once, on shuffled rows, is best on average over its epochs, which counts how fast it learns as well as how far
  (``--tune`` runs that). How results depend on it is measured too: the per-row logistic model at 0.1, 0.3, 3 and 10
  times its step size.
"""

import csv
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from multiprocessing.connection import Connection, wait
from pathlib import Path
from statistics import mean, stdev
from typing import Any, cast

import data
import numpy as np
from convergence_data import DATA_SETS, FORMAT, folder_of, load, made
from convergence_training import UNBUFFERED, Task, reader_of, run

import corgiarrow as ca
from corgiarrow.strategies import BY_NAME

STRATEGIES = ("none", "block", "window", "mrs", "corgipile", "spread", "once", "epoch")
FEW = ("none", "corgipile", "spread", "once")
MAIN_BUFFER = 0.1
BUFFERS = {"label": (0.01, 0.02, 0.05, MAIN_BUFFER), "label_time": (MAIN_BUFFER, 0.3)}
"""Parts of the blocks that a buffer merges, for the orders on which several are tried."""

GRID = tuple(float(f"{m}e{k}") for k in range(-6, 3) for m in (1, 3))
"""Step sizes."""

ROW_AND_BATCH = ("row logistic", "row hinge", "batch SGD", "batch Adam")
SETTINGS: dict[str, tuple[int, dict[str, float]]] = {
    "higgs": (10, dict(zip(ROW_AND_BATCH, (3e-4, 3e-4, 0.01, 1e-3), strict=True))),
    "susy": (10, dict(zip(ROW_AND_BATCH, (3e-4, 1e-4, 0.03, 1e-3), strict=True))),
    "epsilon": (5, dict(zip(ROW_AND_BATCH, (0.1, 0.03, 3.0, 0.01), strict=True))),
    "fashion": (3, {"batch SGD": 0.03, "batch Adam": 1e-3, "CNN SGD": 0.03, "CNN Adam": 0.01}),
    "flights": (8, dict(zip(ROW_AND_BATCH, (1e-3, 1e-3, 0.1, 3e-3), strict=True))),
    "text": (6, dict(zip(ROW_AND_BATCH, (0.3, 0.1, 10.0, 0.01), strict=True))),
}
"""Epochs of each data set, and the step size of each model."""

SWEPT = ("higgs", "susy", "flights")
"""Data sets on which other step sizes are tried too."""

Line = dict[str, Any]


def rate_of(name: str, model: str) -> float:
    """Step size, as it stands in the grid."""
    return nearby(SETTINGS[name][1][model], (0,))[0]


def nearby(rate: float, places: Iterable[int]) -> list[float]:
    """Step sizes so many places from `rate` in the grid."""
    at = int(np.argmin([abs(np.log(g / rate)) for g in GRID]))
    return [GRID[at + p] for p in places if 0 <= at + p < len(GRID)]


def tasks_of(name: str, seeds: int, quick: bool) -> Iterator[Task]:
    """All runs on a data set, those of one file together."""
    epochs = 2 if quick else SETTINGS[name][0]
    for order in DATA_SETS[name].orders:
        for model in SETTINGS[name][1]:
            first = Task(name, order, model, "once", 0.0, 0, epochs, rate_of(name, model), quick)
            for strategy in STRATEGIES if order == "label" else FEW:
                buffers = (0.0,) if strategy in UNBUFFERED else BUFFERS.get(order, (MAIN_BUFFER,))
                for buffer in buffers:
                    yield from seeded(replace(first, strategy=strategy, buffer=buffer), seeds)
            if order == "label" and model == "row logistic" and name in SWEPT:
                for rate in nearby(first.rate, (-2, -1, 1, 2)):
                    for strategy in ("block", *FEW):
                        buffer = 0.0 if strategy in UNBUFFERED else MAIN_BUFFER
                        yield from seeded(replace(first, strategy=strategy, buffer=buffer, rate=rate), seeds)


def urgency(task: Task) -> tuple[bool, bool, bool]:
    """Sort key: what is sorted by label in buffers of 10 %, other orders, other buffers, other step sizes."""
    return task.rate != rate_of(task.data, task.model), task.buffer not in (0.0, MAIN_BUFFER), task.order != "label"


def seeded(task: Task, seeds: int) -> Iterator[Task]:
    same = task.strategy == "none" and "CNN" not in task.model
    return (replace(task, seed=seed) for seed in range(1 if same else seeds))


def tuning_tasks(name: str, seeds: int, quick: bool) -> Iterator[Task]:
    """Shuffle Once on shuffled rows, at step sizes around the chosen one."""
    epochs = 2 if quick else SETTINGS[name][0]
    for model in SETTINGS[name][1]:
        for rate in nearby(rate_of(name, model), range(-3, 4)):
            for seed in range(seeds):
                yield Task(name, "shuffled", model, "once", 0.0, seed, epochs, rate, quick)


def key_of(line: Line) -> tuple[Any, ...]:
    """What tells a run from others, of a line of the file of runs."""
    names = ("format", "data", "order", "model", "strategy", "buffer", "seed", "epochs", "rate", "quick")
    return tuple(line[name] for name in names)


def finished(path: Path) -> dict[tuple[Any, ...], Line]:
    """Read the runs that ended; a line that was cut short is taken out of the file."""
    if not path.exists():
        return {}
    text = path.read_bytes()
    whole = text.rfind(b"\n") + 1
    if whole < len(text):
        os.truncate(path, whole)
    lines = [json.loads(line) for line in text[:whole].splitlines()]
    return {key_of(line): line for line in lines}


def work(connection: Connection, folder: Path) -> None:
    """Run the tasks that come through a connection, until it is closed."""
    try:
        while True:
            task = connection.recv()
            connection.send(task.key() | run(task, folder))
    except (EOFError, KeyboardInterrupt):
        return


def run_all(tasks: Sequence[Task], runs: Path, folder: Path, jobs: int) -> None:
    """Run tasks in processes; each one that ends is on the disk before its process gets the next."""
    if not tasks:
        return
    runs.parent.mkdir(parents=True, exist_ok=True)
    os.environ["OMP_NUM_THREADS"] = "1"
    spawn = multiprocessing.get_context("spawn")
    left, began, done = iter(tasks), time.perf_counter(), 0
    ends: list[Connection] = []
    for _ in range(min(jobs, len(tasks))):
        mine, theirs = spawn.Pipe()
        spawn.Process(target=work, args=(theirs, folder), daemon=True).start()
        theirs.close()
        mine.send(next(left))
        ends.append(mine)
    with runs.open("ab") as file:
        while ends:
            for end in cast(list[Connection], wait(ends)):
                try:
                    line = end.recv()
                except EOFError:
                    raise SystemExit("a process that trains has ended; what it said is above") from None
                file.write(json.dumps(line).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
                done += 1
                if done % 50 == 0 or done == len(tasks):
                    what = f"{line['data']} {line['order']} {line['model']}"
                    print(f"{done}/{len(tasks)} runs, {time.perf_counter() - began:.0f} s: {what}", file=sys.stderr)
                task = next(left, None)
                if task is None:
                    end.close()
                    ends.remove(end)
                else:
                    end.send(task)


def check(folder: Path, names: Sequence[str], quick: bool) -> None:
    """Read an epoch of each strategy for real, and compare it with the rows that training takes from memory."""
    for name in names:
        path = folder_of(folder, name, quick) / "label.parquet"
        rows = load(path)
        for strategy in strategies():
            reader = reader_of(path, strategy, MAIN_BUFFER, 1)
            start, ids = 0, reader.plan(0).row_ids()
            for batch in reader:
                stop = start + len(batch)
                chosen_rows = ids[start:stop]
                found = batch["features"].flatten().to_numpy().reshape(len(batch), -1)
                assert np.array_equal(found, rows.features[chosen_rows]), (name, strategy, start)
                assert np.array_equal(batch["label"], rows.labels[chosen_rows]), (name, strategy, start)
                start = stop
            assert start == len(ids), (name, strategy, start, len(ids))
            print(f"{name}, {strategy}: {start:,} rows read in the order that training takes", file=sys.stderr)


def strategies() -> list[str]:
    return [strategy for strategy in STRATEGIES if strategy in BY_NAME]


def configurations(lines: Iterable[Line]) -> list[Line]:
    """Put the runs of all seeds together: a line a configuration, accuracies in %."""
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        key = tuple(line[n] for n in ("data", "order", "model", "strategy", "buffer", "rate", "epochs"))
        groups.setdefault(key, []).append(line)
    found = []
    for (name, order, model, strategy, buffer, rate, epochs), group in groups.items():
        at = {"data": name, "order": order, "model": model, "strategy": strategy, "buffer": buffer, "step_size": rate}
        curves = [line["accuracy"] for line in group if line["accuracy"] is not None]
        epoch_means = [spread(100 * a for a in of_epoch) for of_epoch in zip(*curves, strict=True)]
        final, last3 = spread(100 * c[-1] for c in curves), spread(100 * mean(c[-3:]) for c in curves)
        figures = {"seeds": len(curves), "epochs": epochs, "final": final, "last3": last3, "by_epoch": epoch_means}
        found.append(at | figures | {"note": next((line["why"] for line in group if line.get("why")), "")})

    def place(line: Line) -> tuple[Any, ...]:
        models, known = list(SETTINGS[line["data"]][1]), DATA_SETS[line["data"]].orders
        places = (list(SETTINGS).index(line["data"]), known.index(line["order"]), models.index(line["model"]))
        return (*places, line["step_size"], STRATEGIES.index(line["strategy"]), line["buffer"])

    return sorted(found, key=place)


def spread(values: Iterable[float]) -> tuple[float, float] | None:
    """Mean and standard deviation over runs (0 of a single run), None of none."""
    known = list(values)
    return (mean(known), stdev(known) if len(known) > 1 else 0.0) if known else None


def save(found: Sequence[Line], folder: Path, settings: dict[str, Any]) -> None:
    """Write the results, with machine and date beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("data", "order", "model", "step_size", "strategy", "buffer")

    def buffered(line: Line) -> list[Any]:
        return [f"{line[n]:g}" if n == "step_size" else line[n] or "" for n in names]

    with (folder / "convergence.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*names, "epochs", "seeds", "final_mean", "final_sd", "last3_mean", "last3_sd", "note"])
        for line in found:
            numbers = [f"{v:.3f}" for pair in (line["final"], line["last3"]) for v in pair or ()] or [""] * 4
            writer.writerow([*buffered(line), line["epochs"], line["seeds"], *numbers, line["note"]])
    with (folder / "convergence_curves.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*names, "epoch", "mean", "sd"])
        for line in found:
            for epoch, (average, sd) in enumerate(line["by_epoch"], 1):
                writer.writerow([*buffered(line), epoch, f"{average:.3f}", f"{sd:.3f}"])
    versions = {name: version(name) for name in ("corgiarrow", "scikit-learn", "torch")}
    data.save_json(folder / "convergence.json", {"versions": versions, **settings})


def draw(found: Sequence[Line], folder: Path) -> None:
    """Draw accuracy by epoch, of what is sorted by label: a figure a model, a panel a data set."""
    try:
        from corgiarrow import plots
    except ImportError:
        print("no figures: this corgiarrow has no module plots", file=sys.stderr)
        return
    drawn = [line for line in found if line["order"] == "label" and main_buffer(line) and chosen(line)]
    for model in dict.fromkeys(line["model"] for line in drawn):
        rows = [
            {"data": line["data"], "strategy": line["strategy"], "epoch": epoch, "mean": average / 100, "sd": sd / 100}
            for line in drawn
            if line["model"] == model
            for epoch, (average, sd) in enumerate(line["by_epoch"], 1)
        ]
        name = f"convergence-{model.lower().replace(' ', '-')}.svg"
        try:
            figure = plots.convergence(rows, title=f"{model}, sorted by label, buffers of {MAIN_BUFFER:.0%}")
        except ca.MissingExtraError as error:
            print(f"no figures: {error}", file=sys.stderr)
            return
        print(f"figure: {plots.save(figure, folder / name)}")


def main_buffer(line: Line) -> bool:
    """Whether a configuration has no buffer, or one of 10 %."""
    return line["buffer"] in (0.0, MAIN_BUFFER)


def chosen(line: Line) -> bool:
    """Whether a configuration is at the step size of its data set and model."""
    return bool(line["step_size"] == rate_of(line["data"], line["model"]))


def shown(pair: tuple[float, float] | None) -> str:
    return "n/a" if pair is None else f"{pair[0]:.2f} ± {pair[1]:.2f}"


def print_tables(found: Sequence[Line]) -> None:
    """Print the final accuracies, and what is claimed of them."""
    at = {
        (line["data"], line["order"], line["model"], line["strategy"], line["buffer"]): line["final"]
        for line in found
        if chosen(line)
    }

    def final(case: tuple[str, str, str], strategy: str, buffer: float = MAIN_BUFFER) -> Any:
        return at.get((*case, strategy, 0.0 if strategy in UNBUFFERED else buffer))

    cases = list(dict.fromkeys(key[:3] for key in at))
    print(f"\nFinal accuracy in %, mean ± sd; buffers of {MAIN_BUFFER:.0%}\n")
    lines = [[*case, *(shown(f) if (f := final(case, s)) else "" for s in STRATEGIES)] for case in cases]
    data.print_table(["data", "order", "model", *STRATEGIES], lines)
    print("Final accuracy in % by buffer\n")
    buffers = sorted({b for of_order in BUFFERS.values() for b in of_order})
    lines = [
        [*case, s, *(shown(at[k]) if (k := (*case, s, b)) in at else "" for b in buffers)]
        for case in cases
        for s in STRATEGIES
        if sum((*case, s, b) in at for b in buffers) > 1
    ]
    data.print_table(["data", "order", "model", "strategy", *(f"{b:.0%}" for b in buffers)], lines)
    print("Points from Shuffle Once (and in standard deviations, the larger of the two)\n")
    lines, others = [], ("corgipile", "spread", "none", "window", "block", "mrs")
    for case in cases:
        once = final(case, "once")
        if once is None or case[1] == "shuffled":
            continue
        gaps = [gap(once, final(case, s)) for s in others]
        corgi = final(case, "corgipile")
        lines.append([*case, *gaps, "" if corgi is None else "yes" if once[0] - corgi[0] <= 0.5 else "NO"])
    data.print_table(["data", "order", "model", *others, "corgipile within 0.5"], lines)
    print_steps(found)


def print_steps(found: Sequence[Line]) -> None:
    """Print accuracies by step size, of the data sets and models that have several."""
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in found:
        if line["order"] == "label" and main_buffer(line):
            key = line["data"], line["model"], f"{line['step_size']:g}" + (" *" if chosen(line) else "")
            lines.setdefault(key, {})[line["strategy"]] = line["final"]
    several = [key[:2] for key in lines]
    columns = ("block", *FEW)
    rows = [[*k, *(shown(v.get(s)) for s in columns)] for k, v in lines.items() if several.count(k[:2]) > 1]
    if rows:
        print("Sorted by label: final accuracy in % by step size (* is the one used)\n")
        data.print_table(["data", "model", "step size", *columns], rows)


def gap(once: tuple[float, float], other: tuple[float, float] | None) -> str:
    if other is None:
        return ""
    points, sd = other[0] - once[0], max(once[1], other[1])
    return f"{points:+.2f}" + (f" ({points / sd:+.1f})" if sd else "")


def best_steps(found: Sequence[Line]) -> None:
    """Print what Shuffle Once reaches on shuffled rows by step size, and which step size the rule chooses."""
    tried: dict[tuple[str, str], list[Line]] = {}
    for line in found:
        if line["order"] == "shuffled" and line["strategy"] == "once":
            tried.setdefault((line["data"], line["model"]), []).append(line)
    rows = []
    for case, lines in tried.items():
        over_epochs = [round(mean(average for average, _ in line["by_epoch"]), 2) for line in lines]
        best = over_epochs.index(max(over_epochs))
        for place, (line, average) in enumerate(zip(lines, over_epochs, strict=True)):
            marks = ("best" if place == best else "", "used" if chosen(line) else "")
            rows.append([*case, f"{line['step_size']:g}", shown(line["final"]), f"{average:.2f}", *marks])
    data.print_table(["data", "model", "step size", "final", "mean over epochs", "", ""], rows)


def main() -> None:
    parser = data.parser(__doc__)
    here = Path(__file__).parent
    parser.add_argument("--real", type=Path, help="folder of the files that three of the data sets are made from")
    parser.add_argument("--runs", type=Path, help="file of the runs (DATA/convergence-runs.jsonl)")
    parser.add_argument("--results", type=Path, default=here / "results", help="folder of what is found (%(default)s)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2, help="processes (%(default)s)")
    parser.add_argument("--only", nargs="+", choices=list(DATA_SETS), help="these data sets")
    parser.add_argument("--quick", action="store_true", help="small data, two epochs: to try the script")
    parser.add_argument("--tune", action="store_true", help="try step sizes, on shuffled data")
    parser.add_argument("--check", action="store_true", help="compare with rows that are really read, and end")
    arguments = parser.parse_args()
    names = [n for n in arguments.only or DATA_SETS if arguments.real or not DATA_SETS[n].real]
    if missing := set(arguments.only or ()) - set(names):
        parser.error(f"{', '.join(sorted(missing))}: give --real, the folder of the files that they are made from")
    for name in names:
        print(f"data: {made(arguments.data, name, arguments.quick, arguments.real)}", file=sys.stderr)
    if arguments.check:
        check(arguments.data, names, arguments.quick)
        return
    kind = tuning_tasks if arguments.tune else tasks_of
    asked = [task for name in names for task in kind(name, arguments.seeds, arguments.quick)]
    # What the main tables show comes first, so that a run that is broken off is of use.
    known = sorted((task for task in asked if task.strategy in BY_NAME), key=urgency)
    runs = arguments.runs or arguments.data / f"convergence-runs{'-quick' if arguments.quick else ''}.jsonl"
    before = finished(runs)
    missing_runs = [task for task in known if key_of(task.key()) not in before]
    print(f"{len(missing_runs)} of {len(known)} runs to do", file=sys.stderr)
    run_all(missing_runs, runs, arguments.data, arguments.jobs)
    used = {name: 2 if arguments.quick else SETTINGS[name][0] for name in names}
    lines = [
        line
        for line in finished(runs).values()
        if line["format"] == FORMAT and line["quick"] == arguments.quick and line["epochs"] == used.get(line["data"])
    ]
    found = configurations(lines)
    if arguments.tune:
        best_steps(found)
        return
    print_tables(found)
    settings = {
        "rows": {name: len_of(folder_of(arguments.data, name, arguments.quick)) for name in names},
        "attainable": {name: DATA_SETS[name].attainable for name in names if DATA_SETS[name].attainable},
        "seconds_of_training": round(sum(line["seconds"] for line in lines)),
    }
    save(found, arguments.results, settings)
    draw(found, arguments.results)


def len_of(folder: Path) -> dict[str, int]:
    """Rows, width and blocks of a data set."""
    index = ca.BlockIndex.build(folder / "label.parquet")
    width = index.schema.field("features").type.list_size
    blocks = len(ca.Reader(index).source.block_rows)
    test = ca.BlockIndex.build(folder / "test.parquet").num_rows
    return {"train": index.num_rows, "test": test, "features": width, "blocks": blocks}


if __name__ == "__main__":
    main()

"""The scripts of docs/recipes.md, run as they stand: killed once, and gone on with."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import corgiarrow as ca

ROOT = Path(__file__).parent.parent
DEADLINE_S = 180
IDS = 8192
STREAMS, BATCH_SIZE, EPOCHS = 8, 256, 3
ROW_GROUPS = [[300, 1, 170, 820], [5], [0, 400, 0, 3], [640, 640, 640], [1], [130, 80, 210, 760]]
ROWS = sum(map(sum, ROW_GROUPS))
RECIPES = {
    found[1]: found[0]
    for found in re.findall(r"```python\n(# (\w+\.py)\n.*?)```", (ROOT / "docs/recipes.md").read_text(), re.DOTALL)
}
STEPS = 10
"""Steps of an epoch of two ranks: 19 batches, and one that is repeated."""
DIES_AFTER = 17


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipes")
    schema = pa.schema([("x", pa.float32()), ("label", pa.int32())])
    first = 0
    for number, groups in enumerate(ROW_GROUPS):
        with pq.ParquetWriter(folder / f"part-{number}.parquet", schema) as writer:
            for rows in groups:
                ids = np.arange(first, first + rows)
                writer.write_table(pa.table([(ids / IDS).astype(np.float32), ids % 2], schema=schema))
                first += rows
    return folder


class Job:
    """Runs of one script, with what each rank trained on."""

    def __init__(self, folder: Path, data: Path, script: str, dies_after: int = -1):
        self._script, self._data, self._out, self._record = folder / "script.py", data, folder / "out", folder / "seen"
        self._out.mkdir()
        self._record.mkdir()
        assert script.count("torch.nn.Linear(") == 1
        script = script.replace("torch.nn.Linear(", "recording.Linear(")
        self._script.write_text(f"import ending\nimport recording\n{script}\nending.end()\n")
        self._environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests" / "jobs")]),
            "RECIPE_RECORD": str(self._record),
            "RECIPE_DIES_AFTER": str(dies_after),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            # Ray: no files in the home, no waiting for polls, and paths of sockets that are short enough.
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
            "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
            "RAY_TRAIN_METRICS_ENABLED": "0",
        }

    def run(self, *launcher: str) -> subprocess.CompletedProcess[str]:
        """Run the script until it and all that it started has ended."""
        log = self._script.with_suffix(".log")
        with log.open("w") as output, tempfile.TemporaryDirectory(dir="/tmp") as short:
            process = subprocess.Popen(
                [sys.executable, *launcher, str(self._script), str(self._data), str(self._out)],
                stdout=output,
                stderr=output,
                env=self._environment | {"RAY_TMPDIR": short},
                cwd=self._out,
            )
            try:
                code = process.wait(DEADLINE_S)
                until = time.monotonic() + 15
                while (left := self._processes()) and time.monotonic() < until:
                    time.sleep(0.1)
                assert not left, [p.cmdline() for p in left]
            finally:
                for left in self._processes():
                    left.kill()
        return subprocess.CompletedProcess(process.args, code, log.read_text())

    def _processes(self) -> list[psutil.Process]:
        """Processes that have inherited this job's environment."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("RECIPE_RECORD") == str(self._record) and process.status() != "zombie":
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def seen(self) -> list[list[list[list[int]]]]:
        """Return the ids of each step of each rank of each run."""
        runs: list[list[list[list[int]]]] = []
        ranks = sorted({path.name.split("-")[1] for path in self._record.glob("rank-*")}, key=int)
        for rank in ranks:
            for number, path in enumerate(sorted(self._record.glob(f"rank-{rank}-*"))):
                if number == len(runs):
                    runs.append([])
                runs[number].append([json.loads(line) for line in path.read_text().splitlines()])
        return runs


def torchrun(processes: int = 2) -> list[str]:
    return ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]


def in_turn(per_rank: list[list[list[int]]]) -> list[list[int]]:
    assert len({len(steps) for steps in per_rank}) == 1, "ranks must get equal steps"
    return [steps[n] for n in range(len(per_rank[0])) for steps in per_rank]


def epochs_of_one_process(data: Path, ranks: int) -> list[list[list[int]]]:
    """Batches of each epoch as one process reads them, with the padding for some ranks."""
    reader = ca.Reader(data, columns=["x", "label"], batch_size=BATCH_SIZE, streams=STREAMS)
    epochs = []
    for _ in range(EPOCHS):
        batches = [(batch.column("x").to_numpy() * IDS).astype(int).tolist() for batch in reader]
        epochs.append(batches + batches[len(batches) - STREAMS :][: -len(batches) % ranks])
    return epochs


@pytest.mark.parametrize(
    ("name", "launcher", "again", "kept"),
    [
        ("ddp.py", torchrun(), torchrun(1), (14,)),
        ("ddp_workers.py", torchrun(), torchrun(), (14,)),
        ("lightning_ddp.py", [], [], (16,)),
        ("accelerated.py", torchrun(), [], (14,)),
        ("hf_trainer.py", torchrun(), torchrun(), (16,)),
        ("ray_train.py", [], None, (4, 8, 14)),  # Ray hears of a checkpoint some time after it was reported.
    ],
)
def test_a_killed_recipe_goes_on_in_the_order_of_one_process(
    data: Path, tmp_path: Path, name: str, launcher: list[str], again: list[str] | None, kept: tuple[int, ...]
) -> None:
    job = Job(tmp_path, data, RECIPES[name], DIES_AFTER)
    done = job.run(*launcher)
    if again is not None:
        assert done.returncode != 0, done.stdout[-4000:]
        done = job.run(*again)
    assert done.returncode == 0, done.stdout[-4000:]
    died, went_on = job.seen()
    assert len(died) == 2
    for epoch in epochs_of_one_process(data, 2):
        assert {i for batch in epoch for i in batch} == set(range(ROWS))
        assert sum(map(len, epoch)) < ROWS + 2 * BATCH_SIZE
    before = [batch for epoch in epochs_of_one_process(data, 2) for batch in epoch]
    after = [batch for epoch in epochs_of_one_process(data, len(went_on)) for batch in epoch]
    found = in_turn(went_on)
    assert found == after[len(after) - len(found) :]
    steps = next(n for n in range(EPOCHS * STEPS) if before[2 * n] == found[0])
    assert steps in kept
    assert len(found) == len(after) - 2 * steps + (len(went_on) == 1)
    # How far a rank came that was ended with the other one is a matter of timing, but not up to the checkpoint.
    assert in_turn([rank[:steps] for rank in died]) == before[: 2 * steps]


def test_a_prepared_loader_needs_all_rows_of_one_process(data: Path, tmp_path: Path) -> None:
    name = "accelerated_dispatch.py"
    job = Job(tmp_path, data, RECIPES[name])
    done = job.run(*torchrun())
    assert done.returncode == 0, done.stdout[-4000:]
    (per_rank,) = job.seen()
    steps = in_turn(per_rank)
    epochs = [steps[first : first + 2 * STEPS] for first in range(0, len(steps), 2 * STEPS)]
    for found, expected in zip(epochs, epochs_of_one_process(data, 1), strict=True):
        assert [*chain(*found)][:ROWS] == [*chain(*expected)]
        assert sum(map(len, found)) <= ROWS + 1


def test_a_prepared_loader_of_ranks_loses_rows(data: Path, tmp_path: Path) -> None:
    """Why the docs say not to prepare it."""
    script = RECIPES["accelerated_dispatch.py"].replace(", rank=0, world_size=1", "").replace("range(3)", "range(1)")
    job = Job(tmp_path, data, script)
    done = job.run(*torchrun())
    assert done.returncode == 0, done.stdout[-4000:]
    (per_rank,) = job.seen()
    seen = {i for batch in in_turn(per_rank) for i in batch}
    assert ROWS * 0.4 < len(seen) < ROWS * 0.6


def test_every_recipe_is_run() -> None:
    assert len(RECIPES) == 7

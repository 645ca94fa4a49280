"""Jobs of several processes under torchrun: the order, the steps, the losses, a death and a resumption."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import corgiarrow as ca
import corgiarrow.torch as ct

JOB = Path(__file__).parent / "jobs" / "ddp.py"
DEADLINE_S = 150
OPTIONS = {"batch_size": 16, "streams": 8, "buffer_blocks": 16, "columns": ["id", "x", "label"]}
ROW_GROUPS = [[30, 1, 17, 120], [5], [0, 40, 0, 3], [64, 64, 64], [1], [13, 8, 21, 170]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    schema = pa.schema([("id", pa.int64()), ("x", pa.float32()), ("label", pa.int32())])
    first = 0
    for number, groups in enumerate(ROW_GROUPS):
        with pq.ParquetWriter(folder / f"part-{number}.parquet", schema) as writer:
            for rows in groups:
                ids = np.arange(first, first + rows)
                x = np.sin(ids).astype(np.float32)
                writer.write_table(pa.table([ids, x, (x > 0).astype(np.int32)], schema=schema))
                first += rows
    return folder


def torchrun(processes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", str(JOB)]
    return subprocess.run([*run, *arguments], capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def arguments(data: Path, out: Path, *more: str, **options: object) -> list[str]:
    out.mkdir(exist_ok=True)
    return ["--data", str(data), "--out", str(out), "--options", json.dumps({**OPTIONS, **options}), *more]


def ranks(out: Path, processes: int) -> list[list[dict[str, object]]]:
    return [json.loads((out / f"rank-{r}.json").read_text())["steps"] for r in range(processes)]


def one_process(data: Path, processes: int, epochs: int) -> tuple[list[list[int]], list[list[float]]]:
    """Batches of one process in order; and losses, as `processes` ranks have them, whose gradients are averaged."""
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    order, losses = [], []
    loader = ct.loader(data, **OPTIONS)
    for _ in range(epochs):
        batches = list(loader)
        batches += batches[len(batches) - 8 :][: -len(batches) % processes]  # Padding repeats the stream's last batch.
        order += [batch["id"].tolist() for batch in batches]
        for first in range(0, len(batches), processes):
            step = [
                torch.nn.functional.mse_loss(model(b["x"][:, None]), b["label"][:, None].float())
                for b in batches[first : first + processes]
            ]
            optimizer.zero_grad()
            (sum(step) / processes).backward()
            optimizer.step()
            losses.append([loss.item() for loss in step])
    return order, losses


def in_turn(per_rank: Sequence[Sequence[dict[str, object]]]) -> list[object]:
    assert len({len(steps) for steps in per_rank}) == 1, "ranks must get equal steps"
    return [steps[n]["ids"] for n in range(len(per_rank[0])) for steps in per_rank]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("processes", [2, 4])
def test_ddp_sees_the_order_and_losses_of_one_process(
    data: Path, tmp_path: Path, processes: int, workers: int
) -> None:
    done = torchrun(processes, *arguments(data, tmp_path, "--workers", str(workers), "--epochs", "2"))
    assert done.returncode == 0, done.stderr[-3000:]
    per_rank = ranks(tmp_path, processes)
    order, losses = one_process(data, processes, 2)
    assert in_turn(per_rank) == order
    found = [[steps[n]["loss"] for steps in per_rank] for n in range(len(losses))]
    np.testing.assert_allclose(found, losses, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 4)])
def test_a_killed_job_goes_on_with_other_ranks(data: Path, tmp_path: Path, before: int, after: int) -> None:
    checkpoint = tmp_path / "checkpoint.pt"
    common = ["--threads", "--checkpoint", str(checkpoint)]
    # 6 steps are saved: 6 × `before` batches, which `after` ranks divide.
    died = torchrun(before, *arguments(data, tmp_path / "a", *common, "--die-at", "7"))
    assert died.returncode != 0
    assert checkpoint.exists()
    seen = [json.loads((tmp_path / "a" / f"before-{r}.json").read_text()) for r in range(before)]
    assert {len(steps) for steps in seen} == {6}
    went_on = torchrun(after, *arguments(data, tmp_path / "b", *common))
    assert went_on.returncode == 0, went_on.stderr[-3000:]
    order = in_turn(seen) + in_turn(ranks(tmp_path / "b", after))
    whole, _ = one_process(data, 1, 1)
    assert order[: len(whole)] == whole
    assert len(order) - len(whole) < after


def test_ranks_that_would_read_other_orders_raise(data: Path, tmp_path: Path) -> None:
    done = torchrun(2, *arguments(data, tmp_path, "--seed-by-rank"))
    assert done.returncode != 0
    assert "OptionError: ranks [1] would read in another order than rank 0" in done.stderr


def test_what_one_rank_cannot_read_all_raise(data: Path, tmp_path: Path) -> None:
    done = torchrun(2, *arguments(data / "nowhere", tmp_path))
    assert done.returncode != 0
    assert "NoFilesError" in done.stderr
    assert "rank 0 could not begin" in done.stderr


def test_several_processes_mix_like_one_with_all_buffers(tmp_path: Path) -> None:
    """The paper's Figure 5: P processes with a buffer of BS / P each, against one with BS."""
    rows, block, classes = 200_000, 500, 10
    labels = np.arange(rows) * classes // rows

    def clumping(streams: int) -> float:
        plan = ca.EpochPlan(
            block_rows=np.full(rows // block, block),
            strategy=ca.CorgiPile(),
            buffer_blocks=40 // streams,
            seed=0,
            epoch=0,
            streams=streams,
            batch_size=256 // streams,
        )
        found = labels[plan.row_ids()][: rows // 256 * 256].reshape(-1, 256)
        shares = np.stack([(found == c).mean(1) for c in range(classes)], 1)
        return float(((shares - 1 / classes) ** 2).sum(1).mean() / ((1 - 1 / classes) / 256))

    assert clumping(4) == pytest.approx(clumping(1), rel=0.35)
    assert clumping(8) == pytest.approx(clumping(1), rel=0.35)

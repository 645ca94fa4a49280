"""The benchmark of convergence can be killed and started again, and its models step as their frameworks' do."""

import csv
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def command(folder: Path, *options: str) -> list[str]:
    small = ["--quick", "--only", "susy", "--seeds", "1", "--jobs", "1"]
    where = ["--data", str(folder), "--results", str(folder / "results")]
    return [sys.executable, str(BENCHMARKS / "convergence.py"), *small, *where, *options]


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    runs = tmp_path / "runs.jsonl"
    with subprocess.Popen(command(tmp_path, "--runs", str(runs)), stderr=subprocess.DEVNULL) as process:
        while process.poll() is None and (not runs.exists() or runs.read_bytes().count(b"\n") < 10):
            time.sleep(0.05)
        process.kill()
    before = runs.read_bytes()
    whole = before[: before.rfind(b"\n") + 1]
    runs.write_bytes(whole + b'{"format": 1, "da')

    def again() -> bytes:
        done = subprocess.run(command(tmp_path, "--runs", str(runs)), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return runs.read_bytes()

    after = again()
    assert after.startswith(whole)
    lines = [json.loads(line) for line in after.splitlines()]
    keys = ("data", "order", "model", "strategy", "buffer", "seed", "rate")
    assert len({tuple(line[k] for k in keys) for line in lines}) == len(lines)
    assert {line["strategy"] for line in lines} >= {"none", "block", "corgipile", "once", "epoch"}
    assert again() == after
    with (tmp_path / "results" / "convergence.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == len(lines)
    assert all(0 <= float(row["final_mean"]) <= 100 if row["seeds"] != "0" else row["note"] for row in table)
    assert json.loads((tmp_path / "results" / "convergence.json").read_text())["machine"]["date"]


def test_what_is_trained_on_is_what_is_read(tmp_path: Path) -> None:
    done = subprocess.run(command(tmp_path, "--check"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_gradient_that_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import convergence_training

    torch.manual_seed(0)
    model, x, y = torch.nn.Linear(5, 3), torch.randn(7, 5), torch.randint(0, 3, (7,))
    found = []
    for gradient in (convergence_training.linear_gradient, convergence_training.any_gradient):
        gradient(model, x, y)
        found.append([p.grad.clone() for p in model.parameters()])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)

"""Tests in processes of their own, for frameworks whose threads do not go with the forks of other tests."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parent.parent


def run(arguments: list[str], timeout_s: float = 280, cwd: Path = ROOT, **environment: str) -> str:
    """Run Python; return what it says on stdout."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_examples(page: str, folder: Path, prologue: str = "", epilogue: str = "", **environment: str) -> str:
    """Run all examples of a page of the documentation, one after the other, where there is a folder ``train/``."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.DOTALL)
    assert blocks
    (folder / "train").mkdir()
    f0, f1 = np.random.default_rng(0).random((2, 1000), np.float32)
    table = pa.table({"f0": f0, "f1": f1, "label": 2 * f0 - f1})
    pq.write_table(table, folder / "train" / "part.parquet", row_group_size=100)
    (folder / "examples.py").write_text("\n".join([prologue, *blocks, epilogue]))
    return run(["examples.py"], cwd=folder, **environment)

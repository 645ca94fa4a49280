"""Read from S3 in DataLoader workers, 20 times for each way of starting them; none may hang.

Run ``python benchmarks/workers.py`` (about 5 minutes; ``--rounds 3`` for a quick try). The parent has read from the
same server before each round, which is when forks used to hang.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import data
import pyarrow as pa
import pyarrow.parquet as pq
from object_server import serving

JOB = Path(__file__).parent.parent / "tests" / "jobs" / "s3_workers.py"


def numbered(beside: Path) -> None:
    """Write 4 files of 10 row groups of 100 rows."""
    beside.mkdir()
    for file in range(4):
        ids = range(1000 * file, 1000 * (file + 1))
        pq.write_table(pa.table({"id": ids, "label": ids}), beside / f"part-{file}.parquet", row_group_size=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=data.DEFAULT_FOLDER)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    folder = asked.data / "workers"
    data.made_once(folder / "bucket", numbered)
    with serving(folder, latency=0.03, rate=90e6) as server:
        for context in ("fork", "spawn", "forkserver"):
            began = time.perf_counter()
            job = [sys.executable, str(JOB), "s3://bucket", server.endpoint, context, str(asked.rounds)]
            done = subprocess.run(job, capture_output=True, text=True, timeout=60 + 30 * asked.rounds, check=True)
            right = done.stdout.count("True\n")
            print(f"{context}: {right} of {asked.rounds} right, {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()

"""Loader workers that read from S3, however they are started, after their parent has done so."""

from pathlib import Path

import pytest
from conftest import RAGGED, RAGGED_ROWS, write_dataset
from processes import run
from servers import moto_server

ROUNDS = 3
HANG_S = 200
"""Seconds after which it hangs."""


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_read_from_s3(tmp_path: Path, context: str) -> None:
    folder = write_dataset(tmp_path / "data", RAGGED)
    with moto_server(tmp_path / "log") as server:
        client = server.client()
        client.create_bucket(Bucket="workers")
        for file in folder.iterdir():
            client.put_object(Bucket="workers", Key=file.name, Body=file.read_bytes())
        client.close()
        job = ["tests/jobs/s3_workers.py", "s3://workers", server.endpoint, context, str(ROUNDS)]
        said = run(job, timeout_s=HANG_S, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert said.split("\n")[:-1] == [f"{RAGGED_ROWS} True"] * ROUNDS

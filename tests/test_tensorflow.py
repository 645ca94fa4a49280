"""TensorFlow, in processes of its own: its threads do not go with the forks of other tests."""

import os
import subprocess
import sys
from pathlib import Path

from conftest import write_dataset

TESTS = Path(__file__).parent


def run(arguments: list[str], timeout_s: float = 150) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=TESTS.parent,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_cases() -> None:
    run(["-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", "-q", "tests/tensorflow_cases.py"])


def test_a_missing_extra_says_what_to_type() -> None:
    code = (
        "import sys; sys.modules['tensorflow'] = None\n"
        "try: import corgiarrow.tensorflow\n"
        "except ImportError as error: print(repr(error))"
    )
    found = run(["-c", code])
    assert found.startswith("MissingExtraError")
    assert "pip install 'corgiarrow[tensorflow]'" in found


def test_a_process_may_end_in_the_middle(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows", [[300], [300]])
    code = (
        "import corgiarrow.tensorflow, sys\n"
        f"under_way = iter(corgiarrow.tensorflow.dataset({str(tmp_path / 'rows')!r}, columns=['x'], batch_size=4))\n"
        "next(under_way); print('so far')"
    )
    assert run(["-c", code], timeout_s=60).strip() == "so far"

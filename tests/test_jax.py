"""JAX, in processes of its own: it warns of every fork once it is imported, and other tests fork."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from conftest import write_dataset
from processes import run, run_examples

TESTS = Path(__file__).parent
FOUR_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}


def test_cases() -> None:
    run(["-m", "pytest", "-o", "addopts=", "-p", "no:cacheprovider", "-q", "tests/jax_cases.py"], **FOUR_DEVICES)


def test_a_missing_extra_says_what_to_type() -> None:
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "try: import corgiarrow.jax\n"
        "except ImportError as error: print(repr(error))"
    )
    found = run(["-c", code])
    assert found.startswith("MissingExtraError")
    assert "pip install 'corgiarrow[jax]'" in found


def test_examples(tmp_path: Path) -> None:
    """They learn what there is to learn: label = 2 f0 − f1."""
    found = run_examples("jax.md", tmp_path, epilogue="print(w.tolist())", **FOUR_DEVICES)
    assert abs(eval(found)[0] - 2) < 0.7


def test_two_processes(tmp_path: Path) -> None:
    """Each process reads its part, and global arrays hold both, in order."""
    write_dataset(tmp_path / "rows", [[30, 10], [5, 55], [60]])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | FOUR_DEVICES | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    environment["PYTHONPATH"] = str(TESTS.parent)
    script = [sys.executable, str(TESTS / "jax_two_processes.py"), str(port), str(tmp_path / "rows")]
    both = [
        subprocess.Popen(
            [*script, str(rank)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=90)[0] for process in both]
    finally:
        for process in both:
            process.kill()
            process.wait()
    assert [process.returncode for process in both] == [0, 0], "\n".join(said)
    assert all("as it should be" in text for text in said)

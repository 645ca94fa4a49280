"""TensorFlow, in processes of its own: its threads do not go with the forks of other tests."""

from pathlib import Path

from conftest import write_dataset
from processes import run, run_examples


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


def test_examples(tmp_path: Path) -> None:
    said = "print(model.optimizer.iterations.numpy(), batch['x'].shape)"
    found = run_examples("tensorflow.md", tmp_path, epilogue=said)
    assert found.split() == ["64", "(64,", "2)"]


def test_a_process_may_end_in_the_middle(tmp_path: Path) -> None:
    write_dataset(tmp_path / "rows", [[300], [300]])
    code = (
        "import corgiarrow.tensorflow, sys\n"
        f"under_way = iter(corgiarrow.tensorflow.dataset({str(tmp_path / 'rows')!r}, columns=['x'], batch_size=4))\n"
        "next(under_way); print('so far')"
    )
    assert run(["-c", code], timeout_s=60).strip() == "so far"

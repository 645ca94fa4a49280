"""What holds for the project as a whole: style, types, layers, public names, a light import."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import corgiarrow as ca
from corgiarrow.loader import ReaderOptions
from corgiarrow.opening import DataOptions

ROOT = Path(__file__).parent.parent

PUBLIC = """
AccessDeniedError BlockIndex BlockOnly BlockSource BudgetError ColumnNotFoundError ConversionError CorgiArrowError
CorgiPile EpochPlan EpochShuffle IndexFormatError Loader MRS MissingExtraError NoFilesError NoShuffle NotParquetError
OptionError ReadError Reader SchemaMismatchError ShuffleOnce SlidingWindow SourceChangedError Split Spread
StateMismatchError StorageError Strategy example_path
"""  # One word a name; the test below compares.


CHECKS = {
    "ruff": ["-m", "ruff", "check", "--no-cache", "."],
    "mypy": ["-m", "mypy", "--cache-dir=/dev/null"],
    "layers": ["-c", "from importlinter.cli import lint_imports_command as lint; lint()", "--no-cache"],
}


@pytest.mark.parametrize("name", CHECKS)
def test_checks(name: str) -> None:
    run = [sys.executable, *CHECKS[name]]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_public_names() -> None:
    assert sorted(ca.__all__) == PUBLIC.split()
    assert all(getattr(ca, name).__doc__ for name in ca.__all__)


def test_adapters_hand_on_every_keyword_of_the_reader() -> None:
    settled = {"self", "data", "batch_size", "rank", "world_size", "worker", "num_workers", "threads", "access"}
    reach = inspect.get_annotations(DataOptions)
    known = {n: kind for n, kind in inspect.get_annotations(ReaderOptions).items() if n not in reach}
    assert reach.items() <= inspect.get_annotations(ReaderOptions).items()
    signature = inspect.signature(ca.Reader.__init__).parameters
    assert {n: p.annotation for n, p in signature.items() if n not in settled} == known


def test_every_error_is_ours() -> None:
    errors = [getattr(ca, n) for n in ca.__all__ if n.endswith("Error")]
    assert all(issubclass(e, ca.CorgiArrowError) for e in errors)


def test_import_brings_no_framework() -> None:
    heavy = {
        "torch",
        "jax",
        "keras",
        "PIL",
        "tensorflow",
        "sklearn",
        "pandas",
        "matplotlib",
        "s3fs",
        "botocore",
        "aiohttp",
        "typer",
        "rich",
    }
    code = f"import sys, corgiarrow; print(sorted({heavy!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_an_extra_that_is_missing_says_what_to_type() -> None:
    code = (
        "import sys; sys.modules['sklearn'] = None; sys.modules['sklearn.linear_model'] = None\n"
        "import sys; from corgiarrow.cli import main; sys.argv = ['corgiarrow', 'demo']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "pip install 'corgiarrow[demo]'" in done.stderr
    assert "Traceback" not in done.stderr

"""A small real dataset in the package."""

from pathlib import Path


def example_path() -> Path:
    """Return the path of the UCI digits as Parquet: 1,797 images of 8 × 8, sorted by label, in 100 row groups.

    Columns: ``pixels``, fixed-size list of 64 uint8 in 0 … 16, and ``label``, uint8 in 0 … 9. CC BY 4.0, see
    ``corgiarrow/data/README.md``.
    """
    return Path(__file__).parent / "data" / "digits.parquet"

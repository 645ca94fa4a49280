"""Writing to a local disk so that nothing is half-written."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path


def write_atomic(path: str | os.PathLike[str], write: Callable[[Path], object]) -> None:
    """Write a local file, or folder of files, so that it is whole or not there: beside, flushed to disk, renamed."""
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        write(beside)
        for part in [*beside.iterdir(), beside] if beside.is_dir() else [beside]:
            _flush(part)
        beside.replace(target)
    finally:
        if beside.is_dir():
            shutil.rmtree(beside)
        beside.unlink(missing_ok=True)
    _flush(target.parent)


def _flush(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)

"""Writing to a local disk so that nothing is half-written."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from corgiarrow.errors import OptionError
from corgiarrow.storage.redaction import redact


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


def local_path(path: str | os.PathLike[str], option: str) -> Path:
    """Return a path at which a file or folder may be written.

    Raises
    ------
    OptionError
        Its folder is not there, or may not be written to, or it is a URL.
    """
    text = os.fspath(path)
    if "://" in text:
        raise OptionError(f"{option}={redact(text)!r} must be a local path: write it there, and copy it then")
    target = Path(text)
    if not target.name or not target.parent.is_dir():
        raise OptionError(f"{option}={text!r}: there is no folder {str(target.parent)!r}; make it first")
    if not os.access(target.parent, os.W_OK):
        raise OptionError(f"{option}={text!r}: the folder {str(target.parent)!r} may not be written to")
    return target


def _flush(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)

"""Indexes of remote files, kept in the user's cache folder from one run to the next."""

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from corgiarrow.errors import IndexFormatError
from corgiarrow.storage import LOG, FileInfo, Storage, redact

_MOST_FILES = 64
_MOST_BYTES = 512 * 2**20
"""Those that were used longest ago go when there are more."""

T = TypeVar("T")


def folder() -> Path:
    """Return where indexes are kept: ``$XDG_CACHE_HOME/corgiarrow``, by default ``~/.cache/corgiarrow``."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "corgiarrow"


def key_of(storage: Storage, files: Sequence[FileInfo], options: Sequence[object]) -> str:
    """Return a key of an index: it changes with the files' names, sizes and etags, and with the options.

    It is "" where nothing shall be kept: local footers are read quickly, and a file without an etag may be another one
    of the same size and second.
    """
    if storage.is_local or not all(file.tells_content for file in files):
        return ""
    digest = hashlib.sha256(f"{storage.access.place}\0{redact(storage.root)}\0{options!r}".encode())
    for file in files:
        digest.update(f"{file.path}\0{file.size}\0{file.version}\0".encode())
    return digest.hexdigest()[:32]


def get(key: str, load: Callable[[Path], T]) -> T | None:
    """Return the index that is kept under a key, or None."""
    path = folder() / f"{key}.index"
    try:
        found = load(path)
        path.touch()
    except (IndexFormatError, OSError):
        return None  # There is none, or another version's: it is made anew.
    return found


def put(key: str, save: Callable[[Path], None]) -> None:
    """Keep an index, where the folder can be written."""
    place = folder()
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        save(place / f"{key}.index")
        _prune(place)
    except OSError as error:
        LOG.debug("no index is kept in %s: %s", place, type(error).__name__)


def _prune(place: Path) -> None:
    kept = sorted(((p.stat().st_mtime, p.stat().st_size, p) for p in place.glob("*.index")), reverse=True)
    total = 0
    for number, (_, nbytes, path) in enumerate(kept):
        total += nbytes
        if number >= _MOST_FILES or total > _MOST_BYTES:
            path.unlink(missing_ok=True)

"""From URLs to a file system and its files: listing, byte ranges through faults, a local cache, and no secret told."""

from corgiarrow.storage.access import AccessOptions
from corgiarrow.storage.faults import LOG, as_ours
from corgiarrow.storage.fetching import FileInfo, Ranges, Traffic, cut
from corgiarrow.storage.files import (
    PARQUET_SUFFIXES,
    Storage,
    check_keywords,
    find_files,
    open_access,
    read_whole,
    write_whole,
)
from corgiarrow.storage.redaction import redact, redact_message, without_secrets
from corgiarrow.storage.writing import local_path, write_atomic

__all__ = [
    "LOG",
    "PARQUET_SUFFIXES",
    "AccessOptions",
    "FileInfo",
    "Ranges",
    "Storage",
    "Traffic",
    "as_ours",
    "check_keywords",
    "cut",
    "find_files",
    "local_path",
    "open_access",
    "read_whole",
    "redact",
    "redact_message",
    "without_secrets",
    "write_atomic",
    "write_whole",
]

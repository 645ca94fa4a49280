"""Bytes as people write them."""

import re

import numpy as np

from corgiarrow.errors import OptionError

_UNITS = {"": 1, "B": 1} | {
    prefix + suffix: base**power
    for power, prefix in enumerate("KMGT", start=1)
    for suffix, base in (("iB", 1024), ("B", 1000))
}
_UNITS["kB"] = 1000


def parse_bytes(name: str, value: int | str) -> int:
    """Return a number of bytes from a number or a string such as ``"512 MiB"`` or ``"2GB"``.

    Raises
    ------
    OptionError
        `value` is neither, or not positive.
    """
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
        if not match or match[2] not in _UNITS:
            raise OptionError(f"{name}={value!r} must be bytes, or a string such as '512 MiB' or '2 GB'")
        value = int(float(match[1]) * _UNITS[match[2]])
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise OptionError(f"{name}={value!r} must be a positive number of bytes, or a string such as '512 MiB'")
    return int(value)


def show_bytes(count: float) -> str:
    """Return a number of bytes for a person, such as ``"7.6 MiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"

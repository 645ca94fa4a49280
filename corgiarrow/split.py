"""A part of the data that is held out: chosen by a hash, so every reader agrees about it without a copy of the data."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from corgiarrow.errors import OptionError
from corgiarrow.randomness import mix

HASH_VERSION = 1
"""Changes whenever the same row or row group would come to lie on the other side."""

_AT_ONCE = 2**16
"""Values that are Python objects at the same time."""

PARTS = ("train", "held_out")

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """One of two parts of the data, the rows to train on or those that are held out to score.

    Both parts together are all rows, and no row is in both. Which part a row lies in depends on the data, `held_out`
    and `by`, never on seed, strategy, rank, workers, batch size or the columns read.

    With ``by=None`` whole row groups are held out, chosen by their files' relative paths and their numbers, so nothing
    is read to know them. On data that is sorted by label this may hold out whole classes, or none of one. With `by` the
    name of a column, rows are held out by a hash of its value: an id draws rows evenly whatever the order of the data,
    an entity (a user, a patient, a document) keeps all of its rows on one side. Rows are then counted first, reading
    that column only.

    Parameters
    ----------
    part
        ``"train"`` or ``"held_out"``.
    held_out
        Part of the row groups, or of the distinct values of the column, that is held out, in (0, 1).
    by
        Name of a column of numbers, text, binary, dates or times; ``"a.b"`` is field ``b`` of struct column ``a``.
        None holds out whole row groups. Null is a value as any other, so all rows that have it are on one side.

    Raises
    ------
    OptionError
        One of them is out of its bounds.
    """

    part: str
    held_out: float = 0.1
    by: str | None = None

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise OptionError(f"part={self.part!r} must be 'train' or 'held_out'")
        number = isinstance(self.held_out, int | float | np.floating) and not isinstance(self.held_out, bool)
        if not number or not 0 < self.held_out < 1:
            raise OptionError(f"held_out={self.held_out!r} must be a number in (0, 1), such as 0.1")
        if self.by is not None and not (isinstance(self.by, str) and self.by):
            raise OptionError(f"by={self.by!r} must be the name of one column, or None for whole row groups")

    @property
    def other(self) -> "Split":
        """The other part: ``"held_out"`` for ``"train"``, ``"train"`` for ``"held_out"``."""
        return replace(self, part=PARTS[self.part == PARTS[0]])

    @property
    def key(self) -> str:
        """Text that tells this part of this split from others."""
        return f"split {HASH_VERSION}\0{self.part}\0{float(self.held_out)!r}\0{self.by or ''}"

    def groups(self, paths: Sequence[str], files: Int64s, numbers: Int64s, rows: Int64s) -> Bools:
        """Choose row groups, for ``by=None``: ``round(held_out * n)`` of the `n` that have rows are held out.

        Parameters
        ----------
        paths
            Relative paths of the files.
        files, numbers, rows
            File, number in its file, and rows of each row group, int64 [row groups].

        Returns
        -------
        Whether each row group is in this part, bool [row groups]; one without rows may be in either.

        Raises
        ------
        OptionError
            There are fewer than two row groups with rows.
        """
        filled = np.flatnonzero(rows)
        if len(filled) < 2:
            raise OptionError(
                f"split= without by= holds out whole row groups, at least 1 of at least 2, but the data has "
                f"{len(filled)} with rows: hold out rows by a column, as by='id'"
            )
        count = min(max(round(float(self.held_out) * len(filled)), 1), len(filled) - 1)
        hashes = mix(_hash_bytes([path.encode() for path in paths])[files[filled]] + numbers[filled].astype(np.uint64))
        held = np.zeros(len(rows), dtype=np.bool_)
        held[filled[np.argsort(hashes, kind="stable")[:count]]] = True
        return self._mine(held)

    def rows(self, column: pa.ChunkedArray) -> Bools:
        """Whether each row is in this part by its value of the column `by`, bool [rows]."""
        below = np.uint64(int(float(self.held_out) * 2.0**64))
        held = [hash_values(chunk) < below for chunk in column.chunks]
        return self._mine(np.concatenate([np.empty(0, dtype=np.bool_), *held]))

    def _mine(self, held: Bools) -> Bools:
        return held if self.part == "held_out" else ~held


def can_hash(kind: pa.DataType) -> bool:
    """Whether :func:`hash_values` takes values of a type: anything but nested types."""
    if isinstance(kind, pa.BaseExtensionType):
        return can_hash(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return can_hash(kind.value_type)
    plain = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    times = pa.types.is_temporal(kind) and not pa.types.is_interval(kind)
    return bool(plain or times or pa.types.is_null(kind) or _is_bytes(kind))


def hash_values(values: pa.Array) -> UInt64s:
    """Hash values so that it is the same for ever, on every platform, uint64 [values].

    Equal values have equal hashes, whether they come plain or as a dictionary, and whatever their type's width:
    integers, floats, text and binary, decimals of one scale, dates and times of one unit. ``-0.0`` is 0, any NaN is one
    value, null is another. Numbers and times go as 64 bits through the finaliser of SplitMix64; the bytes of text,
    binary and decimals (32 of each, little-endian) through BLAKE2b, a distinct value once.
    """
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    kind = values.type
    if pa.types.is_dictionary(kind):
        if len(values.dictionary) > len(values):
            return hash_values(values.dictionary_decode())  # A few rows of a long dictionary.
        return _picked(hash_values(values.dictionary), values.indices)
    if pa.types.is_null(kind):
        return np.full(len(values), _NULL)
    if _is_bytes(kind):
        if pa.types.is_decimal(kind):
            values = values.cast(pa.decimal256(76, kind.scale))
        encoded = values.dictionary_encode()
        return _picked(_hash_distinct(encoded.dictionary), encoded.indices)
    hashes = mix(_as_numbers(values).fill_null(0).to_numpy().view(np.uint64))
    if values.null_count:
        hashes[values.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _is_bytes(kind: pa.DataType) -> bool:
    """Whether a type's values are hashed as bytes."""
    types = pa.types
    tests = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_decimal)
    return any(test(kind) for test in (*tests, types.is_fixed_size_binary))


def _as_numbers(values: pa.Array) -> pa.Array:
    """Numbers and times as 64 bits that are equal where the values are."""
    kind = values.type
    if pa.types.is_floating(kind):
        wide = values.cast(pa.float64())
        numbers = wide.fill_null(0).to_numpy().copy()
        numbers[numbers == 0] = 0.0  # -0.0 is equal to it, but has other bits.
        numbers[np.isnan(numbers)] = np.nan
        return pa.array(numbers.view(np.int64))
    if pa.types.is_temporal(kind):
        return values.view(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64())
    return values.view(pa.int64()) if pa.types.is_uint64(kind) else values.cast(pa.int64())


def _as_bytes(distinct: pa.Array) -> list[bytes]:
    if not pa.types.is_decimal(distinct.type):
        found: list[bytes] = distinct.cast(pa.large_binary()).to_pylist()
        return found
    width = distinct.type.byte_width
    data = memoryview(distinct.buffers()[1] or b"")[distinct.offset * width :]
    return [bytes(data[n * width : (n + 1) * width]) for n in range(len(distinct))]


def _hash_distinct(values: pa.Array) -> UInt64s:
    parts = (values[first : first + _AT_ONCE] for first in range(0, len(values), _AT_ONCE))
    return np.concatenate([np.empty(0, dtype=np.uint64), *(_hash_bytes(_as_bytes(part)) for part in parts)])


def _hash_bytes(values: Sequence[bytes]) -> UInt64s:
    digests = b"".join(hashlib.blake2b(value, digest_size=8).digest() for value in values)
    return np.frombuffer(digests, dtype="<u8").astype(np.uint64)


def _picked(hashes: UInt64s, indices: pa.Array) -> UInt64s:
    """Pick the hash of each value of a dictionary, and that of null where there is none."""
    found: UInt64s = np.append(hashes, _NULL)[indices.cast(pa.int64()).fill_null(len(hashes)).to_numpy()]
    return found


_NULL = _hash_bytes([b"corgiarrow null"])[0]

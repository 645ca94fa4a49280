"""Random numbers that are the same for ever: seeds, and permutations from raw bits.

Only ``SeedSequence`` and the raw output of a bit generator are stable across numpy releases, so nothing here
uses ``numpy.random.Generator``.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from corgiarrow.errors import OptionError

ORDER_VERSION = 2
"""Changes whenever the same seed would give another order."""

Bits = np.random.PCG64DXSM
StepBits = Callable[[int], Bits]
"""From the number of a step to the random bits of that step."""

_WORD = 2**32
_AT_ONCE = 2**16
"""Numbers that are made at a time, so that they stay in the cache."""


def block_bits(seed: int, epoch: int) -> Bits:
    """Random bits that order the blocks of an epoch."""
    return Bits(np.random.SeedSequence(seed, spawn_key=(epoch,)))


def row_bits(seed: int, epoch: int, stream: int) -> StepBits:
    """Random bits that order the rows of each step of a stream in an epoch."""

    def of_step(step: int) -> Bits:
        return Bits(np.random.SeedSequence(seed, spawn_key=(epoch, stream, step)))

    return of_step


def check_seed(name: str, value: int) -> int:
    """Return `value` when it can be part of a seed, a whole number in [0, 2³²).

    Raises
    ------
    OptionError
        `value` is not such a number.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < _WORD:
        raise OptionError(f"{name}={value!r} must be a whole number in [0, 2**32)")
    return int(value)


def permutation(length: int, bits: Bits) -> npt.NDArray[np.uint64]:
    """Return a random permutation of ``0 .. length - 1``, uint64 [length].

    Each number carries 64 − log₂(length) random bits above its own value; sorting them permutes the values. Where
    the random parts of two numbers tie (once in 2⁴² pairs at 2²² rows) the smaller value comes first.
    """
    low_bits = max(int(length - 1).bit_length(), 1)
    mask = np.uint64((1 << low_bits) - 1)
    keys: npt.NDArray[np.uint64] = bits.random_raw(length)
    keys &= ~mask
    for first in range(0, length, _AT_ONCE):
        part = keys[first : first + _AT_ONCE]
        part |= np.arange(first, first + len(part), dtype=np.uint64)
    keys.sort()
    keys &= mask
    return keys


def mix(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble 64 bits, each number into another: the finaliser of SplitMix64, uint64 of the same shape."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))

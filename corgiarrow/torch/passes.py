"""Which epoch a pass reads, agreed upon by loader workers that do not talk to each other.

A ``DataLoader`` tells its dataset neither that a pass begins nor that it was finished, and makes its worker processes
anew for each pass, or keeps them. So each pass that begins is an epoch, and the count lies in memory that all of these
processes share: a word a worker, written by it alone, and the command (``set_epoch``, ``seek``) of the main process.
"""

import zlib

import torch

from corgiarrow.errors import OptionError

MAX_WORKERS = 1024

_EPOCH_BITS, _COMMAND_BITS = 32, 12
_COMMAND, _EPOCH, _STEP, _STREAMS, _SLOTS = range(5)


class Passes:
    """Epochs of passes, in shared memory. It may cross a fork, or be pickled to another process.

    Each worker notes the last pass that it began as one number of 64 bits, so that no other can see half of it: a
    checksum of the pass's name, which command it followed, and the epoch.
    """

    def __init__(self) -> None:
        self._shared = torch.zeros(_SLOTS + MAX_WORKERS, dtype=torch.int64)
        self._shared.share_memory_()  # type: ignore[no-untyped-call]

    def command(self, epoch: int, step: int = 0, streams: int = 0) -> None:
        """Make the next pass read an epoch, from a step (of a rank) on; `streams` is 0 where nothing settles it."""
        self._shared[_EPOCH], self._shared[_STEP], self._shared[_STREAMS] = epoch, step, streams
        # Last, since it is what workers look at. 0 marks a word that was never written.
        self._shared[_COMMAND] = int(self._shared[_COMMAND]) % (2**_COMMAND_BITS - 1) + 1

    @property
    def commanded(self) -> tuple[int, int, int]:
        """Epoch, step and streams of the last command."""
        return int(self._shared[_EPOCH]), int(self._shared[_STEP]), int(self._shared[_STREAMS])

    def begun(self) -> bool:
        """Whether a pass has begun since the last command."""
        return bool(self._noted())

    def begin(self, worker: int, name: str, epoch: int | None = None) -> tuple[int, int, int]:
        """Begin a pass; return the epoch, the step to begin at, and the streams (0 where nothing settles them).

        Parameters
        ----------
        worker
            Number of the worker, in [0, :data:`MAX_WORKERS`).
        name
            Name of the pass: the same for all workers of one pass, another for the next.
        epoch
            The epoch, where a saved position of this worker tells.
        """
        if worker >= MAX_WORKERS:
            raise OptionError(f"worker={worker} must be less than {MAX_WORKERS}")
        check = zlib.crc32(name.encode()) >> (_EPOCH_BITS + _COMMAND_BITS - 32)
        noted, step, first = self._noted(), 0, int(self._shared[_EPOCH])
        if epoch is None:
            here = [n for sum_, n in noted if sum_ == check]
            before = [n for sum_, n in noted if sum_ != check]
            epoch = here[0] if here else max(before) + 1 if before else first
            if not before and epoch == first:
                step = int(self._shared[_STEP])
        word = (check << _COMMAND_BITS | int(self._shared[_COMMAND])) << _EPOCH_BITS | epoch
        self._shared[_SLOTS + worker] = word - 2**64 * (word >= 2**63)
        return epoch, step, int(self._shared[_STREAMS])

    def _noted(self) -> list[tuple[int, int]]:
        """Checksum and epoch of the passes that workers noted since the last command."""
        command = int(self._shared[_COMMAND])
        words = [word % 2**64 for word in self._shared[_SLOTS:].tolist() if word]
        return [
            (word >> (_EPOCH_BITS + _COMMAND_BITS), word % 2**_EPOCH_BITS)
            for word in words
            if (word >> _EPOCH_BITS) % 2**_COMMAND_BITS == command
        ]

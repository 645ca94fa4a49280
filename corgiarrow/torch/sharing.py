"""Batches on their way from a worker process, through memory that both processes map once.

PyTorch itself sends every tensor through a file of its own, which costs more than reading it. Here a worker copies the
tensors of a batch to a slot of a ring of shared memory, and sends where they lie. They arrive as tensors in that slot,
and the slot is free again when the last of them is gone.
"""

import ctypes
import os
import weakref
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch

from corgiarrow.arrays.values import Array, map_leaves

_SLOTS = 8
"""More than a loader keeps on the way from one worker, and its user at hand; further batches travel by themselves."""

_ALIGNMENT = 64
_HEAD = 64
"""Bytes before the slots: one for each, 1 while it is taken."""

_DTYPES = {torch.from_numpy(np.zeros(0, code)).dtype: np.dtype(code).str for code in "?BHILbhilefd"}
"""NumPy's name of each dtype that both know."""


class _Spot(NamedTuple):
    """Where in its slot a tensor lies."""

    start: int
    dtype: str
    shape: tuple[int, ...]


class _Ring:
    """Shared memory, and its slots."""

    def __init__(self, memory: torch.Tensor):
        self.memory = memory
        self.bytes: Array = memory.numpy()
        self.taken = self.bytes[:_SLOTS]
        self.capacity = (len(self.bytes) - _HEAD) // _SLOTS

    def slot(self, number: int) -> Any:
        """Return a new view of the slot: no array, since NumPy would pass it over as the base of its own views."""
        return (ctypes.c_char * self.capacity).from_buffer(self.bytes.data, _HEAD + number * self.capacity)

    def free(self, number: int) -> None:
        """Let the worker use the slot again."""
        self.taken[number] = 0


class SharedBatch(dict[str, Any]):
    """A dict of tensors that lie in a slot, on its way; it arrives as a plain dict."""

    place: "_Place"


class _Place:
    """Which slot of which ring a batch lies in, and whether it was sent: then the slot is the receiver's to free."""

    def __init__(self, sender: "Sender", ring: _Ring, number: int):
        self.sender, self.ring, self.number = sender, ring, number
        self.sent = False


class Sender:
    """A worker's ring; it is made anew when a batch is larger than its slots."""

    def __init__(self) -> None:
        self._ring: _Ring | None = None
        self._rings = 0
        self.announced = False
        """Whether the receiver has been sent the ring's memory."""

    @property
    def key(self) -> tuple[int, int]:
        """What tells this ring from others: this process, and how many it has made."""
        return os.getpid(), self._rings

    def shared(self, batch: Any) -> Any:
        """Copy a dict of tensors to shared memory; return anything else, and what finds no slot, as it is."""
        if not isinstance(batch, dict):
            return batch
        size, moved = 0, []

        def place(value: Any) -> Any:
            nonlocal size
            if not isinstance(value, torch.Tensor) or not _is_plain(value):
                return value
            array = value.contiguous().numpy()
            spot = _Spot(size, array.dtype.str, array.shape)
            moved.append((spot, array))
            size += _aligned(array.nbytes)
            return spot

        spots = map_leaves(place, batch)
        if self._ring is None or size > self._ring.capacity:
            self._new_ring(size)
        ring = self._ring
        assert ring is not None
        free = np.flatnonzero(ring.taken == 0)
        if not len(free):
            return batch
        number = int(free[0])
        ring.taken[number] = 1
        slot = ring.slot(number)
        to = np.frombuffer(slot, np.uint8)
        for spot, array in moved:
            to[spot.start : spot.start + array.nbytes] = array.reshape(-1).view(np.uint8)
        made = SharedBatch(_unpacked(slot, spots))
        made.place = _Place(self, ring, number)
        return made

    def _new_ring(self, size: int) -> None:
        memory = torch.empty(0, dtype=torch.uint8)
        nbytes = _HEAD + _SLOTS * _aligned(size + size // 4 + 1)
        memory.set_(torch.UntypedStorage._new_shared(nbytes))  # type: ignore[no-untyped-call]
        self._ring, self._rings, self.announced = _Ring(memory), self._rings + 1, False


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _DTYPES and tensor.device.type == "cpu" and not tensor.requires_grad


def _unpacked(slot: Any, spots: dict[str, Any]) -> dict[str, Any]:
    def tensor(spot: Any) -> Any:
        if not isinstance(spot, _Spot):
            return spot
        return torch.from_numpy(np.ndarray(spot.shape, spot.dtype, slot, spot.start))

    return {name: map_leaves(tensor, value) for name, value in spots.items()}


def _sent(batch: SharedBatch) -> tuple[Any, ...]:
    """How a process sends a batch: where each tensor lies; what was put in since goes as it is."""
    place = batch.place
    if place.sent:
        # Another receiver would not know when the slot is free.
        return dict, (map_leaves(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, dict(batch)),)
    slot = place.ring.slot(place.number)
    start, size = ctypes.addressof(slot), len(slot)

    def spot(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        offset = value.data_ptr() - start
        if not (_is_plain(value) and 0 <= offset <= size - value.nbytes):
            return value
        if not value.is_contiguous():
            return value.clone()
        return _Spot(offset, _DTYPES[value.dtype], tuple(value.shape))

    spots = map_leaves(spot, dict(batch))
    place.sent = True
    sender = place.sender
    if place.ring is not sender._ring:
        return _from_memory, (place.ring.memory, place.number, spots)
    memory, sender.announced = None if sender.announced else place.ring.memory, True
    return _arrived, (sender.key, memory, place.number, spots)


ForkingPickler.register(SharedBatch, _sent)

_RINGS: dict[tuple[int, int], _Ring] = {}
"""In the receiving process: the rings that workers announced."""


def _arrived(key: tuple[int, int], memory: torch.Tensor | None, number: int, spots: dict[str, Any]) -> dict[str, Any]:
    if memory is not None:
        for pid, count in list(_RINGS):
            if not _is_alive(pid):
                del _RINGS[pid, count]
        _RINGS[key] = _Ring(memory)
    return _received(_RINGS[key], number, spots)


def _from_memory(memory: torch.Tensor, number: int, spots: dict[str, Any]) -> dict[str, Any]:
    return _received(_Ring(memory), number, spots)


def _received(ring: _Ring, number: int, spots: dict[str, Any]) -> dict[str, Any]:
    slot = ring.slot(number)
    weakref.finalize(slot, ring.free, number).atexit = False
    return _unpacked(slot, spots)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

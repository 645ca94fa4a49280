"""Batches on their way from a worker process, through memory that both processes map once.

PyTorch itself sends every tensor through a file of its own, which costs more than reading it. Here a worker copies the
tensors of a batch to a slot of a ring of shared memory, and sends where they lie. They arrive as tensors in that slot,
and the slot is free again when the last of them is gone.
"""

import ctypes
import os
import weakref
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch

from corgiarrow.arrays.values import Array, map_leaves
from corgiarrow.torch.tensors import TorchOut

_SLOTS = 8
"""More than a loader keeps on the way from one worker, and its user at hand; further batches travel by themselves."""

_ALIGNMENT = 64
_HEAD = 64
"""Bytes before the slots: one for each, 1 while it is taken."""

_DTYPES = {torch.from_numpy(np.zeros(0, code)).dtype: np.dtype(code).str for code in "?BHILbhilefd"}
"""NumPy's name of each dtype that both know."""


_OUT = TorchOut()


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

    def start(self, number: int) -> int:
        """Return where the slot begins."""
        return _HEAD + number * self.capacity

    def slot(self, number: int) -> Any:
        """Return a new view of the slot: no array, since NumPy would pass it over as the base of its own views."""
        return (ctypes.c_char * self.capacity).from_buffer(self.bytes.data, self.start(number))

    def free(self, number: int) -> None:
        """Let the worker use the slot again."""
        self.taken[number] = 0


class SharedBatch:
    """A batch in a slot, on its way; it arrives as a dict of tensors.

    Here it is read and written like that dict, for whoever collates; it is none, so that those who only look for dicts
    to convert pass it on as it is.
    """

    def __init__(self, sender: "Sender", ring: _Ring, number: int, spots: dict[str, Any]):
        self._sender, self._ring, self._number, self._spots = sender, ring, number, spots
        self._dict: dict[str, Any] | None = None
        self._sent = False

    def _tensors(self) -> dict[str, Any]:
        if self._dict is None:
            self._dict = _unpacked(self._ring.slot(self._number), self._spots)
        return self._dict

    def __getitem__(self, name: str) -> Any:
        return self._tensors()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._tensors()[name] = value

    def __delitem__(self, name: str) -> None:
        del self._tensors()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors())

    def __len__(self) -> int:
        return len(self._tensors())

    def keys(self) -> KeysView[str]:
        """Return the names."""
        return self._tensors().keys()

    def values(self) -> ValuesView[Any]:
        """Return the tensors."""
        return self._tensors().values()

    def items(self) -> ItemsView[str, Any]:
        """Return names and tensors."""
        return self._tensors().items()

    def parcel(self) -> tuple[Any, ...]:
        """Return what to send: a function, and its arguments, that make the dict where it arrives."""
        if self._sent:
            # A second receiver would not know when the slot is free.
            copy = map_leaves(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, self._tensors())
            return dict, (copy,)
        self._sent = True
        spots = self._spots if self._dict is None else self._seen_again(self._dict)
        return self._sender.address(self._ring, self._number, spots)

    def _seen_again(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Where those tensors lie that still do; what was put in since goes as it is."""
        slot = self._ring.slot(self._number)
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

        return map_leaves(spot, tensors)  # type: ignore[no-any-return]


class Sender:
    """A worker's ring; it is made anew when a batch is larger than its slots."""

    def __init__(self) -> None:
        self._ring: _Ring | None = None
        self._rings = 0
        self._announced = False
        """Whether the ring's memory was sent."""

    def shared(self, batch: Any) -> Any:
        """Copy a dict of arrays or tensors to shared memory; return anything else, and what finds no slot, as it is."""
        if not isinstance(batch, dict):
            return batch
        size, moved = 0, []

        def place(value: Any) -> Any:
            nonlocal size
            if isinstance(value, torch.Tensor) and _is_plain(value):
                value = value.numpy()
            if not isinstance(value, np.ndarray):
                return value
            kind = value.dtype.kind
            if kind == "O":
                return _OUT.whole(value)
            spot = _Spot(size, "<i8" if kind in "mM" else value.dtype.str, value.shape)
            moved.append((size, value))
            size += _aligned(value.nbytes)
            return spot

        spots = map_leaves(place, batch)
        if self._ring is None or size > self._ring.capacity:
            self._new_ring(size)
        ring = self._ring
        assert ring is not None
        free = np.flatnonzero(ring.taken == 0)
        if not len(free):
            return map_leaves(lambda x: _OUT.whole(x) if isinstance(x, np.ndarray) else x, batch)
        number = int(free[0])
        ring.taken[number] = 1
        start = ring.start(number)
        for offset, array in moved:
            first = start + offset
            ring.bytes[first : first + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return SharedBatch(self, ring, number, spots)

    def address(self, ring: _Ring, number: int, spots: dict[str, Any]) -> tuple[Any, ...]:
        """Return what to send of a batch in a slot; the ring's memory goes with the first."""
        if ring is not self._ring:
            return _from_memory, (ring.memory, number, spots)
        memory = None if self._announced else ring.memory
        self._announced = True
        return _arrived, ((os.getpid(), self._rings), memory, number, spots)

    def _new_ring(self, size: int) -> None:
        memory = torch.empty(0, dtype=torch.uint8)
        nbytes = _HEAD + _SLOTS * _aligned(size + size // 4 + 1)
        memory.set_(torch.UntypedStorage._new_shared(nbytes))  # type: ignore[no-untyped-call]
        self._ring, self._rings, self._announced = _Ring(memory), self._rings + 1, False


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _DTYPES and tensor.device.type == "cpu" and not tensor.requires_grad


def _unpacked(slot: Any, spots: dict[str, Any]) -> dict[str, Any]:
    def tensor(spot: Any) -> Any:
        if not isinstance(spot, _Spot):
            return spot
        return torch.from_numpy(np.ndarray(spot.shape, spot.dtype, slot, spot.start))

    return map_leaves(tensor, spots)  # type: ignore[no-any-return]


ForkingPickler.register(SharedBatch, SharedBatch.parcel)

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

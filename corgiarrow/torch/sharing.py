"""Batches on their way from a worker process: all tensors of one in a single piece of shared memory.

PyTorch itself sends every tensor through a file of its own, which costs more than reading it.
"""

from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch

from corgiarrow.arrays.values import map_leaves

_ALIGNMENT = 64


class _Spot(NamedTuple):
    """Where a tensor lies in the shared memory."""

    start: int
    dtype: str
    shape: tuple[int, ...]


class SharedBatch(dict[str, Any]):
    """A dict of tensors that lie in one piece of shared memory; it arrives as a plain dict."""

    memory: torch.Tensor


def shared(batch: dict[str, Any]) -> SharedBatch:
    """Copy a dict of tensors to shared memory."""
    size, moved = 0, []

    def place(value: Any) -> Any:
        nonlocal size
        if not isinstance(value, torch.Tensor) or not _is_plain(value):
            return value
        array = value.contiguous().numpy()
        spot = _Spot(size, array.dtype.str, array.shape)
        moved.append((spot, array))
        size += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
        return spot

    spots = map_leaves(place, batch)
    memory = torch.empty(0, dtype=torch.uint8)
    memory.set_(torch.UntypedStorage._new_shared(size))  # type: ignore[no-untyped-call]
    to = memory.numpy()
    for spot, array in moved:
        to[spot.start : spot.start + array.nbytes] = array.reshape(-1).view(np.uint8)
    made = SharedBatch(_unpacked(memory, spots))
    made.memory = memory
    return made


def _unpacked(memory: torch.Tensor, spots: dict[str, Any]) -> dict[str, Any]:
    array = memory.numpy()

    def tensor(spot: Any) -> Any:
        if not isinstance(spot, _Spot):
            return spot
        return torch.from_numpy(np.ndarray(spot.shape, spot.dtype, array, spot.start))

    return {name: map_leaves(tensor, value) for name, value in spots.items()}


def _sent(batch: SharedBatch) -> tuple[Any, ...]:
    """How a process sends a batch: the memory, and where each tensor is; what was put in since goes as it is."""
    start, size = batch.memory.data_ptr(), batch.memory.nbytes

    def spot(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and _is_plain(value) and value.is_contiguous():
            place = value.data_ptr() - start
            if place >= 0 and place + value.nbytes <= size:
                return _Spot(place, _DTYPES[value.dtype], tuple(value.shape))
        return value

    return _unpacked, (batch.memory, map_leaves(spot, dict(batch)))


ForkingPickler.register(SharedBatch, _sent)


def _is_plain(tensor: torch.Tensor) -> bool:
    return tensor.dtype in _DTYPES and tensor.device.type == "cpu" and not tensor.requires_grad


_DTYPES = {torch.from_numpy(np.zeros(0, code)).dtype: np.dtype(code).str for code in "?BHILbhilefd"}
"""NumPy's name of each dtype that both know."""

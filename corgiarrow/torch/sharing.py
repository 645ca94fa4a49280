"""Batches on their way from a worker process, through memory that both processes map once.

PyTorch itself sends every tensor through a file of its own, which costs more than reading it. Here a worker copies the
tensors of a batch, those of one dtype and shape side by side, to a slot of a ring of shared memory, and sends its
number. They arrive as tensors in that slot, and the slot is free again when the last of them is gone.
"""

import ctypes
import os
import pickle
import weakref
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Sequence, ValuesView
from math import prod
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch

from corgiarrow.arrays.values import Array, is_sparse, map_leaves
from corgiarrow.torch.tensors import TorchOut, csr_tensor

SLOTS = 8
"""More than a DataLoader keeps on the way from one worker, and its user at hand."""

MAX_SLOTS = 64
"""Bytes before the slots: one for each, 1 while it is taken."""
_ALIGNMENT = 64

_DTYPES = {np.dtype(code): torch.from_numpy(np.zeros(0, code)).dtype for code in "?BHILbhilefdFD"}
"""Dtypes that both know."""
_TENSOR_DTYPES = set(_DTYPES.values())

_OUT = TorchOut()


class _Group(NamedTuple):
    """Leaves of one dtype and shape, one after the other."""

    start: int
    dtype: str
    shape: tuple[int, ...]
    members: tuple[int, ...]
    """Numbers of the leaves."""


class _Csr(NamedTuple):
    """A matrix of sparse rows: numbers of its offsets, indices and values, and its shape."""

    offsets: int
    indices: int
    values: int
    shape: tuple[int, int]


class _Layout(NamedTuple):
    """How a batch lies in its slot.

    Its tree is the batch with each array's number in its place, a :class:`_Csr` for sparse rows, and for what is no
    array ``~n``, its number among the others.
    """

    tree: dict[str, Any]
    kinds: list[tuple[np.dtype[Any], tuple[int, ...]]]
    groups: list[_Group]
    nbytes: int


class _Ring:
    """Shared memory, and its slots."""

    def __init__(self, memory: torch.Tensor, slots: int):
        self.memory, self.slots = memory, slots
        self.bytes: Array = memory.numpy()
        self.taken = self.bytes[:slots]
        self.capacity = (len(self.bytes) - MAX_SLOTS) // slots
        self.layout: _Layout | None = None
        """The last that was sent, or arrived."""

    def slot(self, number: int) -> Any:
        """Return a new view of the slot: no array, since NumPy would pass it over as the base of its own views."""
        start = MAX_SLOTS + number * self.capacity
        return (ctypes.c_char * self.capacity).from_buffer(self.bytes.data, start)

    def free(self, number: int) -> None:
        """Let the worker use the slot again."""
        self.taken[number] = 0


class SharedBatch:
    """A batch in a slot, on its way; it arrives as a dict of tensors.

    Here it is read and written like that dict, for whoever collates; it is none, so that those who only look for dicts
    to convert pass it on as it is.
    """

    def __init__(self, sender: "Sender", ring: _Ring, number: int, slot: Any, layout: _Layout, others: "_Others"):
        self._sender, self._ring, self._number, self._slot = sender, ring, number, slot
        self._layout, self._others = layout, others
        self._leaves: list[torch.Tensor] = []
        self._dict: dict[str, Any] | None = None
        # Where it is never sent, the slot is free when this is gone, and all tensors that were taken out of it.
        self._unsent = weakref.finalize(slot, ring.free, number)
        self._unsent.atexit = False

    def _tensors(self) -> dict[str, Any]:
        if self._dict is None:
            self._leaves = _leaves(self._slot, self._layout)
            self._dict = _grown(self._layout.tree, self._leaves, self._others.values)
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
        if self._unsent.detach() is None:
            # A second receiver would not know when the slot is free.
            return dict, (map_leaves(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, self._tensors()),)
        tree, others = (None, self._others) if self._dict is None else self._seen_again(self._dict)
        return self._sender.address(self._ring, self._number, self._layout, tree, others)

    def _seen_again(self, tensors: dict[str, Any]) -> tuple[dict[str, Any], "_Others"]:
        """Tree of what a collate function left or put here; tensors that are new travel by themselves."""
        numbers = {id(leaf): number for number, leaf in enumerate(self._leaves)}
        start, others = ctypes.addressof(self._slot), list[Any]()

        def number(value: Any) -> int:
            if id(value) in numbers:
                return numbers[id(value)]
            inside = isinstance(value, torch.Tensor) and (
                value.layout != torch.strided or 0 <= value.data_ptr() - start < len(self._slot)
            )
            others.append(value.clone() if inside else value)
            return ~(len(others) - 1)

        return map_leaves(number, tensors), _Others(others)


class Pickled:
    """What was pickled already, so that a fault comes up where it was made: in a queue it would be lost.

    It arrives as what it was made of.
    """

    def __init__(self, value: Any):
        self._data = bytes(ForkingPickler.dumps(value))

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._data,)


class _Others(Pickled):
    """The parts of a batch that are no arrays; they arrive as a list."""

    def __init__(self, values: list[Any]):
        super().__init__(values)
        self.values = values


_NO_OTHERS = _Others([])


class Sender:
    """A worker's ring; it is made anew when a batch is larger than its slots.

    Parameters
    ----------
    slots
        Batches that may be on their way, or at their user's hand, up to :data:`MAX_SLOTS`; further ones travel by
        themselves.
    """

    def __init__(self, slots: int = SLOTS) -> None:
        self._slots = slots
        self._ring: _Ring | None = None
        self._rings = 0
        self._announced = False
        """Whether the ring's memory was sent."""
        self._layout: _Layout | None = None

    def shared(self, batch: Any, *, convert: bool = True) -> Any:
        """Copy a dict to shared memory; return anything else, and what finds no slot, as it is.

        Parameters
        ----------
        batch
            A batch; of a dict the tensors are copied.
        convert
            Copy arrays too, which arrive as tensors.

        Raises
        ------
        RuntimeError, TypeError, pickle.PicklingError
            A part of the dict cannot go to another process.
        """
        if type(batch) is not dict:
            return batch
        arrays, others = list[Array](), list[Any]()

        def number(value: Any) -> int | _Csr:
            if (sparse := _csr_parts(value, convert)) is not None:
                first = len(arrays)
                arrays.extend(sparse)
                return _Csr(first, first + 1, first + 2, tuple(value.shape))
            if isinstance(value, torch.Tensor) and _is_plain(value):
                arrays.append(value.numpy())
                return len(arrays) - 1
            if convert and isinstance(value, np.ndarray):
                if value.dtype.kind in "mM":
                    value = value.view(np.int64)
                if value.dtype in _DTYPES:
                    arrays.append(value)
                    return len(arrays) - 1
                value = _OUT.whole(value)
            others.append(value)
            return ~(len(others) - 1)

        tree = map_leaves(number, batch)
        kinds = [(array.dtype, array.shape) for array in arrays]
        layout = self._layout
        if layout is None or layout.kinds != kinds or layout.tree != tree:
            layout = self._layout = _lay_out(tree, kinds)
        rest = _Others(others) if others else _NO_OTHERS
        ring = self._ring
        if ring is None or layout.nbytes > ring.capacity:
            ring = self._new_ring(layout.nbytes)
        number_ = ring.taken.tobytes().find(0)
        if number_ < 0:
            return map_leaves(lambda x: _OUT.whole(x) if convert and _is_array(x) else x, batch)
        ring.taken[number_] = 1
        slot = ring.slot(number_)
        for group, joined in zip(layout.groups, _joined(slot, layout), strict=True):
            np.concatenate([np.atleast_1d(arrays[n]) for n in group.members], out=joined)
        return SharedBatch(self, ring, number_, slot, layout, rest)

    def address(
        self, ring: _Ring, number: int, layout: _Layout, tree: dict[str, Any] | None, others: _Others
    ) -> tuple[Any, ...]:
        """Return what to send of a batch in a slot; the ring's memory, and a new layout, go with the first."""
        if ring is not self._ring:
            return _from_memory, (ring.memory, ring.slots, number, layout, tree, others)
        memory = None if self._announced else (ring.memory, ring.slots)
        told = None if layout is ring.layout else layout
        self._announced, ring.layout = True, layout
        return _arrived, ((os.getpid(), self._rings), memory, number, told, tree, others)

    def _new_ring(self, size: int) -> _Ring:
        memory = torch.empty(0, dtype=torch.uint8)
        nbytes = MAX_SLOTS + self._slots * _aligned(size + size // 4 + 1)
        memory.set_(torch.UntypedStorage._new_shared(nbytes))  # type: ignore[no-untyped-call]
        self._ring, self._rings, self._announced = _Ring(memory, self._slots), self._rings + 1, False
        return self._ring


def _lay_out(tree: dict[str, Any], kinds: list[tuple[np.dtype[Any], tuple[int, ...]]]) -> _Layout:
    like: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for leaf, (dtype, shape) in enumerate(kinds):
        like.setdefault((dtype.str, shape), []).append(leaf)
    groups, nbytes = [], 0
    for (dtype_name, shape), members in like.items():
        groups.append(_Group(nbytes, dtype_name, shape, tuple(members)))
        nbytes += _aligned(len(members) * prod(shape) * np.dtype(dtype_name).itemsize)
    return _Layout(tree, kinds, groups, nbytes)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _is_plain(tensor: torch.Tensor) -> bool:
    strided = tensor.layout == torch.strided and tensor.device.type == "cpu"
    return strided and tensor.dtype in _TENSOR_DTYPES and not tensor.requires_grad


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) or is_sparse(value)


def _csr_parts(value: Any, convert: bool) -> list[Array] | None:
    """Offsets, indices and values of sparse rows; None of what is none, or has no place in a slot."""
    if convert and is_sparse(value):
        return [value.indptr, value.indices, value.data]
    if not isinstance(value, torch.Tensor) or value.layout != torch.sparse_csr or value.requires_grad:
        return None
    parts = [value.crow_indices(), value.col_indices(), value.values()]
    return [part.numpy() for part in parts] if value.dim() == 2 and all(map(_is_plain, parts)) else None


def _joined(slot: Any, layout: _Layout) -> Iterator[Array]:
    """Array of the rows of each group's leaves, one after the other."""
    for start, dtype, shape, members in layout.groups:
        rows, inner = (shape[0], shape[1:]) if shape else (1, ())
        yield np.ndarray((len(members) * rows, *inner), dtype, slot, start)


def _leaves(slot: Any, layout: _Layout) -> list[torch.Tensor]:
    """Tensors in a slot, by number."""
    found: list[Any] = [None] * len(layout.kinds)
    for group, joined in zip(layout.groups, _joined(slot, layout), strict=True):
        whole = torch.from_numpy(joined)
        parts: Iterable[torch.Tensor]
        if group.shape and group.shape[0]:
            parts = torch.unsafe_split(whole, group.shape[0])
        else:
            parts = (whole[:] if group.shape else whole[n] for n in range(len(group.members)))
        for number, part in zip(group.members, parts, strict=True):
            found[number] = part
    return found


def _grown(tree: dict[str, Any], leaves: Sequence[torch.Tensor], others: Sequence[Any]) -> dict[str, Any]:
    """Return a tree with what its numbers stand for."""

    def leaf(number: int | _Csr) -> Any:
        if isinstance(number, _Csr):
            return csr_tensor([leaves[n] for n in number[:3]], number.shape)
        return leaves[number] if number >= 0 else others[~number]

    return map_leaves(leaf, tree)  # type: ignore[no-any-return]


ForkingPickler.register(SharedBatch, SharedBatch.parcel)

_RINGS: dict[tuple[int, int], _Ring] = {}
"""In the receiving process: the rings that workers announced."""


def _arrived(
    key: tuple[int, int],
    memory: tuple[torch.Tensor, int] | None,
    number: int,
    layout: _Layout | None,
    tree: dict[str, Any] | None,
    others: list[Any],
) -> dict[str, Any]:
    if memory is not None:
        for pid, count in list(_RINGS):
            if not _is_alive(pid):
                del _RINGS[pid, count]
        _RINGS[key] = _Ring(*memory)
    ring = _RINGS[key]
    if layout is not None:
        ring.layout = layout
    assert ring.layout is not None
    return _received(ring, number, ring.layout, tree, others)


def _from_memory(
    memory: torch.Tensor, slots: int, number: int, layout: _Layout, tree: dict[str, Any] | None, others: list[Any]
) -> dict[str, Any]:
    return _received(_Ring(memory, slots), number, layout, tree, others)


def _received(
    ring: _Ring, number: int, layout: _Layout, tree: dict[str, Any] | None, others: list[Any]
) -> dict[str, Any]:
    slot = ring.slot(number)
    weakref.finalize(slot, ring.free, number).atexit = False
    return _grown(tree or layout.tree, _leaves(slot, layout), others)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

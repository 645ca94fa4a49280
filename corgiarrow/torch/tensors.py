"""Arrays as tensors that share their memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from corgiarrow.arrays.values import Array, is_sparse


class TorchOut:
    """NumPy's arrays as tensors without a copy.

    Points and spans of time become int64 counts of their unit; objects (text, bytes, decimals, images of differing
    sizes) become lists, sparse rows a ``torch.sparse_csr_tensor``.
    """

    def whole(self, array: Any) -> Any:
        """Return a tensor, or a list of objects."""
        if is_sparse(array):
            return csr_tensor([torch.from_numpy(x) for x in (array.indptr, array.indices, array.data)], array.shape)
        if array.dtype.kind == "O":
            return [torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in array]
        return torch.from_numpy(array.view(np.int64) if array.dtype.kind in "mM" else array)

    def split(self, array: Array, size: int) -> Sequence[Any]:
        """Cut an array into tensors of `size` rows: one call for all of them.

        "Unsafe" means that autograd does not know them for parts of one tensor, which nobody holds here; it takes 0.5
        instead of 0.9 us a part.
        """
        return torch.unsafe_split(self.whole(array), size)


def csr_tensor(parts: Sequence[torch.Tensor], shape: tuple[int, int]) -> torch.Tensor:
    """Return sparse rows as a tensor that shares the memory of their offsets, indices and values.

    Indices ascend in each row, each once, which is not checked again.
    """
    offsets, indices, values = parts
    return torch.sparse_csr_tensor(offsets, indices, values, size=shape, check_invariants=False)


def pinned(value: Any) -> Any:
    """Return a tensor in pinned memory; anything else as it is."""
    return value.pin_memory() if isinstance(value, torch.Tensor) else value

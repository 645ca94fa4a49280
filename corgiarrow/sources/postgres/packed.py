"""Arrays of numbers as PostgreSQL sends them, and the lists that they are in Arrow.

The driver takes arrays apart element by element. ``array_send`` gives the same bytes as one value, in which NumPy finds
the numbers of many rows at once.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_SENT_AS = {pa.int32(): ">i4", pa.int64(): ">i8", pa.float32(): ">f4", pa.float64(): ">f8"}
"""Types of elements that can be read so: each is sent as its length, of four bytes, and its value."""

_EMPTY, _HEAD = 3, 5
"""Words of four bytes before the elements: dimensions, nulls, type, and in an array that is not empty, of each
dimension its length and lower bound."""


def packs(kind: pa.DataType) -> bool:
    """Whether arrays of a type can be read so."""
    return bool(pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)) and kind.value_type in _SENT_AS


def unpacked(sent: pa.Array, inner: pa.DataType) -> pa.Array | None:
    """Return the lists in what ``array_send`` gave.

    Parameters
    ----------
    sent
        Binary, of rows, null where the array is.
    inner
        Type of the elements.

    Returns
    -------
    Lists of `inner`, or None where an array has null elements, or more than one dimension.
    """
    if not len(sent):
        return pa.array([], pa.list_(inner))
    offsets = np.frombuffer(sent.buffers()[1], np.int32, len(sent) + 1, offset=4 * sent.offset).astype(np.int64)
    content = sent.buffers()[2] or b""
    words = np.frombuffer(content, ">i4", int(offsets[-1] - offsets[0]) // 4, offset=int(offsets[0]))
    starts, sizes = (offsets[:-1] - offsets[0]) // 4, np.diff(offsets) // 4
    item = np.dtype([("length", ">i4"), ("value", _SENT_AS[inner])])

    present = starts[sizes > 0]
    dimensions = words[present]
    filled = present[dimensions == 1]
    counts = np.zeros(len(sent), dtype=np.int64)
    counts[np.flatnonzero(sizes)[dimensions == 1]] = words[filled + 3]
    expected = np.where(counts > 0, _HEAD + counts * (item.itemsize // 4), np.minimum(sizes, _EMPTY))
    if (dimensions > 1).any() or (sizes != expected).any():  # A null is sent as its length alone, of -1.
        return None

    if counts[0] and (counts == counts[0]).all():
        row = np.dtype([("head", f"V{4 * _HEAD}"), ("items", item, (int(counts[0]),))])
        values = words.view(row)["items"]["value"]
    else:
        mine = np.ones(len(words), dtype=bool)
        for place in range(_EMPTY):
            mine[present + place] = False
        for place in range(_EMPTY, _HEAD):
            mine[filled + place] = False
        values = words[mine].view(item)["value"]
    ends = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
    numbers = pa.Array.from_buffers(inner, values.size, [None, _native(values)])
    return pa.ListArray.from_arrays(ends, numbers, mask=sent.is_null())


def _native(values: npt.NDArray[Any]) -> pa.Buffer:
    """Copy numbers to Arrow's memory, in this machine's order of bytes."""
    kind = values.dtype.newbyteorder("=")
    buffer = pa.allocate_buffer(values.size * kind.itemsize)
    np.copyto(np.frombuffer(buffer, kind).reshape(values.shape), values)
    return buffer

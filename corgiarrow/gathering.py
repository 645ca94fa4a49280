"""Taking rows of some arrays in a given order, also where they hold more than one Arrow array can.

Strings and lists count their bytes and children in 32 bits. Arrow's ``take`` joins its chunks first, which raises
past 2 GiB of text, and past 2³¹ children of lists gives an invalid array without a word; so larger sources are
taken from in bins.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from corgiarrow.errors import OptionError

MAX_EXTENT = 2**31 - 2
"""Bytes of text, or children of lists, that one array may hold."""

_ARRAY_TAKE = pc.get_function("array_take")
_TAKE = pc.get_function("take")
_OPTIONS = pc.TakeOptions(boundscheck=False)

Chunks = list[pa.Array]


def join(chunks: Chunks, kind: pa.DataType) -> pa.Array:
    """Join chunks that fit into one array."""
    if not chunks:
        return pa.array([], kind)
    return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)


def fits(chunks: Chunks) -> bool:
    """Whether the chunks can be joined into one array."""
    if not chunks or pa.types.is_primitive(chunks[0].type):
        return True
    # A child takes a bit at least, but for nulls, whose lists are measured.
    total = sum(chunk.nbytes for chunk in chunks)
    if 8 * total < MAX_EXTENT and not _has_nulls_inside(chunks[0].type):
        return True
    return max(_total_extents(chunks), default=0) <= MAX_EXTENT


def take(joined: pa.Array, index: pa.Array) -> pa.Array:
    """Take rows of one array."""
    raw = _bytes_of_lists(joined)
    if raw is None:
        return _ARRAY_TAKE.call([joined, index], _OPTIONS)
    return _lists_of_bytes(_ARRAY_TAKE.call([raw, index], _OPTIONS), joined.type)


def take_each(joined: pa.Array, indices: pa.ChunkedArray) -> Chunks:
    """Take rows of one array by each chunk of the indices; return an array for each.

    By one call of Arrow, which gives up the interpreter's lock once: calls of some 20 us, one a segment, have two
    threads wait for each other after each.
    """
    raw = _bytes_of_lists(joined)
    if raw is None:
        return _TAKE.call([joined, indices], _OPTIONS).chunks  # type: ignore[no-any-return]
    return [_lists_of_bytes(chunk, joined.type) for chunk in _TAKE.call([raw, indices], _OPTIONS).chunks]


def _bytes_of_lists(lists: pa.Array) -> pa.Array | None:
    """Show lists of numbers as the bytes of each, with the numbers where they lie; None where they are not such lists.

    Arrow takes bytes a row at a time, and lists by an index of their children: 3 to 6 times slower.
    """
    kind = lists.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not len(lists):
        return None
    inner = kind.value_type
    if not pa.types.is_primitive(inner) or inner.bit_width % 8:
        return None
    children = lists.values
    if children.null_count:
        return None
    validity, offsets = lists.buffers()[:2]
    width = inner.bit_width // 8
    starts = np.frombuffer(offsets, np.int32 if pa.types.is_list(kind) else np.int64, lists.offset + len(lists) + 1)
    small = pa.types.is_list(kind) and (int(starts[-1]) + children.offset) * width < MAX_EXTENT
    starts = (starts + children.offset).astype(np.int32 if small else np.int64) * width
    return pa.Array.from_buffers(
        pa.binary() if small else pa.large_binary(),
        len(lists),
        [validity, pa.py_buffer(starts), children.buffers()[1] or pa.py_buffer(b"")],
        offset=lists.offset,
    )


def _lists_of_bytes(raw: pa.Array, kind: pa.DataType) -> pa.Array:
    """Turn what :func:`_bytes_of_lists` gave, or rows that were taken of it, into lists of their type again."""
    validity, ends, content = raw.buffers()
    held = np.int32 if pa.types.is_binary(raw.type) else np.int64
    starts = np.frombuffer(ends, held, raw.offset + len(raw) + 1) // (kind.value_type.bit_width // 8)
    starts = starts.astype(np.int32 if pa.types.is_list(kind) else np.int64, copy=False)
    children = pa.Array.from_buffers(kind.value_type, int(starts[-1]), [None, content])
    return pa.Array.from_buffers(
        kind, len(raw), [validity, pa.py_buffer(starts)], raw.null_count, raw.offset, [children]
    )


def take_from_bins(chunks: Chunks, index: pa.Array, kind: pa.DataType) -> Chunks:
    """Take rows of chunks that do not fit into one array; return them in order, in as few arrays as they fit into."""
    bins = _bins(chunks)
    starts = np.cumsum([0, *(sum(len(c) for c in chosen) for chosen in bins)])
    return list(_from_bins([join(chosen, kind) for chosen in bins], starts, index.to_numpy(), kind))


def _from_bins(
    bins: Sequence[pa.Array],
    starts: npt.NDArray[np.int64],
    rows: npt.NDArray[np.unsignedinteger],
    kind: pa.DataType,
) -> Iterator[pa.Array]:
    which = np.searchsorted(starts, rows, side="right") - 1
    parts = [take(b, pa.array(rows[which == n].astype(np.int64) - starts[n])) for n, b in enumerate(bins)]
    if fits(parts):
        places = np.empty(len(rows), dtype=np.int64)
        places[np.argsort(which, kind="stable")] = np.arange(len(rows))
        yield take(join(parts, kind), pa.array(places))
    else:
        half = len(rows) // 2
        yield from _from_bins(bins, starts, rows[:half], kind)
        yield from _from_bins(bins, starts, rows[half:], kind)


def _bins(chunks: Chunks) -> list[Chunks]:
    bins: list[Chunks] = [[]]
    for chunk in chunks:
        if bins[-1] and not fits([*bins[-1], chunk]):
            bins.append([])
        bins[-1].append(chunk)
    return bins


def _total_extents(chunks: Chunks) -> list[int]:
    return [sum(sizes) for sizes in zip(*map(_extents, chunks), strict=True)]


def _extents(array: pa.Array) -> list[int]:
    """Bytes or children at each level of a type that counts them in 32 bits."""
    if isinstance(array, pa.ExtensionArray):
        return _extents(array.storage)
    if isinstance(array, pa.DictionaryArray):
        return _extents(array.dictionary)
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return [_span(array, np.int32)[1]]
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        first, count = _span(array, np.int32)
        inner = [array.keys, array.items] if pa.types.is_map(kind) else [array.values]
        return [count, *(n for part in inner for n in _extents(part.slice(first, count)))]
    if pa.types.is_large_list(kind):
        return _extents(array.values.slice(*_span(array, np.int64)))
    if pa.types.is_fixed_size_list(kind):
        size = kind.list_size
        return _extents(array.values.slice(array.offset * size, len(array) * size))
    if pa.types.is_struct(kind):
        return [n for part in range(kind.num_fields) for n in _extents(array.field(part))]
    return []


def _span(array: pa.Array, width: type[np.signedinteger]) -> tuple[int, int]:
    """First byte or child of an array, and how many it has."""
    if not len(array):
        return 0, 0
    offsets = np.frombuffer(array.buffers()[1], dtype=width)
    first, last = int(offsets[array.offset]), int(offsets[array.offset + len(array)])
    return first, last - first


def _has_nulls_inside(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _has_nulls_inside(kind.storage_type)
    return pa.types.is_nested(kind) and any(
        pa.types.is_null(kind.field(n).type) or _has_nulls_inside(kind.field(n).type) for n in range(kind.num_fields)
    )


def decoded(column: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Return a column of a batch in its delivered type, from the dictionary in which it was held.

    Raises
    ------
    OptionError
        The batch's text does not fit into one array.
    """
    if column.type.equals(kind):
        return column
    try:
        return take(column.dictionary, column.indices)
    except pa.ArrowException as error:
        raise OptionError(
            f"column {name!r}: {len(column)} rows hold more than 2 GiB of text ({error}): take a smaller batch_size, "
            f"or schema={{{name!r}: pa.large_string()}}"
        ) from None


def nbytes_of(chunks: Chunks, with_dictionaries: bool = True) -> int:
    """Bytes of the chunks of one column; a dictionary that several chunks share counts once."""
    if not chunks:
        return 0
    if pa.types.is_primitive(chunks[0].type):
        # Arrow's own sum takes 2.3 us an array and gives up the interpreter's lock: 7 % of a pass over small blocks.
        bits = chunks[0].type.bit_width
        return sum(-(-len(c) * (bits + (c.buffers()[0] is not None)) // 8) for c in chunks)
    if not isinstance(chunks[0], pa.DictionaryArray):
        return sum(chunk.nbytes for chunk in chunks)
    total = sum(int(chunk.indices.nbytes) for chunk in chunks)
    if with_dictionaries:
        last = [(chunk.dictionary.buffers()[-1], chunk.dictionary.nbytes) for chunk in chunks]
        total += sum({buffer.address: int(nbytes) for buffer, nbytes in last if buffer is not None}.values())
    return total

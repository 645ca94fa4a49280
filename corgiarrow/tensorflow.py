"""Batches as elements of a ``tf.data.Dataset``: see ``docs/tensorflow.md``."""

import threading
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Self, Unpack

import numpy as np

from corgiarrow.arrays import ArraySpec, Ragged, SparseSpec
from corgiarrow.errors import MissingExtraError, OptionError
from corgiarrow.loader import Loader, LoaderOptions, as_reader
from corgiarrow.opening import Data
from corgiarrow.reader import Reader

try:
    import tensorflow as tf
except ImportError as error:
    raise MissingExtraError("corgiarrow.tensorflow needs TensorFlow: pip install 'corgiarrow[tensorflow]'") from error

__all__ = ["dataset"]


def dataset(
    data: Data | Reader | Loader,
    *,
    batch_size: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    workers: int | None = None,
    threads: int | None = None,
    **options: Unpack[LoaderOptions],
) -> Any:
    """Return a ``tf.data.Dataset`` whose elements are whole batches: dicts of tensors, by column.

    Each iteration is one pass: it begins where the loader stands, and one that is exhausted moves it on to the next
    epoch. Only one iteration runs at a time.

    The dataset's cardinality is that of the first pass. Made in the middle of an epoch, from a loader that was moved
    there, it is the rest of that epoch alone: later epochs want a dataset of their own.

    Text and bytes become ``tf.string``; lists of differing lengths a ``tf.RaggedTensor`` with int64 row splits; structs
    dicts, and lists of structs dicts of ragged tensors; points in time and spans of time int64 counts of their unit.
    With ``drop_last=True`` the number of rows is part of the element's specification.

    Parameters
    ----------
    data
        As for :class:`Reader`; or a reader, or a :class:`corgiarrow.Loader` without a transform, which you may move.
    batch_size, rank, world_size, threads
        See :class:`Reader`, whose defaults hold: nothing is detected.
    workers
        Threads that convert: see :class:`corgiarrow.Loader`.
    **options
        Other options of :class:`Reader`, and those of :class:`corgiarrow.arrays.ArrayOptions`.

    Raises
    ------
    TypeError
        An option is unknown.
    OptionError
        An option is out of its bounds, or a column becomes no tensor.
    """
    place = {"batch_size": batch_size, "rank": rank, "world_size": world_size, "threads": threads}
    if isinstance(data, Loader):
        given = [*options, *(name for name, value in {**place, "workers": workers}.items() if value is not None)]
        if given:
            raise OptionError(f"{', '.join(f'{name}=' for name in given)} goes with data: give it to Loader(…) instead")
        loader = data
    else:
        reader, arrays = as_reader(data, options, **place)
        loader = Loader(reader, workers=workers, **arrays)
    if loader.transform is not None:
        raise OptionError("transform= makes what no specification tells of: leave it out, and use dataset.map")
    reader = loader.reader
    passes = _Passes(loader)
    rows = reader.batch_size if reader.drop_last else None
    signature = {name: _signature(spec, rows, name) for name, spec in loader.spec.items()}
    found = tf.data.Dataset.from_generator(passes, output_signature=signature)
    found = found.apply(tf.data.experimental.assert_cardinality(passes.length))
    if reader.part.world_size > 1:
        # Each worker's dataset is its part already, of which TensorFlow would take a part again.
        sharding = tf.data.Options()
        sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        found = found.with_options(sharding)
    return found


@dataclass
class _Turn:
    """Who iterates over a reader, and a lock, as TensorFlow asks for batches in threads of its own."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    number: int = 0


_TURNS: weakref.WeakKeyDictionary[Reader, _Turn] = weakref.WeakKeyDictionary()


class _Passes:
    """Begins a pass of the loader for each iteration over a dataset."""

    def __init__(self, loader: Loader):
        self._loader, self._turn = loader, _TURNS.setdefault(loader.reader, _Turn())
        self._epoch, self._first = loader.reader.next_pass
        self.length = max(len(loader) - self._first, 0)
        """Batches of each pass."""

    def __call__(self) -> "_Pass":
        loader, turn = self._loader, self._turn
        with turn.lock:
            if self._first and loader.reader.next_pass == (self._epoch, 0):
                # Somebody took a look at the first elements, as Keras does to build a model.
                loader.seek(self._epoch, self._first * loader.reader.part.num_workers)
            epoch, first = loader.reader.next_pass
            left = max(len(loader) - first, 0)
            if left != self.length:
                raise OptionError(
                    f"this dataset has {self.length} batches, but {left} are left of epoch {epoch}: make a dataset for "
                    "the rest of an epoch, dataset(loader), and another for later epochs"
                )
            turn.number += 1
            return _Pass(iter(loader), turn, self.length)


class _Pass:
    """The elements of one iteration."""

    def __init__(self, batches: Iterator[dict[str, Any]], turn: _Turn, length: int):
        self._batches, self._turn, self._number, self._left = batches, turn, turn.number, length

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, Any]:
        with self._turn.lock:
            if not self._left:
                raise StopIteration
            if self._number != self._turn.number:
                raise OptionError(
                    "another iteration over this reader began, which ended this one: iterate over one dataset at a "
                    "time, or make a reader for each"
                )
            batch = next(self._batches)
            self._left -= 1
            if not self._left:
                # TensorFlow asks once more, perhaps when the next pass is under way.
                for _ in self._batches:
                    pass
        return {name: _element(value) for name, value in batch.items()}


def _signature(spec: Any, rows: int | None, name: str) -> Any:
    """Return the specification of what :func:`_element` makes of a column."""
    if isinstance(spec, Mapping):
        return {each: _signature(inner, rows, f"{name}.{each}") for each, inner in spec.items()}
    if isinstance(spec, Ragged):
        return _ragged_signature(spec.values, [rows, None], name)
    if isinstance(spec, SparseSpec):
        raise OptionError(
            f"sparse= makes a matrix {name!r} that becomes no dense tensor: take corgiarrow.Loader or corgiarrow.torch"
        )
    return tf.TensorSpec([rows, *spec.shape[1:]], _dtype(spec, name))


def _ragged_signature(values: Any, shape: list[int | None], name: str) -> Any:
    if isinstance(values, Mapping):
        return {each: _ragged_signature(inner, shape, f"{name}.{each}") for each, inner in values.items()}
    if isinstance(values, Ragged):
        return _ragged_signature(values.values, [*shape, None], name)
    ranks = len(shape) - 1
    return tf.RaggedTensorSpec([*shape, *values.shape[1:]], _dtype(values, name), ranks, tf.int64)


def _dtype(spec: ArraySpec, name: str) -> Any:
    if spec.dtype.kind in "mM":
        return tf.int64
    if spec.dtype.kind != "O":
        return tf.dtypes.as_dtype(spec.dtype)
    if spec.content in (str, bytes):
        return tf.string
    remedy = 'give decimals="float64" or "unscaled"' if spec.content is Decimal else "give decode={…: Image(size=…)}"
    kind = getattr(spec.content, "__name__", "other")
    raise OptionError(
        f"column {name!r} holds {kind} objects, which TensorFlow has no tensors for: {remedy}, or leave it out of "
        "columns="
    )


def _element(value: Any) -> Any:
    """Return the tensors of a column's arrays."""
    if isinstance(value, Mapping):
        return {name: _element(inner) for name, inner in value.items()}
    if isinstance(value, Ragged):
        return _ragged_element(value.values, [value.offsets])
    return _counted(value)


def _ragged_element(values: Any, splits: list[Any]) -> Any:
    if isinstance(values, Mapping):
        return {name: _ragged_element(inner, splits) for name, inner in values.items()}
    if isinstance(values, Ragged):
        return _ragged_element(values.values, [*splits, values.offsets])
    flat = _counted(values)
    if flat.dtype.kind == "O":
        flat = tf.constant(flat, tf.string)
    return tf.RaggedTensor.from_nested_row_splits(flat, splits, validate=False)


def _counted(array: Any) -> Any:
    # TensorFlow may take over NumPy's memory as it stands: nobody writes to it again.
    return array.view(np.int64) if array.dtype.kind in "mM" else array

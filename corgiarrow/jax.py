"""Batches as arrays on JAX's devices: see ``docs/jax.md``."""

from collections.abc import Iterator, Mapping
from decimal import Decimal
from math import prod
from typing import Any, Unpack

import numpy as np

from corgiarrow.arrays import ArrayOptions, ArraySpec, Ragged, SparseSpec
from corgiarrow.errors import ConversionError, MissingExtraError, OptionError
from corgiarrow.loader import Loader, LoaderOptions, Transform, as_reader
from corgiarrow.opening import Data
from corgiarrow.reader import Reader

try:
    import jax
    from jax.sharding import NamedSharding, PartitionSpec
except ImportError as error:
    raise MissingExtraError("corgiarrow.jax needs JAX: pip install 'corgiarrow[jax]'") from error

__all__ = ["DeviceLoader", "loader"]

_X64 = 'call jax.config.update("jax_enable_x64", True) first'
_REMEDIES = {
    Decimal: 'give decimals="float64", or "unscaled"',
    np.ndarray: "give decode={…: Image(size=(height, width))}",
}
_TEXT = "give categories= for it, or ragged= for its bytes, or a transform= that makes numbers of it"


def loader(
    data: Data | Reader,
    *,
    batch_size: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    sharding: NamedSharding | None = None,
    transform: Transform | None = None,
    workers: int | None = None,
    threads: int | None = None,
    **options: Unpack[LoaderOptions],
) -> "DeviceLoader":
    """Return a loader whose batches are pytrees of arrays on devices.

    Parameters
    ----------
    data
        As for :class:`Reader`; or a reader, which keeps its own rank and world size.
    batch_size, threads
        See :class:`Reader`, whose defaults hold.
    rank, world_size
        This process's place in the job. None for what `sharding` says, or else for :func:`jax.process_index` and
        :func:`jax.process_count`; so call :func:`jax.distributed.initialize` before.
    sharding, transform, workers
        See :class:`DeviceLoader`.
    **options
        Options of :class:`Reader` and of :class:`corgiarrow.arrays.ArrayOptions`.

    Raises
    ------
    TypeError
        An option is unknown.
    OptionError
        An option is out of its bounds, a column becomes no JAX array, or batches do not fit the sharding.
    """
    if (rank is None) != (world_size is None):
        raise OptionError(f"rank={rank} and world_size={world_size} go together: give both, or none of them")
    if rank is None and not isinstance(data, Reader):
        place = (jax.process_index(), jax.process_count()) if sharding is None else _Rows(sharding).place
        rank, world_size = place
    reader, arrays = as_reader(
        data, options, batch_size=batch_size, rank=rank, world_size=world_size, threads=threads
    )
    return DeviceLoader(reader, sharding=sharding, transform=transform, workers=workers, **arrays)


class DeviceLoader(Loader):
    """A :class:`corgiarrow.Loader` whose batches are pytrees of JAX arrays.

    Arrays have the dtypes and shapes of :attr:`spec`, but points in time and spans of time are int64 counts of their
    unit. Lists of differing lengths come as :class:`corgiarrow.arrays.Ragged`, a pytree; its offsets are int32 without
    ``jax_enable_x64``.

    Parameters
    ----------
    reader
        Where batches come from.
    sharding
        How to lay each array out over a mesh, rows first. Arrays are then global, ``[world_size × batch_size, …]``:
        the batches that the processes hold of one step, in the order of the mesh. None for this process's batch on
        its default device.
    transform
        A function of a batch of NumPy arrays, called in threads; what it returns is put on devices. With `sharding` all
        of it must be arrays of the batch's rows.
    workers
        Threads that convert and transform: see :class:`corgiarrow.Loader`.
    **options
        See :class:`corgiarrow.arrays.ArrayOptions`.

    Raises
    ------
    OptionError
        A column becomes no JAX array, or batches do not fit the sharding.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        sharding: NamedSharding | None = None,
        transform: Transform | None = None,
        workers: int | None = None,
        **options: Unpack[ArrayOptions],
    ):
        super().__init__(reader, transform=transform, workers=workers, **options)
        self._sharding = sharding
        if sharding is not None:
            _Rows(sharding).check(reader)
        if transform is None:
            _check_spec(self.spec, sharding)

    def __iter__(self) -> Iterator[Any]:
        return (self._placed(batch) for batch in super().__iter__())

    def _placed(self, batch: Any) -> Any:
        ready = jax.tree.map(_ready, batch, is_leaf=_is_ragged)
        # JAX may take over NumPy's memory as it stands. Nobody writes to it again, so no copy is asked for.
        if self._sharding is None:
            return jax.device_put(ready)
        for leaf in jax.tree.leaves(batch, is_leaf=_is_ragged):
            if isinstance(leaf, Ragged) or not np.ndim(leaf):
                raise ConversionError(
                    f"transform= returned {_kind(leaf)}, which sharding= cannot spread: return arrays [rows, …] of it"
                )
        world_size = self._reader.part.world_size
        shapes = jax.tree.map(lambda leaf: (world_size * leaf.shape[0], *leaf.shape[1:]), ready)
        return jax.make_array_from_process_local_data(self._sharding, ready, shapes)  # type: ignore[no-untyped-call]


class _Rows:
    """How a sharding spreads the rows of a global batch over processes."""

    def __init__(self, sharding: NamedSharding):
        axes = sharding.spec[0] if len(sharding.spec) else None
        self._axes = () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
        shards = prod(sharding.mesh.shape[axis] for axis in self._axes)
        spec = PartitionSpec(self._axes or None)  # type: ignore[no-untyped-call]
        places: Mapping[Any, Any] = NamedSharding(sharding.mesh, spec).devices_indices_map((shards,))
        held: dict[int, set[int]] = {}
        for device, (shard,) in places.items():
            held.setdefault(device.process_index, set()).add(shard.start or 0)
        # Processes that differ in other axes of the mesh only hold the same rows, so they read the same.
        groups = sorted({tuple(sorted(rows)) for rows in held.values()})
        if sum(len(group) for group in groups) != shards or len({len(group) for group in groups}) > 1:
            raise OptionError(
                f"sharding={sharding} gives processes unlike or overlapping parts of the rows, {groups}: build a mesh "
                "whose first axis runs over whole processes"
            )
        process = jax.process_index()
        if process not in held:
            raise OptionError(f"sharding={sharding} has no device of this process, number {process}")
        self.place = groups.index(tuple(sorted(held[process]))), len(groups)
        """Rank and world size that fit."""
        self._shards = len(groups[0])

    def check(self, reader: Reader) -> None:
        """Raise where some batch of the reader would not fit."""
        _, world_size = self.place
        if reader.part.world_size != world_size:
            raise OptionError(
                f"world_size={reader.part.world_size} must be {world_size}, the parts that sharding= makes of the rows "
                "for processes: leave rank= and world_size= out"
            )
        size, short = reader.batch_size, reader.num_rows % reader.batch_size
        if size % self._shards:
            raise OptionError(
                f"batch_size={size} must be a multiple of {self._shards}, the shards of this process along mesh axes "
                f"{self._axes}"
            )
        if short and not reader.drop_last and (world_size > 1 or short % self._shards):
            why = f"{world_size} processes" if world_size > 1 else f"{self._shards} shards"
            raise OptionError(
                f"the last batch of an epoch would have {short} rows instead of {size}, which {why} cannot share "
                "alike: give drop_last=True"
            )


def _check_spec(spec: Mapping[str, Any], sharding: NamedSharding | None) -> None:
    """Raise where arrays of this specification become none of JAX's."""
    sparse = [name for name, each in spec.items() if isinstance(each, SparseSpec)]
    if sparse:
        raise OptionError(
            f"sparse= makes matrices {sparse} that JAX has no arrays for: take corgiarrow.Loader or corgiarrow.torch, "
            "or give a transform= that makes dense arrays of them"
        )
    narrowed: list[tuple[str, ArraySpec]] = []
    for name, each, ragged in _named(spec):
        if each.dtype.kind == "O":
            remedy = _REMEDIES.get(each.content or object, _TEXT)
            raise OptionError(
                f"column {name!r} holds {(each.content or object).__name__} objects, which JAX has no arrays for: "
                f"{remedy}, or leave it out of columns="
            )
        if ragged and sharding is not None:
            raise OptionError(
                f"column {name!r} holds rows of differing lengths, which sharding= cannot spread: give pad= or shape= "
                "for it, or leave it out of columns="
            )
        if sharding is not None and len(sharding.spec) > len(each.shape):
            raise OptionError(
                f"column {name!r} has {len(each.shape)} dimensions, fewer than the {len(sharding.spec)} of sharding="
                f"{sharding.spec}: name the axis of rows alone, PartitionSpec({sharding.spec[0]!r})"
            )
        if _narrows(_counted(each.dtype)):
            narrowed.append((name, each))
    if not narrowed:
        return
    listed = ", ".join(f"{name!r} ({each.dtype})" for name, each in narrowed)
    numbers = {name: f"{each.dtype.name[:-2]}32" for name, each in narrowed if each.dtype.kind in "iuf"}
    cast = f"; or dtype={numbers}, which raises where a whole number would change" if numbers else ""
    raise OptionError(
        f"JAX would cut 64-bit columns to 32 bits: {listed}; {_X64}{cast}; or leave them out of columns="
    )


def _named(spec: Any, path: str = "", ragged: bool = False) -> Iterator[tuple[str, ArraySpec, bool]]:
    """Name each array of values, and say whether it is of rows of differing lengths."""
    if isinstance(spec, Ragged):
        yield from _named(spec.values, path, True)
    elif isinstance(spec, ArraySpec):
        yield path, spec, ragged
    else:
        for name, each in spec.items():
            yield from _named(each, f"{path}.{name}" if path else name, ragged)


def _is_ragged(value: Any) -> bool:
    return isinstance(value, Ragged)


def _counted(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.int64) if dtype.kind in "mM" else dtype


def _narrows(dtype: np.dtype[Any]) -> bool:
    """Whether JAX would take this dtype for a narrower one."""
    return bool(dtype.kind in "iufc" and jax.dtypes.canonicalize_dtype(dtype) != dtype)


def _ready(value: Any) -> Any:
    """Return a leaf of a batch as something that JAX takes over without a change."""
    if isinstance(value, Ragged):
        return Ragged(jax.tree.map(_ready, value.values, is_leaf=_is_ragged), _offsets(value.offsets))
    if not isinstance(value, (np.ndarray, np.generic)):
        if isinstance(value, (jax.Array, bool, int, float, complex)):
            return value
        raise _no_array(value)
    if value.dtype.kind in "mM":
        value = value.view(np.int64)
    if value.dtype.kind in "OSU":
        raise _no_array(value)
    if _narrows(value.dtype):
        raise ConversionError(f"JAX would cut {_kind(value)} to 32 bits: {_X64}, or return a narrower dtype")
    return value


def _offsets(offsets: Any) -> Any:
    if not _narrows(offsets.dtype):
        return offsets
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ConversionError(f"a batch has {offsets[-1]} values in its lists, more than int32 counts: {_X64}")
    return offsets.astype(np.int32)


def _no_array(value: Any) -> ConversionError:
    return ConversionError(f"transform= returned {_kind(value)}, which JAX has no arrays for: return arrays of numbers")


def _kind(value: Any) -> str:
    if isinstance(value, (np.ndarray, np.generic)):
        return f"an array of {value.dtype}" if value.ndim else f"one {value.dtype}"
    return f"a {type(value).__name__}"

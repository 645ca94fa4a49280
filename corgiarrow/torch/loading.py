"""A reader for this process's part, and a loader that needs no worker processes."""

import os
from typing import Any, Unpack

from corgiarrow.arrays import ArrayOptions
from corgiarrow.arrays.values import map_leaves
from corgiarrow.errors import OptionError
from corgiarrow.index import BlockIndex
from corgiarrow.loader import Loader, LoaderOptions, Transform, part_options
from corgiarrow.reader import Data, Reader, share_of_cpus
from corgiarrow.torch.distributed import find_place, read_together
from corgiarrow.torch.tensors import TorchOut, pinned


def loader(
    data: Data | None,
    block_index_path: str | os.PathLike[str] | None = None,
    *,
    batch_size: int = 1024,
    rank: int | None = None,
    world_size: int | None = None,
    process_group: Any = None,
    transform: Transform | None = None,
    workers: int | None = None,
    pin_memory: bool = False,
    threads: int | None = None,
    **options: Unpack[LoaderOptions],
) -> Loader:
    """Return a loader of dicts of tensors that reads in threads of this process.

    Its state is an epoch and the batches that all ranks have delivered in it, so with a fixed ``streams=`` it can be
    loaded by another number of ranks, and of `workers`.

    Parameters
    ----------
    data, block_index_path, batch_size, rank, world_size, process_group, **options
        As for :class:`CorgiPileDataset`.
    transform
        A function of a batch, called in threads, batches side by side.
    workers
        Threads that convert and transform; see :class:`corgiarrow.Loader`.
    pin_memory
        Copy tensors to pinned memory in these threads, for quick transfers to a GPU.
    threads
        Threads that read; None shares the CPUs out among the processes of this machine.

    Raises
    ------
    OptionError, BudgetError, NoFilesError, ColumnNotFoundError, SchemaMismatchError, StorageError
        As for :class:`corgiarrow.Reader` and :class:`corgiarrow.arrays.Converter`; or processes disagree.
    """
    reader, arrays = open_part(data, block_index_path, batch_size, rank, world_size, process_group, options, threads)
    return Loader(
        reader, transform=_pinning(transform) if pin_memory else transform, workers=workers, out=TorchOut(), **arrays
    )


def _pinning(transform: Transform | None) -> Transform:
    def pin(batch: dict[str, Any]) -> Any:
        return map_leaves(pinned, batch if transform is None else transform(batch))

    return pin


def open_part(
    data: Data | None,
    block_index_path: str | os.PathLike[str] | None,
    batch_size: int,
    rank: int | None,
    world_size: int | None,
    process_group: Any,
    options: LoaderOptions,
    threads: int | None = None,
) -> tuple[Reader, ArrayOptions]:
    """Return a reader of this process's part, and those of the options that are for arrays."""
    rank, world_size, together = find_place(rank, world_size, process_group)
    reads, arrays = part_options(options)
    if block_index_path is not None:
        data = _load_index(data, block_index_path, reads.get("storage_options"), reads.get("filesystem"))
    elif data is None:
        raise OptionError("data=None needs block_index_path=, the path of a saved index")
    threads = threads or share_of_cpus(local_processes())
    given: dict[str, Any] = {"batch_size": batch_size, "rank": rank, "world_size": world_size, "threads": threads}
    if not together:
        return Reader(data, **given, **reads), arrays
    # What the first process's block source has settled; the others take it from there.
    settled = {"columns", "block_bytes", "schema", "filter", "split", "on_error", "storage_options", "filesystem"}

    def make(found: Data, first: bool) -> Reader:
        kept = reads if first else {name: value for name, value in reads.items() if name not in settled}
        return Reader(found, **given, **kept)

    told = {
        name: str(value)
        for name, value in {**reads, **arrays}.items()
        if name not in ("storage_options", "filesystem", "progress")
    }
    return read_together(data, make, sorted(told.items()), process_group), arrays


def _load_index(data: Data | None, path: str | os.PathLike[str], options: Any, filesystem: Any) -> BlockIndex:
    index = BlockIndex.load(path, storage_options=options, filesystem=filesystem)
    if data is None:
        return index
    if not isinstance(data, str | os.PathLike):
        raise OptionError("block_index_path= goes with a path, which it was made from, or with data=None")
    given = os.fspath(data).rstrip("/")
    if given not in (index.storage.url.rstrip("/"), index.storage.root.rstrip("/")) and (
        os.path.abspath(given) != index.storage.root.rstrip("/")  # noqa: PTH100 - it may be a URL
    ):
        raise OptionError(
            f"block_index_path={os.fspath(path)!r} is an index of {index.storage.shown('')}, not of data={given!r}: "
            "give the same, or data=None"
        )
    return index


def local_processes() -> int:
    """Processes of this job on this machine, as torchrun tells."""
    found = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return int(found) if found.isdecimal() and int(found) else 1

"""A reader for this process's part, and a loader of its batches."""

import os
from typing import Any, Unpack, cast

from corgiarrow.arrays import ArrayOptions
from corgiarrow.arrays.values import map_leaves
from corgiarrow.errors import OptionError
from corgiarrow.index import BlockIndex
from corgiarrow.loader import Loader, LoaderOptions, ReaderOptions, Transform, part_options
from corgiarrow.opening import Data, DataOptions
from corgiarrow.reader import Reader
from corgiarrow.storage import AccessOptions
from corgiarrow.torch.distributed import find_place, read_together, share_of_machine
from corgiarrow.torch.processes import ProcessLoader
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
    processes: int = 0,
    pin_memory: bool = False,
    threads: int | None = None,
    **options: Unpack[LoaderOptions],
) -> Loader:
    """Return a loader of dicts of tensors that reads in threads of this process, or in worker processes.

    Its state is an epoch and the batches that all ranks have delivered in it, so with a fixed ``streams=`` it can be
    loaded by another number of ranks, of `workers`, and of `processes`.

    Parameters
    ----------
    data, block_index_path, batch_size, rank, world_size, process_group, **options
        As for :class:`CorgiPileDataset`.
    transform
        A function of a batch, called in threads, batches side by side, or where there are `processes`, in these.
    workers
        Threads that convert and transform; see :class:`corgiarrow.Loader`.
    processes
        Worker processes that read, convert and transform, for a transform that keeps the interpreter busy; 0 for none.
        They stay until ``close()``.
    pin_memory
        Copy tensors to pinned memory in a thread, for quick transfers to a GPU; not with sparse rows.
    threads
        Threads that each process reads with; None shares the CPUs out among the processes of this machine.

    Raises
    ------
    OptionError, BudgetError, NoFilesError, ColumnNotFoundError, SchemaMismatchError, StorageError
        As for :class:`corgiarrow.Reader` and :class:`corgiarrow.arrays.Converter`; or processes disagree.
    """
    if isinstance(processes, bool) or not isinstance(processes, int) or processes < 0:
        raise OptionError(f"processes={processes!r} must be a whole number of at least 0")
    if processes and workers:
        raise OptionError(f"workers={workers} are threads of this process, but processes={processes}: give one of them")
    if pin_memory and options.get("sparse"):
        raise OptionError(
            "pin_memory= copies dense tensors, but sparse= makes sparse ones: leave pin_memory out, and move batches "
            "by .to(device)"
        )
    reader, arrays = open_part(data, block_index_path, batch_size, rank, world_size, process_group, options, threads)
    if processes:
        return ProcessLoader(
            reader, processes=processes, transform=transform, pin_memory=pin_memory, threads=threads, **arrays
        )
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
        data = _load_index(data, block_index_path, _access_in(reads))
        reads = cast(ReaderOptions, {name: value for name, value in reads.items() if name not in _access_in(reads)})
    elif data is None:
        raise OptionError("data=None needs block_index_path=, the path of a saved index")
    threads = threads or share_of_machine()
    given: dict[str, Any] = {"batch_size": batch_size, "rank": rank, "world_size": world_size, "threads": threads}
    if not together:
        return Reader(data, **given, **reads), arrays
    # What the first process's block source has settled; the others take it from there.
    settled = {"columns", "block_bytes", "schema", "filter", "split", "on_error", *DataOptions.__annotations__}

    def make(found: Data, first: bool) -> Reader:
        kept = reads if first else {name: value for name, value in reads.items() if name not in settled}
        return Reader(found, **given, **kept)

    told = {
        name: str(value)
        for name, value in {**reads, **arrays}.items()
        if name not in (*_access_in(reads), "progress")
    }
    return read_together(data, make, sorted(told.items()), process_group), arrays


def _access_in(reads: ReaderOptions) -> AccessOptions:
    found = {name: value for name, value in reads.items() if name in AccessOptions.__annotations__}
    return cast(AccessOptions, found)


def _load_index(data: Data | None, path: str | os.PathLike[str], access: AccessOptions) -> BlockIndex:
    index = BlockIndex.load(path, **access)
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

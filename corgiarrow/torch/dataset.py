"""``CorgiPileDataset``: shuffled batches for ``torch.utils.data.DataLoader``."""

import os
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, Unpack

from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from corgiarrow.arrays import Converter, Ragged
from corgiarrow.errors import CorgiArrowError, OptionError, StateMismatchError
from corgiarrow.loader import Loader, LoaderOptions, Transform
from corgiarrow.opening import Data
from corgiarrow.reader import Reader
from corgiarrow.torch.distributed import check_place, share_of_machine
from corgiarrow.torch.loading import open_part
from corgiarrow.torch.passes import Passes
from corgiarrow.torch.sharing import Sender, SharedBatch
from corgiarrow.torch.tensors import TorchOut


class CorgiPileDataset(IterableDataset[Any]):
    """The paper's dataset: give it to a ``DataLoader``, with worker processes or without.

    With a `batch_size` it yields batches, dicts of tensors, for ``DataLoader(dataset, batch_size=None)``. With
    ``batch_size=None`` it yields rows, for a DataLoader that makes batches itself, as in the paper; that is slower, and
    the order of batches then depends on the number of workers.

    Every pass that begins is an epoch of its own, the one after the last pass's, whether that was finished or not: a
    DataLoader does not tell. :meth:`set_epoch` chooses another; it reaches workers that persist.

    Parameters
    ----------
    data
        What :class:`corgiarrow.Reader` reads: path, URL, glob, folder, a list of them, an index, or a block source.
    block_index_path
        A saved :class:`corgiarrow.BlockIndex` of `data`, which spares reading the footers.
    batch_size
        Rows of a batch, or None for rows.
    rank, world_size
        This process's place among those that share the data; None finds it: from `process_group`, from
        ``torch.distributed`` where it is initialised, from torchrun's environment, else 0 of 1.
    process_group
        The group whose first process reads the index for all, and whose processes compare their plans; None for all
        processes, unless `rank` is given.
    transform
        A function of a batch (a dict of tensors; of a row, with ``batch_size=None``), called where it is read: in the
        workers, if there are any.
    threads
        Threads that each process reads with; None shares the CPUs out.
    **options
        Of :class:`corgiarrow.Reader` (``columns``, ``shuffle``, ``memory``, ``seed``, ``streams``, ``filter``, …) and
        :class:`corgiarrow.arrays.ArrayOptions` (``stack``, ``nulls``, ``categories``, …).

    Raises
    ------
    OptionError, BudgetError, NoFilesError, ColumnNotFoundError, SchemaMismatchError, StorageError
        As for :class:`corgiarrow.Reader` and :class:`corgiarrow.arrays.Converter`; or processes disagree.
    """

    def __init__(
        self,
        data: Data | None,
        block_index_path: str | os.PathLike[str] | None = None,
        *,
        batch_size: int | None = 1024,
        rank: int | None = None,
        world_size: int | None = None,
        process_group: Any = None,
        transform: Transform | None = None,
        threads: int | None = None,
        **options: Unpack[LoaderOptions],
    ):
        self._rows = batch_size is None
        self._reader, self._arrays = open_part(
            data, block_index_path, batch_size or 1, rank, world_size, process_group, options
        )
        if self._rows and self._arrays.get("sparse"):
            raise OptionError(
                "sparse= makes one matrix of the rows of a batch, but batch_size=None gives single rows: give a "
                "batch_size, and the DataLoader batch_size=None"
            )
        self._place_given = rank is not None
        self._transform = transform
        self._threads = threads
        self._passes = Passes()
        self._passes.command(0)
        self._begun = 0
        """Passes that began in this process."""
        self._pass: Loader | None = None
        """The last of them."""
        self._epoch = 0
        """The epoch that it reads."""
        self._loaded: Mapping[str, Any] | None = None
        """In a worker, the position that its next pass begins at."""
        self._sender = Sender()
        self.spec = Converter(self._reader.schema, **self._arrays).spec

    def __len__(self) -> int:
        """Batches (or rows) of an epoch that this process gets, over all of its workers."""
        return len(self._reader)

    def __getstate__(self) -> dict[str, Any]:
        self._check_place()
        return self.__dict__ | {"_pass": None}

    def _check_place(self) -> None:
        if not self._place_given:
            check_place(self._reader.part)

    @property
    def reader(self) -> Reader:
        """A reader of this process's part, to look at: it is not the one that the passes read with."""
        return self._reader

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass, here or in workers.

        A position that was loaded or sought in this very epoch, and not begun at yet, is kept.
        """
        if epoch != self._passes.commanded[0] or self._passes.begun():
            self.seek(epoch, 0)

    def seek(self, epoch: int, step: int) -> None:
        """Begin the next pass at step number `step` of an epoch, as a trainer counts its steps (batches of a rank).

        Raises
        ------
        OptionError
            The epoch has fewer steps; or, when the pass begins, `step` is no multiple of the number of workers.
        """
        reader = self._part()
        reader.seek(epoch, step)
        self._passes.command(*reader.position)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the pass that this process has begun last.

        With worker processes each knows its own: ``torchdata.stateful_dataloader.StatefulDataLoader`` asks them.

        Raises
        ------
        StateMismatchError
            The passes run in worker processes, so this process does not know how far they are.
        """
        if self._pass is not None:
            state = self._pass.state_dict()
            if state["epoch"] != self._epoch:
                # All was delivered, but it is the next pass that begins the next epoch.
                reader = self._pass.reader
                state |= {"epoch": self._epoch, "batches": len(reader) * reader.part.num_parts}
            return state
        if self._passes.begun():
            raise StateMismatchError(
                "the position is known to the DataLoader's workers alone: use StatefulDataLoader of torchdata, or "
                "corgiarrow.torch.loader, or count steps and seek(epoch, step)"
            )
        epoch, step, streams = self._passes.commanded
        reader = self._part(streams=streams or None)
        return reader.state_dict() | {"epoch": epoch, "batches": step * self._reader.part.world_size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next pass at a saved position, of this class or of :func:`corgiarrow.torch.loader`.

        Raises
        ------
        StateMismatchError
            The state belongs to other data or parameters.
        """
        if get_worker_info() is not None:
            self._loaded = state
            return
        reader = self._part()
        reader.load_state_dict(state)
        self._passes.command(*reader.position, streams=int(state["streams"]))
        self._pass = None

    def _part(self, worker: int = 0, num_workers: int = 1, streams: int | None = None) -> Reader:
        """Return a reader for a worker of this process, at the start."""
        part = self._reader.part
        return self._reader.for_part(
            rank=part.rank,
            world_size=part.world_size,
            worker=worker,
            num_workers=num_workers,
            streams=streams,
            threads=self._threads or share_of_machine(num_workers),
        )

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is None:
            return self._begin()
        try:
            return self._begin()
        except CorgiArrowError as error:
            # A DataLoader hears of what is raised by its workers' next(), but not of this.
            return _raising(error)

    def _begin(self) -> Iterator[Any]:
        info = get_worker_info()
        self._check_place()
        worker, num_workers = (0, 1) if info is None else (info.id, info.num_workers)
        self._begun += 1
        # Workers of one pass have a seed in common; those that persist have begun as many passes.
        name = uuid.uuid4().hex if info is None else f"{info.seed - info.id} {self._begun}"
        loaded, self._loaded = self._loaded, None
        epoch, step, streams = self._passes.begin(worker, name, None if loaded is None else int(loaded["epoch"]))
        reader = self._part(worker, num_workers, streams or None)
        reader.load_state_dict(
            loaded or reader.state_dict() | {"epoch": epoch, "batches": step * self._reader.part.world_size}
        )
        self._epoch = epoch
        transform = None if self._rows else self._transform
        # What a worker sends on without looking at it need not become tensors here.
        out = None if info is not None and not self._rows and transform is None else TorchOut()
        self._pass = Loader(reader, transform=transform, workers=0, out=out, **self._arrays)
        if self._rows:
            return self._each_row(self._pass)
        return iter(self._pass) if info is None else map(self._sender.shared, self._pass)

    def _each_row(self, batches: Loader) -> Iterator[Any]:
        for batch in batches:
            row = {name: _only(value) for name, value in batch.items()}
            yield row if self._transform is None else self._transform(row)


def _refuse_to_collate(batches: Any, **_: Any) -> Any:
    raise OptionError(
        "CorgiPileDataset yields whole batches, but the DataLoader was to make batches of them: give it "
        "batch_size=None, or CorgiPileDataset(…, batch_size=None) for rows"
    )


default_collate_fn_map[SharedBatch] = _refuse_to_collate


def _raising(error: Exception) -> Iterator[Any]:
    yield from ()
    raise error


def _only(value: Any) -> Any:
    """Return the only row of a batch of one."""
    if isinstance(value, dict):
        return {name: _only(part) for name, part in value.items()}
    return value.values if isinstance(value, Ragged) else value[0]

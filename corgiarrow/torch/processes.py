"""A loader whose batches are read, converted and transformed in worker processes."""

import pickle
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from itertools import count
from typing import Any, Unpack

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from corgiarrow.arrays import ArrayOptions
from corgiarrow.errors import OptionError
from corgiarrow.loader import Loader, Slices, Transform
from corgiarrow.reader import Reader
from corgiarrow.torch.distributed import share_of_machine
from corgiarrow.torch.sharing import MAX_SLOTS, SLOTS, Pickled, Sender, SharedBatch
from corgiarrow.torch.tensors import TorchOut

_MESSAGE_BATCHES = 8
_MESSAGE_BYTES = 2**21
"""Batches that go in one message, and their bytes, at most: a message costs as much as reading a third of a batch."""

_PREFETCHED = 2
"""Messages that are asked for ahead of each worker, as is usual in a DataLoader."""

_Message = tuple[int, list[Any]]
"""Batches of one process, with the number of the first among all of the rank's; others' lie between them."""


class ProcessLoader(Loader):
    """Batches of a reader as dicts of tensors, in the reader's order, from worker processes.

    They stay from epoch to epoch, until :meth:`close`. The position is this process's, in steps of the rank, so it can
    be loaded by a loader with another number of processes, or with none.

    Parameters
    ----------
    reader
        A reader of this rank's part, whose streams the processes can share.
    processes
        Number of the processes, at least 1.
    transform
        A function of a batch, called where it is read.
    pin_memory
        Copy tensors to pinned memory, in a thread of this process.
    threads
        Threads that each process reads with.
    **options
        See :class:`corgiarrow.arrays.ArrayOptions`.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        processes: int,
        transform: Transform | None = None,
        pin_memory: bool = False,
        threads: int | None = None,
        **options: Unpack[ArrayOptions],
    ):
        super().__init__(reader, transform=transform, workers=0, **options)
        self._given = reader
        self._processes, self._pin_memory, self._threads, self._options = processes, pin_memory, threads, options
        self._reader = self._for_processes(None)
        self._running: tuple[_Batches, DataLoader[_Message]] | None = None

    def _for_processes(self, streams: int | None) -> Reader:
        part = self._given.part
        parts = part.world_size * self._processes
        reader = self._given.for_part(rank=part.rank, world_size=part.world_size, streams=streams or parts)
        if reader.streams % parts:
            fitting = [n for n in range(1, reader.streams + 1) if reader.streams % (part.world_size * n) == 0]
            raise OptionError(
                f"processes={self._processes} of each of {part.world_size} ranks cannot share streams={reader.streams}"
                + (" of the state" if streams else "")
                + f": choose processes={' or '.join(map(str, fitting))}, or streams={parts} from the start"
            )
        return reader

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_running": None}

    def close(self) -> None:
        """End the pass under way, if there is one, and the processes."""
        super().close()
        self._running = None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position, of this class or of a loader without processes."""
        reader = self._for_processes(state.get("streams"))
        reader.load_state_dict(state)
        self._end_pass()
        self._running = None
        self._reader = reader

    def _batches(self, slices: Slices) -> Generator[Any, None, None]:
        # The slices are never read here: they stand for the pass that the processes read.
        epoch, begin = self._reader.position
        total = len(self._reader)
        in_order = self._in_order(epoch, begin)
        with closing(slices), closing(in_order), self._position(slices) as delivered:
            for number, batch in in_order:
                if isinstance(batch, ExceptionWrapper):
                    # Left to the garbage collector, PyTorch would wait for the processes for seconds.
                    self._running = None
                    batch.reraise()  # type: ignore[no-untyped-call]
                if not delivered((epoch, number + 1) if number + 1 < total else (epoch + 1, 0)):
                    return
                yield batch
                del batch

    def _in_order(self, epoch: int, begin: int) -> Generator[tuple[int, Any], None, None]:
        ahead: dict[int, Any] = {}
        messages = self._messages(epoch, begin)
        for number in range(begin, len(self._reader)):
            while number not in ahead:
                first, batches = next(messages)
                ahead.update(zip(count(first, self._processes), batches, strict=False))
                del batches
            yield number, ahead.pop(number)

    def _messages(self, epoch: int, begin: int) -> Iterator[_Message]:
        if self._running is None:
            dataset = _Batches(self._reader, self._transform, self._threads, self._options)
            loader = DataLoader(
                dataset,
                batch_size=None,
                num_workers=self._processes,
                prefetch_factor=_PREFETCHED,
                persistent_workers=True,
                pin_memory=self._pin_memory,
            )
            self._running = dataset, loader
        dataset, loader = self._running
        dataset.begin(epoch, begin)
        try:
            messages = iter(loader)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self._running = None
            raise OptionError(
                f"transform={self._transform!r} cannot be sent to a worker process ({error}): define it at the top "
                "level of a module, or take processes=0"
            ) from error
        try:
            yield from messages
        except (Exception, KeyboardInterrupt):
            self._running = None  # A process has died, or is about to.
            raise


class _Batches(IterableDataset[_Message]):
    """The processes' side."""

    def __init__(self, reader: Reader, transform: Transform | None, threads: int | None, options: ArrayOptions):
        batch_bytes = reader.source.block_bytes.sum() / max(reader.num_rows, 1) * reader.batch_size
        self._in_message = int(min(max(_MESSAGE_BYTES // max(batch_bytes, 1), 1), _MESSAGE_BATCHES))
        # On the way, in the making, and ahead of their turn in the receiving process.
        slots = (_PREFETCHED + 2) * self._in_message + SLOTS // 2
        self._sender = Sender(min(slots, MAX_SLOTS))
        self._reader, self._transform, self._threads, self._options = reader, transform, threads, options
        self._position = torch.zeros(2, dtype=torch.int64)
        self._position.share_memory_()  # type: ignore[no-untyped-call]

    def begin(self, epoch: int, step: int) -> None:
        """Choose where the next pass begins, in all processes."""
        self._position[0], self._position[1] = epoch, step

    def __iter__(self) -> Iterator[_Message]:
        info = get_worker_info()
        assert info is not None
        epoch, begin = self._position.tolist()
        part = self._reader.part
        reader = self._reader.for_part(
            rank=part.rank,
            world_size=part.world_size,
            worker=info.id,
            num_workers=info.num_workers,
            threads=self._threads or share_of_machine(info.num_workers),
        )
        first = -(-(begin - info.id) // info.num_workers)
        reader.load_state_dict(reader.state_dict() | {"epoch": epoch, "batches": first * reader.part.num_parts})
        out = None if self._transform is None else TorchOut()
        batches = iter(Loader(reader, transform=self._transform, workers=0, out=out, **self._options))
        ended = False
        while not ended:
            message = list[Any]()
            while len(message) < self._in_message and not ended:
                try:
                    batch = self._sender.shared(next(batches), convert=self._transform is None)
                    message.append(batch if isinstance(batch, SharedBatch) else Pickled(batch))
                except StopIteration:
                    ended = True
                except Exception as error:  # noqa: BLE001 - handed over to the consumer, who raises it in its turn
                    fault = ExceptionWrapper(where=f"in worker process {info.id}")  # type: ignore[no-untyped-call]
                    if "<locals>" in type(error).__qualname__:
                        fault.exc_type = RuntimeError  # Of a class that no other process finds.
                    message.append(fault)
                    ended = True
            if message:
                yield first * info.num_workers + info.id, message
                first += len(message)

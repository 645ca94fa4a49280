"""The place of a process among those that train together, and one index for all of them."""

import hashlib
import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from corgiarrow.errors import CorgiArrowError, OptionError
from corgiarrow.opening import Data
from corgiarrow.plan import Part
from corgiarrow.reader import Reader, share_of_cpus
from corgiarrow.sources import BlockSource


def find_place(rank: int | None, world_size: int | None, group: Any) -> tuple[int, int, bool]:
    """Return rank, world size, and whether they are those of a process group.

    What is given wins; then the process group, where one is initialised; then torchrun's environment; then a single
    process.

    Raises
    ------
    OptionError
        Only one of both is given, or the environment does not hold numbers.
    """
    if (rank is None) != (world_size is None):
        raise OptionError(f"rank={rank} and world_size={world_size} go together: give both, or none")
    if rank is not None and world_size is not None:
        return rank, world_size, group is not None
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(group), dist.get_world_size(group), True
    if group is not None:
        raise OptionError("process_group= was given, but torch.distributed is not initialised")
    found = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if None in found:
        return 0, 1, False
    try:
        return int(found[0] or ""), int(found[1] or ""), False
    except ValueError:
        raise OptionError(f"RANK={found[0]!r} and WORLD_SIZE={found[1]!r} in the environment must be numbers") from None


def share_of_machine(workers: int = 1) -> int:
    """Threads for each of a rank's workers, beside the ranks that torchrun says are on this machine."""
    found = os.environ.get("LOCAL_WORLD_SIZE", "1")
    ranks = int(found) if found.isdecimal() and int(found) else 1
    return share_of_cpus(ranks * workers)


def check_place(part: Part) -> None:
    """Raise when a process group has come up since, in which this process has another place than it reads for."""
    if not (dist.is_available() and dist.is_initialized()):
        return
    here = dist.get_rank(), dist.get_world_size()
    if (part.rank, part.world_size) == (0, 1) != here:
        raise OptionError(
            f"this dataset was made before the process group, so it reads all rows, but this is rank {here[0]} of "
            f"{here[1]}: make it after init_process_group, or give rank= and world_size="
        )


def read_together(data: Data, make: Callable[[Data, bool], Reader], options: Any, group: Any) -> Reader:
    """Make a reader in each process of a group; the first one alone looks at the data.

    Parameters
    ----------
    data
        What the first process reads.
    make
        Makes a reader of it (then called with True), or of the block source that the first process found.
    options
        What all processes must have been given alike, beside what the order follows from.

    Raises
    ------
    OptionError
        Some process has other options, or could not make its reader.
    CorgiArrowError
        What this process's own reader raised.
    """
    reader: Reader | None = None
    own: CorgiArrowError | None = None
    first = dist.get_rank(group) == 0
    if first:
        reader, own = _try(make, data, True)
    told: list[BlockSource | None] = [reader.source if reader else None]
    dist.broadcast_object_list(told, group=group, group_src=0)
    if not first and told[0] is not None:
        reader, own = _try(make, told[0], False)
    answers: list[Any] = [None] * dist.get_world_size(group)
    answer = str(own) if own else "" if reader is None else _digest(reader, options)
    dist.all_gather_object(answers, (own is not None, answer), group=group)
    if own is not None:
        raise own
    for rank, (failed, text) in enumerate(answers):
        if failed:
            raise OptionError(f"rank {rank} could not begin: {text}")
    assert reader is not None
    differing = [rank for rank, (_, text) in enumerate(answers) if text != answers[0][1]]
    if differing:
        raise OptionError(
            f"ranks {differing} would read in another order than rank 0: give all of them the same seed, memory, "
            "batch_size, streams, shuffle, columns, filter, drop_last and arrays' options"
        )
    return reader


def _try(
    make: Callable[[Data, bool], Reader], data: Data, first: bool
) -> tuple[Reader | None, CorgiArrowError | None]:
    try:
        return make(data, first), None
    except CorgiArrowError as error:
        return None, error


def _digest(reader: Reader, options: Any) -> str:
    """A hash of the plan: whatever the order and the shape of the batches follow from."""
    return hashlib.sha256(repr((sorted(reader.state_dict().items()), options)).encode()).hexdigest()

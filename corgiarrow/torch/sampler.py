"""The same order as indices, for map-style datasets."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from corgiarrow import budget
from corgiarrow.errors import OptionError, StateMismatchError
from corgiarrow.plan import EpochPlan, Part
from corgiarrow.randomness import ORDER_VERSION, check_seed
from corgiarrow.strategies import Strategy, as_strategy
from corgiarrow.torch.distributed import find_place


class CorgiPileSampler(Sampler[int]):
    """Numbers of rows in CorgiPile's order: blocks of neighbouring rows at random, the rows of a few of them mixed.

    What the paper calls reading "according to the tuple index": for a dataset that fetches rows by number, and does so
    faster for neighbours. Give it to ``DataLoader(dataset, batch_size=k, sampler=sampler)`` with the same `batch_size`.

    Each pass is the epoch after the last one; :meth:`set_epoch` chooses.

    Parameters
    ----------
    num_rows
        Rows of the dataset.
    block_rows
        Rows of a block; the last one may be smaller.
    buffer_blocks, buffer_fraction
        Blocks (or the part of all blocks) that the buffers of all streams merge; by default a tenth.
    batch_size
        Rows of a batch.
    drop_last
        Drop the rows past the last whole step (``world_size × batch_size`` rows), instead of repeating some.
    shuffle, seed, streams
        As for :class:`corgiarrow.Reader`; without `streams`, one a rank.
    rank, world_size
        As for :class:`CorgiPileDataset`.

    Raises
    ------
    OptionError
        A number is out of its bounds.
    """

    def __init__(
        self,
        num_rows: int,
        *,
        block_rows: int = 1024,
        buffer_blocks: int | None = None,
        buffer_fraction: float | None = None,
        batch_size: int = 1024,
        drop_last: bool = False,
        shuffle: str | bool | Strategy = "corgipile",
        seed: int = 0,
        streams: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ):
        for name, value in (("num_rows", num_rows), ("block_rows", block_rows), ("batch_size", batch_size)):
            if value < (name != "num_rows"):
                raise OptionError(f"{name}={value} must be at least {int(name != 'num_rows')}")
        rank, world_size, _ = find_place(rank, world_size, None)
        self._part = Part(rank, world_size)
        self._streams = streams or world_size
        if self._streams % world_size:
            raise OptionError(f"streams={streams} must be a multiple of world_size={world_size}")
        starts = np.arange(0, num_rows, block_rows)
        self._block_rows = np.diff(starts, append=num_rows)
        self._strategy = as_strategy(shuffle)
        blocks = len(self._block_rows)
        budget.Request(buffer_blocks=buffer_blocks, buffer_fraction=buffer_fraction)  # Checks both.
        if buffer_blocks is None:
            buffer_blocks = max(round((buffer_fraction or 0.1) * blocks), 1)
        each = max(buffer_blocks // self._streams, 1)
        self._buffer_blocks = max(self._strategy.buffer_blocks(self._block_rows, each, self._streams), 1)
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._seed = check_seed("seed", seed)
        self._epoch = 0
        self._begin = 0
        """Batches to leave out of the next pass."""
        self._delivered = 0
        """Batches of which the last pass has given all rows."""
        self._plan(0)

    def _plan(self, epoch: int) -> EpochPlan:
        return EpochPlan(
            block_rows=self._block_rows,
            strategy=self._strategy,
            buffer_blocks=self._buffer_blocks,
            seed=self._seed,
            epoch=epoch,
            streams=self._streams,
            batch_size=self._batch_size,
        )

    def __len__(self) -> int:
        """Rows of an epoch that this rank gets."""
        return self._plan(self._epoch).part_rows(self._part, self._drop_last)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass."""
        if check_seed("epoch", epoch) != self._epoch:
            self._epoch, self._begin, self._delivered = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last whole batch that was delivered."""
        return {**self._identity(), "epoch": self._epoch, "batches": self._delivered * self._part.num_parts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next pass at a saved position.

        Raises
        ------
        StateMismatchError
            The state belongs to other rows or parameters.
        """
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise StateMismatchError(f"the state has {name}={state.get(name)!r}, this sampler {name}={value!r}")
        if state["batches"] % self._part.num_parts:
            raise StateMismatchError(
                f"the state has {state['batches']} batches delivered, which world_size={self._part.world_size} does "
                "not divide"
            )
        self._epoch = int(state["epoch"])
        self._begin = self._delivered = int(state["batches"]) // self._part.num_parts

    def _identity(self) -> dict[str, int | str]:
        return {
            "order_version": ORDER_VERSION,
            "num_rows": int(self._block_rows.sum()),
            "block_rows": int(self._block_rows[0]) if len(self._block_rows) else 0,
            "shuffle": self._strategy.described,
            "buffer_blocks": self._buffer_blocks,
            "batch_size": self._batch_size,
            "seed": self._seed,
            "streams": self._streams,
        }

    def __iter__(self) -> Iterator[int]:
        plan, begin = self._plan(self._epoch), self._begin
        self._begin, self._delivered = 0, begin
        for batch in islice(plan.part_ids(self._part, self._drop_last), begin, None):
            yield from batch.tolist()
            self._delivered += 1
        self._epoch, self._delivered = plan.epoch + 1, 0

"""Laws of strategies and plans, without I/O."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from conftest import ArraySource, all_parts, ids_of
from hypothesis import given
from hypothesis import strategies as st

import corgiarrow as ca
from corgiarrow.randomness import block_bits, permutation
from corgiarrow.strategies import BY_NAME, Gather, Pool, Step, Strategy, as_index, restoring_step

BLOCKS = st.lists(st.integers(1, 40), min_size=1, max_size=30)
NAMES = st.sampled_from(sorted(BY_NAME))
SEEDS = st.integers(0, 2**32 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Window(Strategy):
    """TensorFlow's sliding window, one row at a time: a strategy that keeps rows from step to step."""

    name: ClassVar[str] = "window"
    rows: int

    def buffer_blocks(self, num_blocks: int, asked: int) -> int:
        return 1

    def block_order(self, num_blocks: int, bits: object) -> np.ndarray:
        return np.arange(num_blocks, dtype=np.int64)

    def emitted(self, rows: np.ndarray, buffer_blocks: int) -> np.ndarray:
        held = np.minimum(np.cumsum(rows), self.rows)
        out = np.diff(np.cumsum(rows) - held, prepend=0)
        return np.append(out, held[-1]) if len(rows) else out

    def replay_from(self, step: int, buffer_blocks: int) -> int:
        return 0

    def steps(self, rows: np.ndarray, buffer_blocks: int, bits: object, first: int = 0) -> Iterator[Step]:
        held: list[int] = []  # For each slot of the window the row's place in the piece that holds the window.
        piece: tuple[int, ...] = ()
        for step, count in enumerate(rows):
            draw = iter(bits(step).random_raw(int(count)))
            slots = list(range(len(held)))
            emit = []
            for row in range(len(held), len(held) + int(count)):
                if len(slots) < self.rows:
                    slots.append(row)
                else:
                    slot = int(next(draw)) % len(slots)
                    emit.append(slots[slot])
                    slots[slot] = row
            sources = (*piece, step)
            made = -1 - step
            yield Step(
                (step,),
                (
                    Gather(sources, as_index(np.array(emit, dtype=np.uint64))),
                    Gather(sources, as_index(np.array(slots, dtype=np.uint64)), made),
                ),
            )
            held, piece = slots, (made,)
        if piece:
            yield Step((), (Gather(piece, as_index(permutation(len(held), bits(len(rows))))),))


@given(st.integers(0, 5000), SEEDS)
def test_permutation_holds_every_number_once(length: int, seed: int) -> None:
    assert sorted(permutation(length, block_bits(seed, 0)).tolist()) == list(range(length))


def test_permutation_is_uniform() -> None:
    places = np.array([permutation(5, block_bits(seed, 0)) for seed in range(4000)])
    counts = np.array([np.bincount(places[:, k].astype(int), minlength=5) for k in range(5)])
    chi2 = ((counts - 800) ** 2 / 800).sum()
    assert chi2 < 50  # 16 degrees of freedom: the 0.99999 quantile.


def test_order_is_pinned() -> None:
    """The order of a seed never changes without a new order version."""
    rows = np.array([7, 30, 1, 12, 50, 3, 3, 20])
    digest = hashlib.sha256()
    for name, strategy in sorted(BY_NAME.items()):
        for epoch in (0, 1):
            ids = ca.EpochPlan(rows, strategy, 3, 42, epoch, 2, 8).row_ids()
            digest.update(name.encode() + ids.astype("<i8").tobytes())
            pieces = np.array([2, 5, 1, 3, 9, 1, 1, 2])
            ids = ca.EpochPlan(rows, strategy, 3, 42, epoch, 2, 8, pieces, 2).row_ids()
            digest.update(ids.astype("<i8").tobytes())
    assert (ca.reader.ORDER_VERSION, digest.hexdigest()[:16]) == (2, "a6219901d4718843")


@given(BLOCKS, NAMES, SEEDS, st.integers(0, 3), st.integers(1, 6), st.integers(1, 5), st.integers(1, 12))
def test_every_row_once(
    blocks: list[int], name: str, seed: int, epoch: int, n: int, streams: int, batch_size: int
) -> None:
    streams = min(streams, -(-sum(blocks) // batch_size))
    plan = ca.EpochPlan(np.array(blocks), BY_NAME[name], n, seed, epoch, streams, batch_size)
    assert sorted(plan.row_ids().tolist()) == list(range(sum(blocks)))
    counts = [plan.stream(s).batches for s in range(streams)]
    assert sum(counts) == plan.num_batches
    assert max(counts) - min(counts) <= 1
    for s in range(streams):
        stream = plan.stream(s)
        assert stream.step_rows.sum() == stream.num_rows == stream.rows.sum()
        full = stream.num_rows % batch_size == 0
        assert full or s == (plan.num_batches - 1) % streams, "only the epoch's last batch may be short"


@given(BLOCKS, SEEDS, st.integers(1, 6))
def test_corgipile_agrees_with_the_papers_description(blocks: list[int], seed: int, n: int) -> None:
    """Sample n blocks without replacement, merge them, shuffle the rows: each buffer holds just its blocks' rows.

    Of an uneven number of blocks the first buffer gets what is left over.
    """
    plan = ca.EpochPlan(np.array(blocks), ca.CorgiPile(), n, seed, 0, 1, 8)
    order = permutation(len(blocks), block_bits(seed, 0)).astype(int)
    first = np.cumsum(blocks) - blocks
    out = plan.row_ids().tolist()
    begins = [b for b in range(len(blocks)) if (len(blocks) - b) % n == 0]
    begins = begins if begins[:1] == [0] else [0, *begins]
    for begin, end in zip(begins, [*begins[1:], len(blocks)], strict=True):
        rows = [r for b in order[begin:end] for r in range(first[b], first[b] + blocks[b])]
        buffer, out = out[: len(rows)], out[len(rows) :]
        assert sorted(buffer) == sorted(rows)
    assert not out


def test_epochs_and_neighbouring_seeds_differ() -> None:
    rows = np.full(20, 50)

    def order(name: str, seed: int, epoch: int) -> bytes:
        return ca.EpochPlan(rows, BY_NAME[name], 4, seed, epoch, 1, 10).row_ids().tobytes()

    for name in ("corgipile", "block", "epoch"):
        orders = {order(name, seed, epoch) for seed in range(5) for epoch in range(5)}
        assert len(orders) == 25, name
    assert len({order("once", 0, epoch) for epoch in range(5)}) == 1
    assert len({order("none", seed, epoch) for seed in range(3) for epoch in range(3)}) == 1


@given(BLOCKS, st.sampled_from([*BY_NAME.values(), Window(rows=9), Window(rows=1000)]), SEEDS, st.integers(1, 4))
def test_resuming_steps_gives_the_rest(blocks: list[int], strategy: Strategy, seed: int, n: int) -> None:
    plan = ca.EpochPlan(np.array(blocks), strategy, n, seed, 0, 1, 4)
    stream, whole = plan.stream(0), plan.row_ids()
    ids = plan.first_id[stream.block] + stream.start
    for batch in range(stream.batches):
        skip, steps = stream.steps(batch)
        pool = Pool(ids, stream.rows)
        rest = np.concatenate([pool.apply(step) for step in steps])
        assert rest[skip:].tolist() == whole[batch * 4 :].tolist()


def test_restoring_step_loads_only_what_the_pool_holds() -> None:
    plan = ca.EpochPlan(np.full(50, 10), Window(rows=20), 1, 0, 0, 1, 5)
    stream = plan.stream(0)
    _, steps = stream.steps(60)  # Row 300, when the window holds rows of some of the blocks before.
    first = next(steps)
    assert all(g.piece is not None for g in first.gathers)
    assert set(first.load) <= set(range(33))
    assert len(first.load) <= 20
    assert restoring_step(Pool(np.arange(3), np.ones(3, dtype=np.int64))) == Step((), ())


@given(BLOCKS, SEEDS, st.integers(1, 4), st.integers(1, 30), st.integers(1, 3))
def test_a_keeping_strategy_runs_on_the_same_pipeline(
    blocks: list[int], seed: int, batch_size: int, window: int, streams: int
) -> None:
    streams = min(streams, -(-sum(blocks) // batch_size))
    source = ArraySource(blocks)
    options = {"shuffle": Window(rows=window), "seed": seed, "batch_size": batch_size, "streams": streams}
    reader = ca.Reader(source, **options)
    batches = ids_of(iter(reader))
    assert [i for b in batches for i in b] == reader.plan(0).row_ids().tolist()
    for k in range(0, len(batches), max(len(batches) // 5, 1)):
        other = ca.Reader(source, **options)
        other.seek(0, k)
        assert ids_of(iter(other)) == batches[k:]


@given(BLOCKS, NAMES, SEEDS, st.integers(1, 8), st.booleans())
def test_elastic(blocks: list[int], name: str, seed: int, batch_size: int, drop_last: bool) -> None:
    """With 8 streams the sequence of batches is the same on every world, but for padding or dropping at its end."""
    blocks = [*blocks, 8 * batch_size]
    source = ArraySource(blocks)
    options = {"shuffle": name, "seed": seed, "batch_size": batch_size, "streams": 8, "drop_last": drop_last}
    whole = all_parts(source, 1, **options)
    rows = sum(blocks)
    assert len(whole) == (rows // batch_size if drop_last else -(-rows // batch_size))
    if not drop_last:
        assert sorted(i for b in whole for i in b) == list(range(rows))
    for world, workers in ((2, 1), (1, 2), (2, 2), (4, 1), (4, 2), (8, 1)):
        found = all_parts(source, world, workers, **options)
        common = min(len(whole), len(found))
        assert found[:common] == whole[:common]
        assert abs(len(found) - len(whole)) < world
        assert all(b in whole for b in found[common:]), "padding repeats batches"


@pytest.mark.parametrize("streams", [3, 5, 6])
def test_streams_that_parts_do_not_divide_raise(streams: int) -> None:
    with pytest.raises(ca.OptionError, match=f"streams={streams} must be a multiple of the 4 parts"):
        ca.Reader(ArraySource([100] * 10), batch_size=10, streams=streams, world_size=4)


def test_planning_a_million_blocks_is_vectorised() -> None:
    """One part's plan and a seek visit no block one by one: a hundredth of the steps is all that is generated."""
    plan = ca.EpochPlan(np.full(1_000_000, 1000), ca.CorgiPile(), 10, 0, 0, 1024, 256)
    stream = plan.stream(700)
    skip, steps = stream.steps(stream.batches // 2)
    step = next(steps)
    assert 0 <= skip < 10_000
    assert step.load[0] == pytest.approx(len(stream.block) / 2, abs=11)

"""Laws of strategies and plans, without I/O."""

import hashlib
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from conftest import ArraySource, all_parts, ids_of
from hypothesis import given
from hypothesis import strategies as st

import corgiarrow as ca
from corgiarrow.randomness import block_bits, permutation
from corgiarrow.strategies import BY_NAME, Pool, Step, Strategy, restoring_steps

BLOCKS = st.lists(st.integers(1, 40), min_size=1, max_size=30)
NAMES = st.sampled_from(sorted(BY_NAME))
STRATEGIES = st.one_of(
    st.sampled_from(list(BY_NAME.values())),
    st.builds(ca.SlidingWindow, rows=st.integers(1, 200)),
    st.builds(ca.MRS, ratio=st.sampled_from([0.0, 0.05, 0.4, 0.5, 0.9])),
    st.builds(ca.Spread, over_steps=st.integers(1, 9)),
)
SEEDS = st.integers(0, 2**32 - 1)


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
    assert (ca.reader.ORDER_VERSION, digest.hexdigest()[:16]) == (2, "ab9f635d38691dc1")


@given(BLOCKS, STRATEGIES, SEEDS, st.integers(0, 3), st.integers(1, 6), st.integers(1, 5), st.integers(1, 12))
def test_every_row_once(
    blocks: list[int], strategy: Strategy, seed: int, epoch: int, n: int, streams: int, batch_size: int
) -> None:
    streams = min(streams, -(-sum(blocks) // batch_size))
    plan = ca.EpochPlan(np.array(blocks), strategy, n, seed, epoch, streams, batch_size)
    ids = plan.row_ids()
    assert len(ids) == plan.emitted_rows
    if strategy.repeats_rows:
        assert set(ids.tolist()) <= set(range(sum(blocks)))
    else:
        assert sorted(ids.tolist()) == list(range(sum(blocks)))
    counts = [plan.stream(s).batches for s in range(streams)]
    assert sum(counts) == plan.num_batches
    assert max(counts) - min(counts) <= 1
    assert sum(len(plan.stream(s).rows) and plan.stream(s).rows.sum() for s in range(streams)) == sum(blocks)
    for s in range(streams):
        stream = plan.stream(s)
        assert stream.step_rows.sum() == stream.num_rows == len(stream.row_ids())
        assert strategy.repeats_rows or stream.num_rows == stream.rows.sum()
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


@given(BLOCKS, STRATEGIES, SEEDS, st.integers(1, 4))
def test_resuming_steps_gives_the_rest(blocks: list[int], strategy: Strategy, seed: int, n: int) -> None:
    plan = ca.EpochPlan(np.array(blocks), strategy, n, seed, 0, 1, 4)
    stream, whole = plan.stream(0), plan.row_ids()
    ids = plan.first_id[stream.block] + stream.start
    for batch in range(stream.batches):
        skip, steps = stream.steps(batch)
        pool = Pool(ids, stream.rows)
        rest = np.concatenate([pool.apply(step) for step in steps])
        assert rest[skip:].tolist() == whole[batch * 4 :].tolist()


@pytest.mark.parametrize("strategy", [ca.SlidingWindow(rows=200), ca.MRS(rows=200), ca.Spread()])
def test_restoring_steps_load_only_what_the_pool_holds_and_a_few_spans_at_a_time(strategy: Strategy) -> None:
    plan = ca.EpochPlan(np.full(100, 10), strategy, 24, 0, 0, 1, 5)
    stream = plan.stream(0)
    _, steps = stream.steps(100)
    restoring = list(itertools.takewhile(lambda step: all(g.piece is not None for g in step.gathers), steps))
    loaded = [span for step in restoring for span in step.load]
    assert len(loaded) == len(set(loaded))
    assert max(len(step.load) for step in restoring) <= 24 // 4
    assert len(loaded) < (100 if strategy.name != "mrs" else 101)
    assert list(restoring_steps(Pool(np.arange(3), np.ones(3, dtype=np.int64)), 4)) == []


@given(BLOCKS, STRATEGIES, SEEDS, st.integers(1, 4), st.integers(1, 3), st.integers(1, 9))
def test_every_strategy_runs_on_the_same_pipeline(
    blocks: list[int], strategy: Strategy, seed: int, batch_size: int, streams: int, n: int
) -> None:
    streams = min(streams, -(-sum(blocks) // batch_size))
    source = ArraySource(blocks)
    options = {"shuffle": strategy, "seed": seed, "batch_size": batch_size, "streams": streams}
    if not strategy.merges_all:
        options["buffer_blocks"] = max(n, strategy.buffer_blocks(np.array(blocks), 1, streams)) * streams
    reader = ca.Reader(source, **options)
    batches = ids_of(iter(reader))
    assert [i for b in batches for i in b] == reader.plan(0).row_ids().tolist()
    assert len(batches) == len(reader)
    for k in range(0, len(batches), max(len(batches) // 5, 1)):
        other = ca.Reader(source, **options)
        other.seek(0, k)
        assert ids_of(iter(other)) == batches[k:]


def test_a_strategy_that_emits_fewer_rows_than_it_says_does_not_hang() -> None:
    class Loses(type(BY_NAME["block"])):
        def steps(self, *args: object) -> Iterator[Step]:
            return itertools.islice(super().steps(*args), 3)

    with pytest.raises(RuntimeError, match="emit fewer rows than it says"):
        list(ca.Reader(ArraySource([10] * 5), shuffle=Loses(), batch_size=7))


@given(BLOCKS, NAMES, SEEDS, st.integers(1, 8), st.booleans())
def test_elastic(blocks: list[int], name: str, seed: int, batch_size: int, drop_last: bool) -> None:
    """With 8 streams the sequence of batches is the same on every world, but for padding or dropping at its end."""
    blocks = [*blocks, 8 * batch_size]
    source = ArraySource(blocks)
    options = {"shuffle": name, "seed": seed, "batch_size": batch_size, "streams": 8, "drop_last": drop_last}
    whole = all_parts(source, 1, **options)
    rows = ca.Reader(source, **options).plan().emitted_rows
    assert len(whole) == (rows // batch_size if drop_last else -(-rows // batch_size))
    if not drop_last and name != "mrs":
        assert sorted(i for b in whole for i in b) == list(range(sum(blocks)))
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

"""Strategies agree, row for row, with slow and obvious ones written from the paper's description."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from conftest import ArraySource
from hypothesis import example, given
from hypothesis import strategies as st

import corgiarrow as ca
from corgiarrow.plan import StreamPlan
from corgiarrow.randomness import permutation, row_bits
from corgiarrow.strategies import Strategy, as_strategy

BLOCKS = st.lists(st.integers(1, 40), min_size=1, max_size=30)
SEEDS = st.integers(0, 2**32 - 1)


def _stream(blocks: list[int], strategy: Strategy, n: int, seed: int, batch_size: int = 4) -> StreamPlan:
    return ca.EpochPlan(np.array(blocks), strategy, n, seed, 0, 1, batch_size).stream(0)


def _loads(stream: StreamPlan) -> Iterator[list[int]]:
    """Rows that each step loads, in file order of its spans."""
    first = stream.epoch.first_id[stream.block] + stream.start
    for step in stream.steps()[1]:
        yield [int(row) for span in step.load for row in range(first[span], first[span] + stream.rows[span])]


def _draw(raw: int, below: int) -> int:
    """A whole number below a bound, from 64 random bits."""
    return (int(raw) >> 32) * below >> 32


@given(BLOCKS, st.one_of(st.none(), st.integers(1, 300)), SEEDS, st.integers(1, 6))
def test_sliding_window(blocks: list[int], rows: int | None, seed: int, n: int) -> None:
    """Fill a window; emit a random slot, and refill it with the next row; at the end drain it at random."""
    stream = _stream(blocks, ca.SlidingWindow(rows=rows), n, seed)
    size = rows or max(round(n * sum(blocks) / len(blocks)), 1)
    bits = row_bits(seed, 0, 0)
    window: list[int] = []
    out: list[int] = []
    loads = list(_loads(stream))
    assert [row for load in loads for row in load] == list(range(sum(blocks))), "the scan is in file order"
    for step, load in enumerate(loads):
        filling = size - len(window)
        window += load[:filling]
        drawn = bits(step)
        raws = drawn.random_raw(max(len(load) - filling, 0))
        for row, raw in zip(load[max(filling, 0) :], raws, strict=True):
            slot = _draw(raw, size)
            out.append(window[slot])
            window[slot] = row
        if step == len(loads) - 1:
            out += [window[int(k)] for k in permutation(len(window), drawn)]
    assert stream.row_ids().tolist() == out


@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=30),
    st.one_of(st.none(), st.integers(1, 300)),
    st.sampled_from([0.0, 0.2, 0.4, 0.5, 0.9]),
    SEEDS,
    st.integers(1, 6),
)
@example(blocks=[1, 4, 40], rows=None, ratio=0.0, seed=0, n=1)
def test_mrs(blocks: list[int], rows: int | None, ratio: float, seed: int, n: int) -> None:
    """A reservoir sample is kept of the scan; what is dropped or evicted goes to SGD.

    A second thread loops over a copy of the reservoir; the two are mixed evenly.
    """
    stream = _stream(blocks, ca.MRS(rows=rows, ratio=ratio), n, seed)
    size = min(rows or max(round(n * sum(blocks) / len(blocks)), 1), sum(blocks) // 2)
    bits = row_bits(seed, 0, 0)
    reservoir: list[int] = []
    out: list[int] = []
    scanned = dropped = looped = 0
    all_dropped = sum(blocks) - size
    all_looped = stream.num_rows - all_dropped
    for step, load in enumerate(_loads(stream)):
        filling = size - len(reservoir)
        reservoir += load[: max(filling, 0)]
        scanned += min(max(filling, 0), len(load))
        copy = list(reservoir)
        raws = bits(step).random_raw(max(len(load) - max(filling, 0), 0))
        for row, raw in zip(load[max(filling, 0) :], raws, strict=True):
            while looped < dropped * all_looped // all_dropped:
                out.append(copy[looped % len(copy)])
                looped += 1
            scanned += 1
            slot = _draw(raw, scanned)
            if slot < size:
                out.append(reservoir[slot])
                reservoir[slot] = row
            else:
                out.append(row)
            dropped += 1
        while looped < dropped * all_looped // all_dropped:
            out.append(copy[looped % len(copy)])
            looped += 1
    assert stream.row_ids().tolist() == out
    assert stream.epoch.repeated_rows == looped == all_looped
    # To whole batches, and no fewer than a stream may need whose rows are filled up to whole batches.
    assert -4 / 2 <= stream.num_rows - round(all_dropped / (1 - ratio), 6) < 2 * 4
    once = Counter(out)
    assert set(once) | set(reservoir) == set(range(sum(blocks))), "what is not given out is in the reservoir"


@given(BLOCKS, st.integers(1, 9), SEEDS, st.integers(1, 20))
def test_spread(blocks: list[int], over_steps: int, seed: int, n: int) -> None:
    """The rows of a load are cut at random in equal parts; part a leaves at step k + a, in random order.

    The last loads are cut in as many parts as there are steps left.
    """
    stream = _stream(blocks, ca.Spread(over_steps=over_steps), n, seed)
    bits = row_bits(seed, 0, 0)
    parts: dict[tuple[int, int], list[int]] = {}
    out: list[int] = []
    loads = list(_loads(stream))
    for step, load in enumerate(loads):
        drawn = bits(step)
        order = [load[int(k)] for k in permutation(len(load), drawn)]
        count = min(over_steps, n, len(loads) - step)
        for a in range(count):
            parts[step, a] = order[len(load) * a // count : len(load) * (a + 1) // count]
        # Its own rows first, then those of the load before, and so on.
        own = parts[step, 0]
        here = [row for k in range(step, -1, -1) for row in parts.pop((k, step - k), [])]
        if len(here) > len(own):
            here = [here[int(k)] for k in permutation(len(here), drawn)]
        out += here
    assert not any(parts.values())
    assert stream.row_ids().tolist() == out


@given(BLOCKS, SEEDS, st.integers(1, 9))
def test_spread_over_one_step_is_corgipile(blocks: list[int], seed: int, n: int) -> None:
    spread, corgipile = (_stream(blocks, s, n, seed) for s in (ca.Spread(over_steps=1), ca.CorgiPile()))
    assert spread.row_ids().tolist() == corgipile.row_ids().tolist()


def test_spread_holds_little_more_than_half_of_the_blocks_that_it_mixes() -> None:
    stream = _stream([100] * 200, ca.Spread(), 32, 0)
    held, most = 0, 0
    for step, out in zip(stream.steps()[1], stream.step_rows, strict=True):
        held += 100 * len(step.load)
        most = max(most, held)
        held -= out
    assert most == 100 * 32 * (8 + 1) / (2 * 8)


def test_mrs_of_streams_keeps_equal_steps() -> None:
    for rows in range(40, 120, 7):
        for streams in (1, 2, 3, 4):
            plan = ca.EpochPlan(np.full(rows, 10), ca.MRS(rows=80), 8, 0, 0, streams, 16)
            counts = [plan.stream(s).batches for s in range(streams)]
            assert max(counts) - min(counts) <= 1
            wanted = (rows * 10 - 80) / 0.6 / 16
            assert abs(sum(counts) - wanted) <= streams + 1
            assert [plan.stream(s).num_rows for s in range(streams)] == [16 * c for c in counts]


@pytest.mark.parametrize("strategy", [ca.SlidingWindow, ca.MRS])
@pytest.mark.parametrize("rows", [-1, True, 2.5])
def test_numbers_of_rows_that_are_none(strategy: type, rows: object) -> None:
    with pytest.raises(ca.OptionError, match=rf"rows={rows} must be a whole number of at least 0"):
        strategy(rows=rows)


def test_other_parameters_are_checked() -> None:
    with pytest.raises(ca.OptionError, match=r"ratio=0.95 must be in \[0, 0.9\]"):
        ca.MRS(ratio=0.95)
    for over_steps in (0, 65, True, 2.0):
        with pytest.raises(ca.OptionError, match=rf"over_steps={over_steps} must be a whole number in \[1, 64\]"):
            ca.Spread(over_steps=over_steps)
    with pytest.raises(ca.OptionError, match=r"shuffle='sliding' must be .*window, mrs"):
        as_strategy("sliding")


def test_a_reservoir_that_holds_all_rows_raises_and_a_window_shuffles_fully() -> None:
    source = ArraySource([10] * 10)
    with pytest.raises(ca.OptionError, match=r"MRS\(rows=100\) over 1 streams must be less than the 100 rows"):
        ca.Reader(source, shuffle=ca.MRS(rows=100), batch_size=10)
    ids = ca.Reader(source, shuffle=ca.SlidingWindow(rows=10**9), batch_size=10).plan().row_ids()
    assert sorted(ids) == list(range(100))
    assert np.abs(ids - np.arange(100)).mean() > 20


def test_a_window_that_the_budget_does_not_hold_raises() -> None:
    source = ArraySource([1000] * 100)
    with pytest.raises(ca.BudgetError, match="shuffle='window' needs 90"):
        ca.Reader(source, shuffle=ca.SlidingWindow(rows=90_000), buffer_blocks=10)

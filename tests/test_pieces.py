"""Row groups that are too large for the budget, read in pieces."""

import threading
from pathlib import Path
from random import Random

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import all_parts, ids_of
from hypothesis import given
from hypothesis import strategies as st

import corgiarrow as ca
from corgiarrow import budget
from corgiarrow.sources.ranges import Chunk, Windows
from corgiarrow.strategies import BY_NAME

GROUP_ROWS = [4000, 4000, 17, 3000, 4000]
ROWS = sum(GROUP_ROWS)
MEMORY = "700 kB"
"""Less than one of the larger row groups takes; several streams share twice as much."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of row groups of about half a megabyte in memory, in small pages."""
    folder = tmp_path_factory.mktemp("large")
    first = 0
    for number, groups in enumerate((GROUP_ROWS[:2], GROUP_ROWS[2:])):
        writer = None
        for rows in groups:
            ids = np.arange(first, first + rows)
            table = pa.table({"id": ids, "text": [f"{i:0100}" for i in ids], "kind": [f"kind {i % 5}" for i in ids]})
            options = {"data_page_size": 4096, "write_batch_size": 64, "use_dictionary": ["kind"]}
            writer = writer or pq.ParquetWriter(folder / f"{number}.parquet", table.schema, **options)
            writer.write_table(table)
            first += rows
        assert writer is not None
        writer.close()
    return folder


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a cursor costs follows from the size of pages, which are small in these files."""
    monkeypatch.setattr("corgiarrow.sources.parquet.PAGE_BYTES", 4096)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), min_size=1, max_size=12),
    st.sampled_from(sorted(BY_NAME)),
    st.integers(0, 2**32 - 1),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 10),
)
def test_pieces_ascend_and_few_blocks_are_open(
    blocks: list[tuple[int, int]], name: str, seed: int, n: int, open_blocks: int, streams: int, batch_size: int
) -> None:
    rows = np.array([r for r, _ in blocks])
    pieces = np.minimum([p for _, p in blocks], rows)
    pieces = -(-rows // -(-rows // pieces))
    streams = min(streams, -(-int(rows.sum()) // batch_size))
    plan = ca.EpochPlan(rows, BY_NAME[name], n, seed, 1, streams, batch_size, pieces, open_blocks)
    assert name == "mrs" or sorted(plan.row_ids().tolist()) == list(range(rows.sum()))
    block, start, stop, _ = plan._line
    done = np.zeros(len(rows), dtype=np.int64)
    for b, first, last in zip(block, start, stop, strict=True):
        assert done[b] == first, "a block is read from its start to its end"
        done[b] = last
        assert ((done > 0) & (done < rows)).sum() <= (open_blocks if BY_NAME[name].mixes_pieces else 1)


@pytest.mark.parametrize("shuffle", ["none", "block", "corgipile", "spread", "window"])
def test_every_row_once_in_the_plans_order(large: Path, shuffle: str) -> None:
    with ca.Reader(large, shuffle=shuffle, memory=MEMORY, batch_size=100) as reader:
        assert reader.plan().pieces is not None, "the budget is meant to be too small for whole row groups"
        for epoch in range(2):
            planned = reader.plan(epoch).row_ids().tolist()
            batches = list(reader)
            assert [i for b in ids_of(iter(batches)) for i in b] == planned
            assert batches[3]["text"].to_pylist() == [f"{i:0100}" for i in batches[3]["id"].to_pylist()]
        assert reader.stats.peak_bytes <= reader.memory_bytes
        assert sorted(planned) == list(range(ROWS))


def test_decoding_a_piece_beside_what_spread_holds_stays_in_the_budget(tmp_path: Path) -> None:
    rows, rng = 800_000, np.random.default_rng(0)
    columns = {f"f{c}": rng.standard_normal(rows).astype(np.float32) for c in range(8)}
    table = pa.table({**columns, "label": np.arange(rows)})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=50_000, use_dictionary=False)
    with ca.Reader(tmp_path, shuffle="spread", memory="8 MiB", batch_size=256) as reader:
        assert reader.plan().pieces is not None
        assert sum(batch.num_rows for batch in reader) == rows
    assert reader.stats.peak_bytes <= reader.memory_bytes


def test_pieces_of_several_row_groups_are_mixed(large: Path) -> None:
    reader = ca.Reader(large, memory="1 MB", batch_size=500, provenance=True)
    assert reader.plan().open_blocks > 1
    places = [len(set(zip(*(b[c].to_pylist() for c in ("_file", "_row_group")), strict=True))) for b in reader]
    assert np.median(places) > 1


def test_resume_at_every_batch(large: Path) -> None:
    options = {"memory": MEMORY, "batch_size": 400, "seed": 3, "columns": ["id", "kind"]}
    reader = ca.Reader(large, **options)
    states, batches = [reader.state_dict()], []
    for batch in reader:
        batches.append(batch)
        states.append(reader.state_dict())
    for number, state in enumerate(states[:-1]):
        again = ca.Reader(large, **options)
        again.load_state_dict(state)
        assert next(iter(again)).equals(batches[number])
        assert again.stats.blocks <= 2 * again.buffer_blocks + 8, "what came before is not read again"
        again.close()


@pytest.mark.parametrize(("world_size", "num_workers"), [(1, 1), (2, 1), (1, 4), (2, 2)])
def test_elastic(large: Path, world_size: int, num_workers: int) -> None:
    options = {"memory": "4 MB", "batch_size": 300, "streams": 4, "seed": 1}
    plan = ca.Reader(large, **options).plan(0)
    assert plan.pieces is not None
    batches = all_parts(large, world_size, num_workers, **options)
    assert [i for b in batches for i in b][:ROWS] == plan.row_ids().tolist()


def test_another_memory_is_another_order(large: Path) -> None:
    state = ca.Reader(large, memory=MEMORY).state_dict()
    with pytest.raises(ca.StateMismatchError, match=r"pieces=.*give the same memory"):
        ca.Reader(large, memory="800 kB", buffer_blocks=None).load_state_dict(
            state | {"buffer_blocks": ca.Reader(large, memory="800 kB").buffer_blocks}
        )


def test_a_pass_that_is_left_closes_its_files(large: Path) -> None:
    opened = len(list(Path("/proc/self/fd").iterdir()))
    reader = ca.Reader(large, memory=MEMORY, threads=4)
    for number, _ in enumerate(reader):
        if number == 3:
            assert len(list(Path("/proc/self/fd").iterdir())) > opened
            break
    reader.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == opened
    assert not [t for t in threading.enumerate() if t.name.startswith("corgiarrow")]


def test_a_few_rows_cost_few_bytes(large: Path) -> None:
    size = sum(f.stat().st_size for f in large.iterdir())
    with ca.Reader(large, shuffle="none", memory=MEMORY, batch_size=10) as reader:
        next(iter(reader))
        assert 0 < reader.stats.fetched_bytes < size / 4


def test_too_little_memory_says_what_is_enough(large: Path) -> None:
    with pytest.raises(ca.BudgetError, match=r"give memory='\d+ MiB' or more"):
        ca.Reader(large, memory="20 kB")


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 2000)), min_size=1, max_size=20),
    st.sampled_from(["none", "block", "corgipile"]),
    st.integers(10**4, 10**9),
    st.integers(1, 10**6),
    st.integers(1, 4),
)
def test_what_a_budget_promises(
    blocks: list[tuple[int, int]], name: str, memory: int, cursor_bytes: int, streams: int
) -> None:
    rows = np.array([r for r, _ in blocks])
    sizes = budget.Sizes(rows, rows * np.array([w for _, w in blocks]), rows * 8, 0.5, lambda chosen: cursor_bytes)
    try:
        found = budget.resolve(budget.Request(memory), sizes, BY_NAME[name], streams)
    except ca.BudgetError:
        return
    pieces = np.ones_like(rows) if found.pieces is None else found.pieces
    assert found.stream_bytes == memory // streams
    assert (pieces == -(-rows // -(-rows // pieces))).all()
    assert (pieces >= 1).all()
    assert (pieces == -(-rows // -(-rows // pieces))).all()
    assert (pieces <= rows).all()
    largest = np.sort(np.repeat(-(-sizes.nbytes // pieces), pieces))[::-1][: found.buffer_blocks]
    assert largest.sum() + found.reserved_bytes <= found.stream_bytes


# Files that are not local


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 300), st.integers(0, 20)), min_size=1, max_size=6),
    st.integers(1, 60),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_windows_give_every_byte_of_chunks_side_by_side(
    layout: list[tuple[int, int, int]], step_rows: int, ahead: bool, random: Random
) -> None:
    """Whatever is fetched ahead, every byte is fetched once, and read right."""
    rows = 100
    chunks, at = [], 4
    for hole, length, dictionary in layout:
        start = at + hole
        chunks.append(Chunk(start, start + length, start + min(dictionary, length - 1), 0, rows))
        at = start + length
    data = bytes(n % 251 for n in range(at + 8))
    calls = []

    def fetch(ranges: list[tuple[int, int]]) -> list[bytes]:
        calls.append(ranges)
        return [data[a:b] for a, b in ranges]

    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("BUFFER_BYTES", 3), ("_LEAST_BYTES", 5), ("PAGE_ROWS", 7)):
            patch.setattr(f"corgiarrow.sources.ranges.{name}", value)
        windows = Windows(chunks, len(data), fetch, step_rows)
        files = [windows.opened() for _ in chunks]
        places = [chunk.start for chunk in chunks]
        row = 0
        while open_chunks := [n for n, chunk in enumerate(chunks) if places[n] < chunk.stop]:
            if ahead and random.random() < 0.3:
                row = min(row + step_rows, rows)
                missing = windows.missing(row)
                windows.add(missing, fetch(missing))
            n = random.choice(open_chunks)
            stop = min(places[n] + random.randint(1, 40), chunks[n].stop)
            files[n].seek(places[n])
            assert bytes(files[n].read(stop - places[n])) == data[places[n] : stop]
            places[n] = stop
        fetched = [r for ranges in calls for r in ranges]
        assert sum(b - a for a, b in fetched) == sum(c.stop - c.start for c in chunks), "every byte is fetched once"
        with pytest.raises(ca.ReadError, match="no column chunk"):
            windows.between(chunks[-1].stop, chunks[-1].stop + 5)


def test_a_remote_row_group_is_read_in_windows(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corgiarrow.sources.ranges.BUFFER_BYTES", 100)
    memory = fsspec.filesystem("memory")
    memory.put(str(large), "/pieces", recursive=True)
    try:
        with (
            ca.Reader("memory://pieces", memory=MEMORY, batch_size=100) as remote,
            ca.Reader(large, memory=MEMORY, batch_size=100) as local,
        ):
            assert remote.plan().pieces is not None
            assert list(remote) == list(local)
            size = sum(f.stat().st_size for f in large.iterdir())
            assert remote.stats.fetched_bytes < 1.5 * size
    finally:
        memory.rm("/pieces", recursive=True)

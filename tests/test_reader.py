"""Laws of reading real files: exactly once, elastic, resumable, bounded, clean."""

import gc
import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import RAGGED_ROWS, ArraySource, all_parts, ids_of, some_rows, write_dataset
from hypothesis import given, settings
from hypothesis import strategies as st

import corgiarrow as ca
from corgiarrow.pipeline import _interrupts_told
from corgiarrow.strategies import BY_NAME

NAMES = sorted(BY_NAME)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("world", "workers"), [(1, 1), (2, 1), (3, 1), (2, 2), (4, 2)])
def test_every_row_once_with_its_own_values(ragged: Path, name: str, world: int, workers: int) -> None:
    options = {"shuffle": name, "batch_size": 8, "streams": world * workers, "provenance": False}
    batches = all_parts(ragged, world, workers, **options)
    plan = ca.Reader(ragged, shuffle=name, batch_size=8, streams=world * workers).plan()
    batches = batches[: plan.num_batches]
    planned = np.sort(plan.row_ids())
    assert sorted(i for b in batches for i in b) == planned.tolist()
    whole = pa.Table.from_batches(list(ca.Reader(ragged, shuffle=name, batch_size=8)))
    if name == "mrs":
        assert whole.equals(some_rows(0, RAGGED_ROWS, whole.schema).take(whole["id"]))
    else:
        assert planned.tolist() == list(range(RAGGED_ROWS))
        assert whole.sort_by("id").equals(some_rows(0, RAGGED_ROWS, whole.schema))


@given(
    files=st.lists(st.lists(st.integers(0, 25), max_size=4), min_size=1, max_size=5).filter(lambda f: sum(map(sum, f))),
    name=st.sampled_from(NAMES),
    batch_size=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 2),
    n=st.integers(1, 4),
    columns=st.lists(st.sampled_from(["x", "name", "label"]), unique=True),
)
@settings(max_examples=25)
def test_delivers_the_plans_order(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[list[int]],
    name: str,
    batch_size: int,
    seed: int,
    epoch: int,
    n: int,
    columns: list[str],
) -> None:
    folder = write_dataset(tmp_path_factory.mktemp("files"), files)
    buffer = {} if name in ("epoch", "once") else {"buffer_blocks": n}
    reader = ca.Reader(folder, columns=["id", *columns], shuffle=name, batch_size=batch_size, seed=seed, **buffer)
    reader.set_epoch(epoch)
    batches = list(reader)
    assert [b.num_rows for b in batches[:-1]] == [batch_size] * (len(batches) - 1)
    found = pa.Table.from_batches(batches)
    total = sum(map(sum, files))
    expected = some_rows(0, total, _full_schema())
    assert found.equals(expected.select(["id", *columns]).take(reader.plan(epoch).row_ids()))


def _full_schema() -> pa.Schema:
    return pa.schema([("id", pa.int64()), ("x", pa.float32()), ("name", pa.string()), ("label", pa.int32())])


def test_epochs_move_on_only_when_exhausted(ragged: Path) -> None:
    reader = ca.Reader(ragged, batch_size=16)
    first = ids_of(iter(reader))
    assert reader.epoch == 1
    for _ in reader:
        break
    assert reader.epoch == 1
    second = ids_of(iter(reader))
    assert second != first
    assert second == ids_of(iter(_at_epoch(ragged, 1)))
    reader.set_epoch(0)
    assert ids_of(iter(reader)) == first
    assert len(reader) == len(first)


def _at_epoch(data: object, epoch: int) -> ca.Reader:
    reader = ca.Reader(data, batch_size=16)
    reader.set_epoch(epoch)
    return reader


@given(
    st.lists(st.integers(1, 30), min_size=4, max_size=20),
    st.sampled_from(NAMES),
    st.integers(1, 9),
    st.booleans(),
    st.data(),
)
def test_resume_everywhere(blocks: list[int], name: str, batch_size: int, drop_last: bool, data: st.DataObject) -> None:
    source = ArraySource([*blocks, 4 * batch_size])
    options = {"shuffle": name, "batch_size": batch_size, "seed": 5, "drop_last": drop_last, "streams": 4}
    world = data.draw(st.sampled_from([1, 2, 4]))
    readers = [ca.Reader(source, rank=r, world_size=world, **options) for r in range(world)]
    expected = [ids_of(iter(r)) + ids_of(iter(r)) for r in readers]
    steps = len(readers[0])
    first, second = sorted(data.draw(st.tuples(st.integers(0, steps), st.integers(0, steps))))
    for rank in range(world):
        reader = ca.Reader(source, rank=rank, world_size=world, **options)
        taken = _take(reader, first)
        again = ca.Reader(source, rank=rank, world_size=world, **options)
        again.load_state_dict(json.loads(json.dumps(reader.state_dict())))
        taken += _take(again, second - first)
        third = ca.Reader(source, rank=rank, world_size=world, **options)
        third.load_state_dict(again.state_dict())
        third.set_epoch(third.epoch)
        taken += ids_of(iter(third))
        if len(taken) < 2 * steps:
            taken += ids_of(iter(third))
        assert taken[: 2 * steps] == expected[rank]


def _take(reader: ca.Reader, count: int) -> list[list[int]]:
    out: list[list[int]] = []
    if count:
        for batch in reader:
            out.append(batch.column("id").to_pylist())
            if len(out) == count:
                break
    return out


def test_resume_on_other_worlds(ragged: Path) -> None:
    """8 → 4 → 2 parts: what is left of the epoch comes once, in the order of an uninterrupted run."""
    options = {"batch_size": 4, "streams": 8, "seed": 3}
    whole = all_parts(ragged, 1, **options)
    out: list[list[int]] = []
    state = None
    for world, steps in ((8, 2), (4, 3), (2, None)):
        readers = [ca.Reader(ragged, rank=r, world_size=world, **options) for r in range(world)]
        for reader in readers:
            if state is not None:
                reader.load_state_dict(state)
        found = [ids_of(iter(r)) if steps is None else _take(r, steps) for r in readers]
        state = readers[0].state_dict()
        assert all(r.state_dict() == state for r in readers)
        out += [rank[t] for t in range(len(found[0])) for rank in found]
    assert out[: len(whole)] == whole


def test_resume_reads_at_most_one_pool() -> None:
    source = ArraySource([10] * 100)
    reader = ca.Reader(source, buffer_blocks=5, batch_size=10, threads=1)
    reader.seek(0, 52)  # In the buffer of blocks 50 to 54 of the order.
    batches = iter(reader)
    next(batches)
    reader.close()
    order = reader.plan(0).stream(0).block.tolist()
    read = [block for block, _, _ in source.reads]
    assert read == order[50 : 50 + len(read)]


def test_state_is_small_plain_and_quick(ragged: Path) -> None:
    state = ca.Reader(ragged).state_dict()
    assert len(json.dumps(state)) < 400
    assert all(isinstance(v, int | str) for v in state.values())


def test_state_of_other_data_or_parameters_raises(ragged: Path, tmp_path: Path) -> None:
    state = ca.Reader(ragged, batch_size=8).state_dict()
    other = write_dataset(tmp_path / "other", [[30, 1, 17]])
    for data, options, named in (
        (other, {}, "data="),
        (ragged, {"seed": 1}, "seed="),
        (ragged, {"shuffle": "block"}, "shuffle="),
        (ragged, {"columns": ["id"]}, "columns="),
        (ragged, {"batch_size": 9}, "batch_size="),
        (ragged, {"buffer_blocks": 2}, "buffer_blocks="),
        (ragged, {"streams": 2}, "streams="),
    ):
        with pytest.raises(ca.StateMismatchError, match=named):
            ca.Reader(data, **{"batch_size": 8, **options}).load_state_dict(state)
    with pytest.raises(ca.StateMismatchError, match="lacks"):
        ca.Reader(ragged).load_state_dict({"epoch": 1})
    with pytest.raises(ca.StateMismatchError, match="load it with 1 parts"):
        two = ca.Reader(ragged, batch_size=8, streams=2, rank=0, world_size=2)
        two.load_state_dict({**ca.Reader(ragged, batch_size=8, streams=2).state_dict(), "batches": 3})


def test_streams_none_is_kept_in_the_state(ragged: Path) -> None:
    saved = ca.Reader(ragged, batch_size=8, rank=0, world_size=4)
    batches = _take(saved, 2)
    assert batches
    readers = [ca.Reader(ragged, batch_size=8, rank=r, world_size=2) for r in range(2)]
    for reader in readers:
        reader.load_state_dict(saved.state_dict())
    rest = [i for reader in readers for batch in reader for i in batch.column("id").to_pylist()]
    before = [i for r in range(4) for b in _take(ca.Reader(ragged, batch_size=8, rank=r, world_size=4), 2) for i in b]
    assert set(rest) | set(before) == set(range(RAGGED_ROWS))
    assert not set(rest) & set(before)


def test_a_copy_of_the_data_resumes(ragged: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in ragged.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    reader = ca.Reader(ragged, batch_size=8)
    whole = ids_of(iter(reader))
    reader.seek(0, 5)
    moved = ca.Reader(copy, batch_size=8)
    moved.load_state_dict(reader.state_dict())
    assert ids_of(iter(moved)) == whole[5:]


def test_seek(ragged: Path) -> None:
    reader = ca.Reader(ragged, batch_size=8)
    whole = ids_of(iter(reader))
    reader.seek(0, len(whole))
    assert reader.epoch == 1
    with pytest.raises(ca.OptionError, match=rf"step=99 must be in \[0, {len(whole)}\]"):
        reader.seek(0, 99)
    with pytest.raises(ca.OptionError, match="multiple of num_workers=2"):
        ca.Reader(ragged, batch_size=8, num_workers=2).seek(0, 3)


def test_provenance_names_each_row(ragged: Path) -> None:
    reader = ca.Reader(ragged, provenance=True, batch_size=50)
    table = pa.Table.from_batches(list(reader), schema=reader.schema)
    assert table.num_rows == RAGGED_ROWS
    for file in set(table["_file"].to_pylist()):
        parquet = pq.ParquetFile(ragged / file)
        for row in table.to_pylist():
            if row["_file"] == file:
                group = parquet.read_row_group(row["_row_group"])
                assert group["id"][row["_row"]].as_py() == row["id"]
        parquet.close()


def test_order_does_not_depend_on_threads_or_budget_left(ragged: Path) -> None:
    runs = [ids_of(iter(ca.Reader(ragged, buffer_blocks=3, batch_size=8, threads=t))) for t in (1, 2, 7)]
    assert runs[0] == runs[1] == runs[2]


def _floats(path: Path, rows: int, group: int) -> Path:
    rng = np.random.default_rng(0)
    table = pa.table({f"f{i}": rng.standard_normal(rows, dtype=np.float32) for i in range(12)})
    pq.write_table(table, path, row_group_size=group)
    return path


@pytest.mark.parametrize("name", ["none", "block", "corgipile"])
def test_memory_stays_under_the_budget_and_comes_back(tmp_path: Path, name: str) -> None:
    path = _floats(tmp_path / "floats.parquet", 1_200_000, 20_000)  # 58 MB in 60 row groups.
    base = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(base)
    POOLS.append(pool)
    pa.set_memory_pool(pool)
    try:
        reader = ca.Reader(path, memory="16 MiB", shuffle=name, threads=2)
        levels = []
        for _ in range(5):
            rows = 0
            for batch in reader:
                rows += batch.num_rows
            del batch
            gc.collect()
            assert rows == 1_200_000
            levels.append(pool.bytes_allocated())
        assert pool.max_memory() <= 16 * 2**20, f"{pool.max_memory() / 2**20:.1f} MiB"
        assert reader.stats.peak_bytes <= 16 * 2**20
        assert levels == [0] * 5
    finally:
        pa.set_memory_pool(base)


POOLS: list[pa.MemoryPool] = []


def test_stats_count(ragged: Path) -> None:
    reader = ca.Reader(ragged, batch_size=8, buffer_blocks=2)
    batches = list(reader)
    stats = reader.stats.as_dict()
    assert stats["rows"] == RAGGED_ROWS
    assert stats["batches"] == len(batches)
    assert stats["blocks"] == len(reader.source.block_rows)
    assert stats["fetched_bytes"] > 0
    assert stats["peak_bytes"] > 0


@pytest.mark.parametrize("way", ["break", "exception", "close", "delete", "exhaust"])
def test_threads_end_and_files_are_closed(ragged: Path, way: str) -> None:
    reader = ca.Reader(ragged, batch_size=4, threads=3)
    if way == "break":
        for _ in reader:
            break
        del reader
    elif way == "exception":
        with pytest.raises(ZeroDivisionError), reader:
            for _ in reader:
                raise ZeroDivisionError
    elif way == "close":
        next(iter(reader))
        reader.close()
    elif way == "delete":
        batches = iter(reader)
        next(batches)
        del batches, reader
    else:
        list(reader)
    assert not [t for t in threading.enumerate() if t.name.startswith("corgiarrow-")]
    left = [f.path for f in psutil.Process().open_files() if f.path.startswith(str(ragged))]
    assert not left


def test_a_batch_outlives_its_reader(ragged: Path) -> None:
    reader = ca.Reader(ragged, batch_size=8)
    batch = next(iter(reader))
    copy = batch.to_pylist()
    reader.close()
    assert batch.to_pylist() == copy


def test_an_ended_pass_says_so(ragged: Path) -> None:
    reader = ca.Reader(ragged, batch_size=8)
    old = iter(reader)
    next(old)
    new = iter(reader)
    assert next(new).num_rows == 8
    with pytest.raises(StopIteration):
        next(old)
    reader.close()


@pytest.mark.parametrize(("code", "status"), [("import sys; sys.exit(7)", 7), ("raise KeyError('x')", 1), ("pass", 0)])
def test_a_program_ends_with_its_own_status(ragged: Path, code: str, status: int) -> None:
    program = f"import corgiarrow as ca\nit = iter(ca.Reader({str(ragged)!r}, batch_size=4))\nnext(it)\n{code}\n"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == status, done.stderr.decode()


def test_ctrl_c_ends_a_waiting_pass(ragged: Path) -> None:
    program = (
        "import sys, time, corgiarrow as ca\n"
        f"reader = ca.Reader({str(ragged)!r}, batch_size=4)\n"
        "try:\n"
        "    while True:\n"
        "        for batch in reader:\n"
        "            print('reading', flush=True)\n"
        "except KeyboardInterrupt:\n"
        "    import threading\n"
        "    reader.close()\n"
        "    sys.exit(40 + sum(t.name.startswith('corgiarrow') for t in threading.enumerate()))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.stdout.read()
    process.stdout.close()
    assert process.wait(timeout=30) == 40


def test_ctrl_c_in_the_midst_of_a_wait_is_told_as_such() -> None:
    """A condition may have given up its lock when the signal comes."""
    lock = threading.RLock()
    with pytest.raises(KeyboardInterrupt), _interrupts_told(), lock:
        lock.release()
        raise KeyboardInterrupt
    with pytest.raises(RuntimeError, match="another"), _interrupts_told(), lock:
        raise RuntimeError("another")


def _part_of(job: tuple[bytes, int, int]) -> list[list[int]]:
    pickled, rank, world = job
    reader = pickle.loads(pickled)
    mine = ca.Reader(reader.source, rank=rank, world_size=world, streams=4, batch_size=8)
    return ids_of(iter(mine))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes(ragged: Path, method: str) -> None:
    """A reader pickles after use, and four processes share the epoch, however they are started."""
    reader = ca.Reader(ragged, streams=4, batch_size=8)
    whole = ids_of(iter(reader))
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        parts = pool.map_async(_part_of, [(pickle.dumps(reader), r, 4) for r in range(4)]).get(timeout=120)
        pool.close()
        pool.join()
    assert [parts[r][t] for t in range(len(parts[0])) for r in range(4)][: len(whole)] == whole


def test_fork_in_the_middle_of_a_pass(ragged: Path) -> None:
    """The child may read anew; going on with the parent's pass raises instead of hanging."""
    reader = ca.Reader(ragged, batch_size=8)
    batches = iter(reader)
    before = next(batches)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            try:
                next(batches)
            except RuntimeError as error:
                status = 0 if "another process" in str(error) else 2
            if sum(b.num_rows for b in ca.Reader(ragged, batch_size=8)) != RAGGED_ROWS:
                status = 3
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert before.num_rows + sum(b.num_rows for b in batches) == RAGGED_ROWS


def test_kill_and_resume(ragged: Path, tmp_path: Path) -> None:
    """A program is killed in the middle of an epoch; the next one goes on from the state that it saved."""
    saved, seen = tmp_path / "state.json", tmp_path / "seen"
    program = (
        "import json, os, signal, sys, corgiarrow as ca\n"
        f"reader = ca.Reader({str(ragged)!r}, batch_size=8)\n"
        f"saved, seen = {str(saved)!r}, {str(seen)!r}\n"
        "if os.path.exists(saved): reader.load_state_dict(json.load(open(saved)))\n"
        "for number, batch in enumerate(reader):\n"
        "    open(seen, 'a').write(' '.join(map(str, batch['id'].to_pylist())) + ' ')\n"
        "    json.dump(reader.state_dict(), open(saved, 'w'))\n"
        "    if number == 9 and len(sys.argv) > 1: os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    first = subprocess.run([sys.executable, "-c", program, "die"], timeout=60, check=False)
    assert first.returncode == -signal.SIGKILL
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
    assert [int(i) for i in seen.read_text().split()] == [
        i for b in ids_of(iter(ca.Reader(ragged, batch_size=8))) for i in b
    ]

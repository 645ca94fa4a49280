"""The PyTorch adapter: DataLoader workers, epochs, resuming, memory that is shared, samplers."""

import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import RAGGED_ROWS, ids_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import corgiarrow as ca
import corgiarrow.torch as ct
from corgiarrow.arrays import Ragged
from corgiarrow.torch import sharing
from corgiarrow.torch.passes import Passes
from corgiarrow.torch.sharing import Sender

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true"),
]

OPTIONS: dict[str, Any] = {"batch_size": 8, "streams": 4, "buffer_blocks": 4, "columns": ["id", "x", "label"]}
CONTEXTS = ["fork", "spawn", "forkserver"]


def ids(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def in_order(data: Path, epochs: int, **options: Any) -> list[list[list[int]]]:
    reader = ca.Reader(data, **{**OPTIONS, **options})
    return [ids_of(reader) for _ in range(epochs)]


@pytest.mark.parametrize(
    ("workers", "context", "persistent"),
    [
        (1, "fork", False),
        (2, "fork", False),
        (4, "fork", False),
        (2, "fork", True),
        (2, "spawn", True),
        (2, "forkserver", True),
    ],
)
def test_workers_give_the_order_of_one_process_epoch_by_epoch(
    ragged: Path, workers: int, context: str, persistent: bool
) -> None:
    dataset = ct.CorgiPileDataset(ragged, **OPTIONS)
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        persistent_workers=persistent,
        multiprocessing_context=context,
        timeout=60,
    )
    expected = in_order(ragged, 4)
    assert len(loader) == len(expected[0])
    assert ids(loader) == expected[0]
    assert ids(loader) == expected[1]
    for _ in itertools.islice(loader, 3):
        pass  # A pass that is broken off is an epoch as well.
    assert ids(loader) == expected[3]
    dataset.set_epoch(1)
    assert ids(loader) == expected[1]
    assert ids(loader) == expected[2]
    dataset.seek(2, 4)
    assert ids(loader) == expected[2][4:]
    assert ids(loader) == expected[3]


def test_batches_of_batches_are_refused(ragged: Path) -> None:
    loader = DataLoader(ct.CorgiPileDataset(ragged, **OPTIONS), batch_size=4, num_workers=1)
    with pytest.raises(ca.OptionError, match="give it batch_size=None"):
        next(iter(loader))


def test_a_seek_that_workers_cannot_begin_at_raises_here(ragged: Path) -> None:
    dataset = ct.CorgiPileDataset(ragged, **OPTIONS)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    next(iter(loader))
    dataset.seek(0, 3)
    with pytest.raises(ca.StateMismatchError, match="3 batches delivered, which 2 parts do not divide"):
        next(iter(loader))


@pytest.mark.parametrize("workers", [0, 2])
def test_set_epoch_keeps_a_position_in_that_epoch(ragged: Path, workers: int) -> None:
    dataset = ct.CorgiPileDataset(ragged, **OPTIONS)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    expected = in_order(ragged, 3)
    dataset.seek(1, 4)
    dataset.set_epoch(1)
    state = dataset.state_dict()
    assert ids(loader) == expected[1][4:]
    dataset.set_epoch(1)
    assert ids(loader) == expected[1], "it was begun at already"
    dataset.load_state_dict(state)
    dataset.set_epoch(1)
    assert ids(loader) == expected[1][4:]
    dataset.load_state_dict(state)
    dataset.set_epoch(2)
    assert ids(loader) == expected[2]


def test_without_workers_each_pass_is_an_epoch(ragged: Path) -> None:
    dataset = ct.CorgiPileDataset(ragged, **OPTIONS)
    loader = DataLoader(dataset, batch_size=None)
    expected = in_order(ragged, 3)
    assert ids(loader) == expected[0]
    next(iter(loader))
    assert ids(loader) == expected[2]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_resumes_at_every_step(ragged: Path, workers: int) -> None:
    expected = in_order(ragged, 2)

    def made() -> StatefulDataLoader[Any]:
        return StatefulDataLoader(ct.CorgiPileDataset(ragged, **OPTIONS), batch_size=None, num_workers=workers)

    for k in range(0, len(expected[0]) + 1, 1 if not workers else 5):
        loader = made()
        batches = iter(loader)
        first = [next(batches)["id"].tolist() for _ in range(k)]
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        del batches, loader
        again = made()
        again.load_state_dict(state)
        assert first + ids(again) == expected[0]
        assert ids(again) == expected[1]
    loader = made()
    assert ids(loader) == expected[0]
    state = loader.state_dict()
    again = made()
    again.load_state_dict(state)
    assert ids(again) == expected[1]


def test_states_of_the_thread_loader_and_of_the_dataset_are_one_kind(ragged: Path) -> None:
    expected = in_order(ragged, 2)
    loader = ct.loader(ragged, **OPTIONS)
    batches = iter(loader)
    first = [next(batches)["id"].tolist() for _ in range(12)]
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    for workers in (0, 2, 4):
        dataset = ct.CorgiPileDataset(ragged, **OPTIONS)
        dataset.load_state_dict(state)
        assert dataset.state_dict() == state
        through = DataLoader(dataset, batch_size=None, num_workers=workers)
        assert first + ids(through) == expected[0]
        assert ids(through) == expected[1]
    per_rank = []
    for rank in range(2):
        half = ct.loader(ragged, rank=rank, world_size=2, **OPTIONS)
        half.load_state_dict(state)
        per_rank.append(ids(half))
    rest = [ids for step in zip(*per_rank, strict=True) for ids in step]
    assert first + rest[: len(expected[0]) - 12] == expected[0]


def test_a_position_that_only_workers_know_raises(ragged: Path) -> None:
    dataset = ct.CorgiPileDataset(ragged, **OPTIONS)
    for _ in DataLoader(dataset, batch_size=None, num_workers=1):
        pass
    with pytest.raises(ca.StateMismatchError, match="StatefulDataLoader"):
        dataset.state_dict()


def test_a_state_of_other_options_raises(ragged: Path) -> None:
    state = ct.loader(ragged, **OPTIONS).state_dict()
    with pytest.raises(ca.StateMismatchError, match="seed"):
        ct.CorgiPileDataset(ragged, **OPTIONS, seed=1).load_state_dict(state)


def test_streams_that_a_state_settles_reach_workers(ragged: Path) -> None:
    options = {**OPTIONS, "streams": None}
    state = ct.loader(ragged, **OPTIONS).state_dict()
    dataset = ct.CorgiPileDataset(ragged, **options)
    dataset.load_state_dict(state)
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    assert [ids(loader), ids(loader)] == in_order(ragged, 2)


def test_seek_is_bounded(ragged: Path) -> None:
    dataset = ct.CorgiPileDataset(ragged, **OPTIONS)
    with pytest.raises(ca.OptionError, match="step=1000 must be in"):
        dataset.seek(0, 1000)


@settings(max_examples=60)
@given(
    workers=st.integers(1, 5),
    commands=st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 9))), max_size=12),
    data=st.data(),
)
def test_workers_agree_on_epochs_whatever_their_timing(
    workers: int, commands: list[tuple[int, int] | None], data: st.DataObject
) -> None:
    passes = Passes()
    passes.command(0)
    epoch, step = -1, 0
    for number, command in enumerate(commands):
        if command is not None:
            passes.command(*command)
            epoch, step = command
        elif epoch < 2**32 - 1:
            epoch, step = epoch + 1, 0
        else:
            return
        # Some workers may be ended before they begin.
        for worker in data.draw(st.permutations(range(workers)))[: data.draw(st.integers(1, workers))]:
            assert passes.begin(worker, f"pass {number}") == (epoch, step, 0)


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_come_as_the_paper_has_them(ragged: Path, workers: int) -> None:
    dataset = ct.CorgiPileDataset(ragged, batch_size=None, buffer_blocks=4, fill_null={"name": ""})
    assert len(dataset) == RAGGED_ROWS
    batches = list(DataLoader(dataset, batch_size=10, num_workers=workers))
    assert sorted(itertools.chain(*ids(batches))) == list(range(RAGGED_ROWS))
    assert batches[0]["x"].dtype == torch.float32
    assert batches[0]["x"].shape == (10,)
    assert all(isinstance(name, str) for name in batches[0]["name"])


def test_ranks_get_equal_rows(ragged: Path) -> None:
    per_rank = [
        [int(row["id"]) for row in ct.CorgiPileDataset(ragged, batch_size=None, rank=r, world_size=3, columns=["id"])]
        for r in range(3)
    ]
    assert len({len(rows) for rows in per_rank}) == 1
    assert set(itertools.chain(*per_rank)) == set(range(RAGGED_ROWS))


def half(batch: dict[str, Any]) -> dict[str, Any]:
    return {**batch, "half": batch["x"] / 2, "bf": batch["x"].to(torch.bfloat16), "first": batch["x"][:3]}


@pytest.mark.parametrize("context", CONTEXTS)
def test_what_a_transform_returns_arrives(ragged: Path, context: str) -> None:
    dataset = ct.CorgiPileDataset(ragged, transform=half, **OPTIONS)
    here = list(ct.loader(ragged, transform=half, **OPTIONS))
    there = list(DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context))
    for one, other in zip(here, there, strict=True):
        assert list(one) == list(other)
        assert all(torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one)


def tuples(batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    return batch["x"], batch["id"]


def test_a_transform_may_return_tuples(ragged: Path) -> None:
    dataset = ct.CorgiPileDataset(ragged, transform=tuples, **OPTIONS)
    found = [y.tolist() for _, y in DataLoader(dataset, batch_size=None, num_workers=2)]
    assert found == in_order(ragged, 1)[0]


NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("u64", pa.uint64()),
        ("half", pa.float16()),
        ("flag", pa.bool_()),
        ("time", pa.timestamp("us")),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("vector", pa.list_(pa.float32(), 3)),
        ("tokens", pa.list_(pa.int32())),
        ("point", pa.struct([("x", pa.float64()), ("tags", pa.list_(pa.int16()))])),
    ]
)


@pytest.fixture(scope="module")
def nested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [
        {
            "id": n,
            "u64": 2**64 - 1 - n,
            "half": np.float16(n / 4),
            "flag": n % 3 == 0,
            "time": n * 10**6,
            "text": f"row {n}",
            "raw": bytes([n % 256, 0]),
            "vector": [n, n + 1, n + 2],
            "tokens": list(range(n % 5)),
            "point": {"x": n / 3, "tags": [n] * (n % 3)},
        }
        for n in range(300)
    ]
    path = tmp_path_factory.mktemp("nested") / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=NESTED), path, row_group_size=37)
    return path


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield from flat(part, f"{name}.{key}")
    elif isinstance(value, Ragged):
        yield from flat(value._asdict(), name)
    else:
        yield name, value


@pytest.mark.parametrize("workers", [0, 2])
def test_tensors_are_bit_for_bit_numpys_arrays(nested: Path, workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 16, "buffer_blocks": 4, "streams": 2}
    arrays = ca.Loader(ca.Reader(nested, **options))
    tensors = DataLoader(ct.CorgiPileDataset(nested, **options), batch_size=None, num_workers=workers)
    count = 0
    for batch, torched in zip(arrays, tensors, strict=True):
        for (name, array), (other, tensor) in zip(flat(batch), flat(torched), strict=True):
            assert name == other
            if array.dtype.kind == "O":
                assert tensor == array.tolist()
                continue
            found = tensor.numpy()
            assert found.dtype == (np.int64 if array.dtype.kind == "M" else array.dtype)
            assert found.tobytes() == array.tobytes()
            assert found.shape == array.shape
            count += 1
    assert count


def test_tensors_share_arrows_memory_and_are_writable(ragged: Path) -> None:
    reader = ca.Reader(ragged, columns=["id"], batch_size=32)
    addresses = []
    for part in reader.slices():
        column = part.batch.column(0)
        addresses.append(column.buffers()[1].address + 8 * column.offset)
        batch = next(ca.Loader(reader)._converter.split(part.rows, part.start, 32))
        assert torch.from_numpy(batch["id"]).data_ptr() == addresses[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch in ct.loader(ragged, columns=["id"], batch_size=32):
            batch["id"] += 1


def test_changing_tensors_in_place_changes_nothing_else(ragged: Path) -> None:
    """Also not the batch that padding repeats."""
    options = {**OPTIONS, "batch_size": 7, "streams": 4}
    for rank in range(4):
        kept = [b["id"].clone() for b in ct.loader(ragged, rank=rank, world_size=4, **options)]
        spoilt = ct.loader(ragged, rank=rank, world_size=4, **options)
        for _ in range(2):
            spoilt.set_epoch(0)
            for batch, expected in zip(spoilt, kept, strict=True):
                assert torch.equal(batch["id"], expected)
                batch["id"].fill_(-1)


def test_a_batch_goes_through_a_slot_that_is_free_again_when_it_is_gone() -> None:
    batch = {
        "a": torch.arange(5),
        "b": torch.ones(2, 3, dtype=torch.float16),
        "empty": torch.zeros(0, 4),
        "scalar": torch.tensor(3.5),
        "text": ["x", "y"],
        "list": Ragged(torch.arange(3), torch.tensor([0, 1, 3])),
        "turned": torch.arange(6).reshape(2, 3).t(),
        "bf": torch.ones(3, dtype=torch.bfloat16),
    }
    sender = Sender()
    kept = []
    for number in range(20):
        batch["a"] = torch.arange(5) + number
        made = sender.shared(batch)
        made["twice"] = made["a"] * 2  # As a collate function might.
        made["part"] = made["b"][:, :2]
        assert list(made) == list(made.keys()) == [name for name, _ in made.items()]
        assert len(made) == len(made.values())
        arrived = pickle.loads(bytes(ForkingPickler.dumps(made)))
        assert type(arrived) is dict
        assert list(arrived) == [*batch, "twice", "part"]
        assert torch.equal(arrived["twice"], batch["a"] * 2)
        for name in ("a", "b", "empty", "scalar", "turned", "bf"):
            assert torch.equal(arrived[name], batch[name])
            assert arrived[name].dtype == batch[name].dtype
        assert torch.equal(arrived["part"], batch["b"][:, :2])
        assert arrived["text"] == batch["text"]
        assert torch.equal(arrived["list"].offsets, batch["list"].offsets)
        if number % 4 == 0:
            kept.append((number, arrived["a"][2:]))  # One view is enough to keep the slot.
        del made, arrived
    assert all(torch.equal(part, torch.arange(2, 5) + number) for number, part in kept)


def test_without_a_free_slot_a_batch_travels_by_itself() -> None:
    sender, kept = Sender(), []
    for number in range(30):
        made = sender.shared({"a": torch.full((1000,), number)})
        kept.append(pickle.loads(bytes(ForkingPickler.dumps(made))))
    assert [int(batch["a"][500]) for batch in kept] == list(range(30))


def test_a_batch_that_is_never_sent_leaves_its_slot() -> None:
    """What was taken out of it may travel still."""
    sender, kept = Sender(), []
    for number in range(30):
        made = sender.shared({"a": torch.full((100,), number), "scalar": np.float32(number) * np.ones(())})
        assert isinstance(made, sharing.SharedBatch)
        if number % 5 == 0:
            kept.append((number, made["a"], made["scalar"]))
        del made
    assert all((a == number).all() and scalar == number for number, a, scalar in kept)


def test_larger_batches_get_a_larger_ring() -> None:
    sender, kept = Sender(), []
    for number in range(12):
        made = sender.shared({"a": torch.full((10**number % 99_991,), number)})
        kept.append(pickle.loads(bytes(ForkingPickler.dumps(made))))
    assert all((batch["a"] == number).all() for number, batch in enumerate(kept))


def test_a_batch_that_is_sent_twice_is_copied() -> None:
    sender = Sender()
    made = sender.shared({"a": torch.arange(9)})
    first, second = (pickle.loads(bytes(ForkingPickler.dumps(made))) for _ in range(2))
    del first, made
    sender.shared({"a": torch.zeros(9, dtype=torch.int64)})
    assert second["a"].tolist() == list(range(9))


@pytest.mark.parametrize("persistent", [False, True])
def test_batches_that_are_kept_stay_as_they_are(ragged: Path, persistent: bool) -> None:
    dataset = ct.CorgiPileDataset(ragged, **OPTIONS)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=persistent)
    kept = [batch for _ in range(3) for batch in loader]
    assert ids(kept) == list(itertools.chain(*in_order(ragged, 3)))
    assert len({key for key in sharing._RINGS if not sharing._is_alive(key[0])}) <= 2


def test_pinning_reaches_every_tensor(nested: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no accelerator here, so pinning itself is replaced; how torch walks through a batch is its own."""
    pinned: list[int] = []

    def pin(self: torch.Tensor, device: object = None) -> torch.Tensor:
        pinned.append(self.numel())
        return self

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    from torch.utils.data._utils.pin_memory import pin_memory

    batch = next(iter(ct.loader(nested, batch_size=16)))
    walked = pin_memory(batch)
    tensors = [value for _, value in flat(batch) if isinstance(value, torch.Tensor)]
    assert len(pinned) == len(tensors)
    assert isinstance(walked["tokens"], Ragged)
    pinned.clear()
    next(iter(ct.loader(nested, batch_size=16, pin_memory=True, workers=0)))
    assert len(pinned) == len(tensors)


def test_a_dataset_pickles(ragged: Path) -> None:
    dataset = ct.CorgiPileDataset(ragged, **OPTIONS)
    next(iter(dataset))
    copy = pickle.loads(pickle.dumps(dataset))
    copy.set_epoch(0)
    assert ids(copy) == in_order(ragged, 1)[0]


def test_a_saved_index_is_read_instead_of_footers(ragged: Path, tmp_path: Path) -> None:
    index = tmp_path / "saved.index"
    ca.BlockIndex.build(ragged).save(index)
    expected = in_order(ragged, 1)[0]
    assert ids(ct.CorgiPileDataset(ragged, index, **OPTIONS)) == expected
    assert ids(ct.CorgiPileDataset(None, index, **OPTIONS)) == expected
    with pytest.raises(ca.OptionError, match="is an index of"):
        ct.CorgiPileDataset(tmp_path, index, **OPTIONS)
    with pytest.raises(ca.OptionError, match="block_index_path"):
        ct.CorgiPileDataset(None, **OPTIONS)


def test_a_place_is_given_or_found(ragged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = in_order(ragged, 1)[0]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    found = ids(ct.loader(ragged, **OPTIONS))
    assert found[: len(expected) // 4] == expected[1::4][: len(expected) // 4]
    assert ids(ct.loader(ragged, rank=0, world_size=1, **OPTIONS)) == expected
    with pytest.raises(ca.OptionError, match="go together"):
        ct.loader(ragged, rank=0, **OPTIONS)
    monkeypatch.setenv("RANK", "many")
    with pytest.raises(ca.OptionError, match="must be numbers"):
        ct.loader(ragged, **OPTIONS)


def test_unknown_keywords_raise(ragged: Path) -> None:
    with pytest.raises(TypeError, match="batchsize"):
        ct.CorgiPileDataset(ragged, batchsize=3)  # type: ignore[call-arg]


def test_an_error_in_a_worker_is_ours(ragged: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.parquet"
    path.write_bytes((ragged / "part-000.parquet").read_bytes())
    dataset = ct.CorgiPileDataset(path, **{**OPTIONS, "streams": 2})
    with path.open("r+b") as file:
        file.truncate(100)
    with pytest.raises(ca.CorgiArrowError, match=r"cut\.parquet"):
        list(DataLoader(dataset, batch_size=None, num_workers=2))


@pytest.mark.parametrize(
    ("workers", "loader"),
    [
        (0, "DataLoader(ct.CorgiPileDataset(*data, **options), batch_size=None)"),
        (2, "DataLoader(ct.CorgiPileDataset(*data, **options), batch_size=None, num_workers=2)"),
        (2, "ct.loader(*data, processes=2, **options)"),
    ],
)
def test_ctrl_c_leaves_no_process(ragged: Path, workers: int, loader: str) -> None:
    code = f"""
import sys, time, torch
import corgiarrow.torch as ct
from torch.utils.data import DataLoader
data, options = [{str(ragged)!r}], dict(batch_size=8, streams=2, columns=["id"])
loader = {loader}
while True:
    for batch in loader:
        print("batch", flush=True)
        time.sleep(0.01)
"""
    job = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert job.stdout is not None
        job.stdout.readline()
        children = psutil.Process(job.pid).children(recursive=True)
        assert len(children) >= workers
        began = time.monotonic()
        for process in (job.pid, *(c.pid for c in children)):
            os.kill(process, signal.SIGINT)  # As a terminal does.
        _, told = job.communicate(timeout=30)
        assert job.returncode in (1, 130, -signal.SIGINT)
        assert "KeyboardInterrupt" in told
        _, left = psutil.wait_procs(children, timeout=30)
        assert not left
        assert time.monotonic() - began < 30
    finally:
        job.kill()


@settings(max_examples=30)
@given(
    rows=st.integers(0, 300),
    block_rows=st.integers(1, 50),
    batch_size=st.integers(1, 40),
    world_size=st.sampled_from([1, 2, 4]),
    drop_last=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_sampler_gives_the_readers_order(
    rows: int, block_rows: int, batch_size: int, world_size: int, drop_last: bool, seed: int
) -> None:
    if 0 < -(-rows // batch_size) < 4:
        return
    options: dict[str, Any] = {"block_rows": block_rows, "buffer_blocks": 8, "batch_size": batch_size, "seed": seed}
    sizes = [block_rows] * (rows // block_rows) + [rows % block_rows] * (rows % block_rows > 0)
    from conftest import ArraySource

    for rank in range(world_size):
        place = {"rank": rank, "world_size": world_size, "drop_last": drop_last, "streams": 4}
        sampler = ct.CorgiPileSampler(rows, **options, **place)
        reader = ca.Reader(ArraySource(sizes), buffer_blocks=8, batch_size=batch_size, seed=seed, **place)
        assert len(sampler) == sum(len(b) for b in reader)
        reader.set_epoch(0)
        assert list(sampler) == [i for batch in ids_of(reader) for i in batch]
        assert list(sampler) == [i for batch in ids_of(reader) for i in batch]


def test_a_sampler_resumes() -> None:
    def made() -> ct.CorgiPileSampler:
        return ct.CorgiPileSampler(1000, block_rows=50, batch_size=32)

    whole = list(made())
    assert sorted(whole) == list(range(1000))
    for k in range(32):
        sampler = made()
        taken = list(itertools.islice(sampler, k * 32 + 5))
        state = sampler.state_dict()
        again = made()
        again.load_state_dict(state)
        assert taken[: k * 32] + list(again) == whole
    with pytest.raises(ca.StateMismatchError, match="seed"):
        ct.CorgiPileSampler(1000, block_rows=50, batch_size=32, seed=1).load_state_dict(state)


def test_a_sampler_feeds_a_map_style_dataset() -> None:
    numbers = torch.arange(500)
    sampler = ct.CorgiPileSampler(len(numbers), block_rows=20, batch_size=50)
    loader = DataLoader(torch.utils.data.TensorDataset(numbers), batch_size=50, sampler=sampler, num_workers=2)
    first = [batch.tolist() for (batch,) in loader]
    assert sorted(itertools.chain(*first)) == list(range(500))
    assert [batch.tolist() for (batch,) in loader] != first


def test_a_missing_framework_says_what_to_type() -> None:
    code = "import sys; sys.modules['torch'] = None; import corgiarrow.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "pip install 'corgiarrow[torch]'" in done.stderr

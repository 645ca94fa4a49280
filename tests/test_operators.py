"""The paper's operators give what the reader gives, one thing after the other."""

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import corgiarrow as ca
from corgiarrow.operators import SGD, BlockShuffle, TupleShuffle


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("operators") / "rows.parquet"
    text = pa.array([f"word {n % 7}" * 4 for n in range(1000)])
    pq.write_table(pa.table({"id": np.arange(1000), "text": text}), path, row_group_size=23)
    return path


@given(
    shuffle=st.sampled_from(["none", "block", "corgipile", "spread", "window", "epoch"]),
    double=st.booleans(),
    batch_size=st.integers(1, 300),
    buffer_blocks=st.integers(4, 30),
    seed=st.integers(0, 9),
)
@settings(max_examples=40, deadline=None)
def test_same_rows_as_the_reader(
    data: Path, shuffle: str, double: bool, batch_size: int, buffer_blocks: int, seed: int
) -> None:
    blocks = {} if shuffle == "epoch" else {"buffer_blocks": buffer_blocks}
    reader = ca.Reader(data, shuffle=shuffle, batch_size=batch_size, seed=seed, streams=1, **blocks)
    with TupleShuffle(BlockShuffle(reader), double_buffering=double) as tuples:
        for epoch in range(2):
            tuples.rescan(epoch)
            reader.set_epoch(epoch)
            for batch in reader:
                assert tuples.next().equals(batch)
            assert tuples.next() is None
    assert not [t for t in threading.enumerate() if t.name.startswith("corgiarrow")]


def test_large_blocks_in_pieces(tmp_path: Path) -> None:
    numbers = np.random.default_rng(0).standard_normal(100_000)
    pq.write_table(pa.table({"x": numbers}), tmp_path / "large.parquet", row_group_size=25_000)
    reader = ca.Reader(tmp_path, memory="1 MB", batch_size=1000, streams=1)
    assert reader.plan().pieces is not None
    with TupleShuffle(BlockShuffle(reader)) as tuples:
        tuples.rescan(0)
        assert all(tuples.next().equals(batch) for batch in reader)


def test_sgd_goes_through_every_epoch_anew(data: Path) -> None:
    seen: list[list[int]] = []
    with TupleShuffle(BlockShuffle(ca.Reader(data, columns=["id"], buffer_blocks=5))) as tuples:
        sgd = SGD(tuples, lambda batch: seen.append(batch["id"].to_pylist()), epochs=3)
        assert [sgd.next() for _ in range(4)] == [1000, 1000, 1000, None]
    orders = np.concatenate(seen).reshape(3, 1000)
    assert (np.sort(orders) == np.arange(1000)).all()
    assert not (orders[0] == orders[1]).all()


def test_an_epoch_left_early_ends_its_thread(data: Path) -> None:
    tuples = TupleShuffle(BlockShuffle(ca.Reader(data, buffer_blocks=3, batch_size=10)))
    tuples.rescan(0)
    assert tuples.next().num_rows == 10
    tuples.rescan(1)
    tuples.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("corgiarrow")]


def test_several_streams_are_refused(data: Path) -> None:
    with pytest.raises(ca.OptionError, match="streams=2"):
        BlockShuffle(ca.Reader(data, streams=2))

"""Batches on JAX's devices, of which there are four here: run by ``test_jax.py`` in a process of its own.

JAX warns of every fork once it is imported, and other tests fork.
"""

import gc
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from arrays_of_all_types import NARROW, RAGGED, ROWS, WIDE, in_numpy, leaves, options_for, same_bits, write_all_types
from conftest import write_dataset
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import corgiarrow as ca
import corgiarrow.jax
from corgiarrow.arrays import Ragged


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_all_types(tmp_path_factory.mktemp("types") / "all.parquet")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """160 rows that JAX has arrays for."""
    return write_dataset(tmp_path_factory.mktemp("plain") / "rows", [[30, 10], [5, 55], [60]])


COLUMNS: dict[str, Any] = {"columns": ["x", "label"], "batch_size": 16}


@pytest.fixture(scope="module")
def rows() -> NamedSharding:
    return NamedSharding(jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,)), P("data"))


def check_same(found: Any, wanted: Any, offsets: Any = np.int64) -> None:
    pairs = zip(leaves(found), leaves(wanted), strict=True)
    for (path, leaf), (wanted_path, array) in pairs:
        assert path == wanted_path
        assert isinstance(leaf, jax.Array), path
        if path.endswith("[offsets]"):
            array = array.astype(offsets)
        assert same_bits(np.asarray(leaf), array), path


def test_the_stream_is_that_of_numpy(every: Path) -> None:
    options = options_for(NARROW)
    batches = zip(corgiarrow.jax.loader(every, **options), in_numpy(every, options), strict=True)
    for found, wanted in batches:
        check_same(found, wanted, np.int32)
        assert all(isinstance(found[name], Ragged) for name in RAGGED if name != "points")


def test_the_stream_of_64_bits_is_that_of_numpy(every: Path) -> None:
    options = options_for(NARROW + WIDE, nulls={"some": "nan"}, drop_last=True)
    with jax.enable_x64(True):
        for found, wanted in zip(corgiarrow.jax.loader(every, **options), in_numpy(every, options), strict=True):
            check_same(found, wanted)


@pytest.mark.parametrize("column", WIDE)
def test_64_bits_raise_where_jax_would_cut_them(every: Path, column: str) -> None:
    with pytest.raises(ca.OptionError, match=rf"'{column}'.*jax_enable_x64"):
        corgiarrow.jax.loader(every, **options_for([column]))


def test_a_narrower_dtype_is_a_remedy(plain: Path) -> None:
    with pytest.raises(ca.OptionError, match=r"dtype=\{'id': 'int32'\}"):
        corgiarrow.jax.loader(plain, columns=["id"])
    batch = next(iter(corgiarrow.jax.loader(plain, columns=["id"], dtype={"id": "int32"})))
    assert batch["id"].dtype == np.int32


@pytest.mark.parametrize(
    ("column", "text"),
    [("text", "categories="), ("bytes", "ragged="), ("texts", "leave it"), ("map", "'map.key'"), ("image", "decode")],
)
def test_objects_raise(every: Path, column: str, text: str) -> None:
    more = {"decode": {"image": "RGB"}, "shape": {}} if column == "image" else {}
    with pytest.raises(ca.OptionError, match=text):
        corgiarrow.jax.loader(every, **options_for([column], **more))


def test_decimals_raise(every: Path) -> None:
    with pytest.raises(ca.OptionError, match=r"Decimal objects.*decimals="):
        corgiarrow.jax.loader(every, columns=["wide_price"])


def test_state_and_epochs_are_those_of_a_loader(plain: Path) -> None:
    loader = corgiarrow.jax.loader(plain, **COLUMNS)
    assert len(loader) == 10
    both = [[np.asarray(batch["x"]).tolist() for batch in loader] for _ in range(2)]
    assert both[0] != both[1]
    for epoch, step in [(0, 0), (0, 7), (1, 3)]:
        again = corgiarrow.jax.loader(plain, **COLUMNS)
        again.seek(epoch, step)
        assert [np.asarray(batch["x"]).tolist() for batch in again] == both[epoch][step:]
    loader.set_epoch(0)
    under_way = iter(loader)
    for _ in range(4):
        next(under_way)
    state = loader.state_dict()
    other = corgiarrow.jax.loader(plain, **COLUMNS)
    other.load_state_dict(state)
    assert [np.asarray(batch["x"]).tolist() for batch in other] == both[0][4:]
    loader.close()


def test_an_iteration_that_is_dropped_ends_its_threads(plain: Path) -> None:
    for batch in corgiarrow.jax.loader(plain, **COLUMNS):
        assert batch["x"].shape == (16,)
        break
    # The fixture `no_thread_left` looks.


def test_a_transform_gets_numpy_and_may_return_any_pytree(every: Path) -> None:
    def transform(batch: dict[str, Any]) -> Any:
        assert all(isinstance(array, np.ndarray) for array in batch.values())
        lengths = np.array([len(text) for text in batch["text"]], np.int32)
        return (batch["f32"], {"length": lengths, "kept": jax.numpy.ones(2)}), None

    loader = corgiarrow.jax.loader(every, columns=["f32", "text"], batch_size=50, transform=transform, workers=2)
    wanted = in_numpy(every, {"columns": ["f32", "text"], "batch_size": 50})
    for ((found, more), nothing), batch in zip(loader, wanted, strict=True):
        assert isinstance(found, jax.Array)
        assert nothing is None
        assert same_bits(np.asarray(found), batch["f32"])
        assert more["length"].tolist() == [len(text) for text in batch["text"]]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda batch: batch["wide_i64"], "int64 to 32 bits"),
        (lambda batch: batch["text"], "an array of object"),
        (lambda batch: "a word", "a str"),
        (lambda batch: Ragged(np.zeros(1, np.float32), np.array([0, 2**31])), "2147483648 values in its lists"),
        (lambda batch: np.array([Decimal(1)]), "an array of object"),
    ],
)
def test_what_a_transform_returns_is_never_cut(every: Path, make: Any, text: str) -> None:
    loader = corgiarrow.jax.loader(every, columns=["wide_i64", "text"], transform=make, workers=1)
    with pytest.raises(ca.ConversionError, match=text):
        next(iter(loader))


def test_sharded_batches_are_those_of_numpy(every: Path, rows: NamedSharding) -> None:
    columns = [name for name in NARROW if name not in RAGGED]
    options = options_for(columns, drop_last=True)
    found = 0
    for batch, wanted in zip(
        corgiarrow.jax.loader(every, sharding=rows, **options), in_numpy(every, options), strict=True
    ):
        check_same(batch, wanted)
        for leaf in jax.tree.leaves(batch):
            assert leaf.sharding == rows
            assert [shard.data.shape[0] for shard in leaf.addressable_shards] == [8] * 4
        found += 1
    assert found == ROWS // 32


def test_a_mesh_may_have_other_axes(plain: Path) -> None:
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    loader = corgiarrow.jax.loader(plain, sharding=NamedSharding(mesh, P("data")), **COLUMNS)
    batch = next(iter(loader))
    assert [shard.data.shape for shard in batch["x"].addressable_shards] == [(8,)] * 4
    both = NamedSharding(mesh, P(("data", "model")))
    with pytest.raises(ca.OptionError, match="batch_size=18 must be a multiple of 4"):
        corgiarrow.jax.loader(plain, sharding=both, columns=["x"], batch_size=18)
    deep = NamedSharding(mesh, P("data", "model"))
    with pytest.raises(ca.OptionError, match="1 dimensions, fewer than the 2"):
        corgiarrow.jax.loader(plain, sharding=deep, **COLUMNS)
    stacked = {"stack": {"x2": ["x", "label"]}, "dtype": {"x2": "float32"}}
    batch = next(iter(corgiarrow.jax.loader(plain, sharding=deep, **stacked, **COLUMNS)))
    assert [shard.data.shape for shard in batch["x2"].addressable_shards] == [(8, 1)] * 4
    whole = corgiarrow.jax.loader(plain, sharding=NamedSharding(mesh, P()), columns=["x"], batch_size=17)
    assert sum(batch["x"].shape[0] for batch in whole) == 160


def test_batches_that_do_not_divide_raise_before_reading(plain: Path, every: Path, rows: NamedSharding) -> None:
    with pytest.raises(ca.OptionError, match="batch_size=30 must be a multiple of 4"):
        corgiarrow.jax.loader(plain, sharding=rows, columns=["x"], batch_size=30)
    short = corgiarrow.jax.loader(plain, sharding=rows, columns=["x"], batch_size=48)
    assert [batch["x"].shape[0] for batch in short] == [48, 48, 48, 16]
    with pytest.raises(ca.OptionError, match=r"would have 11 rows instead of 32.*drop_last=True"):
        corgiarrow.jax.loader(every, sharding=rows, columns=["f32"], batch_size=32)
    with pytest.raises(ca.OptionError, match="world_size=2 must be 1"):
        corgiarrow.jax.loader(plain, sharding=rows, rank=0, world_size=2, **COLUMNS)


def test_ragged_rows_cannot_be_sharded(every: Path, rows: NamedSharding) -> None:
    with pytest.raises(ca.OptionError, match=r"'ragged' holds rows of differing lengths.*pad="):
        corgiarrow.jax.loader(every, sharding=rows, columns=["ragged"], drop_last=True, batch_size=32)
    options = {"columns": ["ragged"], "drop_last": True, "batch_size": 32, "transform": dict, "workers": 1}
    loader = corgiarrow.jax.loader(every, sharding=rows, **options)
    with pytest.raises(ca.ConversionError, match="a Ragged, which sharding= cannot spread"):
        next(iter(loader))


def test_a_place_is_given_whole(plain: Path) -> None:
    with pytest.raises(ca.OptionError, match="go together"):
        corgiarrow.jax.loader(plain, rank=1, **COLUMNS)
    parts = [corgiarrow.jax.loader(plain, rank=rank, world_size=2, **COLUMNS) for rank in range(2)]
    found = sorted(x for part in parts for batch in part for x in np.asarray(batch["x"]).tolist())
    assert found == [i / 2 for i in range(160)]


def test_a_reader_may_be_given(plain: Path) -> None:
    reader = ca.Reader(plain, rank=1, world_size=2, **COLUMNS)
    loader = corgiarrow.jax.loader(reader, dtype={"label": "float32"})
    assert loader.reader is reader
    assert next(iter(loader))["label"].dtype == np.float32
    with pytest.raises(ca.OptionError, match="batch_size="):
        corgiarrow.jax.loader(reader, batch_size=4)
    with pytest.raises(TypeError, match="batchsize"):
        corgiarrow.jax.loader(plain, batchsize=4)


def test_batches_that_are_kept_do_not_change(tmp_path: Path) -> None:
    """What JAX took over in place is never written again: not by later batches, not by a donated buffer."""
    values = np.random.default_rng(0).random((4096, 16)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 16)
    pq.write_table(pa.table({"v": column}), tmp_path / "v.parquet", row_group_size=512)
    loader = corgiarrow.jax.loader(tmp_path, batch_size=256, shuffle="none", memory="1 MiB")
    kept, add = [], jax.jit(lambda array: array + 1, donate_argnums=0)
    for batch in loader:
        kept.append(batch["v"])
        add(jax.numpy.copy(batch["v"]))
    gc.collect()
    time.sleep(0.01)
    assert np.array_equal(np.concatenate(kept), values)


def test_sparse_rows_want_a_transform_that_makes_them_dense(tmp_path: Path) -> None:
    columns = {"k": pa.array([[0], [2, 1]]), "v": pa.array([[1.0], [2.0, 3.0]], pa.list_(pa.float32()))}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    options: dict[str, Any] = {"shuffle": "none", "sparse": {"x": ("k", "v", 3)}}
    with pytest.raises(ca.OptionError, match=r"\['x'\].*corgiarrow\.Loader or corgiarrow\.torch.*transform="):
        corgiarrow.jax.loader(tmp_path, **options)
    (found,) = corgiarrow.jax.loader(tmp_path, transform=lambda batch: batch["x"].toarray(), **options)
    assert found.tolist() == [[1, 0, 0], [0, 3, 2]]

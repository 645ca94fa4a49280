"""Batches in a ``tf.data.Dataset``: run by ``test_tensorflow.py`` in a process of its own, as other tests fork."""

import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from arrays_of_all_types import NARROW, OBJECTS, WIDE, in_numpy, options_for, write_all_types
from conftest import write_dataset

import corgiarrow as ca
import corgiarrow.tensorflow
from corgiarrow.arrays import Ragged

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
ROWS = {"columns": ["x", "label"], "batch_size": 16}


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_all_types(tmp_path_factory.mktemp("types") / "all.parquet")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """157 rows: ten batches of up to 16."""
    return write_dataset(tmp_path_factory.mktemp("plain") / "rows", [[30, 10], [5, 55], [57]])


def tensors(value: Any, path: str = "") -> Iterator[tuple[str, np.ndarray, list[list[int]]]]:
    """Path, values and row splits of each tensor."""
    if isinstance(value, Mapping):
        for name in value:
            yield from tensors(value[name], f"{path}.{name}")
    elif isinstance(value, tf.RaggedTensor):
        yield path, value.flat_values.numpy(), [splits.numpy().tolist() for splits in value.nested_row_splits]
    else:
        yield path, value.numpy(), []


def arrays(value: Any, path: str = "", splits: tuple[Any, ...] = ()) -> Iterator[tuple[str, np.ndarray, list[Any]]]:
    """The same of a batch in NumPy."""
    if isinstance(value, Mapping):
        for name in value:
            yield from arrays(value[name], f"{path}.{name}", splits)
    elif isinstance(value, Ragged):
        yield from arrays(value.values, path, (*splits, value.offsets.tolist()))
    elif value.dtype.kind == "O":
        texts = [each.encode() if isinstance(each, str) else each for each in value.tolist()]
        yield path, np.array([*texts, None], object)[:-1], list(splits)
    else:
        yield path, value.view(np.int64) if value.dtype.kind in "mM" else value, list(splits)


def check_same(element: Any, batch: Any) -> None:
    found, wanted = sorted(tensors(element)), sorted(arrays(batch))
    assert [path for path, _, _ in found] == [path for path, _, _ in wanted]
    for (path, values, splits), (_, right, right_splits) in zip(found, wanted, strict=True):
        assert values.dtype == right.dtype, path
        assert values.shape == right.shape, path
        assert splits == right_splits, path
        same = values.tolist() == right.tolist() if right.dtype.kind == "O" else values.tobytes() == right.tobytes()
        assert same, path


@pytest.mark.parametrize("more", [{}, {"drop_last": True}, {"shuffle": "none", "batch_size": 7, "workers": 2}])
def test_the_stream_is_that_of_numpy(every: Path, more: dict[str, Any]) -> None:
    options = options_for(NARROW + WIDE + OBJECTS, **more)
    dataset = corgiarrow.tensorflow.dataset(every, **options)
    options.pop("workers", None)
    count = 0
    for element, batch in zip(dataset, in_numpy(every, options), strict=True):
        check_same(element, batch)
        tf.nest.assert_same_structure(dataset.element_spec, element, expand_composites=True)
        for spec, tensor in zip(flat(dataset.element_spec), flat(element), strict=True):
            assert spec.is_compatible_with(tensor), spec
        count += 1
    assert count == int(dataset.cardinality())


def flat(value: Any) -> list[Any]:
    return [part for name in sorted(value) for part in flat(value[name])] if isinstance(value, Mapping) else [value]


def test_the_specification(every: Path) -> None:
    options = options_for(NARROW + WIDE + OBJECTS, drop_last=True)
    spec = corgiarrow.tensorflow.dataset(every, **options).element_spec
    assert spec["f32"] == tf.TensorSpec([32], tf.float32)
    assert spec["ab"] == tf.TensorSpec([32, 2], tf.float32)
    assert spec["wide_u64"] == tf.TensorSpec([32], tf.uint64)
    assert spec["wide_when"] == tf.TensorSpec([32], tf.int64)
    assert spec["image"] == tf.TensorSpec([32, 2, 3], tf.uint8)
    assert spec["text"] == tf.TensorSpec([32], tf.string)
    assert spec["ragged"] == tf.RaggedTensorSpec([32, None], tf.int16, 1, tf.int64)
    assert spec["vectors"] == tf.RaggedTensorSpec([32, None, 2], tf.float32, 1, tf.int64)
    assert spec["nested"] == tf.RaggedTensorSpec([32, None, None], tf.uint8, 2, tf.int64)
    assert spec["texts"] == tf.RaggedTensorSpec([32, None], tf.string, 1, tf.int64)
    assert spec["point"]["inner"]["y"] == tf.TensorSpec([32], tf.int16)
    assert spec["points"]["x"] == tf.RaggedTensorSpec([32, None], tf.int32, 1, tf.int64)
    free = corgiarrow.tensorflow.dataset(every, columns=["f32"]).element_spec
    assert free == {"f32": tf.TensorSpec([None], tf.float32)}


def rows_of(batches: Any) -> list[list[float]]:
    return [np.asarray(batch["x"]).tolist() for batch in batches]


def epochs(data: Path, count: int) -> list[list[list[float]]]:
    loader = in_numpy(data, ROWS)
    return [rows_of(loader) for _ in range(count)]


def test_each_iteration_is_the_next_epoch(plain: Path) -> None:
    dataset = corgiarrow.tensorflow.dataset(plain, **ROWS)
    assert int(dataset.cardinality()) == 10
    assert [rows_of(dataset) for _ in range(3)] == epochs(plain, 3)


def test_repeat_and_map_and_prefetch(plain: Path) -> None:
    dataset = corgiarrow.tensorflow.dataset(plain, **ROWS).repeat(3)
    dataset = dataset.map(lambda batch: {"x": batch["x"] * 2}, num_parallel_calls=2).prefetch(3)
    found = [[x / 2 for x in batch] for batch in rows_of(dataset)]
    assert found == [batch for epoch in epochs(plain, 3) for batch in epoch]


def test_a_look_at_the_first_elements_moves_nothing(plain: Path) -> None:
    loader = in_numpy(plain, ROWS)
    dataset = corgiarrow.tensorflow.dataset(loader)
    wanted = epochs(plain, 2)
    assert rows_of(dataset.take(1)) == wanted[0][:1]
    assert rows_of(dataset) == wanted[0]
    loader.seek(1, 4)
    dataset = corgiarrow.tensorflow.dataset(loader)
    for _ in range(2):
        assert rows_of(dataset.take(2)) == wanted[1][4:6]
    assert rows_of(dataset) == wanted[1][4:]


def test_an_iteration_that_is_dropped_ends_its_threads(tmp_path: Path) -> None:
    def left() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("corgiarrow-")]

    data = write_dataset(tmp_path / "rows", [[500] * 40])
    dataset = corgiarrow.tensorflow.dataset(data, columns=["x"], batch_size=50, buffer_blocks=1, block_bytes=1)
    for _element in dataset.prefetch(2):
        assert left()
        break
    deadline = time.monotonic() + 2
    while left() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left()
    del _element


def test_one_iteration_at_a_time(plain: Path) -> None:
    loader = in_numpy(plain, ROWS)
    first = iter(corgiarrow.tensorflow.dataset(loader))
    next(first)
    second = iter(corgiarrow.tensorflow.dataset(loader))
    next(second)
    with pytest.raises(tf.errors.InvalidArgumentError, match="another iteration over this reader began"):
        for _ in first:
            pass
    assert rows_of(second) == epochs(plain, 1)[0][1:]


def test_a_pass_of_another_length_raises(plain: Path) -> None:
    loader = in_numpy(plain, ROWS)
    loader.seek(0, 7)
    rest = corgiarrow.tensorflow.dataset(loader)
    assert int(rest.cardinality()) == 3
    assert rows_of(rest) == epochs(plain, 1)[0][7:]
    with pytest.raises(tf.errors.InvalidArgumentError, match="3 batches, but 10 are left of epoch 1"):
        list(rest)


def test_what_conversion_says_gets_through(every: Path) -> None:
    dataset = corgiarrow.tensorflow.dataset(every, columns=["some"])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"column 'some' has \d+ nulls"):
        list(dataset)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"columns": ["wide_price"]}, r"Decimal objects.*decimals="),
        ({"columns": ["image"], "decode": {"image": "RGB"}}, r"ndarray objects.*decode="),
    ],
)
def test_what_becomes_no_tensor_raises(every: Path, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ca.OptionError, match=text):
        corgiarrow.tensorflow.dataset(every, **options)


def test_a_loader_or_a_reader_may_be_given(plain: Path) -> None:
    reader = ca.Reader(plain, **ROWS)
    assert rows_of(corgiarrow.tensorflow.dataset(reader)) == epochs(plain, 1)[0]
    with pytest.raises(ca.OptionError, match="batch_size="):
        corgiarrow.tensorflow.dataset(ca.Loader(reader), batch_size=3)
    with pytest.raises(ca.OptionError, match=r"dataset\.map"):
        corgiarrow.tensorflow.dataset(ca.Loader(reader, transform=dict))
    with pytest.raises(TypeError, match="batchsize"):
        corgiarrow.tensorflow.dataset(plain, batchsize=3)


class Recorder(keras.Model):
    """A model that writes down the batches it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.seen: list[list[float]] = []

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        x, _ = data
        tf.py_function(lambda x: self.seen.append(x.numpy()[:, 0].tolist()), [x], [])
        return super().train_step(data)


def pairs(data: Any) -> Any:
    dataset = corgiarrow.tensorflow.dataset(data) if isinstance(data, ca.Loader | ca.Reader) else data
    return dataset.map(lambda batch: (batch["x"][:, None], batch["label"]))


def new_model() -> Recorder:
    model = Recorder()
    model.compile("sgd", "mse", jit_compile=False)
    return model


def test_fit_sees_an_epoch_an_epoch(plain: Path) -> None:
    model = new_model()
    model.fit(pairs(ca.Reader(plain, **ROWS)), epochs=3, verbose=0, shuffle=False)
    assert model.seen == [batch for epoch in epochs(plain, 3) for batch in epoch]
    assert int(model.optimizer.iterations.numpy()) == 30


def fit_from(model: Recorder, data: Path, until: int, callbacks: Any = ()) -> None:
    loader = in_numpy(data, ROWS)
    loader.seek(*divmod(int(model.optimizer.iterations.numpy()), len(loader)))
    for epoch in range(loader.reader.epoch, until):
        place = {"initial_epoch": epoch, "epochs": epoch + 1}
        model.fit(pairs(loader), **place, verbose=0, shuffle=False, callbacks=[*callbacks])


class StoppedError(Exception):
    pass


class StopAt(keras.callbacks.Callback):
    def __init__(self, step: int):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if int(self.model.optimizer.iterations.numpy()) == self.step:
            raise StoppedError


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")  # Keras, saving
@pytest.mark.parametrize("step", [1, 10, 14, 19])
def test_a_resumed_fit_sees_the_rest_exactly(plain: Path, step: int, tmp_path: Path) -> None:
    model = new_model()
    with pytest.raises(StoppedError):
        fit_from(model, plain, 3, [StopAt(step)])
    assert len(model.seen) == step
    model.save_weights(tmp_path / "m.weights.h5")
    resumed = new_model()
    resumed(np.zeros((1, 1), np.float32))
    resumed.optimizer.build(resumed.trainable_variables)
    resumed.load_weights(tmp_path / "m.weights.h5")
    assert int(resumed.optimizer.iterations.numpy()) == step
    fit_from(resumed, plain, 3)
    assert model.seen + resumed.seen == [batch for epoch in epochs(plain, 3) for batch in epoch]


def test_workers_read_their_parts(plain: Path) -> None:
    parts = [corgiarrow.tensorflow.dataset(plain, rank=rank, world_size=2, **ROWS) for rank in range(2)]
    off = tf.data.experimental.AutoShardPolicy.OFF
    assert all(part.options().experimental_distribute.auto_shard_policy == off for part in parts)
    wanted = [rows_of(in_numpy(plain, ROWS | {"rank": rank, "world_size": 2})) for rank in range(2)]
    assert [rows_of(part) for part in parts] == wanted


def test_under_a_strategy(plain: Path) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    options = ROWS | {"batch_size": 15, "drop_last": True}

    def part(context: Any) -> Any:
        count = context.num_input_pipelines
        return corgiarrow.tensorflow.dataset(plain, rank=context.input_pipeline_id, world_size=count, **options)

    steps = [
        np.concatenate(strategy.experimental_local_results(batch["x"])).tolist()
        for batch in strategy.distribute_datasets_from_function(part)
    ]
    wanted = rows_of(in_numpy(plain, options))
    assert steps == [wanted[n] + wanted[n + 1] for n in range(0, 10, 2)]
    options["batch_size"] = 16
    with strategy.scope():
        model = new_model()
    for epoch in range(2):
        # Keras looks at the first batch to build the model.
        model.fit(pairs(ca.Reader(plain, **options)), initial_epoch=epoch, epochs=epoch + 1, verbose=0, shuffle=False)
    assert int(model.optimizer.iterations.numpy()) == 18


def test_sparse_rows_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"k": [[0], [2, 1]], "v": [[1.0], [2.0, 3.0]]}), tmp_path / "a.parquet")
    with pytest.raises(ca.OptionError, match=r"'x'.*corgiarrow\.Loader or corgiarrow\.torch"):
        corgiarrow.tensorflow.dataset(tmp_path, sparse={"x": ("k", "v", 3)})

"""Sparse rows: lists of indices and values as matrices, and models that learn from them as from the same rows dense."""

import json
import sys
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
import skops.io
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import SGDClassifier
from torch.utils.data import DataLoader
from typer.testing import CliRunner, Result

import corgiarrow as ca
import corgiarrow.torch as ct
from corgiarrow import models, saved
from corgiarrow.arrays import Converter, SparseSpec
from corgiarrow.cli.commands import app
from corgiarrow.linear import LinearModel
from corgiarrow.models import predict, train_model
from corgiarrow.scaling import Scaling, Sizes
from corgiarrow.sklearn import find_dimension, find_scaling, fit
from corgiarrow.sklearn import predict as sklearn_predict

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta"),
    # PyTorch's own, where a tensor finds no slot.
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

K, V = "features_k", "features_v"
KINDS = [pa.list_, pa.large_list]
INTS = [getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)]
FLOATS = [pa.float32(), pa.float64()]

Rows = list[list[tuple[int, float]]]


def batch_of(rows: Rows, keys: pa.DataType = INTS[2], values: pa.DataType = FLOATS[0], make: Any = pa.list_) -> Any:
    columns = [[[pair[n] for pair in row] for row in rows] for n in (0, 1)]
    kinds = make(keys), make(values)
    return pa.record_batch([pa.array(c, kind) for c, kind in zip(columns, kinds, strict=True)], names=[K, V])


def dense(rows: Rows, dimension: int, dtype: Any = np.float64) -> np.ndarray:
    """The slow and obvious way."""
    found = np.zeros((len(rows), dimension), dtype=dtype)
    for place, row in enumerate(rows):
        for index, value in row:
            found[place, index] += value
    return found


def pairs(dimension: int) -> st.SearchStrategy[Rows]:
    # Whole numbers that every dtype holds, also where they add up, are exact in any order.
    pair = st.tuples(st.integers(0, dimension - 1), st.integers(0, 9))
    return st.lists(st.lists(pair, max_size=8), max_size=12)


# Arrays


@given(
    pairs(20),
    st.sampled_from(INTS),
    st.sampled_from(INTS + FLOATS),
    st.sampled_from(KINDS),
    st.integers(0, 12),
    st.integers(1, 5),
)
def test_matrices_are_those_of_a_loop_over_the_rows(
    rows: Rows, keys: pa.DataType, values: pa.DataType, make: Any, first: int, size: int
) -> None:
    whole = batch_of(rows, keys, values, make)
    converter = Converter(whole.schema, sparse={"x": (K, V, 20)})
    dtype = np.dtype(values.to_pandas_dtype())
    assert converter.spec == {"x": SparseSpec(dtype, (None, 20))}
    first = min(first, len(rows))
    batches = [(whole, rows), (whole.slice(first, size), rows[first : first + size])]
    found = [(converter(batch)["x"], part) for batch, part in batches]
    for number, each in enumerate(converter.split(whole, first, size)):
        start = first + number * size
        found.append((each["x"], rows[start : start + size]))
    for matrix, part in found:
        assert isinstance(matrix, scipy.sparse.csr_array)
        assert (matrix.dtype, matrix.indices.dtype, matrix.indptr.dtype) == (dtype, np.int32, np.int32)
        assert (matrix.toarray() == dense(part, 20)).all()
        again = scipy.sparse.csr_array((matrix.data, matrix.indices, matrix.indptr), shape=matrix.shape)
        assert again.has_canonical_format


def test_fixed_size_lists_that_begin_anywhere() -> None:
    keys = pa.array([[0, 1], [4, 2], [3, 3], [0, 4]], pa.list_(pa.int64(), 2))
    values = pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.float64(), 2))
    batch = pa.record_batch([keys, values], names=[K, V])
    converter = Converter(batch.schema, sparse={"x": (K, V, 5)})
    assert converter(batch.slice(1))["x"].toarray().tolist() == [[0, 0, 4, 0, 3], [0, 0, 0, 11, 0], [7, 0, 0, 0, 8]]
    assert converter(batch.slice(1, 0))["x"].shape == (0, 5)


def test_values_and_indices_share_arrows_memory() -> None:
    batch = batch_of([[(n, n), (n + 1, 2)] for n in range(9)])
    for part in (batch, batch.slice(3, 4)):
        x = Converter(batch.schema, sparse={"x": (K, V, 10)})(part)["x"]
        for array, column in ((x.indices, part.column(K)), (x.data, part.column(V))):
            below = np.frombuffer(column.values.buffers()[1], array.dtype)
            assert np.shares_memory(array, below) == below.flags.writeable


def test_adding_up_changes_no_memory_of_arrow_and_loses_nothing() -> None:
    batch = batch_of([[(5, 100), (2, 1), (5, 27)]], values=pa.int8())
    before = batch.to_pydict()
    converter = Converter(batch.schema, sparse={"x": (K, V, 6)})
    x = converter(batch)["x"]
    assert (x.indices.tolist(), x.data.tolist()) == ([2, 5], [1, 127])
    assert batch.to_pydict() == before
    with pytest.raises(ca.ConversionError, match="column 'x' holds 128, which is no int8"):
        converter(batch_of([[(5, 100), (5, 28)]], values=pa.int8()))
    wide = Converter(batch.schema, sparse={"x": (K, V, 6)}, dtype={"x": "float32"})
    assert wide.spec["x"].dtype == np.float32
    assert wide(batch_of([[(5, 100), (5, 28)]], values=pa.int8()))["x"].toarray().tolist() == [[0, 0, 0, 0, 0, 128]]


def test_nan_passes_and_indices_may_be_wider_than_int32() -> None:
    batch = batch_of([[(2**40, float("nan")), (3, 1)]], keys=pa.uint64())
    x = Converter(batch.schema, sparse={"x": (K, V, 2**40 + 1)})(batch)["x"]
    assert (x.indices.dtype, x.indices.tolist()) == (np.int64, [3, 2**40])
    assert np.isnan(x.data).tolist() == [False, True]


def test_other_columns_stay_and_two_pairs_are_two_matrices() -> None:
    batch = batch_of([[(0, 1)], [(1, 2), (2, 3)]])
    batch = pa.record_batch([*batch.columns, *batch.columns, pa.array([1, 2])], names=[K, V, "k", "v", "y"])
    found = Converter(batch.schema, sparse={"x": (K, V, 3), "z": ("k", "v", 4)})(batch)
    assert list(found) == ["y", "x", "z"]
    assert (found["x"].shape, found["z"].shape) == ((2, 3), (2, 4))
    # A name that the matrix itself makes free.
    assert list(Converter(batch.schema, sparse={K: (K, V, 3)}).spec) == ["k", "v", "y", K]
    masked = Converter(batch.schema, sparse={"x": (K, V, 3)}, nulls="mask").spec
    assert list(masked) == ["k", "k_valid", "v", "v_valid", "y", "y_valid", "x"]


@pytest.mark.parametrize(
    ("keys", "values", "text"),
    [
        ([[0], [1, 5]], [[1], [1, 1]], r"column 'features_k' has the index 5 in row 1 .*\[0, dimension=5\).* greater"),
        ([[0], [], [-1]], [[1], [], [1]], r"column 'features_k' has the index -1 in row 2 .*\[0, dimension=5\)"),
        ([[0, 1], [0, 1]], [[1, 1], [1]], r"'features_k' and 'features_v' have 2 indices and 1 values in row 1 of"),
        ([[0, 1], [0]], [[1], [1, 1]], r"'features_k' and 'features_v' have 2 indices and 1 values in row 0 of"),
        ([[0], None], [[1], []], r"column 'features_k' has 1 null lists, the first in row 1 .*filter"),
        ([[0], []], [[1], None], r"column 'features_v' has 1 null lists, the first in row 1 .*filter"),
        ([[0], [], [1, None]], [[1], [], [1, 1]], r"column 'features_k' has 1 nulls within.*in row 2 .*filter"),
        ([[0], [], [1, 2]], [[1], [], [None, 1]], r"column 'features_v' has 1 nulls within.*in row 2 .*filter"),
    ],
)
def test_values_that_are_no_sparse_rows(keys: Any, values: Any, text: str) -> None:
    first = [[[4]], [[1.0]]]  # So that offsets do not begin at 0, and rows are counted in the batch.
    keys, values = pa.array(first[0] + keys, pa.list_(INTS[2])), pa.array(first[1] + values, pa.list_(FLOATS[1]))
    batch = pa.record_batch([keys, values], names=[K, V]).slice(1)
    for options in ({}, {"nulls": "mask"}):
        with pytest.raises(ca.ConversionError, match=text):
            Converter(batch.schema, sparse={"x": (K, V, 5)}, **options)(batch)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sparse": {"x": (K, V, 0)}}, "dimension=0 must be a whole number of at least 1"),
        ({"sparse": {"x": (K, V, True)}}, "dimension=True"),
        ({"sparse": {"x": (K, V, 2.0)}}, r"dimension=2\.0"),
        ({"sparse": {"x": (K, V)}}, "must be the column of indices"),
        ({"sparse": {"x": "abc"}}, "must be the column of indices"),
        ({"sparse": {"x": (K, K, 3)}}, "twice"),
        ({"sparse": {"x": (K, V, 3), "z": (K, V, 3)}}, "more than one pair"),
        ({"sparse": {"x": (V, K, 3)}}, r"lists of whole numbers from 'features_v', but it is list<.*double"),
        ({"sparse": {"x": (K, "texts", 3)}}, r"lists of numbers from 'texts', but it is list<.*string"),
        ({"sparse": {"x": ("y", V, 3)}}, "from 'y', but it is int64"),
        ({"sparse": {"x": (K, "halves", 3)}}, r"dtype={'x': 'float32'}"),
        ({"sparse": {"y": (K, V, 3)}}, "has the name of another array"),
        ({"sparse": {"x": (K, V, 3)}, "stack": {"x": ["y"]}}, "has the name of another array"),
        ({"sparse": {"x": (K, V, 3)}, "pad": {K: 2}}, "does not go with a column of type list"),
        ({"sparse": [K, V, 3]}, "must be a dict by name"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], text: str) -> None:
    kinds = {K: INTS[2], V: FLOATS[1], "texts": pa.string(), "halves": pa.float16()}
    schema = pa.schema([*((name, pa.list_(kind)) for name, kind in kinds.items()), ("y", pa.int64())])
    with pytest.raises(ca.OptionError, match=text):
        Converter(schema, **options)


def test_missing_columns_and_a_missing_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = batch_of([]).schema
    with pytest.raises(ca.ColumnNotFoundError, match=r"sparse= names \['nothing'\], but .*features_k, features_v"):
        Converter(schema, sparse={"x": (K, "nothing", 3)})
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    Converter(schema)
    with pytest.raises(ca.MissingExtraError, match=r"pip install 'corgiarrow\[sklearn\]'"):
        Converter(schema, sparse={"x": (K, V, 3)})


# Loaders


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    """Rows of 0 to 6 features of 30, and a label that some of them tell."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("sparse") / "a.parquet"
    rows: Rows = []
    for _ in range(300):
        keys = rng.choice(30, rng.integers(0, 7), replace=False)
        rows.append([(int(k), float(rng.integers(-4, 5)) / 4 * (1 + k % 3)) for k in keys])
    rows[7] = [(29, 2.0), (3, 0.5), (29, -1.0)]
    keys, values = ([[pair[n] for pair in row] for row in rows] for n in (0, 1))
    label = [int(sum(v for k, v in row if k < 10) > 0) for row in rows]
    third = [min(len(row) // 2, 2) for row in rows]
    size = [sum(v * (k - 10) / 10 for k, v in row) for row in rows]
    columns = {"id": list(range(300)), "label": label, "third": third, "size": size}
    lists = {K: pa.array(keys, pa.list_(pa.int64())), V: pa.array(values, pa.list_(pa.float32()))}
    pq.write_table(pa.table({**columns, **lists}), path, row_group_size=23)
    return path, rows


OPTIONS: dict[str, Any] = {"batch_size": 16, "streams": 4, "buffer_blocks": 4, "columns": ["id", K, V]}
SPARSE = {"x": (K, V, 30)}


def test_a_loader_gives_the_rows_of_its_ids(table: tuple[Path, Rows]) -> None:
    path, rows = table
    for workers in (0, 2):
        seen = 0
        for batch in ca.Loader(ca.Reader(path, **OPTIONS), workers=workers, sparse=SPARSE):
            assert (batch["x"].toarray() == dense([rows[n] for n in batch["id"]], 30, np.float32)).all()
            seen += batch["x"].shape[0]
        assert seen == 300


def doubled(batch: dict[str, Any]) -> dict[str, Any]:
    return batch | {"x": batch["x"] * 2}


@pytest.mark.parametrize("how", ["threads", "processes", "dataset", "workers"])
@pytest.mark.parametrize("transform", [None, doubled])
def test_torch_gives_sparse_tensors_also_through_processes(table: tuple[Path, Rows], how: str, transform: Any) -> None:
    path, rows = table
    options: dict[str, Any] = {**OPTIONS, "sparse": SPARSE, "transform": transform}
    if how in ("threads", "processes"):
        batches: Any = ct.loader(path, processes=2 * (how == "processes"), **options)
    else:
        dataset = ct.CorgiPileDataset(path, **options)
        batches = DataLoader(dataset, batch_size=None, num_workers=2 * (how == "workers"))
    kept = [dict(batch) for batch in batches]
    if how == "processes":
        batches.close()
    for batch in kept:
        x = batch["x"]
        assert (x.layout, x.dtype) == (torch.sparse_csr, torch.float32)
        expected = dense([rows[n] for n in batch["id"].tolist()], 30) * (1 if transform is None else 2)
        assert (x.to_dense().numpy() == expected).all()
        torch.sparse_csr_tensor(x.crow_indices(), x.col_indices(), x.values(), size=x.shape, check_invariants=True)
    assert sorted(n for batch in kept for n in batch["id"].tolist()) == list(range(300))


def in_place(batch: Any) -> Any:
    batch["more"] = batch["x"]
    return batch


def test_a_collate_function_may_touch_what_is_shared(table: tuple[Path, Rows]) -> None:
    path, rows = table
    dataset = ct.CorgiPileDataset(path, **OPTIONS, sparse=SPARSE)
    kept = list(DataLoader(dataset, batch_size=None, num_workers=1, collate_fn=in_place))
    for batch in kept:
        for name in ("x", "more"):
            assert (batch[name].to_dense().numpy() == dense([rows[n] for n in batch["id"].tolist()], 30)).all()


def test_what_cannot_carry_sparse_rows_says_so_up_front(table: tuple[Path, Rows]) -> None:
    path, _ = table
    with pytest.raises(ca.OptionError, match=r"pin_memory= .*leave pin_memory out.*\.to\(device\)"):
        ct.loader(path, **OPTIONS, sparse=SPARSE, pin_memory=True)
    with pytest.raises(ca.OptionError, match="give a batch_size"):
        ct.CorgiPileDataset(path, **{**OPTIONS, "batch_size": None}, sparse=SPARSE)


# Scales


@given(pairs(12), pairs(12))
def test_scales_are_the_greatest_values_and_rows_about_1_long(first: Rows, second: Rows) -> None:
    rows = [[(k, (v - 4) * 10.0**k) for k, v in row] for row in first + second]
    matrix = dense(rows, 12)
    for given_dimension in (12, None):
        sizes = Sizes(given_dimension)
        for part in (rows[: len(first)], rows[len(first) :]):
            batch = batch_of(part, values=pa.float64())
            sizes.update(Converter(batch.schema, sparse={"x": (K, V, 12)})(batch)["x"])
        width = given_dimension or max((k for row in rows for k, _ in row), default=-1) + 1
        if not width:
            with pytest.raises(ca.OptionError, match=r"no sparse row has an index.*dimension="):
                sizes.scaling()
            continue
        plain, short = sizes.scaling(), sizes.scaling(unit_rows=True)
        greatest = np.abs(matrix).max(0, initial=0)[:width]
        assert (plain.scale == np.where(greatest > 0, greatest, 1)).all()
        assert not plain.mean.any()
        if matrix.any():
            lengths = ((matrix[:, :width] / short.scale) ** 2).sum(1)
            assert lengths.mean() == pytest.approx(1)
        csr = scipy.sparse.csr_array(matrix[:, :width])
        assert np.allclose(short.apply_sparse(csr).toarray(), short.apply(matrix[:, :width]), rtol=1e-15, atol=0)


def test_huge_and_tiny_values_have_scales() -> None:
    for size in (1e300, 1e-300):
        sizes = Sizes(2)
        sizes.update(scipy.sparse.csr_array(np.array([[size, 0.0], [size / 2, 0.0]])))
        assert sizes.scaling(unit_rows=True).scale[0] / size == pytest.approx((1.25 / 2) ** 0.5)


# Training


def as_dense(path: Path, rows: Rows, folder: Path) -> Path:
    """The same table with one column of vectors in the place of the lists, row for row and group for group."""
    table = pq.read_table(path)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(dense(rows, 30).reshape(-1)), 30)
    pq.write_table(table.drop_columns([K, V]).append_column("x", vectors), folder / "dense.parquet", row_group_size=23)
    return folder / "dense.parquet"


def reader_of(path: Path, **options: Any) -> ca.Reader:
    return ca.Reader(path, **{"batch_size": 16, "shuffle": "once", "memory": "1 GiB", **options})


@pytest.mark.parametrize("kind", ["logistic", "svm", "linear", "softmax"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_mini_batches_learn_the_same_from_sparse_and_from_dense_rows(kind: str, optimizer: str) -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(200, 40)) * (rng.random((200, 40)) < 0.1)
    labels = rng.integers(0, 3 if kind == "softmax" else 2, 200)
    both = [LinearModel(kind, optimizer=optimizer, eta0=0.05, l2=0.1) for _ in range(2)]
    sparse = scipy.sparse.csr_array(rows)
    for first in range(0, 200, 20):
        part = slice(first, first + 20)
        for model, matrix in zip(both, (rows[part], sparse[part]), strict=True):
            model.partial_fit(matrix, labels[part], classes=None if kind == "linear" else np.unique(labels))
    assert np.allclose(both[0].coef_, both[1].coef_, rtol=1e-4, atol=1e-6)
    assert np.allclose(both[0].intercept_, both[1].intercept_, rtol=1e-4, atol=1e-6)
    assert np.allclose(both[0].decision_function(rows), both[0].decision_function(sparse), atol=1e-5)
    assert np.isclose(both[0].predict(rows), both[0].predict(sparse.tocsc()), atol=1e-5).mean() > 0.99
    if kind in ("logistic", "softmax"):
        assert np.allclose(both[0].predict_proba(rows), both[0].predict_proba(sparse), atol=1e-5)


@pytest.mark.parametrize("loss", ["log_loss", "hinge"])
def test_steps_per_row_learn_the_same_from_sparse_and_from_dense_rows(
    table: tuple[Path, Rows], tmp_path: Path, loss: str
) -> None:
    path, rows = table
    scaling = find_scaling(reader_of(path), sparse=(K, V))
    assert (scaling.scale == np.maximum(np.abs(dense(rows, 30)).max(0), 0)).all()
    # scikit-learn moves the intercept of sparse rows less; all else is the same.
    both = [SGDClassifier(loss=loss, shuffle=False, random_state=0, fit_intercept=False) for _ in range(2)]
    options: dict[str, Any] = {"label": "label", "scaling": scaling, "epochs": 3}
    fit(both[0], reader_of(path), sparse=(K, V), **options)
    fit(both[1], reader_of(as_dense(path, rows, tmp_path)), features=["x"], **options)
    assert np.allclose(both[0].coef_, both[1].coef_, rtol=1e-9, atol=1e-12)


def test_steps_per_row_are_scikit_learns_on_the_same_matrix(
    table: tuple[Path, Rows], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corgiarrow.training._CONVERTED_VALUES", 24 * 30)  # So that 24 rows are converted at once.
    path, rows = table
    model, expected = (SGDClassifier(loss="log_loss", shuffle=False, random_state=0) for _ in range(2))
    reader = reader_of(path)
    order = np.concatenate([batch["id"].to_numpy() for batch in reader_of(path)])
    fit(model, reader, label="label", sparse=(K, V), classes=[0, 1])
    labels = pq.read_table(path)["label"].to_numpy()
    for first in range(0, 300, 16):
        part = order[first : first + 16]
        matrix = scipy.sparse.csr_array(dense([rows[n] for n in part], 30))
        expected.partial_fit(matrix, labels[part], classes=[0, 1])
    assert (model.coef_ == expected.coef_).all()
    assert (model.intercept_ == expected.intercept_).all()


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [pair for pair in product(models.KINDS, models.OPTIMIZERS) if pair != ("softmax", "per-row")],
)
def test_models_learn_from_sparse_rows_and_are_saved(
    table: tuple[Path, Rows], tmp_path: Path, kind: str, optimizer: str
) -> None:
    path, _ = table
    label = {"linear": "size", "softmax": "third"}.get(kind, "label")
    options: dict[str, Any] = {"kind": kind, "label": label, "optimizer": optimizer, "epochs": 20}
    done = train_model(reader_of(path), sparse=(K, V), **options)
    model, score = done.model, done.fitted.epochs[-1].score
    assert score is not None
    assert score.value > (0.45 if kind == "softmax" else 0.75)
    assert (model.sparse, model.features, len(model.scaling.scale)) == (True, (K, V), 30)
    file = tmp_path / f"m{saved.suffix_of(optimizer)}"
    saved.save(model, file)
    loaded = saved.load(file)
    assert (loaded.sparse, loaded.features) == (True, (K, V))
    tables = []
    for number, each in enumerate((model, loaded)):
        out = tmp_path / f"{number}.parquet"
        told = predict(each, reader_of(path).in_file_order(), out, probabilities=model.has_probabilities)
        assert told.score == pytest.approx(score.value)
        tables.append(pq.read_table(out))
    assert tables[0].equals(tables[1])
    wider = train_model(reader_of(path), sparse=(K, V), dimension=50, **options | {"epochs": 1}).model
    assert len(wider.scaling.scale) == 50


def test_files_of_before_are_dense_and_what_does_not_fit_is_refused(table: tuple[Path, Rows], tmp_path: Path) -> None:
    path, _ = table
    model = train_model(reader_of(path), sparse=(K, V), kind="svm", label="label", epochs=1).model
    file = tmp_path / "m.skops"
    saved.save(model, file)
    found = skops.io.load(file)
    for change, text in (
        ({"features": [K]}, "sparse rows"),
        ({"nulls": "mean"}, "sparse rows"),
        ({"sparse": 1}, "does not fit together"),
    ):
        facts = json.dumps(json.loads(found["corgiarrow"]) | change)
        skops.io.dump(found | {"corgiarrow": facts}, tmp_path / "bad.skops")
        with pytest.raises(ca.ReadError, match=text):
            saved.load(tmp_path / "bad.skops")
        (tmp_path / "bad.skops").unlink()
    facts = json.loads(found["corgiarrow"])
    del facts["sparse"]
    skops.io.dump(found | {"corgiarrow": json.dumps(facts)}, tmp_path / "old.skops")
    assert saved.load(tmp_path / "old.skops").sparse is False


def test_the_dimension_is_that_of_the_scaling_or_the_estimator_or_the_data(
    table: tuple[Path, Rows], tmp_path: Path
) -> None:
    path, _ = table
    assert find_dimension(reader_of(path), (K, V)) == 30
    for options, wanted in (({}, 30), ({"dimension": 40}, 40), ({"scaling": Scaling(np.zeros(35), np.ones(35))}, 35)):
        model = SGDClassifier(shuffle=False)
        fit(model, reader_of(path), label="label", sparse=(K, V), **options)
        assert model.coef_.shape == (1, wanted)
    fit(model, reader_of(path), label="label", sparse=(K, V), scaling=None)  # Goes on with its 35.
    assert model.coef_.shape == (1, 35)
    told = sklearn_predict(model, reader_of(path).in_file_order(), tmp_path / "a.parquet", sparse=(K, V))
    assert told.rows == 300
    with pytest.raises(ca.OptionError, match="give dimension="):
        sklearn_predict(LinearModel("svm"), reader_of(path).in_file_order(), tmp_path / "b.parquet", sparse=(K, V))


def write_lists(path: Path, keys: Any, values: Any, **columns: Any) -> Path:
    lists = {K: pa.array(keys, pa.list_(pa.int64())), V: pa.array(values, pa.list_(pa.float64()))}
    pq.write_table(pa.table({**lists, **columns}), path)
    return path


def test_an_index_beyond_the_dimension_raises_in_held_out_rows_and_in_new_ones(
    table: tuple[Path, Rows], tmp_path: Path
) -> None:
    path, _ = table
    other = write_lists(tmp_path / "other.parquet", [[1], [30]], [[1.0], [1.0]], label=[0, 1])
    model = train_model(reader_of(path), sparse=(K, V), kind="svm", label="label", epochs=1).model
    text = r"index 30 in row 1 of the batch, which must be in \[0, dimension=30\)"
    with pytest.raises(ca.ConversionError, match=text):
        train_model(reader_of(path), sparse=(K, V), kind="svm", label="label", epochs=1, held_out=other)
    with pytest.raises(ca.ConversionError, match=text):
        fit(SGDClassifier(), reader_of(path), label="label", sparse=(K, V), held_out=other)
    with pytest.raises(ca.ConversionError, match=text):
        predict(model, ca.Reader(other, shuffle="none"), tmp_path / "out.parquet")
    with pytest.raises(ca.ConversionError, match=r"index 2\d .*\[0, dimension=20\)"):
        train_model(reader_of(path), sparse=(K, V), dimension=20, kind="svm", label="label", epochs=1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"features": ["id"], "sparse": (K, V)}, "give one of them"),
        ({"features": ["id"], "dimension": 3}, "dimension=3 goes with sparse rows"),
        ({"sparse": K}, "must be two columns"),
        ({"sparse": (K,)}, "must be two columns"),
        ({"sparse": (K, K)}, "must be two columns"),
        ({"sparse": (K, V), "dimension": 0}, "dimension=0 must be a whole number"),
        ({"sparse": (K, "id")}, "lists of numbers from 'id', but it is int64"),
        ({"sparse": (K, V), "nulls": "mean"}, "nulls='mean' does not go with sparse rows"),
    ],
)
def test_training_options_that_do_not_fit(table: tuple[Path, Rows], options: dict[str, Any], text: str) -> None:
    path, _ = table
    with pytest.raises(ca.OptionError, match=text):
        train_model(reader_of(path), label="label", kind="svm", **options)
    with pytest.raises(ca.OptionError, match=text):
        fit(SGDClassifier(), reader_of(path), label="label", **options)
    with pytest.raises(ca.OptionError, match=text):
        find_scaling(reader_of(path), **options)


def test_scalings_and_columns_that_do_not_fit(table: tuple[Path, Rows]) -> None:
    path, _ = table
    for scaling, more, text in (
        (Scaling(np.ones(30), np.ones(30)), {}, "means other than 0.*find_scaling"),
        (Scaling(np.zeros(30), np.ones(30)), {"dimension": 31}, "dimension=31 must be 30"),
    ):
        with pytest.raises(ca.OptionError, match=text):
            fit(SGDClassifier(), reader_of(path), label="label", sparse=(K, V), scaling=scaling, **more)
    with pytest.raises(ca.ColumnNotFoundError, match=r"sparse=\['nothing'\] are no columns: choose from id"):
        train_model(reader_of(path), label="label", kind="svm", sparse=(K, "nothing"))
    with pytest.raises(ca.OptionError, match="just copy"):
        train_model(reader_of(path), label=V, kind="svm", sparse=(K, V))


@pytest.mark.parametrize(
    ("keys", "values", "text"),
    [
        ([[0], None], [[1.0], []], "'features_k' has 1 nulls, .* such as --where \"features_k is not null\"$"),
        ([[0], [1]], [[1.0], [None]], "'features_v' has 1 nulls within its lists"),
        ([[0], [1]], [[1.0], [float("nan")]], "'features_v' has NaN or infinite values, .* by a filter$"),
        ([[0], [2**40]], [[1.0], [1.0]], "index 1099511627776 .*give a greater dimension"),
    ],
)
def test_rows_from_which_nothing_can_be_learnt(tmp_path: Path, keys: Any, values: Any, text: str) -> None:
    path = write_lists(tmp_path / "a.parquet", keys, values, label=[0, 1])
    for act in (
        lambda reader: train_model(reader, label="label", kind="svm", sparse=(K, V)),
        lambda reader: find_scaling(reader, sparse=(K, V)),
    ):
        with pytest.raises(ca.ConversionError, match=text):
            act(ca.Reader(path, shuffle="none"))


def test_a_dimension_that_cannot_be_found(tmp_path: Path) -> None:
    for name, keys in (("none", [[], []]), ("huge", [[2**40], [1]]), ("below", [[-1], [-3]])):
        path = write_lists(tmp_path / f"{name}.parquet", keys, [[1.0] * len(k) for k in keys], label=[0, 1])
        with pytest.raises(ca.OptionError, match=r"column 'features_k' has .*give dimension="):
            find_dimension(ca.Reader(path), (K, V))
    path = write_lists(tmp_path / "empty.parquet", [[], []], [[], []], label=[0, 1])
    with pytest.raises(ca.OptionError, match="no sparse row has an index"):
        train_model(ca.Reader(path), label="label", kind="svm", sparse=(K, V))
    assert train_model(ca.Reader(path), label="label", kind="svm", sparse=(K, V), dimension=3).model.sparse


# Commands


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in args])


@pytest.mark.parametrize("model", ["logistic", "softmax"])
def test_train_and_predict_from_the_command_line(
    table: tuple[Path, Rows], tmp_path: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = table
    monkeypatch.setenv("CORGIARROW_MODELS", str(tmp_path / "models"))
    more = ["--label", "label", "--model", model, "--epochs", 10]
    found = run("train", path, *more, "--save-as", "by-custom", "--json")
    assert found.exit_code == 0, found.stderr
    assert "features (--sparse or --columns chooses): sparse rows of features_k and features_v" in found.stderr
    assert "left out" not in found.stderr
    told = json.loads(found.stdout)
    assert (told["features"], told["rows"]) == (30, 300)
    assert told["epochs"][-1]["accuracy"] > 0.85
    table_ = pq.read_table(path).rename_columns({K: "k", V: "v"})
    pq.write_table(table_, tmp_path / "renamed.parquet")
    more += ["--sparse", "k,v", "--dimension", 33]
    given = run("train", tmp_path / "renamed.parquet", *more, "--save-as", "given", "--json")
    assert given.exit_code == 0, given.stderr
    assert "chooses" not in given.stderr
    assert json.loads(given.stdout)["features"] == 33
    assert json.loads(given.stdout)["epochs"][-1]["accuracy"] > 0.85
    out = tmp_path / "out.parquet"
    done = run("predict", path, "--model", "by-custom", "--out", out, "--keep", "id", "--probabilities", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"] == pytest.approx(told["epochs"][-1]["accuracy"])
    assert pq.read_table(out)["id"].to_pylist() == list(range(300))
    # Columns that were named are used, though there are sparse rows.
    dense_ = run("train", path, *more[:6], "--save-as", "dense", "--columns", "size", "--json")
    assert json.loads(dense_.stdout)["features"] == 1
    missing = run("predict", path, "--model", "given", "--out", tmp_path / "no.parquet")
    assert missing.exit_code == 1
    assert "'k', 'v'" in missing.stderr


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--sparse", f"{K},{V}", "--columns", "id"], "give one of them"),
        (["--columns", "id", "--dimension", "3"], "dimension=3 goes with sparse rows"),
        (["--sparse", K], "must be two columns"),
        (["--sparse", f"{V},{K}"], "lists of whole numbers"),
        (["--nulls", "mean"], "nulls='mean' does not go with sparse rows"),
        (["--dimension", "0"], "dimension=0 must be"),
    ],
)
def test_train_tells_what_is_wrong_with_sparse_rows(
    table: tuple[Path, Rows], tmp_path: Path, more: list[str], text: str
) -> None:
    path, _ = table
    target = tmp_path / "m.skops"
    result = run("train", path, "--label", "label", "--model", "svm", "--save-as", target, *more)
    assert result.exit_code == 2, result.stderr
    assert text in " ".join(result.stderr.split())
    assert not target.exists()

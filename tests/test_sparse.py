"""Sparse rows: lists of indices and values as matrices, and models that learn from them as from the same rows dense."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import corgiarrow as ca
import corgiarrow.torch as ct
from corgiarrow.arrays import Converter, SparseSpec

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
        rows.append([(int(k), float(rng.integers(-4, 5)) / 4) for k in keys])
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

"""scikit-learn's estimators on a reader: they learn what they would from the same rows in memory."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from conftest import RAGGED_ROWS, ArraySource
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import MiniBatchKMeans
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Perceptron, SGDClassifier, SGDRegressor

import corgiarrow as ca
from corgiarrow.linear import LinearModel
from corgiarrow.scaling import Moments
from corgiarrow.sklearn import Fitted, find_scaling, fit, predict, step_decay

FEATURES = ["a", "b", "v"]


def numbers(rows: int, seed: int = 0) -> pa.Table:
    """Rows sorted by a label that their features tell, of several types."""
    rng = np.random.default_rng(seed)
    label = np.sort(rng.integers(0, 3, rows))
    vectors = rng.normal(size=(rows, 3)).astype(np.float32) + label[:, None]
    return pa.table(
        {
            "id": np.arange(rows),
            "a": rng.normal(size=rows) * 3 + label,
            "b": rng.integers(-5, 5, rows).astype(np.int8),
            "v": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 3),
            "text": [f"kind {n}" for n in label],
            "flag": label > 0,
            "label": label,
            "size": label * 2.0 + 1,
        }
    )


@pytest.fixture(scope="module")
def sorted_rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sorted")
    table = numbers(600)
    pq.write_table(table.slice(0, 410), folder / "a.parquet", row_group_size=37)
    pq.write_table(table.slice(410), folder / "b.parquet", row_group_size=50)
    return folder


def in_memory(folder: Path) -> tuple[np.ndarray, pa.Table]:
    table = ds.dataset(folder).to_table()
    vectors = np.array(table["v"].to_pylist())
    return np.column_stack([table["a"].to_numpy(), table["b"].to_numpy(), vectors]).astype(np.float64), table


def classifier(**options: Any) -> SGDClassifier:
    return SGDClassifier(**{"loss": "log_loss", "shuffle": False, "random_state": 0, **options})


# Training


@pytest.mark.parametrize("label", ["label", "text", "flag"])
@pytest.mark.parametrize("shuffle", ["none", "epoch", "corgipile"])
def test_a_model_learns_bit_for_bit_what_it_would_in_memory(sorted_rows: Path, shuffle: str, label: str) -> None:
    matrix, table = in_memory(sorted_rows)
    labels = np.array(table[label].to_pylist())
    kept = ca.Reader(sorted_rows, shuffle=shuffle, batch_size=50, buffer_fraction=1.0 if shuffle == "epoch" else 0.3)
    expected = classifier()
    for epoch in range(3):
        order = kept.plan(epoch).row_ids()
        for first in range(0, len(order), 50):
            rows = order[first : first + 50]
            expected.partial_fit(matrix[rows], labels[rows], classes=np.unique(labels))
    model = classifier()
    found = fit(model, kept, label=label, features=FEATURES, epochs=3)
    assert found.estimator is model
    assert np.array_equal(model.coef_, expected.coef_)
    assert np.array_equal(model.intercept_, expected.intercept_)
    assert model.classes_.tolist() == sorted(set(labels.tolist()))
    assert [e.epoch for e in found.epochs] == [0, 1, 2]
    assert all(e.rows == 600 and e.rows_per_s > 0 and e.score is None for e in found.epochs)


@pytest.mark.parametrize("together", [1, 60, 100])
def test_what_is_made_together_changes_nothing(
    sorted_rows: Path, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for values in (2**17, together):
        monkeypatch.setattr("corgiarrow.training._CONVERTED_VALUES", values)
        reader = ca.Reader(sorted_rows, batch_size=5, streams=2, buffer_fraction=1.0, shuffle="epoch")
        assert max(part.rows.num_rows for part in reader.slices()) > 30
        reader.set_epoch(0)
        found.append(fit(classifier(), reader, label="label", features=FEATURES, epochs=2).estimator)
    assert np.array_equal(found[0].coef_, found[1].coef_)


def test_steps_are_per_row_whatever_the_batch(sorted_rows: Path) -> None:
    found = []
    for batch_size in (7, 64, 600):
        reader = ca.Reader(sorted_rows, shuffle="none", batch_size=batch_size)
        found.append(fit(classifier(), reader, label="label", features=FEATURES, epochs=2).estimator)
    assert np.allclose(found[0].coef_, found[1].coef_, rtol=1e-9)
    assert np.allclose(found[0].coef_, found[2].coef_, rtol=1e-9)
    assert found[0].t_ == found[2].t_ == 1201


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("kind", ["sklearn", "adam"])
@pytest.mark.parametrize("stop", [1, 9, 12, 13, 20])
def test_resuming_anywhere_learns_the_same(sorted_rows: Path, kind: str, stop: int, streams: int) -> None:
    def reader() -> ca.Reader:
        return ca.Reader(sorted_rows, batch_size=50, buffer_fraction=0.5, streams=streams)

    def make() -> Any:
        if kind == "adam":
            return LinearModel("softmax", optimizer="adam", l2=0.01)
        return classifier(learning_rate="constant", eta0=0.1)

    options: dict[str, Any] = {"label": "label", "features": FEATURES, "epochs": 2, "learning_rate": step_decay(0.1)}
    classes = {"classes": [0, 1, 2]}
    saved: list[tuple[Any, dict[str, Any]]] = []
    whole, seen = make(), reader()
    run(whole, seen, lambda m: saved.append((copy.deepcopy(m), seen.state_dict())), **options, **classes)
    model, state = saved[stop - 1]
    again = reader()
    again.load_state_dict(state)
    run(model, again, None, **options, **classes)
    assert np.array_equal(model.coef_, whole.coef_)
    assert np.array_equal(model.intercept_, whole.intercept_)


def run(model: Any, reader: ca.Reader, after_batch: Any, **options: Any) -> Fitted:
    if isinstance(model, SGDClassifier):
        return fit(model, reader, after_batch=after_batch, **options)
    from corgiarrow.features import FeatureMatrix, Labels
    from corgiarrow.training import train

    labels = Labels(reader.schema, options.pop("label"), options.pop("classes"))
    matrix = FeatureMatrix(reader.schema, options.pop("features"))
    return train(model, reader, matrix, labels, classes=labels.classes, after_batch=after_batch, **options)


def test_training_goes_on_to_the_epoch_that_is_asked_for(sorted_rows: Path) -> None:
    reader = ca.Reader(sorted_rows, batch_size=100)
    options: dict[str, Any] = {"label": "label", "features": FEATURES}
    model = classifier()
    assert len(fit(model, reader, epochs=2, **options).epochs) == 2
    assert [e.epoch for e in fit(model, reader, epochs=3, **options).epochs] == [2]
    with pytest.raises(ca.OptionError, match="done already"):
        fit(model, reader, epochs=3, **options)


def test_early_stopping_keeps_the_best_model(sorted_rows: Path) -> None:
    class Fading(SGDClassifier):
        """Right as long as it has seen few batches."""

        def predict(self, rows: np.ndarray) -> np.ndarray:
            right = super().predict(rows)
            return right if self.t_ < 1300 else np.zeros_like(right)

    reader = ca.Reader(sorted_rows, batch_size=100, shuffle="once", memory="64 MiB")
    model = Fading(loss="log_loss", shuffle=False, alpha=0.01)
    scaling = find_scaling(reader, FEATURES)
    told: list[int] = []
    found = fit(
        model,
        reader,
        label="label",
        features=FEATURES,
        epochs=50,
        scaling=scaling,
        held_out=str(sorted_rows),
        patience=3,
        tol=0.01,
        after_epoch=lambda e: told.append(e.epoch),
    )
    scores = [e.score.value for e in found.epochs if e.score]
    assert found.stopped_early
    assert len(told) == len(found.epochs) == found.best_epoch + 4 < 50
    assert scores[found.best_epoch] > max(scores) - 0.01 > 0.5 > scores[-1]
    assert found.estimator is not model
    assert found.estimator.t_ == 600 * (found.best_epoch + 1) + 1
    matrix, table = in_memory(sorted_rows)
    assert scores[found.best_epoch] == pytest.approx(
        found.estimator.score(scaling.apply(matrix), table["label"].to_numpy())
    )


def test_scores_are_those_of_scikit_learn(sorted_rows: Path) -> None:
    matrix, table = in_memory(sorted_rows)
    reader = ca.Reader(sorted_rows, batch_size=100)
    scaling = find_scaling(reader, FEATURES)
    kept: list[Any] = []
    for model, label in ((SGDRegressor(random_state=0), "size"), (Perceptron(), "text")):
        reader.set_epoch(0)
        held_out = ca.Reader(sorted_rows, batch_size=33)
        found = fit(model, reader, label=label, features=FEATURES, scaling=scaling, held_out=held_out)
        truth = np.array(table[label].to_pylist())
        kept.append(found.epochs[0].score)
        assert kept[-1].value == pytest.approx(model.score(scaling.apply(matrix), truth))
    assert found.best_epoch == 0
    assert not found.stopped_early


def test_held_out_rows_may_have_other_types(sorted_rows: Path, tmp_path: Path) -> None:
    table = ds.dataset(sorted_rows).to_table()
    scores = []
    for number, changes in enumerate(({}, {"a": "float32", "b": "int64", "label": "int8"}, {"b": "string"})):
        other = table
        for name, kind in changes.items():
            values = pa.array(["x"] * 600) if kind == "string" else table[name].cast(kind)
            other = other.set_column(other.schema.get_field_index(name), name, values)
        pq.write_table(other, tmp_path / f"{number}.parquet")
        options: dict[str, Any] = {"label": "label", "features": FEATURES, "held_out": tmp_path / f"{number}.parquet"}
        reader = ca.Reader(sorted_rows, batch_size=100)
        if number < 2:
            scores.append(fit(classifier(), reader, **options).epochs[0].score)
        else:
            with pytest.raises(ca.ConversionError, match="'b' is string here, and int8"):
                fit(classifier(), reader, **options)
    assert scores[0][0] == pytest.approx(scores[1][0], abs=0.01)


def test_fields_of_structs_are_features(tmp_path: Path) -> None:
    table = pa.table({"p": [{"u": float(n), "v": "x"} for n in range(8)], "y": [0, 1] * 4})
    pq.write_table(table, tmp_path / "rows.parquet")
    reader = ca.Reader(tmp_path, columns=["p.u", "y"], batch_size=4)
    scaling = find_scaling(reader, ["p.u"])
    assert scaling.mean.tolist() == [3.5]
    assert fit(classifier(), reader, label="y", scaling=scaling).estimator.coef_.shape == (1, 1)


def test_models_without_a_label_and_other_sources(sorted_rows: Path) -> None:
    reader = ca.Reader(sorted_rows, batch_size=100)
    clusters = fit(MiniBatchKMeans(3, random_state=0, n_init=1), reader, label=None, features=FEATURES).estimator
    assert clusters.cluster_centers_.shape == (3, 5)
    reader = ca.Reader(ArraySource([30, 40, 20]), batch_size=10, shuffle="none")
    scaling = find_scaling(reader, ["id"])
    assert (scaling.mean, scaling.scale) == (pytest.approx(44.5), pytest.approx(np.arange(90).std()))
    model = fit(SGDRegressor(random_state=0), reader, label="id", features=["id"], scaling=scaling, epochs=40).estimator
    assert model.score(scaling.apply(np.arange(90.0)[:, None]), np.arange(90)) > 0.99


# What is no number, no label, no option


def table_of(folder: Path, **columns: Any) -> ca.Reader:
    pq.write_table(pa.table(columns), folder / "rows.parquet")
    return ca.Reader(folder, batch_size=4)


@pytest.mark.parametrize(
    ("features", "label", "error", "text"),
    [
        (["x"], "nothing", ca.ColumnNotFoundError, "choose the label from"),
        (["nothing"], "y", ca.ColumnNotFoundError, "choose from"),
        (["x", "x"], "y", ca.OptionError, "more than once"),
        ("x", "y", ca.OptionError, "features=\\['x'\\]"),
        (["text"], "y", ca.OptionError, "text \\(string\\): a feature must hold numbers"),
        (["nan"], "y", ca.ConversionError, "'nan' has NaN"),
        (["holes"], "y", ca.ConversionError, "'holes' has 1 nulls"),
        (["x"], "holes", ca.ConversionError, "'holes' has 1 nulls"),
        (["x"], "one", ca.OptionError, "nothing to learn"),
        (["x"], "nan", ca.OptionError, "NaN"),
        (["x"], "when", ca.OptionError, "a class must be"),
    ],
)
def test_what_cannot_be_learnt_is_told(
    tmp_path: Path, features: Any, label: str, error: type[Exception], text: str
) -> None:
    reader = table_of(
        tmp_path,
        x=[1.0, 2, 3, 4],
        y=[0, 1, 0, 1],
        text=["a", "b", "c", "d"],
        nan=[1.0, 2, float("nan"), 4],
        holes=pa.array([1, 2, None, 2]),
        one=[7, 7, 7, 7],
        when=pa.array([1, 2, 1, 2], pa.date32()),
    )
    with pytest.raises(error, match=text):
        fit(classifier(), reader, label=label, features=features)


def test_other_bad_options_are_told(sorted_rows: Path) -> None:
    reader = ca.Reader(sorted_rows)
    for model, options, text in (
        (RandomForestClassifier(), {}, "partial_fit"),
        (SGDRegressor(), {"classes": [0, 1]}, "classifiers"),
        (SGDRegressor(), {"label": "text"}, "must be a number"),
        (classifier(), {"epochs": 0}, "epochs=0"),
        (classifier(), {"patience": 2}, "held_out"),
        (classifier(), {"nulls": "mean"}, "find_scaling"),
        (classifier(), {"nulls": "bad"}, "nulls="),
        (classifier(), {"label": None, "held_out": sorted_rows}, "label"),
        (classifier(), {"learning_rate": step_decay(0.1)}, "learning_rate='constant'"),
        (Perceptron(), {"features": None}, "text"),
    ):
        with pytest.raises(ca.OptionError, match=text):
            fit(model, reader, **{"label": "label", "features": FEATURES, **options})
    with pytest.raises(ca.ConversionError, match="none of its 2"):
        fit(classifier(), reader, label="label", features=FEATURES, classes=[0, 1])


def test_no_rows_are_told(tmp_path: Path) -> None:
    reader = table_of(tmp_path, x=pa.array([], pa.float64()), y=pa.array([], pa.int64()))
    with pytest.raises(ca.OptionError, match="no rows"):
        fit(SGDRegressor(), reader, label="y", features=["x"])
    with pytest.raises(ca.OptionError, match="no rows"):
        predict(SGDRegressor(), reader.in_file_order(), tmp_path / "out.parquet", features=["x"])
    assert not (tmp_path / "out.parquet").exists()


def test_holes_become_the_mean_where_asked(tmp_path: Path) -> None:
    reader = table_of(
        tmp_path,
        x=pa.array([1, 3, None, 3], pa.int32()),
        f=[1.0, float("inf"), float("nan"), 5],
        b=pa.array([True, None, False, True]),
        y=[0, 1, 0, 1],
    )
    scaling = find_scaling(reader, ["x", "f", "b"])
    assert scaling.mean.tolist() == [pytest.approx(7 / 3), 3, pytest.approx(2 / 3)]
    seen: list[np.ndarray] = []

    class Watched(SGDClassifier):
        def partial_fit(self, rows: np.ndarray, *rest: Any, **options: Any) -> Any:
            seen.append(rows)
            return super().partial_fit(rows, *rest, **options)

    fit(Watched(), reader.in_file_order(), label="y", features=["x", "f", "b"], scaling=scaling, nulls="mean")
    holes = [[False, False, False], [False, True, True], [True, True, False], [False, False, False]]
    assert ((seen[0] == 0) == np.array(holes)).all()


def test_array_options_pass_through(tmp_path: Path) -> None:
    reader = table_of(
        tmp_path,
        x=pa.array([1, None, 3, 4]),
        kind=["a", "b", "a", "b"],
        raw=[b"ab", b"cd", b"ef", b"gh"],
        y=[0, 1, 0, 1],
    )
    options: dict[str, Any] = {
        "nulls": {"x": "mask"},
        "categories": {"kind": ["a", "b"]},
        "shape": {"raw": 2},
        "dtype": {"features": "float32"},
    }
    names = ["x", "x_valid", "kind", "raw"]
    model = fit(SGDRegressor(), reader, label="y", features=names, **options).estimator
    assert model.coef_.shape == (5,)
    out = tmp_path.parent / "options.parquet"
    assert predict(model, reader.in_file_order(), out, features=names, **options).rows == 4
    out.unlink()


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.sampled_from([0.0, 1e9, -1e15]), st.integers(1, 40))
def test_moments_are_those_of_all_rows_at_once(seed: int, mean: float, cuts: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(120, 4)) * [1, 100, 1e-3 if mean < 1 else 1, 0] + [mean, 0, 0, 0.1 + mean]
    values[rng.random(values.shape) < 0.2] = np.nan
    values[:, 3] = 0.1 + mean
    moments = Moments(4)
    for part in np.array_split(values, cuts):
        moments.update(part)
    scaling = moments.scaling()
    shifted = values - [mean, 0, 0, 0]
    assert np.allclose(scaling.mean, np.nanmean(values, 0), rtol=1e-12, atol=1e-12)
    assert np.allclose(scaling.scale[:3], np.nanstd(shifted[:, :3], 0), rtol=1e-9)
    # A constant column has no deviation at all, not one of rounding errors.
    assert moments.squares[3] == 0
    assert scaling.scale[3] == 1
    assert (scaling.apply(values)[:, 3] == 0).all()


# Predicting


@pytest.fixture(scope="module")
def model(ragged: Path) -> SGDRegressor:
    return fit(SGDRegressor(eta0=1e-6), ca.Reader(ragged), label="label", features=["x"]).estimator


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
@pytest.mark.parametrize("name", ["out.parquet", "folder"])
def test_every_row_is_predicted_once_in_file_order(
    ragged: Path, model: SGDRegressor, tmp_path: Path, batch_size: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corgiarrow.predictions._GROUP_ROWS", 40)
    monkeypatch.setattr("corgiarrow.predictions._FILE_ROWS", 100)
    reader = ca.Reader(ragged, shuffle="none", batch_size=batch_size)
    next(iter(reader))
    done = predict(model, reader, tmp_path / name, features=["x"], keep=["name", "id"])
    found = ds.dataset(tmp_path / name).to_table()
    assert done.rows == found.num_rows == RAGGED_ROWS
    assert found.schema.names == ["name", "id", "prediction"]
    assert found["id"].to_pylist() == list(range(RAGGED_ROWS))
    expected = model.predict(np.arange(RAGGED_ROWS)[:, None] * 0.5)
    assert np.allclose(found["prediction"].to_numpy(), expected, rtol=1e-12)
    files = list((tmp_path / name).iterdir()) if name == "folder" else [tmp_path / name]
    assert len(files) == (3 if name == "folder" and batch_size < 1000 else 1)
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_classes_and_probabilities_are_written(sorted_rows: Path, tmp_path: Path) -> None:
    reader = ca.Reader(sorted_rows, batch_size=100)
    model = fit(classifier(), reader, label="text", features=FEATURES).estimator
    out = tmp_path / "out.parquet"
    predict(model, reader.in_file_order(), out, features=FEATURES, probabilities=True)
    found = pq.read_table(out)
    matrix, _ = in_memory(sorted_rows)
    assert found["prediction"].to_pylist() == model.predict(matrix).tolist()
    assert np.allclose(np.array(found["probabilities"].to_pylist()), model.predict_proba(matrix))
    assert b"kind 2" in found.schema.field("probabilities").metadata[b"classes"]
    with pytest.raises(ca.OptionError, match="no probabilities"):
        predict(SGDRegressor(), reader.in_file_order(), tmp_path / "b", features=FEATURES, probabilities=True)


def test_predicting_refuses_other_orders_and_targets(ragged: Path, model: SGDRegressor, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    plain: dict[str, Any] = {"shuffle": "none"}
    for options, out, keep, text in (
        ({}, "out.parquet", [], "shuffle='none'"),
        ({**plain, "streams": 2, "batch_size": 50}, "out.parquet", [], "in_file_order"),
        ({**plain, "drop_last": True, "batch_size": 100}, "out.parquet", [], "drop_last"),
        (plain, "there", [], "there already"),
        (plain, "nowhere/out.parquet", [], "make it first"),
        (plain, "out.parquet", ["id", "id"], "twice"),
    ):
        with pytest.raises(ca.OptionError, match=text):
            predict(model, ca.Reader(ragged, **options), tmp_path / out, features=["x"], keep=keep)
    with pytest.raises(ca.OptionError, match="local path"):
        predict(model, ca.Reader(ragged, **plain), "s3://bucket/out.parquet", features=["x"])
    with pytest.raises(ca.ColumnNotFoundError, match="nothing"):
        predict(model, ca.Reader(ragged, **plain), tmp_path / "out", features=["x"], keep=["nothing"])
    assert [p.name for p in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("name", ["out.parquet", "folder"])
def test_nothing_half_written_is_left(
    ragged: Path,
    model: SGDRegressor,
    tmp_path: Path,
    name: str,
    error: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("corgiarrow.predictions._GROUP_ROWS", 40)

    class Failing:
        calls = 0

        def predict(self, rows: np.ndarray) -> np.ndarray:
            self.calls += 1
            if self.calls == 20:
                assert list(tmp_path.iterdir())
                raise error
            return rows[:, 0]

    with pytest.raises(error):
        predict(Failing(), ca.Reader(ragged, shuffle="none", batch_size=10), tmp_path / name, features=["x"])
    assert not list(tmp_path.iterdir())


def test_a_reader_in_file_order_has_the_same_rows(sorted_rows: Path) -> None:
    reader = ca.Reader(sorted_rows, filter=pc.field("b") > 0, buffer_fraction=0.2, provenance=True, batch_size=9)
    state = reader.state_dict()
    scan = reader.in_file_order(["id"], batch_size=100)
    assert scan.schema.names == ["id"]
    ids = [i for batch in scan for i in batch.column("id").to_pylist()]
    assert ids == sorted(i for batch in reader for i in batch.column("id").to_pylist())
    assert len(ids) == reader.num_rows < 600
    small = ca.Reader(sorted_rows, memory="1 MiB").in_file_order(batch_size=65_536)
    assert sum(batch.num_rows for batch in small) == 600
    assert state["epoch"] == 0


def test_without_scikit_learn_the_pip_line_is_told() -> None:
    code = "import sys; sys.modules['sklearn'] = None; sys.modules['sklearn.base'] = None; import corgiarrow.sklearn"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "MissingExtraError" in done.stderr
    assert "pip install 'corgiarrow[sklearn]'" in done.stderr

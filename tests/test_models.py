"""Linear models, their files, and the commands train and predict, as a person meets them."""

import contextlib
import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skops.io
import torch
from safetensors.numpy import save_file
from typer.testing import CliRunner, Result

import corgiarrow as ca
from corgiarrow import saved
from corgiarrow.cli.commands import app
from corgiarrow.linear import LinearModel, losses
from corgiarrow.models import Model, Trained, predict, train_model

DIGITS = str(ca.example_path())


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in args])


def run_json(*args: object) -> dict[str, Any]:
    result = run(*args, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture(autouse=True)
def models_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORGIARROW_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files sorted by label, on scales that no step size would serve."""
    folder = tmp_path_factory.mktemp("points")
    rng = np.random.default_rng(0)
    rows = 3000
    label = np.sort(rng.integers(0, 2, rows))
    third = np.sort(rng.integers(0, 3, rows))
    table = pa.table(
        {
            "id": np.arange(rows),
            "far": 1e9 + label * 3.0 + rng.normal(size=rows),
            "small": (third - rng.normal(size=rows)) * 1e-6,
            "same": np.full(rows, 0.1),
            "whole": pa.array(rng.integers(0, 100, rows), mask=rng.random(rows) < 0.1),
            "text": [("no", "yes")[n] for n in label],
            "label": label,
            "third": third,
            "year": 2000 + label * 10 + rng.normal(size=rows) * 0.1,
        }
    )
    for number in (0, 1):
        part = table.slice(1500 * number, 1500)
        pq.write_table(part, folder / f"part-{number}.parquet", row_group_size=70)
    return folder


FEATURES = ["far", "small", "same"]


def trained(folder: Path, kind: str, label: str, **options: Any) -> Trained:
    reader = ca.Reader(folder, batch_size=64, buffer_fraction=0.2)
    return train_model(reader, kind=kind, label=label, **{"features": FEATURES, **options})


# Linear models


@pytest.mark.parametrize("kind", ["logistic", "svm", "linear", "softmax"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_steps_are_those_of_torch(kind: str, optimizer: str) -> None:
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(200, 4)).astype(np.float32)
    labels = rng.integers(0, 3 if kind == "softmax" else 2, 200)
    classes = np.unique(labels)
    model = LinearModel(kind, optimizer=optimizer, eta0=0.05, l2=0.1)
    outputs = 3 if kind == "softmax" else 1
    weights = torch.zeros(4, outputs, requires_grad=True)
    bias = torch.zeros(outputs, requires_grad=True)
    make = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[optimizer]
    steps = make([{"params": [weights], "weight_decay": 0.1}, {"params": [bias]}], lr=0.05)
    for first in range(0, 200, 20):
        part = slice(first, first + 20)
        model.partial_fit(rows[part], labels[part], classes=None if kind == "linear" else classes)
        steps.zero_grad()
        scores = torch.from_numpy(rows[part]) @ weights + bias
        wanted = torch.from_numpy(labels[part])
        signs = 2.0 * wanted - 1
        loss = {
            "logistic": lambda s=scores, y=signs: torch.log1p(torch.exp(-y * s[:, 0])).mean(),
            "svm": lambda s=scores, y=signs: torch.clamp(1 - y * s[:, 0], min=0).mean(),
            "linear": lambda s=scores, y=wanted: ((s[:, 0] - y) ** 2 / 2).mean(),
            "softmax": lambda s=scores, y=wanted: -torch.log_softmax(s, 1)[torch.arange(20), y].mean(),
        }[kind]()
        loss.backward()
        steps.step()
    assert np.allclose(model.coef_, weights.detach().numpy(), rtol=1e-4, atol=1e-6)
    assert np.allclose(model.intercept_, bias.detach().numpy(), rtol=1e-4, atol=1e-6)
    scores = model.decision_function(rows[180:])
    told = losses(kind, scores, labels[180:], None if kind == "linear" else classes)
    with torch.no_grad():
        now = torch.from_numpy(rows[180:]) @ weights + bias
    if kind == "softmax":
        assert np.allclose(told, -torch.log_softmax(now, 1)[torch.arange(20), labels[180:]].numpy(), rtol=1e-3)
    if kind in ("softmax", "logistic"):
        shares = model.predict_proba(rows)
        assert np.allclose(shares.sum(1), 1)
        assert (classes[shares.argmax(1)] == model.predict(rows)).all()


def test_huge_scores_neither_overflow_nor_lose_probability() -> None:
    model = LinearModel("softmax")
    model.partial_fit(np.ones((1, 1)), np.array([0]), classes=np.array([0, 1, 2]))
    model.coef_[:] = [[1e4, -1e4, 0]]
    assert model.predict_proba(np.ones((1, 1))).tolist() == [[1, 0, 0]]
    assert losses("softmax", np.array([[1e4, -1e4]]), np.array([1]), np.array([0, 1])) == 2e4
    assert losses("logistic", np.array([-1e4]), np.array([1]), np.array([0, 1])) == 1e4


def test_a_model_needs_the_classes_that_it_can_tell_apart() -> None:
    rows, labels = np.ones((2, 1)), np.array([0, 1])
    for kind, classes, text in (
        ("logistic", [0, 1, 2], "softmax"),
        ("svm", [0], "tells 2 classes"),
        ("softmax", [0], "only one class"),
        ("softmax", None, "classes="),
    ):
        with pytest.raises(ca.OptionError, match=text):
            LinearModel(kind).partial_fit(rows, labels, classes)
    model = LinearModel("logistic").partial_fit(rows, labels, [0, 1])
    with pytest.raises(ca.OptionError, match="first batch"):
        model.partial_fit(rows, labels, [0, 2])
    with pytest.raises(ca.OptionError, match="partial_fit first"):
        LinearModel("svm").predict(rows)
    with pytest.raises(ca.OptionError, match="no probabilities"):
        LinearModel("svm").predict_proba(rows)
    for bad in ({"kind": "tree"}, {"optimizer": "lbfgs"}, {"eta0": 0.0}, {"l2": -1.0}):
        with pytest.raises(ca.OptionError):
            LinearModel(**{"kind": "svm", **bad})


# Training


@pytest.mark.parametrize("kind", ["logistic", "svm"])
def test_mini_batches_through_torch_get_as_far_as_scikit_learn(points: Path, kind: str) -> None:
    scores = {}
    for optimizer in ("per-row", "sgd", "adam"):
        fitted = trained(points, kind, "label", optimizer=optimizer).fitted
        scores[optimizer] = fitted.epochs[-1].score.value
        assert fitted.epochs[-1].score.loss < 0.4
    assert min(scores.values()) > 0.91
    assert max(scores.values()) - min(scores.values()) < 0.02


@pytest.mark.parametrize("optimizer", ["per-row", "sgd", "adam"])
def test_numbers_far_from_zero_are_predicted(points: Path, optimizer: str, tmp_path: Path) -> None:
    found = trained(points, "linear", "year", optimizer=optimizer, held_out=points, epochs=6)
    assert found.fitted.epochs[-1].score.value > 0.6
    done = predict(found.model, ca.Reader(points, shuffle="none"), tmp_path / "out.parquet")
    predicted = pq.read_table(tmp_path / "out.parquet")["prediction"].to_numpy()
    assert 1985 < predicted.min() < predicted.max() < 2025
    assert done.score == pytest.approx(found.fitted.epochs[-1].score.value, abs=1e-6)


def test_a_constant_column_changes_nothing_where_it_differs_later(points: Path) -> None:
    model = trained(points, "logistic", "label").model
    schema = pa.schema([(name, pa.float64()) for name in FEATURES])
    rows = [pa.record_batch([[1e9], [0.0], [value]], schema=schema) for value in (0.1, 5.0)]
    near, far = (model.estimator.decision_function(model.matrix(schema)(batch)) for batch in rows)
    assert near == pytest.approx(far, abs=1)


def test_softmax_learns_the_sorted_digits() -> None:
    for optimizer in ("sgd", "adam"):
        reader = ca.Reader(DIGITS, batch_size=128, buffer_fraction=0.1)
        found = train_model(reader, label="label", kind="softmax", optimizer=optimizer, epochs=5)
        assert found.fitted.epochs[-1].score.value > 0.9
        assert found.model.classes == tuple(range(10))
        assert found.model.features == ("pixels",)


def test_steps_that_are_too_large_are_told(points: Path) -> None:
    for optimizer in ("sgd", "per-row"):
        with pytest.raises(ca.OptionError, match="smaller steps than eta0="):
            trained(points, "linear", "year", optimizer=optimizer, eta0=1e200 if optimizer == "per-row" else 1e36)


# Files


@pytest.mark.parametrize(
    ("kind", "label", "optimizer"),
    [
        ("logistic", "text", "per-row"),
        ("svm", "label", "per-row"),
        ("linear", "year", "per-row"),
        ("logistic", "text", "adam"),
        ("linear", "year", "sgd"),
        ("softmax", "third", "sgd"),
    ],
)
def test_a_loaded_model_predicts_bit_for_bit_the_same(
    points: Path, tmp_path: Path, kind: str, label: str, optimizer: str
) -> None:
    features = [*FEATURES, "whole"]
    model = trained(points, kind, label, optimizer=optimizer, nulls="mean", epochs=1, features=features).model
    path = saved.new_model_path("one", optimizer)
    saved.save(model, path)
    loaded = saved.load(saved.find("one"))
    tables = []
    for number, each in enumerate((model, loaded)):
        out = tmp_path / f"{number}.parquet"
        predict(each, ca.Reader(points, shuffle="none"), out, keep=["id"], probabilities=model.has_probabilities)
        tables.append(pq.read_table(out))
    assert tables[0].equals(tables[1])
    assert loaded.features == tuple(features)
    assert (loaded.kind, loaded.label, loaded.classes, loaded.nulls) == (kind, label, model.classes, "mean")
    assert path.suffix == (".skops" if optimizer == "per-row" else ".safetensors")
    assert path.stat().st_mode & 0o444 == 0o444 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class Harmful:
    """Makes a file when it is unpickled, or called by what loads it."""

    def __init__(self, path: str):
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


def test_what_could_run_code_is_refused_and_not_run(tmp_path: Path, points: Path) -> None:
    mark = tmp_path / "ran"
    for name in ("a.skops", "a.safetensors"):
        (tmp_path / name).write_bytes(pickle.dumps(Harmful(str(mark))))
    skops.io.dump({"corgiarrow": "{}", "arrays": {}, "estimator": Harmful(str(mark))}, tmp_path / "b.skops")
    skops.io.dump({"corgiarrow": "{}", "arrays": {}, "estimator": {}}, tmp_path / "c.skops")
    save_file({"coef": np.zeros(1)}, tmp_path / "c.safetensors")
    shutil.copy(tmp_path / "c.safetensors", tmp_path / "c.pt")
    for name, text in (
        ("a.skops", "skops cannot read"),
        ("a.safetensors", "safetensors cannot read"),
        ("b.skops", "might run code"),
        ("c.skops", "something else"),
        ("c.safetensors", "what it was trained on"),
        ("c.pt", "ends in neither"),
    ):
        with pytest.raises(ca.ReadError, match=text):
            saved.load(tmp_path / name)
        result = run("predict", points, "--model", tmp_path / name, "--out", tmp_path / "out.parquet")
        assert result.exit_code == 1
        assert "no model that corgiarrow saved" in result.stderr
    assert not mark.exists()
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize(
    "change",
    [{"format": 2}, {"kind": "tree"}, {"classes": [1]}, {"classes": None}, {"nulls": "x"}, {"features": 3}],
)
@pytest.mark.parametrize("optimizer", ["per-row", "sgd"])
def test_models_that_do_not_fit_together_are_refused(
    points: Path, tmp_path: Path, change: dict[str, Any], optimizer: str
) -> None:
    model = trained(points, "logistic", "label", optimizer=optimizer, epochs=1).model
    path = tmp_path / f"m{saved.suffix_of(optimizer)}"
    saved.save(model, path)
    if optimizer == "per-row":
        found = skops.io.load(path)
        found["corgiarrow"] = json.dumps(json.loads(found["corgiarrow"]) | change)
        skops.io.dump(found, path)
    else:
        from safetensors import safe_open

        with safe_open(path, framework="numpy") as opened:
            facts = json.loads(opened.metadata()["corgiarrow"]) | change
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        save_file(arrays, path, metadata={"corgiarrow": json.dumps(facts)})
    with pytest.raises(ca.ReadError, match="no model that corgiarrow saved"):
        saved.load(path)


def test_ids_lie_among_the_users_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert saved.models_folder() == tmp_path / "models"
    monkeypatch.delenv("CORGIARROW_MODELS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert saved.models_folder() == tmp_path / "corgiarrow" / "models"
    monkeypatch.setenv("XDG_DATA_HOME", "not/absolute")
    assert saved.models_folder() == Path.home() / ".local" / "share" / "corgiarrow" / "models"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert saved.models_folder() == Path.home() / "Library" / "Application Support" / "corgiarrow" / "models"
    assert all(saved.is_id(name) for name in ("a", "a-b.c_1", "7"))
    assert not any(saved.is_id(name) for name in ("../a", "a/b", "a.skops", ".a", "", "a b"))


# Commands


def train(src: object, *more: object, label: str = "label", model: str = "logistic", save_as: object = "m") -> Result:
    return run("train", src, "--label", label, "--model", model, "--save-as", save_as, *more)


def test_a_held_out_part_is_scored_on_and_not_trained_on(points: Path, tmp_path: Path, models_in: Path) -> None:
    split = ["--held-out", "0.25", "--held-out-by", "id"]
    result = train(points, "--columns", "far,small,same", "--split", "train", *split, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    told = run_json("predict", points, "--model", "m", "--out", tmp_path / "p.parquet", "--split", "held_out", *split)
    assert found["scored_on"] == "held-out rows"
    assert found["rows"] + told["rows"] == 3000
    assert told["accuracy"] == pytest.approx(found["epochs"][-1]["accuracy"])
    both = train(points, "--split", "train", "--held-out-src", points)
    assert both.exit_code == 2
    assert "give one of them" in both.stderr


@pytest.mark.parametrize(
    ("model", "label", "more"),
    [
        ("logistic", "text", []),
        ("svm", "label", []),
        ("linear", "year", ["--optimizer", "adam"]),
        ("softmax", "third", []),
        ("softmax", "text", ["--optimizer", "adam"]),
    ],
)
def test_train_and_predict(
    points: Path, tmp_path: Path, models_in: Path, model: str, label: str, more: list[str]
) -> None:
    columns = ["--columns", "far,small,same"]
    held = ["--held-out-src", points / "part-0.parquet", "--held-out-src", points / "part-1.parquet"]
    result = train(points, *columns, *held, "--epochs", 3, *more, "--json", label=label, model=model)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    measure = "r2" if model == "linear" else "accuracy"
    assert (found["rows"], found["features"], len(found["epochs"])) == (3000, 3, 3)
    assert found["epochs"][-1][measure] > 0.5
    assert found["epochs"][-1]["loss"] > 0
    assert str(models_in) in found["model"]
    out = tmp_path / "out.parquet"
    told = run_json("predict", points, "--model", "m", "--out", out, "--keep", "id")
    assert told["rows"] == 3000
    assert told[measure] == pytest.approx(found["epochs"][-1][measure])
    assert pq.read_table(out)["id"].to_pylist() == list(range(3000))
    again = run("predict", points / "part-0.parquet", "--model", found["model"], "--out", tmp_path / "folder")
    assert again.exit_code == 0, again.stderr
    assert "1,500" in again.stdout
    assert "predicting" in again.stderr
    assert (tmp_path / "folder" / "part-00000.parquet").is_file()


def test_tables_fit_80_columns_and_progress_is_on_stderr(points: Path) -> None:
    result = train(points, "--columns", "far,small", "--epochs", 2)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert max(len(line) for line in lines if not line.startswith("saved as")) <= 80
    assert "accuracy" in result.stdout
    assert "epoch 2: accuracy" in result.stderr
    by_default = train(points, "--nulls", "mean", save_as="other")
    assert "left out, as they hold no numbers: text" in by_default.stderr


def test_early_stopping_from_the_command_line(points: Path) -> None:
    more = ["--columns", "far,small", "--epochs", 40, "--held-out-src", points, "--patience", 2, "--tol", 0.01]
    found = json.loads(train(points, *more, "--json").stdout)
    assert found["stopped_early"]
    assert len(found["epochs"]) == found["best_epoch"] + 2 < 40


@pytest.mark.parametrize(
    ("more", "exit_code", "text"),
    [
        ({"label": "nothing"}, 1, "nothing"),
        ({"label": "third", "more": ["--columns", "far"]}, 2, "tells 2 classes apart, but there are 3"),
        ({"label": "id", "more": ["--columns", "far"]}, 2, "more than 1000 values"),
        ({"label": "text", "model": "linear"}, 2, "must be a number"),
        ({"label": "whole", "model": "linear"}, 1, "is not null"),
        ({"label": "whole", "model": "softmax"}, 1, "is not null"),
        ({"model": "tree"}, 2, "must be one of"),
        ({"model": "softmax", "more": ["--optimizer", "per-row"]}, 2, "sgd"),
        ({"more": []}, 1, "--nulls mean"),
        ({"more": ["--columns", "text"]}, 2, "text (string)"),
        ({"more": ["--columns", "label,far"]}, 2, "just copy"),
        ({"more": ["--columns", "missing"]}, 1, "missing"),
        ({"more": ["--where", "id < 0", "--columns", "far"]}, 2, "no rows"),
        ({"more": ["--where", "label == 0", "--columns", "far"]}, 2, "nothing to learn"),
        ({"more": ["--patience", 1]}, 2, "held"),
        ({"more": ["--decay", 2]}, 2, "decay=2"),
        ({"more": ["--epochs", 0, "--columns", "far"]}, 2, "epochs=0"),
        ({"save_as": "m.safetensors"}, 2, "saved as .skops"),
        ({"save_as": "nowhere/m.skops"}, 2, "make it first"),
        ({"save_as": "s3://b/m.skops"}, 2, "local path"),
    ],
)
def test_train_tells_what_is_wrong(
    points: Path, models_in: Path, more: dict[str, Any], exit_code: int, text: str
) -> None:
    more = dict(more)
    result = train(points, *more.pop("more", []), **more)
    assert result.exit_code == exit_code, result.stderr
    assert text in result.stderr
    assert not result.stdout
    assert not models_in.exists() or not list(models_in.iterdir())


def test_targets_that_are_there_or_are_data_are_refused_before_work(
    points: Path, tmp_path: Path, models_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "data"
    shutil.copytree(points, folder)
    (tmp_path / "link").symlink_to(folder)
    before = sorted(p.name for p in folder.iterdir())
    (tmp_path / "there.skops").touch()
    assert train(folder, "--columns", "far").exit_code == 0
    monkeypatch.setattr("corgiarrow.cli.models.open_data", lambda *_, **__: pytest.fail("work was begun"))
    for src in (folder, f"file://{folder}", folder / "*.parquet", tmp_path / "link", tmp_path):
        for target in (folder / "new", tmp_path / "link" / "new"):
            for result in (
                train(src, save_as=f"{target}.skops"),
                run("predict", src, "--model", "m", "--out", f"{target}.parquet"),
                run("predict", src, "--model", "m", "--out", target),
            ):
                assert result.exit_code == 2, (src, target)
                assert "inside the input folder" in result.stderr
    for result in (
        train(folder, save_as=tmp_path / "there.skops"),
        train(folder, save_as="m"),
        train(folder, "--optimizer", "sgd", save_as="m"),
        run("predict", folder, "--model", "m", "--out", tmp_path / "there.skops"),
        run("predict", folder, "--model", "m", "--out", folder),
    ):
        assert result.exit_code == 2
        assert "already" in result.stderr
    missing = run("predict", folder, "--model", "unknown", "--out", tmp_path / "o.parquet")
    assert missing.exit_code == 1
    assert "there are m" in missing.stderr
    assert sorted(p.name for p in folder.iterdir()) == before
    assert [p.name for p in models_in.iterdir()] == ["m.skops"]


def test_predict_tells_what_does_not_fit(points: Path, tmp_path: Path) -> None:
    assert train(points, "--columns", "far,small", "--epochs", 1, model="svm").exit_code == 0
    pq.write_table(pa.table({"far": ["a"], "small": [1.0]}), tmp_path / "text.parquet")
    pq.write_table(pa.table({"far": [1.0]}), tmp_path / "lacks.parquet")
    wide = pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2))
    pq.write_table(pa.table({"far": wide, "small": [1.0]}), tmp_path / "wide.parquet")
    pq.write_table(pa.table({"far": pa.array([None], pa.float64()), "small": [1.0]}), tmp_path / "null.parquet")
    pq.write_table(pa.table({"far": [1e9], "small": [1.0], "label": ["?"]}), tmp_path / "other.parquet")
    out = tmp_path / "out.parquet"
    for name, more, exit_code, text in (
        ("text", [], 2, "must hold numbers"),
        ("lacks", [], 1, "small"),
        ("wide", [], 2, "trained on 2 features"),
        ("null", [], 1, "nulls"),
        ("other", ["--probabilities"], 2, "no probabilities"),
        ("other", ["--keep", "nothing"], 1, "nothing"),
        ("other", ["--where", "small > 5"], 2, "no rows"),
    ):
        result = run("predict", tmp_path / f"{name}.parquet", "--model", "m", "--out", out, *more)
        assert result.exit_code == exit_code, (name, result.stderr)
        assert text in result.stderr
        assert not out.exists()
    # A label of another kind is not compared.
    assert run_json("predict", tmp_path / "other.parquet", "--model", "m", "--out", out)["accuracy"] is None


def test_labels_unknown_to_the_model_are_wrong_and_nulls_do_not_count(points: Path, tmp_path: Path) -> None:
    model: Model = trained(points, "logistic", "text").model
    table = pq.read_table(points / "part-0.parquet").slice(0, 4)
    labels = pa.array(["no", None, "never seen", "no"]).dictionary_encode()
    place = table.schema.get_field_index("text")
    pq.write_table(table.set_column(place, "text", labels), tmp_path / "four.parquet")
    done = predict(model, ca.Reader(tmp_path / "four.parquet", shuffle="none"), tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet")["prediction"].to_pylist()
    assert done.rows == 4
    assert done.score == pytest.approx((found[0] == "no") / 3 + (found[3] == "no") / 3)


# Ends


_SLOWLY = """
import sys, time
import corgiarrow.models as models
step = models.Model.predict
def slowly(self, matrix):
    time.sleep(0.05)
    print("step", file=sys.stderr, flush=True)
    return step(self, matrix)
models.Model.predict = slowly
import corgiarrow.cli.data
corgiarrow.cli.data.Reader = lambda *a, **o: models.Reader(*a, **o | {"batch_size": 8})
from corgiarrow.cli import main
main()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_predict_that_is_stopped_leaves_nothing_under_its_name(points: Path, tmp_path: Path, how: int) -> None:
    assert train(points, "--columns", "far,small", "--epochs", 1).exit_code == 0
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-c", _SLOWLY, "predict", points, "--model", "m", "--out", out / "p.parquet"]
    with subprocess.Popen([str(c) for c in command], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "step" not in (line := process.stderr.readline()):
            assert line, "it ended before its first step"
        time.sleep(0.2)
        process.send_signal(how)
        process.wait(20)
        rest = process.stderr.read()
    assert not (out / "p.parquet").exists()
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "stopped" in rest
        assert not list(out.iterdir())


def test_train_that_is_stopped_saves_nothing(points: Path, models_in: Path) -> None:
    command = [sys.executable, "-m", "corgiarrow", "train", points, "--label", "label", "--model", "svm"]
    command += ["--save-as", "m", "--columns", "far", "--epochs", "100000"]
    with subprocess.Popen([str(c) for c in command], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "epoch 2" not in (line := process.stderr.readline()):
            assert line, "it ended before its second epoch"
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(ValueError):
            process.communicate(timeout=20)
    assert process.returncode == 130
    assert not list(models_in.iterdir())


@pytest.mark.parametrize(
    ("missing", "more", "extra"),
    [
        ("sklearn.linear_model", [], "sklearn"),
        ("skops.io", [], "sklearn"),
        ("torch", ["--optimizer", "sgd"], "torch"),
        ("safetensors.numpy", ["--optimizer", "sgd"], "torch"),
    ],
)
def test_a_missing_extra_is_told_before_work(
    points: Path, monkeypatch: pytest.MonkeyPatch, missing: str, more: list[str], extra: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    result = train(points, "--columns", "far", *more)
    assert result.exit_code == 1
    assert f"pip install 'corgiarrow[{extra}]'" in result.stderr
    assert "reading once" not in result.stderr


def test_the_examples_in_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parent.parent / "docs" / "training.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 4
    monkeypatch.chdir(tmp_path)
    for example in examples:
        exec(compile(example, "docs/training.md", "exec"), {})
    made = {"digits.parquet", "digits.safetensors", "by-softmax.parquet", "texts.parquet"}
    assert {p.name for p in tmp_path.iterdir()} == made

"""Training on tables of a PostgreSQL server, and predictions into new ones."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from servers import Postgres
from sklearn.linear_model import SGDClassifier
from typer.testing import CliRunner

import corgiarrow as ca
from corgiarrow.cli import app
from corgiarrow.operators import SGD, BlockShuffle, TupleShuffle
from corgiarrow.sklearn import fit, predict
from corgiarrow.sources.postgres import NewTable, PostgresSource

ROWS, WIDTH = 3_000, 6


@pytest.fixture(scope="module")
def tables(postgres: Postgres) -> Iterator[Postgres]:
    """Rows sorted by label: columns of numbers with a key, vectors, and sparse rows."""
    rng = np.random.default_rng(0)
    label = np.arange(ROWS) // (ROWS // 3)
    features = rng.standard_normal((ROWS, WIDTH)).astype("f4") + label[:, None] * np.linspace(-1.5, 1.5, WIDTH)
    two = label > 0
    numbers = {f"x{n}": features[:, n].astype("f8") for n in range(WIDTH)}
    price = pa.array([f"{x:.2f}" for x in features[:, 0]]).cast(pa.decimal128(10, 2))
    vectors = pa.array(list(features.astype("f4")), pa.list_(pa.float32()))
    keys = pa.array([np.arange(WIDTH) * 3] * ROWS, pa.list_(pa.int32()))
    with postgres.session() as session:
        for name, columns in (
            ("m_numbers", {**numbers, "price": price, "two": two}),
            ("m_vectors", {"features_v": vectors, "label": label}),
            ("m_sparse", {"features_k": keys, "features_v": vectors, "label": label}),
        ):
            with session.connection.cursor() as cursor:
                cursor.adbc_ingest(name, pa.table({"id": np.arange(ROWS), **columns}), mode="create")
        session.run("ALTER TABLE m_numbers ADD PRIMARY KEY (id)")
        yield postgres
        session.run("DROP TABLE m_numbers, m_vectors, m_sparse")


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CORGIARROW_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


@pytest.fixture
def target(tables: Postgres) -> Iterator[str]:
    yield "m_into"
    tables.run("DROP TABLE IF EXISTS m_into")


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def trained(url: str, table: str, *more: object, save_as: str = "m") -> dict[str, Any]:
    result = run("train", url, "--table", table, "--save-as", save_as, "--epochs", 3, "--json", *more)
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("kind", ["logistic", "svm"])
def test_columns_of_numbers_into_a_table(tables: Postgres, models: Path, target: str, kind: str) -> None:
    found = trained(tables.url(), "m_numbers", "--label", "two", "--model", kind)
    assert found["features"] == WIDTH + 1  # The decimal is one, the key is none.
    assert found["epochs"][-1]["accuracy"] > 0.85
    result = run("predict", tables.url(), "--table", "m_numbers", "--model", "m", "--into", target, "--json")
    assert result.exit_code == 0, result.stderr
    rows = tables.rows(f"SELECT p.id, p.prediction, n.two FROM {target} p JOIN m_numbers n USING (id) ORDER BY 1")
    assert [row[0] for row in rows] == list(range(ROWS))
    accuracy = np.mean([row[1] == row[2] for row in rows])
    done = {"out": target, "rows": ROWS, "label": "two", "accuracy": pytest.approx(accuracy)}
    assert json.loads(result.stdout) == done


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("table", ["m_vectors", "m_sparse"])
def test_the_papers_schema(tables: Postgres, models: Path, tmp_path: Path, table: str, optimizer: str) -> None:
    found = trained(tables.url(), table, "--label", "label", "--model", "softmax", "--optimizer", optimizer)
    assert found["features"] == (WIDTH if table == "m_vectors" else 3 * WIDTH - 2)
    assert found["epochs"][-1]["accuracy"] > 0.8
    out = tmp_path / "p.parquet"
    given = ["predict", tables.url(), "--table", table, "--model", "m", "--out", out, "--keep", "id", "--probabilities"]
    assert run(*given).exit_code == 0
    written = pq.read_table(out)
    assert written["id"].to_pylist() == list(range(ROWS))  # As they were put in.
    assert (written["prediction"].to_numpy() == np.arange(ROWS) // 1000).mean() > 0.8


def test_as_accurate_as_on_shuffled_rows_in_memory(tables: Postgres) -> None:
    held_out = PostgresSource(tables.url(), "m_vectors", dimension="first", where="id % 10 = 0")
    source = PostgresSource(tables.url(), "m_vectors", dimension="first", where="id % 10 <> 0")
    scores = []
    for shuffle in ("corgipile", "epoch", "none"):
        reader = ca.Reader(source, shuffle=shuffle, **({"buffer_fraction": 0.4} if shuffle == "corgipile" else {}))
        model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.003, shuffle=False)
        done = fit(model, reader, label="label", features=["features_v"], epochs=4, held_out=ca.Reader(held_out))
        scores.append(done.epochs[-1].score.value)
    source.close()
    held_out.close()
    corgipile, shuffled, in_order = scores
    assert corgipile > shuffled - 0.05 > in_order + 0.1


def test_held_out_rows_are_of_the_same_snapshot(tables: Postgres, models: Path) -> None:
    split = ["--split", "train", "--held-out-by", "id", "--held-out", 0.2]
    found = trained(tables.url(), "m_vectors", "--label", "label", "--model", "softmax", *split)
    assert found["scored_on"] == "held-out rows"
    assert 0.7 * ROWS < found["rows"] < 0.9 * ROWS
    result = run("predict", tables.url(), "--table", "m_vectors", "--model", "m", "--out", models / "p.parquet",
                 "--split", "held_out", "--held-out-by", "id", "--held-out", 0.2, "--json")
    assert json.loads(result.stdout)["rows"] == ROWS - found["rows"]


def test_the_operators_read_tables(tables: Postgres) -> None:
    with (
        ca.Reader(tables.url(), table="m_vectors", columns=["id"], block_bytes=8192, buffer_fraction=0.2) as reader,
        TupleShuffle(BlockShuffle(reader), double_buffering=True) as tuples,
    ):
        seen: list[int] = []
        sgd = SGD(tuples, lambda batch: seen.extend(batch["id"].to_pylist()), epochs=2)
        assert [sgd.next(), sgd.next(), sgd.next()] == [ROWS, ROWS, None]
        assert seen[:ROWS] == [i for batch in reader for i in batch["id"].to_pylist()]
        assert sorted(seen[ROWS:]) == list(range(ROWS))


def test_plan_and_head(tables: Postgres) -> None:
    found = json.loads(run("plan", tables.url(), "--table", "m_vectors", "--where", "id < 100", "--json").stdout)
    assert found["rows"] == 100
    look = ["--table", "m_numbers", "--columns", "id,two", "--rows", 2, "--json"]
    found = json.loads(run("head", tables.url(), *look).stdout)
    assert found["rows"] == [{"id": 0, "two": False}, {"id": 1, "two": False}]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["train", "URL", "--label", "label", "--model", "svm", "--save-as", "m"], "needs --table"),
        (["train", "URL", "URL", "--table", "t", "--label", "l", "--model", "svm", "--save-as", "m"], "alone"),
        (["train", "x", "--table", "t", "--label", "l", "--model", "svm", "--save-as", "m"], "--table goes with"),
        (["plan", "URL", "--table", "m_vectors", "--storage-options", "{}"], "--storage-options goes with files"),
        (["inspect", "URL"], "this command reads files"),
        (["predict", "URL", "--table", "m_vectors", "--model", "m"], "one of them"),
        (["predict", "URL", "--table", "m_vectors", "--model", "m", "--into", "m_vectors"], "is there already"),
        (["predict", "URL", "--table", "m_vectors", "--model", "m", "--into", "no_such.t"], "no schema 'no_such'"),
        (["predict", "URL", "--table", "m_vectors", "--model", "m", "--into", ""], "name of a table"),
        (["predict", "x.parquet", "--model", "m", "--into", "t"], "table of the database"),
    ],
)
def test_what_cannot_be_is_refused(tables: Postgres, models: Path, arguments: list[str], text: str) -> None:
    result = run(*(tables.url() if a == "URL" else a for a in arguments))
    assert result.exit_code == 2
    assert text in " ".join(result.stderr.split())


def test_a_role_without_the_right_to_make_tables_is_told_the_grant(tables: Postgres, models: Path) -> None:
    tables.run("CREATE ROLE m_reader LOGIN", "GRANT SELECT ON m_vectors TO m_reader")
    try:
        trained(tables.url("m_reader"), "m_vectors", "--label", "label", "--model", "softmax")
        result = run("predict", tables.url("m_reader"), "--table", "m_vectors", "--model", "m", "--into", "m_new")
        assert result.exit_code == 1
        assert 'GRANT CREATE ON SCHEMA "public" TO "m_reader"' in " ".join(result.stderr.split())
    finally:
        tables.run("DROP OWNED BY m_reader", "DROP ROLE m_reader")


class Broken:
    """A model that fails in the midst of the rows."""

    classes_ = np.array([0, 1, 2])

    def __init__(self, error: Exception):
        self.error, self.batches = error, 0

    def predict(self, rows: np.ndarray) -> np.ndarray:
        self.batches += 1
        if self.batches == 5:
            raise self.error
        return np.zeros(len(rows), dtype=np.int64)


def test_nothing_is_left_of_predictions_that_fail(tables: Postgres, target: str) -> None:
    with (
        ca.Reader(tables.url(), table="m_vectors", shuffle="none", batch_size=100, dimension=WIDTH) as reader,
        pytest.raises(ZeroDivisionError, match="the model's own"),
    ):
        model = Broken(ZeroDivisionError("the model's own"))
        predict(model, reader, NewTable(tables.url(), target), features=["features_v"])
    assert tables.rows(f"SELECT to_regclass('{target}')::text") == [(None,)]


def test_nothing_is_left_when_the_connection_is_killed(tables: Postgres, target: str) -> None:
    class Killed(Broken):
        def predict(self, rows: np.ndarray) -> np.ndarray:
            self.batches += 1
            if self.batches == 5:
                assert tables.end_readers("query LIKE 'COPY%FROM STDIN%'") == 1
            return np.zeros(len(rows), dtype=np.int64)

    with (
        ca.Reader(tables.url(), table="m_vectors", shuffle="none", batch_size=100, dimension=WIDTH) as reader,
        pytest.raises(ca.StorageError, match="cannot write table 'm_into'"),
    ):
        predict(Killed(ValueError()), reader, NewTable(tables.url(), target), features=["features_v"])
    assert tables.rows(f"SELECT to_regclass('{target}')::text") == [(None,)]


def test_hostile_names_of_new_tables(tables: Postgres) -> None:
    tables.run("CREATE TABLE m_victim AS SELECT 1 AS x", 'CREATE SCHEMA "m; drop"')
    name = 'p"; DROP TABLE m_victim; --'
    try:
        for where in (name, f"m; drop.{name}"):
            table = NewTable(tables.url(), where)
            table.check()
            batches = [pa.record_batch({'c"; DROP TABLE m_victim; --': [1, 2]})]
            assert table.write(batches) == 2
            with pytest.raises(ca.OptionError, match="is there already"):
                table.check()
        assert tables.rows("SELECT x FROM m_victim") == [(1,)]
    finally:
        quoted = name.replace('"', '""')
        tables.run(f'DROP TABLE "{quoted}"', 'DROP SCHEMA "m; drop" CASCADE', "DROP TABLE m_victim")


def test_values_that_the_server_has_no_type_for_raise(tables: Postgres, target: str) -> None:
    table = NewTable(tables.url(), target)
    for column, kind in (([2**64 - 1], pa.uint64()), ([1], pa.timestamp("ns"))):
        with pytest.raises(ca.ConversionError, match="'x'"):
            table.write([pa.record_batch({"x": pa.array(column, kind)})])
    assert table.write([pa.record_batch({"x": pa.array([2**62], pa.uint64())})]) == 1
    assert tables.rows(f"SELECT x FROM {target}") == [(2**62,)]


def test_a_new_table_shows_no_password() -> None:
    table = NewTable("postgresql://me:HUSHSECRET@host/db?password=HUSHSECRET", "t")
    assert "HUSHSECRET" not in repr(table) + str(table)

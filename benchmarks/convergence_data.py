"""Data sets for ``convergence.py``: label and features, each in several orders, with rows held out to score.

Made once: a folder a data set, with one Parquet file an order and ``test.parquet``. A row is ``label`` (int64) and
``features`` (a fixed-size list of float32, standardised already).

- *higgs*, *susy*, *epsilon*: two Gaussians of the width and class balance of the paper's data sets, as far apart as
  gives the best possible classifier the accuracy that the paper's models reach.
- *fashion*: Fashion-MNIST. *flights*: was a flight of nycflights13 more than 15 minutes late? *text*: is a piece of
  30 lines of CPython's library from a test? (These three are converted from files, see ``--real``.)
"""

import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import data
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

FORMAT = 1
"""Counts up when what is made changes, so that folders made before are not taken for it."""

ROW_GROUPS = 800
"""About: so that a buffer of 1 % merges eight blocks, the fewest of ``spread``."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows in memory: features float32 [rows, d], labels int64 [rows]."""

    features: Floats
    labels: Ints


@dataclass(frozen=True, slots=True)
class Made:
    """A data set before it is written.

    Attributes
    ----------
    train, test
        Rows to train on, in no order at all, and rows held out.
    orders
        For each order on disk, places of the training rows, int64 [rows].
    """

    train: Rows
    test: Rows
    orders: dict[str, Ints]


@dataclass(frozen=True, slots=True)
class DataSet:
    """How to make a data set.

    Attributes
    ----------
    make
        Makes it, small if asked, from the folder of real data (None for those that need none).
    orders
        Names of its orders on disk.
    real
        Whether it is made from files.
    attainable
        Accuracy of the best possible classifier, where it is known.
    """

    make: Callable[[bool, Path], Made]
    orders: tuple[str, ...]
    real: bool = False
    attainable: float | None = None


def two_gaussians(
    rows: int, test_rows: int, width: int, positive: float, attainable: float, unit_rows: bool = False
) -> Callable[[bool, Path], Made]:
    """Rows of two classes, each normal with the same covariance, of eigenvalues 1, ½, ⅓ and so on.

    The means differ along the first (at most 50) of its axes, in each by as many deviations. So no single step finds
    the best classifier: a model has to weigh the narrow axes more. The axes are turned away from the features.

    Parameters
    ----------
    positive
        Part of the rows of class 1.
    attainable
        Accuracy of the best possible classifier.
    unit_rows
        Scale rows to a length of about 1, as those of the paper's epsilon are.
    """

    def make(quick: bool, real: Path) -> Made:
        from scipy.fft import dct

        rng = np.random.default_rng(0)
        train_rows = 1_000 if quick else rows
        total = train_rows + (2_000 if quick else test_rows)
        # Exactly the asked part, so that chance does not move what a constant answer gets.
        labels = rng.permutation((np.arange(total) < positive * total).astype(np.int64))
        features = rng.standard_normal((total, width), dtype=np.float32)
        informative = min(width, 50)
        shift = apart(positive, attainable) / np.sqrt(informative)
        features[:, :informative] += ((labels - 0.5) * shift).astype(np.float32)[:, None]
        features *= (rng.choice([-1, 1], width) / np.sqrt(np.arange(1, width + 1))).astype(np.float32)
        features = standardised(dct(features, norm="ortho", overwrite_x=True), train_rows)
        if unit_rows:
            features /= np.sqrt(width, dtype=np.float32)
        train, test = Rows(features[:train_rows], labels[:train_rows]), Rows(features[train_rows:], labels[train_rows:])
        return Made(train, test, orders(train.labels, feature=train.features[:, 0]))

    return make


def apart(positive: float, attainable: float) -> float:
    """Distance of two means of unit normals at which the best classifier has the accuracy `attainable`."""
    cdf = NormalDist().cdf
    log_odds = np.log(positive / (1 - positive))
    low, high = 1e-3, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        right = positive * cdf(middle / 2 + log_odds / middle) + (1 - positive) * cdf(middle / 2 - log_odds / middle)
        low, high = (middle, high) if right < attainable else (low, middle)
    return low


def orders(labels: Ints, **keys: npt.NDArray[np.generic]) -> dict[str, Ints]:
    """By the label alone (rows of one label at random), at random, and by each of `keys` (equal keys as they come)."""
    at_random = shuffled(len(labels))
    by_label = at_random[np.argsort(labels[at_random], kind="stable")]
    return {"label": by_label, "shuffled": at_random, **{n: np.argsort(key, kind="stable") for n, key in keys.items()}}


def shuffled(rows: int) -> Ints:
    return np.random.default_rng(1).permutation(rows)


def standardised(features: Floats, train_rows: int) -> Floats:
    """Bring each column to mean 0 and deviation 1 over the first rows, in place."""
    train = features[:train_rows]
    spread = train.std(axis=0, dtype=np.float64)
    features -= train.mean(axis=0, dtype=np.float64).astype(np.float32)
    features /= np.where(spread > 0, spread, 1).astype(np.float32)
    return features


def fashion(quick: bool, real: Path) -> Made:
    """Pixels, all moved and scaled by the same two numbers; the feature is how bright an image is."""

    def read(name: str, rows: int) -> Rows:
        table = pq.read_table(real / f"fashion_mnist_{name}.parquet").slice(0, rows)
        pixels = table["image"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
        return Rows((pixels.astype(np.float32) / 255 - 0.286) / 0.353, table["label"].to_numpy().astype(np.int64))

    train, test = read("train", 2_000 if quick else 60_000), read("t10k", 1_000 if quick else 10_000)
    return Made(train, test, orders(train.labels, feature=train.features.mean(axis=1)))


def flights(quick: bool, real: Path) -> Made:
    """What is known when a flight has left, and whether it comes more than 15 minutes late; as it lies: by time."""
    table = pq.read_table(real / "nycflights13_flights.parquet")
    table = table.filter(pc.field("arr_delay").is_valid())
    labels = (table["arr_delay"].to_numpy() > 15).astype(np.int64)
    delay = np.clip(table["dep_delay"].to_numpy(), -20, 240)
    hour = table["sched_dep_time"].to_numpy() // 100 + table["sched_dep_time"].to_numpy() % 100 / 60
    day_of_year = np.unique(table["month"].to_numpy() * 100 + table["day"].to_numpy(), return_inverse=True)[1]
    carrier = table["carrier"].combine_chunks().dictionary_encode()
    origin = table["origin"].combine_chunks().dictionary_encode()
    columns = [
        delay,
        np.sign(delay) * np.log1p(np.abs(delay)),
        hour,
        hour**2,
        table["distance"].to_numpy(),
        *one_hot(table["month"].to_numpy() - 1),
        *one_hot(day_of_year % 7),
        *one_hot(carrier.indices.to_numpy()),
        *one_hot(origin.indices.to_numpy()),
    ]
    features = np.stack(columns, axis=1).astype(np.float32)
    names = np.array(carrier.dictionary.to_pylist())[carrier.indices.to_numpy()]
    place = shuffled(len(labels))
    held, kept = place < 50_000, place >= (len(place) - 2_000 if quick else len(place) - 100_000)
    features = standardised(np.concatenate([features[kept], features[held]]), int(kept.sum()))
    train = Rows(features[: kept.sum()], labels[kept])
    test = Rows(features[kept.sum() :], labels[held])
    lies = np.zeros(len(train.labels))
    return Made(train, test, orders(train.labels, time=lies, carrier=names[kept], label_time=train.labels))


def one_hot(codes: npt.NDArray[np.integer]) -> Iterator[npt.NDArray[np.bool_]]:
    return (codes == code for code in range(int(codes.max()) + 1))


def text(quick: bool, real: Path) -> Made:
    """Counts of words, hashed to 1,024 columns; a fifth of the files is held out; as it lies: by path."""
    table = pq.read_table(real / "text_cpython_stdlib.parquet").sort_by("path")
    width, lines = 1_024, 30
    word = re.compile(r"\w\w+")
    counts, labels, held = [], [], []
    for path, content in zip(table["path"].to_pylist(), table["text"].to_pylist(), strict=True):
        is_test = bool({"test", "tests"} & set(path.split("/")))
        is_held = zlib.crc32(path.encode()) % 5 == 0
        rows = content.splitlines()
        for first in range(0, len(rows), lines):
            words = word.findall("\n".join(rows[first : first + lines]).lower())
            if words:
                columns = [zlib.crc32(w.encode()) % width for w in words]
                counts.append(np.bincount(columns, minlength=width).astype(np.float32))
                labels.append(int(is_test))
                held.append(is_held)
        if quick and len(counts) > 4_000:
            break
    features = np.log1p(np.stack(counts))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    is_held_out, label = np.array(held), np.array(labels)
    train = Rows(features[~is_held_out], label[~is_held_out])
    test = Rows(features[is_held_out], label[is_held_out])
    return Made(train, test, orders(train.labels, path=np.zeros(len(train.labels))))


SYNTHETIC = ("label", "feature", "shuffled")
DATA_SETS = {
    "higgs": DataSet(two_gaussians(100_000, 50_000, 28, 0.53, 0.64), SYNTHETIC, attainable=0.64),
    "susy": DataSet(two_gaussians(100_000, 50_000, 18, 0.46, 0.79), SYNTHETIC, attainable=0.79),
    "epsilon": DataSet(two_gaussians(40_000, 10_000, 2_000, 0.5, 0.9, unit_rows=True), SYNTHETIC, attainable=0.9),
    "fashion": DataSet(fashion, ("label", "feature", "shuffled"), real=True),
    "flights": DataSet(flights, ("label", "label_time", "time", "carrier", "shuffled"), real=True),
    "text": DataSet(text, ("label", "path", "shuffled"), real=True),
}


def folder_of(folder: Path, name: str, quick: bool) -> Path:
    """Where a data set lies."""
    return folder / f"convergence-{FORMAT}-{name}{'-quick' if quick else ''}"


def made(folder: Path, name: str, quick: bool, real: Path | None) -> Path:
    """Return the folder of a data set, made unless it is there."""

    def write(beside: Path) -> None:
        beside.mkdir()
        found = DATA_SETS[name].make(quick, real or Path())
        write_rows(beside / "test.parquet", found.test, np.arange(len(found.test.labels)), 1)
        for order in DATA_SETS[name].orders:
            write_rows(beside / f"{order}.parquet", found.train, found.orders[order], 200 if quick else ROW_GROUPS)

    return data.made_once(folder_of(folder, name, quick), write)


def write_rows(path: Path, rows: Rows, places: Ints, row_groups: int) -> None:
    """Write rows in the order of `places`, in about so many row groups."""
    width = rows.features.shape[1]
    kind = pa.list_(pa.float32(), width)
    schema = pa.schema([("features", kind), ("label", pa.int64())])
    size = -(-len(places) // row_groups)
    with pq.ParquetWriter(path, schema, compression="zstd", compression_level=1, use_dictionary=False) as writer:
        for first in range(0, len(places), size):
            chosen = places[first : first + size]
            flat = pa.array(rows.features[chosen].ravel())
            columns = [pa.FixedSizeListArray.from_arrays(flat, width), pa.array(rows.labels[chosen])]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def load(path: Path) -> Rows:
    """Read a file whole."""
    file = pq.ParquetFile(path)
    width = file.schema_arrow.field("features").type.list_size
    features = np.empty((file.metadata.num_rows, width), dtype=np.float32)
    labels = np.empty(len(features), dtype=np.int64)
    start = 0
    for batch in file.iter_batches(4_096):
        stop = start + len(batch)
        features[start:stop] = batch["features"].flatten().to_numpy().reshape(-1, width)
        labels[start:stop] = batch["label"].to_numpy()
        start = stop
    return Rows(features, labels)

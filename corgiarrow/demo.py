"""What order does to SGD: one linear model trained on one dataset in several orders.

Each strategy streams the data and trains scikit-learn's ``SGDClassifier`` (its defaults, logistic loss) row
by row in the order that the reader delivers. A part of the rows, chosen by a hash of their place, is held out
to score.
"""

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from corgiarrow.errors import ColumnNotFoundError, MissingExtraError, OptionError
from corgiarrow.index import DEFAULT_BLOCK_BYTES, BlockIndex
from corgiarrow.randomness import mix
from corgiarrow.reader import PROVENANCE, Reader
from corgiarrow.scaling import Floats, Moments, Scaling
from corgiarrow.schemas import is_numeric

STRATEGIES = ("none", "block", "corgipile", "epoch")

_HELD_OUT = 0.2
_HELD_OUT_ROWS = 10_000
"""Held-out rows stay in memory, so there are at most about so many."""
_MAX_CLASSES = 200
"""A linear classifier trains one model a class; more than so many labels are a quantity or an id."""
_EPOCH_BYTES = 2 * 2**30
"""``epoch`` holds all rows in memory; it is left out when they take more."""

_GAP = 0.02
"""Accuracies that differ by less are called equal."""


@dataclass(frozen=True, slots=True)
class Trained:
    """One model.

    Attributes
    ----------
    strategy
        Name of the strategy that made the order.
    accuracy
        Part of the held-out rows that are classified right after each epoch, in [0, 1].
    rows_per_s
        Rows read and trained on a second, without the scoring.
    """

    strategy: str
    accuracy: tuple[float, ...]
    rows_per_s: float

    @property
    def mean_accuracy(self) -> float:
        """Accuracy averaged over the epochs: it counts how fast a model learns as well as how far."""
        return sum(self.accuracy) / len(self.accuracy)


@dataclass(frozen=True, slots=True)
class Demo:
    """What the demo found.

    Attributes
    ----------
    rows, held_out_rows, features, classes
        Of the data.
    blocks, buffer_blocks
        Blocks in all, and those that one buffer of ``corgipile`` merges.
    results
        One model a strategy.
    """

    rows: int
    held_out_rows: int
    features: int
    classes: int
    blocks: int
    buffer_blocks: int
    results: tuple[Trained, ...]

    def conclusion(self) -> str:
        """Say what the accuracies show, averaged over the epochs: those of the last alone are noisy."""
        mean = {r.strategy: r.mean_accuracy for r in self.results}
        first = (
            f"Averaged over the epochs, the model trained in file order gets {mean['none']:.1%} of unseen "
            f"rows right; with CorgiPile, which holds {self.buffer_blocks} of {self.blocks} blocks at a "
            f"time, {mean['corgipile']:.1%}."
        )
        if "epoch" not in mean:
            return f"{first} A full shuffle was left out, since it would hold all rows in memory."
        gap = mean["epoch"] - mean["none"]
        full = f"{first} A full shuffle, which holds every row, gets {mean['epoch']:.1%}"
        if gap < _GAP:
            return f"{full}: the order of this data hardly matters here."
        closed = {name: (mean[name] - mean["none"]) / gap for name in ("corgipile", "block")}
        return (
            f"{full}: CorgiPile closes {closed['corgipile']:.0%} of the gap, whole blocks in random order "
            f"close {closed['block']:.0%}."
        )


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the first pass over the data finds: held-out rows, label values, and each feature's scale."""

    share: float
    classes: npt.NDArray[np.int64]
    scaling: Scaling
    features: Floats
    labels: npt.NDArray[np.int64]

    def scaled(self, features: Floats) -> Floats:
        """Features of mean 0, in rows of about unit length, nulls at the mean: float64 [rows, features]."""
        return np.nan_to_num(self.scaling.apply(features), nan=0.0, posinf=0.0, neginf=0.0)


def demo(
    index: BlockIndex,
    *,
    label: str = "label",
    columns: Sequence[str] | None = None,
    epochs: int = 6,
    batch_size: int = 128,
    buffer_fraction: float = 0.1,
    block_bytes: int | str = DEFAULT_BLOCK_BYTES,
    seed: int = 0,
    threads: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Demo:
    """Train a linear classifier in the orders of :data:`STRATEGIES` and score it after every epoch.

    Parameters
    ----------
    index
        The dataset.
    label
        Column of whole numbers (or booleans) to predict.
    columns
        Columns to predict it from; None for all that hold numbers or fixed-size lists of numbers.
    epochs
        Passes over the data.
    batch_size
        Rows handed to the model at a time; the model steps row by row, so it does not change the result.
    buffer_fraction
        Part of all blocks that a buffer of ``corgipile`` merges (at least one block).
    block_bytes, seed, threads
        As for :class:`Reader`.
    say
        Called with what is being done.

    Raises
    ------
    MissingExtraError
        scikit-learn is not installed.
    ColumnNotFoundError
        A column is not in the data.
    OptionError
        The label is no class number, or no column can serve as a feature.
    """
    classifier = _classifier()
    if epochs < 1:
        raise OptionError(f"epochs={epochs} must be at least 1")
    if not 0 < buffer_fraction <= 1:
        raise OptionError(f"buffer_fraction={buffer_fraction} must be in (0, 1]")
    names = _feature_columns(index, label, columns)
    options: dict[str, Any] = {
        "columns": [*names, label],
        "batch_size": batch_size,
        "block_bytes": block_bytes,
        "seed": seed,
        "threads": threads,
        "provenance": True,
    }
    say("reading once to find labels and scales")
    # One block at a time suffices for file order, and keeps memory small.
    reader = Reader(index, **{**options, "shuffle": "none", "buffer_blocks": 1})
    facts = _first_pass(reader, names, label)
    blocks = len(reader.source.block_rows)
    buffer_blocks = max(round(buffer_fraction * blocks), 1)
    buffers = {"none": 1, "block": 1, "corgipile": buffer_blocks, "epoch": blocks}
    if int(reader.source.block_bytes.sum()) > _EPOCH_BYTES:
        del buffers["epoch"]
    results = []
    for strategy, held in buffers.items():
        say(f"training in the order of {strategy}")
        reader = Reader(index, **{**options, "shuffle": strategy, "buffer_blocks": held})
        results.append(_train(reader, classifier, facts, names, label, epochs))
    return Demo(
        reader.num_rows,
        len(facts.labels),
        facts.features.shape[1],
        len(facts.classes),
        blocks,
        buffer_blocks,
        tuple(results),
    )


def _classifier() -> Any:
    try:
        from sklearn.linear_model import SGDClassifier
    except ImportError:
        raise MissingExtraError("the demo trains with scikit-learn: pip install 'corgiarrow[demo]'") from None
    return SGDClassifier


def _feature_columns(index: BlockIndex, label: str, columns: Sequence[str] | None) -> list[str]:
    schema = index.schema
    if label not in schema.names:
        raise ColumnNotFoundError(
            f"label={label!r} is no column of the data: choose the label from {', '.join(schema.names)}"
        )
    kind = schema.field(label).type
    if not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise OptionError(
            f"label={label!r} is of type {kind}, but a class must be a whole number or a boolean: name "
            "another column"
        )
    asked = [c.field for c in index.columns(columns)]
    names = [field.name for field in asked]
    unfit = [field.name for field in asked if field.name != label and not is_numeric(field.type)]
    if columns is not None and unfit:
        raise OptionError(f"columns {unfit} hold no numbers, nor fixed-size lists of numbers: leave them out")
    names = [n for n in names if n != label and n not in unfit]
    if not names:
        raise OptionError(f"no column beside label={label!r} holds numbers or fixed-size lists of numbers")
    return names


def _first_pass(reader: Reader, names: Sequence[str], label: str) -> _Facts:
    if not reader.num_rows:
        raise OptionError("the data has no rows to train on")
    share = min(_HELD_OUT, _HELD_OUT_ROWS / reader.num_rows)
    classes = np.empty(0, dtype=np.int64)
    moments: Moments | None = None
    kept, kept_labels = [], []
    for batch in reader:
        features, labels = _features(batch, names), _labels(batch, label)
        classes = np.union1d(classes, labels)
        if len(classes) > _MAX_CLASSES:
            raise OptionError(
                f"label={label!r} has more than {_MAX_CLASSES} values, so it is no class: name another column"
            )
        held = _held_out(batch, share)
        kept.append(features[held])
        kept_labels.append(labels[held])
        moments = moments or Moments(features.shape[1])
        moments.update(features)
    if len(classes) < 2:
        raise OptionError(f"label={label!r} has a single value, {classes[0]}: there is nothing to learn")
    found = np.concatenate(kept)
    if moments is None or not 0 < len(found) < reader.num_rows:
        raise OptionError(f"the data has {reader.num_rows} rows, too few to hold some out: give it more")
    return _Facts(share, classes, moments.scaling(unit_rows=True), found, np.concatenate(kept_labels))


def _train(
    reader: Reader, classifier: Any, facts: _Facts, names: Sequence[str], label: str, epochs: int
) -> Trained:
    # Without shuffle=False the model would mix the rows of each batch once more.
    model = classifier(loss="log_loss", shuffle=False, random_state=0)
    scored = facts.scaled(facts.features)
    accuracy = []
    taken_s = 0.0
    for _ in range(epochs):
        began = time.perf_counter()
        for batch in reader:
            train = ~_held_out(batch, facts.share)
            if train.any():
                features = facts.scaled(_features(batch, names)[train])
                model.partial_fit(features, _labels(batch, label)[train], classes=facts.classes)
        taken_s += time.perf_counter() - began
        accuracy.append(float(model.score(scored, facts.labels)))
    return Trained(reader.plan().strategy.name, tuple(accuracy), reader.stats.rows / taken_s)


def _features(batch: pa.RecordBatch, names: Sequence[str]) -> Floats:
    """Columns side by side, NaN where null, float64 [rows, features]."""
    return np.concatenate([_numbers(batch.column(name)) for name in names], axis=1)


def _numbers(column: pa.Array) -> Floats:
    if isinstance(column, pa.ExtensionArray):
        return _numbers(column.storage)
    if pa.types.is_fixed_size_list(column.type):
        # `flatten` would leave out null rows, and `values` knows nothing of a slice.
        size = column.type.list_size
        values = column.values.slice(column.offset * size, len(column) * size)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        return np.where(valid[:, None], _numbers(values).reshape(len(column), -1), np.nan)
    numbers: Floats = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    return numbers[:, None]


def _labels(batch: pa.RecordBatch, label: str) -> npt.NDArray[np.int64]:
    column = batch.column(label)
    if column.null_count:
        raise OptionError(f"label={label!r} has nulls: drop those rows, or name another column")
    return np.asarray(pc.cast(column, pa.int64(), safe=False).to_numpy(zero_copy_only=False))


def _held_out(batch: pa.RecordBatch, share: float) -> npt.NDArray[np.bool_]:
    """Whether each row is held out: a function of where it lies, so the same in every order, bool [rows]."""
    file_name, group, row = (batch.column(name) for name in PROVENANCE)
    files = file_name.dictionary_encode()
    codes = np.array([zlib.crc32(path.encode()) for path in files.dictionary.to_pylist()], dtype=np.uint64)
    bits = mix(codes[files.indices.to_numpy()])
    for part in (group, row):
        bits = mix(bits + part.to_numpy().astype(np.uint64))
    chosen: npt.NDArray[np.bool_] = bits < np.uint64(share * 2**64)
    return chosen

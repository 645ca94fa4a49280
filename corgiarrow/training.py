"""Training by ``partial_fit``: passes over a reader, scores after each, early stopping, a place to save a checkpoint.

What learns is any object of scikit-learn's protocol (``partial_fit``, ``predict``); nothing here imports a framework.
"""

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corgiarrow.errors import OptionError
from corgiarrow.features import MAX_FOUND_DIMENSION, Array, FeatureMatrix, Labels, label_type
from corgiarrow.opening import Data
from corgiarrow.reader import Reader, Slice
from corgiarrow.scaling import Moments

MAX_CLASSES = 1_000
"""A linear model trains weights for each class; a label of more values is a quantity or an id."""

_SCANNED_VALUES = 2**19
"""Features of a batch that is looked at or scored, about."""

_CONVERTED_VALUES = 2**17
"""Features of neighbouring batches that are made together, about."""


class Score(NamedTuple):
    """How well a model does on some rows.

    Attributes
    ----------
    value
        Part of the rows that are classified right, or R² where a quantity is predicted.
    loss
        Mean loss, where it is known.
    """

    value: float
    loss: float | None = None


@dataclass(frozen=True, slots=True)
class Epoch:
    """One pass of training.

    Attributes
    ----------
    epoch
        Its number, from 0.
    score
        Score after it; None where there is nothing to score on.
    rows, taken_s
        Rows trained on, and the seconds that took, without the scoring. After a resume the rest of the epoch.
    """

    epoch: int
    score: Score | None
    rows: int
    taken_s: float

    @property
    def rows_per_s(self) -> float:
        """Rows read and trained on a second."""
        return self.rows / self.taken_s if self.taken_s else 0.0


@dataclass(frozen=True, slots=True)
class Fitted:
    """What training gave.

    Attributes
    ----------
    estimator
        The model: of the best epoch where `patience` was given, else as it was after the last.
    epochs
        What each epoch gave.
    best_epoch
        Number of the epoch of the highest score; of the last where there are none.
    stopped_early
        Whether `patience` ended the training.
    """

    estimator: Any
    epochs: tuple[Epoch, ...]
    best_epoch: int
    stopped_early: bool

    @property
    def rows_per_s(self) -> float:
        """Rows read and trained on a second, over all epochs."""
        taken_s = sum(e.taken_s for e in self.epochs)
        return sum(e.rows for e in self.epochs) / taken_s if taken_s else 0.0


def train(
    estimator: Any,
    reader: Reader,
    features: FeatureMatrix,
    labels: Callable[[Any], Array] | None,
    *,
    epochs: int,
    classes: Array | None = None,
    score: Callable[[Any], Score] | None = None,
    patience: int | None = None,
    tol: float = 1e-4,
    learning_rate: Callable[[int], float] | None = None,
    after_batch: Callable[[Any], None] | None = None,
    after_epoch: Callable[[Epoch], None] | None = None,
) -> Fitted:
    """Train until the reader has gone through `epochs` epochs.

    Parameters
    ----------
    estimator
        What to train, in place.
    reader
        Where batches come from; it goes on from its position.
    features, labels
        What of a batch the estimator gets.
    epochs, classes, score, patience, tol, learning_rate, after_batch, after_epoch
        See :func:`corgiarrow.sklearn.fit`.

    Raises
    ------
    OptionError
        An option is out of its bounds.
    """
    _check(reader, epochs, patience, score, estimator, learning_rate)
    known = {} if classes is None else {"classes": classes}
    done: list[Epoch] = []
    best = -np.inf
    best_model, best_epoch, waited = estimator, reader.epoch, 0
    while reader.epoch < epochs and not (patience is not None and waited >= patience):
        number, rows, taken_s = reader.epoch, 0, 0.0
        if learning_rate is not None:
            estimator.eta0 = learning_rate(number)
        began = time.perf_counter()
        with closing(reader.slices()) as slices:
            for matrix, wanted in _arrays(slices, features, labels):
                if wanted is None:
                    estimator.partial_fit(matrix)
                else:
                    estimator.partial_fit(matrix, wanted, **known)
                rows += matrix.shape[0]
                if after_batch is not None:
                    taken_s += time.perf_counter() - began
                    after_batch(estimator)
                    began = time.perf_counter()
        taken_s += time.perf_counter() - began
        done.append(Epoch(number, None if score is None else score(estimator), rows, taken_s))
        found = done[-1].score
        if found is None or found.value > best + tol:
            best, best_epoch, waited = (-np.inf if found is None else found.value), number, 0
            best_model = copy.deepcopy(estimator) if patience is not None else estimator
        else:
            waited += 1
        if after_epoch is not None:
            after_epoch(done[-1])
    if patience is None and score is not None:
        best_epoch = max(done, key=lambda e: (e.score or Score(-np.inf)).value).epoch
    return Fitted(best_model, tuple(done), best_epoch, bool(patience is not None and waited >= patience))


def _arrays(
    slices: Iterable[Slice], features: FeatureMatrix, labels: Callable[[Any], Array] | None
) -> Iterator[tuple[Any, Array | None]]:
    """Yield matrix and labels of each batch; those of neighbouring batches are made together."""
    most = max(_CONVERTED_VALUES // features.row_values, 1)
    made: dict[int, tuple[pa.RecordBatch, int, Any, Array | None]] = {}
    for rows, start, stop, stream in slices:
        known, first, matrix, wanted = made.get(stream, (None, 0, np.empty((0, 0)), None))
        if known is not rows or not first <= start or stop > first + matrix.shape[0]:
            first = start
            ahead = rows.slice(start, max(stop - start, most))
            matrix, wanted = features(ahead), None if labels is None else labels(ahead)
            made[stream] = (rows, first, matrix, wanted)
        if stop == rows.num_rows:
            # So that rows which were all delivered do not stay while the next are waited for.
            made.pop(stream, None)
        del known, rows
        yield matrix[start - first : stop - first], None if wanted is None else wanted[start - first : stop - first]


def _check(
    reader: Reader,
    epochs: int,
    patience: int | None,
    score: object,
    estimator: Any,
    learning_rate: object,
) -> None:
    if not isinstance(epochs, int) or epochs < 1:
        raise OptionError(f"epochs={epochs!r} must be a whole number of at least 1")
    if reader.epoch >= epochs:
        raise OptionError(
            f"epochs={epochs} are done already: the reader is at epoch {reader.epoch}; give more epochs, or begin anew "
            "by reader.set_epoch(0)"
        )
    if not reader.num_rows:
        raise OptionError("the data has no rows to train on")
    if patience is not None and (patience < 1 or score is None):
        raise OptionError(f"patience={patience} must be at least 1, and goes with held_out=")
    if learning_rate is not None:
        schedule = getattr(estimator, "learning_rate", "constant")
        if not hasattr(estimator, "eta0") or schedule != "constant":
            raise OptionError(
                f"learning_rate= sets eta0 at the start of each epoch, but this {type(estimator).__name__} has no eta0 "
                f"that stays as it is (its learning_rate is {schedule!r}): make it with learning_rate='constant'"
            )


def step_decay(eta0: float, decay: float = 0.95) -> Callable[[int], float]:
    """Return the step size of each epoch, ``eta0 · decay^epoch``: the schedule of the paper's experiments."""
    return lambda epoch: eta0 * decay**epoch


class Values:
    """The values of a label, collected over batches.

    Parameters
    ----------
    label
        Name of the column.
    kind
        Its type.
    """

    def __init__(self, label: str, kind: pa.DataType):
        self._label = label
        self._found = pa.array([], kind.value_type if pa.types.is_dictionary(kind) else kind)

    def update(self, column: pa.Array) -> None:
        """Add the values of a batch.

        Raises
        ------
        OptionError
            There are more than :data:`MAX_CLASSES`.
        """
        values = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
        self._found = pa.concat_arrays([self._found, values.unique()]).unique()
        if len(self._found) > MAX_CLASSES:
            raise OptionError(
                f"label={self._label!r} has more than {MAX_CLASSES} values: it is no class; predict it as a quantity "
                "(a regressor, --model linear), or name another column"
            )

    def classes(self) -> list[Any]:
        """Return the values, sorted, without null.

        Raises
        ------
        OptionError
            There are fewer than two, or they cannot be classes.
        """
        found = self._found.drop_null().to_pylist()
        if not all(isinstance(value, bool | int | str | float) and value == value for value in found):
            raise OptionError(
                f"label={self._label!r} is of type {self._found.type}, with NaN or values such as {found[:1]}: a class "
                "must be a whole number, a boolean, a text or a finite number"
            )
        if len(found) < 2:
            raise OptionError(f"label={self._label!r} has the values {found} only: there is nothing to learn")
        return sorted(found)


def find_classes(reader: Reader, label: str) -> list[Any]:
    """Read the label column once, and return its values, sorted.

    Raises
    ------
    OptionError
        They are no classes.
    ColumnNotFoundError
        The column is not there.
    """
    values = Values(label, label_type(reader.schema, label))
    scan = reader.in_file_order([label], batch_size=65_536)
    with closing(scan.slices()) as slices:
        for part in slices:
            values.update(part.batch.column(label))
    return values.classes()


def find_dimension(reader: Reader, sparse: Sequence[str]) -> int:
    """Read the indices of sparse rows once, and return one more than the greatest.

    Parameters
    ----------
    reader
        The data; its position stays.
    sparse
        The list columns of indices and of values.

    Raises
    ------
    OptionError
        There is no index, or one beyond :data:`corgiarrow.features.MAX_FOUND_DIMENSION`; or the columns do not fit.
    ColumnNotFoundError
        A column is not there.
    """
    FeatureMatrix(reader.schema, sparse=sparse)
    name, greatest = sparse[0], -1
    scan = reader.in_file_order([name], batch_size=65_536)
    with closing(scan.slices()) as slices:
        for part in slices:
            found = pc.max(pc.list_flatten(part.batch.column(name))).as_py()
            greatest = max(greatest, -1 if found is None else found)
    if not 0 <= greatest < MAX_FOUND_DIMENSION:
        what = "no index that is not negative" if greatest < 0 else f"the index {greatest}"
        raise OptionError(f"column {name!r} has {what}: give dimension= to learn from it all the same")
    return int(greatest) + 1


def rows_to_scan(row_values: int) -> int:
    """Rows of a batch with so many values each, for a pass beside the training."""
    return max(min(_SCANNED_VALUES // row_values, 65_536), 1)


def held_out_score(
    held_out: Reader | Data,
    features: FeatureMatrix,
    labels: Labels,
    loss: Callable[[Any, Array, Array], Array] | None = None,
) -> Callable[[Any], Score]:
    """Return a function that scores a model on other rows, which are read anew for each score.

    Parameters
    ----------
    held_out
        A reader, or what :class:`Reader` takes.
    features, labels
        What the model was trained on.
    loss
        Gives the loss of each row from model, matrix and labels.
    """
    columns = [*features.columns, labels.name]
    rows = rows_to_scan(features.row_values)
    reader = (
        held_out.in_file_order(columns, batch_size=rows)
        if isinstance(held_out, Reader)
        else Reader(held_out, columns=columns, shuffle="none", batch_size=rows)
    )
    if not reader.num_rows:
        raise OptionError("the held-out data has no rows to score on")

    def score(model: Any) -> Score:
        with closing(reader.slices()) as slices:
            return score_rows(model, ((features(s.batch), labels(s.batch)) for s in slices), labels, loss)

    return score


def score_rows(
    model: Any,
    rows: Iterable[tuple[Any, Array]],
    labels: Labels,
    loss: Callable[[Any, Array, Array], Array] | None = None,
) -> Score:
    """Score a model on some matrices and their labels: accuracy for classes, R² for quantities."""
    total, lost = 0, 0.0
    tally = Tally(labels.classes is not None)
    for matrix, wanted in rows:
        tally.update(model.predict(matrix), wanted)
        total += len(wanted)
        if loss is not None:
            lost += float(loss(model, matrix, wanted).sum())
    return Score(tally.value(), lost / total if loss is not None else None)


class Tally:
    """Accuracy, or R² of a quantity, over batches."""

    def __init__(self, of_classes: bool):
        self._of_classes = of_classes
        self.rows = 0
        self._right = 0.0
        self._squares = 0.0
        self._moments = Moments(1)

    def update(self, predicted: Array, wanted: Array) -> None:
        """Add predictions and labels, ``[rows]``."""
        self.rows += len(wanted)
        if self._of_classes:
            self._right += int((predicted == wanted).sum())
        else:
            self._squares += float(((predicted - wanted) ** 2).sum())
            self._moments.update(wanted[:, None])

    def value(self) -> float:
        """Return accuracy or R²; NaN where there were no rows, 0 for the R² of labels that are all the same."""
        if not self.rows:
            return float("nan")
        if self._of_classes:
            return self._right / self.rows
        spread = float(self._moments.squares[0])
        return 1 - self._squares / spread if spread else float(not self._squares)

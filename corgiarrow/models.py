"""Models of the command line: trained on a reader, and what predicts with them. The paper's TRAIN BY and PREDICT BY."""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corgiarrow.arrays.options import ColumnOptions
from corgiarrow.errors import ColumnNotFoundError, CorgiArrowError, MissingExtraError, OptionError
from corgiarrow.features import (
    Array,
    FeatureMatrix,
    Labels,
    check_choice,
    feature_names,
    hole,
    label_type,
    row_values,
)
from corgiarrow.linear import KINDS, LinearModel, check_kind, import_torch, losses
from corgiarrow.opening import Data
from corgiarrow.predictions import write_predictions
from corgiarrow.reader import Reader
from corgiarrow.scaling import Moments, Scaling, Sizes
from corgiarrow.schemas import is_numeric
from corgiarrow.sources.postgres import NewTable
from corgiarrow.training import (
    Epoch,
    Fitted,
    Score,
    Tally,
    Values,
    held_out_score,
    rows_to_scan,
    score_rows,
    step_decay,
    train,
)

PER_ROW = "per-row"
OPTIMIZERS = (PER_ROW, "sgd", "adam")
_ETA0 = {PER_ROW: 0.1, "sgd": 1.0, "adam": 0.01}
_ETA0_OF = {("linear", PER_ROW): 0.01, ("softmax", "sgd"): 5.0, ("softmax", "adam"): 0.03}
"""Step sizes by optimizer, for rows that are about 1 long, and where a kind of model takes others (measured)."""
NULLS = ("error", "mean")

_SAMPLE_ROWS = 10_000
_SAMPLE_VALUES = 2**22
"""Rows of the training data, and features of them, at most, that are scored where none are held out."""


@dataclass(frozen=True, slots=True)
class Model:
    """A trained model, and all that predicting with it needs.

    Attributes
    ----------
    kind
        One of :data:`corgiarrow.linear.KINDS`.
    optimizer
        How it was trained, one of :data:`OPTIMIZERS`.
    estimator
        A :class:`LinearModel`, or scikit-learn's for ``"per-row"``.
    features
        Names of the columns that it learnt from, in order; of sparse rows those of indices and of values.
    label
        Name of the column that it predicts.
    classes
        Values of the label, sorted; None where it is a number.
    scaling
        What the features are scaled by.
    label_scaling
        What the label is scaled by where it is a number, else None.
    nulls
        ``"error"``, or ``"mean"``: what to do with nulls, NaN and infinities of features.
    sparse
        Whether it learnt from sparse rows, of as many columns as `scaling` has.
    """

    kind: str
    optimizer: str
    estimator: Any
    features: tuple[str, ...]
    label: str
    classes: tuple[Any, ...] | None
    scaling: Scaling
    label_scaling: Scaling | None
    nulls: str
    sparse: bool = False

    @property
    def row_values(self) -> int:
        """Values of a row of its matrix, about."""
        return row_values(len(self.scaling.mean), sparse=self.sparse)

    @property
    def has_probabilities(self) -> bool:
        """Whether it tells how probable each class is."""
        return self.kind in ("logistic", "softmax")

    def matrix(self, schema: pa.Schema) -> FeatureMatrix:
        """Return what makes scaled features of batches of a schema.

        Raises
        ------
        ColumnNotFoundError, OptionError
            A feature is not there, or not what the model was trained on.
        """
        options = cast(ColumnOptions, {"nulls": self.nulls})
        missing = [name for name in self.features if name not in schema.names]
        if missing:
            raise ColumnNotFoundError(
                f"the model predicts {self.label!r} from columns of which the data lacks {missing}: it has "
                f"{', '.join(schema.names[:50])}"
            )
        if self.sparse:
            return FeatureMatrix(schema, sparse=self.features, scaling=self.scaling, **options)
        found = FeatureMatrix(schema, self.features, scaling=self.scaling, **options)
        if found.width != len(self.scaling.mean):
            raise OptionError(
                f"the model was trained on {len(self.scaling.mean)} features, but here {', '.join(self.features[:5])}, "
                f"… make {found.width}: lists of another length?"
            )
        return found

    def predict(self, matrix: Any) -> Array:
        """Return predictions, ``[rows]``, for scaled features."""
        found: Array = self.estimator.predict(matrix)
        if self.label_scaling is not None:
            return self.label_scaling.undo(found[:, None])[:, 0]
        return found


@dataclass(frozen=True, slots=True)
class Trained:
    """What :func:`train_model` gave.

    Attributes
    ----------
    model
        The model.
    fitted
        What each epoch gave.
    """

    model: Model
    fitted: Fitted


@dataclass(frozen=True, slots=True)
class PredictedBy:
    """What :func:`predict` wrote.

    Attributes
    ----------
    rows
        Rows written.
    score
        Accuracy or R² where the data has the label, over the rows where it is not null; else None.
    """

    rows: int
    score: float | None


def train_model(
    reader: Reader,
    *,
    label: str,
    kind: str,
    features: Sequence[str] | None = None,
    sparse: Sequence[str] | None = None,
    dimension: int | None = None,
    optimizer: str | None = None,
    epochs: int = 5,
    eta0: float | None = None,
    decay: float = 0.95,
    l2: float = 0.0,
    nulls: str = "error",
    held_out: Reader | Data | None = None,
    patience: int | None = None,
    tol: float = 1e-4,
    say: Callable[[str], None] = lambda text: None,
    after_epoch: Callable[[Epoch], None] | None = None,
) -> Trained:
    """Train a linear model on a reader of any source.

    One pass in file order finds means and deviations of the features, and the classes; the reader then gives one pass
    an epoch. Where a number is predicted, it is scaled as well. Sparse rows are not centred, but divided by the
    greatest absolute value of each column.

    Parameters
    ----------
    reader
        The rows to train on.
    label
        Column to predict.
    kind
        ``"logistic"`` or ``"svm"`` (two classes), ``"softmax"`` (two or more), ``"linear"`` (a number).
    features
        Columns to predict it from; None for all that hold numbers or fixed-size lists of them.
    sparse
        Instead of `features`, the two list columns of sparse rows: indices and values.
    dimension
        Columns of sparse rows; None for one more than the greatest index that the first pass finds. A greater one
        later, in held-out rows or in those to predict, raises.
    optimizer
        ``"per-row"`` (scikit-learn; the default but for softmax), ``"sgd"`` (torch, a step for each batch; that of
        softmax) or ``"adam"``.
    epochs, held_out, patience, tol, after_epoch
        As for :func:`corgiarrow.sklearn.fit`.
    eta0
        Step size of the first epoch; None for one that suits the optimizer. Features are scaled so that
        rows are about 1 long.
    decay
        Factor of the step size from epoch to epoch.
    l2
        Half of it times the square of the weights is added to the loss.
    nulls
        What to do with nulls, NaN and infinities of features: ``"error"``, or ``"mean"``, which puts the mean there.
    say
        Called with what is being done.

    Raises
    ------
    OptionError
        An option is out of its bounds, the label does not fit the kind of model, or the steps are too large.
    ColumnNotFoundError
        A column is not there.
    ConversionError
        A label is null, or a feature is and nulls are errors.
    """
    optimizer = check_options(kind, optimizer, nulls, eta0, decay, l2, patience, held_out is not None)
    if features is None and sparse is None:
        features = feature_names(reader.schema, label)
    check_choice(features, sparse, dimension)
    columns = features if sparse is None else sparse
    if columns is not None and label in columns:
        raise OptionError(f"features={list(columns)} hold label={label!r}, which the model would just copy")
    label_type(reader.schema, label)
    eta0 = eta0 or _ETA0_OF.get((kind, optimizer), _ETA0[optimizer])
    estimator = _estimator(kind, optimizer, eta0, l2)
    say("reading once to find scales")
    unscaled = FeatureMatrix(
        reader.schema, features, sparse=sparse, dimension=dimension, **cast(ColumnOptions, {"nulls": nulls})
    )
    scales = Moments(unscaled.width) if sparse is None else Sizes(dimension)
    found = _survey(reader, unscaled, scales, label, kind)
    model = Model(
        kind=kind,
        optimizer=optimizer,
        estimator=estimator,
        features=tuple(columns or ()),
        label=label,
        classes=found.classes,
        scaling=found.scaling,
        label_scaling=found.label_scaling,
        nulls=nulls,
        sparse=sparse is not None,
    )
    matrix = model.matrix(reader.schema)
    labels = Labels(reader.schema, label, found.classes, scaling=found.label_scaling)

    def loss(estimator: Any, rows: Any, wanted: Array) -> Array:
        scores = estimator.predict(rows) if kind == "linear" else estimator.decision_function(rows)
        return losses(kind, scores, wanted, labels.classes)

    if held_out is not None:
        on_rows = held_out_score(held_out, matrix, labels, loss)
    else:
        sample = [(matrix(batch), labels(batch)) for batch in found.sample]
        on_rows = partial(score_rows, rows=sample, labels=labels, loss=loss)

    def score(estimator: Any) -> Score:
        with np.errstate(over="ignore", invalid="ignore"):
            found = on_rows(estimator) if np.isfinite(estimator.coef_).all() else Score(np.nan)
        if not np.isfinite([found.value, found.loss or 0.0]).all():
            raise _diverged(eta0)
        return found

    say(f"training {kind} by {optimizer} steps on {matrix.width} features")
    try:
        fitted = train(
            estimator,
            reader,
            matrix,
            labels,
            epochs=epochs,
            classes=labels.classes,
            score=score,
            patience=patience,
            tol=tol,
            learning_rate=step_decay(eta0, decay),
            after_epoch=after_epoch,
        )
    except ValueError as error:
        # scikit-learn's word for weights that grew beyond all bounds.
        if "over" not in str(error) or isinstance(error, CorgiArrowError):
            raise
        raise _diverged(eta0) from None
    return Trained(replace(model, estimator=fitted.estimator), fitted)


def predict(
    model: Model,
    reader: Reader,
    out: str | os.PathLike[str] | NewTable,
    *,
    keep: Sequence[str] = (),
    probabilities: bool = False,
) -> PredictedBy:
    """Write a prediction for each row of a reader to Parquet, as :func:`corgiarrow.sklearn.predict` does.

    Parameters
    ----------
    model
        What predicts.
    reader
        The rows, in file order. Where it has the label too, predictions are compared with it.
    out, keep, probabilities
        As for :func:`corgiarrow.sklearn.predict`.

    Raises
    ------
    OptionError, ColumnNotFoundError, ConversionError
        As for :func:`corgiarrow.sklearn.predict`; or the data does not fit the model.
    """
    if probabilities and not model.has_probabilities:
        raise OptionError(f"a model of kind={model.kind!r} gives no probabilities: train 'logistic' or 'softmax'")
    matrix = model.matrix(reader.schema)
    truth = _truth(model, reader.schema)
    tally = Tally(model.classes is not None)

    def of_batch(batch: pa.RecordBatch) -> tuple[Array, Array | None]:
        rows = matrix(batch)
        predicted = model.predict(rows)
        if truth is not None:
            known, wanted = truth(batch.column(model.label))
            tally.update(predicted[known], wanted)
        return predicted, model.estimator.predict_proba(rows) if probabilities else None

    written = write_predictions(reader, out, of_batch, keep=keep, classes=model.classes)
    return PredictedBy(written.rows, tally.value() if tally.rows else None)


def _truth(model: Model, schema: pa.Schema) -> Callable[[pa.Array], tuple[Array, Array]] | None:
    """Return what finds which rows of a label column are known, and their values; None where it cannot be compared."""
    if model.label not in schema.names:
        return None
    kind = label_type(schema, model.label)
    if model.classes is None:
        if not is_numeric(kind) or pa.types.is_fixed_size_list(kind):
            return None

        def numbers(column: pa.Array) -> tuple[Array, Array]:
            found = pc.cast(column, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
            known = np.isfinite(found)
            return known, found[known]

        return numbers
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    values = pa.array(model.classes)
    if pa.types.is_string(values.type) != (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return None
    try:
        values = values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    # A value that the model has never seen is never predicted.
    classes = np.array([*model.classes, None], dtype=object)

    def of_classes(column: pa.Array) -> tuple[Array, Array]:
        column = column.dictionary_decode() if isinstance(column, pa.DictionaryArray) else column
        codes = pc.fill_null(pc.index_in(column, value_set=values), len(values)).to_numpy()
        known = column.is_valid().to_numpy(zero_copy_only=False)
        return known, classes[codes[known]]

    return of_classes


@dataclass(frozen=True, slots=True)
class _Survey:
    """What one pass in file order finds; `sample` holds some rows, each as likely as another."""

    scaling: Scaling
    label_scaling: Scaling | None
    classes: tuple[Any, ...] | None
    sample: list[pa.RecordBatch]


def _survey(reader: Reader, matrix: FeatureMatrix, scales: Moments | Sizes, label: str, kind: str) -> _Survey:
    numbers = Labels(reader.schema, label, None) if kind == "linear" else None
    values = Values(label, label_type(reader.schema, label))
    label_moments = Moments(1)
    columns = [*matrix.columns, label]
    scan = reader.in_file_order(columns, batch_size=rows_to_scan(matrix.row_values))
    if not scan.num_rows:
        raise OptionError("the data has no rows to train on")
    size = min(_SAMPLE_ROWS, max(_SAMPLE_VALUES // matrix.row_values, 1), scan.num_rows)
    chosen = np.sort(np.random.default_rng(0).choice(scan.num_rows, size, replace=False))
    sample: list[pa.RecordBatch] = []
    first = 0
    with closing(scan.slices()) as slices:
        for part in slices:
            batch = part.batch.select(columns)
            scales.update(matrix(batch))
            if numbers is not None:
                label_moments.update(numbers(batch)[:, None])
            else:
                if batch.column(label).null_count:
                    raise hole(label, f"{batch.column(label).null_count} nulls")
                values.update(batch.column(label))
            begin, end = np.searchsorted(chosen, [first, first + batch.num_rows])
            sample.append(batch.take(pa.array(chosen[begin:end] - first)))
            first += batch.num_rows
    classes = None if kind == "linear" else tuple(values.classes())
    if classes is not None:
        check_kind(kind, classes)
    label_scaling = label_moments.scaling() if classes is None else None
    return _Survey(scales.scaling(unit_rows=True), label_scaling, classes, [b for b in sample if b.num_rows])


def _estimator(kind: str, optimizer: str, eta0: float, l2: float) -> Any:
    if optimizer != PER_ROW:
        import_torch()
        return LinearModel(kind, optimizer=optimizer, eta0=eta0, l2=l2)
    try:
        from sklearn.linear_model import SGDClassifier, SGDRegressor
    except ImportError:
        raise MissingExtraError("per-row steps go through scikit-learn: pip install 'corgiarrow[sklearn]'") from None

    options = {"alpha": l2, "eta0": eta0, "learning_rate": "constant", "shuffle": False, "random_state": 0}
    if kind == "linear":
        return SGDRegressor(**options)
    return SGDClassifier(loss="log_loss" if kind == "logistic" else "hinge", **options)


def check_options(
    kind: str,
    optimizer: str | None,
    nulls: str,
    eta0: float | None,
    decay: float,
    l2: float,
    patience: int | None,
    held_out: bool,
) -> str:
    """Check options of :func:`train_model` that need no data, and return the optimizer, chosen where it is not given.

    Raises
    ------
    OptionError
        One is out of its bounds.
    """
    optimizer = optimizer or ("sgd" if kind == "softmax" else PER_ROW)
    for name, value, allowed in (
        ("model", kind, KINDS),
        ("optimizer", optimizer, OPTIMIZERS),
        ("nulls", nulls, NULLS),
    ):
        if value not in allowed:
            raise OptionError(f"{name}={value!r} must be one of: {', '.join(allowed)}")
    if kind == "softmax" and optimizer == PER_ROW:
        raise OptionError(
            "softmax regression steps for each batch: choose optimizer 'sgd' or 'adam', and batch_size=1 for steps "
            "per row"
        )
    if not (eta0 is None or 0 < eta0 < np.inf) or not 0 < decay <= 1 or not 0 <= l2 < np.inf:
        raise OptionError(f"eta0={eta0} must be above 0, decay={decay} in (0, 1], l2={l2} at least 0")
    if patience is not None and not held_out:
        raise OptionError("patience stops by the score on held-out rows: give held-out rows as well")
    return optimizer


def _diverged(eta0: float) -> OptionError:
    return OptionError(f"the weights grew beyond all bounds: take smaller steps than eta0={eta0}")

"""scikit-learn's estimators, trained on a reader: the SGD operator of the paper.

``fit`` is its TRAIN BY: it pulls shuffled rows, lets the model step, and goes through the data again for each epoch;
``predict`` is its PREDICT BY.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, Unpack, cast

import numpy as np
import pyarrow as pa

from corgiarrow.arrays.options import ColumnOptions
from corgiarrow.errors import MissingExtraError, OptionError
from corgiarrow.features import Array, FeatureMatrix, Labels, check_choice
from corgiarrow.opening import Data
from corgiarrow.predictions import Predicted, write_predictions
from corgiarrow.reader import Reader
from corgiarrow.scaling import Moments, Scaling, Sizes
from corgiarrow.sources.postgres import NewTable
from corgiarrow.training import (
    Epoch,
    Fitted,
    Score,
    find_classes,
    find_dimension,
    held_out_score,
    rows_to_scan,
    step_decay,
    train,
)

try:
    from sklearn.base import is_classifier
except ImportError:
    raise MissingExtraError("this trains with scikit-learn: pip install 'corgiarrow[sklearn]'") from None

__all__ = [
    "Epoch",
    "Fitted",
    "Predicted",
    "Score",
    "find_classes",
    "find_dimension",
    "find_scaling",
    "fit",
    "predict",
    "step_decay",
]


def fit(
    estimator: Any,
    reader: Reader,
    *,
    label: str | None,
    features: Sequence[str] | None = None,
    sparse: Sequence[str] | None = None,
    dimension: int | None = None,
    epochs: int = 1,
    classes: Sequence[Any] | None = None,
    scaling: Scaling | None = None,
    held_out: Reader | Data | None = None,
    patience: int | None = None,
    tol: float = 1e-4,
    learning_rate: Callable[[int], float] | None = None,
    after_batch: Callable[[Any], None] | None = None,
    after_epoch: Callable[[Epoch], None] | None = None,
    **options: Unpack[ColumnOptions],
) -> Fitted:
    """Train an estimator in place, batch by batch, by its ``partial_fit``.

    ``SGDClassifier``, ``SGDRegressor`` and ``Perceptron`` step for each row of a batch, so the batch size does not
    change what they learn. Their own ``shuffle`` mixes the rows of each batch once more: give ``shuffle=False`` for
    exactly the reader's order. Their clock, by which ``learning_rate="optimal"`` and ``"invscaling"`` let steps
    shrink, goes on through all batches and epochs. ``MLPClassifier`` and others step for each batch.

    Parameters
    ----------
    estimator
        Any estimator with ``partial_fit``.
    reader
        Where batches come from, in its order. It goes on from its position, also in the middle of an epoch, so
        ``estimator`` and ``reader.state_dict()`` together are a checkpoint. What early stopping has seen is not in it.
    label
        Column to predict: numbers, booleans or text for a classifier, numbers for a regressor; None for estimators
        that learn without one, such as ``MiniBatchKMeans``.
    features
        Columns to learn from: numbers, booleans, fixed-size lists of them; None for all but the label. They become
        one float64 matrix ``[B, k]``; ``dtype={"features": "float32"}`` makes it another.
    sparse
        Instead of `features`, the two list columns of sparse rows, indices and values: they become a ``csr_array``
        ``[B, dimension]``, which the estimator gets as it is.
    dimension
        Its columns. None for those of `scaling`, or of what the estimator has seen, or else for one more than the
        greatest index, by a pass over the column of indices. A greater index raises.
    epochs
        Epochs in all, as the reader counts them: a reader that is at epoch 2 goes through ``epochs - 2`` more.
    classes
        Values of the label. By default those that the estimator has seen, or else those that one pass over the label
        column finds.
    scaling
        What to scale the features by, see :func:`find_scaling`.
    held_out
        Rows to score on after each epoch (accuracy, or R²): a reader, or what :class:`corgiarrow.Reader` takes.
    patience
        Epochs without a better score after which to stop. The best model is then returned, a copy.
    tol
        By how much a score must be better to count.
    learning_rate
        Gives the step size of each epoch, such as :func:`step_decay`: it sets ``estimator.eta0``, for estimators of
        ``learning_rate="constant"``.
    after_batch
        Called with the estimator after each batch. This is where to save a checkpoint.
    after_epoch
        Called with what each epoch gave.
    **options
        How columns become numbers, see :class:`corgiarrow.arrays.ArrayOptions`; ``nulls`` may also be ``"mean"``,
        which puts the mean of `scaling` in the place of nulls, NaN and infinities. By default they raise.

    Raises
    ------
    OptionError
        The estimator cannot learn in batches, a column does not fit, or an option is out of its bounds.
    ColumnNotFoundError
        A column is not in the reader.
    ConversionError
        A feature is null or no finite number, or a label is none of the classes.
    """
    if not hasattr(estimator, "partial_fit"):
        raise OptionError(
            f"{type(estimator).__name__} has no partial_fit, so it cannot learn batch by batch: take one that has, "
            "such as SGDClassifier, SGDRegressor, Perceptron, MLPClassifier or MiniBatchKMeans (scale features by "
            "scaling= instead of a Pipeline)"
        )
    if features is None and sparse is None:
        features = [n for n in reader.schema.names if n != label]
    check_choice(features, sparse, dimension)
    if sparse is not None and dimension is None and scaling is None:
        dimension = getattr(estimator, "n_features_in_", None) or find_dimension(reader, sparse)
    matrix = FeatureMatrix(
        reader.schema, features, sparse=sparse, dimension=dimension, scaling=scaling, **options
    )
    _check_nulls(options, scaling)
    labels = None
    if label is not None:
        found: Sequence[Any] | None = None
        if is_classifier(estimator):
            found = classes if classes is not None else getattr(estimator, "classes_", None)
            found = find_classes(reader, label) if found is None else np.asarray(found).tolist()
        elif classes is not None:
            raise OptionError(f"classes= goes with classifiers, but {type(estimator).__name__} predicts quantities")
        labels = Labels(reader.schema, label, found)
    if held_out is not None and labels is None:
        raise OptionError("held_out= scores by a label: give label=")
    return train(
        estimator,
        reader,
        matrix,
        labels,
        epochs=epochs,
        classes=None if labels is None else labels.classes,
        score=None if held_out is None or labels is None else held_out_score(held_out, matrix, labels),
        patience=patience,
        tol=tol,
        learning_rate=learning_rate,
        after_batch=after_batch,
        after_epoch=after_epoch,
    )


def find_scaling(
    reader: Reader,
    features: Sequence[str] | None = None,
    *,
    sparse: Sequence[str] | None = None,
    dimension: int | None = None,
    **options: Unpack[ColumnOptions],
) -> Scaling:
    """Read the features once, in file order, and return what brings each to mean 0 and deviation 1.

    Nulls, NaN and infinities do not count. A column that is constant is brought to 0. Sparse rows are not centred, but
    divided by the greatest absolute value of each column; there, nulls, NaN and infinities raise.

    Parameters
    ----------
    reader
        The data; its position stays.
    features
        Columns, as for :func:`fit`.
    sparse
        Or those of sparse rows, as for :func:`fit`.
    dimension
        Columns of sparse rows; None for one more than the greatest index.
    **options
        As for :func:`fit`.
    """
    nulls = {"nulls": "mean" if sparse is None else "error"}
    matrix = FeatureMatrix(
        reader.schema, features, sparse=sparse, dimension=dimension, **cast(ColumnOptions, {**nulls, **options})
    )
    scales = Moments(matrix.width) if sparse is None else Sizes(dimension)
    scan = reader.in_file_order(matrix.columns, batch_size=rows_to_scan(matrix.row_values))
    with closing(scan.slices()) as slices:
        for part in slices:
            scales.update(matrix(part.batch))
    return scales.scaling()


def predict(
    estimator: Any,
    reader: Reader,
    out: str | os.PathLike[str] | NewTable,
    *,
    features: Sequence[str] | None = None,
    sparse: Sequence[str] | None = None,
    dimension: int | None = None,
    keep: Sequence[str] = (),
    probabilities: bool = False,
    scaling: Scaling | None = None,
    **options: Unpack[ColumnOptions],
) -> Predicted:
    """Write a prediction for each row of a reader to Parquet, in file order, batch by batch.

    What is written appears under its name when it is whole and on the disk.

    Parameters
    ----------
    estimator
        What predicts.
    reader
        The rows, with ``shuffle="none"``; a pass over all of them is made.
    out
        A Parquet file, or a name without such an ending for a folder of files; or a new table of a database, a
        :class:`corgiarrow.sources.postgres.NewTable`. It must not be there.
    features, sparse, scaling, **options
        As they were for :func:`fit`, in the same order.
    dimension
        Columns of sparse rows; None for those of `scaling`, or of what the estimator has seen.
    keep
        Columns to write beside the column ``prediction``, such as an id.
    probabilities
        Add the column ``probabilities``, of ``predict_proba``: a list of one number a class, in the order of
        ``estimator.classes_``.

    Raises
    ------
    OptionError
        The reader is not in file order, `out` is there already, or the estimator gives no probabilities.
    ColumnNotFoundError
        A column is not there.
    ConversionError
        A feature is null or no finite number.
    """
    if probabilities and not hasattr(estimator, "predict_proba"):
        raise OptionError(
            f"this {type(estimator).__name__} gives no probabilities: leave out probabilities=, or train one that "
            "does, such as SGDClassifier(loss='log_loss')"
        )
    if sparse is not None and dimension is None and scaling is None:
        dimension = getattr(estimator, "n_features_in_", None)
        if dimension is None:
            raise OptionError(f"this {type(estimator).__name__} does not tell its number of features: give dimension=")
    matrix = FeatureMatrix(
        reader.schema, features, sparse=sparse, dimension=dimension, scaling=scaling, **options
    )
    _check_nulls(options, scaling)

    def of_batch(batch: pa.RecordBatch) -> tuple[Array, Array | None]:
        rows = matrix(batch)
        return estimator.predict(rows), estimator.predict_proba(rows) if probabilities else None

    return write_predictions(reader, out, of_batch, keep=keep, classes=getattr(estimator, "classes_", None))


def _check_nulls(options: ColumnOptions, scaling: Scaling | None) -> None:
    if options.get("nulls") == "mean" and scaling is None:
        raise OptionError("nulls='mean' takes the means from a scaling: give scaling=find_scaling(reader, features)")

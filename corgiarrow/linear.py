"""Linear models that step once for each batch, through torch: logistic, SVM, linear and softmax regression.

They follow scikit-learn's protocol, so that what trains its estimators trains them. The losses are scikit-learn's too:
of a row with raw score ``s`` and label ``y`` (-1 or 1 for two classes),

- logistic: ``log(1 + exp(-y·s))``
- svm: ``max(0, 1 - y·s)``
- linear: ``(s - y)² / 2``
- softmax: ``log Σ exp(sⱼ) - s_y``
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from corgiarrow.errors import MissingExtraError, OptionError

Array = npt.NDArray[Any]

KINDS = ("logistic", "svm", "linear", "softmax")
OPTIMIZERS = ("sgd", "adam")

_BETAS = (0.9, 0.999)
"""How much of Adam's averages stays from step to step."""


class LinearModel:
    """A linear model, trained by mini-batches.

    Weights begin at 0. Everything is float32 but labels of classes.

    Parameters
    ----------
    kind
        One of :data:`KINDS`. ``"logistic"`` and ``"svm"`` tell two classes apart, ``"softmax"`` any number of them;
        ``"linear"`` predicts a number.
    optimizer
        ``"sgd"`` or ``"adam"``.
    eta0
        Step size; it may be set anew between batches.
    l2
        Half of it times the square of the weights is added to the loss.

    Attributes
    ----------
    coef_
        Weights, float32 ``[features, outputs]``; one output but for softmax, which has one a class.
    intercept_
        float32 ``[outputs]``.
    classes_
        Values of the label, sorted; None for ``"linear"``.

    Raises
    ------
    OptionError
        An option is out of its bounds.
    """

    def __init__(self, kind: str, *, optimizer: str = "sgd", eta0: float = 0.1, l2: float = 0.0):
        for name, value, allowed in (("kind", kind, KINDS), ("optimizer", optimizer, OPTIMIZERS)):
            if value not in allowed:
                raise OptionError(f"{name}={value!r} must be one of: {', '.join(allowed)}")
        if not (eta0 > 0 and l2 >= 0):
            raise OptionError(f"eta0={eta0} must be above 0, and l2={l2} at least 0")
        self.kind = kind
        self.optimizer = optimizer
        self.eta0 = eta0
        self.l2 = l2
        self.coef_: Array = np.zeros((0, 0), dtype=np.float32)
        self.intercept_: Array = np.zeros(0, dtype=np.float32)
        self.classes_: Array | None = None
        self._step = 0
        self._averages: list[tuple[Array, Array]] = []
        """Adam's means of gradients and of their squares, for weights and intercept."""

    def partial_fit(self, rows: Any, labels: Array, classes: Sequence[Any] | Array | None = None) -> Self:
        """Make one step.

        Parameters
        ----------
        rows
            Features, ``[B, k]``: an array, or a sparse matrix of SciPy.
        labels
            ``[B]``: values of the classes, or numbers.
        classes
            All values that the label has, sorted; needed for the first batch, but for ``"linear"``.

        Raises
        ------
        OptionError
            There are not as many classes as the kind of model takes, or they are not those of the first batch.
        """
        torch = import_torch()
        self._begin(rows.shape[1], classes)
        inputs = _float32(rows)
        dense = torch.from_numpy(inputs) if isinstance(inputs, np.ndarray) else None
        threads = torch.get_num_threads()
        # Steps are small, and more threads would wait, spinning, for CPUs that read and shuffle.
        torch.set_num_threads(1)
        try:
            if dense is None:
                with np.errstate(over="ignore", invalid="ignore"):
                    scores = torch.from_numpy(inputs @ self.coef_ + self.intercept_)
            else:
                scores = torch.addmm(torch.from_numpy(self.intercept_), dense, torch.from_numpy(self.coef_))
            # By the scores alone: what multiplies sparse rows is SciPy, which torch does not differentiate.
            self._loss(torch, scores.requires_grad_(), labels).backward()
            slopes = scores.grad
            gradient = inputs.T @ slopes.numpy() if dense is None else (dense.T @ slopes).numpy()
        finally:
            torch.set_num_threads(threads)
        with np.errstate(over="ignore", invalid="ignore"):
            self._move([gradient, slopes.sum(0).numpy()])
        return self

    def _move(self, gradients: list[Array]) -> None:
        """Change weights and intercept, in place, against their gradients."""
        self._step += 1
        eta0 = np.float32(self.eta0)
        for place, values in enumerate((self.coef_, self.intercept_)):
            gradient = gradients[place]
            if place == 0 and self.l2:
                gradient = gradient + np.float32(self.l2) * values
            if self.optimizer == "adam":
                gradient = self._adam(place, gradient)
            values -= eta0 * gradient

    def _adam(self, place: int, gradient: Array) -> Array:
        """Return the direction of Kingma and Ba (2015), algorithm 1."""
        if len(self._averages) <= place:
            self._averages.append((np.zeros_like(gradient), np.zeros_like(gradient)))
        mean, square = self._averages[place]
        for average, beta, value in ((mean, _BETAS[0], gradient), (square, _BETAS[1], gradient**2)):
            average *= np.float32(beta)
            average += np.float32(1 - beta) * value
        first, second = (1 - beta**self._step for beta in _BETAS)
        found: Array = mean / np.float32(first) / (np.sqrt(square / np.float32(second)) + np.float32(1e-8))
        return found

    def decision_function(self, rows: Any) -> Array:
        """Return raw scores, float32 ``[B]``, or ``[B, classes]`` of softmax."""
        if not len(self.intercept_):
            raise OptionError("this model has learnt nothing yet: call partial_fit first")
        found: Array = _float32(rows) @ self.coef_ + self.intercept_
        return found if self.kind == "softmax" else found[:, 0]

    def predict(self, rows: Any) -> Array:
        """Return the class of each row, or the number, ``[B]``."""
        scores = self.decision_function(rows)
        if self.classes_ is None:
            return scores.astype(np.float64)
        chosen = scores.argmax(1) if self.kind == "softmax" else (scores > 0).astype(np.int64)
        found: Array = self.classes_[chosen]
        return found

    def predict_proba(self, rows: Any) -> Array:
        """Return the probability of each class, float64 ``[B, classes]``.

        Raises
        ------
        OptionError
            The model is an SVM, or no classifier.
        """
        if self.kind not in ("logistic", "softmax"):
            raise OptionError(f"a model of kind={self.kind!r} gives no probabilities: train 'logistic' or 'softmax'")
        scores = self.decision_function(rows).astype(np.float64)
        if self.kind == "logistic":
            scores = np.stack([np.zeros_like(scores), scores], axis=1)
        powers = np.exp(scores - scores.max(1, keepdims=True))
        found: Array = powers / powers.sum(1, keepdims=True)
        return found

    def _begin(self, width: int, classes: Sequence[Any] | Array | None) -> None:
        if len(self.intercept_):
            if classes is not None and not np.array_equal(np.asarray(classes), np.asarray(self.classes_)):
                raise OptionError(f"classes={list(classes)[:5]} are not those of the first batch: {self.classes_}")
            return
        if self.kind != "linear":
            if classes is None:
                raise OptionError("classes= must be given with the first batch: all values that the label has")
            check_kind(self.kind, classes)
            self.classes_ = np.asarray(classes)
        outputs = len(self.classes_) if self.kind == "softmax" and self.classes_ is not None else 1
        self.coef_ = np.zeros((width, outputs), dtype=np.float32)
        self.intercept_ = np.zeros(outputs, dtype=np.float32)

    def _loss(self, torch: Any, scores: Any, labels: Array) -> Any:
        functional = torch.nn.functional
        if self.kind == "linear":
            wanted = torch.from_numpy(np.asarray(labels, dtype=np.float32))
            return 0.5 * ((scores[:, 0] - wanted) ** 2).mean()
        codes = torch.from_numpy(np.searchsorted(self.classes_, labels))  # type: ignore[arg-type]
        if self.kind == "softmax":
            return functional.cross_entropy(scores, codes)
        margins = (2.0 * codes - 1.0).float() * scores[:, 0]
        return (functional.softplus(-margins) if self.kind == "logistic" else functional.relu(1 - margins)).mean()


def _float32(rows: Any) -> Any:
    """Return rows as an array, or a sparse matrix as a ``csr_array``, of float32."""
    return rows.tocsr().astype(np.float32) if hasattr(rows, "tocsr") else np.ascontiguousarray(rows, dtype=np.float32)


def check_kind(kind: str, classes: Sequence[Any] | Array) -> None:
    """Raise where a kind of model cannot tell so many classes apart.

    Raises
    ------
    OptionError
        It cannot.
    """
    if len(classes) != 2 and kind in ("logistic", "svm"):
        raise OptionError(
            f"a model of kind={kind!r} tells 2 classes apart, but there are {len(classes)}: "
            f"{', '.join(map(str, list(classes)[:10]))}; take 'softmax'"
        )
    if len(classes) < 2:
        raise OptionError(f"there is only one class, {list(classes)}: there is nothing to learn")


def losses(kind: str, scores: Array, labels: Array, classes: Array | None) -> Array:
    """Return the loss of each row, float64 ``[B]``.

    Parameters
    ----------
    kind
        One of :data:`KINDS`.
    scores
        Raw scores, ``[B]``, or ``[B, classes]`` of softmax.
    labels
        ``[B]``.
    classes
        Values of the label, sorted; None for ``"linear"``.
    """
    scores = scores.astype(np.float64)
    if classes is None:
        found: Array = 0.5 * (scores - labels) ** 2
        return found
    codes = np.searchsorted(classes, labels)
    if kind == "softmax":
        top = scores.max(1)
        found = top + np.log(np.exp(scores - top[:, None]).sum(1)) - scores[np.arange(len(codes)), codes]
        return found
    margins = (2 * codes - 1) * scores
    found = np.logaddexp(0, -margins) if kind == "logistic" else np.maximum(0, 1 - margins)
    return found


def import_torch() -> Any:
    """Return torch.

    Raises
    ------
    MissingExtraError
        It is not installed.
    """
    try:
        import torch
    except ImportError:
        raise MissingExtraError("mini-batches and softmax go through torch: pip install 'corgiarrow[torch]'") from None
    return torch

"""One training run for ``convergence.py``: rows in the order of a strategy, a model, and its accuracy as it learns."""

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import convergence_data
import numpy as np
from convergence_data import Floats, Ints, Rows

import corgiarrow as ca
from corgiarrow.training import step_decay

BATCH = 128
CHUNK_BYTES = 2**22
"""Rows are gathered about so many bytes at a time, which stay in the processor's cache."""

UNBUFFERED = ("none", "once", "epoch", "block")
"""Strategies that do not depend on the buffer."""

DECAY = 0.95
"""Of the step size, an epoch: the paper's."""


@dataclass(frozen=True, slots=True)
class Task:
    """One run.

    Attributes
    ----------
    data, order
        Data set, and its order on disk.
    model
        Name in :data:`MODELS`.
    strategy, buffer
        Strategy, and the part of all blocks that its buffer merges; 0 for those without.
    seed
        Of the order, and of the model's first weights.
    epochs
        Passes: the model takes ``epochs × rows`` rows, also where a strategy's epoch has more.
    rate
        Step size of the first epoch.
    quick
        Whether the data set is its small version.
    """

    data: str
    order: str
    model: str
    strategy: str
    buffer: float
    seed: int
    epochs: int
    rate: float
    quick: bool = False

    def key(self) -> dict[str, Any]:
        """What tells this run from others."""
        return {"format": convergence_data.FORMAT, **asdict(self)}


def reader_of(path: Path, strategy: str, buffer: float, seed: int) -> ca.Reader:
    """Return a reader of a file.

    Raises
    ------
    BudgetError
        The strategy needs more blocks than the buffer has.
    """
    fraction = 1.0 if strategy in UNBUFFERED else buffer
    return ca.Reader(_index(path), shuffle=strategy, buffer_fraction=fraction, seed=seed, batch_size=BATCH, threads=1)


@lru_cache(maxsize=4)
def _index(path: Path) -> ca.BlockIndex:
    return ca.BlockIndex.build(path)


@lru_cache(maxsize=1)
def _train(path: Path) -> Rows:
    return convergence_data.load(path)


@lru_cache(maxsize=1)
def _test(path: Path) -> Rows:
    return convergence_data.load(path)


def passes(reader: ca.Reader, epochs: int) -> Iterator[Ints]:
    """Yield the row ids of each of `epochs` stretches of as many rows as the data has, cut from epoch after epoch."""
    held, epoch = np.empty(0, dtype=np.int64), 0
    for _ in range(epochs):
        while len(held) < reader.num_rows:
            held = np.concatenate([held, reader.plan(epoch).row_ids()])
            epoch += 1
        yield held[: reader.num_rows]
        held = held[reader.num_rows :]


def gathered(rows: Rows, ids: Ints) -> Iterator[tuple[Floats, Ints]]:
    """Yield the rows in an order, whole batches at a time."""
    size = max(CHUNK_BYTES // rows.features[0].nbytes // BATCH, 1) * BATCH
    for first in range(0, len(ids), size):
        chosen = ids[first : first + size]
        yield rows.features[chosen], rows.labels[chosen]


def run(task: Task, folder: Path) -> dict[str, Any]:
    """Train; return the accuracy on the held-out rows after each epoch, or why there is none, and the seconds taken."""
    began = time.perf_counter()
    path = convergence_data.folder_of(folder, task.data, task.quick)
    try:
        reader = reader_of(path / f"{task.order}.parquet", task.strategy, task.buffer, task.seed)
    except ca.BudgetError as error:
        return {"accuracy": None, "why": str(error), "seconds": 0.0}
    train, test = _train(path / f"{task.order}.parquet"), _test(path / "test.parquet")
    accuracy = MODELS[task.model](task, train, test, passes(reader, task.epochs))
    return {"accuracy": [round(a, 5) for a in accuracy], "seconds": round(time.perf_counter() - began, 3)}


def per_row(loss: str) -> "Train":
    """scikit-learn's linear model, a step a row."""

    def train(task: Task, rows: Rows, test: Rows, orders: Iterator[Ints]) -> list[float]:
        from sklearn.linear_model import SGDClassifier

        rate = step_decay(task.rate, DECAY)
        model = SGDClassifier(loss=loss, penalty=None, learning_rate="constant", eta0=task.rate, shuffle=False)
        classes = np.arange(rows.labels.max() + 1)
        accuracy = []
        for epoch, ids in enumerate(orders):
            model.eta0 = rate(epoch)
            for features, labels in gathered(rows, ids):
                model.partial_fit(features, labels, classes=classes)
            scores = test.features @ model.coef_.T.astype(np.float32) + model.intercept_.astype(np.float32)
            found = scores.argmax(1) if scores.shape[1] > 1 else scores[:, 0] > 0
            accuracy.append(float((found == test.labels).mean()))
        return accuracy

    return train


def per_batch(network: str, optimizer: str) -> "Train":
    """A model of torch, a step a batch of 128 rows."""

    def train(task: Task, rows: Rows, test: Rows, orders: Iterator[Ints]) -> list[float]:
        import torch
        from torch import nn

        torch.set_num_threads(1)
        torch.manual_seed(task.seed)
        classes = int(rows.labels.max()) + 1
        if network == "linear":
            model: nn.Module = nn.Linear(rows.features.shape[1], classes)
            for parameter in model.parameters():
                nn.init.zeros_(parameter)
            gradient = linear_gradient
        else:
            model = cnn(classes)
            gradient = any_gradient
        rate = step_decay(task.rate, DECAY)
        if optimizer == "adam":
            steps: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), task.rate, fused=True)
        else:
            momentum = 0.9 if network == "cnn" else 0.0
            steps = torch.optim.SGD(model.parameters(), task.rate, momentum, fused=True)
        unseen, unseen_labels = torch.from_numpy(test.features), torch.from_numpy(test.labels)
        accuracy = []
        for epoch, ids in enumerate(orders):
            for group in steps.param_groups:
                group["lr"] = rate(epoch)
            for features, labels in gathered(rows, ids):
                batches = torch.from_numpy(features).split(BATCH), torch.from_numpy(labels).split(BATCH)
                for x, y in zip(*batches, strict=True):
                    gradient(model, x, y)
                    steps.step()
            with torch.no_grad():
                found = torch.cat([model(part).argmax(1) for part in unseen.split(2_048)])
            accuracy.append(float((found == unseen_labels).float().mean()))
        return accuracy

    return train


def linear_gradient(model: Any, x: Any, y: Any) -> None:
    """Set the gradient of the mean cross entropy, written out: a third of autograd's time for such small models."""
    import torch

    with torch.no_grad():
        slope = torch.addmm(model.bias, x, model.weight.t()).softmax(1)
        slope[torch.arange(len(y)), y] -= 1
        slope /= len(y)
        model.weight.grad, model.bias.grad = slope.t() @ x, slope.sum(0)


def any_gradient(model: Any, x: Any, y: Any) -> None:
    """Set the gradient of the mean cross entropy."""
    from torch import nn

    model.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()


def cnn(classes: int) -> Any:
    """Two convolutions and two dense layers, for images of 28 × 28 pixels in a row."""
    from torch import nn

    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),
        nn.Conv2d(1, 8, 4, 3),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 16, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


Train = Callable[[Task, Rows, Rows, Iterator[Ints]], list[float]]

MODELS: dict[str, Train] = {
    "row logistic": per_row("log_loss"),
    "row hinge": per_row("hinge"),
    "batch SGD": per_batch("linear", "sgd"),
    "batch Adam": per_batch("linear", "adam"),
    "CNN SGD": per_batch("cnn", "sgd"),
    "CNN Adam": per_batch("cnn", "adam"),
}

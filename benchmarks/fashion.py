"""Train a small CNN on label-sorted Fashion-MNIST through torch DDP, JAX and Keras, beside each one's own full shuffle.

Run ``python benchmarks/fashion.py --train fashion_mnist_train.parquet --test fashion_mnist_t10k.parquet``: files with a
column ``image`` of 784 bytes a row (binary, or a list of uint8) and ``label``.

- The training rows are sorted by label and written in row groups of 60 rows (1,000 blocks).
- *corgipile* streams them with a buffer of a tenth of the blocks (``--buffer``); *full shuffle* holds all rows in
  memory and shuffles them as the framework's users do: ``DataLoader`` with ``DistributedSampler``, a permutation an
  epoch for JAX, ``fit(shuffle=True)`` for Keras; *none* reads in file order, once, to show that order matters here.
- torch: two processes, DDP over gloo, 64 rows each; JAX and Keras: one process, 128 rows. All: the same CNN (two
  convolutions, two dense layers), SGD with momentum 0.9, a step size that falls to zero, as many steps.
- Accuracy on the 10,000 test rows, mean ± standard deviation over seeds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np

ARMS = ("corgipile", "full shuffle", "none")
FRAMEWORKS = ("torch", "jax", "keras")
ROWS, BATCH, ROW_GROUP = 60_000, 128, 60
RATE, MOMENTUM = 0.05, 0.9


def sorted_file(folder: Path, source: Path) -> Path:
    """Return the training rows, sorted by label, in small row groups, images as bytes."""
    import data
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(beside: Path) -> None:
        images, labels = arrays(source)
        order = np.argsort(labels, kind="stable")
        columns = [[image.tobytes() for image in images[order]], labels[order]]
        schema = pa.schema([("image", pa.binary()), ("label", pa.int64())])
        pq.write_table(pa.table(columns, schema=schema), beside, row_group_size=ROW_GROUP, compression="zstd")

    return data.made_once(folder / f"fashion-sorted-{ROW_GROUP}.parquet", write)


def arrays(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return all images, uint8 [rows, 28, 28], and labels, int64 [rows]."""
    import corgiarrow as ca

    reader = ca.Reader(path, shuffle="none", batch_size=10_000)
    batches = list(ca.Loader(reader, shape={"image": (28, 28)}))
    images = np.concatenate([batch["image"] for batch in batches]).astype(np.uint8)
    return images, np.concatenate([batch["label"] for batch in batches]).astype(np.int64)


def reading(arm: str, seed: int, buffer: float) -> dict[str, Any]:
    """Options of the arms that read the sorted file."""
    shuffle = {"shuffle": "corgipile", "buffer_fraction": buffer} if arm == "corgipile" else {"shuffle": "none"}
    return {**shuffle, "seed": seed, "drop_last": True, "shape": {"image": (28, 28)}}


def rate_at(step: int, steps: int) -> float:
    """Step size: falls in a line to zero."""
    return RATE * (1 - step / steps)


def run_torch(train: Path, test: Path, arm: str, seed: int, epochs: int, buffer: float) -> float | None:
    """Train in this process of several; return the accuracy in the first one."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    import corgiarrow.torch as ct

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    each = BATCH // dist.get_world_size()
    epoch_batches: Callable[[int], Iterable[Any]]
    if arm == "full shuffle":
        images, labels = arrays(train)
        dataset = TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
        sampler: Any = DistributedSampler(dataset, seed=seed, drop_last=True)
        loader = DataLoader(dataset, batch_size=each, sampler=sampler, drop_last=True)

        def epoch_batches(epoch: int) -> Iterable[Any]:
            sampler.set_epoch(epoch)
            return loader

    else:
        corgi = ct.loader(train, batch_size=each, **reading(arm, seed, buffer))

        def epoch_batches(epoch: int) -> Iterable[Any]:
            corgi.set_epoch(epoch)
            return ((batch["image"], batch["label"]) for batch in corgi)

    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, 2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 36, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), RATE, MOMENTUM)
    steps, step = epochs * (ROWS // BATCH), 0
    for epoch in range(epochs):
        for image, label in epoch_batches(epoch):
            for group in optimizer.param_groups:
                group["lr"] = rate_at(step, steps)
            loss = nn.functional.cross_entropy(parallel(image[:, None].float() / 255), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    assert step == steps, (step, steps)
    first = dist.get_rank() == 0
    dist.destroy_process_group()
    if not first:
        return None
    images, labels = arrays(test)
    with torch.no_grad():
        found = model(torch.from_numpy(images)[:, None].float() / 255).argmax(1).numpy()
    return float((found == labels).mean())


def epochs_of(
    train: Path, arm: str, seed: int, epochs: int, batches: Iterable[dict[str, Any]] | None
) -> Iterator[tuple[Any, Any]]:
    """Yield images and labels of all epochs, from a loader or in full shuffle from memory."""
    if batches is not None:
        for _ in range(epochs):
            for batch in batches:
                yield batch["image"], batch["label"]
        return
    images, labels = arrays(train)
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(labels))
        for first in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[first : first + BATCH]
            yield images[chosen], labels[chosen]


def run_jax(train: Path, test: Path, arm: str, seed: int, epochs: int, buffer: float) -> float:
    """Train with plain JAX."""
    import jax
    import jax.numpy as jnp

    import corgiarrow.jax

    def network(w: Any, images: Any) -> Any:
        x = images.astype(jnp.float32)[..., None] / 255
        for kernel, bias in w[:2]:
            axes = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(x, kernel, (2, 2), "VALID", dimension_numbers=axes)
            x = jax.nn.relu(x + bias)
        x = x.reshape(len(x), -1)
        x = jax.nn.relu(x @ w[2][0] + w[2][1])
        return x @ w[3][0] + w[3][1]

    def loss(w: Any, images: Any, labels: Any) -> Any:
        scores = jax.nn.log_softmax(network(w, images))
        return -jnp.take_along_axis(scores, labels[:, None], 1).mean()

    @jax.jit
    def update(w: Any, speed: Any, images: Any, labels: Any, rate: Any) -> Any:
        slope = jax.grad(loss)(w, images, labels)
        speed = jax.tree.map(lambda s, g: MOMENTUM * s + g, speed, slope)
        return jax.tree.map(lambda p, s: p - rate * s, w, speed), speed

    keys = jax.random.split(jax.random.key(seed), 4)
    w = []
    for key, shape in zip(keys, [(3, 3, 1, 8), (3, 3, 8, 16), (16 * 36, 64), (64, 10)], strict=True):
        inputs = int(np.prod(shape[:-1]))
        w.append((jax.random.normal(key, shape) * (2 / inputs) ** 0.5, jnp.zeros(shape[-1])))
    speed = jax.tree.map(jnp.zeros_like, w)
    loader = None
    if arm != "full shuffle":
        options = reading(arm, seed, buffer)
        loader = corgiarrow.jax.loader(train, batch_size=BATCH, dtype={"label": "int32"}, **options)
    steps = epochs * (ROWS // BATCH)
    step = -1
    for step, (images, labels) in enumerate(epochs_of(train, arm, seed, epochs, loader)):
        w, speed = update(w, speed, images, labels.astype("int32"), rate_at(step, steps))
    assert step + 1 == steps, (step, steps)
    images, labels = arrays(test)
    return float((np.asarray(jax.jit(network)(w, images)).argmax(1) == labels).mean())


def run_keras(train: Path, test: Path, arm: str, seed: int, epochs: int, buffer: float) -> float:
    """Train with Keras on TensorFlow."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras

    import corgiarrow.tensorflow

    keras.utils.set_random_seed(seed)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((28, 28)),
            layers.Reshape((28, 28, 1)),
            layers.Rescaling(1 / 255),
            layers.Conv2D(8, 3, 2, activation="relu"),
            layers.Conv2D(16, 3, 2, activation="relu"),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )
    steps = epochs * (ROWS // BATCH)
    schedule = keras.optimizers.schedules.PolynomialDecay(RATE, steps, 0.0)
    optimizer = keras.optimizers.SGD(schedule, MOMENTUM)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    if arm == "full shuffle":
        images, labels = arrays(train)
        images, labels = images[: ROWS // BATCH * BATCH], labels[: ROWS // BATCH * BATCH]
        model.fit(images, labels, batch_size=BATCH, epochs=epochs, shuffle=True, verbose=0)
    else:
        dataset = corgiarrow.tensorflow.dataset(train, batch_size=BATCH, **reading(arm, seed, buffer))
        pairs = dataset.map(lambda batch: (batch["image"], batch["label"]))
        model.fit(pairs, epochs=epochs, shuffle=False, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == steps
    images, labels = arrays(test)
    return float(model.evaluate(images, labels, batch_size=1000, verbose=0)[1])


RUNS = {"torch": run_torch, "jax": run_jax, "keras": run_keras}


def in_process(framework: str, arguments: list[str]) -> float:
    """Run one training in a process (torch: two) of its own; return the accuracy."""
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [sys.executable]
        if framework == "torch":
            command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        command += [__file__, "--framework", framework, "--out", out.name, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
        return float(json.loads(Path(out.name).read_text()))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run every framework, arm and seed; print the table."""
    import data

    train = sorted_file(arguments.data, arguments.train)
    found: dict[str, dict[str, list[float]]] = {}
    for framework in FRAMEWORKS:
        found[framework] = {}
        for arm in ARMS:
            seeds = range(arguments.seeds if arm != "none" else 1)
            given = ["--train", train, "--test", arguments.test, "--arm", arm, "--epochs", arguments.epochs]
            given += ["--buffer", arguments.buffer]
            found[framework][arm] = [
                in_process(framework, [*map(str, given), "--seed", str(seed)]) for seed in seeds
            ]
            print(framework, arm, found[framework][arm], file=sys.stderr, flush=True)

    def shown(values: list[float]) -> str:
        return f"{mean(values):.2%}" + (f" ± {stdev(values):.2%}" if len(values) > 1 else "")

    data.print_table(
        ["framework", *ARMS], [[framework, *(shown(found[framework][arm]) for arm in ARMS)] for framework in FRAMEWORKS]
    )
    return {"accuracy": found, "epochs": arguments.epochs, "buffer_fraction": arguments.buffer}


def main() -> None:
    import data

    parser = data.parser(__doc__)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--buffer", type=float, default=0.1, help="part of the blocks that buffers merge (%(default)s)")
    parser.add_argument("--framework", choices=FRAMEWORKS, help=argparse.SUPPRESS)
    parser.add_argument("--arm", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.framework:
        run = RUNS[arguments.framework]
        accuracy = run(
            arguments.train, arguments.test, arguments.arm, arguments.seed, arguments.epochs, arguments.buffer
        )
        if accuracy is not None:
            arguments.out.write_text(json.dumps(accuracy))
        return
    print(json.dumps(data.machine()))
    data.save_json(arguments.json, measure(arguments))


if __name__ == "__main__":
    main()

"""The commands ``train`` and ``predict``."""

import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer
from fsspec.implementations.local import LocalFileSystem

from corgiarrow import models as models_module
from corgiarrow import saved
from corgiarrow.cli import options as opt
from corgiarrow.cli.data import DatabaseTable, open_data
from corgiarrow.cli.options import names
from corgiarrow.cli.output import print_facts, print_json, print_table, say, show_count
from corgiarrow.errors import OptionError
from corgiarrow.features import DENSE_COLUMN, SPARSE_COLUMNS, check_choice, feature_names, has_sparse_columns
from corgiarrow.linear import KINDS
from corgiarrow.predictions import new_local_path
from corgiarrow.sources.postgres import NewTable, is_postgres
from corgiarrow.training import Epoch, rows_to_scan

_BATCH_ROWS = {models_module.PER_ROW: 1024}
_MINI_BATCH_ROWS = 128


def add_model_commands(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(train)
    app.command()(predict)


def train(
    ctx: typer.Context,
    src: opt.DataSrc,
    label: Annotated[str, typer.Option(help="Column to predict.")],
    model: Annotated[str, typer.Option(metavar="KIND", help=f"Kind of model: {', '.join(KINDS)}.")],
    save_as: Annotated[str, typer.Option(metavar="ID|PATH", help="Id of the model, or a file to save it in.")],
    epochs: Annotated[int, typer.Option(help="Passes over the data.")] = 5,
    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="per-row (scikit-learn; the default but for softmax), or by mini-batches (torch) sgd, adam.",
        ),
    ] = None,
    eta0: Annotated[float | None, typer.Option(help="Step size of the first epoch.")] = None,
    decay: Annotated[float, typer.Option(help="Factor of the step size from epoch to epoch.")] = 0.95,
    l2: Annotated[float, typer.Option(help="Penalty on the squares of the weights.")] = 0.0,
    nulls: Annotated[
        str, typer.Option(metavar="error|mean", help="What to do with nulls and NaN of features; mean fills them.")
    ] = "error",
    held_out_src: Annotated[
        list[str] | None,
        typer.Option(metavar="SRC", help="Other rows to score on after each epoch; give it again for more paths."),
    ] = None,
    patience: Annotated[
        int | None, typer.Option(help="Epochs without a better score on the held-out rows until training stops.")
    ] = None,
    tol: Annotated[float, typer.Option(help="By how much a score must be better.")] = 1e-4,
    batch_size: Annotated[
        int | None, typer.Option(help="Rows of a batch; by default 1024 for per-row, 128 for mini-batches.")
    ] = None,
    shuffle: opt.Shuffle = "corgipile",
    memory: opt.Memory = None,
    buffer_blocks: opt.BufferBlocks = None,
    buffer_fraction: opt.BufferFraction = None,
    block_bytes: opt.BlockBytes = None,
    seed: opt.Seed = 0,
    threads: opt.Threads = None,
    columns: Annotated[
        str | None, typer.Option(metavar="A,B", help="Columns to predict from; by default all that hold numbers.")
    ] = None,
    sparse: Annotated[
        str | None,
        typer.Option(
            metavar="K,V",
            help="Instead, the list columns of indices and of values of sparse rows; by default "
            f"{' and '.join(SPARSE_COLUMNS)}, where there are such.",
        ),
    ] = None,
    dimension: Annotated[
        int | None, typer.Option(help="Columns of sparse rows; by default one more than the greatest index.")
    ] = None,
    table: opt.Table = None,
    where: opt.Where = None,
    split: opt.SplitPart = None,
    held_out: opt.HeldOut = None,
    held_out_by: opt.HeldOutBy = None,
    storage_options: opt.StorageOptions = None,
    cache: opt.Cache = None,
    cache_bytes: opt.CacheBytes = None,
    json: opt.Json = False,
) -> None:
    """Train a linear model on shuffled rows, and save it."""
    parts = opt.split_option(ctx.params)
    if parts is not None and held_out_src:
        raise OptionError("--split holds out some of SRC, --held-out-src gives other rows: give one of them")
    scores_apart = bool(held_out_src) or parts is not None
    chosen = models_module.check_options(model, optimizer, nulls, eta0, decay, l2, patience, scores_apart)
    target = saved.new_model_path(save_as, chosen)
    for sources in (src, held_out_src or []):
        _refuse_inside(target, sources, "save-as")
    rows = batch_size or _BATCH_ROWS.get(chosen, _MINI_BATCH_ROWS)
    data = open_data(src, ctx.params | {"batch_size": rows})
    pair = names(sparse) if sparse else None
    if not columns and not sparse and has_sparse_columns(data.schema):
        pair = list(SPARSE_COLUMNS)
    if pair is None and isinstance(data, DatabaseTable):
        data.set_dimension(dimension)
        dimension = None
    chosen_columns = names(columns) if columns else None
    if chosen_columns is None and pair is None:
        chosen_columns = [name for name in feature_names(data.schema, label) if name not in data.key]
    check_choice(chosen_columns, pair, dimension)
    features = pair or chosen_columns or []
    read = list(dict.fromkeys([*features, label]))
    reader = data.reader(read)
    scored = None
    in_order: dict[str, Any] = {"shuffle": "none", "memory": memory, "buffer_blocks": None, "buffer_fraction": None}
    if held_out_src:
        others = {"where": where, "threads": threads, "storage_options": storage_options}
        given = open_data(held_out_src, {**others, "cache": cache, "cache_bytes": cache_bytes})
        scored = given.reader(None, **in_order)
    elif parts is not None:
        scored = data.reader(read, held_out=True, **in_order)
    left_out = [name for name in data.schema.names if name not in (*features, label)]
    if not columns and not pair and left_out:
        why = "as they hold no numbers" + (", or tell rows apart" if features == [DENSE_COLUMN] or data.key else "")
        say(f"left out, {why}: {', '.join(left_out)}")
    if not columns and not pair:
        say(f"features (--columns chooses): {', '.join(features)}")
    if pair and not sparse:
        say(f"features (--sparse or --columns chooses): sparse rows of {' and '.join(pair)}")
    measure = "R²" if model == "linear" else "accuracy"

    def show(epoch: Epoch) -> None:
        if epoch.score is not None:
            say(f"epoch {epoch.epoch + 1}: {measure} {epoch.score.value:.4f}")

    with reader:
        done = models_module.train_model(
            reader,
            label=label,
            kind=model,
            features=chosen_columns,
            sparse=pair,
            dimension=dimension,
            optimizer=chosen,
            epochs=epochs,
            eta0=eta0,
            decay=decay,
            l2=l2,
            nulls=nulls,
            held_out=scored,
            patience=patience,
            tol=tol,
            say=say,
            after_epoch=show,
        )
    saved.save(done.model, target)
    fitted, classes = done.fitted, done.model.classes
    scores = [(e, e.score) for e in fitted.epochs if e.score is not None]
    name = "r2" if model == "linear" else "accuracy"
    found = {
        "model": str(target),
        "kind": model,
        "optimizer": chosen,
        "rows": reader.num_rows,
        "features": len(done.model.scaling.mean),
        "classes": None if classes is None else list(classes),
        "scored_on": "held-out rows" if scored else "some of the training rows",
        "epochs": [
            {"epoch": e.epoch + 1, "loss": s.loss, name: s.value, "rows_per_s": e.rows_per_s} for e, s in scores
        ],
        "best_epoch": fitted.best_epoch + 1,
        "stopped_early": fitted.stopped_early,
        "rows_per_s": fitted.rows_per_s,
    }
    if json:
        print_json(found)
        return
    print_table(
        f"{reader.num_rows:,} rows, {found['features']:,} features"
        + ("" if classes is None else f", {len(classes):,} classes")
        + f"; scored on {found['scored_on']}:",
        ["epoch", "loss", measure, "rows/s"],
        (
            [str(e.epoch + 1), f"{s.loss or 0:.4f}", f"{s.value:.4f}", show_count(e.rows_per_s)]
            for e, s in scores
        ),
    )
    kept = f"; stopped early, epoch {fitted.best_epoch + 1} is kept" if fitted.stopped_early else ""
    print_facts([("saved as", f"{target}{kept}")])


def predict(
    ctx: typer.Context,
    src: opt.DataSrc,
    model: Annotated[str, typer.Option(metavar="ID|PATH", help="Id of a model that train saved, or its file.")],
    out: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Parquet file to write; another name becomes a folder.")
    ] = None,
    into: Annotated[
        str | None, typer.Option(metavar="NAME", help="Instead of --out: a new table of the database, schema.table.")
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Columns to write beside the prediction; of a table, by default its key."),
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Write the probability of each class as well.")
    ] = False,
    memory: opt.Memory = None,
    threads: opt.Threads = None,
    table: opt.Table = None,
    where: opt.Where = None,
    split: opt.SplitPart = None,
    held_out: opt.HeldOut = None,
    held_out_by: opt.HeldOutBy = None,
    storage_options: opt.StorageOptions = None,
    cache: opt.Cache = None,
    cache_bytes: opt.CacheBytes = None,
    json: opt.Json = False,
) -> None:
    """Write a model's prediction for each row, in file order."""
    target = _prediction_target(src, out, into)
    loaded = saved.load(saved.find(model))
    data = open_data(src, ctx.params)
    if isinstance(data, DatabaseTable) and not loaded.sparse:
        data.set_dimension(None)
    kept = list(data.key) if keep is None else names(keep)
    wanted = [*loaded.features, *kept, *([loaded.label] if loaded.label in data.schema.names else [])]
    columns, rows = list(dict.fromkeys(wanted)), rows_to_scan(loaded.row_values)
    with data.reader(columns, shuffle="none", batch_size=rows) as reader:
        say(f"predicting {loaded.label} by {loaded.kind} for {reader.num_rows:,} rows")
        done = models_module.predict(loaded, reader, target, keep=kept, probabilities=probabilities)
    name = "r2" if loaded.classes is None else "accuracy"
    if json:
        print_json({"out": str(target), "rows": done.rows, "label": loaded.label, name: done.score})
        return
    facts = [("rows", f"{done.rows:,}"), ("written to", str(target))]
    if done.score is not None:
        facts.append(("R²" if name == "r2" else "accuracy", f"{done.score:.4f}"))
    print_facts(facts)


def _prediction_target(src: Sequence[str], out: Path | None, into: str | None) -> Path | NewTable:
    """Return where predictions go, which may be written.

    Raises
    ------
    OptionError
        It may not, or both are given, or neither.
    """
    if (out is None) == (into is None):
        raise OptionError("give --out PATH, or, where SRC is a database, --into TABLE: one of them")
    if out is not None:
        target = new_local_path(out, "out")
        _refuse_inside(target, src, "out")
        return target
    if not is_postgres(src[0]):
        raise OptionError(f"--into={into!r} is a table of the database that SRC names, but SRC is {src[0]}: give --out")
    table = NewTable(src[0], into or "")
    table.check()
    return table


def _refuse_inside(target: Path, src: Sequence[str], option: str) -> None:
    """Raise where a new file would become a part of the data.

    Raises
    ------
    OptionError
        It would.
    """
    folder = target.resolve()
    for url in src:
        protocol, _, rest = url.rpartition("::")[2].rpartition("://")
        if protocol not in ("", "file", "local"):
            continue
        source = Path(LocalFileSystem._strip_protocol(rest or "/"))
        if not source.exists():
            # Of a glob, the folder that it looks into.
            plain = takewhile(lambda part: not re.search(r"[*?\[]", part), source.parts)
            source = Path(*plain)
        source = source.resolve()
        if source.is_dir() and folder.is_relative_to(source):
            raise OptionError(
                f"--{option} {str(target)!r} lies inside the input folder {url!r}, where it would become data: write "
                "it elsewhere"
            )

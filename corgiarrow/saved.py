"""Models in files: scikit-learn's through skops, torch's as safetensors. Nothing that is loaded can run code.

Both hold the weights and, as JSON, what :class:`corgiarrow.models.Model` says of them. There are no pickles.
"""

import json
import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from corgiarrow.errors import MissingExtraError, NoFilesError, OptionError, ReadError
from corgiarrow.linear import KINDS, LinearModel, check_kind
from corgiarrow.models import NULLS, PER_ROW, Model
from corgiarrow.predictions import new_local_path
from corgiarrow.scaling import Scaling
from corgiarrow.storage import write_atomic

SKOPS, SAFETENSORS = ".skops", ".safetensors"

_KEY = "corgiarrow"
_FORMAT = 1
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def models_folder() -> Path:
    """Return the folder of models that have an id: ``$CORGIARROW_MODELS``, or one among the user's data."""
    if given := os.environ.get("CORGIARROW_MODELS"):
        return Path(given)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or str(Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = str(Path.home() / "Library" / "Application Support")
    else:
        base = os.environ.get("XDG_DATA_HOME", "")
        if not Path(base).is_absolute():  # As the XDG specification has it.
            base = str(Path.home() / ".local" / "share")
    return Path(base) / "corgiarrow" / "models"


def suffix_of(optimizer: str) -> str:
    """Return what the name of a model's file ends in."""
    return SKOPS if optimizer == PER_ROW else SAFETENSORS


def new_model_path(name: str, optimizer: str) -> Path:
    """Return where to save a model, which may be saved there; the folder of ids is made.

    Parameters
    ----------
    name
        An id, or a path.
    optimizer
        How it is trained.

    Raises
    ------
    OptionError
        There is one already, or the path does not end as a model of this kind does.
    MissingExtraError
        skops or safetensors is not installed.
    """
    suffix = suffix_of(optimizer)
    _skops() if suffix == SKOPS else _safetensors()
    if is_id(name):
        folder = models_folder()
        found = [folder / f"{name}{end}" for end in (SKOPS, SAFETENSORS) if (folder / f"{name}{end}").exists()]
        if found:
            raise OptionError(f"there is a model {name!r} already, {found[0]}: remove it, or choose another id")
        folder.mkdir(parents=True, exist_ok=True)
        return new_local_path(folder / f"{name}{suffix}", "save_as")
    if not name.endswith(suffix):
        raise OptionError(
            f"save_as={name!r}: a model trained by {optimizer!r} steps is saved as {suffix}, so the path must end so; "
            "or give an id, of letters, digits, '.', '_' and '-'"
        )
    return new_local_path(name, "save_as")


def is_id(name: str) -> bool:
    """Whether a name is the id of a model rather than a path."""
    return bool(_ID.fullmatch(name)) and not name.endswith((SKOPS, SAFETENSORS))


def save(model: Model, path: Path) -> None:
    """Save a model in a new file, which is whole or not there.

    Raises
    ------
    OptionError
        The file is there already.
    MissingExtraError
        skops or safetensors is not installed.
    """
    new_local_path(path, "path")
    facts: dict[str, Any] = {
        "format": _FORMAT,
        "version": _version(),
        "kind": model.kind,
        "optimizer": model.optimizer,
        "features": list(model.features),
        "label": model.label,
        "classes": None if model.classes is None else list(model.classes),
        "nulls": model.nulls,
        "sparse": model.sparse,
    }
    arrays = {"mean": model.scaling.mean, "scale": model.scaling.scale}
    if model.label_scaling is not None:
        arrays |= {"label_mean": model.label_scaling.mean, "label_scale": model.label_scaling.scale}
    text = json.dumps(facts, allow_nan=False)
    if model.optimizer == PER_ROW:
        skops = _skops()
        saved = {_KEY: text, "arrays": arrays, "estimator": model.estimator}
        write_atomic(path, lambda beside: skops.dump(saved, beside))
        return
    safetensors = _safetensors()
    weights = {"coef": model.estimator.coef_, "intercept": model.estimator.intercept_}
    tensors = {name: np.ascontiguousarray(values) for name, values in (arrays | weights).items()}
    data = safetensors.save(tensors, metadata={_KEY: text})

    def write(beside: Path) -> None:
        beside.write_bytes(data)

    write_atomic(path, write)


def find(name: str) -> Path:
    """Return the file of a model, by its id or path.

    Raises
    ------
    NoFilesError
        There is none.
    """
    if not is_id(name):
        if Path(name).is_file():
            return Path(name)
        raise NoFilesError(f"there is no model {name!r}: give an id, or the path of a {SKOPS} or {SAFETENSORS} file")
    folder = models_folder()
    for suffix in (SKOPS, SAFETENSORS):
        if (folder / f"{name}{suffix}").is_file():
            return folder / f"{name}{suffix}"
    known = sorted({p.stem for p in folder.glob("*") if p.suffix in (SKOPS, SAFETENSORS)}) if folder.is_dir() else []
    there = f"there are {', '.join(known[:20])}" if known else "there are none yet"
    raise NoFilesError(f"there is no model {name!r} in {folder}: {there}; a path holds a '/' or ends as a model's")


def load(path: Path) -> Model:
    """Load a model that :func:`save` saved. No code that a file may hold is run.

    Raises
    ------
    ReadError
        It is no such file.
    MissingExtraError
        skops or safetensors is not installed.
    """
    if path.suffix == SKOPS:
        text, arrays, estimator = _load_skops(path)
    elif path.suffix == SAFETENSORS:
        text, arrays, estimator = _load_safetensors(path)
    else:
        raise _unfit(path, f"its name ends in neither {SKOPS} nor {SAFETENSORS}")
    try:
        facts = json.loads(text)
        if facts["format"] != _FORMAT:
            raise _unfit(path, f"another version of corgiarrow wrote it, in format {facts['format']}")
        scaling = Scaling(arrays["mean"], arrays["scale"])
        by_label = Scaling(arrays["label_mean"], arrays["label_scale"]) if "label_mean" in arrays else None
        classes = None if facts["classes"] is None else tuple(facts["classes"])
        sparse = facts.get("sparse", False)
        known = facts["kind"] in KINDS and facts["nulls"] in NULLS and isinstance(sparse, bool)
        fits = known and (classes is None) == (facts["kind"] == "linear") == (by_label is not None)
        if not fits or scaling.mean.shape != scaling.scale.shape or scaling.mean.ndim != 1:
            raise _unfit(path, "what it says of itself does not fit together")
        if estimator is None:
            estimator = _linear_model(facts, classes, arrays)
        seen = getattr(estimator, "classes_", None)
        if (None if seen is None else tuple(np.asarray(seen).tolist())) != classes:
            raise _unfit(path, "its classes are not those of its weights")
        if classes is not None:
            check_kind(facts["kind"], classes)
        outputs = len(classes or ()) if facts["kind"] == "softmax" else 1
        width = estimator.coef_.shape[0 if path.suffix == SAFETENSORS else -1]
        sizes = estimator.coef_.size, estimator.intercept_.size
        if width != len(scaling.mean) or sizes != (width * outputs, outputs):
            raise _unfit(path, f"it has {width} weights for {len(scaling.mean)} features")
        features = tuple(map(str, facts["features"]))
        if sparse and (len(features) != 2 or scaling.mean.any() or facts["nulls"] != "error"):
            raise _unfit(path, "what it says of its sparse rows does not fit together")
        return Model(
            facts["kind"],
            facts["optimizer"],
            estimator,
            features,
            str(facts["label"]),
            classes,
            scaling,
            by_label,
            facts["nulls"],
            sparse,
        )
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, OptionError) as error:
        raise _unfit(path, f"{type(error).__name__}: {error}") from None


def _linear_model(facts: dict[str, Any], classes: tuple[Any, ...] | None, arrays: dict[str, Any]) -> LinearModel:
    found = LinearModel(facts["kind"], optimizer=facts["optimizer"])
    found.coef_, found.intercept_ = arrays["coef"], arrays["intercept"]
    found.classes_ = None if classes is None else np.array(classes)
    return found


def _load_skops(path: Path) -> tuple[str, dict[str, Any], Any]:
    skops = _skops()
    from sklearn.linear_model import SGDClassifier, SGDRegressor
    from skops.io.exceptions import UntrustedTypesFoundException

    try:
        # No type is trusted beyond those that skops knows to be harmless.
        found = skops.load(path, trusted=[])
    except UntrustedTypesFoundException as error:
        raise _unfit(path, f"it holds what might run code ({error})") from None
    except Exception as error:  # noqa: BLE001 - a broken file may raise anything; skops has no error of its own.
        raise _unfit(path, f"skops cannot read it ({type(error).__name__}: {error})") from None
    fits = isinstance(found, dict) and {_KEY, "arrays", "estimator"} <= set(found)
    if not fits or type(found["estimator"]) not in (SGDClassifier, SGDRegressor):
        raise _unfit(path, "it holds something else")
    return found[_KEY], found["arrays"], found["estimator"]


def _load_safetensors(path: Path) -> tuple[str, dict[str, Any], None]:
    _safetensors()
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as opened:
            metadata = opened.metadata() or {}
            arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is no dict.
    except (SafetensorError, OSError, ValueError) as error:
        raise _unfit(path, f"safetensors cannot read it ({error})") from None
    if _KEY not in metadata:
        raise _unfit(path, "its header does not say what it was trained on")
    return metadata[_KEY], arrays, None


def _unfit(path: Path, why: str) -> ReadError:
    return ReadError(f"{path} is no model that corgiarrow saved: {why}")


def _skops() -> Any:
    try:
        import skops.io
    except ImportError:
        raise MissingExtraError("this model is saved by skops: pip install 'corgiarrow[sklearn]'") from None
    return skops.io


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise MissingExtraError("this model is saved as safetensors: pip install 'corgiarrow[torch]'") from None
    return safetensors.numpy


def _version() -> str:
    try:
        return version("corgiarrow")
    except PackageNotFoundError:
        return "unknown"

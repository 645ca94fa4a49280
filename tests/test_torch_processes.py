"""The loader with worker processes: the order, positions anywhere, faults in their turn, processes that end."""

import contextlib
import itertools
import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from conftest import ids_of
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import run

import corgiarrow as ca
import corgiarrow.torch as ct
from corgiarrow.torch.processes import ProcessLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]

OPTIONS: dict[str, Any] = {"batch_size": 4, "streams": 4, "buffer_blocks": 4, "columns": ["id", "x", "label"]}


def ids(batches: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in batches]


def running() -> list[psutil.Process]:
    """Processes of loaders; other tests may have servers."""
    return [p for p in psutil.Process().children() if p.name() == "pt_data_worker" and p.status() != "zombie"]


def in_order(data: Path, epochs: int) -> list[list[list[int]]]:
    reader = ca.Reader(data, **OPTIONS)
    return [ids_of(reader) for _ in range(epochs)]


def test_the_order_is_that_of_one_process_from_any_step_on(ragged: Path) -> None:
    """Epochs, broken passes and steps that are in the middle of the workers' turns."""
    expected = in_order(ragged, 3)
    steps = len(expected[0])
    for processes in (1, 2, 4):
        with ct.loader(ragged, processes=processes, **OPTIONS) as loader:
            assert len(loader) == steps
            assert [ids(loader), ids(loader)] == expected[:2]

            @settings(max_examples=15, deadline=None)
            @given(epoch=st.integers(0, 2), step=st.integers(0, steps - 1), taken=st.integers(0, steps))
            def from_anywhere(epoch: int, step: int, taken: int) -> None:
                loader.seek(epoch, step)
                with contextlib.closing(iter(loader)) as batches:  # type: ignore[type-var]
                    found = ids(itertools.islice(batches, taken))
                assert found == expected[epoch][step : step + taken]
                position = loader.reader.position
                assert position == ((epoch, step + taken) if step + taken < steps else (epoch + 1, 0))

            from_anywhere()
        assert not running()


def test_a_position_may_be_loaded_by_any_other_loader(ragged: Path) -> None:
    expected = in_order(ragged, 2)

    def made(processes: int, **place: int) -> Any:
        return ct.loader(ragged, processes=processes, **{**OPTIONS, "streams": None}, **place)

    saved_by = ct.loader(ragged, processes=4, **OPTIONS)
    with saved_by:
        first = ids(itertools.islice(saved_by, 14))
        state = json.loads(json.dumps(saved_by.state_dict()))
    for processes in (0, 1, 2, 4):
        with made(processes) as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            assert first + ids(loader) == expected[0]
            assert ids(loader) == expected[1]
    per_rank = []
    for rank in range(2):
        with made(2, rank=rank, world_size=2) as loader:
            loader.load_state_dict(state)
            per_rank.append(ids(loader))
    rest = [step for both in zip(*per_rank, strict=True) for step in both]
    assert first + rest[: len(expected[0]) - 14] == expected[0]
    with made(3) as loader, pytest.raises(ca.OptionError, match="streams=4 of the state: choose processes=1 or 2 or"):
        loader.load_state_dict(state)
    with made(2) as loader, pytest.raises(ca.StateMismatchError, match="lacks"):
        loader.load_state_dict({})


def told(batch: dict[str, Any]) -> Any:
    return batch["id"].tolist(), os.getpid()


def test_a_transform_runs_in_the_processes_and_may_return_anything(ragged: Path) -> None:
    with ct.loader(ragged, processes=2, transform=told, **OPTIONS) as loader:
        found = list(loader)
        again = list(loader)
    assert [x for x, _ in found] == in_order(ragged, 1)[0]
    where = {pid for _, pid in found}
    assert len(where) == 2
    assert os.getpid() not in where
    assert {pid for _, pid in again} == where, "they stay from epoch to epoch"


def fails_at_40(batch: dict[str, Any]) -> Any:
    if (batch["id"] == 40).any():
        raise ValueError("not forty")
    return batch


def unchanged(batch: dict[str, Any]) -> Any:
    kinds: list[Any] = [
        dict(batch),
        OrderedDict(batch),
        tuple(batch.values()),
        [batch["id"].numpy(), {"half": batch["x"].numpy() / 2}],
        {"array": batch["x"].numpy(), "sparse": batch["label"].to_sparse(), "text": ["a"], "nothing": None},
        {"leaf": torch.ones(2, requires_grad=True)},
    ]
    return kinds[int(batch["id"][0]) % len(kinds)]


def described(value: Any) -> Any:
    """Types and values, at any depth."""
    if isinstance(value, dict):
        return type(value), {name: described(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [described(part) for part in value]
    if isinstance(value, torch.Tensor):
        return value.dtype, value.layout, value.requires_grad, value.to_dense().tolist()
    return type(value), value.tolist() if isinstance(value, np.ndarray) else value


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_results_are_of_the_same_types_as_without_processes(ragged: Path) -> None:
    here = [described(x) for x in ct.loader(ragged, transform=unchanged, **OPTIONS)]
    with ct.loader(ragged, processes=2, transform=unchanged, **OPTIONS) as loader:
        assert [described(x) for x in loader] == here


def not_sent(batch: dict[str, Any]) -> Any:
    class LocalError(Exception):
        pass

    match int(batch["id"].max()) % 3:
        case 0:
            return {"x": torch.nn.Linear(1, 1)(batch["x"][:, None])}
        case 1:
            return (n for n in batch)
    raise LocalError("of no module")


def test_what_cannot_be_sent_raises_and_does_not_hang(ragged: Path) -> None:
    """And the processes end at once, though nobody closes the loader."""
    texts = set()
    for seed in range(12):
        loader = ct.loader(ragged, processes=2, transform=not_sent, **OPTIONS, seed=seed)
        with pytest.raises((RuntimeError, TypeError)) as found:
            next(iter(loader))
        texts.add(str(found.value).strip().splitlines()[-1])
        assert not running()
    for wanted in ("requires_grad", "cannot pickle 'generator'", "of no module"):
        assert any(wanted in text for text in texts), (wanted, texts)


LAMBDA = """
import sys
import torch
import corgiarrow.torch as ct

if __name__ == "__main__":
    torch.multiprocessing.set_start_method("spawn")
    loader = ct.loader(sys.argv[1], processes=1, columns=["id"], transform=lambda batch: batch)
    try:
        next(iter(loader))
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_transform_that_spawn_cannot_send_is_named(ragged: Path) -> None:
    told = run(["-c", LAMBDA, str(ragged)], timeout_s=120)
    assert told.startswith("OptionError transform=<function <lambda>")
    assert "top level of a module" in told


def test_what_comes_before_a_fault_is_delivered(ragged: Path) -> None:
    expected = in_order(ragged, 1)[0]
    fault = next(n for n, batch in enumerate(expected) if 40 in batch)
    assert fault > 2
    with ct.loader(ragged, processes=2, transform=fails_at_40, **OPTIONS) as loader:
        for _ in range(2):
            found = []
            with pytest.raises(ValueError, match="not forty"):
                for batch in loader:
                    found.append(batch["id"].tolist())
            assert loader.reader.position == (0, fault)
            assert found == expected[:fault]
            loader.seek(0, 0)


DEATH = """
import os, signal, sys
import psutil
import corgiarrow as ca, corgiarrow.torch as ct

data, options = sys.argv[1], dict(batch_size=1, streams=4, buffer_blocks=4, columns=["id"])
expected = [batch.column("id").to_pylist() for batch in ca.Reader(data, **options)]
found = []
loader = ct.loader(data, processes=2, **options)
try:
    for batch in loader:
        found.append(batch["id"].tolist())
        if len(found) == 1:
            os.kill(psutil.Process().children()[0].pid, signal.SIGKILL)
except RuntimeError as error:
    assert "DataLoader worker" in str(error), error
assert 0 < len(found) < len(expected)
state = loader.state_dict()
assert [batch["id"].tolist() for batch in loader] == expected, "a pass that broke begins anew"
loader.load_state_dict(state)
found += [batch["id"].tolist() for batch in loader]
assert found == expected
loader.close()
assert not [p for p in psutil.Process().children() if p.status() != "zombie"]
"""


def test_a_process_that_dies_is_noticed_and_replaced(ragged: Path) -> None:
    """In a process of its own: PyTorch raises from a signal handler, wherever the main thread is."""
    run(["-c", DEATH, str(ragged)], timeout_s=120)


def test_batches_that_are_kept_stay_as_they_are_and_are_the_users_to_change(ragged: Path) -> None:
    expected = in_order(ragged, 3)
    with ct.loader(ragged, processes=2, pin_memory=True, **OPTIONS) as loader:
        kept = [batch for _ in range(3) for batch in loader]
        assert ids(kept) == list(itertools.chain(*expected))
        loader.set_epoch(0)
        found = []
        for batch in loader:
            found.append(batch["id"].tolist())
            batch["id"].fill_(-1)
            batch["x"].mul_(torch.ones((), requires_grad=True))
        assert found == expected[0]


def test_it_pickles_and_ends_its_processes_with_the_last_reference(ragged: Path) -> None:
    loader = ct.loader(ragged, processes=2, **OPTIONS)
    next(iter(loader))
    copy = pickle.loads(pickle.dumps(loader))
    children = running()
    assert len(children) == 2
    del loader
    _, left = psutil.wait_procs(children, timeout=30)
    assert not left
    copy.set_epoch(0)
    with copy:
        assert ids(copy) == in_order(ragged, 1)[0]


def test_options_that_do_not_go_together_raise(ragged: Path) -> None:
    for wrong in (-1, 1.5, True):
        with pytest.raises(ca.OptionError, match="processes="):
            ct.loader(ragged, processes=wrong)  # type: ignore[arg-type]
    with pytest.raises(ca.OptionError, match="give one of them"):
        ct.loader(ragged, processes=2, workers=2)
    with pytest.raises(ca.OptionError, match="streams=4"):
        ct.loader(ragged, processes=3, **OPTIONS)
    with pytest.raises(ca.OptionError, match="batch_size=None must be"):
        ct.loader(ragged, batch_size=None)  # type: ignore[arg-type]
    with pytest.raises(ca.OptionError, match="transform='x' must be a function"):
        ct.loader(ragged, transform="x")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="did you mean batch_size"):
        ct.loader(ragged, bach_size=2)  # type: ignore[call-arg]
    with pytest.raises(ca.StateMismatchError, match="the state is None"):
        ct.loader(ragged).load_state_dict(None)  # type: ignore[arg-type]
    assert not isinstance(ct.loader(ragged, processes=0), ProcessLoader)

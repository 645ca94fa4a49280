"""Byte ranges of remote files, kept on a local disk: found again, bounded, shared by processes, and never wrong."""

import json
import multiprocessing
import os
import pickle
import re
import signal
import sqlite3
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import diskcache
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ids_of
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import ROOT, run
from servers import Server, moto_server, rclone_server

import corgiarrow as ca
from corgiarrow.storage import cache as module
from corgiarrow.storage.cache import RangeCache

GROUP_ROWS = 1000
GROUPS = 4
FILES = 4
ROWS = FILES * GROUPS * GROUP_ROWS
SMALL = "train/0.parquet"
SMALL_URL = f"s3://cached/{SMALL}"
BLOCK_BYTES = 1
"""Each row group is a block of its own."""


def some_table(first: int, rows: int) -> pa.Table:
    random = np.random.default_rng(first)
    bits = random.integers(0, 2**63, (rows, 16)).astype("<i8").tobytes()
    wide = pa.Array.from_buffers(pa.binary(128), rows, [None, pa.py_buffer(bits)])
    ids = np.arange(first, first + rows)
    return pa.table({"id": ids, "wide": wide, "x": random.random(rows), "label": ids % 7})


def parquet_bytes(first: int, group_rows: int = GROUP_ROWS, groups: int = GROUPS) -> bytes:
    sink = pa.BufferOutputStream()
    options = {"use_dictionary": False, "compression": "none", "data_page_size": 4096, "write_batch_size": 16}
    pq.write_table(some_table(first, groups * group_rows), sink, row_group_size=group_rows, **options)
    return sink.getvalue().to_pybytes()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with four files of four row groups each, about 2.5 MB, and one of the same rows in larger ones."""
    with moto_server(tmp_path_factory.mktemp("moto") / "log") as server:
        client = server.client()
        client.create_bucket(Bucket="cached")
        for number in range(FILES):
            client.put_object(
                Bucket="cached", Key=f"train/{number}.parquet", Body=parquet_bytes(number * GROUPS * GROUP_ROWS)
            )
        client.put_object(Bucket="cached", Key="large/0.parquet", Body=parquet_bytes(0, 4 * GROUP_ROWS))
        client.close()
        yield server


def reader(server: Server, folder: Path | None = None, name: str = "train", **options: Any) -> ca.Reader:
    given = {"batch_size": 100, "block_bytes": BLOCK_BYTES, "storage_options": server.options}
    return ca.Reader(f"s3://cached/{name}", **{**given, "cache": folder, **options})


def own(folder: Path) -> Path:
    return folder / "corgiarrow-ranges"


def values(folder: Path) -> set[str]:
    """Files of values."""
    return {str(file.relative_to(own(folder))) for file in own(folder).rglob("*.val")}


def known(folder: Path) -> dict[str, int]:
    """Sizes of the files that the database knows."""
    with closing(sqlite3.connect(own(folder) / "cache.db")) as database:
        return dict(database.execute("SELECT filename, size FROM Cache WHERE filename IS NOT NULL"))


def bytes_in(folder: Path) -> int:
    """Bytes on disk; what is removed under way counts nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(parent) / name).stat().st_size
            except FileNotFoundError:
                continue
    return total


def objects_asked_for(server: Server, before: int) -> list[str]:
    return [request for request in server.requests()[before:] if re.match(r"GET .*parquet", request)]


READ = """
import json, logging, sys, zlib
import corgiarrow as ca
logging.basicConfig(stream=sys.stderr)
options = json.loads(sys.argv[1])
epochs, path = options.pop("epochs"), options.pop("path")
with ca.Reader(path, **options) as reader:
    ids = [[batch.column("id").to_pylist() for batch in reader] for _ in range(epochs)]
print(json.dumps({"ids": zlib.crc32(repr(ids).encode()), **reader.stats.as_dict()}))
"""


def arguments(server: Server, folder: Path, script: str = READ, epochs: int = 1, **options: Any) -> list[str]:
    """Of a Python process that reads epochs, and says how the ids came, as a checksum, and the figures."""
    given = {"path": "s3://cached/train", "batch_size": 100, "block_bytes": BLOCK_BYTES, "cache": str(folder)}
    return ["-c", script, json.dumps({**given, "storage_options": server.options, "epochs": epochs, **options})]


def expected(server: Server, epochs: int = 1, name: str = "train") -> int:
    """What such a process says of the ids."""
    with reader(server, name=name) as plain:
        return zlib.crc32(repr([ids_of(plain) for _ in range(epochs)]).encode())


# What is found again


@pytest.mark.parametrize("memory", [None, "400 kB"])
def test_what_was_read_once_is_not_fetched_again(
    server: Server, tmp_path: Path, memory: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in pieces; by the next epoch, another reader, another process; the batches are those without a cache."""
    if memory:
        monkeypatch.setattr("corgiarrow.sources.parquet.PAGE_BYTES", 4096)
        monkeypatch.setattr("corgiarrow.sources.ranges.PAGE_BYTES", 4096)
        monkeypatch.setattr("corgiarrow.sources.ranges._LEAST_BYTES", 4096)
        monkeypatch.setattr("corgiarrow.sources.ranges.BUFFER_BYTES", 4096)
    options: dict[str, Any] = {"name": SMALL, "memory": memory or "512 MiB", "index_cache": False}
    with reader(server, **options) as plain:
        assert (plain.plan().pieces is not None) == bool(memory)
        epochs = [list(plain), list(plain)]
    with reader(server, tmp_path, **options) as first:
        assert list(first) == epochs[0]
        fetched = first.stats.fetched_bytes
        assert first.stats.cached_bytes == 0
        assert first.stats.requests > 0
        requests, before = first.stats.requests, len(server.requests())
        assert list(first) == epochs[1]
        assert (first.stats.fetched_bytes, first.stats.requests) == (fetched, requests)
        assert first.stats.cached_bytes == fetched
        assert objects_asked_for(server, before) == []
    with reader(server, tmp_path, **options) as second:
        assert list(second) == epochs[0]
        assert (second.stats.fetched_bytes, second.stats.requests) == (0, 0)
        assert second.stats.cached_bytes == fetched
        assert objects_asked_for(server, before) == [], "footers come from there too"
    if not memory:
        told = json.loads(run(arguments(server, tmp_path, path=SMALL_URL)))
        assert objects_asked_for(server, before) == []
        assert told["ids"] == expected(server, name=SMALL)
        assert (told["fetched_bytes"], told["requests"]) == (0, 0)


def test_other_columns_are_fetched_as_far_as_they_are_new(server: Server, tmp_path: Path) -> None:
    with reader(server, tmp_path, SMALL, columns=["id", "x", "label"]) as first:
        list(first)
    some = ["id", "wide"]
    with reader(server, tmp_path, SMALL, columns=some) as other, reader(server, name=SMALL, columns=some) as plain:
        assert list(other) == list(plain)
        assert other.stats.fetched_bytes > 0
        fetched = other.stats.fetched_bytes
        assert list(other) == list(plain)
        assert other.stats.fetched_bytes == fetched
    # The id lies apart from x and label, by the wide column: it is fetched by itself, and found again.
    with reader(server, tmp_path, SMALL, columns=["id"]) as narrow:
        assert sorted(i for ids in ids_of(narrow) for i in ids) == list(range(ROWS // FILES))
        assert (narrow.stats.fetched_bytes, narrow.stats.requests) == (0, 0)


def test_a_changed_object_comes_anew(server: Server, tmp_path: Path) -> None:
    client = server.client()
    client.create_bucket(Bucket="changing")
    url, options = "s3://changing/x.parquet", {"storage_options": server.options, "cache": tmp_path}
    for first in (0, 10**6):
        client.put_object(Bucket="changing", Key="x.parquet", Body=parquet_bytes(first))
        for _ in range(2):
            with ca.Reader(url, **options) as changed:
                assert sorted(i for ids in ids_of(changed) for i in ids) == list(range(first, first + 4000))
    assert changed.stats.fetched_bytes == 0
    client.close()


def test_an_etag_that_says_nothing_is_none(tmp_path: Path) -> None:
    """rclone's is '""' for each file: two files of one size are not the same."""
    file = tmp_path / "data" / "bucket" / "x.parquet"
    file.parent.mkdir(parents=True)
    with rclone_server(tmp_path / "data") as server:
        options = {"storage_options": server.options, "cache": tmp_path / "cache"}
        for first in (0, 10**6):
            file.write_bytes(parquet_bytes(first, groups=1))
            os.utime(file, (first, first))
            with ca.Reader("s3://bucket/x.parquet", **options) as changed:
                assert sorted(i for ids in ids_of(changed) for i in ids) == list(range(first, first + GROUP_ROWS))
        file.write_bytes(parquet_bytes(0, groups=1))
        with pytest.raises(ca.SourceChangedError, match="changed since it was indexed"):
            list(changed)


# Bounds


def test_it_stays_below_its_limit(server: Server, tmp_path: Path) -> None:
    """Two processes at once, several epochs, room for less than half of the data."""
    limit, epochs = 1_000_000, 3
    wanted = expected(server, epochs)
    command = [sys.executable, *arguments(server, tmp_path, epochs=epochs, cache_bytes=limit)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    readers = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    most = 0
    while any(process.poll() is None for process in readers):
        most = max(most, bytes_in(tmp_path))
        time.sleep(0.005)
    for process in readers:
        told = json.loads(process.communicate()[0])
        assert process.returncode == 0
        assert told["ids"] == wanted
        assert told["cached_bytes"] > 0
    # Each thread of an event loop's may be writing a range, and the database keeps a log beside it.
    threads, largest, log = min(32, len(os.sched_getaffinity(0)) + 4), 170_000, 600_000
    assert limit / 2 < most < limit + 2 * threads * largest + log
    assert bytes_in(tmp_path) < limit + log
    assert values(tmp_path) == set(known(tmp_path))


@settings(max_examples=8)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 60_000)), max_size=40), st.integers(200_000, 400_000))
def test_what_is_got_is_what_was_put(puts: list[tuple[int, int]], limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_REPLACES", 2)
        folder = Path(os.environ["XDG_CACHE_HOME"]) / f"law-{time.monotonic_ns()}"
        cache = RangeCache(folder, limit)
        held: dict[str, bytes] = {}
        for name, size in puts:
            key, data = f"key {name} {size}", bytes([name]) * size
            cache.put(key, data)
            held[key] = data
            found = {key: cache.get(key, len(data)) for key, data in held.items()}
            assert all(data in (None, held[key]) for key, data in found.items())
            assert sum(len(data) for data in found.values() if data is not None) <= limit
        assert values(folder) == set(known(folder))
        assert bytes_in(folder) <= limit + 4096 * 32


def test_epochs_of_more_than_it_holds_find_much_of_it_again(tmp_path: Path) -> None:
    """Of a random order in each epoch, the oldest of which always went, a fifth would be found."""
    cache, random = RangeCache(tmp_path, 1_200_000), np.random.default_rng(0)
    data = bytes(40_000)
    found = []
    for _ in range(8):
        hits = 0
        for key in random.permutation(60):
            if cache.get(str(key), len(data)) is None:
                cache.put(str(key), data)
            else:
                hits += 1
        found.append(hits / 60)
    assert np.mean(found[1:]) > 0.35
    new = [f"new {n}" for n in range(30)]
    for _ in range(30):
        for key in new:
            if cache.get(key, len(data)) is None:
                cache.put(key, data)
    assert sum(cache.get(key, len(data)) is not None for key in new) > 20, "what nobody reads any more goes in time"


# What goes wrong

HALF = (
    """
import pathlib
write_bytes, writes = pathlib.Path.write_bytes, []
def write_half(path, data):
    writes.append(path)
    if len(writes) == 3:
        write_bytes(path, data[: len(data) // 2])
        print("half", flush=True)
        sys.stdin.read()
    return write_bytes(path, data)
pathlib.Path.write_bytes = write_half
import sys
"""
    + READ
)


def test_a_process_that_is_killed_while_it_writes(server: Server, tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, *arguments(server, tmp_path, HALF, path=SMALL_URL)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"half\n"
        process.send_signal(signal.SIGKILL)
    strays = values(tmp_path) - set(known(tmp_path))
    assert strays
    told = json.loads(run(arguments(server, tmp_path, path=SMALL_URL)))
    assert told["ids"] == expected(server, name=SMALL)
    assert values(tmp_path) - set(known(tmp_path)) == strays, "they might still be written"
    # A day later; one of them is being written just then.
    being_written = own(tmp_path) / "00" / "0.val"
    being_written.parent.mkdir(exist_ok=True)
    being_written.write_bytes(b"new")
    other = tmp_path / "notes.val"
    other.write_text("the user's")
    old = time.time() - 90_000
    for name in (*strays, *known(tmp_path), "tidied"):
        os.utime(own(tmp_path) / name, (old, old))
    RangeCache(tmp_path)
    assert values(tmp_path) - set(known(tmp_path)) == {"00/0.val"}
    assert set(known(tmp_path)) <= values(tmp_path)
    assert other.read_text() == "the user's"
    with reader(server, tmp_path, SMALL) as again:
        assert len(list(again)) == ROWS / FILES / 100
        assert again.stats.requests == 0


def test_what_else_lies_in_the_folder_is_left_alone(tmp_path: Path) -> None:
    for name in ("data.parquet", "ab/cdef.val", "cache.db"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("the user's")
        os.utime(tmp_path / name, (0, 0))
    cache = RangeCache(tmp_path, 1000)
    for number in range(50):
        cache.put(f"key {number}", bytes(500))
    assert (tmp_path / "cache.db").read_text() == "the user's"
    assert {f.name for f in tmp_path.iterdir()} == {"data.parquet", "ab", "cache.db", "corgiarrow-ranges"}
    assert (tmp_path / "ab" / "cdef.val").read_text() == "the user's"


FULL = (
    """
import resource, signal, sys
if len(sys.argv) > 2:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
"""
    + READ
    + """
import pathlib, sqlite3
folder = pathlib.Path(json.loads(sys.argv[1])["cache"]) / "corgiarrow-ranges"
database = sqlite3.connect(folder / "cache.db")
known = dict(database.execute("SELECT filename, size FROM Cache WHERE filename IS NOT NULL"))
files = {str(file.relative_to(folder)): file.stat().st_size for file in folder.rglob("*.val")}
assert files == known, (files, known)
"""
)


def _can_mount() -> bool:
    probe = ["unshare", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("way", ["small files only", *["small disk"] * _can_mount()])
def test_a_full_disk(server: Server, tmp_path: Path, way: str) -> None:
    python = [sys.executable, *arguments(server, tmp_path, FULL, epochs=2, path="s3://cached/large")]
    if way == "small disk":
        mount = 'mount -t tmpfs -o size=1500k tmpfs "$0" && exec "$@"'
        command = ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, str(tmp_path), *python]
    else:
        command = [*python, "limited"]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["ids"] == expected(server, 2, "large")
    assert done.stderr.count("WARNING:corgiarrow:") == 1, done.stderr
    assert "writing fails, reading goes on without it" in done.stderr
    if way == "small disk":
        assert told["cached_bytes"] > 400_000, "what was kept before is still read"


def test_a_write_to_the_database_that_fails_leaves_no_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = RangeCache(tmp_path)
    with closing(sqlite3.connect(own(tmp_path) / "cache.db")) as database:
        database.execute("CREATE TRIGGER full BEFORE INSERT ON Cache BEGIN SELECT RAISE(FAIL, 'full'); END")
    for _ in range(3):
        cache.put("key", bytes(100_000))
    assert values(tmp_path) == set()
    assert [r.levelname for r in caplog.records] == ["WARNING"]


def test_a_database_that_another_process_holds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing new is kept meanwhile, what is there is still read, and nothing is given up."""
    monkeypatch.setattr(module, "_BUSY_S", 0.05)
    cache = RangeCache(tmp_path)
    cache.put("first", bytes(100_000))
    with closing(sqlite3.connect(own(tmp_path) / "cache.db", isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        cache.put("second", bytes(100_000))
        assert cache.get("first", 100_000) == bytes(100_000)
        assert cache.get("second", 100_000) is None
        assert values(tmp_path) == set(known(tmp_path))
        database.execute("ROLLBACK")
    cache.put("second", bytes(100_000))
    assert cache.get("second", 100_000) == bytes(100_000)
    assert not caplog.records


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _alter(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [_truncate, _alter, Path.unlink])
def test_damaged_files(server: Server, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    with reader(server, tmp_path, SMALL) as first:
        wanted = list(first)
    files = sorted(own(tmp_path).rglob("*.val"))
    for file in files[::2]:
        damage(file)
    with reader(server, tmp_path, SMALL) as again:
        assert list(again) == wanted
        assert again.stats.requests == len(files[::2])
        assert list(again) != wanted, "the next epoch"
        assert again.stats.requests == len(files[::2]), "what was damaged is kept anew"


def test_files_that_are_exchanged(server: Server, tmp_path: Path) -> None:
    """Of two rows of the database that are whole, but were exchanged, neither is believed."""
    with reader(server, tmp_path, SMALL) as first:
        wanted = list(first)
    files = sorted(known(tmp_path).items(), key=lambda item: item[1])
    with closing(sqlite3.connect(own(tmp_path) / "cache.db", isolation_level=None)) as database:
        rows = {n: database.execute("SELECT tag FROM Cache WHERE filename = ?", (n,)).fetchone()[0] for n, _ in files}
        update = "UPDATE Cache SET filename = ?, tag = ? WHERE filename = ?"
        for (a, _), (b, _) in zip(files[::2], files[1::2], strict=False):
            database.execute(update, ("x", rows[b], a))
            database.execute(update, (a, rows[a], b))
            database.execute(update, (b, rows[b], "x"))
    with reader(server, tmp_path, SMALL) as again:
        assert list(again) == wanted
        assert again.stats.requests > 0


@pytest.mark.parametrize("spoil", ["text", "half", "keys", "settings"])
def test_a_damaged_database(server: Server, tmp_path: Path, spoil: str, caplog: pytest.LogCaptureFixture) -> None:
    with reader(server, tmp_path, SMALL) as first:
        wanted = list(first)
    file = own(tmp_path) / "cache.db"
    data = file.read_bytes()
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'Cache_key_raw'").fetchone()
        if spoil == "settings":
            database.execute("INSERT INTO Settings VALUES (x'00', 1)")
    keys = data[: 4096 * (root - 1)] + bytes(range(256)) * 16 + data[4096 * root :]
    if spoil != "settings":
        file.write_bytes({"text": b"no database" * 1000, "half": data[: len(data) // 2], "keys": keys}[spoil])
    for _ in range(3 if spoil == "keys" else 2):
        with reader(server, tmp_path, SMALL) as again:
            assert list(again) == wanted
    assert again.stats.requests == 0, "it was begun anew"
    assert 1 <= len(caplog.records) <= 2
    assert "is damaged, and begun anew" in caplog.text or "fails, reading goes on without it" in caplog.text


class _Poison:
    """Makes a file when it is unpickled."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self.file,)


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REPLACES", 1)
    poisoned = tmp_path / "poisoned"
    cache = RangeCache(tmp_path / "cache", 200_000)
    names = {key: module._digest(key) for key in ("a", "b", "c")}
    with diskcache.Cache(str(own(tmp_path / "cache"))) as other:
        other.set(names["a"], _Poison(poisoned))
        other.set(names["b"], [_Poison(poisoned), "x" * 100_000])
        other.set(names["c"], "text")
        other.set((_Poison(poisoned),), b"bytes under another key")
        assert [mode for (mode,) in other._sql("SELECT mode FROM Cache")] == [4, 4, 1, 1]
    for key in names:
        assert cache.get(key, 4) is None
    for key in (*names, *"defgh"):
        cache.put(key, key.encode() * 50_000)
    assert cache.get("h", 50_000) == b"h" * 50_000
    assert not poisoned.exists()


def test_a_folder_that_goes_away_under_way(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with reader(server, tmp_path / "cache", SMALL) as under_way:
        wanted = [list(under_way)]
        own(tmp_path / "cache").rename(tmp_path / "elsewhere")
        wanted.append(list(under_way))
        sent = pickle.dumps(under_way)
    with reader(server, name=SMALL) as plain:
        assert [list(plain), list(plain)] == wanted
    assert caplog.records
    assert all("reading goes on without it" in record.message for record in caplog.records)
    assert len(caplog.records) <= 2
    # A worker process may not find the folder at all: a file is in its place.
    caplog.clear()
    (tmp_path / "cache").rename(tmp_path / "away")
    (tmp_path / "cache").touch()
    again = pickle.loads(sent)
    again.seek(0, 0)
    assert list(again) == wanted[0]
    assert "reading goes on without it" in caplog.text


def test_what_is_no_folder(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    bad: dict[str, dict[str, Any]] = {
        r"cache_bytes='1 GiB' goes with cache=": {"cache": None, "cache_bytes": "1 GiB"},
        r"cache_bytes='lots' must be bytes": {"cache_bytes": "lots"},
        r"cache_bytes=0 must be a positive": {"cache_bytes": 0},
        r"cache=s3://… must be a folder on a local disk": {"cache": "s3://key:SECRET@bucket/cache"},
        r"cache='' must be a folder": {"cache": ""},
        r"cache=5 must be a folder": {"cache": 5},
        r"cache='.*/file' cannot be used: .*give a folder that can be written": {"cache": str(tmp_path / "file")},
        r"cache='/proc/none' cannot be used": {"cache": "/proc/none"},
    }
    for message, options in bad.items():
        with pytest.raises(ca.OptionError, match=message):
            reader(server, **{"cache": tmp_path / "folder", **options})
    index = ca.BlockIndex.build("s3://cached/train", storage_options=server.options)
    with pytest.raises(ca.OptionError, match="cache= goes with a path"):
        ca.Reader(index, cache=tmp_path / "folder")
    monkeypatch.setitem(sys.modules, "diskcache", None)
    with pytest.raises(ca.MissingExtraError, match=r"pip install 'corgiarrow\[cache\]'"):
        reader(server, tmp_path / "folder")
    assert list(reader(server)), "without a cache it is not needed"


def test_a_relative_folder_and_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for folder, there in (("here", "here"), ("~/cache", "home/cache"), ("$HOME/other", "home/other")):
        cache = RangeCache(folder)
        monkeypatch.chdir("/")
        sent = pickle.loads(pickle.dumps(cache))
        assert sent.folder == str(own(tmp_path / there))
        sent.put("key", b"data")
        assert cache.get("key", 4) == b"data"
        assert (own(tmp_path / there) / "cache.db").exists()
        monkeypatch.chdir(tmp_path)


# Processes


def its_ids(part: ca.Reader) -> tuple[list[list[int]], int]:
    return ids_of(part), part.stats.requests


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_worker_processes(server: Server, tmp_path: Path, method: str) -> None:
    whole = reader(server, tmp_path, streams=2)
    wanted = ids_of(whole)
    before = len(server.requests())
    parts = [reader(server, tmp_path, streams=2, worker=w, num_workers=2) for w in range(2)]
    with ProcessPoolExecutor(2, multiprocessing.get_context(method)) as processes:
        found = list(processes.map(its_ids, parts))
    assert [ids for step in zip(*(ids for ids, _ in found), strict=True) for ids in step] == wanted
    assert [requests for _, requests in found] == [0, 0]
    assert objects_asked_for(server, before) == []


FORK = """
import os, sys, threading
from corgiarrow.storage.cache import RangeCache
cache, data, stop = RangeCache(sys.argv[1], 3_000_000), bytes(range(256)) * 200, threading.Event()

def use(first):
    for number in range(first, first + 40):
        key = f"key {number % 70}"
        found = cache.get(key, len(data))
        assert found in (None, data)
        if found is None:
            cache.put(key, data)

def go_on(first):
    while not stop.is_set():
        use(first)

threads = [threading.Thread(target=go_on, args=(20 * n,)) for n in range(4)]
for thread in threads:
    thread.start()
children = []
for number in range(12):
    if (child := os.fork()) == 0:
        use(number)
        os._exit(bool(cache._failed))
    children.append(child)
ended = [os.waitpid(child, 0)[1] for child in children]
stop.set()
for thread in threads:
    thread.join()
assert not any(ended), ended
assert not cache._failed
"""


def test_forks_while_threads_use_it(tmp_path: Path) -> None:
    run(["-W", "error::ResourceWarning", "-c", FORK, str(tmp_path)], timeout_s=60)
    with closing(sqlite3.connect(own(tmp_path) / "cache.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert values(tmp_path) == set(known(tmp_path))


def test_nothing_stays_open(tmp_path: Path) -> None:
    cache = RangeCache(tmp_path)
    cache.put("key", bytes(100_000))
    assert cache.get("key", 100_000)
    opened = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    assert not [name for name in opened if str(tmp_path) in name]

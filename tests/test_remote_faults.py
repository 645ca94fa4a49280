"""Storages that fail, real ones behind a proxy that plays their faults: what passes is overcome, what lasts is told."""

import logging
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import s3fs
from conftest import RAGGED, ids_of, write_dataset, write_rows
from servers import FaultProxy, Running, Server, fault_proxy, http_server, moto_server, rclone_server

import corgiarrow as ca
from corgiarrow.storage import access, find_files
from corgiarrow.storage.faults import Tries

PASSING = ["reset", "503", "500", "truncated", "wrong-length"]
MIXED = [*PASSING * 3, "timeout", "slow"]
"""All that passes, what stalls less often: each time takes a second or more."""
TIMEOUT_S = 20
"""A first try that stalls is broken off after a twentieth."""

CAUSES = {
    "reset": "EndpointConnectionError|ConnectionClosedError",
    "timeout": "(FS)?TimeoutError",
    "503": "OSError|ClientError",  # The first is s3fs's own, of listings.
    "500": "OSError|ClientError",
    "truncated": "ConnectionClosedError",
    "slow": "TimeoutError",
    "wrong-length": "ShortReadError|FlexibleChecksumError",
}
"""The error in which S3's driver or ours tells of each kind of fault."""

SECRETS = {"key": "HUSHKEY", "secret": "HUSHSECRET", "token": "HUSHTOKEN"}
HUSH = re.compile("HUSH", re.IGNORECASE)
"""What stands in every secret of these tests."""

GROUPS = [[40, 10, 25]] * 8 + [[5, 60, 1, 30]] * 4
PIECES = [10_000, 17, 10_000]
MEMORY = "700 kB"
"""Less than one of the larger row groups takes."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with moto_server(tmp_path_factory.mktemp("moto") / "log") as server:
        client = server.client()
        client.create_bucket(Bucket="corgi")
        client.close()
        yield server


@pytest.fixture(scope="module")
def shared_proxy(server: Server) -> Iterator[FaultProxy]:
    with fault_proxy(server.endpoint, rate=0, kinds=[]) as proxy:
        yield proxy
        assert "Traceback" not in proxy.log.read_text(), proxy.log.read_text()


@pytest.fixture
def proxy(shared_proxy: FaultProxy) -> Iterator[FaultProxy]:
    _calm(shared_proxy)
    yield shared_proxy
    _calm(shared_proxy)


def _calm(proxy: FaultProxy) -> None:
    proxy.set(rate=0, kinds=[], after=0, most=None)


@pytest.fixture(scope="module")
def data(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `groups`, `few` and `pieces`, in the bucket ``corgi`` too: small row groups, and large ones."""
    folder = tmp_path_factory.mktemp("data")
    write_dataset(folder / "groups", GROUPS)
    write_dataset(folder / "few", [[40, 10], [25]])
    (folder / "pieces").mkdir()
    first = 0
    with pq.ParquetWriter(folder / "pieces" / "x.parquet", LARGE, **SMALL_PAGES) as writer:
        for rows in PIECES:
            ids = np.arange(first, first + rows)
            writer.write_table(pa.table({"id": ids, "text": [f"{i:0100}" for i in ids]}, schema=LARGE))
            first += rows
    client = server.client()
    for file in sorted(folder.rglob("*.parquet")):
        client.put_object(Bucket="corgi", Key=str(file.relative_to(folder)), Body=file.read_bytes())
    client.close()
    return folder


LARGE = pa.schema([("id", pa.int64()), ("text", pa.string())])
SMALL_PAGES = {"data_page_size": 4096, "write_batch_size": 64, "use_dictionary": False, "compression": "none"}


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a cursor costs and what it fetches follow from the size of pages, which are small in these files."""
    monkeypatch.setattr("corgiarrow.sources.parquet.PAGE_BYTES", 4096)
    monkeypatch.setattr("corgiarrow.sources.cursors.BUFFER_BYTES", 4096)
    for name, value in (("PAGE_BYTES", 4096), ("BUFFER_BYTES", 100), ("_LEAST_BYTES", 8192)):
        monkeypatch.setattr(f"corgiarrow.sources.ranges.{name}", value)


@pytest.fixture(autouse=True)
def _no_secret_kept(
    caplog: pytest.LogCaptureFixture, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """No secret is logged, or kept with the indexes; each test begins without any."""
    caplog.set_level(logging.DEBUG, logger="corgiarrow")
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    yield
    for file in folder.rglob("*"):
        assert not HUSH.search(file.name)
        assert file.is_dir() or b"HUSH" not in file.read_bytes().upper()
    for record in caplog.records:
        if record.name.startswith("corgiarrow"):
            assert not HUSH.search(logging.Formatter().format(record))


def _s3(server: Running) -> dict[str, object]:
    return {**SECRETS, "endpoint_url": server.endpoint}


def _put(server: Server, key: str, body: bytes | None) -> None:
    """Put an object into the bucket, or delete it."""
    client = server.client()
    if body is None:
        client.delete_object(Bucket="corgi", Key=key)
    else:
        client.put_object(Bucket="corgi", Key=key, Body=body)
    client.close()


@contextmanager
def _raised(kind: type[ca.CorgiArrowError], match: str, within_s: float = 20.0) -> Iterator[None]:
    """Expect an error soon, which holds neither a secret nor somebody else's error."""
    began = time.monotonic()
    with pytest.raises(kind, match=match) as caught:
        yield
    assert time.monotonic() - began < within_s
    error = caught.value
    assert type(error) is kind
    assert error.__cause__ is None
    assert error.__context__ is None or (error.__suppress_context__ and type(error) is ca.SourceChangedError)
    while error is not None:
        assert isinstance(error, ca.CorgiArrowError)
        assert not HUSH.search(f"{error} {error!r} {error.args}")
        error = error.__context__


def _tries(causes: str) -> str:
    """How it is told that tries failed."""
    return rf"\d+ attempts in [\d.]+ s failed \(bounds: \d+ attempts, [\d.]+ s\), (some|the last) with .*\b({causes})\b"


def _met(proxy: FaultProxy) -> int:
    """How many faults were met, but for resets: a kept connection that is reset is tried once more by the drivers."""
    return sum(number for kind, number in proxy.stats()["faults"].items() if kind != "reset")


# Faults that pass

FORMS = {"groups": {"batch_size": 32, "buffer_blocks": 9}, "pieces": {"batch_size": 400, "memory": MEMORY}}


@pytest.mark.parametrize(("shuffle", "seeds"), [("none", [1]), ("block", [2]), ("corgipile", [3, 4])])
@pytest.mark.parametrize("form", FORMS)
def test_every_row_once_in_the_same_order(
    proxy: FaultProxy, data: Path, form: str, shuffle: str, seeds: list[int]
) -> None:
    for seed in seeds:
        options = {**FORMS[form], "shuffle": shuffle, "seed": seed}
        local = ca.Reader(data / form, **options)
        assert (local.plan().pieces is not None) == (form == "pieces")
        wanted = list(local)
        assert sorted(i for b in ids_of(iter(wanted)) for i in b) == list(range(local.num_rows))
        with ca.Reader(f"s3://corgi/{form}", storage_options=_s3(proxy), timeout=TIMEOUT_S, **options) as reader:
            before = _met(proxy)
            proxy.set(rate=0.2, kinds=MIXED, seed=seed)
            assert list(reader) == wanted
            proxy.set(rate=0)
            assert reader.stats.retries >= _met(proxy) - before > 0
            assert reader.stats.requests > reader.stats.retries


@pytest.mark.parametrize("form", FORMS)
def test_resumed_through_faults(proxy: FaultProxy, data: Path, form: str) -> None:
    local = ca.Reader(data / form, **FORMS[form])
    wanted = list(local)
    reader = ca.Reader(f"s3://corgi/{form}", storage_options=_s3(proxy), timeout=TIMEOUT_S, **FORMS[form])
    proxy.set(rate=0.2, kinds=MIXED, seed=3)
    batches = iter(reader)
    assert [next(batches), next(batches)] == wanted[:2]
    state = reader.state_dict()
    reader.close()
    reader.load_state_dict(state)
    assert list(reader) == wanted[2:]
    local.seek(1, len(wanted) // 2)
    reader.load_state_dict(local.state_dict())
    assert list(reader) == list(local)
    assert reader.stats.retries > 0


def test_indexed_through_faults(proxy: FaultProxy, data: Path, tmp_path: Path) -> None:
    """Footers come, and rows are counted, and a saved index reads its footers in the pass."""
    local = ca.Reader(data / "groups", filter=pc.field("name").is_valid())
    before = _met(proxy)
    proxy.set(rate=0.2, kinds=MIXED, seed=4)
    options = {"storage_options": _s3(proxy), "timeout": TIMEOUT_S}
    index = ca.BlockIndex.build("s3://corgi/groups", **options)
    met = _met(proxy) - before
    assert met > 0
    assert index.fingerprint == ca.BlockIndex.build(data / "groups").fingerprint
    reader = ca.Reader(index, filter=pc.field("name").is_valid())
    assert _met(proxy) - before > met
    index.save(tmp_path / "index")
    assert list(reader) == list(local)
    loaded = ca.Reader(ca.BlockIndex.load(tmp_path / "index", **options), batch_size=32)
    assert list(loaded) == list(ca.Reader(data / "groups", batch_size=32))
    assert loaded.stats.retries > 0


# Faults that last


@pytest.fixture(scope="module")
def warm(shared_proxy: FaultProxy) -> s3fs.S3FileSystem:
    """A file system that is open already, so that little time is enough; its driver tries once, as ours do."""
    _calm(shared_proxy)
    options = {"config_kwargs": {"retries": {"max_attempts": 0}}, "default_cache_type": "none"}
    files = s3fs.S3FileSystem(**_s3(shared_proxy), **options, skip_instance_cache=True, use_listings_cache=False)
    files.retries = 1
    assert not files.exists("corgi/nothing")
    return files


@pytest.mark.parametrize("kind", CAUSES)
def test_row_groups_that_do_not_come_are_told_in_time(
    proxy: FaultProxy, data: Path, warm: s3fs.S3FileSystem, kind: str
) -> None:
    reader = ca.Reader("s3://corgi/few", filesystem=warm, timeout=2)
    proxy.set(rate=1, kinds=[kind])
    with _raised(ca.StorageError, rf"^corgi/few/part-\d+\.parquet, row group \d: {_tries(CAUSES[kind])}"):
        list(reader)
    assert reader.stats.rows == 0


@pytest.mark.parametrize("kind", ["reset", "timeout", "500", "truncated", "wrong-length"])
def test_footers_that_do_not_come_are_told_in_time(
    proxy: FaultProxy, data: Path, warm: s3fs.S3FileSystem, kind: str
) -> None:
    # The first object that is asked for is the folder's name: there is none.
    proxy.set(rate=1, kinds=[kind], after=1)
    with _raised(ca.StorageError, rf"^corgi/few/part-\d+\.parquet: {_tries(CAUSES[kind])}"):
        ca.Reader("s3://corgi/few", filesystem=warm, timeout=2)


@pytest.mark.parametrize("kind", ["timeout", "503"])
def test_a_listing_that_does_not_come_is_told_in_time(
    proxy: FaultProxy, warm: s3fs.S3FileSystem, kind: str
) -> None:
    proxy.set(rate=1, kinds=[kind])
    with _raised(ca.StorageError, rf"^s3://corgi/few: {_tries(CAUSES[kind])}"):
        ca.Reader("s3://corgi/few", filesystem=warm, timeout=2)
    given = ["s3://corgi/few/part-001.parquet", "s3://corgi/few/part-000.parquet"]
    with _raised(ca.StorageError, rf"^s3://corgi/few/part-00[01]\.parquet: {_tries(CAUSES[kind])}"):
        ca.Reader(given, filesystem=warm, timeout=2)


def test_every_kind_of_fault_is_named() -> None:
    """A last try that the deadline cuts says nothing of what the storage has answered."""
    met = iter([ConnectionResetError(), OSError("Slow down"), TimeoutError()])

    def fail() -> None:
        raise next(met)

    told = r"^x: 3 attempts .*, some with ConnectionResetError, OSError, the last with TimeoutError$"
    with _raised(ca.StorageError, told):
        Tries("x", 30, attempts=3).call(fail)


@pytest.mark.parametrize("form", FORMS)
def test_what_was_read_before_is_delivered(
    proxy: FaultProxy, data: Path, warm: s3fs.S3FileSystem, form: str
) -> None:
    options = {**FORMS[form], "shuffle": "none"}
    reader = ca.Reader(f"s3://corgi/{form}", filesystem=warm, timeout=2, **options)
    batches = []
    proxy.set(rate=1, kinds=["503"], after=30)
    with _raised(ca.StorageError, rf"row group \d: {_tries('ClientError')}"):
        for batch in reader:
            batches.append(batch)
    assert batches
    assert batches == list(ca.Reader(data / form, **options))[: len(batches)]
    proxy.set(rate=0)
    reader.load_state_dict(reader.state_dict())
    assert batches + list(reader) == list(ca.Reader(data / form, **options)), "goes on where it broke off"


@pytest.mark.parametrize("how", ["denied", "gone", "replaced"])
def test_what_cannot_pass_is_asked_for_once(server: Server, proxy: FaultProxy, how: str, tmp_path: Path) -> None:
    write_rows(tmp_path / "x.parquet", [100])
    body = (tmp_path / "x.parquet").read_bytes()
    _put(server, "once/x.parquet", body)
    reader = ca.Reader("s3://corgi/once", storage_options=_s3(proxy), timeout=30)
    kind, match = ca.SourceChangedError, rf"corgi/once/x\.parquet.*(file is {how}|changed) since it was indexed"
    if how == "denied":
        proxy.set(rate=1, kinds=["denied"])
        kind, match = ca.AccessDeniedError, r"^corgi/once/x\.parquet, row group 0: PermissionError: .*check the cred"
    elif how == "gone":
        _put(server, "once/x.parquet", None)
    else:
        write_rows(tmp_path / "x.parquet", [100], first=5)
        _put(server, "once/x.parquet", (tmp_path / "x.parquet").read_bytes())
    before = len(proxy.requests())
    with _raised(kind, match):
        list(reader)
    # What a signed URL is refused is asked for once more by a signed request.
    assert proxy.requests()[before:] == ["GET /corgi/once/x.parquet"] * (2 if how == "denied" else 1)
    assert reader.stats.retries == 0


def test_a_store_that_takes_no_signed_urls(proxy: FaultProxy, data: Path) -> None:
    wanted = list(ca.Reader(data / "groups", **FORMS["groups"]))
    proxy.set(rate=1, kinds=["signed-url"])
    reader = ca.Reader("s3://corgi/groups", storage_options=_s3(proxy), **FORMS["groups"])
    assert list(reader) == wanted
    assert reader.stats.retries == 0
    refused = proxy.stats()["faults"]["signed-url"]
    assert list(reader)
    assert proxy.stats()["faults"]["signed-url"] == refused, "it is not tried again and again"


def test_a_pass_asks_for_nothing_but_ranges(proxy: FaultProxy, data: Path) -> None:
    reader = ca.Reader("s3://corgi/groups", storage_options=_s3(proxy), batch_size=64)
    before = len(proxy.requests())
    assert sum(b.num_rows for b in reader) == reader.num_rows
    assert {request.partition(" ")[0] for request in proxy.requests()[before:]} == {"GET"}
    assert len(proxy.requests()) - before == reader.stats.requests == sum(map(len, GROUPS))


# Credentials


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one whenever a file system is opened."""
    found: list[object] = []
    really = access._open

    def opens(url: str, options: object, anew: bool) -> object:
        found.append(anew)
        return really(url, options, anew)

    monkeypatch.setattr(access, "_open", opens)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_expired_credentials_are_asked_for_anew(proxy: FaultProxy, data: Path, form: str) -> None:
    calls = []

    def fresh() -> dict[str, object]:
        calls.append(proxy.stats()["faults"].get("expired", 0))
        if len(calls) > first:
            proxy.set(rate=0)  # The new ones are good.
        return _s3(proxy)

    first = 100
    wanted = list(ca.Reader(data / form, **FORMS[form]))
    reader = ca.Reader(f"s3://corgi/{form}", storage_options=fresh, timeout=30, **FORMS[form])
    assert calls
    first = len(calls)
    proxy.set(rate=1, kinds=["expired"], after=5)
    assert list(reader) == wanted
    assert len(calls) == first + 1, "one who is refused asks, for all others too"
    assert reader.stats.retries >= 1


def test_a_file_system_whose_credentials_expired_is_opened_anew(
    proxy: FaultProxy, data: Path, opened: list[object]
) -> None:
    wanted = list(ca.Reader(data / "groups", **FORMS["groups"]))
    reader = ca.Reader("s3://corgi/groups", storage_options=_s3(proxy), **FORMS["groups"])
    before = len(opened)
    proxy.set(rate=1, kinds=["expired"], after=5, most=1)
    assert list(reader) == wanted
    assert opened[before:] == [True]
    assert reader.stats.retries == 1


@pytest.mark.parametrize("kind", ["expired", "denied"])
@pytest.mark.parametrize("asks", [False, True])
def test_credentials_that_stay_refused(
    proxy: FaultProxy, data: Path, opened: list[object], kind: str, asks: bool
) -> None:
    given: object = (lambda: _s3(proxy)) if asks else _s3(proxy)
    options = {"storage_options": given, "timeout": 60, "buffer_blocks": 1, "shuffle": "none"}
    index = ca.BlockIndex.build("s3://corgi/pieces", storage_options=given, timeout=60)
    proxy.set(rate=1, kinds=[kind])
    before = len(opened)
    told = r"pieces/x\.parquet, row group \d: .*(PermissionError|ExpiredToken).*check the credentials"
    with _raised(ca.AccessDeniedError, told):
        list(ca.Reader(index, buffer_blocks=1, shuffle="none"))
    assert 0 < len(opened) - before <= 6 if asks or kind == "expired" else len(opened) == before
    with _raised(ca.AccessDeniedError, r"^s3://corgi/pieces: .*(PermissionError|ExpiredToken).*check the credentials"):
        ca.Reader("s3://corgi/pieces", **options)


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    """rclone with a bucket ``bucket``, and that as a folder."""
    folder = tmp_path_factory.mktemp("rclone")
    write_dataset(folder / "bucket", RAGGED)
    with rclone_server(folder, "HUSHKEY", "HUSHSECRET") as server:
        yield server, folder / "bucket"


def test_wrong_keys(rclone: tuple[Server, Path]) -> None:
    server, _ = rclone
    right = {"key": "HUSHKEY", "secret": "HUSHSECRET", "endpoint_url": server.endpoint}
    for wrong in ({"secret": "HUSHOTHER"}, {"key": "HUSHNOBODY"}):
        for url in ("s3://bucket", "s3://bucket/part-000.parquet", "s3://bucket/*.parquet"):
            with _raised(ca.AccessDeniedError, rf"^{re.escape(url)}: PermissionError.*check the credentials"):
                ca.Reader(url, storage_options={**right, **wrong})


def test_a_storage_without_etags(rclone: tuple[Server, Path]) -> None:
    """Each file is compared with the index once a pass."""
    server, folder = rclone
    with fault_proxy(server.endpoint, rate=0, kinds=[]) as proxy:
        options = {"key": "HUSHKEY", "secret": "HUSHSECRET", "endpoint_url": proxy.endpoint}
        local = ca.Reader(folder, batch_size=8)
        reader = ca.Reader("s3://bucket", storage_options=options, batch_size=8, timeout=TIMEOUT_S)
        holding = [f"HEAD /bucket/part-{n:03}.parquet" for n, groups in enumerate(RAGGED) if sum(groups)]
        for _ in range(2):
            before = len(proxy.requests())
            assert list(reader) == list(local)
            assert sorted(r for r in proxy.requests()[before:] if r.startswith("HEAD")) == holding
        proxy.set(rate=0.2, kinds=MIXED, seed=5)
        assert list(reader) == list(local)
        proxy.set(rate=0)
        assert reader.stats.retries > 0
        write_rows(folder / "part-000.parquet", [30, 1, 18])
        with _raised(ca.SourceChangedError, r"part-000\.parquet: the file changed since it was indexed"):
            list(reader)


# Plain HTTP


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FaultProxy, Path]]:
    """Files in two folders for those with a signature, through a proxy."""
    folder = tmp_path_factory.mktemp("web")
    write_dataset(folder / "one", RAGGED)
    write_dataset(folder / "two", [[9, 9], [60]])
    with http_server(folder, sig="HUSHSIG") as server, fault_proxy(server.endpoint, rate=0, kinds=[]) as proxy:
        yield proxy, folder
        assert "Traceback" not in proxy.log.read_text(), proxy.log.read_text()


def _urls(endpoint: str, folder: Path, query: str = "?sig=HUSHSIG") -> list[str]:
    return [f"{endpoint}/{f.relative_to(folder)}{query}" for f in sorted(folder.rglob("*.parquet"))]


def _hushed(reader: ca.Reader, path: Path) -> None:
    reader.source.index.save(path)
    assert not HUSH.search(f"{reader!r} {reader.source.index!r} {reader.source.index.storage!r} {reader.state_dict()}")
    assert b"HUSH" not in path.read_bytes().upper()


def test_signed_urls(web: tuple[FaultProxy, Path], tmp_path: Path) -> None:
    proxy, folder = web
    _calm(proxy)
    local = ca.Reader(folder, batch_size=16, provenance=True)
    reader = ca.Reader(_urls(proxy.endpoint, folder), batch_size=16, provenance=True, timeout=TIMEOUT_S)
    wanted = list(local)
    assert list(reader) == wanted
    _hushed(reader, tmp_path / "index")
    local.seek(0, 5)
    reader.load_state_dict(local.state_dict())
    proxy.set(rate=0.2, kinds=MIXED, seed=6)
    assert list(reader) == wanted[5:]
    assert reader.stats.retries > 0
    again = ca.Reader(_urls(proxy.endpoint, folder), batch_size=16, provenance=True, timeout=TIMEOUT_S)
    assert list(again) == wanted
    _calm(proxy)


@pytest.mark.parametrize("kind", ["reset", "timeout", "503", "truncated"])
def test_http_that_does_not_pass(
    web: tuple[FaultProxy, Path], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, folder = web
    _calm(proxy)
    urls = _urls(proxy.endpoint, folder)
    reader = ca.Reader(urls, timeout=1)
    proxy.set(rate=1, kinds=[kind])
    causes = "ClientOSError|ServerDisconnectedError|ClientResponseError|ClientPayloadError|ShortReadError|TimeoutError"
    tries = _tries(f"(FS)?({causes})")
    with _raised(ca.StorageError, rf"/(one|two)/part-\d+\.parquet, row group \d: {tries}"):
        list(reader)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # The index that was kept is not looked for.
    with _raised(ca.StorageError, rf"/(one|two)/part-\d+\.parquet(\?\*\*\*)?: {tries}"):
        ca.Reader(urls, timeout=1)
    _calm(proxy)


def test_http_that_refuses(web: tuple[FaultProxy, Path]) -> None:
    proxy, folder = web
    _calm(proxy)
    for query in ("", "?sig=HUSHOTHER"):
        urls = _urls(proxy.endpoint, folder, query)
        for data in (urls, urls[0]):
            with _raised(ca.AccessDeniedError, r"/one/part-000\.parquet\S*: ClientResponseError: 403.*check the cred"):
                ca.Reader(data)
    with _raised(ca.NoFilesError, r"/one/none\.parquet\?\*\*\* does not exist"):
        ca.Reader(f"{proxy.endpoint}/one/none.parquet?sig=HUSHSIG")
    reader = ca.Reader(_urls(proxy.endpoint, folder), timeout=30)
    proxy.set(rate=1, kinds=["denied"])
    with _raised(ca.AccessDeniedError, r"parquet, row group \d: ClientResponseError: 403.*check the credentials"):
        list(reader)
    _calm(proxy)


def test_a_file_on_the_web_that_changed(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "web", [[10], [20]])
    with http_server(folder, sig="HUSHSIG") as server:
        reader = ca.Reader(_urls(server.endpoint, folder), timeout=30)
        assert sum(b.num_rows for b in reader) == 30
        write_rows(folder / "part-001.parquet", [20], first=7)
        before = len(server.requests())
        with _raised(ca.SourceChangedError, r"part-001\.parquet, row group 0: the file changed since it was indexed"):
            list(reader)
        (folder / "part-001.parquet").unlink()
        with _raised(ca.SourceChangedError, r"part-001\.parquet: the file is gone since it was indexed"):
            list(reader)
        assert all(request.startswith("GET") for request in server.requests()[before:])


def test_a_server_that_knows_no_ranges(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path / "web", [[5, 3]])
    pq.write_table(pa.table({"x": np.random.default_rng(0).random(20_000)}), folder / "large.parquet")
    with http_server(folder, ranges=False) as server:
        for name in ("part-000", "large"):
            with _raised(ca.StorageError, rf"{name}\.parquet.*this server knows no byte ranges\. Give the data by an"):
                list(ca.Reader(f"{server.endpoint}/{name}.parquet"))


def test_a_password_in_a_url(web: tuple[FaultProxy, Path], tmp_path: Path) -> None:
    proxy, folder = web
    _calm(proxy)
    named = proxy.endpoint.replace("://", "://HUSHUSER:HUSHPASS@")
    for urls in (_urls(named, folder), _urls(named, folder)[0]):
        reader = ca.Reader(urls, provenance=True, timeout=1)
        assert not HUSH.search(str(list(reader)))
        _hushed(reader, tmp_path / "index")
        proxy.set(rate=1, kinds=["503", "reset"])
        with _raised(ca.StorageError, r"://\*\*\*@.*attempts"):
            list(reader)
        with _raised(ca.StorageError, r"://\*\*\*@.*attempts"):
            ca.Reader(urls, timeout=1)
        proxy.set(kinds=["denied"])
        with _raised(ca.AccessDeniedError, r"://\*\*\*@.*check the credentials"):
            list(reader)
        _calm(proxy)


def test_a_password_in_urls_of_several_hosts(web: tuple[FaultProxy, Path]) -> None:
    proxy, folder = web
    urls = _urls(proxy.endpoint.replace("://", "://HUSHUSER:HUSHPASS@"), folder)
    other = [url.replace("127.0.0.1", "localhost") for url in urls[:1]]
    with _raised(ca.OptionError, r"several hosts.*client_kwargs"):
        ca.Reader([*other, *urls[1:]])
    reader = ca.Reader([url.replace("HUSHUSER:HUSHPASS@", "") for url in [*other, *urls[1:]]])
    assert sum(batch.num_rows for batch in reader) == ca.Reader(folder).num_rows


# Many keys


def test_more_keys_than_a_page_of_a_listing(server: Server, tmp_path: Path) -> None:
    write_rows(tmp_path / "x.parquet", [2])
    body = (tmp_path / "x.parquet").read_bytes()
    numbers = np.random.default_rng(0).permutation(1050)
    client = server.client()
    client.create_bucket(Bucket="many")
    with ThreadPoolExecutor(4) as executor:
        keys = [f"{number % 7}/{number}.parquet" for number in numbers]
        list(executor.map(lambda key: client.put_object(Bucket="many", Key=key, Body=body), keys))
    client.close()
    for url in ("s3://many", "s3://many/*/*.parquet"):
        _, files = find_files(url, storage_options=_s3(server))
        assert [f.path for f in files] == sorted(keys)


# Requests that hang


def test_one_dead_connection_holds_up_nobody_else(server: Server, proxy: FaultProxy, data: Path) -> None:
    dead = ca.Reader("s3://corgi/groups", storage_options=_s3(proxy), timeout=3, batch_size=64, rank=0, world_size=2)
    well = ca.Reader("s3://corgi/groups", storage_options=_s3(server), timeout=3, batch_size=64, rank=1, world_size=2)
    proxy.set(rate=1, kinds=["timeout"])
    ended: dict[str, float] = {}
    began = time.monotonic()

    def reads() -> None:
        with pytest.raises(ca.StorageError, match=r"row group \d: \d attempts .*TimeoutError"):
            list(dead)
        ended["dead"] = time.monotonic() - began

    thread = threading.Thread(target=reads)
    thread.start()
    assert list(well) == list(ca.Reader(data / "groups", batch_size=64, rank=1, world_size=2))
    ended["well"] = time.monotonic() - began
    thread.join()
    assert ended["well"] < ended["dead"] < 3 + 3


def _wait_for_a_fault(proxy: FaultProxy, met: int) -> float:
    """Return when a fault was met, beside those before."""
    began = time.monotonic()
    while _met(proxy) == met:
        assert time.monotonic() - began < 20
        time.sleep(0.01)
    return time.monotonic()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["timeout", "slow"])
def test_interrupted_while_requests_hang(proxy: FaultProxy, data: Path, form: str, kind: str) -> None:
    reader = ca.Reader(f"s3://corgi/{form}", storage_options=_s3(proxy), threads=2, **FORMS[form])
    proxy.set(rate=1, kinds=[kind], after=12)
    met = _met(proxy)
    interrupted: list[float] = []

    def interrupt() -> None:
        interrupted.append(_wait_for_a_fault(proxy, met))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        list(reader)
    reader.close()
    assert time.monotonic() - interrupted[0] < 2
    thread.join()


@pytest.mark.parametrize(("how", "kind"), [("closed", "timeout"), ("left", "slow"), ("resumed", "timeout")])
def test_breaking_off_while_requests_hang(proxy: FaultProxy, data: Path, how: str, kind: str) -> None:
    options = {**FORMS["groups"], "shuffle": "none", "threads": 2}
    wanted = list(ca.Reader(data / "groups", **options))
    reader = ca.Reader("s3://corgi/groups", storage_options=_s3(proxy), **options)
    proxy.set(rate=1, kinds=[kind], after=12)
    met = _met(proxy)
    for _ in reader:
        began = _wait_for_a_fault(proxy, met)
        if how == "closed":
            reader.close()
        break
    if how == "resumed":
        proxy.set(rate=0)
        reader.load_state_dict(reader.state_dict())
        assert list(reader) == wanted[1:]
    reader.close()
    assert time.monotonic() - began < 2


def test_a_comparison_that_hangs_is_told_in_time(rclone: tuple[Server, Path]) -> None:
    server, _ = rclone
    with fault_proxy(server.endpoint, rate=0, kinds=[]) as proxy:
        options = {"key": "HUSHKEY", "secret": "HUSHSECRET", "endpoint_url": proxy.endpoint}
        reader = ca.Reader("s3://bucket", storage_options=options, timeout=2)
        proxy.set(rate=1, kinds=["timeout"])
        with _raised(ca.StorageError, rf"^bucket/part-\d+\.parquet: {_tries(CAUSES['timeout'])}"):
            list(reader)


def test_secrets_of_options(proxy: FaultProxy, data: Path, tmp_path: Path) -> None:
    for form, options in FORMS.items():
        reader = ca.Reader(f"s3://corgi/{form}", storage_options=_s3(proxy), timeout=30, **options)
        _hushed(reader, tmp_path / "index")
        next(iter(reader))
        _hushed(reader, tmp_path / "index")
        reader.close()

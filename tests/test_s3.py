"""A real S3 server in a process of its own: list, index, read, resume, and what goes wrong."""

import re
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import RAGGED, RAGGED_ROWS, ids_of, write_dataset
from servers import Server, moto_server

import corgiarrow as ca


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with moto_server(tmp_path_factory.mktemp("moto") / "log") as server:
        yield server


@pytest.fixture(scope="module")
def bucket(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A bucket that holds the ragged dataset below ``train/``, and the same folder on disk."""
    folder = write_dataset(tmp_path_factory.mktemp("s3") / "train", RAGGED)
    client = server.client()
    client.create_bucket(Bucket="corgi")
    for file in sorted(folder.iterdir()):
        client.put_object(Bucket="corgi", Key=f"train/{file.name}", Body=file.read_bytes())
    client.put_object(Bucket="corgi", Key="train/_SUCCESS", Body=b"")
    client.close()
    return "s3://corgi/train", folder


def test_reads_what_the_disk_gives(server: Server, bucket: tuple[str, Path]) -> None:
    url, folder = bucket
    options = {"batch_size": 8, "seed": 7, "buffer_blocks": 3}
    remote = ca.Reader(f"{url}/", storage_options=server.options, **options)
    local = ca.Reader(folder, **options)
    batches = list(remote)
    assert batches == list(local)
    assert remote.stats.read_s > 0
    assert ids_of(iter(ca.Reader(f"{url}/*-00[03].parquet", storage_options=server.options))) != []
    chained = {"s3": server.options, "simplecache": {"cache_storage": str(folder.parent / "cache")}}
    assert list(ca.Reader(f"simplecache::{url}/part-003.parquet", storage_options=chained)) == list(
        ca.Reader(folder / "part-003.parquet")
    )


def test_resumes_with_a_state_from_disk(server: Server, bucket: tuple[str, Path]) -> None:
    url, folder = bucket
    local = ca.Reader(folder, batch_size=8)
    whole = ids_of(iter(local))
    local.seek(0, 11)
    remote = ca.Reader(url, storage_options=server.options, batch_size=8)
    remote.load_state_dict(local.state_dict())
    assert ids_of(iter(remote)) == whole[11:]


def test_a_saved_index_needs_the_options_again(server: Server, bucket: tuple[str, Path], tmp_path: Path) -> None:
    url, _ = bucket
    ca.BlockIndex.build(url, storage_options=server.options).save(tmp_path / "index")
    assert b"HUSHSECRET" not in (tmp_path / "index").read_bytes()
    before = len(server.requests())
    index = ca.BlockIndex.load(tmp_path / "index", storage_options=server.options)
    reader = ca.Reader(index, batch_size=8)
    assert len(server.requests()) == before, "a saved index is loaded without a request"
    assert sum(b.num_rows for b in reader) == RAGGED_ROWS


def test_few_requests_and_only_the_needed_bytes(server: Server, tmp_path: Path) -> None:
    """One request a footer beside the listing; for each block one, and one a file to see that it is unchanged."""
    folder = write_dataset(tmp_path / "wide", [[2000, 2000, 2000], [2000, 2000]])
    client = server.client()
    client.create_bucket(Bucket="wide")
    for file in folder.iterdir():
        client.put_object(Bucket="wide", Key=file.name, Body=file.read_bytes())
    client.close()
    start = len(server.requests())
    reader = ca.Reader("s3://wide", columns=["id", "label"], storage_options=server.options, batch_size=500)
    indexed = server.requests()[start:]
    assert sorted(r for r in indexed if ".parquet" in r) == [f"GET /wide/part-00{n}.parquet" for n in range(2)]
    assert len(indexed) <= 2 + 3, indexed
    assert sum(b.num_rows for b in reader) == 10_000
    reading = server.requests()[start + len(indexed) :]
    assert reader.stats.blocks == 5
    assert len([r for r in reading if r.startswith("GET")]) <= 2 * 5, reading
    assert len(reading) <= 3 * 5, reading
    needed = 0
    for file in folder.iterdir():
        footer = pq.read_metadata(file)
        for group in range(footer.num_row_groups):
            needed += sum(footer.row_group(group).column(c).total_compressed_size for c in (0, 3))
    assert needed <= reader.stats.fetched_bytes <= 1.1 * needed + 5 * 64 * 1024


def test_missing_bucket_and_missing_key(server: Server, bucket: tuple[str, Path]) -> None:
    for url in ("s3://nosuchbucket/train", "s3://corgi/nothing", "s3://corgi/nothing/*.parquet"):
        with pytest.raises(ca.NoFilesError, match=re.escape(url)) as caught:
            ca.Reader(url, storage_options=server.options)
        assert "HUSHSECRET" not in str(caught.value)


def test_a_file_replaced_under_way(server: Server) -> None:
    client = server.client()
    client.create_bucket(Bucket="changing")
    url, options = "s3://changing/x.parquet", server.options
    body = Path(ca.example_path()).read_bytes()
    client.put_object(Bucket="changing", Key="x.parquet", Body=body)
    reader = ca.Reader(url, storage_options=options)
    assert sum(b.num_rows for b in reader) == reader.num_rows
    client.put_object(Bucket="changing", Key="x.parquet", Body=body[:-1])
    with pytest.raises(ca.SourceChangedError, match=r"changing/x\.parquet.*changed since it was indexed"):
        list(reader)
    client.delete_object(Bucket="changing", Key="x.parquet")
    with pytest.raises(ca.SourceChangedError, match="gone"):
        list(reader)
    client.close()


def _require_signed_requests(server: Server, after: str) -> None:
    url, kind = f"{server.endpoint}/moto-api/reset-auth", {"Content-Type": "text/plain"}
    request = urllib.request.Request(url, data=after.encode(), headers=kind, method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


def test_wrong_credentials(server: Server, bucket: tuple[str, Path]) -> None:
    url, _ = bucket
    _require_signed_requests(server, "0")
    try:
        with pytest.raises(ca.AccessDeniedError, match=r"check the credentials") as caught:
            ca.Reader(url, storage_options=server.options)
    finally:
        _require_signed_requests(server, "inf")
    assert isinstance(caught.value, PermissionError)
    assert "HUSHSECRET" not in str(caught.value)


def test_an_option_that_the_file_system_does_not_know(server: Server) -> None:
    with pytest.raises(ca.OptionError, match=r"storage_options \[.*'bogus'.*\] do not fit: .*bogus"):
        ca.Reader("s3://corgi/train", storage_options={**server.options, "bogus": 1})


def test_no_server() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {"key": "a", "secret": "b", "endpoint_url": f"http://127.0.0.1:{port}"}
    options["config_kwargs"] = {"retries": {"max_attempts": 0}}
    with pytest.raises(ca.StorageError, match="s3://corgi/train"):
        ca.Reader("s3://corgi/train", storage_options=options)


def test_a_large_row_group_comes_in_pieces(
    server: Server, bucket: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corgiarrow.sources.parquet.PAGE_BYTES", 16_384)
    table = pa.table({"id": range(60_000), "text": [f"{n:050}" for n in range(60_000)]})
    options = {"use_dictionary": False, "data_page_size": 16_384, "compression": "none"}
    pq.write_table(table, tmp_path / "large.parquet", row_group_size=30_000, **options)
    client = server.client()
    client.put_object(Bucket="corgi", Key="large/x.parquet", Body=(tmp_path / "large.parquet").read_bytes())
    client.close()
    reader = ca.Reader("s3://corgi/large", memory="4 MB", storage_options=server.options)
    assert reader.plan().pieces is not None
    before = len(server.requests())
    assert sorted(i for batch in ids_of(iter(reader)) for i in batch) == list(range(60_000))
    assert len(server.requests()) - before < 60, "pages are not asked for one by one"


def test_an_index_is_saved_beside_the_data(server: Server, bucket: tuple[str, Path]) -> None:
    url, _ = bucket
    place = f"{url}/_corgiarrow.index"
    built = ca.BlockIndex.build(url, storage_options=server.options)
    built.save(place, storage_options=server.options)
    loaded = ca.BlockIndex.load(place, storage_options=server.options)
    assert (loaded.files, loaded.fingerprint) == (built.files, built.fingerprint)
    assert sum(b.num_rows for b in ca.Reader(loaded)) == RAGGED_ROWS
    again = ca.BlockIndex.build(url, storage_options=server.options, index_cache=False)
    assert again.files == built.files, "what begins with _ is skipped"
    with pytest.raises(ca.IndexFormatError, match="no such file"):
        ca.BlockIndex.load(f"{url}/_other.index", storage_options=server.options)


def test_an_index_is_kept_until_an_object_changes(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_dataset(tmp_path / "kept", [[20], [30]])
    client = server.client()
    client.create_bucket(Bucket="kept")
    for file in folder.iterdir():
        client.put_object(Bucket="kept", Key=file.name, Body=file.read_bytes())

    def footers_read(**options: object) -> int:
        before = len(server.requests())
        index = ca.BlockIndex.build("s3://kept", storage_options=server.options, **options)
        assert index.num_rows == sum(pq.read_metadata(f).num_rows for f in folder.iterdir())
        return sum(".parquet" in r for r in server.requests()[before:])

    assert footers_read() == 2
    assert footers_read() == 0
    assert footers_read(schema={"label": pa.int64()}) == 2, "another request, another index"
    assert footers_read(index_cache=False) == 2
    assert b"HUSHSECRET" not in b"".join(p.read_bytes() for p in (tmp_path / "cache" / "corgiarrow").iterdir())
    write_dataset(folder, [[20], [31]])
    client.put_object(Bucket="kept", Key="part-001.parquet", Body=(folder / "part-001.parquet").read_bytes())
    client.close()
    assert footers_read() == 2
    (tmp_path / "cache" / "corgiarrow").chmod(0o500)
    for path in (tmp_path / "cache" / "corgiarrow").glob("*.index"):
        path.write_bytes(b"damaged")
    assert footers_read() == 2
    assert sum(b.num_rows for b in ca.Reader("s3://kept", storage_options=server.options)) == 51

"""The servers and the fault proxy of the tests do what they say."""

import http.client
import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import s3fs
from fault_proxy import ERRORS, KINDS
from servers import FaultProxy, Running, fault_proxy, http_server, rclone_server

BODY = random.Random(0).randbytes(3_000_000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bucket with one object, which is a folder with one file too."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "bucket").mkdir()
    (folder / "bucket" / "x.bin").write_bytes(BODY)
    return folder


@pytest.fixture(scope="module")
def files(folder: Path) -> Iterator[Running]:
    with http_server(folder) as server:
        yield server


@pytest.fixture(scope="module")
def shared_proxy(files: Running) -> Iterator[FaultProxy]:
    with fault_proxy(files.endpoint, rate=0, kinds=[]) as proxy:
        yield proxy
        assert "Traceback" not in proxy.log.read_text(), proxy.log.read_text()


@pytest.fixture
def proxy(shared_proxy: FaultProxy) -> FaultProxy:
    shared_proxy.set(rate=0, kinds=[], after=0, most=None)
    return shared_proxy


Answer = tuple[int, dict[str, str], bytes]


class Client:
    """A connection that is kept, with a limit to what each read of a socket may take."""

    def __init__(self, endpoint: str, timeout_s: float = 10):
        self.connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=timeout_s)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def ask(self, method: str = "GET", path: str = "/bucket/x.bin", **headers: str) -> Answer:
        self.connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
        answer = self.connection.getresponse()
        return answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read()


def met(proxy: FaultProxy, kind: str) -> int:
    return proxy.stats()["faults"].get(kind, 0)


def test_files_over_http(files: Running) -> None:
    size = len(BODY)
    before = len(files.requests())
    with Client(files.endpoint) as client:
        status, headers, body = client.ask()
        assert (status, body) == (200, BODY)
        etag = headers["etag"]
        status, headers, body = client.ask("HEAD")
        assert (status, headers["content-length"], headers["etag"], body) == (200, str(size), etag, b"")
        ranges = {"5-9": (5, 10), "2999990-": (size - 10, size), "-7": (size - 7, size), "9-9999999": (9, size)}
        for asked, wanted in ranges.items():
            status, headers, body = client.ask(Range=f"bytes={asked}", If_Match=etag)
            assert (status, body) == (206, BODY[slice(*wanted)])
            assert headers["content-range"] == f"bytes {wanted[0]}-{wanted[1] - 1}/{size}"
        status, headers, _ = client.ask(Range=f"bytes={size}-")
        assert (status, headers["content-range"]) == (416, f"bytes */{size}")
        assert client.ask(If_Match='"other"')[0] == 412
        assert [client.ask(path=path)[0] for path in ("/none", "/bucket", "/../x")] == [404] * 3
    assert files.requests()[before : before + 2] == ["GET /bucket/x.bin", "HEAD /bucket/x.bin"]


def test_files_whole(folder: Path) -> None:
    with http_server(folder, ranges=False) as server, Client(server.endpoint) as client:
        status, headers, body = client.ask(Range="bytes=5-9")
        assert (status, body) == (200, BODY)
        assert "accept-ranges" not in headers


def test_files_for_those_with_a_signature(folder: Path) -> None:
    with http_server(folder, sig="TOKEN") as server, Client(server.endpoint) as client:
        assert client.ask()[0] == client.ask(path="/bucket/x.bin?sig=OTHER")[0] == 403
        assert client.ask(path="/bucket/x.bin?sig=TOKEN")[::2] == (200, BODY)
        assert server.requests()[-1] == "GET /bucket/x.bin?sig=TOKEN"


def test_without_faults_all_passes_unchanged(files: Running, proxy: FaultProxy) -> None:
    asked = [{}, {"Range": "bytes=100-2000000"}, {"Range": "bytes=9999999-"}, {"If_Match": '"other"'}]
    before = proxy.stats()["requests"]
    with Client(proxy.endpoint) as through, Client(files.endpoint) as direct:
        for method in ("GET", "HEAD"):
            for headers in asked:
                status, got, body = through.ask(method, **headers)
                wanted_status, wanted, wanted_body = direct.ask(method, **headers)
                assert (status, body) == (wanted_status, wanted_body)
                assert got | {"date": ""} == wanted | {"date": ""}
                kept = through.connection.sock
                assert kept is not None, "the connection is kept"
        assert through.connection.sock is kept
    assert proxy.stats()["requests"] - before == 2 * len(asked)
    assert proxy.requests()[-1] == "HEAD /bucket/x.bin"


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("kind", sorted(ERRORS.keys() - {"signed-url"}))
def test_errors_of_s3(proxy: FaultProxy, kind: str, method: str) -> None:
    proxy.set(rate=1, kinds=[kind])
    status, code, message = ERRORS[kind]
    before = met(proxy, kind)
    with Client(proxy.endpoint) as client:
        for _ in range(2):
            got, headers, body = client.ask(method)
            assert (got, headers["content-type"]) == (int(status[:3]), "application/xml")
            found = f"<Code>{code}</Code><Message>{message}</Message>".encode() in body
            assert found if method == "GET" else not body
        proxy.set(rate=0)
        assert client.ask()[0] == 200, "the connection goes on"
    assert met(proxy, kind) == before + 2


def test_reset(proxy: FaultProxy) -> None:
    proxy.set(rate=1, kinds=["reset"])
    for method in ("GET", "HEAD"):
        with Client(proxy.endpoint) as client, pytest.raises(ConnectionResetError):
            client.ask(method)


def test_timeout(proxy: FaultProxy) -> None:
    proxy.set(rate=1, kinds=["timeout"])
    for method in ("GET", "HEAD"):
        with Client(proxy.endpoint, timeout_s=0.3) as client, pytest.raises(TimeoutError):
            client.ask(method)


def test_truncated(proxy: FaultProxy) -> None:
    proxy.set(rate=1, kinds=["truncated"])
    with Client(proxy.endpoint) as client, pytest.raises(http.client.IncompleteRead) as caught:
        client.ask(Range="bytes=1000-1999999")
    assert caught.value.partial == BODY[1000:1_000_500]
    assert caught.value.expected == 1_999_000 - 999_500
    with Client(proxy.endpoint) as client:
        assert client.ask("HEAD")[0] == 200, "a HEAD has no body"
        assert client.ask(Range="bytes=0-0")[::2] == (206, BODY[:1])


def test_slow(proxy: FaultProxy) -> None:
    """A limit to each read of the socket does not help: the bytes come, one by one, up to the last."""
    proxy.set(rate=1, kinds=["slow"])
    begun = time.monotonic()
    with Client(proxy.endpoint, timeout_s=1.2) as client, pytest.raises(TimeoutError):
        client.ask(Range="bytes=0-6")
    assert 5 * 0.2 + 1.2 <= time.monotonic() - begun < 10


def test_wrong_length(proxy: FaultProxy) -> None:
    proxy.set(rate=1, kinds=["wrong-length"])
    with Client(proxy.endpoint) as client:
        status, headers, body = client.ask(Range="bytes=1000-1999")
        assert (status, body) == (206, BODY[1000:1500])
        assert headers["content-length"] == "500"
        assert headers["content-range"] == f"bytes 1000-1499/{len(BODY)}"
        assert client.ask()[::2] == (200, BODY), "no range was asked for"


def test_settings(proxy: FaultProxy) -> None:
    proxy.set(rate=1, kinds=["503"], after=2)
    with Client(proxy.endpoint) as client:
        assert client.ask(path="/bucket?list-type=2&prefix=x.bin")[0] == 404, "a listing passes, and does not count"
        assert [client.ask("HEAD")[0] for _ in range(4)] == [200, 200, 503, 503]
    proxy.set(most=1)
    with Client(proxy.endpoint) as client:
        assert [client.ask("HEAD")[0] for _ in range(3)] == [503, 200, 200]
    for wrong in ({"kinds": ["nonsense"]}, {"rat": 1}):
        with pytest.raises(ValueError, match=r"must be among"):
            proxy.set(**wrong)


def test_the_seed_says_which_request_meets_which_fault(files: Running) -> None:
    def statuses(seed: int) -> list[int]:
        kinds = ["503", "500", "denied"]
        with (
            fault_proxy(files.endpoint, rate=0.3, kinds=kinds, seed=seed, only="all") as proxy,
            Client(proxy.endpoint) as client,
        ):
            return [client.ask("HEAD", path="/bucket")[0] for _ in range(100)]

    first = statuses(1)
    assert first == statuses(1) != statuses(2)
    assert 15 < sum(status != 404 for status in first) < 45
    assert set(first) == {404, 503, 500, 403}


def test_s3_with_signatures_through_the_proxy(folder: Path) -> None:
    with rclone_server(folder) as server, fault_proxy(server.endpoint, rate=0, kinds=KINDS, only="all") as proxy:
        server.endpoint = proxy.endpoint
        once = {"retries": {"max_attempts": 0}}
        files = s3fs.S3FileSystem(**server.options, config_kwargs=once, use_listings_cache=False)
        files.retries = 1
        assert files.ls("bucket") == ["bucket/x.bin"]
        assert files.cat_file("bucket/x.bin", start=1000, end=2000) == BODY[1000:2000]
        assert files.cat_file("bucket/x.bin") == BODY
        client = server.client()
        client.put_object(Bucket="bucket", Key="y.bin", Body=BODY)
        client.close()
        assert (folder / "bucket" / "y.bin").read_bytes() == BODY
        (folder / "bucket" / "y.bin").unlink()
        proxy.set(kinds=["denied"], rate=1)
        with pytest.raises(PermissionError, match="Access Denied"):
            files.ls("bucket")
        proxy.set(kinds=["wrong-length"])
        assert files.cat_file("bucket/x.bin", start=1000, end=2000) == BODY[1000:1500]
        said = {"503": "reduce your request rate", "500": "internal error", "expired": "token has expired"}
        for kind, text in said.items():
            proxy.set(kinds=[kind])
            with pytest.raises(OSError, match=text):
                files.cat_file("bucket/x.bin", start=0, end=1000)
        proxy.set(rate=0)
        server.secret = "WRONGSECRET"
        with pytest.raises(PermissionError):
            s3fs.S3FileSystem(**server.options).ls("bucket")
        assert "Traceback" not in proxy.log.read_text()


def test_processes_end(folder: Path) -> None:
    before = set(psutil.Process().children())
    with http_server(folder) as server, fault_proxy(server.endpoint, rate=1, kinds=["timeout"]) as proxy:
        begun = set(psutil.Process().children()) - before
        assert len(begun) == 2
        with Client(proxy.endpoint, timeout_s=0.1) as client, pytest.raises(TimeoutError):
            client.ask()
    with pytest.raises(ZeroDivisionError), rclone_server(folder):
        begun |= set(psutil.Process().children()) - before
        raise ZeroDivisionError
    assert len(begun) == 3
    assert not any(process.is_running() for process in begun)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", urlsplit(proxy.endpoint).port)) != 0

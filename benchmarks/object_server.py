"""Serve a local folder as an object store does: S3's protocol, read only, slow to answer, a bounded rate a connection.

Run ``python benchmarks/object_server.py FOLDER``; it prints its address and serves until it is interrupted. Other
benchmarks call :func:`serving`.

- The folders in ``FOLDER`` are buckets and the files below them objects: ``http://127.0.0.1:PORT/BUCKET/KEY``.
- It knows ListObjectsV2 (delimiter ``/`` or none), HeadBucket, HeadObject and GetObject with ``Range`` and
  ``If-Match``. It checks no signatures. An ETag tells a file's size and time of change, not its content.
- Each answer waits for the latency. Each body takes at least its size divided by the rate.
- Reads of a file hold up all connections, so have the files in the page cache.
- ``/-/stats`` tells what was asked for since the start or the last ``/-/reset``; neither waits nor counts.
- ``--log FILE`` writes a line a request, split by tabs: seconds since the start at arrival, number of the connection,
  method, target, range, status, bytes of an object sent, seconds until the last one was sent.
"""

import argparse
import asyncio
import base64
import contextlib
import http.client
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, TextIO
from urllib.parse import parse_qs, quote, unquote
from xml.sax.saxutils import escape

HOST = "127.0.0.1"
PAGE_KEYS = 1_000
PIECE_BYTES = 256 * 1024
"""Bytes that are sent at once; pieces are what the rate is made of."""
COPIED_BYTES = 128 * 1024
"""A body up to this long is sent together with its head: a copy costs less than another call."""
CREDIT_S = 0.05
"""How much lost time a connection may make up for: enough for late timers, too little for a burst after a pause."""
COUNTED = ("GET", "HEAD", "LIST", "bytes")


@dataclass(frozen=True, slots=True)
class Server:
    """A running server, of :func:`serving`.

    Attributes
    ----------
    endpoint
        Its address, ``http://127.0.0.1:PORT``.
    """

    endpoint: str

    @property
    def options(self) -> dict[str, str]:
        """``storage_options`` for s3fs."""
        return {"key": "any", "secret": "any", "endpoint_url": self.endpoint}

    def requests(self) -> dict[str, int]:
        """Count ``GET``, ``HEAD`` and ``LIST`` requests, and the ``bytes`` of objects sent, since the last reset."""
        counts: dict[str, int] = json.loads(self._control("stats"))
        return counts

    def reset(self) -> None:
        """Count from zero again."""
        self._control("reset")

    def _control(self, name: str) -> bytes:
        connection = http.client.HTTPConnection(self.endpoint.removeprefix("http://"), timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", f"/-/{name}")
            return connection.getresponse().read()


@contextlib.contextmanager
def serving(
    folder: str | Path, *, latency: float = 0.03, rate: float = 90e6, log: str | Path | None = None
) -> Iterator[Server]:
    """Serve `folder` from a process of its own, which ends with the block, or with this process.

    Parameters
    ----------
    folder
        Holds a folder for each bucket.
    latency
        Seconds before each answer.
    rate
        Bytes per second of one connection.
    log
        File for a line a request, see the module.

    Raises
    ------
    RuntimeError
        If the server did not start; it has said why on stderr.
    """
    command = [sys.executable, __file__, folder, "--latency", str(latency), "--rate", str(rate), "--with-parent"]
    command += [] if log is None else ["--log", log]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            endpoint = process.stdout.readline().strip()
            if not endpoint:
                raise RuntimeError(f"the object server ended with {process.wait()}: its message is on stderr")
            yield Server(endpoint)
        finally:
            process.terminate()
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()


class S3Error(Exception):
    """A request is answered with an error, ``status`` and S3's ``code``."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.code, self.headers = status, code, headers or {}

    def answer(self) -> "Answer":
        """Say it in XML."""
        text = f"<Error><Code>{self.code}</Code><Message>{escape(str(self))}</Message></Error>"
        return xml_answer(text, status=self.status, headers=self.headers)


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request; header names are in lower case."""

    method: str
    target: str
    headers: dict[str, str]

    @classmethod
    def parse(cls, head: bytes) -> "Request":
        """Read a head of HTTP/1.1; `ValueError` if it is none."""
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, target, _version = first.split(" ")
        pairs = (line.partition(":") for line in lines)
        return cls(method, target, {name.strip().lower(): value.strip() for name, _, value in pairs})

    @property
    def path(self) -> str:
        """Bucket and key, without the leading slash."""
        return unquote(self.target.partition("?")[0]).removeprefix("/")

    @property
    def query(self) -> dict[str, str]:
        """The last value of each name."""
        found = parse_qs(self.target.partition("?")[2], keep_blank_values=True)
        return {name: values[-1] for name, values in found.items()}


@dataclass(frozen=True, slots=True)
class Answer:
    """What to send: a head, and `body`, or bytes `start` to `stop` of `file`, which the sender closes."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    file: BinaryIO | None = None
    start: int = 0
    stop: int = 0

    @property
    def head(self) -> bytes:
        """The status line and the headers."""
        length = self.stop - self.start if self.file else len(self.body)
        headers = {"Content-Length": str(length), "Server": "object_server", **self.headers}
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def xml_answer(text: str, *, status: int = 200, headers: dict[str, str] | None = None) -> Answer:
    """Answer with an XML document."""
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()
    return Answer(status, {"Content-Type": "application/xml", **(headers or {})}, body)


def decide(root: Path, request: Request) -> tuple[str, Answer]:
    """Find the answer to a request.

    Returns
    -------
    tuple[str, Answer]
        What it counts as, ``LIST`` or the method, and the answer.
    """
    bucket, _, key = request.path.partition("/")
    method = request.method
    counts_as = "LIST" if method == "GET" and not key else method
    try:
        if method not in ("GET", "HEAD"):
            raise S3Error(405, "MethodNotAllowed", f"{method} is refused: the server is read only")
        if not plain(bucket) or not (root / bucket).is_dir():
            raise S3Error(404, "NoSuchBucket", f"There is no bucket {bucket!r}")
        if key:
            return counts_as, object_answer(root / bucket, key, request)
        if method == "HEAD":
            return counts_as, Answer(200, {"x-amz-bucket-region": "us-east-1"})
        return counts_as, listing_answer(root / bucket, request.query)
    except S3Error as error:
        return counts_as, error.answer()
    except OSError as error:
        return counts_as, S3Error(500, "InternalError", str(error)).answer()


def plain(path: str) -> bool:
    """Tell whether a path names the same thing as a key and as a file; ``a//b`` and ``../a`` do not."""
    return "\0" not in path and not any(part in ("", ".", "..") for part in path.split("/"))


def etag(stat: os.stat_result) -> str:
    """Quoted, from size and time of change."""
    return f'"{stat.st_size:x}-{stat.st_mtime_ns:x}"'


def object_answer(bucket: Path, key: str, request: Request) -> Answer:
    """Answer GetObject and HeadObject."""
    missing = S3Error(404, "NoSuchKey", f"There is no object {key!r} in the bucket {bucket.name!r}")
    if not plain(key):
        raise missing
    try:
        file = (bucket / key).open("rb", buffering=0)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise missing from None
    try:
        stat = os.fstat(file.fileno())
        headers = {
            "Content-Type": "binary/octet-stream",
            "ETag": etag(stat),
            "Last-Modified": formatdate(stat.st_mtime, usegmt=True),
            "Accept-Ranges": "bytes",
        }
        wanted = request.headers.get("if-match", "*")
        if wanted != "*" and etag(stat).strip('"') not in [each.strip(' "') for each in wanted.split(",")]:
            raise S3Error(412, "PreconditionFailed", f"If-Match asks for {wanted}, the object has {etag(stat)}")
        part = find_range(request.headers.get("range", ""), stat.st_size)
        if part is None:
            return Answer(200, headers, file=file, stop=stat.st_size)
        headers["Content-Range"] = f"bytes {part[0]}-{part[1] - 1}/{stat.st_size}"
        return Answer(206, headers, file=file, start=part[0], stop=part[1])
    except S3Error:
        file.close()
        raise


def find_range(text: str, size: int) -> tuple[int, int] | None:
    """Read a ``Range`` header.

    Returns
    -------
    tuple[int, int] | None
        First byte and one past the last. None if `text` is not one range of bytes: S3 then sends the whole object.

    Raises
    ------
    S3Error
        416 if the range holds no byte of the object.
    """
    first, dash, last = text.removeprefix("bytes=").partition("-")
    if not text.startswith("bytes=") or not dash or not (first or last) or not (first + last).isdecimal():
        return None
    if first and last and int(first) > int(last):
        return None
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1) if first and last else size
    if start >= stop:
        headers = {"Content-Range": f"bytes */{size}"}
        raise S3Error(416, "InvalidRange", f"{text} holds no byte of an object of {size} bytes", headers)
    return start, stop


def listing_answer(bucket: Path, query: dict[str, str]) -> Answer:
    """Answer ListObjectsV2."""
    delimiter, prefix, token = (query.get(name, "") for name in ("delimiter", "prefix", "continuation-token"))
    if query.get("list-type") != "2" or delimiter not in ("", "/"):
        raise S3Error(501, "NotImplemented", "Of a bucket only ListObjectsV2 is served, with delimiter=/ or none")
    try:
        limit = min(int(query.get("max-keys", PAGE_KEYS)), PAGE_KEYS)
        after = base64.urlsafe_b64decode(token).decode() if token else query.get("start-after", "")
    except ValueError:
        raise S3Error(400, "InvalidArgument", "max-keys or continuation-token cannot be read") from None
    shown = quote if query.get("encoding-type") == "url" else escape
    items = list(itertools.islice(walk(bucket, prefix.rpartition("/")[0], prefix, after, delimiter), limit + 1))
    truncated, items = 0 < limit < len(items), items[:limit]
    lines = [
        '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
        f"<Name>{escape(bucket.name)}</Name><Prefix>{shown(prefix)}</Prefix>",
        f"<KeyCount>{len(items)}</KeyCount><MaxKeys>{limit}</MaxKeys>",
        f"<IsTruncated>{str(truncated).lower()}</IsTruncated>",
    ]
    for name, given in (("Delimiter", "delimiter"), ("StartAfter", "start-after")):
        lines += [f"<{name}>{shown(query[given])}</{name}>"] if query.get(given) else []
    lines += ["<EncodingType>url</EncodingType>"] if shown is quote else []
    lines += [f"<ContinuationToken>{escape(token)}</ContinuationToken>"] if token else []
    if truncated:
        following = base64.urlsafe_b64encode(items[-1][0].encode()).decode()
        lines.append(f"<NextContinuationToken>{following}</NextContinuationToken>")
    for key, entry in items:
        if entry is None:
            lines.append(f"<CommonPrefixes><Prefix>{shown(key)}</Prefix></CommonPrefixes>")
            continue
        stat = entry.stat()
        changed = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(stat.st_mtime))
        lines.append(
            f"<Contents><Key>{shown(key)}</Key><LastModified>{changed}</LastModified><ETag>{escape(etag(stat))}</ETag>"
            f"<Size>{stat.st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        )
    return xml_answer("\n".join([*lines, "</ListBucketResult>"]))


def walk(
    bucket: Path, below: str, prefix: str, after: str, delimiter: str
) -> Iterator[tuple[str, os.DirEntry[str] | None]]:
    """List the keys below a folder that begin with `prefix` and come after `after`, in S3's order.

    Parameters
    ----------
    below
        Path of the folder in the bucket, ``""`` for the bucket itself.
    delimiter
        ``"/"`` to yield a folder below `prefix` once, as its path and None, in place of the keys in it.
    """
    if below and not plain(below):
        return
    try:
        with os.scandir(bucket / below) as found:
            entries = [(f"{below}/{e.name}".lstrip("/") + "/" * e.is_dir(), e) for e in found]
    except (FileNotFoundError, NotADirectoryError):
        return
    for key, entry in sorted(entries, key=itemgetter(0)):
        if not key.endswith("/"):
            if key.startswith(prefix) and key > after and entry.is_file():
                yield key, entry
        elif not key.startswith(prefix) and not prefix.startswith(key):
            continue  # None of its keys begins with the prefix.
        elif not after.startswith(key) and key <= after:
            continue  # All of its keys were listed before.
        elif not delimiter or not key.startswith(prefix):
            yield from walk(bucket, key[:-1], prefix, after, delimiter)
        elif key != after and any(walk(bucket, key[:-1], prefix, after, "")):
            yield key, None


class ObjectServer:
    """Answers the requests of each connection one after the other; see :func:`serving` for the arguments."""

    def __init__(self, root: Path, *, latency: float, rate: float, log: TextIO | None):
        self._root, self._latency, self._rate, self._log = root, latency, rate, log
        self._counts = dict.fromkeys(COUNTED, 0)
        self._numbers = itertools.count()
        self._began = time.monotonic()

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until the client ends it. asyncio has set TCP_NODELAY."""
        number = next(self._numbers)
        try:
            while True:
                request = Request.parse(await reader.readuntil(b"\r\n\r\n"))
                if request.path.startswith("-/"):
                    answer = self._control(request.path)
                    writer.write(answer.head + answer.body)
                else:
                    await self._respond(number, request, writer)
                if request.method not in ("GET", "HEAD") or request.headers.get("connection", "").lower() == "close":
                    writer.write_eof()
                    while await reader.read(PIECE_BYTES):
                        pass  # Closing on a body that was not read would take the answer from the client.
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # The client has gone, or does not speak HTTP.
        except asyncio.CancelledError:
            pass  # The server ends, and this task with it.
        finally:
            writer.close()

    def _control(self, path: str) -> Answer:
        """Tell the counts, or set them to zero first."""
        if path == "-/reset":
            self._counts = dict.fromkeys(COUNTED, 0)
        elif path != "-/stats":
            return S3Error(404, "NoSuchKey", f"/{path} is not one of /-/stats and /-/reset").answer()
        return Answer(200, {"Content-Type": "application/json"}, json.dumps(self._counts).encode())

    async def _respond(self, number: int, request: Request, writer: asyncio.StreamWriter) -> None:
        """Answer a request to the store, and note it."""
        arrived = time.monotonic()
        counts_as, answer = decide(self._root, request)
        if counts_as in self._counts:
            self._counts[counts_as] += 1
        sent = 0
        try:
            if request.method == "HEAD" or answer.file is None:
                await asyncio.sleep(arrived + self._latency - time.monotonic())
                writer.write(answer.head if request.method == "HEAD" else answer.head + answer.body)
                await writer.drain()
            else:
                async for nbytes in self._send(arrived + self._latency, answer, writer):
                    self._counts["bytes"] += nbytes
                    sent += nbytes
        finally:
            if answer.file:
                answer.file.close()
            if self._log:
                wanted, took = request.headers.get("range", "-"), time.monotonic() - arrived
                start = f"{arrived - self._began:.6f}\t{number}\t{request.method}\t{request.target}"
                self._log.write(f"{start}\t{wanted}\t{answer.status}\t{sent}\t{took:.6f}\n")

    async def _send(self, due: float, answer: Answer, writer: asyncio.StreamWriter) -> AsyncIterator[int]:
        """Send bytes of a file, each piece at the time when a slow line had brought all of it.

        Parameters
        ----------
        due
            Time of the first byte, in seconds of ``time.monotonic()``.

        Yields
        ------
        int
            Bytes of each piece that was sent.
        """
        head, at = answer.head, answer.start
        while head or at < answer.stop:
            nbytes = min(PIECE_BYTES, answer.stop - at)
            due = max(due, time.monotonic() - CREDIT_S) + nbytes / self._rate
            await asyncio.sleep(due - time.monotonic())
            if head and nbytes <= COPIED_BYTES:
                piece = os.pread(answer.file.fileno(), nbytes, at)
                writer.write(head + piece)
                await writer.drain()
                sent = len(piece)
            else:
                writer.write(head)
                sent = await asyncio.get_running_loop().sendfile(writer.transport, answer.file, at, nbytes)
            if sent < nbytes:
                raise ConnectionError("the file became shorter: only an end of the connection tells the client")
            head, at = b"", at + sent
            yield sent


async def serve(root: Path, *, port: int, latency: float, rate: float, log: TextIO | None, with_parent: bool) -> None:
    """Serve until a signal comes, or until stdin ends if `with_parent`."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if with_parent:
        loop.add_reader(sys.stdin, stop.set)
    store = ObjectServer(root, latency=latency, rate=rate, log=log)
    server = await asyncio.start_server(store.connect, HOST, port, backlog=1_024)
    print(f"http://{HOST}:{server.sockets[0].getsockname()[1]}", flush=True)
    await stop.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="holds a folder for each bucket")
    parser.add_argument("--port", type=int, default=0, help="0 for a free one")
    parser.add_argument("--latency", type=float, default=0.03, help="seconds before each answer")
    parser.add_argument("--rate", type=float, default=90e6, help="bytes per second of one connection")
    parser.add_argument("--log", type=Path, help="file for a line a request")
    parser.add_argument("--with-parent", action="store_true", help="end when stdin does")
    arguments = parser.parse_args()
    if not arguments.folder.is_dir():
        parser.error(f"{arguments.folder} is not a folder")
    if arguments.latency < 0 or not arguments.rate > 0:
        parser.error(f"--latency={arguments.latency} must be >= 0 and --rate={arguments.rate} > 0")
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(arguments.log.open("w", buffering=1)) if arguments.log else None
        options = {"latency": arguments.latency, "rate": arguments.rate, "with_parent": arguments.with_parent}
        asyncio.run(serve(arguments.folder, port=arguments.port, log=log, **options))


if __name__ == "__main__":
    main()

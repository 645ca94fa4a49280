"""An HTTP proxy that plays the faults of object storage.

``python tests/fault_proxy.py --upstream http://127.0.0.1:9000 --rate 0.2 --seed 1 --kinds reset,503,slow`` prints its
endpoint, and logs each request with the fault that it met. Whatever meets none passes unchanged, its Host header too:
signatures cover it. Of requests one after the other, the seed says which meets what. The kinds:

======================  ===================================================================================
reset                   the connection is reset before any byte of an answer
timeout                 no answer; the connection stays open until the client goes
503, 500                S3's SlowDown and InternalError
expired, denied         S3's ExpiredToken and AccessDenied, both with 403
signed-url              the same as denied, for requests whose URL is signed
truncated               the right head, half the body, and the end of the connection
slow                    the right head, then a byte every 0.2 s; the last one never comes
wrong-length            an answer in good form with the first half of the range that was asked for
======================  ===================================================================================

The last three need a body to spoil: they leave alone a HEAD, an answer that is an error or of less than two bytes, and
wrong-length an answer to anything but a range. ``--only GET-object``, the default, spares listings and whatever writes.
``POST /-/set`` takes JSON with new values of ``rate``, ``kinds`` and ``seed``, and ``after``: so many of the requests
that could meet a fault pass first; and ``most``: when so many faults were met, all passes. ``GET /-/stats`` counts
requests, and faults by kind. Neither meets a fault.
"""

import argparse
import asyncio
import contextlib
import json
import random
import re
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

PIECE_BYTES = 2**18
HEAD_BYTES = 2**18
SLOW_S = 0.2
ERRORS = {
    "503": ("503 Slow Down", "SlowDown", "Please reduce your request rate."),
    "500": ("500 Internal Server Error", "InternalError", "We encountered an internal error. Please try again."),
    "expired": ("403 Forbidden", "ExpiredToken", "The provided token has expired."),
    "denied": ("403 Forbidden", "AccessDenied", "Access Denied"),
    "signed-url": ("403 Forbidden", "AccessDenied", "Access Denied"),
}
SPOILT = ("truncated", "slow", "wrong-length")
KINDS = ("reset", "timeout", *ERRORS, *SPOILT)


@dataclass
class Head:
    """The head of a request or of an answer: as it came, its first line's words, and its headers by lower-case name."""

    raw: bytes
    words: list[str]
    headers: dict[str, str]

    @property
    def keeps_open(self) -> bool:
        connection = self.headers.get("connection", "").lower()
        return "keep-alive" in connection if "HTTP/1.0" in self.words else "close" not in connection

    @property
    def has_body(self) -> bool:
        """Whether it declares a body; an answer may have one all the same, which ends with the connection."""
        return "transfer-encoding" in self.headers or self.headers.get("content-length", "0") != "0"


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """Read a head, or None where the connection ends instead."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as end:
        if end.partial:
            raise
        return None
    first, *lines = raw.decode("latin-1").strip().split("\r\n")
    headers = (line.partition(":") for line in lines)
    return Head(raw, first.split(" "), {name.strip().lower(): value.strip() for name, _, value in headers})


async def body_of(head: Head, reader: asyncio.StreamReader, to_the_end: bool = False) -> AsyncIterator[bytes]:
    """Read a body as it comes over the wire, sizes of chunks and all."""
    if "chunked" in head.headers.get("transfer-encoding", "").lower():
        size = -1
        while size:
            yield (line := await reader.readuntil(b"\n"))
            size = int(line.partition(b";")[0], 16)
            if size:
                async for piece in _exactly(size + 2, reader):
                    yield piece
        while line.strip():  # The trailer, up to an empty line.
            yield (line := await reader.readuntil(b"\n"))
    elif "content-length" in head.headers:
        async for piece in _exactly(int(head.headers["content-length"]), reader):
            yield piece
    elif to_the_end:
        while piece := await reader.read(PIECE_BYTES):
            yield piece


async def _exactly(size: int, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size:
        piece = await reader.read(min(size, PIECE_BYTES))
        if not piece:
            raise asyncio.IncompleteReadError(b"", size)
        size -= len(piece)
        yield piece


@dataclass
class Faults:
    """Which request meets which fault, and how many did."""

    rate: float
    kinds: list[str]
    only: str
    rng: random.Random
    after: int = 0
    most: int | None = None
    requests: int = 0
    met: Counter[str] = field(default_factory=Counter)

    def draw(self, request: Head) -> str | None:
        self.requests += 1
        if self.only == "GET-object" and not _asks_for_an_object(request):
            return None
        if self.after:
            self.after -= 1
            return None
        chance, which = self.rng.random(), self.rng.random()
        kinds = [kind for kind in self.kinds if _can_meet(request, kind)]
        if not kinds or chance >= self.rate or self.most == 0:
            return None
        if self.most is not None:
            self.most -= 1
        return kinds[int(which * len(kinds))]

    def set(self, settings: dict[str, object]) -> None:
        if unknown := settings.keys() - {"rate", "kinds", "seed", "after", "most"}:
            raise ValueError(f"settings {sorted(unknown)} must be among rate, kinds, seed, after, most")
        self.kinds = _known(settings.get("kinds", self.kinds))
        self.rate = float(settings.get("rate", self.rate))
        self.after = int(settings.get("after", self.after))
        self.most = settings.get("most", self.most)
        if "seed" in settings:
            self.rng.seed(settings["seed"])


def _known(kinds: list[str]) -> list[str]:
    if unknown := set(kinds) - set(KINDS):
        raise ValueError(f"kinds {sorted(unknown)} must be among {', '.join(KINDS)}")
    return list(kinds)


def _asks_for_an_object(request: Head) -> bool:
    """Whether this gets a key in a bucket, or a file name with a suffix; a bucket alone is for listing."""
    url = urlsplit(request.words[1])
    path = url.path.strip("/")
    return request.words[0] in ("GET", "HEAD") and "list-type=" not in url.query and ("/" in path or "." in path)


def _can_meet(request: Head, kind: str) -> bool:
    if kind in SPOILT and request.words[0] != "GET":
        return False
    if kind == "signed-url":
        return "Signature=" in request.words[1]
    return kind != "wrong-length" or "range" in request.headers


class Connection:
    """One connection of a client, and one to the server behind."""

    def __init__(
        self,
        faults: Faults,
        upstream: tuple[str, int],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ):
        self.faults, self.upstream, self.reader, self.writer = faults, upstream, reader, writer
        self.up_reader: asyncio.StreamReader | None = None
        self.up_writer: asyncio.StreamWriter | None = None

    async def serve(self) -> None:
        """Answer request after request until either side ends the connection."""
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while (request := await read_head(self.reader)) is not None:
                if request.words[1].startswith("/-/"):
                    keep = await self.control(request)
                else:
                    kind = self.faults.draw(request)
                    print(f'"{" ".join(request.words)}" {kind or "passes"}', flush=True)
                    keep = await (self.forward(request) if kind is None else self.fault(request, kind))
                await self.writer.drain()
                if not keep:
                    break
        self.writer.close()
        if self.up_writer is not None:
            self.up_writer.close()

    async def control(self, request: Head) -> bool:
        body = b"".join([piece async for piece in body_of(request, self.reader)])
        status, answer = "200 OK", {}
        try:
            if request.words[1] == "/-/set":
                self.faults.set(json.loads(body))
            answer = {"requests": self.faults.requests, "faults": dict(self.faults.met)}
        except (ValueError, TypeError) as error:
            status, answer = "400 Bad Request", {"error": str(error)}
        self.answer(request, status, "application/json", json.dumps(answer))
        return request.keeps_open

    def answer(self, request: Head, status: str, kind: str, text: str) -> None:
        head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\n\r\n"
        self.writer.write((head if request.words[0] == "HEAD" else head + text).encode())

    async def ask(self, request: Head) -> Head:
        """Pass a request on with its body, while what comes before the answer passes back; return the answer's head."""
        if self.up_reader is None or self.up_reader.at_eof():
            self.up_reader, self.up_writer = await asyncio.open_connection(*self.upstream, limit=HEAD_BYTES)
        self.up_writer.write(request.raw)
        self.upload = asyncio.create_task(self._upload(request)) if request.has_body else None
        while (answer := await read_head(self.up_reader)) is not None:
            if not answer.words[1].startswith("1"):
                return answer
            self.writer.write(answer.raw)  # 100 Continue
        raise ConnectionResetError("the server ended the connection before an answer")

    async def _upload(self, request: Head) -> None:
        try:
            async for piece in body_of(request, self.reader):
                self.up_writer.write(piece)
                await self.up_writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            self.up_writer.close()  # ask() waits for an answer.

    async def forward(self, request: Head) -> bool:
        return await self.relay(request, await self.ask(request))

    async def relay(self, request: Head, answer: Head) -> bool:
        """Pass an answer back; return whether the connection goes on."""
        self.writer.write(answer.raw)
        bodyless = request.words[0] == "HEAD" or answer.words[1] in ("204", "304")
        if not bodyless:
            async for piece in body_of(answer, self.up_reader, to_the_end=True):
                self.writer.write(piece)
                await self.writer.drain()
        if self.upload is not None:
            # A server may refuse before it has read the whole body: then the rest is never asked for.
            done, _ = await asyncio.wait({self.upload}, timeout=1)
            if not done:
                self.upload.cancel()
                return False
        framed = bodyless or "content-length" in answer.headers or "transfer-encoding" in answer.headers
        return framed and request.keeps_open and answer.keeps_open

    async def fault(self, request: Head, kind: str) -> bool:
        """Play a fault; return whether the connection goes on."""
        if kind in SPOILT:
            return await self.spoil(request, kind)
        self.faults.met[kind] += 1
        if kind == "reset":
            linger = struct.pack("ii", 1, 0)
            self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.writer.transport.abort()
            return False
        if kind == "timeout":
            while await self.reader.read(PIECE_BYTES):
                pass
            return False
        status, code, message = ERRORS[kind]
        waits = "expect" in request.headers  # For a 100 Continue: its body will not come.
        if not waits:
            async for _ in body_of(request, self.reader):
                pass
        text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message></Error>'
        self.answer(request, status, "application/xml", text)
        return request.keeps_open and not waits

    async def spoil(self, request: Head, kind: str) -> bool:
        """Play a fault in the body of the answer that the server gives."""
        answer = await self.ask(request)
        ranged = re.fullmatch(r"bytes (\d+)-(\d+)/(\S+)", answer.headers.get("content-range", ""))
        whole = int(answer.headers.get("content-length", 2))
        if answer.words[1] not in ("200", "206") or whole < 2 or (kind == "wrong-length" and not ranged):
            return await self.relay(request, answer)
        self.faults.met[kind] += 1
        body = b"".join([piece async for piece in body_of(answer, self.up_reader, to_the_end=True)])
        half = body[: len(body) // 2]
        if kind == "wrong-length":
            self.writer.write(_with_length(answer.raw, int(ranged[1]), len(half)) + half)
            return request.keeps_open and answer.keeps_open
        self.writer.write(answer.raw)
        if kind == "truncated":
            self.writer.write(half)
            return False
        await self.drip(body[:-1])
        return False

    async def drip(self, body: bytes) -> None:
        """Write a byte now and then until the client goes."""
        sent = 0
        while True:
            self.writer.write(body[sent : sent + 1])
            await self.writer.drain()
            sent += 1
            with contextlib.suppress(TimeoutError):
                if not await asyncio.wait_for(self.reader.read(PIECE_BYTES), SLOW_S):
                    return


def _with_length(head: bytes, start: int, size: int) -> bytes:
    """Let the head of an answer to a range say another length."""
    head = re.sub(rb"(?im)^(content-length: *)\d+", rb"\g<1>%d" % size, head)
    return re.sub(rb"(?im)^(content-range: *bytes )\d+-\d+", rb"\g<1>%d-%d" % (start, start + size - 1), head)


async def serve(faults: Faults, upstream: tuple[str, int]) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Connection(faults, upstream, reader, writer).serve()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=HEAD_BYTES, backlog=128)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    async with server:
        await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--upstream", required=True, type=urlsplit)
    parser.add_argument("--rate", required=True, type=float)
    parser.add_argument("--kinds", required=True, help=f"some of {','.join(KINDS)}")
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--only", default="GET-object", choices=["GET-object", "all"])
    options = parser.parse_args()
    kinds = _known([kind for kind in options.kinds.split(",") if kind])
    faults = Faults(options.rate, kinds, options.only, random.Random(options.seed))
    asyncio.run(serve(faults, (options.upstream.hostname, options.upstream.port)))


if __name__ == "__main__":
    main()

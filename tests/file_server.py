"""The files of a folder over HTTP/1.1, with ranges and ETags: ``python tests/file_server.py FOLDER`` and options.

It prints its endpoint, and logs each request. With ``--sig`` it plays presigned URLs: 403 without ``?sig=TOKEN``. With
``--no-ranges`` it sends the whole file to whoever asks for a part.
"""

import argparse
import os
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

PIECE_BYTES = 2**20


class Files(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # A body does not wait for the client's ACK of its head.
    folder: Path
    sig: str | None
    ranges: bool

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if self.sig is not None and parse_qs(url.query).get("sig") != [self.sig]:
            return self._refuse(403)
        path = (self.folder / unquote(url.path).lstrip("/")).resolve()
        if not path.is_relative_to(self.folder) or not path.is_file():
            return self._refuse(404)
        with path.open("rb") as file:
            stat = os.fstat(file.fileno())
            etag, size = f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"', stat.st_size
            if self.headers.get("If-Match", "*") not in ("*", etag):
                return self._refuse(412)
            # A HEAD knows no ranges.
            asked = self.headers.get("Range") if self.command == "GET" and self.ranges else None
            wanted = None if asked is None else _bytes_of(asked, size)
            if wanted is not None and not wanted:
                return self._refuse(416, {"Content-Range": f"bytes */{size}"})
            headers = {"Content-Type": "application/octet-stream", "ETag": etag}
            if self.ranges:
                headers["Accept-Ranges"] = "bytes"
            if wanted is None:
                self._head(200, size, headers)
                wanted = range(size)
            else:
                headers["Content-Range"] = f"bytes {wanted.start}-{wanted.stop - 1}/{size}"
                self._head(206, len(wanted), headers)
            if self.command == "HEAD":
                return None
            file.seek(wanted.start)
            left = len(wanted)
            while left and (piece := file.read(min(left, PIECE_BYTES))):
                self.wfile.write(piece)
                left -= len(piece)
            return None

    do_HEAD = do_GET  # noqa: N815

    def _refuse(self, status: int, headers: dict[str, str] | None = None) -> None:
        self._head(status, 0, headers or {})

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()


def _bytes_of(asked: str, size: int) -> range | None:
    """The bytes that a Range header asks for: none where they lie past the end, None where it is to be ignored."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", asked)
    if not found or found[0] == "bytes=-":
        return None
    first, last = found.groups()
    if not first:
        return range(max(0, size - int(last)), size)
    if last and int(last) < int(first):
        return None
    return range(min(int(first), size), min(int(last) + 1, size) if last else size)


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # Readers connect many at a time.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sig")
    parser.add_argument("--no-ranges", action="store_true")
    options = parser.parse_args()
    Files.folder, Files.sig, Files.ranges = options.folder.resolve(strict=True), options.sig, not options.no_ranges
    with _Server(("127.0.0.1", 0), Files) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()

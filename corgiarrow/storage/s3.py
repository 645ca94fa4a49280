"""Ranges of S3 objects, on the condition that the object is still the same, by URLs that are signed once an object.

To prepare, sign and parse a request takes botocore a millisecond; a signed URL is good for all ranges of its object,
and goes through the same connections in a quarter of that.
"""

import re
import time
from typing import Any, NamedTuple

from corgiarrow.storage.faults import Fault, fault_of

_GOOD_S = 3600
"""Seconds for which a URL is signed."""

_USED_S = 900
"""Seconds after which another one is signed."""

_NEW_S = 60
"""Seconds after which a URL that is refused says nothing of others."""

_MOST_URLS = 10_000


class S3Ranges:
    """Ranges of one storage's objects."""

    def __init__(self) -> None:
        self._fs: Any = None
        self._urls: dict[str, _Signed] = {}
        self._signs = True

    async def get(self, fs: Any, full: str, start: int, stop: int, etag: str) -> bytes:
        """Fetch a range of an object.

        Parameters
        ----------
        fs
            s3fs's file system.
        full
            Path on it.
        start, stop
            First byte, and the one after the last.
        etag
            The object's etag, with its quotes.

        Raises
        ------
        botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError, OSError
            As the file system's own requests.
        """
        if fs is not self._fs:  # It was opened, maybe anew, with other keys.
            self._fs, self._urls, self._signs = fs, {}, True
        signed = await self._signed(fs, full) if self._signs else None
        if signed is not None:
            status, data = await _by_url(fs, full, signed.url, start, stop, etag)
            if status in (200, 206):
                return data
            refusal = _refusal(status, data)
            if fault_of(refusal) not in (Fault.DENIED, Fault.LASTS):
                raise refusal
            # It may only mean that this store, or this key, takes no such URLs.
        data = await _by_call(fs, full, start, stop, etag)
        if signed is not None and fs is self._fs:
            # The keys behind an older URL may have been renewed since.
            self._signs = self._signs and time.monotonic() - signed.at > _NEW_S
            self._urls.pop(full, None)
        return data

    async def _signed(self, fs: Any, full: str) -> "_Signed | None":
        signed = self._urls.get(full)
        if signed is None or time.monotonic() - signed.at > _USED_S:
            client, parameters = await _client(fs, full), _object(fs, full)
            every = fs._get_s3_method_kwargs(client.get_object, **parameters)
            if every != parameters or not hasattr(client, "_endpoint"):
                return None  # What is more, such as who pays, would have to stand in headers that are signed.
            url = await client.generate_presigned_url("get_object", Params=parameters, ExpiresIn=_GOOD_S)
            signed = _Signed(url, time.monotonic())
            if len(self._urls) >= _MOST_URLS:
                self._urls.clear()
            self._urls[full] = signed
        return signed


class _Signed(NamedTuple):
    """A URL, and the monotonic time when it was signed."""

    url: str
    at: float


def _object(fs: Any, full: str) -> dict[str, str]:
    bucket, key, version = fs.split_path(full)
    return {"Bucket": bucket, "Key": key, **({"VersionId": version} if version else {})}


async def _client(fs: Any, full: str) -> Any:
    await fs.set_session()
    return await fs.get_s3(_object(fs, full)["Bucket"])


async def _by_url(fs: Any, full: str, url: str, start: int, stop: int, etag: str) -> tuple[int, bytes]:
    """Return the answer's status and body."""
    from botocore.awsrequest import AWSPreparedRequest
    from botocore.compat import HTTPHeaders

    headers = HTTPHeaders()
    headers["Range"] = f"bytes={start}-{stop - 1}"
    headers["If-Match"] = etag
    # Through the client's own session, so with its connections, proxies, certificates, timeouts and errors.
    session = (await _client(fs, full))._endpoint.http_session
    answer = await session.send(AWSPreparedRequest("GET", url, headers, b"", False))
    return answer.status_code, await answer.content


async def _by_call(fs: Any, full: str, start: int, stop: int, etag: str) -> bytes:
    # Of s3fs's own methods only open files offer the condition.
    answer = await fs._call_s3("get_object", **_object(fs, full), Range=f"bytes={start}-{stop - 1}", IfMatch=etag)
    async with answer["Body"] as body:
        return await body.read()  # type: ignore[no-any-return]


def _refusal(status: int, body: bytes) -> Exception:
    """Return what botocore would raise."""
    from botocore.exceptions import ClientError

    told = {name.decode(): text.decode() for name, text in re.findall(rb"<(Code|Message)>([^<]+)</", body)}
    told.setdefault("Code", str(status))
    error: Exception = ClientError({"Error": told, "ResponseMetadata": {"HTTPStatusCode": status}}, "GetObject")
    return error

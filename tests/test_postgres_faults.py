"""A real PostgreSQL server that ends connections, restarts, is gone or slow: told in time, or every row once."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from conftest import ids_of, until
from processes import ROOT
from servers import Postgres, Session, postgres_server

import corgiarrow as ca

pytestmark = pytest.mark.timeout(120)

PAGE = 8192
ROWS = 2000
OPTIONS: dict[str, Any] = {"table": "plain", "block_bytes": PAGE, "batch_size": 40, "buffer_blocks": 2}
LOCK = 42


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server of these tests alone: they restart it, and look at all of its connections."""
    with postgres_server() as server:
        server.run(
            "CREATE TABLE plain (id int8, name text)",
            f"INSERT INTO plain SELECT i, repeat('x', 100) FROM generate_series(0, {ROWS} - 1) i",
            # Reads of it stand still while somebody holds the lock.
            f"""CREATE FUNCTION goes_on(id int8) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN
                PERFORM pg_advisory_lock_shared({LOCK}); PERFORM pg_advisory_unlock_shared({LOCK}); RETURN true;
            END $$""",
        )
        yield server


@pytest.fixture(autouse=True)
def no_connection_left(server: Postgres) -> Iterator[None]:
    """Every test must end with the connections of its readers closed."""
    yield
    gc.collect()
    until(lambda: not server.readers())


@pytest.fixture(scope="module")
def expected(server: Postgres) -> list[list[list[int]]]:
    """Two epochs as they are without faults."""
    with ca.Reader(server.url(), **OPTIONS) as reader:
        return [ids_of(reader) for _ in range(2)]


@pytest.mark.parametrize("which", ["those that read", "all"])
def test_ended_connections(server: Postgres, expected: list[list[list[int]]], which: str) -> None:
    """Where the snapshot's own is ended, too, another is taken, as nobody has written."""
    with ca.Reader(server.url(), threads=2, **OPTIONS) as reader:
        (keeper,) = until(lambda: len(found := server.readers()) == 1 and found)
        condition = "true" if which == "all" else f"pid <> {keeper}"
        found, ended = [], 0
        for number, batch in enumerate(reader):
            found.append(batch["id"].to_pylist())
            if number % 10 == 3:
                ended += server.end_readers(condition)
        assert found == expected[0]
        assert ended > 4
        assert reader.stats.retries > 0
        assert (keeper in server.readers()) == (which != "all")
        server.end_readers()  # Between two passes.
        assert ids_of(reader) == expected[1]


def test_connections_that_are_ended_all_the_time(server: Postgres, expected: list[list[list[int]]]) -> None:
    """By a thread, while blocks are on their way."""
    over = threading.Event()
    ended = []

    def end() -> None:
        while not over.wait(0.2):
            ended.append(server.end_readers("state = 'active' AND query LIKE 'COPY%'"))

    with ca.Reader(server.url(), where="pg_sleep(0.0005) IS NOT NULL", **OPTIONS) as reader:
        thread = threading.Thread(target=end)
        thread.start()
        try:
            found = ids_of(reader)
        finally:
            over.set()
            thread.join()
        assert found == expected[0]
        assert sum(ended) > 0
        assert reader.stats.retries >= sum(ended) / 2


def test_another_table_in_the_place_of_a_lost_snapshot(server: Postgres) -> None:
    server.run("CREATE TABLE changes AS SELECT * FROM plain")
    options = OPTIONS | {"table": "changes", "shuffle": "none", "buffer_blocks": 1}
    with ca.Reader(server.url(), **options) as reader:
        batches = iter(reader)
        next(batches)
        server.run("DELETE FROM changes WHERE id = 1900")
        server.end_readers()
        with pytest.raises(ca.SourceChangedError, match=r"public\.changes is gone.*there are 1,999"):
            list(batches)
    server.run("DROP TABLE changes")


@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_a_restart(server: Postgres, expected: list[list[list[int]]], mode: str) -> None:
    with ca.Reader(server.url(), **OPTIONS) as reader:
        found = []
        for number, batch in enumerate(reader):
            found.append(batch["id"].to_pylist())
            if number == 5:
                server.control("restart", "-m", mode)
        assert found == expected[0]
        assert reader.stats.retries > 0
        assert ids_of(reader) == expected[1]


def test_a_server_that_is_gone(server: Postgres) -> None:
    """In the middle of a pass and at the beginning: told within the timeout, and no thread hangs."""
    with postgres_server() as lost:
        lost.run(f"CREATE TABLE plain AS SELECT i AS id, repeat('x', 100) FROM generate_series(0, {ROWS} - 1) i")
        reader = ca.Reader(lost.url(), timeout=3, **OPTIONS)
        batches = iter(reader)
        next(batches)
        lost.control("stop", "-m", "immediate")
        began = time.monotonic()
        with pytest.raises(ca.StorageError, match=r"public\.plain, page \d+: .* tries in"):
            list(batches)
        assert time.monotonic() - began < 6
        began = time.monotonic()
        with pytest.raises(ca.StorageError, match=r"cannot read table 'plain' of postgresql://"):
            ca.Reader(lost.url(), timeout=3, **OPTIONS)
        assert time.monotonic() - began < 6
        reader.close()


def test_what_takes_longer_than_statements_may(server: Postgres) -> None:
    """It is tried again a few times, then told with the remedy."""
    url = server.url(options="-c statement_timeout=1000")  # Long enough for a busy machine to count the rows.
    began = time.monotonic()
    with pytest.raises(ca.StorageError, match=r"statement timeout.*\(3 tries\).*SET statement_timeout.*block_bytes="):
        ca.Reader(url, where="pg_sleep(60) IS NOT NULL", **OPTIONS)
    assert time.monotonic() - began < 20
    with server.session() as session, ca.Reader(url, where="goes_on(id)", **OPTIONS) as reader:
        session.run(f"SELECT pg_advisory_lock({LOCK})")
        with pytest.raises(ca.StorageError, match=r"page.*statement timeout.*statement_timeout"):
            list(reader)


@contextmanager
def standing_still(server: Postgres) -> Iterator[Session]:
    """Reads of rows with ``goes_on(id)`` do not come back."""
    with server.session() as session:
        session.run(f"SELECT pg_advisory_lock({LOCK})")
        yield session


def test_what_is_cancelled_once_is_read(server: Postgres, expected: list[list[list[int]]]) -> None:
    def cancel() -> None:
        waiting = "application_name = 'corgiarrow' AND wait_event = 'advisory'"
        until(lambda: server.rows(f"SELECT 1 FROM pg_stat_activity WHERE {waiting}"))
        server.rows(f"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE {waiting}")
        session.run(f"SELECT pg_advisory_unlock({LOCK})")

    with ca.Reader(server.url(), where="goes_on(id)", **OPTIONS) as reader:
        with standing_still(server) as session:
            thread = threading.Thread(target=cancel)
            thread.start()
            found = ids_of(reader)
            thread.join()
        assert found == expected[0]
        assert reader.stats.retries > 0


@pytest.mark.parametrize("how", ["pass", "reader", "interrupt"])
def test_a_slow_read_is_broken_off(server: Postgres, how: str) -> None:
    """Leaving a pass, closing the reader and Ctrl-C end within 2 s, and the server has nothing to do any more."""
    with ca.Reader(server.url(), **OPTIONS) as plain:
        first = plain.source.block_rows[0]
    options = OPTIONS | {"shuffle": "none", "buffer_blocks": 1, "batch_size": 5}
    where = f"CASE WHEN id < {first} THEN true ELSE goes_on(id) END"
    with ca.Reader(server.url(), where=where, threads=2, **options) as reader:
        with standing_still(server):
            batches = iter(reader)
            next(batches)
            until(lambda: server.readers("wait_event = 'advisory'"))
            if how == "interrupt":
                timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
                timer.start()
                with pytest.raises(KeyboardInterrupt):
                    list(batches)  # Of the second block on, it waits.
                timer.join()
                began = time.monotonic() - 0.2
            else:
                began = time.monotonic()
                batches.close() if how == "pass" else reader.close()  # type: ignore[attr-defined]
            assert time.monotonic() - began < 2
            until(lambda: not server.readers("state = 'active'"), 1)
        del batches
        reader.set_epoch(0)
        assert sum(batch.num_rows for batch in reader) == ROWS


def test_a_reader_that_is_collected(server: Postgres) -> None:
    """In the middle of a pass, between two, and with readers of the same source: connections are closed."""
    reader = ca.Reader(server.url(), **OPTIONS)
    batches = iter(reader)
    next(batches)
    other = ca.Reader(reader.source, batch_size=40)
    assert len(server.readers()) > 1
    del batches, reader
    gc.collect()
    until(lambda: len(server.readers()) == 1)
    assert sum(batch.num_rows for batch in other) == ROWS
    assert len(server.readers()) == 1, "between passes only the snapshot is held"
    del other
    gc.collect()
    until(lambda: not server.readers())


FORKS = """
import gc, os, sys
import corgiarrow as ca
reader = ca.Reader(sys.argv[1], table="plain", block_bytes=8192, batch_size=40)
expected = [batch["id"].to_pylist() for batch in reader]
reader.set_epoch(0)
batches = iter(reader)
found = [next(batches)["id"].to_pylist()]
if (child := os.fork()) == 0:
    if sys.argv[2] == "reads":
        own = ca.Reader(reader.source, batch_size=40)
        assert [batch["id"].to_pylist() for batch in own] == expected
        own.close()
    sys.exit(7)  # With all that an interpreter does at its end.
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
found += [batch["id"].to_pylist() for batch in batches]
assert found == expected
assert reader.stats.retries == 0, reader.stats
reader.set_epoch(0)
assert [batch["id"].to_pylist() for batch in reader] == expected
assert reader.stats.retries == 0, reader.stats
"""


@pytest.mark.parametrize("child", ["reads", "ends"])
def test_a_forked_child_leaves_the_connections_of_its_parent(server: Postgres, child: str) -> None:
    command = [sys.executable, "-c", FORKS, server.url(), child]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr

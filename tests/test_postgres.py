"""Tables of a real PostgreSQL server: order, positions, writers beside readers, snapshots, splits, rights, names."""

import itertools
import json
import logging
import multiprocessing
import pickle
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import all_parts, ids_of, until
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import Postgres, Session
from torch.utils.data import DataLoader

import corgiarrow as ca
import corgiarrow.torch as ct

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork"),
]

PAGE = 8192
STRATEGIES = ["none", "block", "corgipile", "spread", ca.SlidingWindow(rows=50)]
NUMBERS = itertools.count()


def fill(session: Session, rows: int, width: int = 20, columns: str = "") -> str:
    """Make a table of so many rows, `id` 0, 1, …, and texts about `width` long; return its name."""
    name = f"t{next(NUMBERS)}"
    session.run(
        f"CREATE TABLE {name} (id int8 NOT NULL, x float4, name text{columns})",
        f"INSERT INTO {name} SELECT i, i * 0.5, CASE WHEN i % 7 > 0 THEN repeat(chr(97 + i::int % 26), {width}) END "
        f"FROM generate_series(0, {rows} - 1) i",
    )
    return name


@pytest.fixture
def session(postgres: Postgres) -> Iterator[Session]:
    with postgres.session() as session:
        yield session


def by_address(session: Session, table: str) -> list[int]:
    """The ids of a table's rows as they lie in it."""
    return [i for (i,) in session.rows(f"SELECT id FROM ONLY {table} ORDER BY ctid")]


def flat(batches: list[list[int]]) -> list[int]:
    return [i for batch in batches for i in batch]


@settings(max_examples=12)
@given(data=st.data())
def test_every_row_once_in_the_order_of_the_plan(postgres: Postgres, session: Session, data: st.DataObject) -> None:
    """Any table with holes, blocks, strategy, streams and parts; and from any batch on by a reader made anew."""
    table = fill(session, data.draw(st.integers(1, 900), "rows"), data.draw(st.sampled_from([1, 20, 300]), "width"))
    for statement in data.draw(
        st.lists(
            st.sampled_from(
                [
                    "DELETE FROM {} WHERE id % 3 = 1 AND id > 0",
                    "DELETE FROM {} WHERE id BETWEEN 100 AND 600",
                    "UPDATE {} SET x = x + 1 WHERE id % 5 = 2",
                    "VACUUM {}",
                    "INSERT INTO {} SELECT i FROM generate_series(2000, 2100) i",
                ]
            ),
            max_size=4,
        ),
        "changes",
    ):
        session.run(statement.format(table))
    lie = by_address(session, table)
    batch_size = data.draw(st.integers(-(-len(lie) // 40), max(len(lie) // 4, 1)), "batch_size")
    batches = -(-len(lie) // batch_size)
    streams = data.draw(st.sampled_from([s for s in (1, 2, 4) if s <= batches]), "streams")
    world_size = data.draw(st.sampled_from([w for w in (1, 2, 4) if streams % w == 0]), "world_size")
    workers = data.draw(st.sampled_from([w for w in (1, 2) if streams % (w * world_size) == 0]), "workers")
    options = {
        "table": table,
        "columns": ["id"],
        "batch_size": batch_size,
        "streams": streams,
        "shuffle": data.draw(st.sampled_from(STRATEGIES), "shuffle"),
        "block_bytes": PAGE * data.draw(st.integers(1, 8), "pages"),
        "seed": data.draw(st.integers(0, 99), "seed"),
    }
    expected = []
    with ca.Reader(postgres.url(), **options) as reader:
        assert reader.num_rows == len(lie)
        for epoch in range(2):
            order = np.array(lie)[reader.plan(epoch).row_ids()].tolist()
            expected.append(ids_of(reader))
            assert flat(expected[epoch]) == order
            assert sorted(order) == sorted(lie)
            assert options["shuffle"] != "none" or streams > 1 or order == lie
    parts = all_parts(postgres.url(), world_size, workers, **options)
    assert parts[: len(expected[0])] == expected[0]
    assert len(parts) - batches < world_size * workers
    taken = data.draw(st.integers(0, batches), "taken")
    with ca.Reader(postgres.url(), **options) as reader, closing(iter(reader)) as found:  # type: ignore[type-var]
        first = ids_of(itertools.islice(found, taken))
        state = json.loads(json.dumps(reader.state_dict()))
    with ca.Reader(postgres.url(), **options) as reader:
        reader.load_state_dict(state)
        assert first + (ids_of(reader) if taken < batches else []) == expected[0]
        assert ids_of(reader) == expected[1]
    session.run(f"DROP TABLE {table}")


@pytest.mark.parametrize("shuffle", ["none", "corgipile", "spread"])
def test_wide_rows_are_read_in_pieces(postgres: Postgres, session: Session, shuffle: str) -> None:
    """Rows whose texts lie in the TOAST table, in blocks that are much of the budget."""
    name = f"t{next(NUMBERS)}"
    wide = "(SELECT string_agg(md5(i * 1000 + j || ''), '') FROM generate_series(1, 100) j)"
    session.run(
        f"CREATE TABLE {name} (id int8, body text STORAGE EXTERNAL)",
        f"INSERT INTO {name} SELECT i, {wide} FROM generate_series(0, 1199) i",
    )
    options = {"table": name, "memory": "2 MiB", "block_bytes": "2 MiB", "batch_size": 16, "shuffle": shuffle}
    expected = dict(session.rows(f"SELECT id, body FROM {name}"))
    lie = np.array(by_address(session, name))
    with ca.Reader(postgres.url(), **options) as reader:
        pieces = reader.plan().pieces
        assert pieces is not None
        assert pieces.max() > 1
        for epoch in range(2):
            order = lie[reader.plan(epoch).row_ids()].tolist()
            table = pa.Table.from_batches(reader, reader.schema)
            assert table["id"].to_pylist() == order
            assert table["body"].to_pylist() == [expected[i] for i in order]
            assert reader.stats.peak_bytes <= 2 * 2**20


def test_provenance_says_where_rows_lie(postgres: Postgres, session: Session) -> None:
    table = fill(session, 900)
    session.run(f"DELETE FROM {table} WHERE id % 4 = 1", f"UPDATE {table} SET x = 0 WHERE id % 5 = 1")
    place = "(ctid::text::point)"
    rows = session.rows(f"SELECT id, {place}[0]::int, {place}[1]::int FROM {table}")
    address = {i: (page, row) for i, page, row in rows}
    options = {"table": table, "block_bytes": 2 * PAGE, "batch_size": 10, "provenance": True}
    with ca.Reader(postgres.url(), **options) as reader:
        found = pa.Table.from_batches(reader, reader.schema).to_pylist()
    assert {row["_file"] for row in found} == {f"public.{table}"}
    blocks: dict[int, list[Any]] = {}
    for row in sorted(found, key=lambda row: row["_row"]):
        assert 0 <= address[row["id"]][0] - row["_row_group"] < 2
        blocks.setdefault(row["_row_group"], []).append(row)
    for rows in blocks.values():
        assert [row["_row"] for row in rows] == list(range(len(rows)))
        places = [address[row["id"]] for row in rows]
        assert places == sorted(places)
    assert len(found) == len(address)
    assert len(blocks) > 2


def test_empty_tables_and_one_row(postgres: Postgres, session: Session) -> None:
    for rows in (0, 1):
        table = fill(session, rows)
        with ca.Reader(postgres.url(), table=table) as reader:
            assert [ids_of(reader) for _ in range(2)] == [[[0]] * rows] * 2
            assert reader.num_rows == rows
    with ca.Reader(postgres.url(), table=fill(session, 50), where="id > 1000") as reader:
        assert list(reader) == []


ACCOUNTS, MONEY = 1500, 100
COLUMNS = ["id", "balance", "version", "proof"]


@contextmanager
def busy_accounts(postgres: Postgres, session: Session, writers: int = 3) -> Iterator[str]:
    """A table of accounts that threads write to all the time.

    Each transaction moves money between two accounts, and puts an account in the place of another: every snapshot has
    the same number of accounts, and the same money.
    """
    name = f"t{next(NUMBERS)}"
    session.run(
        f"CREATE TABLE {name} (id int8 PRIMARY KEY, balance int8, version int8, "
        "proof int8 GENERATED ALWAYS AS (id * 1000003 + balance * 31 + version) STORED)",
        f"INSERT INTO {name} SELECT i, {MONEY}, 0 FROM generate_series(0, {ACCOUNTS} - 1) i",
        f"CREATE SEQUENCE {name}_next START {ACCOUNTS}",
        f"""CREATE FUNCTION {name}_write(writer int8) RETURNS void LANGUAGE plpgsql AS $$
        DECLARE mine int8[]; moved int8;
        BEGIN
            SELECT array_agg(id) INTO mine FROM
                (SELECT id FROM {name} WHERE id % {writers} = writer ORDER BY random() LIMIT 3) found;
            UPDATE {name} SET version = version + 1, balance = balance + CASE id WHEN mine[1] THEN 1 ELSE -1 END
                WHERE id IN (mine[1], mine[2]);
            DELETE FROM {name} WHERE id = mine[3] RETURNING balance INTO moved;
            INSERT INTO {name} VALUES (nextval('{name}_next') * {writers} + writer, moved, 0);
        END $$""",
    )
    ended, failed, done = threading.Event(), [], [0] * writers

    def write(writer: int) -> None:
        try:
            with postgres.session() as own:
                while not ended.is_set():
                    own.run(f"SELECT {name}_write({writer})")
                    done[writer] += 1
        except BaseException as error:  # noqa: BLE001 - told by the test.
            failed.append(error)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: min(done) > 10 or failed)
        before = sum(done)
        yield name
        assert sum(done) > before + 10, "nobody wrote beside the reader"
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not failed, failed


def check_accounts(table: pa.Table) -> pa.Table:
    """Check that rows are those of one snapshot, each once; return them by id."""
    values = {name: table[name].to_numpy() for name in COLUMNS}
    assert len(np.unique(values["id"])) == len(values["id"]) == ACCOUNTS
    assert values["balance"].sum() == ACCOUNTS * MONEY
    assert (values["id"] * 1000003 + values["balance"] * 31 + values["version"] == values["proof"]).all()
    return table.select(COLUMNS).combine_chunks().sort_by("id")


def as_table(batches: Any) -> pa.Table:
    """A table of dicts of tensors."""
    return pa.concat_tables([pa.table({n: batch[n].numpy() for n in COLUMNS}) for batch in batches])


BUSY: dict[str, Any] = {"batch_size": 10, "streams": 4, "block_bytes": PAGE}


@pytest.mark.parametrize("how", ["reader", "threads", "processes", "fork"])
def test_a_snapshot_beside_writers(postgres: Postgres, session: Session, how: str) -> None:
    with busy_accounts(postgres, session) as name:
        options = {"table": name, **BUSY}
        if how == "reader":
            with ca.Reader(postgres.url(), **options) as reader:
                epochs = [pa.Table.from_batches(reader, reader.schema) for _ in range(2)]
        elif how in ("threads", "processes"):
            with ct.loader(postgres.url(), processes=2 * (how == "processes"), **options) as loader:
                next(iter(loader))  # A pass that is broken off; and positions that are loaded.
                loader.load_state_dict(loader.state_dict() | {"batches": 0})
                epochs = [as_table(loader) for _ in range(2)]
        else:
            dataset = ct.CorgiPileDataset(postgres.url(), **options)
            loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=how, timeout=60)
            epochs = [as_table(loader) for _ in range(2)]
        first, second = map(check_accounts, epochs)
        assert first.equals(second)
        assert not epochs[0].equals(epochs[1]), "epochs have orders of their own"
        with ca.Reader(postgres.url(), **options) as reader:
            later = check_accounts(pa.Table.from_batches(reader, reader.schema))
        assert not later.equals(first)


def _ids_in_a_process(pickled: bytes) -> list[list[int]]:
    with pickle.loads(pickled) as reader:
        return ids_of(reader)


def test_a_spawned_process_reads_the_same_snapshot(postgres: Postgres, session: Session) -> None:
    table = fill(session, 500)
    with ca.Reader(postgres.url(), table=table, block_bytes=PAGE, batch_size=20) as reader:
        session.run(f"DELETE FROM {table} WHERE id % 2 = 0", f"INSERT INTO {table} VALUES (9999)", f"VACUUM {table}")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            theirs = pool.apply(_ids_in_a_process, (pickle.dumps(reader),))
            pool.close()
            pool.join()
        mine = ids_of(reader)
    assert theirs == mine
    assert sorted(flat(mine)) == list(range(500))


def test_after_close_the_same_rows_in_the_same_order(postgres: Postgres, session: Session) -> None:
    """Also where others came and went without a trace, behind the last page, or read and locked rows."""
    table = fill(session, 500)
    with ca.Reader(postgres.url(), table=table, block_bytes=PAGE, batch_size=20) as reader:
        expected = [ids_of(reader) for _ in range(2)]
        reader.close()
        assert not postgres.readers()
        session.run(
            "BEGIN",
            f"INSERT INTO {table} SELECT i FROM generate_series(1000, 9000) i",
            f"DELETE FROM {table} WHERE id % 3 = 0",
            "ROLLBACK",
            f"ANALYZE {table}",
        )
        reader.set_epoch(0)
        assert ids_of(reader) == expected[0]
        reader.close()
        session.run(f"VACUUM {table}")
        assert ids_of(reader) == expected[1]


CHANGES = {
    "insert": "INSERT INTO {} VALUES (-1)",
    "insert much": "INSERT INTO {} SELECT i FROM generate_series(1000, 9000) i",
    "delete": "DELETE FROM {} WHERE id = 77",
    "update one in place": "UPDATE {} SET x = x WHERE id = 77",
    "truncate": "TRUNCATE {}",
    "rewrite": "VACUUM FULL {}",
    "alter": "ALTER TABLE {} ALTER x TYPE float8",
    "drop": "DROP TABLE {}",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_table_that_changed_is_not_read_on(postgres: Postgres, session: Session, change: str) -> None:
    """Neither by a reader whose snapshot is gone, nor from a position in what it was."""
    table = fill(session, 500)
    session.run(f"DELETE FROM {table} WHERE id < 5")  # So that what is written anew lies elsewhere.
    options = {"table": table, "block_bytes": PAGE, "batch_size": 20}
    with ca.Reader(postgres.url(), **options) as reader:
        batches = iter(reader)
        next(batches)
        del batches
        state = reader.state_dict()
        reader.close()
        session.run(CHANGES[change].format(table))
        with pytest.raises(ca.OptionError if change == "drop" else ca.SourceChangedError) as raised:
            list(reader)
    assert table in str(raised.value)
    if change == "drop":
        return
    with ca.Reader(postgres.url(), **options) as again, pytest.raises(ca.StateMismatchError):
        again.load_state_dict(state)


def test_writes_are_told_at_a_later_epoch(
    postgres: Postgres, session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    table = fill(session, 100)
    caplog.set_level(logging.WARNING, "corgiarrow")
    with ca.Reader(postgres.url(), table=table, batch_size=20) as reader:
        session.run("SELECT pg_stat_force_next_flush()", "SELECT 1")
        for _ in range(2):
            assert sorted(flat(ids_of(reader))) == list(range(100))
        quiet = [r for r in caplog.records if "written to" not in r.getMessage()]
        assert caplog.records == quiet or len(caplog.records) <= 1  # Filling it may be told late, once.
        caplog.clear()
        session.run(f"UPDATE {table} SET x = -1 WHERE id < 50", "SELECT pg_stat_force_next_flush()", "SELECT 1")

        def told() -> bool:
            assert sorted(flat(ids_of(reader))) == list(range(100))
            return f"public.{table} has changed since its snapshot was taken" in caplog.text

        until(told)
        caplog.clear()
        ids_of(reader)
        assert not caplog.records, "it is told once"


@settings(max_examples=5)
@given(
    by=st.sampled_from(["id", "name", "x", None]),
    held_out=st.sampled_from([0.1, 0.5, 0.9]),
    seeds=st.tuples(st.integers(0, 99), st.integers(0, 99)),
    pages=st.integers(1, 3),
)
def test_parts_of_a_split_are_disjoint_and_complete(
    postgres: Postgres, session: Session, by: str | None, held_out: float, seeds: tuple[int, int], pages: int
) -> None:
    table = fill(session, 1000)
    session.run(f"UPDATE {table} SET name = 'many ' || id % 40")
    lie = by_address(session, table)

    def part(name: str, seed: int) -> set[int]:
        split = ca.Split(part=name, held_out=held_out, by=by)
        options = {"split": split, "where": "id % 10 < 9 -- most", "columns": ["id"], "block_bytes": pages * PAGE}
        with ca.Reader(postgres.url(), table=table, seed=seed, **options) as reader:
            found = flat(ids_of(reader))
        assert len(found) == len(set(found))
        return set(found)

    train, held = (part(name, seeds[0]) for name in ("train", "held_out"))
    assert train | held == {i for i in lie if i % 10 < 9}
    assert not train & held
    assert train
    assert held
    assert part("train", seeds[1]) == train
    if by == "name":
        assert not {i % 40 for i in train} & {i % 40 for i in held}
    if by in ("id", "x"):
        assert abs(len(held) / 900 - held_out) < 0.07
    session.run(f"DROP TABLE {table}")


PARTITIONED = """
CREATE TABLE {0} (id int8 NOT NULL, k int4 NOT NULL, name text) PARTITION BY RANGE (k);
CREATE TABLE {0}_a PARTITION OF {0} FOR VALUES FROM (0) TO (10);
CREATE TABLE {0}_b (gone int, name text, k int4 NOT NULL, id int8 NOT NULL);
ALTER TABLE {0}_b DROP gone;
ALTER TABLE {0} ATTACH PARTITION {0}_b FOR VALUES FROM (10) TO (20);
CREATE TABLE {0}_c PARTITION OF {0} FOR VALUES FROM (20) TO (30) PARTITION BY LIST (k);
CREATE TABLE {0}_c1 PARTITION OF {0}_c FOR VALUES IN (20, 21, 22);
CREATE TABLE {0}_c2 PARTITION OF {0}_c DEFAULT;
CREATE TABLE {0}_empty PARTITION OF {0} FOR VALUES FROM (30) TO (40);
INSERT INTO {0} SELECT i, i % 30, 'row ' || i FROM generate_series(0, 1999) i;
"""


def partitioned(session: Session) -> str:
    name = f"t{next(NUMBERS)}"
    session.run(*PARTITIONED.format(name).strip().removesuffix(";").split(";\n"))
    return name


def test_partitions(postgres: Postgres, session: Session) -> None:
    """Two levels, one with its columns in another order, one empty; and heirs."""
    name = partitioned(session)
    with ca.Reader(postgres.url(), table=name, block_bytes=PAGE, batch_size=100, provenance=True) as reader:
        found = pa.Table.from_batches(reader, reader.schema).sort_by("id")
    assert found.select(["id", "k", "name"]).to_pydict() == {
        "id": list(range(2000)),
        "k": [i % 30 for i in range(2000)],
        "name": [f"row {i}" for i in range(2000)],
    }
    where = dict(zip(found["k"].to_pylist(), found["_file"].to_pylist(), strict=True))
    assert where == {
        k: f"public.{name}_" + ("a" if k < 10 else "b" if k < 20 else "c1" if k < 23 else "c2") for k in range(30)
    }
    with ca.Reader(postgres.url(), table=f"{name}_c", where="k <> 21") as reader:
        assert sorted(flat(ids_of(reader))) == [i for i in range(2000) if i % 30 >= 20 and i % 30 != 21]
    parent = fill(session, 300)
    session.run(
        f"CREATE TABLE {parent}_heir (more int) INHERITS ({parent})",
        f"INSERT INTO {parent}_heir SELECT i, 0, '', 1 FROM generate_series(300, 399) i",
    )
    with ca.Reader(postgres.url(), table=parent, batch_size=7, block_bytes=PAGE) as reader:
        assert reader.schema.names == ["id", "x", "name"]
        assert sorted(flat(ids_of(reader))) == list(range(400))


def test_another_partition_is_a_change(postgres: Postgres, session: Session) -> None:
    name = partitioned(session)
    with ca.Reader(postgres.url(), table=name) as reader:
        next(iter(reader))
        reader.close()
        session.run(f"CREATE TABLE {name}_more PARTITION OF {name} FOR VALUES FROM (40) TO (50)")
        with pytest.raises(ca.SourceChangedError, match="other partitions"):
            list(reader)


def test_rights(postgres: Postgres, session: Session) -> None:
    """USAGE and SELECT are enough, or SELECT of the columns that are read, ctid and xmin; else the GRANT is told."""
    role = f"reader{next(NUMBERS)}"
    name, schema = partitioned(session), f"s{next(NUMBERS)}"
    session.run(
        f"CREATE ROLE {role} LOGIN",
        f"CREATE SCHEMA {schema}",
        f"CREATE TABLE {schema}.own AS SELECT i AS id, i AS hidden FROM generate_series(0, 499) i",
    )
    url = postgres.url(role)

    def refused(grant: str, **options: Any) -> None:
        with pytest.raises(ca.AccessDeniedError, match=grant) as raised:
            ca.Reader(url, **options)
        assert "query" not in str(raised.value)

    refused(f": ERROR: permission denied for schema {schema}$", table=f"{schema}.own")
    session.run(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    refused(f'GRANT SELECT ON "{schema}"."own" TO "{role}"', table=f"{schema}.own")
    session.run(f"GRANT SELECT (id) ON {schema}.own TO {role}")
    refused(r"lacks the columns hidden, ctid, xmin\): GRANT SELECT ON", table=f"{schema}.own")
    refused(r"lacks the columns ctid, xmin\): GRANT SELECT ON", table=f"{schema}.own", columns=["id"])
    session.run(f"GRANT SELECT (ctid, xmin) ON {schema}.own TO {role}")
    with ca.Reader(url, table=f"{schema}.own", columns=["id"], batch_size=50) as reader:
        expected = ids_of(reader)
        reader.set_epoch(0)
        reader.close()
        assert ids_of(reader) == expected
        assert sorted(flat(expected)) == list(range(500))
    session.run(f"GRANT SELECT ON {schema}.own TO {role}")
    with ca.Reader(url, table=f"{schema}.own") as reader:
        assert reader.schema.names == ["id", "hidden"]
        assert sum(batch.num_rows for batch in reader) == 500

    session.run(f"GRANT SELECT ON {name}, {name}_a, {name}_b, {name}_c1, {name}_empty TO {role}")
    refused(f'GRANT SELECT ON "public"."{name}_c2" TO "{role}"', table=name)
    session.run(f"GRANT SELECT ON {name}_c2 TO {role}")
    with ca.Reader(url, table=name) as reader:
        assert sorted(flat(ids_of(reader))) == list(range(2000))


def test_row_level_security(postgres: Postgres, session: Session) -> None:
    """A table gives the rows that the policy lets through; of a partitioned one it would not hold."""
    role = f"reader{next(NUMBERS)}"
    name, plain = partitioned(session), fill(session, 300)
    session.run(f"CREATE ROLE {role} LOGIN")
    for table in (name, plain):
        session.run(
            f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY", f"CREATE POLICY p ON {table} USING (id % 2 = 0)"
        )
    session.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    with pytest.raises(ca.OptionError, match="row-level security, which does not hold for its partitions"):
        ca.Reader(postgres.url(role), table=name)
    with ca.Reader(postgres.url(role), table=plain) as reader:
        assert sorted(flat(ids_of(reader))) == list(range(0, 300, 2))
    with ca.Reader(postgres.url(), table=name) as reader:
        assert reader.num_rows == 2000


HOSTILE = [
    '"; drop table victim; --',
    "it's",
    r"back\slash",
    r"\'; --",
    "per%cent %s",
    "a b;c",
    "naïve 表 🐕",
    'q"uo""te',
    "UPPER",
    "$1",
]


def named(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_names(postgres: Postgres, session: Session, hostile: str) -> None:
    """A schema, a table and columns of any name are read exactly, and stay names."""
    schema, other = f"s{next(NUMBERS)} {hostile}", f"x {hostile}"
    session.run(
        "CREATE TABLE IF NOT EXISTS victim (id int)",
        f"CREATE SCHEMA {named(schema)}",
        f"CREATE TABLE {named(schema)}.{named(hostile)} ({named(hostile)} int8, {named(other)} text)",
        f"INSERT INTO {named(schema)}.{named(hostile)} SELECT i, i FROM generate_series(0, 99) i",
    )
    options = {"batch_size": 10, "columns": [other, hostile], "split": ca.Split(part="train", by=hostile)}
    with ca.Reader(postgres.url(), table=f"{schema}.{hostile}", **options) as reader:
        found = pa.Table.from_batches(reader, reader.schema)
        reader.close()
        list(reader)
    assert found.schema.names == [other, hostile]
    assert [str(i) for i in found[hostile].to_pylist()] == found[other].to_pylist()
    assert 60 < len(set(found[hostile].to_pylist())) == found.num_rows < 100
    for wrong in ({"columns": [f"{hostile}?"]}, {"schema": {f"{hostile}?": pa.string()}}):
        with pytest.raises(ca.ColumnNotFoundError):
            ca.Reader(postgres.url(), table=f"{schema}.{hostile}", **wrong)
    with pytest.raises(ca.OptionError, match="is not in the database"):
        ca.Reader(postgres.url(), table=f"{hostile}{hostile}")
    assert session.rows("SELECT to_regclass('victim') IS NOT NULL") == [(True,)]

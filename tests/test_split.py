"""Splits: both parts are all rows, each once, the same for every reader, and all promises hold of each part."""

import datetime as dt
import decimal
import hashlib
import pickle
import struct
import tempfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from conftest import RAGGED_ROWS, ArraySource, all_parts, half_floats, ids_of, write_dataset
from hypothesis import event, given, settings
from hypothesis import strategies as st
from test_cli import run, run_json
from test_schemas import ONCE_EACH, cells, read_all, rows_of, small_pages, write_files, write_hive

import corgiarrow as ca
from corgiarrow.split import can_hash, hash_values

__all__ = ["small_pages"]

NAN = float("nan")


# The hash ---------------------------------------------------------------------------------------------------------


def mixed_bits(bits: int) -> int:
    """SplitMix64's finaliser, with Python's integers."""
    word = 2**64
    bits = (bits + 0x9E3779B97F4A7C15) % word
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % word
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % word
    return bits ^ (bits >> 31)


def hash_of_bytes(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


def expected_hash(value: Any) -> int:
    """What docs/split.md says of a value."""
    if value is None:
        return hash_of_bytes(b"corgiarrow null")
    if isinstance(value, float):
        value = 0.0 if value == 0 else NAN if value != value else value
        return mixed_bits(struct.unpack("<Q", struct.pack("<d", value))[0])
    if isinstance(value, int):
        return mixed_bits(value % 2**64)
    return hash_of_bytes(value.encode() if isinstance(value, str) else value)


@given(
    st.one_of(
        st.tuples(st.just(pa.int64()), st.lists(st.none() | st.integers(-(2**63), 2**63 - 1))),
        st.tuples(st.just(pa.uint64()), st.lists(st.none() | st.integers(0, 2**64 - 1))),
        st.tuples(st.just(pa.int8()), st.lists(st.none() | st.integers(-128, 127))),
        st.tuples(st.just(pa.bool_()), st.lists(st.none() | st.booleans())),
        st.tuples(st.just(pa.float64()), st.lists(st.none() | st.floats())),
        st.tuples(st.just(pa.float32()), st.lists(st.none() | st.floats(width=32))),
        st.tuples(st.just(pa.float16()), st.lists(st.none() | half_floats())),
        st.tuples(st.sampled_from([pa.string(), pa.large_string()]), st.lists(st.none() | st.text(max_size=3))),
        st.tuples(st.sampled_from([pa.binary(), pa.large_binary()]), st.lists(st.none() | st.binary(max_size=3))),
        st.tuples(st.just(pa.binary(2)), st.lists(st.none() | st.binary(min_size=2, max_size=2))),
        st.tuples(st.just(pa.null()), st.lists(st.none())),
    ),
    st.integers(0, 3),
)
def test_the_hash_is_of_the_value_alone(kind_and_values: tuple[pa.DataType, list[Any]], first: int) -> None:
    """However it is stored: plain, sliced, as a dictionary with a null in it or of which little is used."""
    kind, values = kind_and_values
    expected = [expected_hash(v) for v in values]
    plain = pa.array(values, kind)
    forms = [plain, plain[first:]]
    if not pa.types.is_null(kind) and kind != pa.float16():
        forms += [plain.dictionary_encode(), plain.dictionary_encode("encode"), plain.dictionary_encode()[first:]]
        forms.append(pa.concat_arrays([pa.array([*values, *values], kind), plain]).dictionary_encode()[: len(plain)])
    for array in forms:
        want = expected[first:] if len(array) < len(expected) else expected
        found = hash_values(array)
        assert found.dtype == np.uint64
        assert found.tolist() == want, array.type


UTC = dt.UTC
GOLDEN: list[tuple[pa.DataType, Any, int]] = [
    (pa.int64(), 0, 0xE220A8397B1DCDAF),
    (pa.int64(), 1, 0x910A2DEC89025CC1),
    (pa.int32(), -1, 0xE4D971771B652C20),
    (pa.uint64(), 2**64 - 2, 0xF3203E9039F4A821),
    (pa.bool_(), True, 0x910A2DEC89025CC1),
    (pa.float64(), 0.1, 0xF823E4ED2FB12A7D),
    (pa.float32(), 0.5, 0xF456984DD1D8CE6D),
    (pa.float64(), -0.0, 0xE220A8397B1DCDAF),
    (pa.float64(), NAN, 0xC72971D82E15BB46),
    (pa.string(), "", 0xB4B2797457A0A6E4),
    (pa.string(), "corgi", 0x2460EC8021E509F7),
    (pa.large_string(), "é", 0x2F19F3EF8BBF1ACB),
    (pa.binary(), b"\x00\xff", 0xE49CF0C8782EC7B0),
    (pa.binary(2), b"\x00\xff", 0xE49CF0C8782EC7B0),
    (pa.decimal128(5, 2), decimal.Decimal("1.50"), 0xE73AB94847BE576E),
    (pa.decimal256(50, 2), decimal.Decimal("1.50"), 0xE73AB94847BE576E),
    (pa.decimal32(5, 2), decimal.Decimal("-1.50"), 0xBB34C0A50DFE4AD9),
    (pa.date32(), dt.date(2024, 2, 29), 0xDB8C04CA25F6E90D),
    (pa.date64(), dt.date(2024, 2, 29), 0x519FD2457DAD158D),
    (pa.time32("s"), dt.time(1, 2, 3), 0x06A8343E4097471C),
    (pa.time64("us"), dt.time(1, 2, 3), 0x628EC27B1FAF875D),
    (pa.timestamp("us", "UTC"), dt.datetime(2024, 2, 29, tzinfo=UTC), 0x076DE3AF40FE6332),
    (pa.timestamp("s"), dt.datetime(1969, 12, 31), 0xD5371F18993451FD),
    (pa.duration("ms"), dt.timedelta(seconds=1), 0x3C1EBA8B4DCCC148),
    (pa.int64(), None, 0xD582EDB2AF0966B5),
    (pa.string(), None, 0xD582EDB2AF0966B5),
]


def test_golden_hashes() -> None:
    """Change HASH_VERSION with them: other rows are held out than those that people have trained without."""
    found = [(kind, value, int(hash_values(pa.array([value], kind))[0])) for kind, value, _ in GOLDEN]
    assert repr(found) == repr(GOLDEN)
    split = ca.Split(part="held_out", held_out=0.3)
    group, rows = np.arange(20), np.full(20, 5)
    paths = ["a.parquet", "year=2024/b.parquet"]
    held = split.groups(paths, (group >= 10).astype(np.int64), group % 10, rows)
    assert np.flatnonzero(held).tolist() == [0, 3, 5, 6, 15, 18]


def test_any_not_a_number_is_one_value() -> None:
    bits = np.array([0x7FF8 << 48, 0xFFF8 << 48, (0x7FF0 << 48) + 1], dtype=np.uint64)
    narrow = np.array([0x7FC0 << 16, 0xFFC0 << 16, (0x7F80 << 16) + 1], dtype=np.uint32)
    for values in (bits.view(np.float64), narrow.view(np.float32)):
        assert hash_values(pa.array(values)).tolist() == [expected_hash(NAN)] * 3


def test_decimals_of_one_scale_agree_whatever_their_width() -> None:
    values = [decimal.Decimal("1.50"), decimal.Decimal("-12.25"), None, decimal.Decimal("0")]
    kinds = [pa.decimal32(6, 2), pa.decimal64(12, 2), pa.decimal128(20, 2), pa.decimal256(60, 2)]
    hashes = {tuple(hash_values(pa.array(values, kind)).tolist()) for kind in kinds}
    assert len(hashes) == 1
    assert len(set(hashes.pop())) == 4


def test_many_distinct_values_are_hashed_alike() -> None:
    texts = [f"user {i % 66_000}" for i in range(70_000)]
    assert hash_values(pa.array(texts)).tolist() == [expected_hash(text) for text in texts]


def test_hashes_spread_evenly() -> None:
    """10,000 ids, counted or as text: about a tenth is held out (four standard deviations are 0.012)."""
    ids = range(10_000)
    for column in (
        pa.array(ids),
        pa.array([1000 * i for i in ids]),
        pa.array([float(i) for i in ids]),
        pa.array([f"user {i}" for i in ids]),
        pa.array([decimal.Decimal(i) for i in ids]),
        pa.array(ids).cast(pa.timestamp("s")),
    ):
        for held_out in (0.01, 0.1, 0.5, 0.9):
            rows = ca.Split(part="held_out", held_out=held_out, by="id").rows(pa.chunked_array([column]))
            assert abs(rows.mean() - held_out) < 4 * (held_out * (1 - held_out) / 10_000) ** 0.5, column.type


def test_rows_join_chunks_and_none() -> None:
    train = ca.Split(part="train", held_out=0.5, by="id")
    whole = train.rows(pa.chunked_array([pa.array(range(100))]))
    parts = train.rows(pa.chunked_array([pa.array(range(30)), pa.array([], pa.int64()), pa.array(range(30, 100))]))
    assert np.array_equal(whole, parts)
    assert len(train.rows(pa.chunked_array([], pa.int64()))) == 0


# Both parts -------------------------------------------------------------------------------------------------------

GROUP_SIZES = st.lists(st.lists(st.sampled_from([0, 1, 2, 3, 7, 20, 33]), max_size=6), min_size=1, max_size=4)
FRACTIONS = st.floats(0.01, 0.99) | st.sampled_from([1e-9, 0.1, 0.5, 1 - 1e-9])


def held_ids(index: ca.BlockIndex, table: pa.Table, held_out: float, by: str | None) -> set[int]:
    """Ids that are held out, found without corgiarrow's own hash. `table` is the whole dataset in file order."""
    if by is not None:
        below = int(held_out * 2.0**64)
        pairs = zip(table["id"].to_pylist(), table[by].to_pylist(), strict=True)
        return {i for i, value in pairs if expected_hash(value) < below}
    hashes, first = [], 0
    for file, number, rows in zip(index.group_file, index.group_number, index.group_rows, strict=True):
        if rows:
            bits = (hash_of_bytes(index.files[file].path.encode()) + int(number)) % 2**64
            hashes.append((mixed_bits(bits), range(first, first + rows)))
        first += int(rows)
    count = min(max(round(held_out * len(hashes)), 1), len(hashes) - 1)
    return {i for _, ids in sorted(hashes, key=lambda pair: pair[0])[:count] for i in ids}


def a_reader(data: object, memory: str | None, **options: Any) -> ca.Reader:
    """A reader with this memory, or with any where that is too little."""
    try:
        return ca.Reader(data, memory=memory, **options)
    except ca.BudgetError:
        return ca.Reader(data, **options)


@pytest.mark.usefixtures("small_pages")
@given(
    files=GROUP_SIZES,
    held_out=FRACTIONS,
    by=st.sampled_from([None, "id", "label", "name", "x"]),
    name=st.sampled_from(ONCE_EACH),
    seed=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 3),
    batch_size=st.integers(1, 40),
    memory=st.sampled_from([None, "4 kB", "1500 B", "600 B"]),
    columns=st.sampled_from([None, ["id"], ["x", "id"]]),
    merged=st.booleans(),
)
@settings(max_examples=150)
def test_both_parts_are_all_rows_once(
    files: list[list[int]],
    held_out: float,
    by: str | None,
    name: str,
    seed: int,
    epoch: int,
    batch_size: int,
    memory: str | None,
    columns: list[str] | None,
    merged: bool,
) -> None:
    """And they are the ones that are meant, whatever else is asked for; each row lies where provenance says."""
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        if merged:
            patch.setattr("corgiarrow.index.MIN_BLOCKS", 1)
        index = ca.BlockIndex.build(write_dataset(Path(root), files))
        whole = read_all(index, shuffle="none")
        if by is None and (index.group_rows > 0).sum() < 2:
            with pytest.raises(ca.OptionError, match=r"split=.*by="):
                ca.Reader(index, split=ca.Split(part="train", held_out=held_out))
            return
        held = held_ids(index, whole, held_out, by)
        train = ca.Split(part="train", held_out=held_out, by=by)
        for split, expected in ((train, set(range(len(whole))) - held), (train.other, held)):
            options = {"columns": columns, "shuffle": name, "seed": seed, "batch_size": batch_size, "threads": 1}
            reader = a_reader(index, memory, split=split, provenance=True, **options)
            event("in pieces" if reader.plan().pieces is not None else "whole")
            source = reader.source
            spans = (source.stop_group - source.first_group).tolist()
            gaps = any(len(source.groups_of(block)) < span for block, span in enumerate(spans))
            event("with row groups left out in a block" if gaps else "without")
            assert reader.num_rows == len(expected)
            reader.set_epoch(epoch)
            found = pa.Table.from_batches(list(reader), schema=reader.schema)
            assert sorted(found["id"].to_pylist()) == sorted(expected)
            assert rows_of(found.select(columns or whole.column_names)) == rows_of(
                whole.filter(pc.field("id").isin(list(expected))).select(columns or whole.column_names)
            )
            paths = [file.path for file in index.files]
            for row in found.to_pylist():
                group = index.group_file.searchsorted(paths.index(row["_file"])) + row["_row_group"]
                assert row["id"] == index.group_rows[:group].sum() + row["_row"]


SPLITS = [
    *(ca.Split(part=part, held_out=0.3) for part in ("train", "held_out")),
    *(ca.Split(part=part, held_out=0.3, by=by) for part in ("train", "held_out") for by in ("id", "name", "label")),
]


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("split", SPLITS, ids=str)
@pytest.mark.parametrize(("world", "workers"), [(2, 1), (3, 1), (2, 2)])
@pytest.mark.parametrize("memory", [None, "6 kB"])
def test_parts_of_the_job_share_a_part_of_the_data(
    ragged: Path, split: ca.Split, world: int, workers: int, memory: str | None
) -> None:
    """Ranks get equal steps, and every row of the part comes once, in the order that one process gives."""
    options = {"split": split, "batch_size": 4, "streams": world * workers, "memory": memory}
    batches = all_parts(ragged, world, workers, **options)
    reader = ca.Reader(ragged, **options)
    whole = ids_of(iter(reader))
    assert batches[: len(whole)] == whole
    ids = [i for b in whole for i in b]
    other = read_all(ragged, split=split.other)["id"].to_pylist()
    assert sorted(ids + other) == list(range(RAGGED_ROWS))
    assert 0 < len(ids) < RAGGED_ROWS


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("split", [SPLITS[0], *SPLITS[4:6]], ids=str)
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(
    ("name", "memory"), [*((n, None) for n in ONCE_EACH), *((n, "3 kB") for n in ("none", "block", "corgipile"))]
)
def test_resume_everywhere(
    ragged: Path, monkeypatch: pytest.MonkeyPatch, split: ca.Split, name: str, memory: str | None, merged: bool
) -> None:
    if merged:
        monkeypatch.setattr("corgiarrow.index.MIN_BLOCKS", 1)
    options = {"split": split, "shuffle": name, "batch_size": 19, "provenance": True, "threads": 1, "memory": memory}
    index = ca.BlockIndex.build(ragged)
    reader = ca.Reader(index, **options)
    assert (reader.plan().pieces is None) == (memory is None)
    whole, states = [], [reader.state_dict()]
    for batch in reader:
        whole.append(batch.to_pylist())
        states.append(reader.state_dict())
    for step, state in enumerate(states[:-1]):
        again = ca.Reader(index, **options)
        again.load_state_dict(state)
        assert [b.to_pylist() for b in again] == whole[step:]


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("split", [SPLITS[0], SPLITS[1], SPLITS[4]], ids=str)
@pytest.mark.parametrize("memory", [None, "3 kB"])
def test_remote_files_give_the_same_rows(
    ragged: Path, monkeypatch: pytest.MonkeyPatch, split: ca.Split, memory: str | None
) -> None:
    monkeypatch.setattr("corgiarrow.index.MIN_BLOCKS", 1)
    options = {"split": split, "memory": memory, "batch_size": 5, "provenance": True}
    remote = fsspec.filesystem("memory")
    remote.put(f"{ragged}/", "split/", recursive=True)
    try:
        found = [list(ca.Reader(data, **options)) for data in (ragged, "memory://split")]
    finally:
        remote.rm("split", recursive=True)
    assert found[0] == found[1]
    assert sum(b.num_rows for b in found[0]) == ca.Reader(ragged, split=split).num_rows


def test_a_state_of_another_part_is_refused(ragged: Path) -> None:
    index = ca.BlockIndex.build(ragged)
    splits = [None, *SPLITS, ca.Split(part="train", held_out=0.4), ca.Split(part="train", held_out=0.301, by="id")]
    states = [ca.Reader(index, split=s).state_dict() for s in splits]
    assert len({s["data"] for s in states}) == len(splits)
    for split in splits:
        for other, state in zip(splits, states, strict=True):
            reader = ca.Reader(index, split=split)
            if split == other:
                reader.load_state_dict(state)
                continue
            with pytest.raises(ca.StateMismatchError, match=r"data=.*split="):
                reader.load_state_dict(state)


def test_a_reader_of_a_part_pickles(ragged: Path) -> None:
    for split in SPLITS:
        reader = pickle.loads(pickle.dumps(ca.Reader(ragged, split=split)))
        assert ids_of(iter(reader)) == ids_of(iter(ca.Reader(ragged, split=split)))
        assert pickle.loads(pickle.dumps(split)) == split == split.other.other != split.other


# By a column ------------------------------------------------------------------------------------------------------


def test_equal_values_keep_together_however_files_store_them(tmp_path: Path) -> None:
    """Integers of other widths, text plain and as a dictionary, other row groups, other units, nulls."""
    rng = np.random.default_rng(0)
    tables = []
    for number, (whole, real, text, unit) in enumerate(
        [
            (pa.int32(), pa.float32(), pa.string(), "s"),
            (pa.int64(), pa.float64(), pa.large_string(), "us"),
            (pa.uint8(), pa.float32(), pa.dictionary(pa.int8(), pa.string()), "ms"),
            (pa.int8(), pa.float64(), pa.dictionary(pa.int32(), pa.string()), "s"),
        ]
    ):
        values = [None, *rng.integers(0, 60, 300).tolist()]
        tables.append(
            pa.table(
                {
                    "id": range(301 * number, 301 * (number + 1)),
                    "whole": pa.array(values, whole),
                    "real": pa.array(values, pa.float64()).cast(real),
                    "text": pa.array([None if v is None else f"v{v}" for v in values], pa.string()).cast(text),
                    "time": pa.array(values, pa.int64()).cast(pa.timestamp("s")).cast(pa.timestamp(unit)),
                    "value": pa.array(values, pa.int64()),
                }
            )
        )
    folder = write_files(tmp_path, *tables, row_group_size=50)
    for by in ("whole", "real", "text", "time"):
        split = ca.Split(part="train", held_out=0.3, by=by)
        train, held = (set(read_all(folder, split=s)["value"].to_pylist()) for s in (split, split.other))
        assert not train & held, by
        assert len(train | held) == 61
        assert len(held) > 5
    alone = write_files(tmp_path / "alone", tables[0].select(["id", "whole", "value"]))
    split = ca.Split(part="held_out", held_out=0.3, by="whole")
    values = [set(read_all(data, split=split)["value"].to_pylist()) for data in (folder, alone)]
    assert values[1] <= values[0]


def test_rows_stay_on_their_side_when_files_are_added(tmp_path: Path) -> None:
    table = pa.table({"id": range(200)})
    split = ca.Split(part="held_out", held_out=0.4, by="id")
    before = set(read_all(write_files(tmp_path, table), split=split)["id"].to_pylist())
    more = pa.table({"id": range(100, 300)})
    after = read_all(write_files(tmp_path, table, more, row_group_size=7), split=split)["id"].to_pylist()
    assert before == {i for i in after if i < 200}


def test_by_a_struct_field_or_a_key_in_the_path(tmp_path: Path) -> None:
    values = [None if n % 5 == 0 else {"p": n % 7, "q": str(n)} for n in range(100)]
    folder = write_files(tmp_path / "nested", pa.table({"a": values, "id": range(100)}), row_group_size=9)
    for columns in (None, ["id"], ["id", "a.q"], ["id", "a.p"]):
        split = ca.Split(part="train", held_out=0.4, by="a.p")
        parts = [read_all(folder, columns=columns, split=s) for s in (split, split.other)]
        assert parts[0].column_names == (columns or ["a", "id"])
        ids = [t["id"].to_pylist() for t in parts]
        assert sorted(ids[0] + ids[1]) == list(range(100))
        fields = [{None if values[i] is None else values[i]["p"] for i in part} for part in ids]
        assert not fields[0] & fields[1]
    root = write_hive(tmp_path / "hive", {f"k={k}": pa.table({"id": [k, k + 100]}) for k in range(40)})
    split = ca.Split(part="train", held_out=0.5, by="k")
    parts = [read_all(root, columns=["id"], split=s)["id"].to_pylist() for s in (split, split.other)]
    assert sorted(parts[0] + parts[1]) == sorted([*range(40), *range(100, 140)])
    assert 10 < len(parts[0]) < 70
    for part in parts:
        assert {i % 100 for i in part} == {i for i in part if i < 100}


def test_an_extension_type_goes_by_its_storage(tmp_path: Path) -> None:
    values = [bytes([n] * 16) for n in range(100)]
    table = pa.table({"id": range(100), "u": pa.array(values, pa.uuid())})
    split = ca.Split(part="held_out", held_out=0.3, by="u")
    found = read_all(write_files(tmp_path, table), split=split)["id"].to_pylist()
    below = int(0.3 * 2.0**64)
    assert sorted(found) == [n for n in range(100) if hash_of_bytes(values[n]) < below]


def test_a_column_of_the_split_is_not_delivered(ragged: Path) -> None:
    reader = ca.Reader(ragged, columns=["x"], split=SPLITS[4], shuffle="none")
    assert reader.schema.names == ["x"]
    found = cells(pa.Table.from_batches(list(reader))["x"])
    assert found == cells(read_all(ragged, split=SPLITS[4], shuffle="none")["x"])


def test_no_row_may_be_held_out(ragged: Path) -> None:
    split = ca.Split(part="held_out", held_out=1e-12, by="id")
    for name in ONCE_EACH:
        reader = ca.Reader(ragged, split=split, shuffle=name, provenance=True)
        assert reader.num_rows == len(reader) == 0
        assert list(reader) == []
    assert all_parts(ragged, 2, split=split) == []
    assert len(read_all(ragged, split=split.other)) == RAGGED_ROWS


def test_counts_are_kept_for_both_parts_and_saved(tmp_path: Path) -> None:
    """The column is read once: the other part's reader does without, though it has become unreadable."""
    folder = write_dataset(tmp_path / "data", [[20, 30], [10]])
    index = ca.BlockIndex.build(folder)
    split = ca.Split(part="train", held_out=0.3, by="name")
    reader = ca.Reader(index, columns=["x"], split=split)
    held = len(read_all(index, split=split.other))
    index.save(tmp_path / "index")
    loaded = ca.BlockIndex.load(tmp_path / "index")
    for file in folder.iterdir():
        file.unlink()
    for data in (index, loaded):
        assert ca.Reader(data, split=split, columns=["x"]).state_dict() == reader.state_dict()
        assert ca.Reader(data, split=split.other, columns=["x"]).num_rows == held == 60 - reader.num_rows
        with pytest.raises(ca.SourceChangedError):
            ca.Reader(data, columns=["x"], split=ca.Split(part="train", held_out=0.31, by="name"))


def test_whole_row_groups_are_known_without_reading(tmp_path: Path) -> None:
    index = ca.BlockIndex.build(write_dataset(tmp_path, [[20, 30], [10]]))
    for file in tmp_path.iterdir():
        file.unlink()
    assert sum(ca.Reader(index, split=ca.Split(part=p)).num_rows for p in ("train", "held_out")) == 60


def test_rows_that_cannot_be_counted_are_left_out_and_listed(tmp_path: Path) -> None:
    folder = write_files(tmp_path, pa.table({"x": ["1", "2", "3", "y"], "id": [1, 2, 3, 4]}), row_group_size=2)
    options = {"schema": {"x": pa.int64()}, "split": ca.Split(part="train", held_out=1e-9, by="x"), "columns": ["id"]}
    with pytest.raises(ca.ReadError, match=r"row group 1, counting rows for split=, column 'x'"):
        ca.Reader(folder, **options)
    reader = ca.Reader(folder, on_error="skip", **options)
    assert reader.num_rows == 2
    assert len(reader.stats.skipped) == 1


@pytest.fixture(scope="module")
def giant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One row group of 15 MB, most of it text that nobody asks for."""
    folder = tmp_path_factory.mktemp("giant")
    ids = range(300_000)
    table = pa.table({"id": ids, "user": [f"user number {i:020}" for i in ids], "x": pa.array(ids).cast(pa.float64())})
    return write_files(folder, table, row_group_size=300_000, use_dictionary=False)


@pytest.mark.parametrize("columns", [["id", "x"], None])
@pytest.mark.parametrize("held_out", [0.003, 0.1, 0.7])
@pytest.mark.parametrize("filtered", [None, pc.field("x") >= 0])
def test_few_rows_of_a_giant_row_group_are_read_within_the_budget(
    giant: Path, held_out: float, columns: list[str] | None, filtered: pc.Expression | None
) -> None:
    """All of its rows are decoded, though never at once."""
    split = ca.Split(part="held_out", held_out=held_out, by="user")
    options = {"columns": columns, "filter": filtered, "split": split, "threads": 1, "batch_size": 64}
    reader = ca.Reader(giant, memory="10 MiB", **options)
    pool, before = pa.proxy_memory_pool(pa.default_memory_pool()), pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        rows = sum(batch.num_rows for batch in reader)
    finally:
        pa.set_memory_pool(before)
    assert rows == reader.num_rows
    assert reader.stats.peak_bytes <= reader.memory_bytes
    assert 0 < pool.max_memory() <= reader.memory_bytes


# With a filter ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("by", [None, "id", "name", "label"])
@pytest.mark.parametrize("memory", [None, "3 kB"])
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(
    "filtered",
    [pc.field("id") > 100, pc.field("label").isin([0, 3, 4, 9, 20]), pc.field("name").is_null()],
    ids=str,
)
def test_with_a_filter_the_rows_are_those_of_both(
    ragged: Path,
    monkeypatch: pytest.MonkeyPatch,
    by: str | None,
    memory: str | None,
    merged: bool,
    filtered: pc.Expression,
) -> None:
    if merged:
        monkeypatch.setattr("corgiarrow.index.MIN_BLOCKS", 1)
    index = ca.BlockIndex.build(ragged)
    for part in ("train", "held_out"):
        split = ca.Split(part=part, held_out=0.4, by=by)
        expected = read_all(ragged, split=split).filter(filtered)
        for columns in (["id"], ["label", "x", "id"]):
            reader = a_reader(index, memory, split=split, filter=filtered, columns=columns, provenance=True)
            found = pa.Table.from_batches(list(reader), schema=reader.schema)
            assert reader.num_rows == len(expected)
            assert rows_of(found.select(columns)) == rows_of(expected.select(columns))
            for row in found.to_pylist():
                with pq.ParquetFile(ragged / row["_file"]) as file:
                    assert file.read_row_group(row["_row_group"])["id"][row["_row"]].as_py() == row["id"]


def test_which_row_groups_are_held_out_does_not_change_with_a_filter(tmp_path: Path) -> None:
    """Also where the filter excludes whole files by their paths, which a reader then need not open."""
    tables = {f"k={k}": pa.table({"id": range(100 * k, 100 * k + 10)}) for k in range(12)}
    root = write_hive(tmp_path, tables)
    filtered = pc.field("k") >= 8
    for by in (None, "id"):
        for part in ("train", "held_out"):
            split = ca.Split(part=part, held_out=0.4, by=by)
            expected = sorted(read_all(root, split=split).filter(filtered)["id"].to_pylist())
            for data in (root, ca.BlockIndex.build(root)):
                assert sorted(read_all(data, split=split, filter=filtered)["id"].to_pylist()) == expected
            if by is None:
                index = ca.BlockIndex.build(root, filter=filtered)
                with pytest.raises(ca.OptionError, match=r"split=.*by='id'"):
                    ca.Reader(index, split=split, filter=filtered)
            where = ("--split", part, "--held-out", 0.4, *(("--held-out-by", by) if by else ()))
            assert run_json("plan", root, "--where", "k >= 8", *where)["rows"] == len(expected)


# Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"part": "test"}, r"part='test' must be 'train' or 'held_out'"),
        ({"part": None}, r"part=None"),
        ({"part": "train", "held_out": 0}, r"held_out=0 .*\(0, 1\)"),
        ({"part": "train", "held_out": 1.0}, r"held_out=1.0 .*\(0, 1\)"),
        ({"part": "train", "held_out": NAN}, r"held_out=nan"),
        ({"part": "train", "held_out": "0.1"}, r"held_out='0.1'"),
        ({"part": "train", "held_out": True}, r"held_out=True"),
        ({"part": "train", "by": ""}, r"by=''"),
        ({"part": "train", "by": ["id"]}, r"by=\['id'\]"),
    ],
    ids=str,
)
def test_a_split_out_of_its_bounds_raises(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ca.OptionError, match=text):
        ca.Split(**options)


def test_a_split_that_does_not_fit_raises(ragged: Path, tmp_path: Path) -> None:
    with pytest.raises(ca.ColumnNotFoundError, match="nam"):
        ca.Reader(ragged, split=ca.Split(part="train", by="nam"))
    with pytest.raises(ca.OptionError, match=r"split='train' must be a corgiarrow.Split"):
        ca.Reader(ragged, split="train")
    with pytest.raises(ca.OptionError, match=r"split= goes with a path"):
        ca.Reader(ArraySource([3, 4]), split=ca.Split(part="train"))
    table = pa.table({"id": [1, 2], "tags": [[1], [2, 3]], "s": [{"a": 1}, None]})
    folder = write_files(tmp_path, table)
    for by in ("tags", "s"):
        with pytest.raises(ca.OptionError, match=rf"by='{by}' of split= is of type .*such as id$"):
            ca.Reader(folder, split=ca.Split(part="train", by=by))
    with pytest.raises(ca.OptionError, match=r"has 1 with rows.*by="):
        ca.Reader(folder, split=ca.Split(part="train"))


def test_what_can_be_hashed() -> None:
    nested = [
        pa.list_(pa.int8()),
        pa.struct([("a", pa.int8())]),
        pa.map_(pa.string(), pa.int8()),
        pa.list_(pa.int8(), 2),
    ]
    assert not any(map(can_hash, [*nested, pa.dictionary(pa.int8(), pa.list_(pa.int8()))]))
    assert all(can_hash(kind) for kind, _, _ in GOLDEN)


# On the command line ----------------------------------------------------------------------------------------------


def test_commands_read_one_part(ragged: Path) -> None:
    rows = {}
    for by in ((), ("--held-out-by", "label")):
        for part in ("train", "held_out"):
            given = ("--split", part, "--held-out", 0.3, *by)
            rows[part] = run_json("plan", ragged, *given)["rows"]
            split = ca.Split(part=part, held_out=0.3, by=by[1] if by else None)
            first = next(iter(ca.Reader(ragged, split=split, shuffle="none", batch_size=10)))
            shown = run_json("head", ragged, "--columns", "id", *given)["rows"]
            assert [r["id"] for r in shown] == first["id"].to_pylist()
            for job in ((), ("--world-size", 2, "--num-workers", 2), ("--where", "id > 50")):
                found = run_json("check", ragged, "--batch-size", 7, *given, *job)
                assert found["holds"] is True
                assert found["rows"] == rows[part] or "--where" in job
        assert rows["train"] + rows["held_out"] == RAGGED_ROWS
        assert 0 < rows["held_out"] < rows["train"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("--held-out", 0.2), "--held-out goes with --split"),
        (("--held-out-by", "id"), "--held-out-by goes with --split"),
        (("--split", "test"), "part='test' must be 'train' or 'held_out'"),
        (("--split", "train", "--held-out", 2), "held_out=2.0"),
    ],
    ids=str,
)
def test_options_that_do_not_go_together_exit_2(ragged: Path, given: tuple[Any, ...], text: str) -> None:
    for command in ("plan", "check", "head"):
        done = run(command, ragged, *given)
        assert done.exit_code == 2
        assert text in " ".join(done.stderr.split())

"""Measure reading from an object store with latency: against plain range requests, and against other ways.

Run ``python benchmarks/remote.py`` (about 6 minutes; ``--only ranges`` for one part). A local server answers after
30 ms, and sends at most 90 MB/s a connection (``benchmarks/object_server.py``). All clients run on the same machine.

- *ranges*: CorgiPile over 1 GB in row groups of 64 MB, against the same requests by ``cat_ranges`` of the same file
  system, all at a time, followed by decoding the same bytes with as many threads. The first batch is compared with the
  time that its buffer's bytes take at that rate. Then 3 of 29 columns.
- *start*: 4,000 objects listed and indexed, against ``cat_ranges`` of the same ranges, each by a file system just
  opened; and again, from the index in the cache.
- *rivals*: an epoch of real tables and of the 1 GB, by the reader, by ``pq.read_row_group`` over ``s3fs.open`` as one
  would write it at first, and by ``pyarrow.dataset`` on pyarrow's own S3 file system, in turn. Real tables:
  ``--fashion FILE --flights FILE``, which are written anew in row groups of about 250 and 1,500 rows.
"""

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import data
import pyarrow.dataset as ds
import pyarrow.fs
import pyarrow.parquet as pq
import s3fs
from object_server import Server, serving

import corgiarrow as ca
from corgiarrow.sources.ranges import FetchedRanges
from corgiarrow.storage import cut

LATENCY_S = 0.03
RATE = 90e6
GROUP_ROWS = 600_000
GROUPS = 16
FEW = ["f0", "f9", "label"]


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """Call something; return the seconds it took, and what it returned."""
    began = time.perf_counter()
    found = call()
    return time.perf_counter() - began, found


def chunk_ranges(footer: pq.FileMetaData, group: int, columns: list[str] | None = None) -> list[tuple[int, int]]:
    """Byte ranges of the column chunks of a row group."""
    found = []
    for number in range(footer.num_columns):
        chunk = footer.row_group(group).column(number)
        if columns is None or chunk.path_in_schema in columns:
            start = min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)
            found.append((start, start + chunk.total_compressed_size))
    return found


def opened(server: Server) -> s3fs.S3FileSystem:
    """Return the file system, with connections enough."""
    config = {"max_pool_connections": 64, "retries": {"max_attempts": 0}}
    return s3fs.S3FileSystem(
        **server.options, config_kwargs=config, default_cache_type="none", skip_instance_cache=True
    )


def plain(fs: s3fs.S3FileSystem, url: str, footer: pq.FileMetaData, size: int, at_once: int, threads: int) -> dict:
    """Fetch all row groups by plain requests, then decode them."""
    requests = [cut(chunk_ranges(footer, group)) for group in range(footer.num_row_groups)]
    flat = [r for group in requests for r in group]
    starts, stops = zip(*flat, strict=True)
    seconds, found = timed(lambda: fs.cat_ranges([url] * len(flat), starts, stops, batch_size=at_once))
    bytes_of = dict(zip(flat, found, strict=True))

    def decode(group: int) -> int:
        ranges = requests[group]
        file = FetchedRanges(ranges, [bytes_of[r] for r in ranges], size)
        return pq.ParquetFile(file, metadata=footer, pre_buffer=False).read_row_group(group, use_threads=False).num_rows

    with ThreadPoolExecutor(threads) as executor:
        decoding, rows = timed(lambda: sum(executor.map(decode, range(len(requests)))))
    return {"get_s": seconds, "decode_s": decoding, "rows": rows, "bytes": sum(map(len, found)), "requests": len(flat)}


def read(url: str, server: Server, threads: int, **options: Any) -> dict:
    """Read an epoch; return seconds until the first and the last batch."""
    index = options.pop("index")
    with ca.Reader(index, batch_size=4096, threads=threads, **options) as reader:
        began = time.perf_counter()
        batches = iter(reader)
        next(batches)
        first = time.perf_counter() - began
        for _ in batches:
            pass
        total = time.perf_counter() - began
        stats = reader.stats
        return {"first_s": first, "total_s": total, "n": reader.buffer_blocks, **stats.as_dict()}


def ranges(folder: Path, rounds: int, at_once: int, threads: int) -> dict[str, Any]:
    """Compare an epoch with plain requests."""
    path = data.floats(folder / "bucket", GROUPS * GROUP_ROWS, 28, GROUP_ROWS, use_dictionary=False)
    path.read_bytes()  # Into the page cache.
    footer, size = pq.read_metadata(path), path.stat().st_size
    out: dict[str, Any] = {}
    with serving(folder, latency=LATENCY_S, rate=RATE) as server:
        url = f"s3://bucket/{path.name}"
        index = ca.BlockIndex.build(url, storage_options=server.options)
        fs = opened(server)
        settings = {"4 blocks": {"buffer_blocks": 4}, "512 MiB": {"memory": "512 MiB"}}
        taken: dict[str, list[dict]] = {name: [] for name in ["plain", *settings, "3 columns"]}
        for _ in range(rounds + 1):
            taken["plain"].append(plain(fs, url, footer, size, at_once, threads))
            for name, options in settings.items():
                server.reset()
                taken[name].append(read(url, server, threads, index=index, **options) | {"seen": server.requests()})
            server.reset()
            found = read(url, server, threads, index=index, buffer_blocks=4, columns=FEW)
            taken["3 columns"].append(found | {"seen": server.requests()})
        kept = {name: runs[1:] for name, runs in taken.items()}
        sums = [x["get_s"] + x["decode_s"] for x in kept["plain"]]
        for name in settings:
            runs = kept[name]
            out[f"{name} ÷ plain"] = median(a / b["total_s"] for a, b in zip(sums, runs, strict=True))
            buffer = [x["n"] / GROUPS * a["get_s"] for x, a in zip(runs, kept["plain"], strict=True)]
            out[f"{name}: first batch ÷ its buffer"] = median(
                x["first_s"] / b for x, b in zip(runs, buffer, strict=True)
            )
            out[f"{name}: MB/s"] = median(size / x["total_s"] for x in runs) / 1e6
            out[f"{name}: requests a block"] = runs[-1]["seen"]["GET"] / GROUPS
            out[f"{name}: n"] = runs[-1]["n"]
        out["plain: MB/s of requests"] = median(x["bytes"] / x["get_s"] for x in kept["plain"]) / 1e6
        out["plain: s of requests, of decoding"] = [
            round(median(x[key] for x in kept["plain"]), 3) for key in ("get_s", "decode_s")
        ]
        needed = sum(b - a for g in range(GROUPS) for a, b in chunk_ranges(footer, g, FEW))
        out["3 columns: bytes ÷ theirs"] = kept["3 columns"][-1]["seen"]["bytes"] / needed
    return out


def start(folder: Path, rounds: int, at_once: int) -> dict[str, Any]:
    """Compare indexing many objects with plain requests."""
    path = data.many_files(folder / "bucket", 4000)
    names = sorted(p.name for p in path.iterdir())
    out: dict[str, Any] = {}
    with serving(folder, latency=LATENCY_S, rate=RATE) as server:
        url = f"s3://bucket/{path.name}"
        sizes = [(path / name).stat().st_size for name in names]
        full = [f"bucket/{path.name}/{name}" for name in names]
        plain_s, index_s = [], []
        for _ in range(rounds + 1):
            starts = [max(size - 64 * 1024, 0) for size in sizes]
            plain_s.append(timed(lambda s=starts: opened(server).cat_ranges(full, s, sizes, batch_size=at_once))[0])
            server.reset()
            seconds, index = timed(
                lambda: ca.BlockIndex.build(url, storage_options=server.options, index_cache=False)
            )
            index_s.append(seconds)
        asked = server.requests()
        server.reset()
        ca.BlockIndex.build(url, storage_options=server.options)  # It is kept now.
        server.reset()
        kept_s = [timed(lambda: ca.BlockIndex.build(url, storage_options=server.options))[0] for _ in range(rounds)]
        out["from the kept index: s"] = median(kept_s)
        out["from the kept index: requests"] = server.requests()
        out["index ÷ cat_ranges"] = median(b / a for a, b in zip(plain_s[1:], index_s[1:], strict=True))
        out["requests at start"] = asked
        out["index: s"], out["cat_ranges: s"] = median(index_s[1:]), median(plain_s[1:])
        out["files"] = len(index.files)
    return out


def naive(server: Server, key: str) -> int:
    """Read row group by row group through an open file, with s3fs's own settings."""
    fs = s3fs.S3FileSystem(**server.options, skip_instance_cache=True)
    with fs.open(key, "rb") as opened_file:
        file = pq.ParquetFile(opened_file)
        return sum(file.read_row_group(group).num_rows for group in range(file.num_row_groups))


def dataset(server: Server, key: str) -> int:
    """Read by pyarrow alone."""
    address = server.endpoint.removeprefix("http://")
    fs = pyarrow.fs.S3FileSystem(
        access_key="testing", secret_key="testing", endpoint_override=address, scheme="http", region="us-east-1"
    )
    return sum(batch.num_rows for batch in ds.dataset(key, filesystem=fs, format="parquet").to_batches())


def rewritten(source: Path, folder: Path, row_group: int) -> Path:
    """Return a copy of a table in other row groups."""

    def write(beside: Path) -> None:
        pq.write_table(pq.read_table(source), beside, row_group_size=row_group, compression="zstd")

    return data.made_once(folder / f"{source.stem}-{row_group}.parquet", write)


def rivals(folder: Path, rounds: int, threads: int, tables: list[Path]) -> dict[str, Any]:
    """Compare an epoch with other ways of reading the same objects."""
    out: dict[str, Any] = {}
    for path in tables:
        path.read_bytes()  # Into the page cache.
        key = f"bucket/{path.name}"
        with serving(folder, latency=LATENCY_S, rate=RATE) as server:
            index = ca.BlockIndex.build(f"s3://{key}", storage_options=server.options)

            def epoch(shuffle: str, index: ca.BlockIndex = index, **options: Any) -> int:
                with ca.Reader(index, batch_size=1024, shuffle=shuffle, threads=threads, **options) as reader:
                    return sum(batch.num_rows for batch in reader)

            ways = {
                "corgipile": lambda: epoch("corgipile"),
                "corgipile, a quarter of the blocks": lambda: epoch("corgipile", buffer_fraction=0.25),
                "none": lambda: epoch("none"),
                "pq.read_row_group over s3fs.open": lambda s=server, k=key: naive(s, k),
                "pyarrow.dataset": lambda s=server, k=key: dataset(s, k),
            }
            taken: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(rounds + 1):
                for name, way in ways.items():
                    seconds, rows = timed(way)
                    assert rows == index.num_rows
                    taken[name].append(seconds)
            for name, runs in taken.items():
                out[f"{path.name}: {name}: s, rows/s"] = (
                    round(median(runs[1:]), 2), round(index.num_rows / median(runs[1:]))
                )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=data.DEFAULT_FOLDER)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=["ranges", "start", "rivals"])
    parser.add_argument("--fashion", type=Path)
    parser.add_argument("--flights", type=Path)
    asked = parser.parse_args()
    folder = asked.data / "remote"
    (folder / "bucket").mkdir(parents=True, exist_ok=True)
    if asked.only in (None, "ranges"):
        for name, value in ranges(folder, asked.rounds, asked.at_once, asked.threads).items():
            print(name, value)
    if asked.only in (None, "start"):
        for name, value in start(folder, asked.rounds, 64).items():
            print(name, value)
    if asked.only in (None, "rivals"):
        bucket = folder / "bucket"
        tables = [data.floats(bucket, GROUPS * GROUP_ROWS, 28, GROUP_ROWS, use_dictionary=False)]
        tables += [rewritten(asked.fashion, bucket, 250)] if asked.fashion else []
        tables += [rewritten(asked.flights, bucket, 1500)] if asked.flights else []
        for name, value in rivals(folder, asked.rounds, asked.threads, tables).items():
            print(name, value)


if __name__ == "__main__":
    main()

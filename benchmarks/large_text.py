"""Check for real that a buffer of more than 2 GiB of text comes out right: Arrow's own take cannot join it.

Run ``python benchmarks/large_text.py``. It makes a file of about 2.5 GB of text in memory (and far less on disk),
reads it as one buffer (``shuffle="epoch"``) in about 8 GB of memory, and compares every value with what it must be.
"""

import time
from pathlib import Path

import data
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROWS = 4_800_000
GROUP_ROWS = 100_000
PAD = "x" * 520


def text_of(ids: pa.Array) -> pa.Array:
    """The text that belongs to each id."""
    return pc.binary_join_element_wise(ids.cast(pa.string()), PAD, " ")


def write(path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        for first in range(0, ROWS, GROUP_ROWS):
            ids = pa.array(range(first, first + GROUP_ROWS))
            writer.write_table(pa.table([ids, text_of(ids)], schema=schema))


def main() -> None:
    arguments = data.parser(__doc__).parse_args()
    path = data.made_once(arguments.data / "large-text.parquet", write)
    import corgiarrow as ca

    reader = ca.Reader(path, shuffle="epoch", memory="12 GiB", batch_size=4096)
    began, seen, text_bytes = time.perf_counter(), 0, 0
    for batch in reader:
        if not batch["text"].equals(text_of(batch["id"])):
            raise SystemExit(f"wrong text in the batch after {seen} rows")
        seen += pc.sum(pc.cast(batch["id"], pa.float64())).as_py()
        text_bytes += pc.sum(pc.binary_length(batch["text"])).as_py()
    if seen != ROWS * (ROWS - 1) / 2:
        raise SystemExit("rows are missing, or come twice")
    taken_s = time.perf_counter() - began
    print(f"{text_bytes / 2**30:.2f} GiB of text in one buffer, every value right, {taken_s:.0f} s; {data.machine()}")
    data.save_json(arguments.json, {"text_bytes": text_bytes, "taken_s": taken_s})


if __name__ == "__main__":
    main()

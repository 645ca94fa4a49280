"""Write ``corgiarrow/data/digits.parquet``: scikit-learn's copy of the UCI digits, sorted by label.

Run ``python benchmarks/make_digits.py``; the file is the same each time (with the same pyarrow).
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_digits

ROW_GROUP_ROWS = 18
"""Makes 100 row groups of 1,797 rows, so that a 10 % buffer holds ten."""

TARGET = Path(__file__).parent.parent / "corgiarrow" / "data" / "digits.parquet"


def main() -> None:
    digits = load_digits()
    order = np.argsort(digits.target, kind="stable")
    pixels = digits.data[order].astype(np.uint8)
    table = pa.table(
        {
            "pixels": pa.FixedSizeListArray.from_arrays(pa.array(pixels.ravel()), 64),
            "label": pa.array(digits.target[order].astype(np.uint8)),
        }
    )
    pq.write_table(
        table,
        TARGET,
        row_group_size=ROW_GROUP_ROWS,
        compression="zstd",
        compression_level=19,
        use_dictionary=["pixels.list.element"],
        write_statistics=["label"],
    )
    print(f"{TARGET}: {TARGET.stat().st_size} bytes, {pq.read_metadata(TARGET).num_row_groups} row groups")


if __name__ == "__main__":
    main()

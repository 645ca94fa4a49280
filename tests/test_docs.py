"""What the documentation shows is so."""

import doctest
import io
import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq

import corgiarrow as ca
from corgiarrow.arrays import Converter, Image, Pad

DOCS = Path(__file__).parent.parent / "docs"


def test_arrays(tmp_path: Path) -> None:
    png = io.BytesIO()
    PIL.Image.fromarray(np.zeros((5, 6, 3), dtype=np.uint8)).save(png, "PNG")
    table = pa.table(
        {
            "f0": pa.array([0, None, 2], pa.float32()),
            "label": ["a", None, "b"],
            "vector": pa.array([[n, n + 0.5] for n in range(3)], pa.list_(pa.float32(), 2)),
            "tokens": pa.array([[7], [], [8, 9]], pa.list_(pa.int32())),
            "raw": [b"ab", b"cd", b"ef"],
            "png": [png.getvalue()] * 3,
            "price": pa.array([Decimal("1.25"), Decimal("2.50"), Decimal("3.75")], pa.decimal128(9, 2)),
        }
    )
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)

    names = {"ca": ca, "pa": pa, "path": path, "Converter": Converter, "Image": Image, "Pad": Pad}
    blocks = re.findall(r"```pycon\n(.*?)```", (DOCS / "arrays.md").read_text(), flags=re.DOTALL)
    assert len(blocks) > 5
    runner = doctest.DocTestRunner(verbose=False)
    for number, block in enumerate(blocks):
        test = doctest.DocTestParser().get_doctest(block, names, f"arrays.md, block {number}", None, 0)
        runner.run(test, clear_globs=False)
        names = test.globs
    assert not runner.summarize(verbose=False).failed

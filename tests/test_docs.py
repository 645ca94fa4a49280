"""What the documentation shows is so."""

import doctest
import io
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

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
            "word": [[4, 1], [], [0, 0]],
            "times": [[1.0, 2.0], [], [3.0, 1.0]],
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


def test_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "train").mkdir()
    columns = {"f0": rng.normal(size=640).astype("f4"), "f1": rng.normal(size=640).astype("f4")}
    pq.write_table(pa.table({**columns, "label": np.arange(640)}), tmp_path / "train" / "a.parquet", row_group_size=50)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / "torch.md").read_text(), flags=re.DOTALL):
        exec(block, names)
    assert names["x"].shape == (64, 2)
    assert sorted(i for batch in names["batches"] for i in batch["label"].tolist()) == list(range(640))
    assert names["state"] == names["again"].state_dict()
    assert sorted(names["order"]) == list(range(10_000))

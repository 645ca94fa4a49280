"""The notebooks run, and show what they give."""

import copy
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_BYTES = 400_000
MACHINE = re.compile(r"(?<![\w.:/~-])/(?:home|root|tmp|work|usr|opt|var|private|Users|builds?)/|[A-Z]:\\\\")
"""A path that says where somebody's machine has something."""

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell: nbformat.NotebookNode) -> str:
    return "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout")


def test_all_are_listed() -> None:
    listed = re.findall(r"\((\w+\.ipynb)\)", (ROOT / "notebooks" / "README.md").read_text(encoding="utf-8"))
    assert listed == [path.name for path in NOTEBOOKS]


@each
def test_runs_and_prints_what_was_committed(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells whose output depends on time or on a model are tagged `varies`; all others give the same again."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    committed = read(path)
    ran = copy.deepcopy(committed)
    NotebookClient(
        ran,
        timeout=150,
        kernel_name="python3",
        coalesce_streams=True,
        resources={"metadata": {"path": str(path.parent)}},
    ).execute()
    for before, after in zip(code_cells(committed), code_cells(ran), strict=True):
        if "varies" not in before.metadata.get("tags", []):
            assert printed(after) == printed(before), f"{before.id}: make outputs anew, see notebooks/README.md"


@each
def test_is_committed_with_clean_outputs(path: Path) -> None:
    cells = code_cells(read(path))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1)), "run it from top to bottom"
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [o for o in outputs if o.output_type == "error" or o.get("name") == "stderr"]
    assert path.stat().st_size < MOST_BYTES
    text = re.sub(r'"image/png": "[^"]*"', "", path.read_text(encoding="utf-8"))
    assert "Warning" not in text
    assert not MACHINE.findall(text)

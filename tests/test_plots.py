"""Figures: what is drawn is what was given, every text can be read, files are whole; and the command draws data."""

import itertools
import json
import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from conftest import RAGGED_ROWS, write_dataset
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from typer.testing import CliRunner, Result

import corgiarrow as ca
from corgiarrow import plots
from corgiarrow.cli.commands import app
from corgiarrow.plots.drawing import count
from corgiarrow.plots.orders import thinned
from corgiarrow.strategies import BY_NAME

DIGITS = str(ca.example_path())
STRATEGIES = ["none", "block", "window", "mrs", "corgipile", "spread", "once", "epoch"]
PNG = b"\x89PNG\r\n\x1a\n"


class RecordingRenderer(RendererAgg):
    """Knows which texts were drawn: a figure holds many more that never are."""

    def __init__(self, figure: Figure):
        super().__init__(*figure.bbox.size, figure.dpi)
        self.texts: list[Text] = []

    def draw_text(self, gc: Any, x: Any, y: Any, s: Any, prop: Any, angle: Any, ismath: Any = False, mtext: Any = None):
        self.texts.append(mtext)
        super().draw_text(gc, x, y, s, prop, angle, ismath=ismath, mtext=mtext)


def check_readable(figure: Figure) -> list[str]:
    """Every text lies inside the figure, off the panels, and off every other text; return the texts."""
    renderer = RecordingRenderer(figure)
    figure.draw(renderer)
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in renderer.texts]
    for name, box in boxes:
        assert box.x0 >= 0, name
        assert box.y0 >= 0, name
        assert box.x1 <= figure.bbox.x1, name
        assert box.y1 <= figure.bbox.y1, name
        assert not any(box.overlaps(panel.bbox) for panel in figure.axes), name
    for (one, box), (other, beside) in itertools.combinations(boxes, 2):
        assert not box.overlaps(beside), (one, other)
    for legend, panel in itertools.product(figure.legends, figure.axes):
        assert not legend.get_window_extent(renderer).overlaps(panel.bbox)
    return [name for name, _ in boxes]


def shuffled(names: list[str], rows: int) -> dict[str, np.ndarray]:
    return {name: np.random.default_rng(seed).permutation(rows) for seed, name in enumerate(names)}


def curve_rows() -> list[dict[str, Any]]:
    return [
        {"data": data, "strategy": name, "epoch": epoch, "mean": 0.5 + epoch / 40, "sd": None if epoch == 3 else 0.01}
        for data, name, epoch in itertools.product(("digits", "fashion"), STRATEGIES, (3, 1, 2, 10))
    ]


def speed_rows() -> list[dict[str, Any]]:
    sized = [
        {"storage": storage, "access": access, "block_bytes": 2**power, "rows_per_s": 50.0 * 2**power}
        for storage, access, power in itertools.product(("disk", "S3"), ("random", "sequential"), (20, 10, 14))
    ]
    return [*sized, {"storage": "disk", "access": "scan", "block_bytes": None, "rows_per_s": 3e6}]


def clumping_rows() -> list[dict[str, Any]]:
    return [
        {
            "strategy": name,
            "buffer_blocks": n,
            "memory_bytes": n * 2**20,
            "predicted_clumping": None if name == "mrs" else 1 + 256 / n,
            "measured_clumping": None if n == 4 else 1 + 250 / n,
        }
        for name, n in itertools.product(("none", "mrs", "corgipile"), (16, 1, 4, 256))
    ]


def one_of_each() -> dict[str, Figure]:
    orders = shuffled(STRATEGIES[:3], 300)
    return {
        "order": plots.order(orders, title="300 rows"),
        "labels": plots.labels(orders, np.arange(300) // 60, title="300 rows"),
        "convergence": plots.convergence(curve_rows()),
        "throughput": plots.throughput(speed_rows()),
        "clumping": plots.clumping(clumping_rows()),
    }


# orders


@pytest.mark.parametrize("rows", [1, 19, 300, 2000, 2001, 60_000])
def test_order_draws_every_kth_row_at_its_place(rows: int) -> None:
    orders = shuffled(STRATEGIES[:3], rows)
    figure = plots.order(orders)
    assert len(figure.axes) == 3
    for panel, ids, drawn in zip(figure.axes, orders.values(), plots.points(figure), strict=True):
        (points,) = (line.get_xydata() for line in panel.lines)
        at, found = points.T.astype(int)
        assert drawn == len(at) <= plots.MOST_POINTS
        assert at[0] == 0
        assert len(set(np.diff(at))) <= 1
        assert rows - at[-1] <= (at[1] if len(at) > 1 else 1)
        assert (found == ids[at]).all()
        assert all(line.get_rasterized() for line in panel.lines)
        assert panel.get_xlim() == (0, rows)
        assert panel.get_ylim() == (0, rows)
    step = thinned(rows, plots.MOST_POINTS).step
    assert (f"one row in {step} is drawn" in figure.get_supxlabel()) == (step > 1)
    assert "row id" in figure.get_supylabel()


@pytest.mark.parametrize("most", [1, 7, 100, 2000])
def test_thinned_places_are_few_even_and_meet_round_sizes_everywhere(most: int) -> None:
    for rows in [*range(1, 300), 4096, 65_536, 1_000_000, 2**31]:
        places = thinned(rows, most)
        assert 1 <= len(places) <= most
        assert places[0] == 0
        assert rows - places[-1] <= places.step
        assert places.step == 1 or math.gcd(places.step, 10) == 1
        assert places.step <= -(-rows // most) + 4


def test_orders_of_differing_length_say_so() -> None:
    figure = plots.order({"corgipile": np.arange(3000), "mrs": np.tile(np.arange(3000), 3)})
    assert "one row in 3 to 7 is drawn" in figure.get_supxlabel()
    assert figure.axes[0].get_xlim() == (0, 9000)
    assert figure.axes[0].get_ylim() == (0, 3000)


# labels


@pytest.mark.parametrize("rows", [1, 19, 45, 1797, 60_000])
@pytest.mark.parametrize("every", [1, 20])
def test_labels_are_counted_in_every_kth_run(rows: int, every: int) -> None:
    values = np.random.default_rng(1).integers(0, 4, rows)
    orders = shuffled(["none", "corgipile"], rows)
    figure = plots.labels(orders, values, every=every, name="class")
    classes = np.unique(values)
    size = min(every, rows)
    for panel, ids, drawn in zip(figure.axes, orders.values(), plots.points(figure), strict=True):
        # From the highest on down, so that each area hides what lies below the next.
        areas = [area.get_data() for area in panel.patches][::-1]
        assert len(areas) == len(classes)
        assert drawn <= plots.MOST_RUNS
        step = thinned(rows // size, plots.MOST_RUNS).step
        assert (areas[0].edges == np.arange(drawn + 1) * step * size).all()
        assert (areas[-1].values == size).all()
        below = np.zeros(drawn)
        for value, area in zip(classes, areas, strict=True):
            counted = [(values[ids[run * step * size :][:size]] == value).sum() for run in range(drawn)]
            assert (area.values - below == counted).all()
            below = area.values
    assert (f"one run of {every} rows in {step} is drawn" in figure.get_supxlabel()) == (step > 1)
    assert figure.get_supylabel() == f"rows of each label in {every} rows"
    (legend,) = figure.legends
    assert legend.get_title().get_text() == "class"
    assert [text.get_text() for text in legend.get_texts()] == [str(value) for value in classes[::-1]]


def test_of_many_classes_the_rarer_ones_are_joined() -> None:
    values = np.repeat(np.arange(30), np.where(np.arange(30) % 3, 5, 20))
    figure = plots.labels({"none": np.arange(len(values))}, values)
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts == ["21 others", *(str(n) for n in range(24, -1, -3))]
    exactly = plots.labels({"none": np.arange(100)}, np.arange(100) // 10)
    assert [text.get_text() for text in exactly.legends[0].get_texts()] == [str(n) for n in range(9, -1, -1)]
    assert len(exactly.axes[0].patches) == len(figure.axes[0].patches) == plots.MOST_CLASSES


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (["b", "a", "b"], ["b", "a"]),
        ([True, False, True], ["True", "False"]),
        (pa.array([3, None, 1]), ["null", "3", "1"]),
        (pa.chunked_array([["x"], ["y", "x"]]), ["y", "x"]),
        (pa.chunked_array([pa.array(["x"]).dictionary_encode(), pa.array(["y", None]).dictionary_encode()]), 3),
        (["$x$", "_hidden", "two\nlines"], ["two lines", "_hidden", r"\$x\$"]),
        (["the same beginning of 1", "the same beginning of 2", ""], 3),
    ],
)
def test_labels_of_any_type(values: Any, texts: Any) -> None:
    figure = plots.labels({"none": np.arange(3)}, values, every=3)
    found = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(set(found)) == texts if isinstance(texts, int) else found == texts
    check_readable(figure)


# curves


def test_convergence_draws_means_in_bands() -> None:
    figure = plots.convergence(curve_rows(), measure="test accuracy")
    assert [panel.get_title(loc="left") for panel in figure.axes] == ["digits", "fashion"]
    for panel in figure.axes:
        assert len(panel.lines) == len(panel.collections) == len(STRATEGIES)
        for line, band in zip(panel.lines, panel.collections, strict=True):
            assert line.get_xdata() == pytest.approx([1, 2, 3, 10])
            assert line.get_ydata() == pytest.approx([52.5, 55, 57.5, 75])
            corners = band.get_paths()[0].vertices
            widths = [np.ptp(corners[corners[:, 0] == epoch, 1]) for epoch in (1, 2, 3, 10)]
            assert widths == pytest.approx([2, 2, 0, 2])
    assert figure.get_supxlabel() == "epoch"
    assert "test accuracy in %" in figure.get_supylabel()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == STRATEGIES


def test_throughput_draws_a_line_a_storage_and_access() -> None:
    figure = plots.throughput(speed_rows())
    (panel,) = figure.axes
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
    across, *lines = sorted(panel.lines, key=lambda line: len(line.get_xdata()))
    assert len(lines) == 4
    for line in lines:
        assert list(line.get_xdata()) == [2**10, 2**14, 2**20]
        assert list(line.get_ydata()) == [50.0 * x for x in line.get_xdata()]
    assert set(across.get_ydata()) == {3e6}
    assert {line.get_color() for line in lines} == {look[0] for look in plots.looks(["disk", "S3"]).values()}
    assert len({line.get_linestyle() for line in panel.lines}) == 3
    assert "disk, random" in check_readable(figure)
    assert panel.get_ylabel() == "rows a second"


def test_clumping_draws_points_beside_predicted_lines_and_the_ideal() -> None:
    figure = plots.clumping(clumping_rows())
    (panel,) = figure.axes
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
    ideal, *lines = panel.lines
    assert set(ideal.get_ydata()) == {1}
    for name, predicted, measured in zip(("none", "mrs", "corgipile"), lines[::2], lines[1::2], strict=True):
        blocks = [] if name == "mrs" else [1, 4, 16, 256]
        assert list(predicted.get_xdata()) == [n * 2**20 for n in blocks]
        assert list(predicted.get_ydata()) == [1 + 256 / n for n in blocks]
        assert list(measured.get_xdata()) == [n * 2**20 for n in (1, 16, 256)]
        assert list(measured.get_ydata()) == [1 + 250 / n for n in (1, 16, 256)]
        assert (predicted.get_linestyle(), measured.get_linestyle()) == ("-", "None")
        assert predicted.get_color() == measured.get_color() == plots.looks([name])[name][0]
    texts = check_readable(figure)
    assert {"1 MiB", "1", "predicted", "measured", "independent draws", "memory of the whole job"} <= set(texts)


def test_a_table_comes_as_arrow_columns_or_rows() -> None:
    rows = curve_rows()
    table = pa.Table.from_pylist(rows)
    drawn = [
        [line.get_xydata().tolist() for panel in plots.convergence(given).axes for line in panel.lines]
        for given in (rows, iter(rows), table, table.to_pydict())
    ]
    assert drawn[0]
    assert all(other == drawn[0] for other in drawn)


def test_a_strategy_has_one_colour_and_marker_in_all_figures() -> None:
    looks = plots.looks([*STRATEGIES, "other", "another"])
    assert len({colour for colour, _ in looks.values()}) == len({marker for _, marker in looks.values()}) == len(looks)
    assert set(BY_NAME) <= set(STRATEGIES), "a strategy without a colour of its own"
    for names in ([*STRATEGIES], STRATEGIES[::-1], ["other", *STRATEGIES[2:5]]):
        assert all(look == looks[name] for name, look in plots.looks(names).items())
        orders = plots.order(shuffled(names, 30))
        assert [panel.lines[0].get_color() for panel in orders.axes] == [looks[name][0] for name in names]
    for line, name in zip(plots.convergence(curve_rows()).axes[0].lines, STRATEGIES, strict=True):
        assert (line.get_color(), line.get_marker()) == looks[name]


# what a figure looks like


@pytest.mark.parametrize("panels", range(1, 10))
def test_texts_of_any_number_of_panels_can_be_read(panels: int) -> None:
    names = [*STRATEGIES, "a strategy of yours with a long name"][:panels]
    notes = dict.fromkeys(names[1:], "buffer: 8 × 125 blocks")
    rows = (1, 2345, 345_678)[panels % 3]
    figure = plots.order(shuffled(names, rows), notes=notes, title=f"{rows:,} rows in 100 blocks, epoch 0, seed 0")
    texts = check_readable(figure)
    assert len(figure.axes) == panels
    assert {*notes.values(), figure.get_suptitle(), figure.get_supxlabel(), figure.get_supylabel()} <= set(texts)
    assert [panel.get_title(loc="left") for panel in figure.axes[:8]] == names[:8]
    assert set(names[:8]) <= set(texts)
    # Only the lowest panel of each column and the first of each row have numbers.
    across = len({panel.get_subplotspec().colspan.start for panel in figure.axes})
    assert texts.count("0") == across + -(-panels // across)


@pytest.mark.parametrize("name", ["order", "labels", "convergence", "throughput", "clumping"])
def test_texts_of_every_figure_can_be_read(name: str) -> None:
    figure = one_of_each()[name]
    texts = check_readable(figure)
    assert len(texts) > 10
    labelled = [(panel.get_xlabel(), panel.get_ylabel()) for panel in figure.axes]
    assert all(all(pair) for pair in labelled) or all((figure.get_supxlabel(), figure.get_supylabel()))
    assert figure.get_facecolor() == (1, 1, 1, 1)
    assert figure.get_size_inches()[0] == 9


def test_labels_with_long_names_can_be_read() -> None:
    values = np.array([f"a class of which one has much to say, number {n}" for n in range(40)]).repeat(25)
    orders = shuffled(STRATEGIES, 1000)
    notes = dict.fromkeys(STRATEGIES, "buffer: 10 blocks")
    texts = check_readable(plots.labels(orders, values, name="the name of a column " * 3, notes=notes, title="x"))
    assert "31 others" in texts
    assert len({text for text in texts if text.startswith("a class")}) == plots.MOST_CLASSES - 1


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (950, "950"), (1500, "1,500"), (20_000, "20 k"), (1_500_000, "1.5 M"), (2e9, "2 G"), (0.5, "0.5")],
)
def test_numbers_on_axes(number: float, text: str) -> None:
    assert count(number) == text


# errors


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (lambda: plots.order({}), "at least one order"),
        (lambda: plots.labels({}, [1]), "at least one order"),
        (lambda: plots.order({"none": np.empty(0, np.int64)}), "'none' has no rows"),
        (lambda: plots.labels({"none": np.empty(0, np.int64)}, [1]), "'none' has no rows"),
        (lambda: plots.labels({"none": np.arange(3)}, [1, 2]), "2 values, but the order of 'none' has a row of id 2"),
        (lambda: plots.labels({"none": np.arange(3)}, [1, 2, 3], every=0), "every=0"),
        (lambda: plots.convergence([]), "curves has no rows"),
        (lambda: plots.convergence([{"data": "x", "strategy": "none"}]), "lacks epoch, mean, sd"),
        (lambda: plots.convergence([{**curve_rows()[0], "mean": None}]), "lacks mean"),
        (lambda: plots.throughput([{**speed_rows()[0], "rows_per_s": 0}]), "rows_per_s=0"),
        (lambda: plots.throughput([{**speed_rows()[0], "access": None}]), "lacks access"),
        (lambda: plots.clumping([{**clumping_rows()[0], "measured_clumping": -1.0}]), "measured_clumping=-1.0"),
        (lambda: plots.clumping([{**clumping_rows()[0], "memory_bytes": None}]), "lacks memory_bytes"),
    ],
)
def test_what_cannot_be_drawn_raises(draw: Any, text: str) -> None:
    with pytest.raises(ca.OptionError, match=text):
        draw()


def test_a_missing_matplotlib_says_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ca.MissingExtraError, match=r"pip install 'corgiarrow\[plot\]'"):
        plots.order({"none": np.arange(3)})
    result = run(DIGITS, "--out", tmp_path / "a.png")
    assert result.exit_code == 1
    assert "pip install 'corgiarrow[plot]'" in result.stderr
    assert not list(tmp_path.iterdir())


# files


@pytest.fixture
def figure() -> Figure:
    return plots.labels(shuffled(["none", "corgipile"], 300), np.arange(300) // 60)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".PNG"])
def test_a_saved_figure_is_whole_and_the_same_each_time(figure: Figure, suffix: str, tmp_path: Path) -> None:
    path = plots.save(figure, tmp_path / f"a{suffix}")
    first = path.read_bytes()
    if suffix == ".svg":
        root = ET.fromstring(first)
        assert root.tag.endswith("svg")
        assert b"date>" not in first.lower()
    else:
        assert first.startswith(PNG)
        width, height = (int.from_bytes(first[at : at + 4], "big") for at in (16, 20))
        assert (width, height) == tuple(np.rint(figure.get_size_inches() * 150))
    assert matplotlib.__version__.encode() not in first
    assert list(tmp_path.iterdir()) == [path]
    assert plots.save(figure, str(path)).read_bytes() == first


def test_every_figure_is_the_same_in_another_process(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests'); import test_plots\n"
        "for name, figure in test_plots.one_of_each().items():\n"
        "    test_plots.plots.save(figure, f'{sys.argv[1]}/{name}.svg')"
    )
    root = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONHASHSEED": "7", "MATPLOTLIBRC": str(tmp_path / "matplotlibrc")}
    (tmp_path / "matplotlibrc").write_text("font.size: 30\nsvg.fonttype: none\nxtick.labelsize: 40\nimage.cmap: jet\n")
    subprocess.run([sys.executable, "-c", code, tmp_path], cwd=root, env=environment, check=True, timeout=120)
    for name, figure in one_of_each().items():
        here = plots.save(figure, tmp_path / "here.svg").read_bytes()
        assert (tmp_path / f"{name}.svg").read_bytes() == here, name


def test_the_callers_settings_neither_change_nor_matter(figure: Figure, tmp_path: Path) -> None:
    plain = plots.save(figure, tmp_path / "plain.png").read_bytes()
    before = dict(matplotlib.rcParams)
    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "xtick.labelsize": 40, "savefig.dpi": 40}):
        inside = dict(matplotlib.rcParams)
        again = plots.labels(shuffled(["none", "corgipile"], 300), np.arange(300) // 60)
        assert plots.save(again, tmp_path / "again.png").read_bytes() == plain
        assert dict(matplotlib.rcParams) == inside
        # Nor for one who draws it elsewhere, such as in a notebook.
        renderer = RecordingRenderer(again)
        again.draw(renderer)
        assert {text.get_fontsize() for text in renderer.texts} == {8, 9, 10}
    assert dict(matplotlib.rcParams) == before
    code = (
        "import sys, corgiarrow.plots as p, numpy as np; p.save(p.order({'none': np.arange(9)}), sys.argv[1])\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.png")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_fault_while_writing_leaves_the_old_file(
    figure: Figure, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"old")

    def half(self: Figure, beside: Path, **options: object) -> None:
        Path(beside).write_bytes(PNG)
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Figure, "savefig", half)
        with pytest.raises(OSError, match="disk full"):
            plots.save(figure, path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    plots.save(figure, path)
    assert path.read_bytes().startswith(PNG)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jpg", "must end in .png or .svg"),
        ("a", "must end in .png or .svg"),
        ("a.parquet", "must end in .png or .svg"),
        ("no/a.png", "there is no folder"),
        ("folder.png", "is a folder"),
        ("s3://key:secret@bucket/a.png", "local path"),
    ],
)
def test_where_a_figure_cannot_be_written(name: str, text: str, figure: Figure, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    path = name if "://" in name else str(tmp_path / name)
    with pytest.raises(ca.OptionError, match=text) as found:
        plots.save(figure, path)
    assert "secret" not in str(found.value)
    result = run(tmp_path / "no data", "--out", path)
    assert result.exit_code == 2, "before anything is read"
    assert text in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["folder.png"]


def test_the_documentation_draws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = (Path(__file__).parent.parent / "docs" / "plots.md").read_text()
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    exec(code, {})
    assert ET.parse("order.svg").getroot().tag.endswith("svg")
    assert f"at most {plots.MOST_POINTS:,} a panel" in text
    assert f"at most {plots.MOST_RUNS})" in text
    for name in ("order", "labels", "convergence", "throughput", "clumping", "save"):
        assert f"`plots.{name}(" in text


# the command


def run(*args: object) -> Result:
    return CliRunner().invoke(app, ["plot", *map(str, args)])


def run_json(*args: object) -> dict[str, Any]:
    result = run(*args, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Figure]]:
    """The figures that a command saves."""
    saved: list[Figure] = []
    save = plots.save

    def keep(figure: Figure, path: Path) -> Path:
        saved.append(figure)
        return save(figure, path)

    monkeypatch.setattr(plots, "save", keep)
    return saved


def test_plot_draws_all_strategies_of_the_embedded_data(drawn: list[Figure], tmp_path: Path) -> None:
    out = tmp_path / "a.png"
    found = run_json(DIGITS, "--out", out)
    (figure,) = drawn
    assert out.read_bytes().startswith(PNG)
    assert (found["out"], found["what"], found["rows"], found["blocks"]) == (str(out), "order", 1797, 100)
    assert {each["strategy"] for each in found["drawn"]} == set(BY_NAME)
    texts = check_readable(figure)
    assert set(BY_NAME) <= set(texts)
    buffers = {each["strategy"]: each["buffer_blocks"] for each in found["drawn"]}
    assert (buffers["none"], buffers["corgipile"], buffers["epoch"]) == (1, 10, 100)
    assert {"buffer: 1 block", "buffer: 10 blocks", "buffer: all blocks"} <= set(texts)
    for panel, each in zip(figure.axes, found["drawn"], strict=True):
        ids = panel.lines[0].get_ydata()
        blocks = {"once": 100, "epoch": 100, "spread": 24}.get(each["strategy"], 10)  # 24 in the memory of 10.
        expected = ca.Reader(DIGITS, shuffle=each["strategy"], buffer_blocks=blocks).plan().row_ids()
        assert each["rows"] == len(expected) >= 1797
        assert each["points"] == len(ids)
        assert ids.tolist() == expected[thinned(len(expected), plots.MOST_POINTS)].tolist()


def test_plot_draws_the_labels_that_the_files_hold(drawn: list[Figure], tmp_path: Path) -> None:
    names = ["--shuffle", "none,epoch"]
    found = run_json(DIGITS, "--out", tmp_path / "a.svg", "--what", "labels", *names)
    assert [(each["strategy"], each["points"]) for each in found["drawn"]] == [("none", 89), ("epoch", 89)]
    (figure,) = drawn
    check_readable(figure)
    labels = pq.read_table(DIGITS, columns=["label"])["label"].to_numpy()
    for panel, name in zip(figure.axes, ("none", "epoch"), strict=True):
        ids = ca.Reader(DIGITS, shuffle=name).plan().row_ids()[: 89 * 20]
        heights = [area.get_data().values for area in panel.patches][::-1]
        for digit, height in enumerate(heights):
            assert (height == (labels[ids].reshape(89, 20) <= digit).sum(axis=1)).all()


def test_plot_takes_the_readers_options(drawn: list[Figure], ragged: Path, tmp_path: Path) -> None:
    out = ["--out", tmp_path / "a.png", "--shuffle", "corgipile"]
    options = {"seed": 5, "streams": 2, "batch_size": 16, "buffer_blocks": 4, "block_bytes": 100}
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    found = run_json(ragged, *out, *flags, "--epoch", 3)
    assert found["rows"] == RAGGED_ROWS
    expected = ca.Reader(ragged, **options).plan(3).row_ids()
    assert drawn[0].axes[0].lines[0].get_ydata().tolist() == expected.tolist()
    assert "buffer: 2 × 2 blocks" in check_readable(drawn[0])
    run_json(ragged, *out, "--where", "id < 100", "--columns", "x", "--buffer-fraction", 0.5)
    reader = ca.Reader(ragged, filter=pc.field("id") < 100, columns=["x"], buffer_fraction=0.5)
    assert drawn[1].axes[0].lines[0].get_ydata().tolist() == reader.plan().row_ids().tolist()
    run_json(ragged, *out, "--memory", "1 MiB")
    run_json(ragged, *out, "--what", "labels", "--where", "id >= 200", "--columns", "x", "--buffer-blocks", 3)
    heights = [area.get_data().values for area in drawn[3].axes[0].patches][::-1]
    ids = 200 + ca.Reader(ragged, filter=pc.field("id") >= 200, columns=["x"], buffer_blocks=3).plan().row_ids()
    assert len(heights) == 7
    assert (heights[3] == (ids[:60].reshape(3, 20) < 240).sum(axis=1)).all()


def test_plot_reads_no_data_for_orders_and_one_column_for_labels(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"x": np.arange(1000), "label": np.arange(1000) // 100})
    pq.write_table(table, path, row_group_size=100, compression="none", use_dictionary=False)
    content = bytearray(path.read_bytes())
    metadata = pq.read_metadata(path)

    def wipe(column: int) -> None:
        for group in range(metadata.num_row_groups):
            chunk = metadata.row_group(group).column(column)
            at = chunk.data_page_offset
            content[at : at + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
        path.write_bytes(content)

    wipe(0)
    assert run(path, "--out", tmp_path / "a.png", "--what", "labels").exit_code == 0
    wipe(1)
    assert run(path, "--out", tmp_path / "a.png").exit_code == 0
    result = run(path, "--out", tmp_path / "b.png", "--what", "labels")
    assert result.exit_code == 1
    assert "row group" in result.stderr
    assert not (tmp_path / "b.png").exists()


def test_a_strategy_that_the_budget_cannot_hold_is_left_out_unless_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Greedy(type(BY_NAME["corgipile"])):
        name = "greedy"

        def buffer_blocks(self, block_rows: np.ndarray, asked: int, streams: int) -> int:
            return len(block_rows)

    monkeypatch.setattr("corgiarrow.cli.plots.BY_NAME", {**BY_NAME, "greedy": Greedy()})
    monkeypatch.setattr("corgiarrow.strategies.BY_NAME", {**BY_NAME, "greedy": Greedy()})
    result = run(DIGITS, "--out", tmp_path / "a.png", "--buffer-blocks", 3, "--json")
    assert result.exit_code == 0, result.stderr
    names = {each["strategy"] for each in json.loads(result.stdout)["drawn"]}
    assert "greedy" not in names
    assert {"none", "corgipile", "epoch"} <= names
    assert "left out: buffer_blocks of 3 blocks" in result.stderr
    asked = ["--shuffle", "none,greedy"]
    result = run(DIGITS, "--out", tmp_path / "b.png", "--buffer-blocks", 3, *asked)
    assert result.exit_code == 2
    assert "buffer_blocks=100" in result.stderr
    assert not (tmp_path / "b.png").exists()


def test_plot_of_few_blocks_and_many_streams(drawn: list[Figure], tmp_path: Path) -> None:
    write_dataset(tmp_path / "data", [[20], [30]])
    found = run_json(tmp_path / "data", "--out", tmp_path / "a.png", "--streams", 4, "--batch-size", 5)
    assert {"none", "block", "corgipile", "once", "epoch"} <= {each["strategy"] for each in found["drawn"]}
    check_readable(drawn[0])


def test_plot_says_what_it_wrote(tmp_path: Path) -> None:
    out = tmp_path / f"{'long' * 20}.png"
    out.write_bytes(b"old")
    result = run(DIGITS, "--out", out, "--shuffle", "none")
    assert result.exit_code == 0
    assert "written to" in result.stdout
    assert str(out) in "".join(result.stdout.split())
    assert "1,797 in 100 blocks" in result.stdout
    assert out.read_bytes().startswith(PNG)


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    columns = {"many": np.arange(300) * 0.5, "lists": [[1, 2]] * 300, "label": np.arange(300) // 30}
    pq.write_table(pa.table(columns), folder / "a.parquet", row_group_size=30)
    return folder


@pytest.mark.parametrize(
    ("args", "exit_code", "text"),
    [
        (["--what", "colours"], 2, "what='colours' must be one of: order, labels"),
        (["--shuffle", "bogus"], 2, "shuffle='bogus' must be one of"),
        (["--shuffle", "none,none"], 2, "given twice"),
        (["--what", "labels", "--label", "nothing"], 1, "nothing"),
        (["--what", "labels", "--label", "many"], 2, "more than 100 values"),
        (["--what", "labels", "--label", "lists"], 2, "is of type list"),
        (["--epoch", -1], 2, "epoch=-1"),
        (["--buffer-fraction", 2], 2, "buffer_fraction=2"),
        (["--memory", "1 MiB", "--buffer-blocks", 2], 2, "only one"),
        (["--where", "label > 100"], 2, "the data has no rows"),
        (["--where", "label > 100", "--what", "labels"], 2, "the data has no rows"),
        (["--streams", 0], 2, "streams=0"),
    ],
)
def test_plot_refuses(args: list[object], exit_code: int, text: str, odd: Path, tmp_path: Path) -> None:
    result = run(odd, "--out", tmp_path / "a.png", *args)
    assert result.exit_code == exit_code, result.stderr
    assert text in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert not list(tmp_path.iterdir())


def test_plot_does_not_replace_its_data(odd: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.png"
    data.write_bytes((odd / "a.parquet").read_bytes())
    result = run(data, "--out", data)
    assert result.exit_code == 2
    assert "one of the files to read" in result.stderr
    assert data.read_bytes() == (odd / "a.parquet").read_bytes()

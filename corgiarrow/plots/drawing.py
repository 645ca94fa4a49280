"""What all figures share: the style, the colours of strategies, panels, axes, the legend, and writing to a file."""

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from corgiarrow.errors import MissingExtraError, OptionError
from corgiarrow.storage import local_path, write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

SUFFIXES = (".png", ".svg")
"""Names that a file to write may end in."""

GREY = "#555555"
GRID: dict[str, Any] = {"color": "#DDDDDD", "linewidth": 0.6}

_LOOKS = {
    "none": ("#999999", "o"),
    "block": ("#E69F00", "s"),
    "window": ("#56B4E9", "^"),
    "mrs": ("#CC79A7", "v"),
    "corgipile": ("#0072B2", "D"),
    "spread": ("#D55E00", "P"),
    "once": ("#009E73", "X"),
    "epoch": ("#000000", "p"),
}
"""Colour and marker of each strategy: Okabe and Ito's colours, but for yellow, which is too light for a line."""
_OTHER_LOOKS = (("#882255", "<"), ("#999933", ">"), ("#332288", "h"), ("#44AA99", "d"), ("#CC6677", "8"))
"""Of Paul Tol's muted colours, which can be told apart without red or green too."""

_WIDTH_IN = 9.0
_DPI = 150
_ACROSS = 4
"""Panels side by side, at most."""
_NAME_LETTERS = 20

_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "figure.labelsize": 9,
    "figure.titlesize": 10,
    "figure.dpi": _DPI,
    "figure.constrained_layout.w_pad": 0.06,
    "figure.constrained_layout.h_pad": 0.06,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    # An SVG's ids would be random numbers otherwise.
    "svg.hashsalt": "corgiarrow",
}


@contextmanager
def style() -> Iterator[None]:
    """Draw in matplotlib's defaults and the style of this package, whatever the user's settings are, and keep those.

    Raises
    ------
    MissingExtraError
        matplotlib is not installed.
    """
    try:
        import matplotlib.style
    except ImportError:
        raise MissingExtraError("figures are drawn by matplotlib: pip install 'corgiarrow[plot]'") from None
    with matplotlib.style.context(["default", _STYLE]):
        yield


def looks(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return the colour and the marker of each name: a strategy's own, and of others some that no strategy has."""
    others = itertools.cycle(_OTHER_LOOKS)
    return {name: _LOOKS.get(name) or next(others) for name in names}


def make_panels(
    names: Iterable[str], notes: Mapping[str, str] | None = None, title: str | None = None, *, shared: bool = False
) -> tuple["Figure", list["Axes"]]:
    """Return a figure of panels in rows, each below its name and note; shared axes have numbers on the outside only.

    Raises
    ------
    OptionError
        There are no names.
    """
    from matplotlib.figure import Figure

    titles = list(names)
    if not titles:
        raise OptionError("there is nothing to draw: give at least one order")
    down = -(-len(titles) // _ACROSS)
    across = -(-len(titles) // down)
    height = 4.5 if across < 3 else 0.9 + 2.3 * down
    figure = Figure(figsize=(_WIDTH_IN, height), layout="constrained")
    grid: list[Axes] = list(figure.subplots(down, across, sharex=shared, sharey=shared, squeeze=False).flat)
    panels = grid[: len(titles)]
    for left_over in grid[len(titles) :]:
        left_over.remove()
    for lowest in panels[-across:]:
        lowest.tick_params(labelbottom=True)
    for panel, name in zip(panels, titles, strict=True):
        # What is left to the settings would be looked up when the figure is drawn.
        panel.tick_params(labelsize=8, width=0.8, length=3, color=GREY)
        note = (notes or {}).get(name)
        panel.set_title(short(name), loc="left", pad=16 if note else 5)
        if note:
            place: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points"}
            panel.annotate(note, (0, 1), (0, 5), fontsize=8, color=GREY, **place)
    if title:
        figure.suptitle(title, x=0.01, horizontalalignment="left")
    return figure, panels


def key(**look: Any) -> "Line2D":
    """Return a line for a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **look)


def legend(figure: "Figure", keys: Sequence[tuple[str, "Line2D"]], title: str | None = None) -> None:
    """Put a legend beside the panels; its texts are short ones."""
    names, lines = zip(*keys, strict=True)
    figure.legend(lines, names, loc="outside right upper", title=title, alignment="left")


def short(value: Any) -> str:
    """Return a value as a short text on one line, in which no sign stands for mathematics."""
    text = " ".join(str(value).split())
    if len(text) > _NAME_LETTERS:
        # Names that begin alike often differ at the end.
        text = f"{text[: _NAME_LETTERS // 2]}…{text[-(_NAME_LETTERS // 2 - 1) :]}"
    return text.replace("$", r"\$")


def count(number: float, _: int | None = None) -> str:
    """Return a number for an axis: ``950``, ``1,500``, ``20 k``, ``1.5 M``."""
    for least, unit, name in ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k")):
        if abs(number) >= least:
            return f"{number / unit:,.6g}{name}"
    return f"{number:,.6g}"


def save(figure: "Figure", path: str | os.PathLike[str]) -> Path:
    """Write a figure, whole or not at all; a file that is there is replaced. The same figure gives the same bytes.

    Parameters
    ----------
    path
        A local path that ends in one of :data:`SUFFIXES`.

    Returns
    -------
    Path
        Where it lies.

    Raises
    ------
    OptionError
        The path ends otherwise, or cannot be written to.
    """
    target = figure_path(path)
    kind = target.suffix.lower()[1:]
    # Neither a date nor matplotlib's version.
    metadata: dict[str, Any] = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    with style():
        write_atomic(target, lambda beside: figure.savefig(beside, format=kind, dpi=_DPI, metadata=metadata))
    return target


def figure_path(path: str | os.PathLike[str], option: str = "path") -> Path:
    """Return the path of a figure that may be written.

    Raises
    ------
    OptionError
        It does not end in one of :data:`SUFFIXES`, its folder is not there, or it is a URL or a folder.
    """
    target = local_path(path, option)
    if target.suffix.lower() not in SUFFIXES:
        raise OptionError(f"{option}={str(path)!r} must end in {' or '.join(SUFFIXES)}: give it such a name")
    if target.is_dir():
        raise OptionError(f"{option}={str(path)!r} is a folder: give the name of a file")
    return target

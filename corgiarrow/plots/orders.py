"""Orders as pictures: which row comes when, and which labels."""

import math
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from corgiarrow.errors import OptionError
from corgiarrow.plots.drawing import count, key, legend, looks, make_panels, short, style
from corgiarrow.strategies import Int64s

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Labels: TypeAlias = npt.ArrayLike | pa.Array | pa.ChunkedArray

MOST_POINTS = 2_000
"""Points of a panel of :func:`order`, at most."""

MOST_RUNS = 100
"""Runs of rows of a panel of :func:`labels`, at most: more could not be told apart."""

MOST_CLASSES = 10
"""Colours of :func:`labels`, at most: of more classes the rarer ones share one."""

_CLASS_COLOURS = "viridis"
_OTHERS_COLOUR = "#BBBBBB"


def order(
    orders: Mapping[str, Int64s], *, notes: Mapping[str, str] | None = None, title: str | None = None
) -> "Figure":
    """Draw which row comes at each position of an epoch, a panel a strategy, as the paper does.

    Parameters
    ----------
    orders
        By the strategy's name, the ids of its rows in the order of delivery, int64 [rows]; a row's id is its place in
        the dataset, from 0. They are asked for one after the other, so a mapping may make them then.
    notes
        By the same names, a line below the name, such as the size of the buffer.
    title
        Title of the whole figure.

    Returns
    -------
    Figure
        With at most :data:`MOST_POINTS` points a panel, evenly spaced: every k-th row.

    Raises
    ------
    OptionError
        There are no orders, or one has no rows.
    MissingExtraError
        matplotlib is not installed.
    """
    with style():
        figure, panels = make_panels(orders, notes, title, shared=True)
        steps, most, last = set(), 0, 0
        for panel, (name, (colour, _)) in zip(panels, looks(orders).items(), strict=True):
            ids = _checked(orders, name)
            drawn = thinned(len(ids), MOST_POINTS)
            panel.plot(drawn, ids[drawn], ".", color=colour, markersize=2.4, markeredgewidth=0, rasterized=True)
            steps.add(drawn.step)
            most, last = max(most, len(ids)), max(last, int(ids.max()) + 1)
        _count_rows(panels[0], most, last)
        figure.supxlabel(f"position in the epoch, in rows{_how_thinned(steps, 'row')}")
        figure.supylabel("row id: place in the dataset")
        return figure


def labels(
    orders: Mapping[str, Int64s],
    labels: Labels,
    *,
    every: int = 20,
    name: str = "label",
    notes: Mapping[str, str] | None = None,
    title: str | None = None,
) -> "Figure":
    """Draw how many rows of each label are in every 20 rows of an epoch, a panel a strategy, as the paper does.

    Parameters
    ----------
    orders
        As for :func:`order`.
    labels
        Label of each row by its id, [rows]: whole numbers, texts or other values that can be sorted; null is a label
        too. Of more than :data:`MOST_CLASSES` the rarer ones are joined to "others".
    every
        Rows of a run.
    name
        Name of the label, for the legend.
    notes, title
        As for :func:`order`.

    Returns
    -------
    Figure
        With at most :data:`MOST_RUNS` runs a panel, evenly spaced: every k-th run. Rows past the last whole run are
        left out.

    Raises
    ------
    OptionError
        There are no orders, one has no rows or names a row that has no label, or `every` is less than 1.
    MissingExtraError
        matplotlib is not installed.
    """
    if every < 1:
        raise OptionError(f"every={every} must be at least 1")
    with style():
        codes, names, colours = _classes(labels)
        figure, panels = make_panels(orders, notes, title, shared=True)
        steps, most = set(), 0
        for panel, strategy in zip(panels, orders, strict=True):
            ids = _checked(orders, strategy)
            if int(ids.max()) >= len(codes):
                raise OptionError(
                    f"labels has {len(codes):,} values, but the order of {strategy!r} has a row of id "
                    f"{int(ids.max()):,}: give a label for each row of the dataset"
                )
            size = min(every, len(ids))
            runs = thinned(len(ids) // size, MOST_RUNS)
            rows = np.asarray(runs)[:, None] * size + np.arange(size)
            cells = np.arange(len(runs))[:, None] * len(names) + codes[ids[rows]]
            of_each = np.bincount(cells.ravel(), minlength=len(runs) * len(names)).reshape(len(runs), -1)
            heights, edges = np.cumsum(of_each, axis=1), np.arange(len(runs) + 1) * runs.step * size
            # From the highest to the lowest, each down to 0: areas that only touch would let the white through.
            for number in range(len(names))[::-1]:
                panel.stairs(heights[:, number], edges, fill=True, color=colours[number], linewidth=0)
            steps.add(runs.step)
            most = max(most, int(edges[-1]))
        _count_rows(panels[0], most, every)
        figure.supxlabel(f"position in the epoch, in rows{_how_thinned(steps, f'run of {every:,} rows')}")
        figure.supylabel(f"rows of each label in {every:,} rows")
        # From top to bottom as they are stacked.
        keys = [(text, key(color=colour, linewidth=6)) for text, colour in zip(names, colours, strict=True)]
        legend(figure, keys[::-1], title=short(name))
        return figure


def points(figure: "Figure") -> list[int]:
    """Return how many rows, or runs of rows, are drawn in each panel of :func:`order` or :func:`labels`."""
    found = []
    for panel in figure.axes:
        areas: list[Any] = list(panel.patches)
        drawn: Any = areas[0].get_data().values if areas else panel.lines[0].get_xdata()
        found.append(len(drawn))
    return found


def thinned(count: int, most: int) -> range:
    """Return places in [0, count), evenly spaced, at most `most` of them.

    No step but 1 is divisible by 2 or 5: batches and blocks of round sizes are met at a different place each time.
    """
    step = max(-(-count // most), 1)
    while step > 1 and math.gcd(step, 10) > 1:
        step += 1
    return range(0, count, step)


def _checked(orders: Mapping[str, Int64s], name: str) -> Int64s:
    ids = orders[name]
    if not len(ids):
        raise OptionError(f"the order of {name!r} has no rows: there is nothing to draw")
    return ids


def _classes(labels: Labels) -> tuple[npt.NDArray[np.int64], list[str], list[str]]:
    """Return the class of each row, int64 [rows], and the name and colour of each class."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    array = labels if isinstance(labels, pa.Array | pa.ChunkedArray) else pa.array(np.asarray(labels))
    chunks = array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
    encoded = chunks.dictionary_encode().combine_chunks()
    values = encoded.dictionary.to_pylist()
    null = len(values)
    codes = encoded.indices.fill_null(null).to_numpy(zero_copy_only=False)
    rows = np.bincount(codes, minlength=null + 1)
    present = sorted((n for n in range(null) if rows[n]), key=lambda n: values[n]) + [null] * bool(rows[null])
    most = len(present) if len(present) <= MOST_CLASSES else MOST_CLASSES - 1
    # In the order of their values; sorting is stable, so of equally frequent ones the first are kept.
    kept = sorted(sorted(present, key=lambda n: -rows[n])[:most], key=present.index)
    names = ["null" if n == null else short(values[n]) for n in kept]
    colours = [to_hex(colour) for colour in colormaps[_CLASS_COLOURS](np.linspace(0.05, 0.95, len(kept)))]
    if len(present) > most:
        names.append(f"{len(present) - most:,} others")
        colours.append(_OTHERS_COLOUR)
    places = np.full(null + 1, len(kept), dtype=np.int64)
    places[kept] = np.arange(len(kept))
    return places[codes], names, colours


def _count_rows(panel: "Axes", across: int, up: int) -> None:
    """Give the axes of a panel, and of those that share them, their ends and a few round numbers."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    panel.set(xlim=(0, across), ylim=(0, up))
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=4, integer=True))
        axis.set_major_formatter(FuncFormatter(count))


def _how_thinned(steps: Collection[int], what: str) -> str:
    """Say in words what part is drawn; orders that differ in length have differing steps."""
    least, most = min(steps), max(steps)
    if most == 1:
        return ""
    return f"; one {what} in {least:,} is drawn" if least == most else f"; one {what} in {least:,} to {most:,} is drawn"

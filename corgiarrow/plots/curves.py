"""Curves of what was measured: accuracy by epoch, speed by the size of a block, clumping by memory."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from corgiarrow.errors import OptionError
from corgiarrow.plots.drawing import GREY, GRID, count, key, legend, looks, make_panels, short, style
from corgiarrow.units import show_bytes

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Rows: TypeAlias = pa.Table | Mapping[str, Sequence[Any]] | Iterable[Mapping[str, Any]]
"""A small table: one of pyarrow, columns by name, or rows as dictionaries."""

_DASHES = ("-", "--", ":", "-.")


def convergence(curves: Rows, *, measure: str = "accuracy", title: str | None = None) -> "Figure":
    """Draw accuracy by epoch, a panel a dataset and a line a strategy, in a band of one standard deviation.

    Parameters
    ----------
    curves
        Columns ``data`` and ``strategy`` (names), ``epoch`` (passes over the data that were done, so the first is 1),
        ``mean`` (over repeated runs, in [0, 1]) and ``sd`` (their standard deviation, in the same unit; null for no
        band).
    measure
        What `mean` is the mean of, for the axis.
    title
        Title of the whole figure.

    Returns
    -------
    Figure
        In %; datasets and strategies in the order in which they come first.

    Raises
    ------
    OptionError
        There are no rows, or columns are missing.
    MissingExtraError
        matplotlib is not installed.
    """
    rows = _rows("curves", curves, ("data", "strategy", "epoch", "mean", "sd"), nullable=("sd",))
    with style():
        from matplotlib.ticker import MaxNLocator

        by_data = _grouped(rows, "data")
        figure, panels = make_panels(by_data, None, title)
        styles = looks(_grouped(rows, "strategy"))
        for panel, of_data in zip(panels, by_data.values(), strict=True):
            for name, curve in _grouped(of_data, "strategy").items():
                colour, marker = styles[name]
                curve.sort(key=lambda row: float(row["epoch"]))
                epochs = [row["epoch"] for row in curve]
                mean, sd = (np.array([100 * (row[n] or 0) for row in curve]) for n in ("mean", "sd"))
                panel.fill_between(epochs, mean - sd, mean + sd, color=colour, alpha=0.18, linewidth=0)
                panel.plot(epochs, mean, color=colour, marker=marker)
            panel.grid(axis="y", **GRID)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        figure.supxlabel("epoch")
        figure.supylabel(f"{measure} in %, mean ± standard deviation")
        legend(figure, [(short(name), key(color=colour, marker=marker)) for name, (colour, marker) in styles.items()])
        return figure


def throughput(speeds: Rows, *, title: str | None = None) -> "Figure":
    """Draw rows a second against the size of a block, a line a storage and way of access.

    Parameters
    ----------
    speeds
        Columns ``storage`` (a name, which gets a colour), ``access`` (such as ``"sequential"`` or ``"random"``, which
        gets a dash), ``block_bytes`` (bytes on disk; null for a line across, of what reads everything) and
        ``rows_per_s``.
    title
        Title of the whole figure.

    Returns
    -------
    Figure
        Both axes are logarithmic.

    Raises
    ------
    OptionError
        There are no rows, columns are missing, or a number is not positive.
    MissingExtraError
        matplotlib is not installed.
    """
    rows = _rows("speeds", speeds, ("storage", "access", "block_bytes", "rows_per_s"), nullable=("block_bytes",))
    _check_positive("speeds", rows, ("block_bytes", "rows_per_s"))
    with style():
        figure, (panel,) = make_panels([""], None, title)
        by_storage = _grouped(rows, "storage")
        styles = looks(by_storage)
        dashes = {name: _DASHES[n % len(_DASHES)] for n, name in enumerate(_grouped(rows, "access"))}
        keys = []
        for storage, of_storage in by_storage.items():
            colour, marker = styles[storage]
            for access, line in _grouped(of_storage, "access").items():
                sized = _sorted(line, "block_bytes")
                look: dict[str, Any] = {"color": colour, "linestyle": dashes[access]}
                for row in line:
                    if row["block_bytes"] is None:
                        panel.axhline(row["rows_per_s"], **look)
                if sized:
                    look["marker"] = marker
                    panel.plot([r["block_bytes"] for r in sized], [r["rows_per_s"] for r in sized], **look)
                keys.append((f"{short(storage)}, {short(access)}", key(**look)))
        panel.set(xlabel="size of a block on disk", ylabel="rows a second", xscale="log", yscale="log")
        _mark_bytes(panel.xaxis)
        _mark_counts(panel.yaxis, [row["rows_per_s"] for row in rows])
        panel.grid(**GRID)
        legend(figure, keys)
        return figure


def clumping(found: Rows, *, title: str | None = None) -> "Figure":
    """Draw clumping against memory, of each strategy a line as predicted and points as measured, beside the ideal of 1.

    Parameters
    ----------
    found
        Columns ``strategy`` (a name), ``memory_bytes`` (of the whole job), ``predicted_clumping`` and
        ``measured_clumping`` (variance of a batch's label shares over that of independent draws; null where there is
        none). Other columns, such as ``buffer_blocks``, are not looked at.
    title
        Title of the whole figure.

    Returns
    -------
    Figure
        Both axes are logarithmic.

    Raises
    ------
    OptionError
        There are no rows, columns are missing, or a number is not positive.
    MissingExtraError
        matplotlib is not installed.
    """
    numbers = ("predicted_clumping", "measured_clumping")
    rows = _rows("found", found, ("strategy", "memory_bytes", *numbers), nullable=numbers)
    _check_positive("found", rows, ("memory_bytes", *numbers))
    with style():
        figure, (panel,) = make_panels([""], None, title)
        ideal: dict[str, Any] = {"color": GREY, "linestyle": "--", "linewidth": 1}
        panel.axhline(1, **ideal)
        by_strategy = _grouped(rows, "strategy")
        keys = []
        for name, (colour, marker) in looks(by_strategy).items():
            line = _sorted(by_strategy[name], "memory_bytes")
            for column, look in zip(numbers, ({}, {"linestyle": "none", "marker": marker}), strict=True):
                known = [row for row in line if row[column] is not None]
                styled: dict[str, Any] = {"color": colour, **look}
                panel.plot([row["memory_bytes"] for row in known], [row[column] for row in known], **styled)
            keys.append((short(name), key(color=colour, marker=marker)))
        keys += [
            ("predicted", key(color=GREY)),
            ("measured", key(color=GREY, linestyle="none", marker="o")),
            ("independent draws", key(**ideal)),
        ]
        panel.set(xlabel="memory of the whole job", ylabel="clumping (1 is ideal)", xscale="log", yscale="log")
        _mark_bytes(panel.xaxis)
        _mark_counts(panel.yaxis, [1.0, *(row[n] for row in rows for n in numbers if row[n] is not None)])
        panel.grid(**GRID)
        legend(figure, keys)
        return figure


def _rows(what: str, data: Rows, columns: Sequence[str], nullable: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the rows of a small table as dictionaries.

    Raises
    ------
    OptionError
        There are none, or in one of them some of `columns` are missing, or null and not `nullable`.
    """
    table = pa.table(dict(data)) if isinstance(data, Mapping) else data
    rows = table.to_pylist() if isinstance(table, pa.Table) else [dict(row) for row in table]
    if not rows:
        raise OptionError(f"{what} has no rows: there is nothing to draw")
    for row in rows:
        missing = [name for name in columns if row.get(name) is None and not (name in nullable and name in row)]
        if missing:
            raise OptionError(f"{what} lacks {', '.join(missing)} in {row}: give each row {', '.join(columns)}")
    return rows


def _check_positive(what: str, rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> None:
    for row in rows:
        for name in columns:
            if row[name] is not None and not 0 < row[name] < math.inf:
                raise OptionError(f"{what} has {name}={row[name]!r}, but on a logarithmic axis it must be positive")


def _grouped(rows: Iterable[dict[str, Any]], column: str) -> dict[str, list[dict[str, Any]]]:
    """Return rows by a column's values, in the order in which they come first."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(str(row[column]), []).append(row)
    return groups


def _sorted(rows: Iterable[dict[str, Any]], column: str) -> list[dict[str, Any]]:
    """Return the rows that have a number, by it."""
    return sorted((row for row in rows if row[column] is not None), key=lambda row: float(row[column]))


def _mark_bytes(axis: "Axis") -> None:
    """Put powers of two on a logarithmic axis of bytes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.set_major_locator(LogLocator(base=2, numticks=9))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda number, _: show_bytes(number).replace(".0 ", " ")))


def _mark_counts(axis: "Axis", values: Sequence[float]) -> None:
    """Put powers of ten on a logarithmic axis, and twice and five times those where it is short."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    few = max(values) / min(values) < 1000
    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if few else (1,), numticks=12))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(count))

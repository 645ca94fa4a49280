"""Figures: orders drawn row by row, labels along an epoch, and curves of what was measured.

Each function takes numbers and returns a :class:`matplotlib.figure.Figure`; :func:`save` writes it. Nothing here makes
an order or reads data. matplotlib is imported when something is drawn, and without pyplot: no window opens, and no
setting of the caller's changes. A strategy has one colour and one marker in all figures.
"""

from corgiarrow.plots.curves import Rows, clumping, convergence, throughput
from corgiarrow.plots.drawing import SUFFIXES, figure_path, looks, save
from corgiarrow.plots.orders import MOST_CLASSES, MOST_POINTS, MOST_RUNS, Labels, labels, order, points

__all__ = [
    "MOST_CLASSES",
    "MOST_POINTS",
    "MOST_RUNS",
    "SUFFIXES",
    "Labels",
    "Rows",
    "clumping",
    "convergence",
    "figure_path",
    "labels",
    "looks",
    "order",
    "points",
    "save",
    "throughput",
]

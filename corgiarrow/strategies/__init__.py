"""Strategies: pure functions from block sizes and random bits to an order, in steps of load, emit and keep.

Nothing here reads a file or knows Arrow, so an order can be drawn, measured and tested without data.
"""

from collections.abc import Mapping

from corgiarrow.errors import OptionError
from corgiarrow.strategies.base import Line, Strategy
from corgiarrow.strategies.blocks import BlockOnly, CorgiPile, EpochShuffle, NoShuffle, ShuffleOnce
from corgiarrow.strategies.spread import Spread
from corgiarrow.strategies.steps import Floats, Gather, Int64s, Pool, Step, as_index, restoring_steps
from corgiarrow.strategies.windows import MRS, SlidingWindow

__all__ = [
    "BY_NAME",
    "MRS",
    "BlockOnly",
    "CorgiPile",
    "EpochShuffle",
    "Floats",
    "Gather",
    "Int64s",
    "Line",
    "NoShuffle",
    "Pool",
    "ShuffleOnce",
    "SlidingWindow",
    "Spread",
    "Step",
    "Strategy",
    "as_index",
    "as_strategy",
    "restoring_steps",
]

_ALL = (
    NoShuffle(),
    ShuffleOnce(),
    EpochShuffle(),
    SlidingWindow(),
    MRS(),
    BlockOnly(),
    CorgiPile(),
    Spread(),
)

BY_NAME: Mapping[str, Strategy] = {strategy.name: strategy for strategy in _ALL}


def as_strategy(shuffle: "str | bool | Strategy") -> Strategy:
    """Return the strategy that ``shuffle=`` names: True is ``"corgipile"``, False is ``"none"``.

    Raises
    ------
    OptionError
        No strategy has that name.
    """
    if isinstance(shuffle, Strategy):
        return shuffle
    if isinstance(shuffle, bool):
        return BY_NAME["corgipile" if shuffle else "none"]
    if shuffle not in BY_NAME:
        raise OptionError(f"shuffle={shuffle!r} must be True, False, a Strategy, or one of: {', '.join(BY_NAME)}")
    return BY_NAME[shuffle]

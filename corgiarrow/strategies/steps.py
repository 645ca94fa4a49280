"""Steps of load, emit and keep, and what they do to a stream's pool.

A stream holds a **pool** of rows as a list of *pieces*. Each span that is loaded becomes a piece whose number is the
span's position in the stream; a strategy numbers the pieces that it makes itself below zero. A :class:`Step` says
which spans to load and which *gathers* to run: a gather takes rows of its source pieces, in the given order, either
out to the consumer or into a new piece that later steps use. After a step its sources are gone, every other piece
stays.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Gather:
    """Rows of some pieces, in an order.

    Attributes
    ----------
    sources
        Numbers of the pieces; their rows, one piece after the other, are what `index` counts.
    index
        Rows to take, unsigned [rows out]; None takes all rows as they stand.
    piece
        Number of the piece to make, below zero; None emits the rows.
    """

    sources: tuple[int, ...]
    index: npt.NDArray[np.unsignedinteger] | None
    piece: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What a stream does next: load these spans, then run these gathers (at most one of them emits).

    No gather uses a piece that the same step makes, and two gathers share all of their sources or none.
    """

    load: tuple[int, ...]
    gathers: tuple[Gather, ...]


def as_index(rows: npt.NDArray[np.integer]) -> npt.NDArray[np.unsignedinteger]:
    """Return `rows` in the narrowest type that Arrow takes fast: uint32 where the numbers fit."""
    return rows.astype(np.uint32 if not len(rows) or int(rows.max()) < 2**32 else np.uint64)


@dataclass(slots=True)
class Pool:
    """The pool as arrays of row ids: what a step does, without any data.

    Attributes
    ----------
    span_ids
        For each span of the stream its rows' ids are ``start .. start + rows``: int64 [spans] of starts.
    rows
        Rows of each span, int64 [spans].
    pieces
        Row ids of each piece that is held, by piece number.
    """

    span_ids: Int64s
    rows: Int64s
    pieces: dict[int, Int64s] = field(default_factory=dict)

    def apply(self, step: Step) -> Int64s:
        """Do one step; return the ids of the rows that it emits."""
        for span in step.load:
            self.pieces[span] = self.span_ids[span] + np.arange(self.rows[span])
        out = none = np.empty(0, dtype=np.int64)
        made: dict[int, Int64s] = {}
        for gather in step.gathers:
            # Of a pool rebuilt from the middle, pieces whose rows leave before it matters are missing.
            held = [self.pieces[p] for p in takewhile(self.pieces.__contains__, gather.sources)]
            ids = np.concatenate(held) if held else none
            if gather.index is not None:
                known = not len(gather.index) or int(gather.index.max()) < len(ids)
                ids = ids[gather.index] if known else none
            if gather.piece is None:
                out = ids
            else:
                made[gather.piece] = ids
        for gather in step.gathers:
            for piece in gather.sources:
                self.pieces.pop(piece, None)
        self.pieces.update(made)
        return out


def restoring_steps(pool: Pool, at_once: int) -> Iterator[Step]:
    """Yield steps that rebuild `pool`: they load each span that has a row in it, and gather each piece again.

    Parameters
    ----------
    pool
        What is to be held.
    at_once
        Spans that one step loads at most, of which only the rows of the pool are kept.
    """
    owner = {p: np.searchsorted(pool.span_ids, ids, side="right") - 1 for p, ids in pool.pieces.items()}
    made = [p for p in pool.pieces if p < 0]
    whole = tuple(sorted(p for p in pool.pieces if p >= 0))
    needed = np.unique(np.concatenate([*(owner[p] for p in made), np.empty(0, np.int64)])).astype(np.int64)
    free = min(made, default=0) - 1
    parts: dict[int, list[int]] = {p: [] for p in made}
    taken: dict[int, list[Int64s]] = {p: [] for p in made}
    for first in range(0, len(needed), at_once):
        load = tuple(int(s) for s in needed[first : first + at_once])
        starts = np.cumsum([0, *pool.rows[list(load[:-1])]])
        gathers = []
        for p in made:
            places = np.flatnonzero((owner[p] >= load[0]) & (owner[p] <= load[-1]))
            spans = owner[p][places]
            rows = pool.pieces[p][places] - pool.span_ids[spans] + starts[np.searchsorted(load, spans)]
            gathers.append(Gather(load, as_index(rows), free))
            parts[p].append(free)
            taken[p].append(places)
            free -= 1
        yield Step(load, tuple(gathers))
    if made or whole:
        yield Step(
            whole,
            tuple(Gather(tuple(parts[p]), as_index(np.argsort(np.concatenate(taken[p]))), p) for p in made),
        )

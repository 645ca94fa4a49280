"""The blocks of a table, runs of pages, and the rows that a snapshot has in each."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from corgiarrow.index import DEFAULT_BLOCK_BYTES, MIN_BLOCKS
from corgiarrow.sources.postgres.relations import Relation, Table
from corgiarrow.units import parse_bytes

Int64s = npt.NDArray[np.int64]

_LEAST_BYTES, _LEAST_BLOCKS = 2**20, 256
"""A block is a query, of half a millisecond beside its rows: smaller ones are for tables that would not mix else."""

_COUNTED_AT_ONCE = 2048
"""Blocks that one statement counts: each row is looked up among so many page numbers."""


@dataclass(frozen=True, slots=True)
class PageRuns:
    """Runs of pages, int64 [runs] each: the number of the relation, the first page, and the one after the last."""

    relation: Int64s
    first: Int64s
    stop: Int64s

    def picked(self, numbers: Int64s) -> "PageRuns":
        """Return some of the runs."""
        return PageRuns(self.relation[numbers], self.first[numbers], self.stop[numbers])


@dataclass(frozen=True, slots=True)
class Counts:
    """What a snapshot has in some runs of pages.

    Attributes
    ----------
    rows
        Rows of each, int64 [runs].
    digests
        A number that changes with every row that is inserted, updated or deleted, int64 [runs]: over the rows, the
        hashes of their address and of the transaction that wrote them.
    """

    rows: Int64s
    digests: Int64s

    @property
    def digest(self) -> str:
        """A short text for all of it."""
        return hashlib.sha256(self.rows.astype("<i8").tobytes() + self.digests.astype("<i8").tobytes()).hexdigest()[:16]


def cut_pages(table: Table, block_bytes: int | str | None) -> PageRuns:
    """Cut the pages of a table into blocks.

    Parameters
    ----------
    table
        The table, with the sizes of its relations.
    block_bytes
        Bytes on disk of a block, with what is TOASTed; at least a page. None for
        :data:`corgiarrow.index.DEFAULT_BLOCK_BYTES`, or less where that would leave fewer than
        :data:`corgiarrow.index.MIN_BLOCKS`, down to 1 MiB, or less where that would leave fewer than 256.
    """
    wanted = parse_bytes("block_bytes", DEFAULT_BLOCK_BYTES if block_bytes is None else block_bytes)
    pages = sum(relation.pages for relation in table.relations)
    nbytes = sum(relation.nbytes for relation in table.relations if relation.pages)
    page_bytes = max(nbytes / max(pages, 1), 1)
    each = max(int(wanted / page_bytes), 1)
    if block_bytes is None:
        least = min(int(_LEAST_BYTES / page_bytes), pages // _LEAST_BLOCKS)
        each = min(each, max(pages // MIN_BLOCKS, least, 1))
    firsts = [np.arange(0, relation.pages, each, dtype=np.int64) for relation in table.relations]
    stops = [np.minimum(f + each, r.pages) for f, r in zip(firsts, table.relations, strict=True)]
    numbers = np.repeat(np.arange(len(firsts)), [len(f) for f in firsts])
    none = np.empty(0, dtype=np.int64)
    return PageRuns(numbers, np.concatenate([none, *firsts]), np.concatenate([none, *stops]))


def select_sql(relation: Relation, what: str, first: int, stop: int, where: str | None) -> str:
    """Return the query of some pages of a relation; `where` is a condition, which may end in a comment."""
    condition = f" AND (\n{where}\n)" if where else ""
    return (
        f"SELECT {what} FROM ONLY {relation.quoted} WHERE ctid >= '({first},0)'::tid AND ctid < '({stop},0)'::tid"
        + condition
    )


def count_rows(
    runs: PageRuns,
    relations: tuple[Relation, ...],
    where: str | None,
    query: Callable[[list[str]], Iterator[pa.Table]],
) -> Counts:
    """Count the rows of runs of pages.

    Parameters
    ----------
    runs
        The runs, each relation's one after the other.
    relations
        The relations.
    where
        Condition of the rows that count.
    query
        Runs queries, some at a time, and gives their results in order.
    """
    rows, digests = np.zeros(len(runs.first), dtype=np.int64), np.zeros(len(runs.first), dtype=np.int64)
    places = [
        (int(n), part)
        for n in np.unique(runs.relation)
        for found in [np.flatnonzero(runs.relation == n)]
        for part in np.array_split(found, -(-len(found) // _COUNTED_AT_ONCE))
    ]
    queries = []
    for number, part in places:
        starts = ",".join(f'"({page},0)"' for page in runs.first[part][1:])
        run = f"width_bucket(ctid, '{{{starts}}}'::tid[])" if starts else "0"
        what = f"{run} AS run, count(*) AS rows, bit_xor(hash_record_extended(ROW(ctid, xmin), 0)) AS digest"
        first, stop = int(runs.first[part[0]]), int(runs.stop[part[-1]])
        queries.append(select_sql(relations[number], what, first, stop, where) + " GROUP BY 1")
    for (_, part), found in zip(places, query(queries), strict=True):
        at = part[found["run"].to_numpy()]
        rows[at], digests[at] = found["rows"].to_numpy(), found["digest"].to_numpy()
    return Counts(rows, digests)

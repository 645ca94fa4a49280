"""Arrays from a reader: batches converted, transformed in threads, resumable anywhere."""

import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from difflib import get_close_matches
from typing import Any, Self, TypeVar, Unpack, cast

import pyarrow as pa
import pyarrow.compute as pc

from corgiarrow.arrays import ArrayOptions, Converter
from corgiarrow.arrays.values import Out
from corgiarrow.errors import CorgiArrowError, OptionError
from corgiarrow.opening import Data, DataOptions
from corgiarrow.reader import Reader, Slice, share_of_cpus
from corgiarrow.schemas import SchemaRequest
from corgiarrow.split import Split
from corgiarrow.strategies import Strategy

Transform = Callable[[dict[str, Any]], Any]
Slices = Generator[Slice, None, None]


class ReaderOptions(DataOptions, total=False):
    """Keywords of :class:`Reader` that adapters hand on; they settle the others themselves."""

    columns: Sequence[str] | None
    drop_last: bool
    shuffle: str | bool | Strategy
    memory: int | str | None
    buffer_blocks: int | None
    buffer_fraction: float | None
    block_bytes: int | str
    schema: SchemaRequest | None
    filter: pc.Expression | None
    split: Split | None
    on_error: str
    seed: int
    streams: int | None
    provenance: bool
    progress: bool


class LoaderOptions(ReaderOptions, ArrayOptions, total=False):
    """Keywords that every adapter takes: the reader's, and those of the arrays."""


_OWN_KEYWORDS = ["batch_size", "rank", "world_size", "transform", "workers", "processes", "pin_memory", "threads"]
"""What adapters name themselves, for whoever mistypes it."""


def part_options(options: LoaderOptions) -> tuple[ReaderOptions, ArrayOptions]:
    """Part the keywords into the reader's and those of the arrays.

    Raises
    ------
    TypeError
        There is no such keyword.
    """
    unknown = sorted(set(options) - set(LoaderOptions.__annotations__))
    if unknown:
        known = sorted({*LoaderOptions.__annotations__, *_OWN_KEYWORDS})
        near = [n for name in unknown for n in get_close_matches(name, known, 1)]
        raise TypeError(
            f"unexpected keywords {unknown}: "
            + (f"did you mean {', '.join(near)}? " if near else "")
            + f"Beside its own, this takes {', '.join(sorted(LoaderOptions.__annotations__))}"
        )
    reads = {name: value for name, value in options.items() if name in ReaderOptions.__annotations__}
    arrays = {name: value for name, value in options.items() if name not in reads}
    return cast(ReaderOptions, reads), cast(ArrayOptions, arrays)


def as_reader(data: Data | Reader, options: LoaderOptions, **place: Any) -> tuple[Reader, ArrayOptions]:
    """Return a reader, and those of the options that are for arrays.

    Parameters
    ----------
    data
        As for :class:`Reader`, or a reader, which is returned as it is.
    options
        Keywords as every adapter takes them.
    **place
        Keywords of :class:`Reader` that the adapter settles; None where nobody gave one.

    Raises
    ------
    TypeError
        There is no such keyword.
    OptionError
        A keyword is for the reader, though there is one.
    """
    reads, arrays = part_options(options)
    given = {**reads, **{name: value for name, value in place.items() if value is not None}}
    if not isinstance(data, Reader):
        return Reader(data, **given), arrays
    if given:
        raise OptionError(f"{', '.join(f'{name}=' for name in given)} goes with data: give it to Reader(…) instead")
    return data, arrays


class Loader:
    """Batches of a reader as dicts of arrays, in the reader's order.

    Iterating gives the batches of one epoch, as iterating over the reader does; the state is the reader's, after the
    batches that this loader has delivered.

    Parameters
    ----------
    reader
        Where batches come from. The loader moves its position and closes it.
    transform
        A function of a batch, a dict of arrays, called in threads ahead of the consumer; what it returns is
        delivered. It is called once for each batch, batches side by side.
    workers
        Threads that convert and transform; None for one a CPU (at most 8) where there is a transform or an image to
        decode, else 0: in the consumer's own thread, which costs microseconds.
    out
        How a framework takes arrays over; NumPy's own by default.
    **options
        See :class:`corgiarrow.arrays.ArrayOptions`.

    Raises
    ------
    OptionError, ColumnNotFoundError
        An option is out of its bounds, or names what is not there.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        transform: Transform | None = None,
        workers: int | None = None,
        out: Out | None = None,
        **options: Unpack[ArrayOptions],
    ):
        if transform is not None and not callable(transform):
            raise OptionError(f"transform={transform!r} must be a function of a batch")
        if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 0):
            raise OptionError(f"workers={workers!r} must be a whole number of at least 0")
        self._reader = reader
        self._converter = Converter(reader.schema, out=out, **options)
        self._transform = transform
        # Weak, so that a pass ends with the loop that drops it.
        self._pass: weakref.ref[Generator[Any, None, None]] | None = None
        heavy = transform is not None or bool(options.get("decode"))
        self._workers = workers if workers is not None else share_of_cpus() * heavy

    @property
    def reader(self) -> Reader:
        """Where batches come from."""
        return self._reader

    @property
    def transform(self) -> Transform | None:
        """The function of a batch, if there is one."""
        return self._transform

    @property
    def spec(self) -> dict[str, Any]:
        """Arrays of a batch, before the transform: see :attr:`corgiarrow.arrays.Converter.spec`."""
        return self._converter.spec

    def __len__(self) -> int:
        return len(self._reader)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the pass under way, if there is one, and close the reader."""
        self._end_pass()
        self._reader.close()

    def _end_pass(self) -> None:
        under_way = None if self._pass is None else self._pass()
        if under_way is not None:
            under_way.close()
        self._pass = None
        self._reader.end_pass()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pass": None}

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass: see :meth:`Reader.set_epoch`."""
        self._reader.set_epoch(epoch)

    def seek(self, epoch: int, step: int) -> None:
        """Begin the next pass at a step: see :meth:`Reader.seek`."""
        self._reader.seek(epoch, step)

    def state_dict(self) -> dict[str, int | str]:
        """Return the position after the batches delivered so far: see :meth:`Reader.state_dict`."""
        return self._reader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a saved position: see :meth:`Reader.load_state_dict`."""
        self._reader.load_state_dict(state)

    def __iter__(self) -> Iterator[Any]:
        self._end_pass()
        batches = self._batches(self._reader.slices())
        self._pass = weakref.ref(batches)
        return batches

    def _batches(self, slices: Slices) -> Generator[Any, None, None]:
        return self._in_threads(slices) if self._workers else self._inline(slices)

    def _inline(self, slices: Slices) -> Generator[Any, None, None]:
        """Convert in this thread: what a run of rows needs, once for all of its batches."""
        under_way: dict[int, tuple[pa.RecordBatch, int, Iterator[dict[str, Any]]]] = {}
        with closing(slices), self._position(slices) as delivered:
            for rows, start, stop, stream in slices:
                known, place, batches = under_way.pop(stream, (None, 0, iter(())))
                if known is not rows or place != start:
                    batches = self._converter.split(rows, start, self._reader.batch_size)
                batch = next(batches)
                if self._transform is not None:
                    batch = self._transform(batch)
                if rows.num_rows - stop >= self._reader.batch_size:
                    under_way[stream] = (rows, stop, batches)
                # So that rows which were all delivered do not stay while the next are waited for.
                del known, rows, batches
                delivered(self._reader.position)
                yield batch
                del batch

    def _in_threads(self, slices: Slices) -> Generator[Any, None, None]:
        executor = ThreadPoolExecutor(self._workers, thread_name_prefix="corgiarrow-loader")
        with closing(slices), self._position(slices) as delivered:
            try:
                for future, position in _ahead(self._submitted(executor, slices), self._workers):
                    batch = future.result()
                    del future
                    if not delivered(position):
                        return
                    yield batch
                    del batch
            finally:
                executor.shutdown(cancel_futures=True)

    def _submitted(self, executor: ThreadPoolExecutor, slices: Slices) -> Iterator[tuple[Future[Any], tuple[int, int]]]:
        """Hand batches to the threads; yield each with the position after it."""
        try:
            for part in slices:
                yield executor.submit(self._make, part.batch), self._reader.position
        except CorgiArrowError as error:
            # In its turn: what was read before a fault is delivered.
            failed = Future[Any]()
            failed.set_exception(error)
            yield failed, self._reader.position

    @contextmanager
    def _position(self, slices: Slices) -> Iterator[Callable[[tuple[int, int]], bool]]:
        """Keep the reader's position at what was delivered, though the pass is ahead, and though it fails."""
        last = self._reader.position

        def delivered(position: tuple[int, int]) -> bool:
            nonlocal last
            last = position
            return self._reader.mark(slices, position)

        try:
            yield delivered
        except BaseException:
            self._reader.mark(slices, last)
            raise

    def _make(self, batch: pa.RecordBatch) -> Any:
        arrays = self._converter(batch)
        return arrays if self._transform is None else self._transform(arrays)


def find_categories(
    data: Data, columns: Sequence[str], *, limit: int = 100_000, **options: Any
) -> dict[str, list[Any]]:
    """Read some columns once, and return the values of each, sorted, without null: for ``categories=``.

    Parameters
    ----------
    data
        As for :class:`Reader`.
    columns
        Names of the columns.
    limit
        Most values that a column may have.
    **options
        Options of :class:`Reader` that say how to read: ``filter``, ``schema``, ``storage_options``, …

    Raises
    ------
    OptionError
        A column has more than `limit` values.
    ColumnNotFoundError
        It is not in the data.
    """
    with Reader(data, columns=columns, shuffle="none", batch_size=65_536, **options) as reader:
        found = {field.name: pa.array([], _value_type(field.type)) for field in reader.schema}
        for batch in reader:
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                found[name] = _unique(name, found[name], column)
                if len(found[name]) - found[name].null_count > limit:
                    raise OptionError(
                        f"column {name!r} has more than limit={limit} values: it is no category; raise the limit, or "
                        "read it as it is"
                    )
    return {name: sorted(values.drop_null().to_pylist()) for name, values in found.items()}


def _unique(name: str, known: pa.Array, column: pa.Array) -> pa.Array:
    try:
        values = column.unique()
        if isinstance(values, pa.DictionaryArray):
            values = values.dictionary_decode()
        return pa.concat_arrays([known, values]).unique()
    except pa.ArrowNotImplementedError:
        raise OptionError(f"column {name!r} is of type {column.type}, whose values are no categories") from None


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


_Item = TypeVar("_Item")


def _ahead(items: Iterable[_Item], count: int) -> Iterator[_Item]:
    """Give items, each when `count` more were taken."""
    taken = deque[_Item]()
    for item in items:
        taken.append(item)
        if len(taken) > count:
            yield taken.popleft()
    while taken:
        yield taken.popleft()

"""The contract: which arrays a schema becomes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from decimal import Decimal
from functools import partial
from math import prod
from typing import Any, Unpack

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from corgiarrow.arrays import leaves
from corgiarrow.arrays.casts import cast_checked, holds_all
from corgiarrow.arrays.leaves import Leaf, Nulls
from corgiarrow.arrays.options import DECIMALS, NULL_POLICIES, ArrayOptions, Image, Pad, is_whole
from corgiarrow.arrays.sparse import SparseRows, pairs_of
from corgiarrow.arrays.values import Array, ArraySpec, NumpyOut, Out, Ragged, map_leaves
from corgiarrow.errors import ColumnNotFoundError, ConversionError, MissingExtraError, OptionError

_VALID = "_valid"
_MAX_UNSCALED = 18
"""Digits that every int64 has room for."""


class Converter:
    """Turns record batches into dicts of arrays.

    Which arrays come, of which dtypes and shapes, depends on the schema and the options only; :attr:`spec` tells.
    No value changes, but where an option asks for it. Arrays share Arrow's memory where that is possible without a
    change; they are the caller's, to change in place, and nothing here writes to them again.

    Parameters
    ----------
    schema
        Schema of the batches.
    out
        How a framework takes arrays over; NumPy's own by default.
    **options
        See :class:`ArrayOptions`.

    Raises
    ------
    OptionError
        An option does not fit its column, or a column has no array that could hold it.
    ColumnNotFoundError
        An option names a column that is not there.
    """

    def __init__(self, schema: pa.Schema, *, out: Out | None = None, **options: Unpack[ArrayOptions]):
        unknown = sorted(set(options) - set(ArrayOptions.__annotations__))
        if unknown:
            raise TypeError(f"unexpected options {unknown}: choose from {', '.join(ArrayOptions.__annotations__)}")
        self.schema = schema
        self.options = options
        self._out = out or NumpyOut()
        asked = _Asked(options, schema)
        self._columns: dict[str, _Column | _Stack | SparseRows] = {
            name: _Column(place, leaf) for name, place, leaf in asked.fields(list(schema), "")
        }
        for name, members in asked.stacks.items():
            self._stack(name, members, asked)
        for name, pair in asked.sparse.items():
            if name in self._columns:
                raise OptionError(f"sparse={{{name!r}: …}} has the name of another array: choose another")
            self._columns[name] = SparseRows(name, pair, schema, asked.dtype(name))
        asked.check_all_used(self._columns)

    @property
    def spec(self) -> dict[str, Any]:
        """For each name the :class:`ArraySpec` of its array, :class:`Ragged` of two, or a dict of them for a struct.

        Sparse rows have a :class:`SparseSpec`.
        """
        return {name: column.spec for name, column in self._columns.items()}

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return the arrays of one batch.

        Raises
        ------
        ConversionError
            Values do not fit: the text names column, value and remedy.
        """
        return {
            name: map_leaves(self._out.whole, column.convert(batch)) for name, column in self._columns.items()
        }

    def split(self, rows: pa.RecordBatch, first: int, size: int) -> Iterator[dict[str, Any]]:
        """Yield the arrays of the batches of `size` rows that follow row number `first`; the last may be shorter.

        What all of them need is done once.
        """
        names = list(self._columns)
        parts = [self._parts(column, rows, first, size) for column in self._columns.values()]
        for values in zip(*parts, strict=True):
            yield dict(zip(names, values, strict=True))

    def _parts(
        self, column: "_Column | _Stack | SparseRows", rows: pa.RecordBatch, first: int, size: int
    ) -> Iterable[Any]:
        try:
            if isinstance(column, _Stack):
                stacked = column.split(rows, first, size)
                if stacked is not None:
                    return map(self._out.whole, stacked)
            elif (shared := column.shared(rows)) is not None:
                return self._out.split(shared[first:], size)
        except ConversionError:
            pass  # So that the batch raises that holds the value.
        whole = partial(map_leaves, self._out.whole)
        return (whole(column.convert(rows.slice(n, size))) for n in range(first, rows.num_rows, size))

    def _stack(self, name: str, members: Sequence[str], asked: "_Asked") -> None:
        if isinstance(members, str) or not isinstance(members, Sequence) or len(set(members)) < len(members):
            raise OptionError(f"stack={{{name!r}: {members!r}}} must be a list of names, each once")
        missing = [m for m in members if m not in self._columns]
        if missing or not members:
            raise ColumnNotFoundError(
                f"stack={{{name!r}: …}} names {missing}, but has to name some of: {', '.join(self._columns)}"
            )
        found: list[_Column] = []
        for member in members:
            column = self._columns.pop(member)
            spec = column.spec
            numbers = isinstance(spec, ArraySpec) and spec.dtype.kind in "fiub" and len(spec.shape) <= 2
            if not isinstance(column, _Column) or not numbers:
                kind = self.schema.field(member).type if member in self.schema.names else spec
                remedy = "shape= or pad=" if isinstance(spec, Ragged) else "categories="
                raise OptionError(
                    f"stack={{{name!r}: …}} takes columns of numbers, or of vectors of them, but {member!r} is "
                    f"{kind}: leave it out, or give {remedy} for it"
                )
            found.append(column)
        if name in self._columns:
            raise OptionError(f"stack={{{name!r}: …}} has the name of a column: choose another")
        dtypes = [column.spec.dtype for column in found]
        given = asked.dtype(name)
        dtype = given or np.result_type(*dtypes)
        for member, each in zip(members, dtypes, strict=True):
            if given is None and not holds_all(dtype, each):
                raise OptionError(
                    f"stack={{{name!r}: …}} has no dtype that holds all values: {member!r} is {each}, the others make "
                    f"it {dtype}; give dtype={{{name!r}: 'float32'}}, say"
                )
        self._columns[name] = _Stack(name, found, dtype)


class _Column:
    """One column of a batch, and its leaf."""

    def __init__(self, place: int, leaf: Leaf):
        self._place, self._leaf = place, leaf
        self.spec = leaf.spec

    def convert(self, batch: pa.RecordBatch) -> Any:
        return self._leaf.convert(batch.column(self._place))

    def shared(self, rows: pa.RecordBatch) -> Array | None:
        return self._leaf.shared(rows.column(self._place))


class _Stack:
    """Columns side by side as one matrix."""

    def __init__(self, name: str, members: Sequence[_Column], dtype: np.dtype[Any]):
        self._name, self._members, self._dtype = name, members, dtype
        widths = [column.spec.shape[1] if len(column.spec.shape) == 2 else 1 for column in members]
        self._ends = np.cumsum(widths).tolist()
        self.spec = ArraySpec(dtype, (None, self._ends[-1]))

    def convert(self, batch: pa.RecordBatch) -> Array:
        return self._side_by_side([column.convert(batch) for column in self._members])

    def split(self, rows: pa.RecordBatch, first: int, size: int) -> Iterator[Array] | None:
        """Matrices of the batches that follow row number `first`; None where a member has to be converted by itself."""
        parts = []
        for column in self._members:
            shared = column.shared(rows)
            if shared is None:
                return None
            parts.append(shared)
        ends = range(first, rows.num_rows, size)
        return (self._side_by_side([part[n : n + size] for part in parts]) for n in ends)

    def _side_by_side(self, parts: Sequence[Array]) -> Array:
        parts = [cast_checked(part, self._dtype, self._name) for part in parts]
        if self._ends[-1] == len(parts) and all(part.ndim == 1 for part in parts):
            # Half the time of writing column by column: what is turned lies in the cache.
            return np.ascontiguousarray(np.array(parts).T)
        return np.concatenate([part[:, None] if part.ndim == 1 else part for part in parts], axis=1)


class _Asked:
    """The options, looked up by the path of a column or field."""

    def __init__(self, options: ArrayOptions, schema: pa.Schema):
        self._options: dict[str, dict[str, Any]] = {}
        self._defaults = {"nulls": "error", "decimals": "objects"}
        self._kinds: dict[str, pa.DataType] = {}
        self._used: set[tuple[str, str]] = set()
        for option, given in options.items():
            if option == "ragged":
                self._options[option] = dict.fromkeys(_names(given), True)
            elif option in self._defaults and isinstance(given, str):
                self._defaults[option] = given
            else:
                self._options[option] = _by_name(option, given)
        for option, allowed in (("nulls", NULL_POLICIES), ("decimals", DECIMALS)):
            for value in (self._defaults[option], *self._options.get(option, {}).values()):
                if value not in allowed:
                    raise OptionError(f"{option}={value!r} must be one of: {', '.join(allowed)}")
        for name in self._options.get("fill_null", {}):
            if name in self._options.get("nulls", {}):
                raise OptionError(f"nulls= and fill_null= both name {name!r}: choose one")
        self.stacks = self._options.pop("stack", {})
        self.sparse = pairs_of(self._options.pop("sparse", {}), schema)
        self._within_sparse = {column for pair in self.sparse.values() for column in pair[:2]}

    def _given(self, option: str, path: str) -> Any:
        """What was asked for a path, None for nothing. Who asks must heed it."""
        found = self._options.get(option, {}).get(path)
        if found is not None:
            self._used.add((option, path))
        return found

    def check_all_used(self, names: Iterable[str]) -> None:
        """Raise for options that name nothing that there is, or what they do not fit."""
        known = {*self._kinds, *names}
        for option, named in self._options.items():
            missing = sorted(set(named) - known)
            if missing:
                raise ColumnNotFoundError(
                    f"{option}= names {missing}, but the batches have: {', '.join(sorted(known)[:50])}"
                )
            for name in named:
                if (option, name) not in self._used:
                    kind = self._kinds.get(name)
                    remedy = "name its fields" if kind and pa.types.is_struct(_bare(kind)) else "leave it out"
                    of = "what is made here" if kind is None else f"a column of type {kind}"
                    raise OptionError(f"{option}={{{name!r}: …}} does not go with {of}: {remedy}")

    def dtype(self, path: str) -> np.dtype[Any] | None:
        """The dtype that was asked for."""
        found = self._given("dtype", path)
        if found is None:
            return None
        try:
            dtype: np.dtype[Any] = np.dtype(found)
        except (TypeError, ValueError):
            raise OptionError(
                f"dtype={{{path!r}: {found!r}}} is no dtype that NumPy knows: give a name, such as 'float32'"
            ) from None
        if dtype.kind not in "fiub":
            raise OptionError(f"dtype={{{path!r}: {found!r}}} must be a dtype of numbers or booleans")
        return dtype

    def fields(self, fields: Sequence[pa.Field], prefix: str) -> list[tuple[str, int, Leaf]]:
        """Name, place and leaf of each array that columns, or fields of a struct, become."""
        names = [field.name for field in fields]
        duplicates = sorted({prefix + name for name in names if names.count(name) > 1})
        if duplicates:
            raise OptionError(f"columns {duplicates} are there more than once, so no dict can hold them")
        found: list[tuple[str, int, Leaf]] = []
        for place, field in enumerate(fields):
            path = f"{prefix}{field.name}"
            self._kinds[path] = field.type
            if not prefix and path in self._within_sparse:
                continue
            found.append((field.name, place, self.leaf(field.type, path)))
            if self._policy(path) == "mask" and not pa.types.is_struct(_bare(field.type)):
                valid = f"{field.name}{_VALID}"
                if valid in names:
                    raise OptionError(
                        f"nulls='mask' adds a column {prefix + valid!r}, but there is one already: choose another "
                        f"policy for {path!r}"
                    )
                found.append((valid, place, leaves.Valid()))
        return found

    def _policy(self, path: str) -> str:
        if path in self._options.get("fill_null", {}):
            return "fill"
        return str(self._options.get("nulls", {}).get(path, self._defaults["nulls"]))

    def _heeded_policy(self, path: str) -> str:
        self._used |= {("nulls", path), ("fill_null", path)}
        return self._policy(path)

    def _null_value(self, kind: pa.DataType, path: str) -> pa.Scalar | None:
        """What takes the place of nulls in an array of a flat type; None where they raise."""
        policy = self._heeded_policy(path)
        floating = pa.types.is_floating(kind)
        if policy == "nan" and not floating:
            self._refuse_nan(path, f"it is {kind}")
            return None
        if policy == "error":
            return None
        if policy == "nan":
            return pa.scalar(float("nan"), kind)
        return pa.scalar(_zero(kind), kind) if policy == "mask" else self._fill(kind, path)

    def _refuse_nan(self, path: str, why: str) -> None:
        if path in self._options.get("nulls", {}):
            raise OptionError(
                f"nulls={{{path!r}: 'nan'}} goes with floating-point columns, but {why}: give "
                f"fill_null={{{path!r}: value}}, or 'mask'"
            )

    def _fill(self, kind: pa.DataType, path: str) -> pa.Scalar:
        value = self._given("fill_null", path)
        try:
            return _exactly([value], kind)[0]
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise OptionError(f"fill_null={{{path!r}: {value!r}}} is no {kind}: {error}") from None

    def leaf(self, kind: pa.DataType, path: str, inside: bool = False) -> Leaf:
        """Return the leaf of a column, or (`inside`) of the values of a list.

        A null row that is masked hides what is below it, so within lists the policy ``"mask"`` is ``"error"``.
        """
        if isinstance(kind, pa.FixedShapeTensorType):
            return leaves.Stored(self._tensor(kind.value_type, path, kind.shape, kind.permutation, inside))
        if isinstance(kind, pa.BaseExtensionType):
            return leaves.Stored(self.leaf(_bare(kind), path, inside))
        if not pa.types.is_nested(kind) and (categories := self._given("categories", path)) is not None:
            return self._codes(kind, path, categories, inside)
        if pa.types.is_dictionary(kind):
            return leaves.Stored(self.leaf(kind.value_type, path, inside))
        if not inside and (image := self._given("decode", path)) is not None:
            return self._images(kind, path, image)
        for fits, make in (
            (_is_numeric, self._numbers),
            (pa.types.is_decimal, self._decimal),
            (_is_bytes, self._bytes),
            (pa.types.is_fixed_size_list, self._fixed_size_list),
            (_is_list, self._list),
        ):
            if fits(kind):
                return make(kind, path, inside)
        if pa.types.is_struct(kind):
            return leaves.Structs(self.fields(list(kind.fields), f"{path}."))
        raise OptionError(f"column {path!r} is of type {kind}, which becomes no array: leave it out of columns=")

    def _nulls_of(self, kind: pa.DataType, path: str, inside: bool = False) -> Nulls:
        fill = None if inside and self._policy(path) == "mask" else self._null_value(kind, path)
        return Nulls(path, fill, inside=inside)

    def _numbers(self, kind: pa.DataType, path: str, inside: bool) -> Leaf:
        stored, dtype = _dtypes(kind)
        asked = self.dtype(path)
        if asked is not None and dtype.kind not in "fiub":
            raise OptionError(f"dtype={{{path!r}: '{asked}'}} goes with numbers, but the column is {kind}")
        return leaves.Numbers(self._nulls_of(kind, path, inside), stored, asked or dtype)

    def _codes(self, kind: pa.DataType, path: str, given: Any, inside: bool) -> Leaf:
        values = _bare(kind.value_type if pa.types.is_dictionary(kind) else kind)
        if isinstance(given, (str, bytes, Mapping, Set)) or not isinstance(given, Iterable):
            raise OptionError(f"categories={{{path!r}: {given!r}}} must be a list of values")
        given = given.to_pylist() if isinstance(given, pa.Array) else list(given)
        if not given:
            raise OptionError(f"categories={{{path!r}: []}} must be some values")
        try:
            categories = _exactly(given, values)
            unique = categories.unique()
            pc.index_in(categories, value_set=categories)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise OptionError(f"categories={{{path!r}: …}} are no {values}: {error}") from None
        if categories.null_count or len(unique) < len(categories):
            raise OptionError(f"categories={{{path!r}: …}} must be values without nulls, each once")
        policy, fill = self._heeded_policy(path), None
        if policy == "nan":
            self._refuse_nan(path, "codes are whole numbers")
        elif policy == "mask" and not inside:
            fill = 0
        elif policy == "fill":
            value = self._fill(values, path)
            fill = pc.index_in(pa.repeat(value, 1), value_set=categories)[0].as_py()
            if fill is None:
                raise OptionError(f"fill_null={{{path!r}: {value}}} must be one of its categories")
        dtype = self.dtype(path) or np.dtype(np.int32)
        return leaves.Codes(Nulls(path, inside=inside), categories, fill, dtype)

    def _images(self, kind: pa.DataType, path: str, given: Any) -> Leaf:
        image = given if isinstance(given, Image) else Image(mode=given)
        if not (pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
            raise OptionError(f"decode={{{path!r}: …}} takes a column of binary, but it is {kind}")
        if self._heeded_policy(path) == "fill" or self._options.get("nulls", {}).get(path) == "nan":
            raise OptionError(f"{path!r} holds images, whose nulls can be masked only: give nulls={{{path!r}: 'mask'}}")
        try:
            import PIL.Image  # noqa: F401
        except ImportError:
            raise MissingExtraError("decode= needs Pillow: pip install 'corgiarrow[images]'") from None
        return leaves.Images(Nulls(path, None, self._policy(path) == "mask"), image)

    def _decimal(self, kind: pa.DataType, path: str, inside: bool) -> Leaf:
        how = self._given("decimals", path) or self._defaults["decimals"]
        nulls = self._nulls_of(kind, path, inside)
        if how == "objects":
            return leaves.Objects(nulls, Decimal)
        if how == "unscaled" and kind.precision > _MAX_UNSCALED:
            raise OptionError(
                f"decimals={{{path!r}: 'unscaled'}} takes up to {_MAX_UNSCALED} digits, but it is {kind}: choose "
                "'objects' or 'float64'"
            )
        return leaves.Decimals(nulls, kind, how == "unscaled")

    def _bytes(self, kind: pa.DataType, path: str, inside: bool) -> Leaf:
        nulls = self._nulls_of(kind, path, inside)
        text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        shape = None if inside or text else self._shape(path)
        if pa.types.is_fixed_size_binary(kind):
            width = kind.byte_width
            shape = shape or [width]
            if prod(shape) != width:
                raise OptionError(f"shape={{{path!r}: {shape}}} takes {prod(shape)} bytes, but a row has {width}")
        if shape is not None:
            if nulls.fill is not None and self._policy(path) == "mask":
                nulls = Nulls(path, pa.scalar(bytes(prod(shape)), kind))
            if nulls.fill is not None and len(nulls.fill.as_py()) != prod(shape):
                raise OptionError(f"fill_null={{{path!r}: {nulls.fill}}} must have the {prod(shape)} bytes of a row")
            return leaves.Bytes(nulls, shape)
        if self._given("ragged", path):
            return leaves.RaggedBytes(nulls)
        return leaves.Objects(nulls, str if text else bytes)

    def _shape(self, path: str) -> list[int] | None:
        given = self._given("shape", path)
        if given is None:
            return None
        shape = list(given) if isinstance(given, (list, tuple)) else [given]
        if not shape or not all(is_whole(n) and n > 0 for n in shape):
            raise OptionError(f"shape={{{path!r}: {given!r}}} must be whole numbers of at least 1")
        return shape

    def _fixed_size_list(self, kind: pa.DataType, path: str, inside: bool) -> Leaf:
        shape = None if inside else self._shape(path)
        if shape is not None and prod(shape) != kind.list_size:
            raise OptionError(f"shape={{{path!r}: {shape}}} takes {prod(shape)} values, but a row has {kind.list_size}")
        return self._tensor(kind.value_type, path, shape or [kind.list_size], inside=inside)

    def _tensor(
        self,
        kind: pa.DataType,
        path: str,
        shape: Sequence[int],
        permutation: Sequence[int] | None = None,
        inside: bool = False,
    ) -> Leaf:
        values = self.leaf(kind, path, inside=True)
        if not isinstance(values.spec, ArraySpec):
            return leaves.Lists(self._row_nulls(path, inside), values)
        return leaves.Tensors(Nulls(path, inside=inside), values, shape, permutation, self._blank(kind, path, inside))

    def _blank(self, kind: pa.DataType, path: str, inside: bool) -> Any:
        """What a null row of fixed shape consists of; None where it raises. Each value of it is of type `kind`."""
        values = self.leaf(kind, path, inside=True)
        if self._heeded_policy(path) == "mask":
            if inside:
                return None
            spec = values.spec
            return np.zeros((), spec.dtype)[()] if spec.content is None else spec.content()
        while kind != (flat := _value_type(kind)):
            kind = flat
        fill = self._null_value(kind, path)
        return None if fill is None else self.leaf(kind, path, inside=True).convert(pa.repeat(fill, 1))[0]

    def _row_nulls(self, path: str, inside: bool) -> Nulls:
        return Nulls(path, None, self._heeded_policy(path) == "mask" and not inside, inside)

    def _list(self, kind: pa.DataType, path: str, inside: bool) -> Leaf:
        if pa.types.is_map(kind):
            entries = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
            values = self.leaf(entries, path, inside=True)
        else:
            values = self.leaf(kind.value_type, path, inside=True)
        shape, pad = (None, None) if inside else (self._shape(path), self._given("pad", path))
        if shape is not None and pad is not None:
            raise OptionError(f"shape= and pad= both name {path!r}: choose one")
        plain = isinstance(values.spec, ArraySpec)
        if (shape is not None or pad is not None) and not plain:
            raise OptionError(f"shape= and pad= take lists of numbers, but column {path!r} is {kind}")
        if shape is not None:
            blank = self._blank(kind.value_type, path, inside)
            return leaves.Tensors(Nulls(path), values, shape, blank=blank)
        lists = leaves.Lists(self._row_nulls(path, inside), values)
        if pad is None:
            return lists
        if values.spec.dtype.kind not in "fiub":
            raise OptionError(f"pad={{{path!r}: …}} takes lists of numbers, but it is {kind}")
        pad = pad if isinstance(pad, Pad) else Pad(length=pad)
        try:
            return leaves.Padded(Nulls(path), lists, values, pad)
        except (ConversionError, OverflowError, TypeError):
            raise OptionError(f"pad={{{path!r}: {pad}}} has a value that is no {values.spec.dtype}") from None


def _by_name(option: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise OptionError(f"{option}={given!r} must be a dict by name of column: {option}={{'name': …}}")
    nothing = [name for name, value in given.items() if value is None]
    if nothing:
        raise OptionError(f"{option}={{{nothing[0]!r}: None}} asks for nothing: leave it out")
    return dict(given)


def _names(given: Any) -> list[str]:
    if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
        raise OptionError(f"ragged={given!r} must be a list of names")
    return list(given)


def _exactly(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an array of a type; raise ValueError where Arrow would cut off a part of one."""
    found = kept = pa.array(values, kind)
    if pa.types.is_floating(kind):
        cast_checked(np.array([v for v in values if v is not None]), np.dtype(kind.to_pandas_dtype()), "given")
        return found
    if pa.types.is_integer(kind):
        if found.to_pylist() != values:
            raise ValueError("a part would be lost")
        return found
    given = pa.array(values)
    if pa.types.is_temporal(kind) and pa.types.is_integer(given.type):
        return found
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(given.type):
        # Both are UTC: a cast that drops a time zone would go to local time.
        given, kept = (x.view(pa.timestamp(x.type.unit)) for x in (given, found))
    if not kept.cast(given.type).equals(given):
        raise ValueError("a part would be lost")
    return found


def _value_type(kind: pa.DataType) -> pa.DataType:
    """Type of what lies within a type, or the type itself."""
    if pa.types.is_fixed_size_list(kind) or pa.types.is_dictionary(kind):
        return kind.value_type
    return _bare(kind)


def _bare(kind: pa.DataType) -> pa.DataType:
    """Return the type that an extension type stands for."""
    if isinstance(kind, pa.Bool8Type):
        return pa.bool_()
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def _dtype(name: str) -> np.dtype[Any]:
    return np.dtype(name)


def _dtypes(kind: pa.DataType) -> tuple[np.dtype[Any], np.dtype[Any]]:
    """Dtype of a flat type's buffer, and of its array."""
    if pa.types.is_boolean(kind):
        return _dtype("?"), _dtype("?")
    width = _dtype(f"i{kind.bit_width // 8}")
    if pa.types.is_date32(kind):
        return width, _dtype("M8[D]")
    if pa.types.is_date64(kind):
        return _dtype("M8[ms]"), _dtype("M8[ms]")
    if pa.types.is_timestamp(kind):
        return _dtype(f"M8[{kind.unit}]"), _dtype(f"M8[{kind.unit}]")
    if pa.types.is_duration(kind) or pa.types.is_time(kind):
        unit = _dtype(f"m8[{kind.unit}]")
        return (unit if kind.bit_width == 64 else width), unit
    number = np.dtype(kind.to_pandas_dtype())
    return number, number


def _is_numeric(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_duration(kind)
        or pa.types.is_time(kind)
    )


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind))


def _zero(kind: pa.DataType) -> Any:
    if pa.types.is_decimal(kind):
        return Decimal(0)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return ""
    if _is_bytes(kind):
        return bytes(kind.byte_width) if pa.types.is_fixed_size_binary(kind) else b""
    return False if pa.types.is_boolean(kind) else 0

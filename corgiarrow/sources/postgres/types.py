"""From types of PostgreSQL to Arrow's: which column becomes what, by the table's definition alone."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from corgiarrow.errors import OptionError, ReadError
from corgiarrow.sources.postgres.connections import quoted
from corgiarrow.sources.postgres.packed import packs, unpacked

_TEXTS = {25, 1043, 19}
_AS_TEXT = {18, 1042, 114, 142, 3802}
"""``"char"``, ``char(n)``, ``json``, ``xml``, ``jsonb``."""
_NUMERIC, _OID = 1700, 26
_PLAIN = {
    16: pa.bool_(),
    21: pa.int16(),
    23: pa.int32(),
    20: pa.int64(),
    700: pa.float32(),
    701: pa.float64(),
    17: pa.binary(),
    1082: pa.date32(),
    1083: pa.time64("us"),
    1114: pa.timestamp("us"),
    1184: pa.timestamp("us", tz="UTC"),
    2950: pa.uuid(),
}
"""Types that come from ADBC as they are, by their numbers in ``pg_type``, which never change."""

_ANY_NUMERIC = pa.decimal128(38, 18)
"""Type of ``numeric`` without precision and scale: what Spark's reader takes."""

_VECTORS = {"vector", "halfvec"}
"""Types of the extension pgvector."""

_CASTS = {
    pa.string(): "text",
    pa.float64(): "float8",
    pa.float32(): "float4",
    pa.int64(): "int8",
    pa.int32(): "int4",
    pa.list_(pa.float64()): "float8[]",
    pa.list_(pa.float32()): "float4[]",
}
"""What ``schema=`` may ask of a type that has no Arrow type of its own; the server casts."""

_LEAST_DAY = -2_440_588
_LEAST_US = -211_000_000_000_000_000
"""Days and microseconds before 1970 that PostgreSQL has (4713 BC): earlier ones are infinities, which ADBC wraps."""


Dimension: TypeAlias = int | Mapping[str, int] | Literal["first"] | None
"""Length of arrays of floats: of all columns, by column, that of the first array, or any."""


@dataclass(frozen=True, slots=True)
class ServerType:
    """A row of ``pg_type``.

    Attributes
    ----------
    oid, name, kind
        Its number, name, and ``b``, ``d`` (domain), ``e`` (enum), ….
    base, base_modifier
        What a domain stands for.
    element
        Of an array's elements, else 0.
    """

    oid: int
    name: str
    kind: str
    base: int
    base_modifier: int
    element: int


class NotPackedError(Exception):
    """Arrays of a column hold nulls, or have more than one dimension: :meth:`Column.plain` reads them.

    Attributes
    ----------
    column
        The column.
    """

    def __init__(self, column: "Column"):
        super().__init__(column.field.name)
        self.column = column


@dataclass(frozen=True, slots=True)
class Column:
    """A column to read.

    Attributes
    ----------
    field
        What it becomes.
    expression
        SQL that gives its values.
    packed
        Type of the elements of arrays that are sent as bytes; None for what the driver takes apart.
    """

    field: pa.Field
    expression: str
    packed: pa.DataType | None = None

    @property
    def sent(self) -> str:
        """SQL that gives what :meth:`fit` takes."""
        return self.expression if self.packed is None else f"pg_catalog.array_send({self.expression})"

    def plain(self) -> "Column":
        """Return this column, taken apart by the driver."""
        return replace(self, packed=None)

    @property
    def checked(self) -> bool:
        """Whether :meth:`fit` has to look at what comes even where its type fits."""
        return bool(pa.types.is_date(self.field.type) or pa.types.is_timestamp(self.field.type))

    def fit(self, values: pa.Array) -> pa.Array:
        """Return what the server sent as an array of the column's type.

        Raises
        ------
        ReadError
            A value does not fit; the text names the column.
        NotPackedError
            It has to be sent plainly.
        """
        kind = self.field.type
        if self.packed is not None:
            lists = unpacked(values, self.packed)
            if lists is None:
                raise NotPackedError(self)
            values = lists
        if values.type.equals(kind) and not self.checked:
            return values
        if isinstance(values.type, pa.OpaqueType):
            values = values.storage
        if pa.types.is_decimal(kind) and pa.types.is_string(values.type):
            self._check_digits(values)
        try:
            values = _fixed(values, kind) if pa.types.is_fixed_size_list(kind) else values.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ReadError(f"column {self.field.name!r} does not fit {kind}: {error}; {self._remedy()}") from None
        if self.checked:
            self._check_finite(values)
        return values

    def _check_digits(self, texts: pa.Array) -> None:
        """Raise where a number has too many digits before the point: Arrow's cast of texts would wrap it."""
        kind = self.field.type
        digits = pc.utf8_length(pc.replace_substring_regex(texts, r"^-?0*|\..*$|[A-Za-z]", ""))
        most = pc.max(digits).as_py()
        if most is not None and most > kind.precision - kind.scale:
            raise ReadError(
                f"column {self.field.name!r} does not fit {kind}: a number has {most} digits before the point; "
                f"{self._remedy()}"
            )

    def _check_finite(self, values: pa.Array) -> None:
        kind = self.field.type
        whole, least = (pa.int32(), _LEAST_DAY) if pa.types.is_date(kind) else (pa.int64(), _LEAST_US)
        first = pc.min(values.view(whole)).as_py()
        if first is not None and first < least:
            raise ReadError(
                f"column {self.field.name!r} holds an infinity, which {kind} cannot: leave these rows out by "
                f"where='isfinite({quoted(self.field.name)})'"
            )

    def _remedy(self) -> str:
        name, kind = self.field.name, self.field.type
        if pa.types.is_decimal(kind):
            return f"read it as another type, as by schema={{{name!r}: pa.decimal256(76, 30)}} or pa.float64()"
        if pa.types.is_fixed_size_list(kind):
            return f"its arrays have other lengths than dimension={kind.list_size}, or more than one dimension"
        return "ask for another type by schema="


def _fixed(values: pa.ListArray, kind: pa.DataType) -> pa.Array:
    """Make lists of one length of lists, sharing their memory where none is null."""
    length = kind.list_size
    if values.null_count or len(values.flatten()) != length * len(values):
        return values.cast(kind)  # It puts gaps where lists are null, and raises where one has another length.
    if not pc.all(pc.equal(pc.list_value_length(values), length)).as_py() and len(values):
        return values.cast(kind)
    return pa.FixedSizeListArray.from_arrays(values.flatten(), type=kind)


class TypeMap:
    """Makes columns of a table's attributes.

    Parameters
    ----------
    types
        What the server has, by number.
    schema
        Types that the user asks for, by column.
    dimension
        Length of all arrays of a column of floats, by column, or of all such columns; None leaves lists.

    Raises
    ------
    OptionError
        `dimension` is out of its bounds.
    """

    def __init__(
        self,
        types: Mapping[int, ServerType],
        schema: Mapping[str, pa.DataType],
        dimension: int | Mapping[str, int] | None,
    ):
        self._types = types
        self._schema = schema
        self._dimension = dimension
        none = [1 if dimension is None else dimension]
        for length in dimension.values() if isinstance(dimension, Mapping) else none:
            if isinstance(length, bool) or not isinstance(length, int) or length < 1:
                raise OptionError(
                    f"dimension={dimension!r}: the length of arrays must be a whole number of at least 1, or 'first'"
                )

    def column(self, name: str, oid: int, modifier: int, not_null: bool, shown: str) -> Column:
        """Return a column, from its row of ``pg_attribute``.

        Raises
        ------
        OptionError
            There is no Arrow type for it.
        """
        kind, cast = self._arrow(name, oid, modifier)
        asked = self._schema.get(name)
        if kind is None:
            if asked not in _CASTS:
                raise OptionError(
                    f"column {name!r} is of type {shown}, which has no Arrow type: leave it out by columns=, or let "
                    f"the server cast it, as by schema={{{name!r}: pa.string()}}; it can be "
                    f"{', '.join(map(str, _CASTS))}"
                )
            kind, cast = asked or pa.string(), _CASTS[asked]
        length = self._length(name, kind)
        if length is not None:
            kind = pa.list_(kind.value_type, length)
        return Column(
            pa.field(name, kind if asked is None else asked, nullable=not not_null),
            f"{quoted(name)}{f'::{cast}' if cast else ''}",
            kind.value_type if packs(kind) else None,
        )

    def _length(self, name: str, kind: pa.DataType) -> int | None:
        is_vector = has_lengths(kind)
        if isinstance(self._dimension, int):
            return self._dimension if is_vector else None
        length = (self._dimension or {}).get(name)
        if length is not None and not is_vector:
            raise OptionError(f"dimension={self._dimension}: column {name!r} holds no arrays of float4 or float8")
        return length

    def _arrow(self, name: str, oid: int, modifier: int) -> tuple[pa.DataType | None, str]:
        """Return the Arrow type of a server's type, or None, and what the server has to cast it to first, or ''."""
        found = self._types.get(oid)
        if found is None:
            return None, ""
        if found.kind == "d":
            return self._arrow(name, found.base, modifier if found.base_modifier == -1 else found.base_modifier)
        if found.kind == "e" or oid in _AS_TEXT:
            return pa.string(), "text"
        if oid in _TEXTS:
            return pa.string(), ""
        if oid in _PLAIN:
            return _PLAIN[oid], ""
        if oid == _OID:
            return pa.int64(), "int8"
        if oid == _NUMERIC:
            return _decimal(modifier), ""
        if found.name in _VECTORS:
            return pa.list_(pa.float32(), modifier) if modifier > 0 else pa.list_(pa.float32()), "float4[]"
        if found.element in _PLAIN or found.element in _TEXTS:
            return pa.list_(_PLAIN.get(found.element, pa.string())), ""
        return None, ""


def has_lengths(kind: pa.DataType) -> bool:
    """Whether values of a type are arrays of floats, of any length."""
    return bool(pa.types.is_list(kind) and pa.types.is_floating(kind.value_type))


def _decimal(modifier: int) -> pa.DataType | None:
    """Return the type of ``numeric(precision, scale)``, by its modifier; None for more than 76 digits."""
    if modifier < 0:
        return _ANY_NUMERIC
    precision, scale = (modifier - 4) >> 16 & 0xFFFF, (modifier - 4) & 0x7FF
    scale -= (scale & 0x400) << 1  # Eleven bits with a sign, since PostgreSQL 15.
    precision, scale = max(precision - min(scale, 0), scale), max(scale, 0)
    if precision > 76:
        return None
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)

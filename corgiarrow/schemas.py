"""One schema for files that disagree: what is widened, what is filled with nulls, and what raises.

Two types are unified only where every value of both keeps its meaning and its exact value; the rules are tabled in
``docs/schema.md``.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from corgiarrow.errors import ColumnNotFoundError, OptionError, SchemaMismatchError

SchemaRequest: TypeAlias = pa.Schema | Mapping[str, pa.DataType]
"""Types to give to columns, by name."""

_EXTENSION_KEYS = (b"ARROW:extension:name", b"ARROW:extension:metadata")
_FLOAT_OF_INT_BITS = {8: 32, 16: 32, 32: 64}
"""Bits of the narrowest float that holds every integer of so many bits exactly (``float16`` is no one's choice)."""


@dataclass(frozen=True, slots=True)
class FileLayout:
    """What one file, or several that agree, stores.

    Attributes
    ----------
    schema
        As pyarrow reads it, without metadata but for names of extension types that are not registered here.
    paths
        Dotted path of each Parquet leaf column.
    """

    schema: pa.Schema
    paths: tuple[str, ...]

    def leaves(self, name: str) -> range:
        """Numbers of the leaf columns below top-level column `name`; empty when the file does not have it."""
        first = 0
        for column in self.schema:
            stop = first + sum(1 for _ in leaf_types(column.type))
            if column.name == name:
                return range(first, stop)
            first = stop
        return range(0)


@dataclass(frozen=True, slots=True)
class Column:
    """A column to read.

    Attributes
    ----------
    field
        Its name as asked (``"a.b"`` for field ``b`` of struct column ``a``), delivered type and nullability.
    path
        Name of the top-level column, and of the struct fields down to the one that is asked for.
    """

    field: pa.Field
    path: tuple[str, ...]


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Type in which a column is delivered: views and run-end encoding, which cannot be gathered, become plain."""
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return kind
    if pa.types.is_dictionary(kind):
        return pa.dictionary(pa.int32(), plain_type(kind.value_type), kind.ordered)
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(plain_type(f.type)) for f in kind.fields])
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(plain_type(kind.key_type)), kind.item_field.with_type(plain_type(kind.item_type))
        )
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)), kind.list_size)
    if pa.types.is_large_list(kind) or pa.types.is_large_list_view(kind):
        return pa.large_list(kind.value_field.with_type(plain_type(kind.value_type)))
    if pa.types.is_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)))
    return kind


def wider(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    """Type that holds every value of both types exactly, or None."""
    if one.equals(two):
        return one
    if pa.types.is_null(one):
        return two
    if pa.types.is_null(two):
        return one
    if pa.types.is_dictionary(one) or pa.types.is_dictionary(two):
        value = wider(*(t.value_type if pa.types.is_dictionary(t) else t for t in (one, two)))
        both = pa.types.is_dictionary(one) and pa.types.is_dictionary(two)
        if both and value is not None and one.ordered == two.ordered:
            return pa.dictionary(pa.int32(), value, one.ordered)
        return value
    for choose in (_wider_number, _wider_text, _wider_time, _wider_nested):
        found = choose(one, two)
        if found is not None:
            return found
    return None


def _wider_number(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    is_decimal = pa.types.is_decimal
    if is_decimal(one) and is_decimal(two):
        scale = max(one.scale, two.scale)
        precision = max(one.precision - one.scale, two.precision - two.scale) + scale
        if precision > 76:
            return None
        return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    is_int, is_float = pa.types.is_integer, pa.types.is_floating
    if is_float(one) and is_float(two):
        return one if one.bit_width > two.bit_width else two
    if is_int(one) and is_int(two):
        signs = pa.types.is_signed_integer(one), pa.types.is_signed_integer(two)
        if signs[0] == signs[1]:
            return one if one.bit_width > two.bit_width else two
        signed, unsigned = (one, two) if signs[0] else (two, one)
        bits = max(signed.bit_width, 2 * unsigned.bit_width)
        return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}.get(bits)
    if (is_int(one) and is_float(two)) or (is_float(one) and is_int(two)):
        whole, real = (one, two) if is_int(one) else (two, one)
        bits = _FLOAT_OF_INT_BITS.get(whole.bit_width)
        return None if bits is None else pa.float64() if max(bits, real.bit_width) == 64 else pa.float32()
    return None


def _wider_text(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    if {one, two} == {pa.string(), pa.large_string()}:
        return pa.large_string()
    if {one, two} == {pa.binary(), pa.large_binary()}:
        return pa.large_binary()
    return None


def _wider_time(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    """Coarser units widen up to microseconds; nanoseconds do not reach as far as those do, so they need a cast."""
    units = ("s", "ms", "us")
    same_kind = pa.types.is_timestamp(one) and pa.types.is_timestamp(two) and one.tz == two.tz
    if same_kind and one.unit in units and two.unit in units:
        return pa.timestamp(max(one.unit, two.unit, key=units.index), one.tz)
    if pa.types.is_duration(one) and pa.types.is_duration(two) and one.unit in units and two.unit in units:
        return pa.duration(max(one.unit, two.unit, key=units.index))
    if pa.types.is_time(one) and pa.types.is_time(two):
        unit = max(one.unit, two.unit, key=(*units, "ns").index)
        return pa.time32(unit) if unit in units[:2] else pa.time64(unit)
    return None


def _wider_nested(one: pa.DataType, two: pa.DataType) -> pa.DataType | None:
    if isinstance(one, pa.BaseExtensionType) or isinstance(two, pa.BaseExtensionType):
        return None
    if pa.types.is_struct(one) and pa.types.is_struct(two):
        fields = _wider_fields([one.fields, two.fields])
        return None if fields is None else pa.struct(fields)
    if pa.types.is_map(one) and pa.types.is_map(two):
        key, item = _wider_field(one.key_field, two.key_field), _wider_field(one.item_field, two.item_field)
        return None if key is None or item is None else pa.map_(key, item, one.keys_sorted and two.keys_sorted)
    if pa.types.is_fixed_size_list(one) and pa.types.is_fixed_size_list(two) and one.list_size == two.list_size:
        value = _wider_field(one.value_field, two.value_field)
        return None if value is None else pa.list_(value, one.list_size)
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if all(any(is_kind(t) for is_kind in lists) for t in (one, two)):
        value = _wider_field(one.value_field, two.value_field)
        large = pa.types.is_large_list(one) or pa.types.is_large_list(two)
        return None if value is None else pa.large_list(value) if large else pa.list_(value)
    return None


def _wider_field(one: pa.Field, two: pa.Field) -> pa.Field | None:
    kind = wider(one.type, two.type)
    return None if kind is None else pa.field(one.name, kind, one.nullable or two.nullable)


def _wider_fields(sides: Sequence[Sequence[pa.Field]]) -> list[pa.Field] | None:
    """Fields of two structs, by name; None when one does not fit, is required but absent, or comes twice."""
    found: dict[str, pa.Field] = {}
    for number, side in enumerate(sides):
        names = {f.name for f in side}
        if len(names) < len(side) or any(n not in names and not f.nullable for n, f in found.items()):
            return None
        for field in side:
            if field.name in found:
                merged = _wider_field(found[field.name], field)
                if merged is None:
                    return None
                found[field.name] = merged
            elif number and not field.nullable:
                return None
            else:
                found[field.name] = field
    return list(found.values())


def unify(
    layouts: Sequence[FileLayout], shown: Sequence[str], request: SchemaRequest | None, path_columns: pa.Schema
) -> pa.Schema:
    """Return the dataset's schema.

    Parameters
    ----------
    layouts
        The different layouts among the files.
    shown
        A file of each layout, as it may stand in an error.
    request
        Types that the user gives; columns that it names are cast to them, whatever the files say.
    path_columns
        Columns that the files' paths hold (``key=value``).

    Raises
    ------
    SchemaMismatchError
        Two files cannot be unified, or one has a column twice. The text names both files, both types and the cast.
    ColumnNotFoundError
        `request` names a column that no file has.
    """
    asked = _asked(request)
    stored: dict[str, list[tuple[pa.Field, str]]] = {}
    for layout, file in zip(layouts, shown, strict=True):
        for field in layout.schema:
            stored.setdefault(field.name, []).append((field.with_type(plain_type(field.type)), file))
    found = {
        name: (asked[name], sides[0][1]) if name in asked else _merged(sides) for name, sides in stored.items()
    }
    for field in path_columns:
        if field.name in asked:
            found[field.name] = (asked[field.name], "")
        found.setdefault(field.name, (field, ""))
    if absent := [name for name in asked if name not in found]:
        raise ColumnNotFoundError(f"schema= names {absent}, which no file has: {_listed(found)}")
    fields = []
    in_path = set(path_columns.names)
    for name, (field, file) in found.items():
        lacking = [s for layout, s in zip(layouts, shown, strict=True) if name not in layout.schema.names]
        if not lacking or name in in_path:
            fields.append(field)
            continue
        if not field.nullable and name not in asked:
            raise SchemaMismatchError(
                f"column {name!r} is required in {file} ({field.type} not null) and absent in {lacking[0]}: "
                f"to fill it with nulls there, give schema={{{name!r}: {_spelled(field.type)}}}"
            )
        fields.append(field.with_nullable(True))
    return pa.schema(fields)


def _asked(request: SchemaRequest | None) -> dict[str, pa.Field]:
    fields = request if isinstance(request, pa.Schema) else [pa.field(n, kind) for n, kind in (request or {}).items()]
    names = [field.name for field in fields]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise OptionError(f"schema= names {twice} twice")
    return {field.name: field.with_type(plain_type(field.type)) for field in fields}


def _merged(sides: Sequence[tuple[pa.Field, str]]) -> tuple[pa.Field, str]:
    """Unify what files store of one column; return also a file that stores it in the widest type."""
    # Floats first: which type holds some integers and floats must not depend on the order of files.
    (merged, widest), *others = sorted(sides, key=lambda side: not pa.types.is_floating(side[0].type))
    for field, file in others:
        before, merged = merged, _merge(merged, field, widest, file)
        widest = widest if merged.type == before.type else file
    return merged, widest


def _merge(before: pa.Field, field: pa.Field, file_before: str, file: str) -> pa.Field:
    kind = wider(before.type, field.type)
    if kind is None or before.metadata != field.metadata:
        types = [_extension(f) or str(f.type) for f in (before, field)]
        choice = field.type if kind is None else kind
        raise SchemaMismatchError(
            f"column {field.name!r} is {types[0]} in {file_before} and {types[1]} in {file}: no type holds the values "
            f"of both exactly. To cast, give schema={{{field.name!r}: {_spelled(choice)}}} or another type"
        )
    return pa.field(field.name, kind, before.nullable or field.nullable, before.metadata)


def _extension(field: pa.Field) -> str:
    return str((field.metadata or {}).get(_EXTENSION_KEYS[0], b"").decode(errors="replace"))


def _spelled(kind: pa.DataType) -> str:
    """A type as Python spells it, as far as that is short."""
    if pa.types.is_timestamp(kind):
        return f"pa.timestamp({kind.unit!r}" + (f", {kind.tz!r})" if kind.tz else ")")
    if pa.types.is_nested(kind) or pa.types.is_decimal(kind) or isinstance(kind, pa.BaseExtensionType):
        return "<an Arrow type>"
    return {"double": "pa.float64()", "float": "pa.float32()", "halffloat": "pa.float16()", "bool": "pa.bool_()"}.get(
        str(kind), f"pa.{str(kind).split('[')[0]}()"
    )


def check_names(layout: FileLayout, shown: str) -> None:
    """Raise a SchemaMismatchError when a file has two columns of one name."""
    names = layout.schema.names
    if len(set(names)) < len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise SchemaMismatchError(f"{shown} has columns {twice} twice: rename them, names say which column is meant")


def without_metadata(schema: pa.Schema) -> pa.Schema:
    """Drop the metadata of a schema, but for the names of extension types that are not registered here."""
    return pa.schema([_bare(field) for field in schema])


def _bare(field: pa.Field) -> pa.Field:
    kept = {k: v for k, v in (field.metadata or {}).items() if k in _EXTENSION_KEYS}
    return field.with_metadata(kept) if kept else field.remove_metadata()


def resolve(schema: pa.Schema, columns: Sequence[str] | None, shown: str) -> list[Column]:
    """Find the columns that are asked for, all by default.

    Parameters
    ----------
    schema
        The dataset's.
    columns
        Names; ``"a.b"`` means field ``b`` of struct column ``a``, unless a column has that very name.
    shown
        The dataset, as it may stand in an error.

    Raises
    ------
    ColumnNotFoundError
        One is not there, or comes twice, or none is asked for.
    """
    if columns is None:
        return [Column(field, (field.name,)) for field in schema]
    if not columns or len(set(columns)) < len(columns):
        raise ColumnNotFoundError(f"columns={list(columns)} must name at least one column, and none twice")
    found = [_find(schema, name) for name in columns]
    if missing := [name for name, column in zip(columns, found, strict=True) if column is None]:
        raise ColumnNotFoundError(
            f"columns {missing} are in no file of {shown}{_meant(missing[0], schema.names)}: {_listed(schema.names)}"
        )
    return [column for column in found if column is not None]


def _find(schema: pa.Schema, name: str) -> Column | None:
    if name in schema.names:
        return Column(schema.field(name), (name,))
    top, *rest = name.split(".")
    if top not in schema.names or not rest:
        return None
    field, nullable = schema.field(top), schema.field(top).nullable
    for part in rest:
        inner = [f for f in field.type.fields if f.name == part] if pa.types.is_struct(field.type) else []
        if len(inner) != 1:
            return None
        field = inner[0]
        nullable |= field.nullable
    return Column(pa.field(name, field.type, nullable), (top, *rest))


def _meant(name: str, names: Sequence[str]) -> str:
    same = [n for n in names if n.lower() == name.lower()]
    near = same or difflib.get_close_matches(name, names, 1)
    return f" (did you mean {near[0]!r}? names are compared with their case)" if near else ""


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - 50
    return f"it has {', '.join(names[:50])}" + (f" and {more} more" if more > 0 else "")


def leaf_types(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Types of the Parquet leaf columns of a type, in order."""
    if isinstance(kind, pa.BaseExtensionType):
        yield from leaf_types(kind.storage_type)
    elif pa.types.is_map(kind):
        yield from leaf_types(kind.key_type)
        yield from leaf_types(kind.item_type)
    elif pa.types.is_struct(kind):
        for field in kind.fields:
            yield from leaf_types(field.type)
    elif pa.types.is_nested(kind) and hasattr(kind, "value_type"):
        yield from leaf_types(kind.value_type)
    else:
        yield kind


def is_numeric(kind: pa.DataType) -> bool:
    """Whether values are numbers or booleans, or fixed-size lists of them."""
    if isinstance(kind, pa.BaseExtensionType):
        return is_numeric(kind.storage_type)
    if pa.types.is_fixed_size_list(kind):
        return fixed_bytes(kind) is not None and is_numeric(kind.value_type)
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    )


def fixed_bytes(kind: pa.DataType) -> float | None:
    """Bytes of one value in memory, or None when they vary."""
    if isinstance(kind, pa.BaseExtensionType):
        return fixed_bytes(kind.storage_type)
    if pa.types.is_fixed_size_list(kind):
        inner = fixed_bytes(kind.value_type)
        return None if inner is None else inner * kind.list_size
    if pa.types.is_struct(kind):
        parts = [fixed_bytes(f.type) for f in kind.fields]
        return None if None in parts else sum(p for p in parts if p is not None)
    if pa.types.is_null(kind):
        return 0
    if pa.types.is_dictionary(kind) or pa.types.is_nested(kind) or pa.types.is_run_end_encoded(kind):
        return None
    try:
        return float(kind.bit_width) / 8
    except ValueError:
        return None

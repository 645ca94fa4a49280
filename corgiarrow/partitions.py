"""Hive folders: columns that files' paths hold as ``key=value``."""

import re
from collections.abc import Sequence
from urllib.parse import unquote

import pyarrow as pa

from corgiarrow.errors import SchemaMismatchError

_NULL = "__HIVE_DEFAULT_PARTITION__"
_WHOLE = re.compile(r"-?\d{1,18}")


def path_columns(paths: Sequence[str]) -> pa.Schema:
    """Return the columns that the paths hold, with one type each: int64 where every value is a whole number.

    Parameters
    ----------
    paths
        Paths below the dataset's root; only their folders count.
    """
    columns: dict[str, pa.DataType] = {}
    for name, values in _texts(paths).items():
        whole = all(value is None or _WHOLE.fullmatch(value) for value in values)
        columns[name] = pa.int64() if whole else pa.string()
    return pa.schema(list(columns.items()))


def path_values(paths: Sequence[str], schema: pa.Schema) -> dict[str, pa.Array]:
    """Return a value for each path of each column that the paths hold, in the types of `schema`.

    Raises
    ------
    SchemaMismatchError
        A value does not fit the type.
    """
    found = {}
    for name, values in _texts(paths).items():
        if name not in schema.names:
            continue
        texts, kind = pa.array(values, pa.string()), schema.field(name).type
        if pa.types.is_integer(kind):
            texts = pa.array([None if v is None else _without_zeros(v) for v in values], pa.string())
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        try:
            found[name] = texts.cast(kind)
        except pa.ArrowException as error:
            raise SchemaMismatchError(f"paths hold {name}=… that is no {kind}: {error}") from None
    return found


def _without_zeros(text: str) -> str:
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
    return sign + (digits.lstrip("0") or "0") if digits else text


def _texts(paths: Sequence[str]) -> dict[str, list[str | None]]:
    """Text of each key for each path; None where a path has not the key, or says null."""
    found: dict[str, list[str | None]] = {}
    for place, path in enumerate(paths):
        for folder in path.split("/")[:-1]:
            key, equals, value = folder.partition("=")
            if equals and key:
                values = found.setdefault(unquote(key), [None] * len(paths))
                values[place] = None if value == _NULL else unquote(value)
    return found

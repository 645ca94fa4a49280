"""Train from Parquet where it lies, shuffled well enough for SGD, at scan speed, inside a memory budget."""

from corgiarrow.errors import (
    AccessDeniedError,
    BudgetError,
    ColumnNotFoundError,
    ConversionError,
    CorgiArrowError,
    IndexFormatError,
    MissingExtraError,
    NoFilesError,
    NotParquetError,
    OptionError,
    ReadError,
    SchemaMismatchError,
    SourceChangedError,
    StateMismatchError,
    StorageError,
)
from corgiarrow.example import example_path
from corgiarrow.index import BlockIndex
from corgiarrow.loader import Loader
from corgiarrow.plan import EpochPlan
from corgiarrow.reader import Reader
from corgiarrow.sources import BlockSource
from corgiarrow.split import Split
from corgiarrow.strategies import (
    MRS,
    BlockOnly,
    CorgiPile,
    EpochShuffle,
    NoShuffle,
    ShuffleOnce,
    SlidingWindow,
    Spread,
    Strategy,
)

__all__ = [
    "MRS",
    "AccessDeniedError",
    "BlockIndex",
    "BlockOnly",
    "BlockSource",
    "BudgetError",
    "ColumnNotFoundError",
    "ConversionError",
    "CorgiArrowError",
    "CorgiPile",
    "EpochPlan",
    "EpochShuffle",
    "IndexFormatError",
    "Loader",
    "MissingExtraError",
    "NoFilesError",
    "NoShuffle",
    "NotParquetError",
    "OptionError",
    "ReadError",
    "Reader",
    "SchemaMismatchError",
    "ShuffleOnce",
    "SlidingWindow",
    "SourceChangedError",
    "Split",
    "Spread",
    "StateMismatchError",
    "StorageError",
    "Strategy",
    "example_path",
]

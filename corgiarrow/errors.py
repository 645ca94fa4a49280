"""The exceptions of corgiarrow.

::

    CorgiArrowError
    ├── OptionError (ValueError)            an argument is out of its bounds
    │   └── BudgetError                     the memory budget cannot hold what the order needs
    ├── ColumnNotFoundError (ValueError)    a requested column is in no file
    ├── SchemaMismatchError (ValueError)    two files disagree about a column
    ├── StateMismatchError (ValueError)     a saved position belongs to other data or parameters
    ├── ConversionError (ValueError)        values do not fit the arrays that were asked for
    ├── IndexFormatError (ValueError)       a saved block index cannot be read
    ├── StorageError (OSError)              a file system answered with an error
    │   ├── NoFilesError (FileNotFoundError)
    │   └── AccessDeniedError (PermissionError)
    ├── ReadError (OSError)                 a file or row group cannot be read
    │   ├── NotParquetError
    │   └── SourceChangedError              a file is not the one that was indexed
    └── MissingExtraError (ImportError)     an optional package is not installed
"""


class CorgiArrowError(Exception):
    """Base of every error that corgiarrow raises on purpose."""


class OptionError(CorgiArrowError, ValueError):
    """An argument is out of its bounds; the text gives the value, the bound and the remedy."""


class BudgetError(OptionError):
    """The memory budget cannot hold what the chosen order needs."""


class ColumnNotFoundError(CorgiArrowError, ValueError):
    """A requested column is in no file of the dataset."""


class SchemaMismatchError(CorgiArrowError, ValueError):
    """Two files of a dataset disagree about a column; the text names both files."""


class StateMismatchError(CorgiArrowError, ValueError):
    """A saved position belongs to other data or other parameters; the text names the difference."""


class ConversionError(CorgiArrowError, ValueError):
    """Values of a batch do not fit the arrays that were asked for; the text names column, value and remedy."""


class IndexFormatError(CorgiArrowError, ValueError):
    """A saved block index cannot be read."""


class StorageError(CorgiArrowError, OSError):
    """A file system answered with an error; the text holds no credential."""


class NoFilesError(StorageError, FileNotFoundError):
    """Nothing to read was found; the text says what was looked for."""


class AccessDeniedError(StorageError, PermissionError):
    """The file system refused the credentials that were given."""


class ReadError(CorgiArrowError, OSError):
    """A file or row group cannot be read; the text names both."""


class NotParquetError(ReadError):
    """A file is not Parquet, or its footer is damaged."""


class SourceChangedError(ReadError):
    """A file is not the one that was indexed."""


class MissingExtraError(CorgiArrowError, ImportError):
    """An optional package is not installed; the text is the pip line to type."""


def tells_of_broken_data(error: CorgiArrowError) -> bool:
    """Whether an error tells of broken data, rather than of a storage that does not answer or of data exchanged."""
    return isinstance(error, ReadError) and not isinstance(error, SourceChangedError)

"""Tables of a PostgreSQL server as blocks: runs of heap pages, read through ADBC in one exported snapshot."""

from corgiarrow.sources.postgres.connections import is_postgres
from corgiarrow.sources.postgres.source import DatabaseOptions, PostgresSource
from corgiarrow.sources.postgres.writing import NewTable

__all__ = ["DatabaseOptions", "NewTable", "PostgresSource", "is_postgres"]

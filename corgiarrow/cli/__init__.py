"""The command ``corgiarrow``: results on stdout, progress on stderr, exit 0, 1 (data) or 2 (usage)."""

import sys

from corgiarrow.cli.commands import app
from corgiarrow.cli.output import STOPPED


def main() -> None:
    """Run the command line."""
    try:
        app(prog_name="corgiarrow")
    except KeyboardInterrupt:
        # Outside of a command, such as while its options are read.
        sys.exit(STOPPED)

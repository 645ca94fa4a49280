"""``python -m corgiarrow`` is the command ``corgiarrow``."""

from corgiarrow.cli import main

if __name__ == "__main__":
    main()

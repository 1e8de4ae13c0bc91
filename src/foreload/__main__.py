"""``python -m foreload``: the same as ``foreload``."""

from foreload.cli import main

if __name__ == "__main__":
    main()

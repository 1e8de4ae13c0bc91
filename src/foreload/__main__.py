"""``python -m foreload``: the same as ``foreload``."""

from foreload.cli.main import main

if __name__ == "__main__":
    main()

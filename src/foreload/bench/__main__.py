"""``python -m foreload.bench``: the same as ``foreload bench``."""

import sys

from foreload.cli.main import main

if __name__ == "__main__":
    main(["bench", *sys.argv[1:]])

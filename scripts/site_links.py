#!/usr/bin/env python3
"""List the documents' links to other sites, or open each of them and say which lead nowhere.

scripts/site_links.py            each document and the addresses in it
scripts/site_links.py --open     exit code 1 if one of them leads nowhere (needs the network)
"""

from __future__ import annotations

import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]

_EXTERNAL = re.compile(r"\]\((https?://[^)\s]+)\)")
_CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.DOTALL | re.MULTILINE)
# Seconds after which a site counts as silent.
_PATIENCE = 30


def external_links() -> Iterator[tuple[str, str]]:
    """Yield each document and address outside of the repository that it links to; nothing is opened."""
    for path in (
        *ROOT.glob("*.md"),
        *(page for name in ("docs", "examples", "benchmarks") for page in (ROOT / name).rglob("*.md")),
    ):
        for address in _EXTERNAL.findall(_CODE.sub("", path.read_text(encoding="utf-8"))):
            yield str(path.relative_to(ROOT)), address


def problem_of(address: str) -> str:
    """Open an address; return why it leads nowhere, or nothing.

    Sites that refuse a program (401, 403, 429) or are out of order (5xx) do not make a link wrong.
    """
    request = urllib.request.Request(address, headers={"User-Agent": "Mozilla/5.0 (link check)"})
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE):
            return ""
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.reason}" if error.code in (404, 410) else ""
    except OSError as error:
        return str(error)


def main() -> None:
    """Do what the command line says."""
    links = sorted(external_links())
    if "--open" not in sys.argv[1:]:
        for document, address in links:
            print(f"{document}: {address}")
        return
    addresses = sorted({address for _, address in links})
    with ThreadPoolExecutor(8) as pool:
        problems = dict(zip(addresses, pool.map(problem_of, addresses), strict=True))
    wrong = [(document, address) for document, address in links if problems[address]]
    for document, address in wrong:
        print(f"{document}: {address}: {problems[address]}")
    print(f"{len(addresses)} addresses, {len({address for _, address in wrong})} that lead nowhere")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

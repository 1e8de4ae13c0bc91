"""Hooks of mkdocs that bring the repository's other documents into the site, with the links between all of them.

Documents link to each other by their places in the repository, so that they can be read there too. On the site,
what lies outside of docs/ is below repository/: Markdown as pages, everything else as it is.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
DOCS = "docs/"
OUTSIDE = "repository/"

# What the navigation names; whatever these and docs/ link to comes as well.
_ALWAYS = ["benchmarks/README.md", "examples/README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"]

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)(?=#[^)\s]*\)|\))")
_CODE = re.compile(r"(^```.*?^```|`[^`\n]*`)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add what lies outside of docs/ and is linked to."""
    wanted, known = list(_ALWAYS), set[str]()
    for file in files.documentation_pages():
        wanted += _targets(DOCS + file.src_uri)
    while wanted:
        path = wanted.pop()
        if path in known or path.startswith(DOCS) or not (ROOT / path).is_file():
            continue
        known.add(path)
        files.append(File.generated(config, OUTSIDE + path, abs_src_path=str(ROOT / path)))
        if path.endswith(".md"):
            wanted += _targets(path)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Point links to where their targets are on the site."""
    here = page.file.src_uri

    def place(match: re.Match[str]) -> str:
        target = _uri(_resolved(_path(here), match[1]))
        return posixpath.relpath(target, posixpath.dirname(here) or ".")

    parts = _CODE.split(markdown)
    return "".join(part if part.startswith("`") else _LINK.sub(place, part) for part in parts)


def _targets(path: str) -> Iterator[str]:
    text = _CODE.sub("", (ROOT / path).read_text(encoding="utf-8"))
    return (_resolved(path, link) for link in _LINK.findall(text))


def _resolved(path: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(os.path.dirname(path), link))


def _path(uri: str) -> str:
    return uri.removeprefix(OUTSIDE) if uri.startswith(OUTSIDE) else DOCS + uri


def _uri(path: str) -> str:
    return path.removeprefix(DOCS) if path.startswith(DOCS) else OUTSIDE + path

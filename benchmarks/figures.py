"""Figures in README.md, in benchmarks/README.md and on the site, written from the JSON in results/.

A comment behind each figure names its source: ``4.7<!-- images: float32, against stock at its best -->``. That is
a file in results/ and the name of a verdict, of a number or of samples (their median), or two names with " / "
between them, which is their ratio. A figure keeps its number of decimals. The results of ``foreload bench`` are a
table between ``<!-- table: bench_images -->`` and ``<!-- end -->``; another table that a file has is named after
the file: ``<!-- table: scale, traffic -->``. README.md's picture shows the table of docs/start.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from foreload.bench import show
from foreload.bench.measure import ContestantResult

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "benchmarks" / "README.md",
    ROOT / "docs" / "cache.md",
    ROOT / "docs" / "distributed.md",
    ROOT / "docs" / "ray.md",
    ROOT / "docs" / "start" / "index.md",
    ROOT / "docs" / "choose" / "index.md",
    ROOT / "docs" / "how" / "proof.md",
    ROOT / "docs" / "scaling.md",
    ROOT / "docs" / "workers.md",
]
PICTURE = ROOT / "docs" / "assets" / "gain.svg"

_FIGURE = re.compile(r"(-?[\d,]+(?:\.(\d+))?)<!-- (\w+): (.+?) -->")
_TABLE = re.compile(r"(<!-- table: (\w+)(?:, (\w+))? -->\n).*?(<!-- end -->)", re.DOTALL)
_ROW = re.compile(r"^\| ([^|]+?) \| ([\d.,]+)<!-- \w+: .+? --> \|$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.DOTALL | re.MULTILINE)
_VERSION = re.compile(r"\b(?:Python|torch) \d+\.\d+")
_UNSOURCED = re.compile(r"(?<![\w.,])(?:\d+\.\d+(?![\d.+])|\d+ times)")


def rendered(text: str) -> str:
    """The text of a document with the figures and tables of today's results."""
    text = _FIGURE.sub(_figure, text)
    return _TABLE.sub(lambda match: f"{match[1]}{_table(match[2], match[3])}{match[4]}", text)


def unsourced(text: str) -> list[str]:
    """Measured figures without a source: numbers with decimals, and multiples, that no comment follows.

    A table names its source above it.
    """
    for pattern in (_CODE, _TABLE, _FIGURE, _VERSION):
        text = pattern.sub("", text)
    return _UNSOURCED.findall(text)


def picture() -> str:
    """The table of docs/start as bars (SVG): times as fast as torch's loader."""
    table = rendered((ROOT / "docs" / "start" / "index.md").read_text())
    rows = [(label, float(figure)) for label, figure in _ROW.findall(table.replace("`", ""))]
    longest, height = max(figure for _, figure in rows), 34
    left, width = 330, 760
    scale = (width - left - 60) / longest
    bars = "".join(
        f'<text x="{left - 10}" y="{y + 16}" text-anchor="end">{label}</text>'
        f'<rect x="{left}" y="{y}" width="{figure * scale:.1f}" height="22" rx="3" fill="#4051b5"/>'
        f'<text x="{left + figure * scale + 8:.1f}" y="{y + 16}" font-weight="bold">{figure:g}x</text>\n'
        for y, (label, figure) in zip(range(48, 48 + height * len(rows), height), rows, strict=True)
    )
    stock = left + scale
    bottom = 48 + height * len(rows)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 30}" '
        'font-family="sans-serif" font-size="14" fill="#808080">\n'
        f'<text x="{left}" y="24">times as fast as torch\'s DataLoader at its best, on two cores</text>\n'
        f'{bars}<path d="M{stock:.1f} 40V{bottom}" stroke="#d9822b" stroke-width="2"/>\n'
        f'<text x="{stock:.1f}" y="{bottom + 18}" text-anchor="middle" fill="#d9822b">torch</text>\n</svg>\n'
    )


def _figure(match: re.Match[str]) -> str:
    _, decimals, file, key = match.groups()
    return f"{_value(file, key):,.{len(decimals or '')}f}<!-- {file}: {key} -->"


def _value(file: str, key: str) -> float:
    known = _values(file)
    parts = [key] if key in known else key.split(" / ")
    for part in parts:
        if part not in known:
            raise KeyError(f"results/{file}.json has neither a verdict nor samples named {part!r}")
    value = known[parts[0]]
    for part in parts[1:]:
        value /= known[part]
    return value


@cache
def _values(file: str) -> dict[str, float]:
    content = _content(file)
    values = {name: samples["median"] for name, samples in content.get("samples", {}).items()}
    values |= {verdict["what"]: verdict["reached"] for verdict in content.get("verdicts", [])}
    values |= {name: value for name, value in content.items() if isinstance(value, int | float)}
    if "pipelines" in content:  # of record/predict.py
        pipelines = content["pipelines"].values()
        values |= {"pipelines": len(pipelines), "within 15%": sum(pipeline["good"] for pipeline in pipelines)}
    if "datasets" in content:  # of workers/tuning.py
        ratios = [dataset["ratio"] for dataset in content["datasets"].values()]
        values |= {"worst": min(ratios), "best": max(ratios), "peak, MiB": content["budget"]["peak"] / 2**20}
    return values


def _content(file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{file}.json").read_text())
    return content


def _table(file: str, name: str | None) -> str:
    if not (ROOT / "benchmarks" / "results" / f"{file}.json").exists():
        return "Not measured yet; `make bench` writes this table.\n"
    content = _content(file)
    if name is not None:
        head, *rows = content["tables"][name]
        return _lines([head, ["---"] * len(head), *rows])
    results = [ContestantResult(**result) for result in content["results"]]
    head, *rows = show.cells(results, "rows" if content["work"]["rows"] else "images")
    lines = [[*head, ""], ["---"] * (len(head) + 1)]
    lines += [[*row, result.about] for row, result in zip(rows, results, strict=True)]
    return _lines(lines)


def _lines(lines: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    for document in DOCUMENTS:
        document.write_text(rendered(document.read_text()))
    PICTURE.write_text(picture())

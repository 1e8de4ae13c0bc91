"""A browser that shows the page of ``foreload serve``, loaders for it to show, and what is asked of the page."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

__all__ = [
    "LISTEN",
    "LONG_PATIENCE",
    "NO_CLIPBOARD",
    "PATIENCE",
    "PAUSING",
    "REFUSED",
    "SLOW_PLOTS",
    "TRAINING",
    "answer_of",
    "check_contrast",
    "number",
    "opened",
    "sync_api",
]

sync_api = pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright")

PATIENCE = 120_000  # milliseconds
LONG_PATIENCE = 600_000  # for a dozen processes that start beside other tests

TRAINING = """
import time
import foreload as fl

class Samples:
    def __len__(self):
        return 640
    def __getitem__(self, index):
        if index % 100 == 7:
            raise ValueError(f"<b>this</b> sample {index} is broken")
        time.sleep(0.002)
        return float(index)

loader = fl.DataLoader(Samples(), batch_size=32, num_workers=0, on_error="skip", max_errors=10**6, cache="1KiB")
loader.publish(name="<i>train</i>")
print("ready", flush=True)
while True:
    for batch in loader:
        time.sleep(0.01)
"""

# Epochs with pauses between them; it ends as soon as somebody says so.
PAUSING = """
import sys, time
import foreload as fl
from foreload.export import publisher
publisher._RECORD_SECONDS, publisher._RECORD_SHARE = 0.5, 1.0
publisher._Publisher._longest = 30.0
loader = fl.DataLoader(list(range(640)), batch_size=32, num_workers=0).publish(name="<u>val</u>")
for _ in range(3):
    for batch in loader:
        time.sleep(0.15)
    time.sleep(3)
print("ready", flush=True)
sys.stdin.readline()
"""

SLOW_PLOTS = """
new MutationObserver(() => {
    if (!window.Plotly || Plotly.slow) return;
    const react = Plotly.react;
    Plotly.slow = true;
    Plotly.react = (...what) => {
        for (const end = performance.now() + 2000; performance.now() < end; );
        return react(...what);
    };
}).observe(document, { childList: true, subtree: true, attributes: true });
"""

NO_CLIPBOARD = "Object.defineProperty(navigator, 'clipboard', {value: undefined})"
REFUSED = "navigator.clipboard.writeText = () => Promise.reject(new DOMException('no', 'NotAllowedError'))"

# What is told is there for a few seconds only: it is noted, with what is selected then.
LISTEN = """() => {
    window.told = [];
    const said = document.getElementById("said");
    window.listening?.disconnect();
    window.listening = new MutationObserver(() => told.push([said.textContent, getSelection().toString()]));
    listening.observe(said, { childList: true, characterData: true, subtree: true });
}"""


@contextmanager
def opened(browser: Any, address: str, width: int, scheme: str, before: str = "") -> Iterator[Any]:
    """The page, which may neither complain nor ask anybody else for anything."""
    context = browser.new_context(viewport={"width": width, "height": 3000}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.add_init_script(before)
    trouble: list[str] = []
    page.on(
        "console", lambda message: trouble.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on(
        "request",
        lambda request: (
            trouble.append(request.url)
            if not request.url.startswith((address.partition("?")[0], "data:"))
            else None
        ),
    )
    try:
        page.goto(address)
        yield page
        assert not trouble
    except sync_api.TimeoutError as error:
        error.add_note(f"asked without the browser: {answer_of(address)[:2000]}")
        raise
    finally:
        context.close()


def answer_of(address: str) -> str:
    """Return what the server says by itself, which tells a fault of its own from one of the browser's."""
    try:
        with urllib.request.urlopen(address.replace("?", "state.json?"), timeout=PATIENCE / 1000) as answer:
            return str(answer.read().decode())
    except OSError as error:
        return repr(error)


def number(page: Any, name: str) -> float:
    """One of the figures."""
    text = page.locator("#figures div", has_text=name).locator("dd").first.inner_text()
    return float(re.sub(r"[^\d.]", "", text))


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.1)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def check_contrast(page: Any, scheme: str) -> None:
    """Everything can be read, on the ground that the scheme has."""
    for where in (
        "#sentence",
        "#evidence li",
        "#figures .more",
        "#stages td",
        "#epoch-end",
        "#trouble .where",
    ):
        # (What the page has replaced by then has no colours.)
        text_colour, ground = page.evaluate(
            """where => {
                const node = document.querySelector(where);
                const behind = (node) => getComputedStyle(node).backgroundColor;
                let ground = node;
                while (behind(ground) === 'rgba(0, 0, 0, 0)') ground = ground.parentElement;
                return [getComputedStyle(node).color, behind(ground)];
            }""",
            where,
        )
        light, dark = sorted([luminance(text_colour), luminance(ground)], reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (where, text_colour, ground)
        assert (luminance(ground) < 0.2) == (scheme == "dark")

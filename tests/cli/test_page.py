"""The page of ``foreload serve`` in a real browser: on a desk and a phone, in the light and in the dark."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright")
for needed in ("starlette", "uvicorn", "plotly"):
    pytest.importorskip(needed)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt install chromium"),
    pytest.mark.xdist_group("browser"),
]

PATIENCE = 60_000  # milliseconds
LONG_PATIENCE = 600_000  # for a dozen processes that start beside other tests

TRAINING = """
import time
import foreload as fl

class Samples:
    def __len__(self):
        return 640
    def __getitem__(self, index):
        if index == 7:
            raise ValueError("<b>this</b> sample is broken")
        return float(index)

loader = fl.DataLoader(Samples(), batch_size=32, num_workers=0, on_error="skip", max_errors=10**6, cache="1MiB")
loader.publish(name="<i>train</i>")
print("ready", flush=True)
while True:
    for batch in loader:
        time.sleep(0.01)
"""


@contextmanager
def program(*command: str) -> Iterator[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("p")))
        serve = [sys.executable, "-c", "from foreload.cli.main import main; main()", "serve", "--port", "0"]
        with program(*serve) as line:
            yield line.split(": ", 1)[1]


@pytest.fixture(scope="module")
def training(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with program(sys.executable, "-c", TRAINING) as line:
        assert line == "ready"
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, address: str, width: int, scheme: str) -> Iterator[Any]:
    """The page, which may neither complain nor ask anybody else for anything."""
    context = browser.new_context(viewport={"width": width, "height": 3000}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
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
    page.goto(address)
    try:
        yield page
        assert not trouble
    finally:
        context.close()


def number(page: Any, name: str) -> float:
    """One of the figures."""
    text = page.locator("#figures div", has_text=name).locator("dd").first.inner_text()
    return float(re.sub(r"[^\d.]", "", text))


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.1)."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_without_loaders_it_says_how_to_publish_one(browser: Any, address: str) -> None:
    with opened(browser, address, 1280, "light") as page:
        page.get_by_text("No loader to show yet").wait_for()
        assert "publish" in page.locator("#empty").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_running_loader_is_shown(browser: Any, address: str, training: None, width: int, scheme: str) -> None:
    with opened(browser, address, width, scheme) as page:
        page.locator("#sentence").wait_for()
        assert page.locator("#name").inner_text() == "<i>train</i>"  # as it was given, and not as markup
        page.locator(".plot .main-svg").nth(4).wait_for(state="attached")
        before = number(page, "Batches")
        average = page.locator("#figures div", has_text="Batches").locator(".more")
        text = average.inner_text()
        sync_api.expect(page.locator("#figures")).not_to_contain_text(text)
        assert before > 0
        assert number(page, "Throughput") > 0
        assert number(page, "Cache hits") > 0
        assert "<b>this</b> sample is broken" in page.locator("#trouble").inner_text()
        # Nothing sticks out, and everything can be read.
        assert page.evaluate("document.documentElement.scrollWidth") == width
        for where in ("#sentence", "#evidence li", "#figures .more", "#stages td"):
            text_colour, ground = page.locator(where).first.evaluate(
                """node => {
                    const behind = (node) => getComputedStyle(node).backgroundColor;
                    let ground = node;
                    while (behind(ground) === 'rgba(0, 0, 0, 0)') ground = ground.parentElement;
                    return [getComputedStyle(node).color, behind(ground)];
                }"""
            )
            light, dark = sorted([luminance(text_colour), luminance(ground)], reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 4.5, (where, text_colour, ground)
            assert (luminance(ground) < 0.2) == (scheme == "dark")


def test_the_timeline_can_be_held(browser: Any, address: str, training: None) -> None:
    with opened(browser, address, 1280, "light") as page:
        page.locator("#timeline .main-svg").first.wait_for()
        page.get_by_role("button", name="Hold").click()
        assert page.locator("#hold").get_attribute("aria-pressed") == "true"


def test_a_benchmark_is_started_and_its_plots_are_shown(browser: Any, address: str) -> None:
    with opened(browser, address, 390, "light") as page:
        page.get_by_text("Tensors in memory").click()
        page.get_by_label("Rows").fill("640")
        page.get_by_label("Columns").fill("4")
        page.get_by_label("Epochs each").fill("1")
        page.get_by_role("button", name="Start").click()
        page.locator("#command").wait_for()
        assert "foreload bench --dataset-size 640,4" in page.locator("#command").inner_text()
        page.locator("#outcome").wait_for(timeout=LONG_PATIENCE)  # the end of the benchmark, or why it failed
        assert "times what stock torch" in page.locator("#outcome").inner_text()
        for plot in ("#speed", "#first"):  # drawn as soon as it is in view
            page.locator(plot).scroll_into_view_if_needed()
            page.locator(f"{plot} .main-svg").first.wait_for(state="attached")
        assert page.locator("#table tbody tr").count() >= 2
        assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_folder_that_is_not_there_is_said(browser: Any, address: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    page.get_by_text("My images").click()
    page.locator("[name=folder]").fill("/no/such/folder")
    page.get_by_role("button", name="Start").click()
    page.locator("#wish-error:visible").wait_for()
    assert "/no/such/folder" in page.locator("#wish-error").inner_text()
    context.close()

"""The page of ``foreload serve`` in a real browser: on a desk and a phone, in the light and in the dark."""

from __future__ import annotations

import json
import re
import shutil
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.cli.served import SERVE
from tests.programs import started

sync_api = pytest.importorskip("playwright.sync_api", reason="the page is tested with playwright")
for needed in ("starlette", "uvicorn", "plotly"):
    pytest.importorskip(needed)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt install chromium"),
    pytest.mark.xdist_group("browser"),
    pytest.mark.timeout(1200),  # of all that a test waits for
]

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


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("p")))
        with started(*SERVE) as (_, line):
            yield line.split(": ", 1)[1]


@pytest.fixture(scope="module")
def training(address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with started("-c", TRAINING) as (_, line):
        assert line == "ready"
        yield


@pytest.fixture(scope="module")
def ended(training: None, address: str) -> None:
    """A loader that has ended before anybody has looked."""
    with started("-c", PAUSING) as (_, line):
        assert line == "ready"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api.expect.set_options(timeout=PATIENCE)  # 5 seconds without
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


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
    """What the server says by itself, which tells a fault of its own from one of the browser's."""
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


def test_without_loaders_it_says_how_to_publish_one(browser: Any, address: str) -> None:
    with opened(browser, address, 1280, "light") as page:
        page.get_by_text("No loader to show yet").wait_for()
        assert "publish" in page.locator("#empty").inner_text()


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


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
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
        hits = page.locator("#figures div", has_text="Cache hits").locator("dd").first
        sync_api.expect(hits).to_contain_text(re.compile("[1-9]"), timeout=PATIENCE)  # from the second epoch on
        trouble = page.locator("#trouble")
        assert "<b>this</b> sample # is broken" in trouble.inner_text()
        assert trouble.locator("li").count() == 1  # however many of them
        assert int(trouble.locator(".many").inner_text().strip("×").replace(",", "")) >= 6
        assert re.search(r"the latest: sample (\d07|7): skipped", trouble.inner_text())
        assert re.search(r"Epoch \d+: \d+ of 20 batches, ", page.locator("#epoch-title").inner_text())
        # Nothing sticks out, and everything can be read, also when the scheme changes.
        assert page.evaluate("document.documentElement.scrollWidth") == width
        others = {"light": "dark", "dark": "light"}
        for shown in (scheme, others[scheme]):
            page.emulate_media(color_scheme=shown)
            check_contrast(page, shown)


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


def test_a_browser_that_draws_slowly_shows_the_present_figures(browser: Any, address: str, training: None) -> None:
    """All plots take longer to draw than the next figures take to come."""
    with opened(browser, address, 1280, "light", before=SLOW_PLOTS) as page:
        page.locator(".plot .main-svg").first.wait_for(state="attached")
        assert page.evaluate("Plotly.slow")
        page.wait_for_timeout(10_000)
        (batches,) = [
            loader["stats"]["batches"]
            for loader in json.loads(answer_of(address))["loaders"]
            if loader["name"] == "<i>train</i>"
        ]
        page.wait_for_function(
            """batches => {
                const shown = document.evaluate("//dt[.='Batches']/following::dd[2]", document).iterateNext();
                return Number(shown.textContent.split(" ")[0].replaceAll(",", "")) >= batches;
            }""",
            arg=batches,
        )


def test_a_loader_that_has_ended_shows_its_pauses_as_gaps(browser: Any, address: str, ended: None) -> None:
    with opened(browser, address, 1280, "light") as page:
        page.locator("#loaders a", has_text="<u>val</u>").click()
        page.get_by_text("These are its last figures").wait_for()
        assert "Epoch 2: 20 of 20 batches, 100" in page.locator("#epoch-title").inner_text()
        assert page.locator("#epoch-end").inner_text() == "over; no epoch is running"
        page.locator("#gaps").wait_for()
        # A line for each epoch, and none between them; then the area below them.
        sync_api.expect(page.locator("#throughput .scatterlayer .trace")).to_have_count(3)
        lines = page.locator("#throughput .scatterlayer .trace").nth(1).locator(".js-line")
        lines.nth(2).wait_for(state="attached")
        page.locator("#throughput .shapelayer path").nth(1).wait_for(state="attached")


def test_no_plot_of_another_loader_is_left_below_the_name_of_the_chosen_one(
    browser: Any, address: str, training: None, ended: None
) -> None:
    """Also while each plot takes two seconds to draw, and none is drawn yet."""
    with opened(browser, address, 1280, "light", before=SLOW_PLOTS) as page:
        page.locator("#busy .main-svg").first.wait_for(state="attached")
        page.locator("#hold").click()
        sync_api.expect(page.locator("#hold")).to_have_attribute("aria-pressed", "true")
        drawn = page.evaluate(
            """() => new Promise(resolve => {
                const name = document.querySelector("#name");
                new MutationObserver(() => resolve([
                    name.textContent, document.querySelectorAll("#loader .plot:not(#compare *) .main-svg").length
                ])).observe(name, { childList: true, characterData: true, subtree: true });
                const links = [...document.querySelectorAll("#loaders a")];
                links.find(link => link.textContent.includes("val")).click();
            })"""
        )
        assert drawn == ["<u>val</u>", 0]
        sync_api.expect(page.locator("#hold")).to_have_attribute("aria-pressed", "false")


def test_runs_are_drawn_over_each_other(browser: Any, address: str, ended: None) -> None:
    with opened(browser, address, 390, "dark") as page:
        page.locator("#sentence").wait_for()
        page.locator("#compare").scroll_into_view_if_needed()
        boxes = page.locator("#runs-list input")
        assert boxes.count() == 2
        assert "ended" in page.locator("#runs-list label", has_text="<u>val</u>").inner_text()
        for plot in ("#compare-throughput", "#compare-waiting"):
            page.locator(plot).evaluate("plot => plot.scrollIntoView()")
            sync_api.expect(page.locator(f"{plot} .scatterlayer .trace")).to_have_count(2)
        # In grey, the dashes tell them apart.
        runs = page.locator("#compare-throughput .scatterlayer .trace").all()
        styles = [run.locator(".js-line").first.get_attribute("style") for run in runs]
        dashes = [re.search(r"stroke-dasharray: ([^;]*)", style) for style in styles]
        assert len({found and found[1] for found in dashes}) == 2
        title = page.locator("#compare-throughput .xtitle")
        sync_api.expect(title).to_contain_text("since the start")
        page.get_by_text("Batches", exact=True).last.click()
        sync_api.expect(title).to_have_text("batches")
        boxes.first.focus()
        page.keyboard.press("Space")
        sync_api.expect(page.locator("#compare-throughput .scatterlayer .trace")).to_have_count(1)
        assert page.evaluate("document.documentElement.scrollWidth") == 390


NO_CLIPBOARD = "Object.defineProperty(navigator, 'clipboard', {value: undefined})"
REFUSED = "navigator.clipboard.writeText = () => Promise.reject(new DOMException('no', 'NotAllowedError'))"


def test_advice_can_be_copied_by_keyboard_with_and_without_the_clipboard(
    browser: Any, address: str, training: None
) -> None:
    with opened(browser, address, 1280, "light") as page:
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        for way in ("", REFUSED, NO_CLIPBOARD):
            if way:
                page.evaluate(f"() => {{ {way} }}")
            button = page.locator("#advice button").first
            button.wait_for()
            name = button.get_attribute("aria-label")
            words = name.removeprefix("Copy ")
            assert words in page.locator("#advice li").first.inner_text()
            button.focus()
            page.keyboard.press("Enter")
            said = page.locator("#said")
            assert said.get_attribute("role") == "status"  # so that it is read out
            sync_api.expect(said).to_contain_text("Selected" if way else "Copied")
            got = "getSelection().toString()" if way else "navigator.clipboard.readText()"
            copied = page.evaluate(got)
            # (The advice may have changed since, with the figures.)
            assert copied.partition("=")[0] == words.partition("=")[0]
            sync_api.expect(page.locator("#advice button").first).to_have_text("Copy")
            page.evaluate("document.getElementById('said').textContent = ''; getSelection().removeAllRanges()")


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
            page.locator(plot).evaluate("plot => plot.scrollIntoView()")
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

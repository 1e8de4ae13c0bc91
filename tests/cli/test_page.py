"""The page of ``foreload serve`` in a real browser: on a desk and a phone, in the light and in the dark."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.browsed import (
    LISTEN,
    LONG_PATIENCE,
    NO_CLIPBOARD,
    PATIENCE,
    PAUSING,
    REFUSED,
    SLOW_PLOTS,
    TRAINING,
    answer_of,
    check_contrast,
    number,
    opened,
    sync_api,
)
from tests.cli.served import SERVE
from tests.programs import started

for needed in ("starlette", "uvicorn", "plotly"):
    pytest.importorskip(needed)

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt install chromium"),
    pytest.mark.xdist_group("browser"),
    pytest.mark.timeout(1200),  # of all that a test waits for
]


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


def test_without_loaders_it_says_how_to_publish_one(browser: Any, address: str) -> None:
    with opened(browser, address, 1280, "light") as page:
        page.get_by_text("No loader to show yet").wait_for()
        assert "publish" in page.locator("#empty").inner_text()


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
        throughput = page.locator("#figures div", has_text="Throughput").locator("dd").first
        sync_api.expect(throughput).to_contain_text(re.compile("[1-9]"))
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
        sync_api.expect(boxes).to_have_count(2)
        label = page.locator("#runs-list label", has_text="<u>val</u>")
        sync_api.expect(label).to_contain_text("ended")
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
            # At once, for the advice changes with the figures.
            name, text = page.evaluate(
                """() => {
                    const item = document.querySelector("#advice li");
                    return [item.querySelector("button").getAttribute("aria-label"), item.innerText];
                }"""
            )
            words = name.removeprefix("Copy ")
            assert words in text
            page.evaluate(LISTEN)
            button.focus()
            page.keyboard.press("Enter")
            said = page.locator("#said")
            assert said.get_attribute("role") == "status"  # so that it is read out
            word = "Selected" if way else "Copied"
            page.wait_for_function("word => told.some(([text]) => text.includes(word))", arg=word)
            got = "told.findLast(([text]) => text)[1]" if way else "navigator.clipboard.readText()"
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
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    page.get_by_text("My images").click()
    page.locator("[name=folder]").fill("/no/such/folder")
    page.get_by_role("button", name="Start").click()
    page.locator("#wish-error:visible").wait_for()
    assert "/no/such/folder" in page.locator("#wish-error").inner_text()
    context.close()

"""The server's page in a real browser: it shows every token, works by keyboard, and asks no other host for anything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from specpilot import SpeculativeDecoder

from .serving import serving

sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
PROMPT = "What is 12 plus 30?"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length="tiny-lag-free", cost=0.2)
    with serving(decoder, length="tiny-lag-free") as (_, found):
        yield found


@pytest.fixture
def page(address: str) -> Iterator[sync_api.Page]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 400, "height": 900})
        page.faults = []
        page.on("console", lambda message: page.faults.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.on(
            "request", lambda asked: None if asked.url.startswith((address, "data:")) else page.faults.append(asked.url)
        )
        page.goto(address)
        yield page
        browser.close()


def generate(page: sync_api.Page) -> None:
    page.fill("#prompt", PROMPT)
    page.fill("#max-tokens", "24")
    page.press("#prompt", "Control+Enter")
    sync_api.expect(page.locator(".panel")).to_have_count(2)
    sync_api.expect(page.locator("#run")).to_be_enabled(timeout=30_000)


def test_two_controllers_side_by_side(page: sync_api.Page) -> None:
    decoder = SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length="tiny-lag-free", cost=0.2)
    generate(page)
    for panel, length in zip(page.locator(".panel").all(), (None, "none"), strict=True):
        shown = [token.text_content() for token in panel.locator(".token:not(.rejected)").all()]
        expected = decoder.generate(PROMPT, chat=True, seed=1, max_new_tokens=24, temperature=1.0, length=length)
        assert decoder.tokenizer is not None
        assert shown == [decoder.tokenizer.decode([token]) for token in expected.tokens]
        rejected = expected.stats.n_drafted - expected.stats.n_accepted
        assert panel.locator(".token.rejected").count() == rejected
        assert f"{len(expected.tokens)} tokens" in (panel.locator(".stats").text_content() or "")
    sync_api.expect(page.locator("#served")).to_contain_text("tiny, controller tiny-lag-free")
    assert page.faults == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 400  # no scrolling sideways


def test_tokens_by_pointer_and_by_keyboard(page: sync_api.Page) -> None:
    generate(page)
    panel = page.locator(".panel").first
    panel.locator(".token.rejected").first.hover()
    sync_api.expect(panel.locator(".detail")).to_contain_text("drafted, rejected; target p")
    panel.locator(".token").first.focus()
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement === document.querySelector('.panel .token:last-child')")
    sync_api.expect(panel.locator(".detail")).not_to_be_empty()


def test_a_refused_request_is_shown(page: sync_api.Page) -> None:
    page.fill("#length-a", "tiny-head")
    page.click("#run")
    sync_api.expect(page.locator("#error")).to_contain_text("speculation.length='tiny-head'")
    sync_api.expect(page.locator("#run")).to_be_enabled()

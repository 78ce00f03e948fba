"""The server's page in a real browser: tokens, conversations, Markdown, comparisons, and no request to another host."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from specpilot import SpeculativeDecoder

from ..helpers.serving import serving
from ..helpers.tiny import save_pair

sync_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here")
sync_api.expect.set_options(timeout=30_000)  # milliseconds
PROMPT = "What is 12 plus 30?"
KEPT = ".tokens .token:not(.rejected)"


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    return SpeculativeDecoder.from_pretrained("tiny", "tiny-draft", length="tiny-lag-free", cost=0.2)


@pytest.fixture(scope="module")
def address(decoder: SpeculativeDecoder) -> Iterator[str]:
    with serving(decoder, length="tiny-lag-free") as (_, url):
        yield url


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: sync_api.Browser, address: str) -> Iterator[sync_api.Page]:
    with opened(browser, address) as page:
        yield page


@contextmanager
def opened(browser: sync_api.Browser, address: str) -> Iterator[sync_api.Page]:
    """Yield the page, with its request bodies as ``bodies``; afterwards check that the page had no errors."""
    page = browser.new_page(viewport={"width": 400, "height": 900})
    page.faults, page.bodies = [], []

    def record_request(request: sync_api.Request) -> None:
        if request.method == "POST":
            page.bodies.append(request.post_data_json)
        if not request.url.startswith((address, "data:")):
            page.faults.append(request.url)

    page.on("console", lambda message: page.faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.on("request", record_request)
    page.goto(address)
    sync_api.expect(page.locator("#served")).not_to_have_text("connecting …")
    yield page
    assert page.faults == []
    page.close()


def generate(page: sync_api.Page, prompt: str = PROMPT, tokens: int = 24) -> None:
    turns = page.locator(".turn").count()
    page.fill("#prompt", prompt)
    page.fill("#max-tokens", str(tokens))
    page.press("#prompt", "Enter")
    done(page, turns + 1)


def done(page: sync_api.Page, turns: int) -> None:
    sync_api.expect(page.locator(".turn")).to_have_count(turns)
    sync_api.expect(page.locator("#run")).to_be_enabled()


def displayed_text(panel: Any) -> str:
    return "".join(panel.locator(KEPT).all_text_contents())


def test_two_controllers_side_by_side(page: sync_api.Page, decoder: SpeculativeDecoder) -> None:
    assert not page.locator("figure").filter(visible=True).count()
    generate(page)
    for panel, length in zip(page.locator(".panel").all(), (None, "none"), strict=True):
        expected = decoder.generate(PROMPT, chat=True, seed=1, max_new_tokens=24, temperature=1.0, length=length)
        assert panel.locator(KEPT).all_text_contents() == [
            decoder.tokenizer.decode([token]) for token in expected.tokens
        ]
        rejected = expected.stats.n_drafted - expected.stats.n_accepted
        assert panel.locator(".token.rejected").count() == rejected
        stats = panel.locator(".stats").text_content() or ""
        assert f"{len(expected.tokens)} tokens" in stats
        assert f"{expected.stats.tokens_per_forward:.2f} tokens per target forward" in stats
    sync_api.expect(page.locator(".verdict")).to_contain_text("Too short to compare speeds")
    sync_api.expect(page.locator("#served")).to_contain_text("tiny, controller tiny-lag-free")
    assert page.locator("#chart-positions").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 400  # no scrolling sideways
    panel = page.locator(".panel").first  # tokens by pointer and by keyboard
    panel.locator(".token.rejected").first.hover()
    sync_api.expect(panel.locator(".detail")).to_contain_text("drafted, rejected; target p")
    panel.locator(".token").first.focus()
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement === document.querySelector('.panel .token:last-child')")
    sync_api.expect(panel.locator(".detail")).not_to_be_empty()


def test_a_conversation(page: sync_api.Page, decoder: SpeculativeDecoder) -> None:
    """Each request has the whole conversation. Regenerating uses the next seed. A new conversation is empty."""

    def expected(messages: list[str], seed: int) -> str:
        roles = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(messages)]
        return decoder.generate(roles, seed=seed, max_new_tokens=24, temperature=1.0).text

    page.uncheck("#compare")
    page.check("input[value=formatted]")
    generate(page)
    generate(page, "And 5 more?")
    page.click("#again")
    done(page, 2)
    page.click("#new")
    generate(page, "And 5 more?")
    first = expected([PROMPT], 1)
    requests = [([message["content"] for message in body["messages"]], body["seed"]) for body in page.bodies]
    assert requests == [
        ([PROMPT], 1),
        ([PROMPT, first, "And 5 more?"], 1),
        ([PROMPT, first, "And 5 more?"], 2),
        (["And 5 more?"], 2),
    ]
    assert displayed_text(page) == expected(["And 5 more?"], 2)


def test_a_model_without_chat_template(browser: sync_api.Browser, tmp_path: Path) -> None:
    """The page continues all text so far, and shows no half characters for tokens of bytes."""
    decoder = SpeculativeDecoder.from_pretrained(*save_pair(tmp_path), length=2)
    decoder.tokenizer.chat_template = None
    with serving(decoder) as (_, address), opened(browser, address) as page:
        sync_api.expect(page.locator("#mode")).to_contain_text("no chat template")
        page.uncheck("#compare")
        generate(page, "aé", 40)
        text = decoder.generate("aé", seed=1, max_new_tokens=40, temperature=1.0).text.rstrip("\ufffd")
        assert displayed_text(page).replace("<|end|>", "").rstrip("\ufffd") == text
        assert "\ufffd" not in "".join(page.locator(".panel .token.rejected").all_text_contents())
        generate(page, "", 8)
        assert [body["prompt"] for body in page.bodies] == ["aé", "aé" + text]


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("# A *b*\nc", "<h4>A <em>b</em></h4><p>c</p>"),
        ("**a *b* c** ~~d~~ `e*f*` 2 * 3 * 4 x_y_z", "<p><strong>a <em>b</em> c</strong> <del>d</del> "
         "<code>e*f*</code> 2 * 3 * 4 x_y_z</p>"),
        ("```py\na < b\n\n# c\n```\nd", '<pre><code title="py">a &lt; b\n\n# c</code></pre><p>d</p>'),
        ("3. a\n   - b\n4. c", '<ol start="3"><li><p>a</p><ul><li><p>b</p></li></ul></li><li><p>c</p></li></ol>'),
        ("> a\n> > b\n\n---", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><hr>"),
        ("| a | b |\n|---|--:|\n| `x\\|y` |", '<div class="table"><table><thead><tr><th>a</th><th>b</th></tr></thead>'
         "<tbody><tr><td><code>x|y</code></td><td></td></tr></tbody></table></div>"),
        ("<img src=x onerror=alert(1)>", "<p>&lt;img src=x onerror=alert(1)&gt;</p>"),
        ("[a](javascript:alert(1))", "<p>[a](javascript:alert(1))</p>"),
        ("![a](data:image/svg+xml,x) [b](//host/c) [d](/page.js)", "<p>![a](data:image/svg+xml,x) [b](//host/c) "
         "[d](/page.js)</p>"),
        ("![a](https://b.c/d.png)", '<p><a title="https://b.c/d.png" href="https://b.c/d.png" '
         'rel="noopener noreferrer nofollow" target="_blank">a</a></p>'),
        ('[a](https://b.c/"onclick=x)', '<p><a title="https://b.c/&quot;onclick=x" href="https://b.c/&quot;onclick=x" '
         'rel="noopener noreferrer nofollow" target="_blank">a</a></p>'),
    ],
)  # fmt: skip
def test_markdown(page: sync_api.Page, text: str, html: str) -> None:
    script = """async (text) => {
        const { markdown } = await import("/markdown.js");
        return [...markdown(text).childNodes].map((node) => node.outerHTML).join("");
    }"""
    assert page.evaluate(script, text) == html


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "speculation.length='tiny-head'"),
        ({"abort": True}, "the server does not answer"),
        ({"status": 502, "body": "<html>"}, "the server answered with status 502"),
        ({"status": 503, "body": '{"status": "starting", "reason": "loading"}'}, "the server is starting: loading"),
        ({"status": 200, "body": ""}, "the connection was lost during the answer"),
    ],
)
def test_an_error_is_shown_and_the_message_kept(page: sync_api.Page, answer: Any, message: str) -> None:
    if answer is not None:
        aborted = answer == {"abort": True}
        page.route("**/v1/chat/**", lambda route: route.abort() if aborted else route.fulfill(**answer))
    page.fill("#length-a", "tiny-head")
    page.fill("#prompt", PROMPT)
    page.click("#run")
    sync_api.expect(page.locator("#error")).to_contain_text(message)
    sync_api.expect(page.locator("#run")).to_be_enabled()
    assert page.input_value("#prompt") == PROMPT
    assert not page.locator(".turn").count()
    page.faults.clear()  # it asked for one

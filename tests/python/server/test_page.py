"""The page of `sluice serve`, used in a browser."""
import http.client
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from chromium import WATCHDOG, Chromium

COMMAND = [os.environ["SLUICE_COMMAND"]] if "SLUICE_COMMAND" in os.environ else [sys.executable, "-m", "sluice_moe"]
KEY = "a key of the test's"
LONG = json.dumps({"ignore_eos": True, "max_tokens": 3500})
IDLE = "document.querySelector('#stop').hidden"
CLOSED = "!document.querySelector('#panel').open && document.activeElement.id === 'question'"
LAST = "[...document.querySelectorAll('article.assistant')].at(-1)"


def serve(root, *flags):
    """The process and its URL."""
    words = [*COMMAND, "serve", str(root / "models/sluice-16e-tiny"), "--port", "0", "-q", *flags]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip() + "/"


@pytest.fixture(scope="module")
def server(pytestconfig):
    process, url = serve(pytestconfig.rootpath)
    yield url
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


@pytest.fixture(scope="module")
def chromium():
    browser = Chromium()
    yield browser
    browser.close()


@pytest.fixture
def open_page(chromium, server):
    """Opens the page and waits until it knows its model. At the end, the page must have no errors and no requests to other hosts."""
    opened = []

    def open_it(**how):
        page = chromium.open(server, **how)
        opened.append(page)
        page.wait_for("document.querySelector('#model').textContent === 'sluice-16e-tiny'")
        return page

    yield open_it
    for page in opened:
        assert page.faults() == []
        assert {url for url in page.requests() if not url.startswith((server, "data:"))} == set()
        page.close()


@pytest.fixture
def page(open_page):
    return open_page()


def ask(page, text):
    page.type(text)
    page.press("Enter")
    page.wait_for(IDLE)


def last(page, selector):
    return page.js(f"{LAST}.querySelector('{selector}').innerText")


def set_field(page, name, value):
    page.click("#settings")
    page.js(f"document.querySelector('#panel [name={name}]').select(); document.querySelector('#panel [name={name}]').focus()")
    page.type(value)
    page.press("Enter")
    page.wait_for(CLOSED)


def aborted(server):
    connection = http.client.HTTPConnection(server.split("/")[2])
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    return next(line for line in lines if line.startswith("vllm:request_success_total") and 'finished_reason="abort"' in line)


def bodies(page):
    sent = [r["request"] for r in page.of("Network.requestWillBeSent") if r["request"]["url"].endswith("/chat/completions")]
    return [json.loads(request["postData"]) for request in sent]


def test_files(server):
    connection = http.client.HTTPConnection(server.split("/")[2])
    size = 0
    for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
        connection.request("GET", path)
        response = connection.getresponse()
        size += len(response.read())
        assert (response.status, response.headers["Content-Type"]) == (200, kind + "; charset=utf-8")
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert size < 36000


def test_a_conversation(page):
    ask(page, "What is 417 + 268?")
    assert last(page, ".md") == "685"
    assert not page.js(f"{LAST}.querySelector('details').open")
    assert last(page, "summary").startswith("Reasoning · ")
    page.click("summary")
    assert "tens: 1 + 6 + 1 = 8" in last(page, ".thought")
    assert page.js(f"/^95 tokens · \\d+(\\.\\d)? tokens\\/s · context 180 of 4096$/.test({LAST}.querySelector('.tools span').innerText)")
    page.click("#question")
    ask(page, "Sort 31, 7, 112.")
    assert last(page, ".md") == "7, 31, 112"
    assert bodies(page)[1]["messages"] == [{"role": "user", "content": "What is 417 + 268?"}, {"role": "assistant", "content": "685"},
                                           {"role": "user", "content": "Sort 31, 7, 112."}]
    page.reload()
    page.wait_for("document.querySelectorAll('article').length === 4")
    page.click("#new")
    page.wait_for("document.querySelectorAll('article').length === 0")
    ask(page, "What is 1 + 1?")
    assert last(page, ".md") == "2" and len(bodies(page)[2]["messages"]) == 1


def test_editing_and_asking_again(page):
    ask(page, "What is 1 + 1?")
    ask(page, "What is 2 + 2?")
    page.js("[...document.querySelectorAll('.user button')].at(-1).click()")
    assert page.js("document.querySelector('#question').value") == "What is 2 + 2?"
    page.press("Escape")
    assert page.js("document.querySelector('#question').value") == "" and page.js("document.querySelectorAll('article').length") == 4
    page.js("document.querySelector('.user button').click(); document.querySelector('#question').select()")
    ask(page, "What is 3 + 3?")
    assert page.js("document.querySelectorAll('article').length") == 2 and last(page, ".md") == "6"
    page.js("[...document.querySelectorAll('.assistant.last button')].at(-1).click()")
    page.wait_for(IDLE)
    assert [body["messages"] for body in bodies(page)[2:]] == [[{"role": "user", "content": "What is 3 + 3?"}]] * 2


@pytest.mark.parametrize("how", ["button", "key"])
def test_stop(page, server, how):
    set_field(page, "more", LONG)
    before = aborted(server)
    page.type("What is 417 + 268?")
    page.press("Enter")
    page.wait_for(f"{LAST}?.querySelector('.thought').innerText.includes('ones')")
    page.click("#stop") if how == "button" else page.press("Escape")
    page.wait_for(IDLE)
    assert last(page, ".tools span").endswith("stopped")
    end = time.monotonic() + WATCHDOG
    while aborted(server) == before:
        assert time.monotonic() < end, "the server continued an answer that was stopped"
    assert page.js("document.activeElement.id") == "question"
    set_field(page, "more", "{}")
    ask(page, "What is 1 + 1?")
    assert last(page, ".md") == "2"


def test_keys_alone(page):
    def tab_to(condition):
        for _ in range(20):
            if page.js(condition):
                outline = page.js("(({outlineStyle, outlineWidth}) => [outlineStyle, outlineWidth])(getComputedStyle(document.activeElement))")
                assert outline == ["solid", "2px"], condition
                return
            page.press("Tab")
        raise AssertionError(f"no {condition}")

    assert page.js("document.activeElement.id") == "question"
    page.type("What is")
    page.press("Enter", shift=True)
    ask(page, "417 + 268?")
    assert page.text(".user .text") == "What is\n417 + 268?"
    tab_to("document.activeElement.id === 'new'")
    tab_to("document.activeElement.id === 'settings'")
    page.press("Enter")
    page.wait_for("document.querySelector('#panel').open && document.activeElement.name === 'system'")
    page.press("Escape")
    page.wait_for(CLOSED)
    tab_to("document.activeElement.id === 'theme'")
    tab_to("document.activeElement.textContent === 'Edit'")
    tab_to("document.activeElement.tagName === 'SUMMARY'")
    page.press("Enter")
    assert page.js(f"{LAST}.querySelector('details').open")
    tab_to("document.activeElement.textContent === 'Copy'")
    tab_to("document.activeElement.textContent === 'Try again'")
    page.press("Enter")
    page.wait_for(IDLE)
    assert page.js("document.activeElement.id") == "question"
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    unnamed = [n for n in nodes if n.get("role", {}).get("value") in ("button", "textbox", "log") and not n["name"]["value"]]
    assert len(nodes) > 20 and unnamed == []


CONTRAST = """(selector => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const luminance = color => {
    canvas.fillStyle = color, canvas.fillRect(0, 0, 1, 1);
    const part = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const [r, g, b] = canvas.getImageData(0, 0, 1, 1).data;
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const element = document.querySelector(selector);
  let under = element;
  while (getComputedStyle(under).backgroundColor === 'rgba(0, 0, 0, 0)') under = under.parentElement;
  const [a, b] = [luminance(getComputedStyle(element).color), luminance(getComputedStyle(under).backgroundColor)].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_schemes(open_page, scheme):
    page = open_page(scheme=scheme)
    ask(page, "What is 417 + 268?")
    bright = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every(c => c > 127)"
    assert page.js(bright) == (scheme == "light")
    for _ in range(2):  # the second scheme must be readable, too
        for selector in (".user .text", ".assistant .md", ".assistant .faint", ".assistant button", "summary", "#model", "#hint"):
            assert page.js(f"{CONTRAST}('{selector}')") >= 4.5, selector
        page.click("#theme")
    page.click("#theme")
    assert page.js(bright) == (scheme == "dark")
    page.reload()
    page.wait_for("document.documentElement.dataset.theme")
    assert page.js(bright) == (scheme == "dark")


ATTACK = "<img src=x onerror=\"window.bad=1\"><script>window.bad=2</script>[a](javascript:window.bad=3) `<b>` **<svg/onload=window.bad=4>**"


def test_what_people_say_does_not_run(page):
    ask(page, ATTACK)
    assert page.text(".user .text") == ATTACK
    assert page.js("window.bad ?? document.querySelectorAll('article :is(img, script, b, article svg, a)').length") == 0


def answer_with(page, text):
    """Shows an answer as if a model had given it and the page had been reloaded."""
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": text, "reasoning": text, "finish": "stop"}]
    page.js(f"sessionStorage.setItem('sluice.turns', {json.dumps(json.dumps(turns))})")
    page.reload()
    page.wait_for("document.querySelectorAll('article').length === 2 && document.querySelector('#model').textContent")


def test_what_models_say_does_not_run(page):
    answer_with(page, f"# {ATTACK}\n\n- {ATTACK}\n> {ATTACK}\n\n|a|b|\n|-|-|\n|{ATTACK}|{ATTACK}|\n\n```<img src=x onerror=window.bad=5>\n{ATTACK}\n"
                      "```\n" + ">" * 5000 + "- " * 5000 + "**" * 5000 + "[x](data:text/html,<script>window.bad=6</script>)")
    assert page.js("window.bad ?? document.querySelectorAll('article :is(img, script, b, svg, a)').length") == 0
    assert page.text(".md h2").startswith("<img src=x")


def test_a_policy_stands_behind_it(chromium, server):
    page = chromium.open(server)
    page.js("window.held = []; document.addEventListener('securitypolicyviolation', e => window.held.push(e.effectiveDirective)); 0")
    page.js("document.body.append(Object.assign(document.createElement('img'), {src: 'http://example.invalid/x.png'}))")
    page.js("fetch('http://example.invalid/').catch(() => {}); 0")
    page.js("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.bad = 1'}))", refused=True)
    page.js("document.body.innerHTML = '<img src=x onerror=window.bad=2>'", refused=True)
    page.wait_for("window.held.length >= 4")
    assert set(page.js("window.held")) == {"img-src", "connect-src", "require-trusted-types-for"}
    assert page.js("window.bad") is None
    page.close()


def test_markdown(page):
    answer_with(page, "# Title\nA **bold *both* too** and `code *x*`, [label](https://example.org/a_b), https://example.org/c.\n\n"
                      "1. one\n   - inner\n2. two\n\n| a | b |\n|---|:-:|\n| 1 | `2` |\n\n```python\nif 1 < 2:\n    pass\n```\nend\n\n---\n> said")
    shape = page.js("""(function walk(e) {
      return [...e.childNodes].map(c => c.nodeType === 3 ? c.data : c.className === 'code' ? '{' + c.querySelector('pre').innerText + '}'
        : `<${c.tagName.toLowerCase()}>${walk(c)}</>`).join('') })(document.querySelector('.md'))""")
    assert shape == ("<h2>Title</><p>A <strong>bold <em>both</> too</> and <code>code *x*</>, <a>label</>, <a>https://example.org/c</>.</>"
                     "<ol><li>one<ul><li>inner</></></><li>two</></>"
                     "<div><table><thead><tr><th>a</><th>b</></></><tbody><tr><td>1</><td><code>2</></></></></></>"
                     "{if 1 < 2:\n    pass}<p>end</><hr></><blockquote><p>said</></>")
    assert page.js("[...document.querySelectorAll('.md a')].map(a => a.href + a.rel)") == [
        "https://example.org/a_bnoopener noreferrer", "https://example.org/cnoopener noreferrer"]


# Patterns that search for their end again from every position take minutes on these texts.
LONG_TEXTS = {
    "runs of backticks": "a".join("`" * n for n in range(1, 630)),
    "emphasis without an end": "**a " * 50000,
    "brackets": "[" * 200000,
    "links without an end": "[a](http://x" * 16000,
    "a heading of number signs": "# " + "#" * 200000 + "a",
    "a line that only looks like a fence": "```" + "a" * 200000 + "`",
    "a line that only looks like a divider": "a|b\n" + "-" * 200000 + "x",
    "quotes": "> \n" * 66000,
    "items": "- a\n" * 10000,
    "rows": "|a|\n|-|\n" + "|a|\n" * 10000,
    "lines": "a\n" * 20000,
}


@pytest.mark.parametrize("what", LONG_TEXTS)
def test_markdown_takes_no_longer_than_its_text(page, what):
    answer_with(page, LONG_TEXTS[what])  # a slow page exceeds the watchdog's seconds
    assert page.js("document.querySelector('.md').childNodes.length") > 0


def test_narrow(open_page):
    page = open_page(width=320, height=600)
    answer_with(page, "w" * 300 + "\n\n```\n" + "c" * 300 + "\n```\n\n|" + "column|" * 20 + "\n|" + "-|" * 20)
    assert page.js("document.documentElement.scrollWidth") == 320
    assert page.js("document.querySelector('#scroll').scrollWidth <= 320")
    wide = page.js("['pre', '.table'].map(s => document.querySelector(s)).map(e => [e.scrollWidth > 320, getComputedStyle(e).overflowX])")
    assert wide == [[True, "auto"]] * 2
    page.click("#settings")
    assert page.js("document.querySelector('#panel').getBoundingClientRect().right <= 320")


def test_settings_are_sent_and_kept(page):
    page.click("#settings")
    page.type("Answer in one word.")
    page.js("document.querySelector('#panel [name=effort]').value = 'low'")
    page.js("document.querySelector('#panel [name=more]').focus()")
    page.type("[1]")
    page.click("#panel .main")
    assert page.js("document.querySelector('#panel').open")  # because the text is no JSON object
    page.js("document.querySelector('#panel [name=more]').select()")
    page.type('{"seed": 7}')
    page.click("#panel .main")
    page.wait_for(CLOSED)
    set_field(page, "temperature", "0.5")
    set_field(page, "max_tokens", "8")
    page.reload()
    page.wait_for("document.querySelector('#model').textContent")
    page.click("#question")
    ask(page, "What is 417 + 268?")
    sent = bodies(page)[-1]
    assert sent["messages"][0] == {"role": "system", "content": "Answer in one word."}
    assert {name: sent[name] for name in ("reasoning_effort", "seed", "temperature", "max_tokens")} == {
        "reasoning_effort": "low", "seed": 7, "temperature": 0.5, "max_tokens": 8}
    assert "8 tokens" in last(page, ".tools span") and last(page, ".tools span").endswith("cut off at the token limit")


def test_a_refusal_is_said_in_words(chromium, server):
    page = chromium.open(server)
    page.wait_for("document.querySelector('#model').textContent")
    set_field(page, "more", '{"top_k": "many"}')
    ask(page, "What is 417 + 268?")
    assert "top_k" in last(page, ".error")
    set_field(page, "more", "{}")
    page.js("[...document.querySelectorAll('button')].find(b => b.textContent === 'Try again').click()")
    page.wait_for(f"{IDLE} && {LAST}.querySelector('.md').innerText === '685'")
    page.close()


def test_keys_of_the_server(chromium, pytestconfig):
    process, url = serve(pytestconfig.rootpath, "--api-key", KEY)
    page = chromium.open(url)
    page.wait_for("document.querySelector('#panel').open && document.activeElement.name === 'key'")
    page.type(KEY)
    page.press("Enter")
    page.wait_for("document.querySelector('#model').textContent === 'sluice-16e-tiny'")
    page.wait_for(CLOSED)
    ask(page, "What is 417 + 268?")
    assert last(page, ".md") == "685"
    assert page.js("JSON.stringify(localStorage)").find(KEY) < 0
    process.kill()
    process.wait()
    ask(page, "What is 1 + 1?")
    assert "does not respond" in last(page, ".error")
    page.close()


def test_a_server_that_dies_within_an_answer(chromium, pytestconfig):
    process, url = serve(pytestconfig.rootpath)
    page = chromium.open(url)
    page.wait_for("document.querySelector('#model').textContent")
    set_field(page, "more", LONG)
    page.type("What is 417 + 268?")
    page.press("Enter")
    page.wait_for(f"{LAST}?.querySelector('.thought').innerText.includes('ones')")
    process.kill()
    process.wait()
    page.wait_for(IDLE)
    assert last(page, ".error")
    page.close()

"""The documentation's site: its pages and links, and that it works in a real browser without any other host."""

import base64
import functools
import http.server
import importlib
import json
import re
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest
import torch
from filelock import FileLock

from adaterm import AdaTerm, RobustAdamW

ROOT = Path(__file__).parents[1]
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
PHONE, DESK = (390, 844), (1280, 900)


def load(name="make_site"):
    """A module of docs/, where the program that makes the site finds the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        return importlib.import_module(name)


def list_navigation(entries):
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from list_navigation(value) if isinstance(value, list) else [value]


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    """The pages as the generator gets them."""
    folder = tmp_path_factory.mktemp("pages")
    load().stage(folder)
    return folder


def test_every_page_of_docs_is_in_the_navigation():
    project = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]
    docs = ROOT / "docs"
    pages = [str(path.relative_to(docs)) for path in docs.rglob("*.md")]
    notebooks = [str(path.relative_to(docs).with_suffix(".md")) for path in docs.rglob("*.ipynb")]
    assert notebooks
    assert sorted(list_navigation(project["nav"])) == sorted(pages + notebooks)


def test_no_line_of_prose_begins_with_a_mark():
    """A comment at a line's begin would end the paragraph on the repository's own pages."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    lines = [(page.name, line) for page in pages for line in page.read_text().splitlines()]
    assert not [found for found in lines if re.match(r" *<!-- (?!-->)[^>]*--> *[^ ]", found[1])]


def test_what_pages_link_to_comes_along(staged):
    """Results and examples as they are, reports as their pages, sources and folders as pages to read."""
    files = staged / "files"
    for path in (
        "results/demo/demo.json",
        "results/demo/demo.png",
        "results/bench/report/report.html",
        "results/bench/report/pages/regret-and-its-bounds-paper.html",
        "examples/rl_sb3.py.md",
        "src/adaterm/equations/index.md",
        "results/README.md",
    ):
        assert (files / path).is_file(), path
    assert not list(files.rglob("report.md"))
    assert "](files/results/demo/demo.json)" in (staged / "index.md").read_text()
    assert "](../../../src/adaterm_bench/core/registry.py.md)" not in (staged / "adding.md").read_text()


def test_links_out_of_the_repository_stay_and_broken_ones_are_refused(tmp_path):
    maker = load()
    stage = maker.Stage(tmp_path)
    kept = "[a](https://example.org/x) [b](#here)\n\n```python\nlist[0](missing.md)\n```\n"
    assert stage.follow(kept, ROOT / "docs/index.md") == kept
    with pytest.raises(maker.BrokenLinkError, match=re.escape("docs/index.md links to missing.md#part")):
        stage.follow("[c](missing.md#part)", ROOT / "docs/index.md")


def test_a_notebook_is_a_page_to_read_and_a_file_to_download(staged):
    """Words and their links as on any page, code and what it printed, and the notebook as it is."""
    page = (staged / "tutorials/corrupt_batches.md").read_text()
    source = ROOT / "docs/tutorials/corrupt_batches.ipynb"
    assert page.startswith("# Training while some batches are corrupt\n\n[Download this notebook](corrupt")
    for cell in json.loads(source.read_text())["cells"]:
        if cell["cell_type"] == "code":
            assert f"```python\n{''.join(cell['source']).strip()}\n```" in page
            printed = [output for output in cell["outputs"] if "text" in output]
            assert all("".join(output["text"]).strip() in page for output in printed)
    assert "![The level of each batch, and below it the trust in each tensor]" in page
    assert (staged / "tutorials/corrupt_batches-1.png").read_bytes().startswith(b"\x89PNG")
    assert "[RobustAdamW's page](../robust_adamw.md)" in page
    assert (staged / "tutorials/corrupt_batches.ipynb").read_bytes() == source.read_bytes()
    assert "(corrupt_batches.md)" in (staged / "tutorials/README.md").read_text()


def test_a_notebooks_outputs_are_shown_in_the_richest_form():
    picture, drawing = b"\x89PNG", "<svg xmlns='http://www.w3.org/2000/svg'/>"
    encoded = base64.b64encode(picture).decode()
    table = "<style>td {color: red}</style>\n<table>\n\n<tr><td>1</td></tr></table>"
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["first\n", "```\n"]},
        {
            "output_type": "display_data",
            "data": {"image/png": encoded, "text/plain": "loss"},
        },
        {"output_type": "display_data", "data": {"image/svg+xml": [drawing], "text/plain": "<Figure>"}},
        {"output_type": "execute_result", "data": {"text/html": table, "text/plain": "1"}},
        {"output_type": "execute_result", "data": {"text/plain": "42"}},
        {"output_type": "error", "traceback": ["\x1b[31mValueError\x1b[0m: no"]},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "\n", "words"]},
        {"cell_type": "code", "source": "", "outputs": []},
        {"cell_type": "code", "source": ["x = 1\n", "x"], "outputs": outputs},
    ]
    page, pictures = load("notebook_page").convert(json.dumps({"cells": cells}), "name", str.upper)
    assert page.split("\n\n") == [
        "# TITLE",
        "WORDS",
        "```python\nx = 1\nx\n```",
        "```` { .text .output }\nfirst\n```\n````",
        "![loss](name-1.png)",
        "![Picture](name-2.svg)",
        '<div class="output">\n<table>\n<tr><td>1</td></tr></table>\n</div>',
        "``` { .text .output }\n42\n```",
        "``` { .text .output }\nValueError: no\n```\n",
    ]
    assert pictures == {"name-1.png": picture, "name-2.svg": drawing.encode()}


def test_numbers_stay_with_what_belongs_to_them():
    """No line ends before a per cent sign, or inside a cell of numbers and short words; code is left alone."""
    join = load().keep_together
    row = "| bad 5 % | <!-- a b -->+0.4 (+0.1 to +0.8) | 1.0 / 0.9<!-- --> | 5 of 5: shown |"
    kept = "| bad 5~% |<!-- a b -->+0.4~(+0.1~to~+0.8)|1.0~/~0.9<!-- -->| 5 of 5: shown |"
    assert join(row) == kept.replace("~", "\u00a0")
    assert join("at 20 %, `targets 20 %`: 3 of 4") == "at 20\u00a0%, `targets 20 %`: 3 of 4"


def test_the_readme_is_a_page_and_its_links_lead_somewhere():
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 110
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = link.partition("#")
        assert (ROOT / path).exists(), link
        if anchor:
            page = (ROOT / (path or "README.md")).read_text()
            titles = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}, link


class Links(HTMLParser):
    """The addresses on a page, and the names that links can point to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.names = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.append(value)
            if name in ("id", "name") and value:
                self.names.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory, testrun_uid):
    """The folder of the site, built as `make docs` does, once: another process of the run may be reading it already."""
    pytest.importorskip("zensical", reason="needs the extra docs: pip install '.[docs]'")
    kept = tmp_path_factory.getbasetemp().parent / f"site-{testrun_uid}.txt"
    with FileLock(kept.with_suffix(".lock")):
        if not kept.exists():
            command = [sys.executable, "docs/make_site.py"]
            built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            kept.write_text(f"{built.stdout}{built.stderr}\nended with {built.returncode}")
    said = kept.read_text()
    assert said.endswith("ended with 0"), said
    assert "arning" not in said
    return ROOT / "site"


@pytest.fixture(scope="module")
def address(site):
    """Where a server gives the site."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


class Browser:
    """Chromium without a window; what it asks for and complains about is kept."""

    def __init__(self):
        from selenium.webdriver import Chrome, ChromeOptions
        from selenium.webdriver.chrome.service import Service

        options = ChromeOptions()
        options.binary_location = BROWSER
        safe = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-background-networking"
        for word in (*safe.split(), "--disable-component-update", "--hide-scrollbars"):
            options.add_argument(word)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = Chrome(options=options, service=Service(DRIVER))

    def shape(self, size, scheme="light"):
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, url):
        self.driver.get(url)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, script, seconds=20):
        """The first answer that counts as true."""
        end = time.monotonic() + seconds
        while not (answer := self.run(script)) and time.monotonic() < end:
            time.sleep(0.1)
        return answer

    def complaints(self):
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def hosts(self):
        """Whom pages have asked for something since the last call."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        urls = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return {urlsplit(url).netloc for url in urls if not url.startswith(("data:", "blob:", "about:"))}


@pytest.fixture(scope="module")
def browser():
    pytest.importorskip("selenium", reason="needs the extra docs: pip install '.[docs]'")
    if not BROWSER or not DRIVER:
        pytest.skip("needs Chromium and its driver: apt install chromium chromium-driver")
    made = Browser()
    yield made
    made.driver.quit()


def list_pages(site):
    """The pages to look at, as paths; the copies of sources look alike, so that one of them will do."""
    pages = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    sources = [page for page in pages if page.endswith((".py.html", ".toml.html"))]
    return [page for page in pages if page not in sources[1:] and page != "404.html"]


slow = pytest.mark.slow


@slow
def test_every_internal_link_leads_somewhere(site):
    pages = {str(path.relative_to(site)): Links(path.read_text()) for path in site.rglob("*.html")}
    broken = []
    for page, found in pages.items():
        for link in found.links if page != "404.html" else []:
            address = urlsplit(urljoin(f"http://site/{page}", link))
            if address.netloc != "site" or address.scheme != "http":
                continue
            path = unquote(address.path).lstrip("/")
            path = path + "index.html" if not path or path.endswith("/") else path
            if not (site / path).is_file():
                broken.append(f"{page}: {link}")
            elif address.fragment and path in pages and unquote(address.fragment) not in pages[path].names:
                broken.append(f"{page}: {link} has no such part")
    assert len(pages) > 50
    assert not broken, broken[:20]


@slow
@pytest.mark.parametrize(("size", "scheme"), [(PHONE, "dark"), (DESK, "light")])
def test_pages_fit_and_ask_no_other_host(site, address, browser, size, scheme):
    """On a phone and a desk, dark and light: no page is wider than the window, and none complains."""
    browser.shape(size, scheme)
    browser.hosts()
    wide = []
    for page in list_pages(site):
        browser.open(address + page)
        browser.wait("return !document.querySelector('.md-typeset > table:not([class])')")  # it is made to scroll first
        width = browser.run("return document.documentElement.scrollWidth")
        wide += [f"{page}: {width}"] if width > size[0] else []
        assert not browser.complaints(), page
    assert not wide
    assert browser.hosts() == {urlsplit(address).netloc}


@slow
def test_a_wide_table_shows_that_it_goes_on_and_its_names_stay(address, browser):
    """On a phone its edge fades until it is scrolled to the end, and the first column can be seen there, too."""
    browser.shape(PHONE)
    browser.open(address + "arena.html")
    tables = "[...document.querySelectorAll('.md-typeset__scrollwrap')]"
    wide = f"{tables}.find((each) => each.scrollWidth > 2 * each.clientWidth)"
    edge = f"return getComputedStyle({wide}).getPropertyValue('--edge')"
    assert browser.wait(f"return {wide} && true")
    assert float(browser.run(edge).removesuffix("px")) > 0.0
    browser.run(f"{wide}.scrollLeft = 10_000")
    assert browser.wait(f"{edge} === '0px'")
    assert browser.run(f"return {wide}.querySelector('td').getBoundingClientRect().left") >= 0.0


@slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(address, browser, scheme):
    """The page follows the system, and text, links and the figure's axes stand out from the ground."""
    browser.shape(DESK, scheme)
    browser.open(address + "trust.html")
    browser.wait("return document.querySelector('#trust-figure svg')")
    contrasts = browser.run("""
        const light = (text) => {
            const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number)
            const ground = background.match(/[\\d.]+/g).map(Number)
            const mixed = [r, g, b].map((each, i) => a * each + (1 - a) * ground[i])
            const bend = (x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4
            const linear = mixed.map((each) => bend(each / 255))
            return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        }
        const background = getComputedStyle(document.body).backgroundColor
        const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)
        const places = {"article p": "color", "article a": "color", "#trust-figure text": "fill",
            "#trust-figure .chosen": "stroke"}
        const ground = light(background)
        return [ground, ...Object.entries(places).map(([where, part]) =>
            contrast(light(getComputedStyle(document.querySelector(where))[part]), ground))]
    """)
    ground, *others = contrasts
    assert (ground > 0.5) == (scheme == "light")
    assert min(others) > 3.0, others
    assert min(others[0], others[2]) > 4.5, others


@slow
def test_the_scheme_can_be_switched(address, browser):
    browser.shape(DESK, "light")
    browser.open(address + "index.html")
    read = "return document.body.getAttribute('data-md-color-scheme')"
    seen = set()
    for _ in range(3):
        seen.add(browser.run(read))
        browser.run("document.querySelector('label.md-header__button[for^=__palette]:not([hidden])').click()")
    assert seen == {"default", "slate"}


@slow
@pytest.mark.parametrize("served", [True, False])
def test_search_finds_an_option(site, address, browser, served):
    """By a server and, without one, from the disk."""
    browser.shape(DESK)
    browser.open(address + "index.html" if served else (site / "index.html").as_uri())
    assert browser.wait(OPEN_SEARCH), "no search field"
    shown = browser.wait(READ_SEARCH)
    assert shown, "nothing was found"
    assert "RobustAdamW" in shown
    assert not browser.complaints()


OPEN_SEARCH = """
    const button = document.querySelector('[data-md-component=search] button, .md-search__button, label[for=__search]')
    if (!window.asked) { button && button.click(); window.asked = true }
    const find = (root) => {
        for (const each of root.querySelectorAll('*')) {
            const field = each.matches('input[type=text], input[type=search], input:not([type])')
            if (field && each.offsetParent) return each
            const inside = each.shadowRoot && find(each.shadowRoot)
            if (inside) return inside
        }
    }
    const field = find(document)
    if (!field) return false
    field.focus()
    Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(field, 'minority')
    field.dispatchEvent(new Event('input', { bubbles: true, composed: true }))
    window.field = field
    return true
"""
READ_SEARCH = """
    const links = [...window.field.getRootNode().querySelectorAll('a')]
    const hits = links.filter((link) => /robust_adamw|api/.test(link.href) && /minority/i.test(link.textContent))
    return hits.map((link) => link.textContent).join(' ')
"""


@slow
def test_the_figure_computes_what_the_equations_do(address, browser):
    """Sliders move it, for both rules."""
    browser.shape(DESK)
    browser.open(address + "trust.html")
    assert browser.wait("return document.querySelector('#trust-figure svg')")
    read = """
        const figure = document.querySelector('#trust-figure')
        const set = (name, value) => {
            const field = figure.querySelector(`[name=${name}]:not(output)`)
            field.value = value
            field.dispatchEvent(new Event('input', { bubbles: true }))
        }
        set('rule', arguments[0]); set('dof', arguments[1]); set('distance', arguments[2])
        return [figure.dataset.trust, figure.dataset.dof, figure.dataset.distance].map(Number)
    """
    for rule in ("adaterm", "robust"):
        for dof, distance in ((0.0, 0.0), (0.5, 2.0), (2.0, -1.0)):
            trust, used, far = browser.run(read, rule, dof, distance)
            assert (used, far) == (float(f"{10**dof:.3g}"), float(f"{10**distance:.3g}"))
            expected = take_step(used, far) if rule == "adaterm" else min(1.0, (used + 1.0) / (used + far))
            assert trust == pytest.approx(expected, rel=1e-4)


@slow
def test_the_figure_says_what_it_shows(address, browser):
    """Each rule has its own word and begins with its own degrees of freedom; numbers agree as they are shown."""
    browser.shape(DESK)
    browser.open(address + "trust.html")
    assert browser.wait("return document.querySelector('#trust-figure svg')")
    read = """
        const figure = document.querySelector('#trust-figure'), rule = figure.querySelector('select')
        rule.value = arguments[0]
        rule.dispatchEvent(new Event('input', { bubbles: true }))
        return ['.kind', '.trust-answer', 'output[name=dof]', '.name'].map((it) => figure.querySelector(it).textContent)
    """
    word, answer, dof, first = browser.run(read, "adaterm")
    assert (word, dof, first) == ("trust", f"{AdaTerm([torch.zeros(1)]).defaults['min_dof']:g}", "dof 1")
    assert answer == f"A gradient at distance 5 gets a trust of {1 / (1 + 5):.3f}."
    word, answer, dof, first = browser.run(read, "robust")
    assert (word, dof, first) == ("weight", f"{RobustAdamW([torch.zeros(1)]).defaults['dof']:g}", "dof 3")
    assert answer == f"A gradient at distance 5 gets a weight of {(3 + 1) / (3 + 5):.3f}."


def take_step(dof, distance):
    """The trust of an AdaTerm with so many degrees of freedom in a gradient at this distance."""
    parameter = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = AdaTerm([parameter], min_dof=dof, adaptive_dof=False, foreach=False)
    parameter.grad = torch.full_like(parameter, optimizer.defaults["eps"] * distance**0.5)
    optimizer.step()
    return optimizer.statistics()[parameter].trust.item()


@slow
def test_claims_of_the_report_fold_and_can_be_filtered(address, browser):
    """Without a script: a button opens the groups that have such claims, and shows no others."""
    browser.shape(DESK)
    browser.open(address + "files/results/bench/report/report.html")
    claims = json.loads((ROOT / "results/bench/report/claims.json").read_text())
    draw = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done()))"
    visible = """
        const seen = (row) => row.checkVisibility({ contentVisibilityAuto: true })
        return [...document.querySelectorAll('.group tbody tr')].filter(seen).map((row) => row.className)
    """

    def look():
        """The claims that can be seen once the browser has drawn what changed."""
        browser.driver.execute_async_script(draw)
        return browser.run(visible)

    assert look() == []
    for verdict in ("reproduced", "not reproduced", "undecided"):
        name = verdict.replace(" ", "-")
        browser.run(f"document.querySelector('#only-{name}').click()")
        assert look() == [f"is-{name}"] * sum(claim["verdict"] == verdict for claim in claims)
    browser.run("document.querySelector('#only-all').click()")
    assert look() == []

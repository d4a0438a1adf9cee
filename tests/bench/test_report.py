"""The report's pages: what they show, that they show it safely, and that they fit a phone."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from math import inf, nan
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure as Picture

from adaterm_bench.core.section import Claim, Figure, Section, Table
from adaterm_bench.core.trial import Result, Trial
from adaterm_bench.methods import PAPER_METHODS
from adaterm_bench.reporting import comparison, figures, html, palette
from adaterm_bench.reporting.claims import correct_families
from adaterm_bench.reporting.report import write
from adaterm_bench.reporting.sections import SMOKE
from adaterm_bench.reporting.text import describe_measurement, format_number, format_spread, tidy

METHODS = ["AdaTerm", "Adam", "t-Adam", "AdamW + clip", "a method with a name so long that no column could hold it all"]
LEVELS = [0.0, 0.1, 0.2, 0.5]
EVIL = '<script>alert("x")</script> & | `code` *star* [link](x) _under_'
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def runs(*shape):
    return {
        method: (1.0 + place) * np.random.default_rng(place).lognormal(0.0, 0.3, shape)
        for place, method in enumerate(METHODS)
    }


def unstyled():
    picture = Picture()
    picture.add_subplot().plot([0, 1])
    return picture


def surface(x, y):
    return (1.0 - x) ** 2 + 100.0 * (y - x**2) ** 2


def pictures():
    noisy = runs(4, 10)
    noisy["Adam"][3] = nan
    noisy["t-Adam"][2, :4] = inf
    flat = {method: values[3] for method, values in noisy.items()}
    walk = np.cumsum(np.random.default_rng(0).normal(0.0, 0.02, (2_000, 2)), axis=0)
    return {
        "noise": lambda: figures.draw_against_noise(LEVELS, noisy, "loss"),
        "uneven levels, where higher is better": lambda: figures.draw_against_noise(
            [0.0, 0.001, 0.5, 1.0], noisy, "return", log=False, better="higher"
        ),
        "curves": lambda: figures.draw_curves(np.arange(2_000), runs(10, 2_000), "loss"),
        "curves of few seeds": lambda: figures.draw_curves(
            np.arange(9), {"Adam": [[1.0, nan, *[inf] * 7], range(9)]}, "loss"
        ),
        "negative curves": lambda: figures.draw_curves([0, 1], {"Adam": [-1.0, 2.0]}, "loss"),
        "bars": lambda: figures.draw_bars(flat, "loss"),
        "points": lambda: figures.draw_bars(flat, "loss", start=None),
        "paths": lambda: figures.draw_paths(
            dict.fromkeys(METHODS, walk), surface, limits=(-2, 2, -1, 3), optimum=(1, 1)
        ),
        "nothing": lambda: figures.draw_against_noise(LEVELS, {}, "loss"),
        "unstyled": unstyled,
    }


def sections():
    claims = [
        Claim("Better.", "difference", 0.2, 0.1, 0.3, place="section 5", evidence="1 against 2", seeds=9),
        Claim("Worse.", "difference", -0.2, -0.3, -0.1),
        Claim("Who knows?", "difference", 0.1, -0.1, 0.3, note="only 3 seeds"),
        Claim(EVIL, EVIL, nan, nan, nan, bound=0.5, note=EVIL),
        Claim("Endless.", "difference", inf, -inf, inf),
        Claim("Infinitely better.", "difference", inf, 0.1, inf),
    ]
    rows = [[method, "0.0123 ± 0.0011", "no value", "words"] for method in METHODS]
    wide = Table("Wide " * 30, [f"column {place}" for place in range(20)], [["x" * 80, *["1.2345 ± 0.1"] * 19]])
    tables = [Table("Loss", ["Method", "Loss", "Other", "Text"], rows, note=EVIL), wide, Table("Empty", ["A", "B"], [])]
    tables += [Table("No columns", [], []), Table(EVIL, ["A", EVIL], [[EVIL, EVIL], ["short"]])]
    drawn = [Figure(title, draw, caption=EVIL) for title, draw in pictures().items()]
    return [
        Section("Regression", f"First.\n\n# Second {EVIL}", tables, drawn, claims),
        Section(EVIL + "unbroken" * 40, ""),
        Section("Twice", "1. no list", figures=[Figure("Same", unstyled), Figure("Same", unstyled)]),
    ]


def results():
    origin = {
        "versions": {"torch": "2.13"},
        "device": "cpu",
        "commit": "abc",
        "date": "2026-01-02T03:04:05",
        "seconds": 90.0,
    }
    seeds = [0, 1, 2, 5]
    made = [Result(Trial("regression", 1, {}, {"noise": 0.1}, "Adam", seed), {}, origin) for seed in seeds]
    return [*made, Result(Trial("other", 2, {}, {}, "Adam", 0), {}, {})]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write(sections(), results(), folder)
    return folder


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    """One file in place of an earlier report."""
    folder = tmp_path_factory.mktemp("single")
    (folder / "figures").mkdir()
    (folder / "pages").mkdir()
    for name in ("report.md", "report.css", "pages/old.html", "pages/old.md", "figures/old.svg", "figures/mine.txt"):
        (folder / name).write_text("")
    assert write(sections(), results(), folder, single_file=True) == [folder / "report.html"]
    return folder


def test_what_an_earlier_report_left_goes_and_nothing_else(single):
    assert {path.name for path in single.rglob("*.*")} == {"report.html", "mine.txt"}


def test_few_seeds_have_lines_of_their_own():
    """Of six and more there are quartiles; those of three would hide one that fails."""
    values = {"AdaTerm": np.ones((3, 9)), "Adam": np.arange(54.0).reshape(6, 9)}
    axes = figures.draw_curves(np.arange(9), values, "return", log=False, better="higher").axes[0]
    colours = [it.get_color() for it in axes.lines if it.get_linewidth() < 1.0]
    assert colours == [palette.choose_look("AdaTerm").colour] * 3
    assert len(axes.collections) == 1  # Adam's band


class Page(HTMLParser):
    """What a browser would see of tags, ids and links, with every element closed in turn."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.by_name, self.links = [], [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.by_name += [(name, value) for name, value in attrs if name in ("href", "src", "xlink:href")]
        self.links = [value for _, value in self.by_name]
        if tag not in ("meta", "link", "img", "br", "input"):
            self.open.append(tag)

    def files(self, name):
        return [value for kind, value in self.by_name if kind == name and not value.startswith(("#", "data:"))]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def read_pages(folder):
    """The pages of HTML by their path."""
    return {path: Page(path.read_text()) for path in (folder / "report.html", *(folder / "pages").glob("*.html"))}


@pytest.mark.parametrize("alone", [False, True])
def test_the_pages_need_nothing_but_their_figures(folder, single, alone):
    pages = read_pages(single if alone else folder)
    assert len(pages) == (1 if alone else len(sections()) + 2)
    drawn = 0
    for path, page in pages.items():
        text = path.read_text()
        assert "script" not in page.tags
        assert "://" not in text
        assert len(page.ids) == len(set(page.ids))
        assert set(re.findall(r"url\(#(.*?)\)", text)) <= set(page.ids)
        assert page.tags.count("img") == len(page.files("src"))
        drawn += page.tags.count("figure")
        if alone:
            assert not page.files("src") + page.files("href")
    assert drawn == len(pictures()) + 2


def test_pages_share_one_file_of_style_and_a_single_one_has_it_inside(folder, single):
    style = html.STYLE_FILE.read_text()
    assert (folder / "report.css").read_text() == style
    for path, page in read_pages(folder).items():
        assert "style" not in page.tags
        assert (path.parent / page.files("href")[0]).resolve() == folder / "report.css"
    assert style in (single / "report.html").read_text()


@pytest.mark.parametrize("alone", [False, True])
def test_every_link_leads_somewhere(folder, single, alone):
    pages = read_pages(single if alone else folder)
    for path, page in pages.items():
        for link in (link for link in page.links if not link.startswith("data:")):
            name, _, anchor = link.partition("#")
            target = (path.parent / name).resolve() if name else path
            assert target.is_file(), link
            assert not anchor or anchor in pages[target].ids, link
    linked = {(path.parent / link).resolve() for path, page in pages.items() for link in page.files("href")}
    assert pages.keys() - {folder / "report.html", single / "report.html"} <= linked


def test_contents_and_the_result_come_before_the_claims(folder):
    for name in ("report.html", "report.md"):
        text = re.sub(r"<nav.*?</nav>|[>#]", " ", (folder / name).read_text().replace("</", " </"), flags=re.DOTALL)
        places = [text.index(words) for words in ("The paper: 1 claim", " Contents", " Claims", "Better.")]
        assert places == sorted(places)
    page = (folder / "report.html").read_text()
    assert page.count('<details class="group"') == 2  # the paper's claims and ours, of the one section that has any
    assert page.count('<tr class="is-') == 6
    for verdict in ("all", "reproduced", "not-reproduced", "undecided"):
        assert f'id="only-{verdict}"' in page


def test_every_page_names_the_report_and_lists_all_pages(folder):
    for path in read_pages(folder):
        text = path.read_text()
        assert "Results of the experiments</title>" in text
        (pages,) = re.findall(r"<nav class=\"side\".*?<details><summary>Pages</summary><ol>(.*?)</ol>", text)
        assert pages.count("<li>") == len(sections()) + 1


def test_figures_and_tables_can_be_linked_to(folder):
    page = read_pages(folder)[folder / "pages/regression.html"]
    for anchor in ("noise", "loss", "curves-of-few-seeds"):
        assert anchor in page.ids
        assert f"#{anchor}" in page.links


def test_a_smoke_report_says_that_it_proves_nothing(tmp_path):
    shown = [Section("Toy (smoke)", "A text.", warning=SMOKE), Section("Toy (quick)", "A text.")]
    write(shown, [], tmp_path)
    for kind in ("html", "md"):
        assert "Toy (smoke): These are runs of the preset" in (tmp_path / f"report.{kind}").read_text().replace(
            "\\", ""
        )
        assert "prove nothing" in (tmp_path / f"pages/toy-smoke.{kind}").read_text()
        assert "prove nothing" not in (tmp_path / f"pages/toy-quick.{kind}").read_text()


def test_programs_can_read_the_claims(folder):
    claims = json.loads((folder / "claims.json").read_text())
    assert [claim["verdict"] for claim in claims][:3] == ["reproduced", "not reproduced", "undecided"]
    assert (claims[0]["low"], claims[0]["wants"], claims[4]["high"]) == (0.1, "above 0", "Infinity")
    assert [claim["whose"] for claim in claims][:2] == ["the paper's", "ours"]
    assert (claims[0]["place"], claims[0]["seeds"], claims[0]["chance"]) == ("section 5", 9, None)
    assert not any(claim["single"] for claim in claims)


def test_programs_can_tell_what_is_infinite_from_what_has_no_value(tmp_path):
    claims = [Claim("A", "b", inf, inf, inf), Claim("A", "b", nan, -inf, inf)]
    write([Section("Searches", "", claims=claims)], [], tmp_path)
    read = json.loads((tmp_path / "claims.json").read_text())
    assert [[claim[name] for name in ("estimate", "low", "high", "single")] for claim in read] == [
        ["Infinity", "Infinity", "Infinity", True],
        ["NaN", "-Infinity", "Infinity", False],
    ]


@pytest.mark.parametrize(
    ("high", "shown"), [(0.55, "(0.39 to 0.55)"), (0.546, "(0.390 to 0.546)"), (0.5496, "(0.3900 to 0.5496)")]
)
def test_an_end_reads_as_the_bound_only_if_it_is(high, shown):
    assert shown in describe_measurement(Claim("A", "b", 0.46, 0.39, high, bound=0.55, wants="below"))


def test_large_numbers_are_written_alike():
    claim = Claim("A", "b", 8205195.0, 8040329.0, 8369127.0, bound=1e4)
    shown = "8~205~195 (8~040~329 to 8~369~127); claimed to be above 10~000."
    assert describe_measurement(claim).endswith(shown.replace("~", "\u202f"))


@pytest.mark.parametrize(
    ("low", "high", "wants", "chance", "verdict"),
    [
        (1.1, 1.4, "above", nan, "reproduced"),
        (1.1, 1.4, "above", 0.04, "reproduced"),
        (1.1, 1.4, "above", 0.06, "undecided"),  # one of many
        (1.1, 1.4, "below", nan, "not reproduced"),
        (0.9, 1.4, "above", nan, "undecided"),
    ],
)
def test_an_interval_and_its_family_decide(low, high, wants, chance, verdict):
    assert Claim("A", "b", 1.2, low, high, bound=1.0, wants=wants, chance=chance).verdict == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.7, 1.4, "reproduced"), (0.6, 1.4, "undecided"), (1.6, 2.0, "not reproduced"), (0.3, 0.6, "not reproduced")],
)
def test_on_par_is_within_a_factor(low, high, verdict):
    claim = Claim("A", "b", 1.0, low, high, bound=1.5, wants="within")
    assert claim.verdict == verdict
    assert "within a factor of 1.5 of 1" in describe_measurement(claim)


def test_claims_of_one_sentence_are_decided_together():
    claims = [Claim("A", "b", 1.0, 0.1, 2.0, family="one", chance=0.03) for _ in range(2)]
    claims.append(Claim("B", "b", 1.0, 0.1, 2.0, family="another", chance=0.03))
    assert [claim.verdict for claim in correct_families(claims)] == ["undecided", "undecided", "reproduced"]
    assert [claim.verdict for claim in claims] == ["reproduced"] * 3


def test_every_verdict_is_said_in_words(folder):
    for name in ("report.html", "report.md"):
        text = (folder / name).read_text()
        assert "The paper: 1 claim, 1 reproduced, 0 not reproduced, 0 undecided" in text
        assert "Ours: 5 claims, 1 reproduced, 1 not reproduced, 3 undecided" in text
        assert "Section 5: 1 against 2" in text
    assert text.count("**not reproduced**") == 1
    page = (folder / "pages/regression.md").read_text()
    assert page.count("**not reproduced**") == 1
    assert "only 3 seeds" in page
    assert "∞ (no bounds)" in page


def test_markdown_holds_what_was_said_and_nothing_else(folder):
    shown = 0
    for page in (folder / "report.md", *(folder / "pages").glob("*.md")):
        text = page.read_text()
        assert "<script" not in text.replace("\\<script", "")
        for path in re.findall(r"!\[.*?\]\((.*?)\)", text):
            assert (page.parent / path).read_text().startswith("<?xml")
            shown += 1
        for path in re.findall(r"(?<!!)\[[^\]]*\]\(((?:pages|\.\.)/.*?)\)", text):
            assert (page.parent / path).is_file()
        for table in re.findall(r"(?:^\|.*\|\n)+", text, flags=re.MULTILINE):
            assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1
    assert shown == len(list((folder / "figures").iterdir())) == len(pictures()) + 2
    assert "\n\\# Second" in (folder / "pages/regression.md").read_text()
    assert "\n1\\. no list" in (folder / "pages/twice.md").read_text()


def test_where_the_results_come_from(folder):
    text = (folder / "pages/where-the-results-come-from.md").read_text()
    assert "| regression | 1 | 4 | 1 | 0\u20132, 5 | 1.50 min | 2026-01-02 | 2026-01-02 |" in text
    assert "| Software | torch 2.13 | 4 |" in text
    assert "| Device | not recorded | 1 |" in text


def test_a_figure_is_small_and_its_text_is_text(folder):
    root = ElementTree.parse(folder / "figures/regression-1-noise.svg").getroot()
    texts = ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"noise level", "AdaTerm"} <= set(texts)
    for path in (folder / "figures").iterdir():
        assert path.stat().st_size < 100_000, path
        assert "prefers-color-scheme: dark" in path.read_text()


def test_the_same_results_make_the_same_files(folder, tmp_path):
    for path in write(sections(), results(), tmp_path):
        assert path.read_bytes() == (folder / path.relative_to(tmp_path)).read_bytes()


def test_nothing_to_report(tmp_path):
    written = write([], [], tmp_path / "new" / "folder")
    origin = "where-the-results-come-from"
    names = ["report.html", "report.md", f"{origin}.html", f"{origin}.md", "report.css", "claims.json"]
    assert [path.name for path in written] == names
    assert "no results yet" in written[2].read_text()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1234567.0, "1\u202f230\u202f000"),
        (-0.012345, "\u22120.0123"),
        (9.999, "10.0"),
        (2e-9, "2.00e\u22129"),
        (nan, "no value"),
        (inf, "∞"),
        (-inf, "\u2212∞"),
    ],
)
def test_number(value, text):
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("text", "tidied"),
    [
        ("4.6e-05 ± 0.0001", "4.6e\u22125 ± 0.0001"),
        ("-1.0e+10", "\u22121.0e10"),
        ("8e+00", "8e0"),
        ("1,234", "1\u202f234"),
    ],
)
def test_numbers_of_every_format_look_alike(text, tidied):
    assert tidy(text) == tidied


@pytest.mark.parametrize(
    ("mean", "std", "text"),
    [
        (0.73127, 0.00213, "0.7313 ± 0.0021"),
        (-5120.3, 211.0, "\u22125\u202f120 ± 211"),
        (1.5, nan, "1.50"),
        (1.5, 0.0, "1.50 ± 0"),
    ],
)
def test_plus_minus(mean, std, text):
    assert format_spread(mean, std) == text


def test_a_method_looks_the_same_however_it_is_spelt():
    assert palette.choose_look("t-Adam") == palette.choose_look("TAdam")
    assert palette.choose_look("Adam, clipped") == palette.choose_look("Adam")
    assert palette.choose_look("Adam, not clipped") == palette.choose_look("Adam")._replace(dash=palette.DASHES[1])
    looks = [palette.choose_look(it) for it in palette.KNOWN]
    assert len(set(map(str, looks))) == len(looks)


@pytest.mark.parametrize(
    "methods",
    [
        (*comparison.RIVALS, "AdaTerm", "AdaTerm2", "At-Adam (as published)", "Adam (short memory)"),
        tuple(name for name in PAPER_METHODS if name.startswith(("AdaTerm", "No ", "Large"))),
        ("Adam", "AdaTerm", "t-Adam", "At-Adam (as published)"),
        ("Adam", "AdaTerm", "AdamW (clipped)"),
    ],
)
def test_methods_of_one_figure_have_different_colours(methods):
    assert len({palette.choose_look(method).colour for method in methods}) == len(methods)


def browse(tmp_path, page, *options):
    safe = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    quiet = "--disable-component-update --disable-sync --hide-scrollbars --allow-file-access-from-files"
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    command = [BROWSER, *safe.split(), *quiet.split(), profile, *options, page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
@pytest.mark.parametrize("name", ["report.html", "pages/regression.html"])
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 900)])
def test_the_page_fits_the_window(folder, tmp_path, name, width, height):
    # A frame, since a browser's own window cannot be as narrow as a phone.
    frame = tmp_path / "frame.html"
    measure = "document.title = [this.contentDocument.documentElement.scrollWidth, this.contentWindow.innerWidth]"
    address = (folder / name).as_uri()
    frame.write_text(f'<iframe src="{address}" width="{width}" height="{height}" onload="{measure}"></iframe>')
    found = re.search(r"<title>(\d+),(\d+)</title>", browse(tmp_path, frame, "--window-size=1400,1000", "--dump-dom"))
    assert found
    assert int(found[2]) == width
    assert int(found[1]) <= width
    picture = tmp_path / "page.png"
    browse(tmp_path, frame, "--window-size=1400,1000", f"--screenshot={picture}")
    assert picture.read_bytes().startswith(b"\x89PNG")

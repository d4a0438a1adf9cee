"""The command line says what there is, what was wrong, and what a results directory holds."""

import io
import json
import lzma
import re
from pathlib import Path
from typing import Literal

import pytest
from bench_command import TOY, Bench, read_report

from adaterm_bench import cli_run
from adaterm_bench.core import progress, scratch
from adaterm_bench.core.coordinator import Event, carry_out
from adaterm_bench.core.flags import parse_value, read_seeds
from adaterm_bench.core.progress import Display, format_duration
from adaterm_bench.core.store import Store
from adaterm_bench.core.trial import Trial
from adaterm_bench.core.work import Attempt, Batch
from adaterm_bench.methods import GROUPS, OUR_METHODS, PAPER_METHODS

WHOLE = """
@dataclass(frozen=True)
class Own(E):
    name, title, version, methods, presets = "own", "Own", 1, ("a",), {"quick": {}, "smoke": {}}
    version = 1
    size: int = 1
    def conditions(self):
        return [{}]
    def run(self, trials, device, progress):
        return [{} for _ in trials]
    def section(self, results):
        return Section("Own", "")
"""
WHOLE_FILE = "from dataclasses import dataclass\nfrom adaterm_bench import Experiment as E, Section\n" + WHOLE


def test_list_shows_experiments_presets_and_methods(main):
    code, text = main("list", TOY)
    assert code == 0
    assert text.splitlines() == [
        "toy: Nothing in particular",
        "  methods: steady, pair, fails, dies, leaves, bulky, strange",
        "  smoke: 7 trials",
        "  quick: 21 trials",
        "  paper: 35 trials",
    ]


def test_an_experiments_settings_are_flags_with_help(main):
    code, text = main("run", TOY, "--help")
    assert code == 0
    assert "--level VALUE" in text
    assert "decides results, 100 % of them; 1.0 where the preset says nothing" in " ".join(text.split())
    assert "--level" not in main("run", "--help")[1]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "regresion"], "Did you mean 'regression'?"),
        (["run", "no/such.py"], "There is no file no/such.py"),
        (["run", "no.such.module"], "No experiment 'no.such.module'"),
        (["run", TOY, "--methods", "stedy"], "Did you mean 'steady'? There is: steady, pair, "),
        (["run", TOY, "--preset", "papr"], "no preset 'papr'. Did you mean 'paper'? There is: smoke, quick, paper"),
        (["run", TOY, "--levle", "1"], "Did you mean '--level'?"),
        (["run", TOY, "--lev", "1"], "Unknown here: --lev 1"),
        (["run", TOY, "--level", "high"], "--level high: this must be a number"),
        (["run", TOY, "--widths", "1,x"], "--widths 1,x: this must be a whole number"),
        (["run", TOY, "--seeds", "many"], "--seeds many: give a number"),
        (["run"], "EXPERIMENT"),
        (["status", "nowhere"], "nowhere is not a results directory"),
        (["report", "nowhere"], "nowhere is not a results directory"),
    ],
)
def test_an_error_says_what_there_is(main, words, says):
    code, text = main(*words)
    assert code == 2
    assert says in text
    assert "Traceback" not in text


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [0, 1, 2]), ("3-5", [3, 4, 5]), ("7,1", [1, 7]), ("0,2-3", [0, 2, 3]), ("4-4", [4])]
)
def test_seeds(text, seeds):
    assert read_seeds(text) == seeds


@pytest.mark.parametrize(
    ("hint", "text", "value"),
    [
        (int, "20_000", 20_000),
        (float, "1", 1.0),
        (bool, "false", False),
        (str, "x", "x"),
        (tuple[float, ...], "0, 0.5", (0.0, 0.5)),
        (list[int], "", []),
        (float | None, "none", None),
        (float | None, "2", 2.0),
        (Literal["a", "b"], "b", "b"),
        (dict[str, int], '{"a": 1}', {"a": 1}),
    ],
)
def test_text_becomes_what_a_setting_is(hint, text, value):
    found = parse_value(hint, text)
    assert found == value
    assert type(found) is type(value)


def test_status_sums_up_and_counts_methods_that_lack_something(main, tmp_path):
    bench = Bench(tmp_path)
    assert bench.run("--seeds", 2, "--failures", 9, methods=("steady", "fails"))[0] == 1
    bench.run("--seeds", 1, "--level", 3, "--failures", 0, methods=("fails",), workers=0)
    code, text = main("status", bench.out)
    assert code == 0
    rows = [line.split() for line in text.splitlines()]
    assert text.startswith("3 of 5 planned trials of 2 experiments are done; 2 failed, 0 missing.")
    assert ["toy", "(quick)", "2", "2", "2", "0"] in rows
    assert ["fails", "0", "2", "0"] in rows
    assert ["toy", "(quick,", "level=3.0)", "1", "1", "0", "0"] in rows
    assert "steady" not in text  # nothing of it is missing
    assert "failed 2 times: toy fails {'noise': 0.5} seed 1: RuntimeError: seed 1 fails on purpose" in text
    assert text.splitlines()[-1].startswith("3 results, 0.0 MB in ")

    lost = next(path for path in (bench.out / "results").iterdir() if b'"steady"' in lzma.decompress(path.read_bytes()))
    lost.unlink()
    text = main("status", bench.out)[1]
    assert text.startswith("2 of 5 planned trials of 2 experiments are done; 2 failed, 1 missing.")
    assert ["steady", "1", "0", "1"] in [line.split() for line in text.splitlines()]


def test_status_of_what_is_complete_is_a_line_for_each_experiment(main, tmp_path):
    bench = Bench(tmp_path)
    bench.run("--seeds", 2, methods=("steady",), workers=0)
    text = main("status", bench.out)[1]
    assert text.startswith("All 2 planned trials of 1 experiment are done.")
    assert len(text.splitlines()) == 4


def test_directories_are_merged_and_packed(main, tmp_path):
    """What two machines have done is in one directory, which is complete; what is wrong is said before anything is."""
    run = ("run", TOY, "--log", tmp_path, "--methods", "steady", "--workers", 0, "--seeds")
    assert [main(*run, seeds, "--out", out)[0] for out, seeds in (("a", "0-1"), ("b", "1-2"))] == [0, 0]
    code, text = main("merge", "a", "b", "--out", "both")
    assert code == 0
    counts = re.findall(r"(\d+) of (\d+) results in (\w) are new in both", text)
    assert [(int(new) < int(all_), folder) for new, all_, folder in counts] == [(False, "a"), (True, "b")]
    assert main("pack", "both")[0] == 0
    assert len(list(Path("both/plans").iterdir())) == len(list(Path("both/results").iterdir())) == 1
    assert "All" in main("status", "both")[1]
    keys = [Store(folder).done() for folder in ("a", "b", "both")]
    assert keys[0] | keys[1] == keys[2] > keys[0]
    assert main("merge", "a", "--out", "a")[0] == 2
    assert "a is --out itself, which keeps what it has: leave it out" in main("merge", "a", "b", "--out", "a")[1]
    assert "a is named twice" in main("merge", "a", "a", "--out", "new")[1]
    Path("file").touch()
    assert "Cannot use file for results: it is a file." in main("merge", "a", "--out", "file")[1]
    assert "nowhere is not a results directory" in main("merge", "nowhere", "--out", "new")[1]
    assert not Path("new").exists()
    assert main("merge", "b", "--out", "a")[0] == 0
    assert Store("a").done() == keys[2]
    (Path("asked") / "plans").mkdir(parents=True)  # as a run leaves it that is killed before anything is done
    assert main("merge", "asked", "--out", "a")[0] == main("pack", "asked")[0] == 0


def test_the_report_has_a_section_for_every_setting(main, tmp_path, monkeypatch):
    for words in ([], ["--seeds", 2], ["--level", "3"]):
        log = tmp_path / "log"
        log.mkdir(exist_ok=True)
        main("run", TOY, "--methods", "steady", "--workers", 0, "--log", log, "--out", "out", *words)
    written = []

    def write(sections, results, folder, single_file):
        written.extend(sections)
        assert len(results) == 6
        return [folder / "report.md"]

    monkeypatch.setattr("adaterm_bench.reporting.report.write", write, raising=False)
    code, text = main("report", "out")
    assert (code, text) == (0, "out/report/report.md\n")
    changed = "Not the usual settings, which are in brackets: level 3.0 (1.0)."
    assert [(it.title, it.text) for it in written] == [
        ("Nothing in particular (quick)", "3 results at level 1.0, widths (1, 2)"),
        ("Nothing in particular (quick, level=3.0)", "3 results at level 3.0, widths (1, 2) " + changed),
    ]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_one_line_in_a_terminal():
    screen = Terminal()
    display = Display(10, 2, screen)
    display.show(at_once=True)
    display.done, display.running, display.failed = 6, 3, 1
    display.say("something failed")
    display.close()
    lines = screen.getvalue().split("\n")
    assert len(lines) == 3  # what was said, the last numbers, and nothing
    assert "something failed" in lines[0]
    assert lines[1].split("\r")[-1].startswith("6/10 trials done, 3 running, 1 failed")


def test_progress_is_plain_lines_elsewhere(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    display = Display(10, 2, stream)
    for second in range(31):
        now[0], display.done = float(second), 2 + second // 10
        display.running = 1
        display.show()
    assert stream.getvalue().splitlines() == [
        "2/10 trials done, 1 running, 0 s so far",
        "3/10 trials done, 1 running, about 1 min 10 s left",
        "4/10 trials done, 1 running, about 1 min 0 s left",
        "5/10 trials done, 1 running, about 50 s left",
    ]


def test_what_an_earlier_run_did_is_not_this_ones_pace(tmp_path, monkeypatch):
    """A trial that goes on from a half, and has three quarters after 10 s, needs 10 s more."""
    batch = Batch("toy", "toy", {}, [Trial("toy", 1, {}, {}, "Adam", 0)], {}, out=str(tmp_path))
    with scratch.use_folder(batch.out, batch.key):
        scratch.save({})
    now, news = [0.0], [Event(batch), Event(batch, 0.5), Event(batch, 0.75)]

    class Pool:
        capacity, interrupts = 1, False

        def submit(self, batch):
            pass

        def wait(self):
            now[0] += 0.0 if len(news) > 1 else 10.0
            return [news.pop(0)] if news else [Event(batch, 1.0, Attempt([{}], {"seconds": 1.0}))]

        def close(self):
            pass

    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    carry_out([batch], Pool(), Store(tmp_path), Display(1, 0, stream), 0)
    assert "0/1 trials done, 1 running, about 10 s left" in stream.getvalue()
    assert not scratch.has_checkpoint(batch.out, batch.key)


@pytest.mark.parametrize(("resumes", "interrupts"), [(True, True), (True, False), (False, True)])
def test_when_the_time_is_up_what_can_go_on_later_is_interrupted(tmp_path, monkeypatch, resumes, interrupts):
    """A batch that takes 100 s, of which 30 are given, and another that waits; whatever must end ends."""
    batches = [
        Batch("toy", "toy", {}, [Trial("toy", 1, {}, {}, "Adam", seed)], {}, out=str(tmp_path), resumes=resumes)
        for seed in range(2)
    ]
    now, begun, ended = [0.0], [], []

    class Pool:
        capacity = 1

        def submit(self, batch):
            begun.append(batch)

        def wait(self):
            now[0] += 10.0
            done = now[0] >= 100.0
            return [Event(begun[-1], now[0] / 100.0, Attempt([{}], {"seconds": 100.0}) if done else None)]

        def close(self):
            ended.append(now[0])

    Pool.interrupts = interrupts
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    left = carry_out(batches, Pool(), Store(tmp_path), Display(2, 0, io.StringIO()), 0, 30.0)
    assert (left, ended) == ((2, [40.0]) if resumes and interrupts else (1, [100.0]))


def test_durations():
    assert [format_duration(it) for it in (0.4, 59, 61, 7200, 90_000)] == [
        "0 s",
        "59 s",
        "1 min 1 s",
        "2 h 0 min",
        "1 d 1 h",
    ]


def test_a_name_that_a_setting_does_not_know(main):
    code, text = main("run", "test_functions", "--functions", "Rosenbrok", "--preset", "smoke")
    assert code == 2
    assert "Did you mean 'Rosenbrock'?" in text


@pytest.mark.parametrize(
    ("content", "words", "says"),
    [
        ("1 / 0", ["run", "own.py"], "own.py cannot be imported"),
        ("1 / 0", ["run", "regression", "--with", "own.py"], "ZeroDivisionError"),
        ("import nowhere", ["run", "regression", "--with", "own.py"], "nowhere"),
        (
            "from adaterm_bench.experiments.regression.experiment import Regression as R\nclass Own(R):\n    pass",
            ["run", "own.py"],
            "names its experiment 'regression'",
        ),
    ],
)
def test_an_own_file_that_is_wrong_is_named_without_a_traceback_of_ours(
    main, content, words, says, tmp_path, monkeypatch
):
    name = f"own{abs(hash((content, *words)))}.py"
    (tmp_path / name).write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    code, text = main(*[str(tmp_path / name) if word == "own.py" else word for word in words])
    assert code == 2
    assert says.replace("own.py", name) in text
    assert "registry.py" not in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--samples", "-5"], "samples=-5: this must be at least 1"),
        (["--samples", "5"], "at least a batch of 10"),
        (["--checks", "0"], "checks=0: this must be at least 1"),
        (["--noises", "0.1,2"], "noises=2.0: this must be at least 0 and at most 1"),
        (["--dtype", "float16"], "there is no 'float16'"),
        (["--lr", "nan"], "lr=nan"),
        (["--device", "nonsense"], "--device nonsense cannot be used"),
        (["--retries", "-1"], "--retries -1"),
        (["--minutes", "-1"], "--minutes -1"),
        (["--noises", ""], "has no trials"),
    ],
)
def test_values_that_cannot_work_are_refused_at_once(main, words, says):
    code, text = main("run", "regression", "--preset", "smoke", *words)
    assert (code, says in text) == (2, True), text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "class Own(E):\n    name = 'own'",
            "is incomplete: conditions, run, section, title, version, methods, presets missing",
        ),
        (WHOLE.replace("@dataclass(frozen=True)", ""), "must be a dataclass"),
    ],
)
def test_an_own_experiment_that_is_not_whole(main, tmp_path, text, says):
    file = tmp_path / f"own_{abs(hash(text))}.py"
    file.write_text("from dataclasses import dataclass\nfrom adaterm_bench import Experiment as E, Section\n" + text)
    code, printed = main("run", file)
    assert (code, says in printed) == (2, True), printed


def test_of_all_experiments_those_without_the_preset_are_named(main):
    code, text = main("run", "all", "--preset", "full", "--methods", "AdamW", "--device", "nonsense")
    assert code == 2
    (line,) = [line for line in text.splitlines() if "no preset full" in line]
    assert "regression" in line
    assert "language" not in line


def test_methods_run_in_the_order_in_which_they_are_named(main):
    words = ("--preset", "smoke", "--seeds", 1, "--workers", 0, "--out", "out")
    assert main("run", "regression", "--methods", "RAdam", "AdaTerm", "Adam", "AdaTerm", *words)[0] == 0
    (plan,) = Path("out/plans").glob("*.json")
    assert json.loads(plan.read_text())["methods"] == ["RAdam", "AdaTerm", "Adam"]


def test_a_word_may_mean_many_methods(main):
    words = ("--preset", "smoke", "--noises", 0.5, "--samples", 40, "--seeds", 1, "--workers", 0, "--out", "out")
    assert tuple(GROUPS) == cli_run.GROUPS
    assert main("run", "regression", "--methods", "ours,six", "t-Adam", *words)[0] == 0
    (plan,) = Path("out/plans").glob("*.json")
    assert json.loads(plan.read_text())["methods"] == [*OUR_METHODS, *list(PAPER_METHODS)[:6]]


def test_methods_of_users_run_only_where_they_can(main, tmp_path):
    (tmp_path / "registers.py").write_text(
        "import torch\nfrom adaterm_bench.methods import register\n"
        "register('Own SGD', lambda params, lr: torch.optim.SGD(params, lr), elementwise=True)"
    )
    code, text = main(
        "run", "figures", "--with", tmp_path / "registers.py", "--methods", "Own SGD", "--preset", "smoke"
    )
    assert (code, "figures has no trials" in text) == (2, True), text


def test_the_report_shows_what_it_can(main, tmp_path):
    arguments = ["--preset", "smoke", "--workers", 0, "--out", "out", "--seeds", 2]
    assert main("run", "regression", "--methods", "Adam,AdaTerm", *arguments)[0] == 0
    assert main("run", "regression", "--methods", "t-Adam", "--noises", "0.5", *arguments)[0] == 0
    assert main("run", "regression", "--methods", "RAdam", *arguments[:-1], "5-6")[0] == 0
    code, _ = main("report", "out")
    page = read_report(tmp_path / "out/report")
    assert code == 0
    assert "Not shown, because trials are missing that the others have: RAdam, t-Adam" in page
    assert "They show that everything runs, and prove nothing" in page
    assert "Not the usual settings, which are in brackets: samples 300 (40000)" in page
    (tmp_path / "gone.py").write_text(WHOLE_FILE)
    assert main("run", tmp_path / "gone.py", *arguments)[0] == 0
    (tmp_path / "gone.py").write_text(WHOLE_FILE.replace('Section("Own", "")', "1 / 0"))
    assert "its section failed with ZeroDivisionError" in main("report", "out")[1]
    (tmp_path / "gone.py").write_text(WHOLE_FILE.replace("size:", "extent:"))
    code, text = main("report", "out")
    assert (code, "own (smoke) of" in text, "regression-smoke" in text) == (1, True, True), text


def test_results_of_another_version_are_not_mixed_in(main, tmp_path):
    file = tmp_path / "grows.py"
    for version, seeds in ((1, 3), (2, 2)):
        file.write_text(WHOLE_FILE.replace("version = 1", f"version = {version}"))
        assert main("run", file, "--seeds", seeds, "--workers", 0, "--out", "out")[0] == 0
    assert "3 results of other versions are not shown" in main("report", "out")[1]


def test_a_former_version_that_is_still_told_of_has_a_section_of_its_own(main, tmp_path):
    file = tmp_path / "tells.py"
    file.write_text(WHOLE_FILE)
    assert main("run", file, "--seeds", 3, "--workers", 0, "--out", "out")[0] == 0
    file.write_text(WHOLE_FILE.replace("version = 1", 'version = 2\n    former = {1: "it was smaller."}'))
    assert main("report", "out")[0] == 0
    assert main("run", file, "--seeds", 2, "--workers", 0, "--out", "out")[0] == 0
    assert main("report", "out")[0] == 0
    text = read_report(tmp_path / "out/report")
    assert text.index("# Own (quick)") < text.index("# Own (quick, version 1)")
    assert "Results of a former version of this experiment: it was smaller." in text


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(("seeds", "told"), [(2, [2, 3]), (3, [3]), (4, [4])])
def test_a_claim_of_a_former_version_gives_way_to_one_of_as_many_seeds(main, tmp_path, seeds, told, size):
    """Also where the present version has another default."""
    file = tmp_path / f"claims{seeds}of{size}.py"
    made = "Claim('Better.', 'gain', 2.0, 1.0, 3.0, seeds=len(results))"
    text = "from adaterm_bench.core.section import Claim\n" + WHOLE_FILE.replace(
        'Section("Own", "")', f'Section("Own", "", claims=[{made}])'
    )
    file.write_text(text)
    assert main("run", file, "--seeds", 3, "--workers", 0, "--out", "out")[0] == 0
    text = text.replace("size: int = 1", f"size: int = {size}")
    file.write_text(text.replace("version = 1", 'version = 2\n    former = {1: "it was smaller."}'))
    assert main("report", "out")[0] == 0
    assert main("run", file, "--seeds", seeds, "--workers", 0, "--out", "out")[0] == 0
    assert main("report", "out")[0] == 0
    claims = json.loads((tmp_path / "out/report/claims.json").read_text())
    assert [claim["seeds"] for claim in claims] == told

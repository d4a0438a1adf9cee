"""What the README and its pages show works as it stands there."""

import doctest
import importlib
import json
import os
import re
import runpy
import subprocess
import sys
from contextlib import chdir, redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import t as student

import adaterm
from adaterm_bench.arena.measure import format_difference
from adaterm_bench.arena.protocol import is_tuning
from adaterm_bench.core.store import Store
from adaterm_bench.core.trial import keep_newest_equations
from adaterm_bench.experiments.language.report import MEASURE
from adaterm_bench.methods import PAPER_METHODS

ROOT = Path(__file__).parents[1]


def run_page(page, given=""):
    """Every Python block of a page, in order, as one program, after what it takes as given; what it prints."""
    blocks = (ROOT / page).read_text().split("```python\n")[1:]
    program = "\n".join([given, *(block.split("```")[0] for block in blocks)])
    with redirect_stdout(StringIO()) as shown, chdir(ROOT), torch.random.fork_rng():
        exec(compile(program, page, "exec"), {"__name__": "__main__"})
    return shown.getvalue()


def run_program(*words):
    """What a program prints, run as users run it: without Triton's interpreter."""
    environment = os.environ | {"TRITON_INTERPRET": "0"}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout


def load(record):
    return json.loads((ROOT / "results" / record).read_text())


def assert_numbers(page, shown):
    """What stands between a page's marks of these names is what was measured."""
    text = " ".join((ROOT / page).read_text().split())
    for name, numbers in shown.items():
        there = re.findall(f"<!-- {re.escape(name)} -->(.*?)<!-- -->", text)
        assert there, f"{page} has no <!-- {name} -->"
        assert set(there) == {numbers}, f"{page}: {name}"


def list_marks(page):
    """The names of a page's marks."""
    return {*re.findall(r"<!-- (?!-->)(.*?) -->", " ".join((ROOT / page).read_text().split()))}


def test_the_demo_runs_and_records_where_its_numbers_come_from(tmp_path):
    shown = run_program("examples/demo.py", "--steps", 20, "--seeds", 1, "--out", tmp_path)
    assert "loss, none bad" in shown
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("demo.png", "levels.png"))
    record = json.loads((tmp_path / "demo.json").read_text())
    assert {"table", "tuning", "command", "versions", "device", "commit", "settings"} <= set(record)
    assert set(record["table"]) == set(load("demo/demo.json")["table"])


def test_the_demo_has_the_learning_rates_that_were_chosen():
    """Without `--tune` it runs as the committed run did after its tuning, and no choice is at the end of the grid."""
    demo = runpy.run_path(str(ROOT / "examples/demo.py"))
    chosen = load("demo/demo.json")["tuning"]["chosen"]
    assert {name: method.lr for name, method in demo["METHODS"].items()} == chosen
    assert all(min(demo["GRID"]) < lr < max(demo["GRID"]) for lr in chosen.values())


def test_the_first_pages_have_the_demos_numbers():
    record = load("demo/demo.json")
    assert (record["settings"]["seeds"], record["settings"]["share of bad batches"]) == (3, 0.2)
    shown = {}
    for name in ("AdamW, clipped at 1", "AdaTerm", "RobustAdamW"):
        dirty, clean = (record["table"][name][f"loss, {kind}"] for kind in ("bad batches", "none bad"))
        shown |= {f"demo.bad.{name}": f"{dirty:.3f}", f"demo.none.{name}": f"{clean:.3f}"}
    assert_numbers("docs/index.md", shown)
    assert_numbers("README.md", {name: number for name, number in shown.items() if name in list_marks("README.md")})
    assert {"demo.bad.AdamW, clipped at 1", "demo.bad.RobustAdamW"} <= list_marks("README.md")


def format_row(row):
    """A row of the table of options as the page shows it."""
    losses = [f"{row[name]:.3f}" for name in ("loss, bad batches", "loss, none bad")]
    shares = [row[name] for name in ("bad ones excluded", "good ones excluded", "excluded, none bad")]
    return " | ".join([*losses, *("-" if share is None else f"{100 * share:.1f} %" for share in shares)])


def test_robust_adamws_page_has_the_arenas_losses():
    page, losses = (ROOT / "docs/robust_adamw.md").read_text(), {}
    for result in keep_newest_equations(Store(ROOT / "results/arena_quick").results("language")):
        key = result.trial.method, result.trial.condition["noise"]
        losses.setdefault(key, []).append(result.outcome["loss"])
    noises = ("clean", "tokens 10 %", "targets 20 %", "bursts 10 %", "tensor 2 %", "spike 1 %", "garbage 2 %")
    assert f"| | {' | '.join(noises)} |" in page
    for method in ("AdamW (clipped)", "RobustAdamW", "RobustAdamW (clipped)", "Oracle"):
        assert {len(losses[method, noise]) for noise in noises} == {3}
        row = " | ".join(f"{sum(losses[method, noise]) / 3:.3f}" for noise in noises)
        assert f"<!-- quick.{method} -->{row}<!-- -->" in page


def test_the_page_of_choices_has_the_losses_of_the_first_version():
    page, runs = (ROOT / "docs/robust_adamw_choices.md").read_text(), load("language_check/language_check.json")["runs"]
    conditions = list(dict.fromkeys(run["condition"] for run in runs))
    for method in ("AdamW", "AdamW, clipped at 1", "RobustAdamW", "RobustAdamW, max_norm 1"):
        losses = [
            [run["loss"] for run in runs if (run["method"], run["condition"]) == (method, condition)]
            for condition in conditions
        ]
        assert {len(seeds) for seeds in losses} == {3}
        row = " | ".join(f"{sum(seeds) / 3:.3f}" for seeds in losses)
        assert f"<!-- language.{method} -->{row}<!-- -->" in page


def test_the_variants_that_can_be_tried_are_of_the_present_equations(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    program = importlib.import_module("robust_variants")
    equations = (ROOT / "src" / program.EQUATIONS).read_text()
    for name, variant in program.VARIANTS.items():
        assert all(equations.count(text) == 1 for text, _ in variant.replaced), name


def test_the_page_of_choices_has_what_was_tried():
    page = (ROOT / "docs/robust_adamw_choices.md").read_text()
    noises = ("clean", "tokens 10 %", "targets 20 %", "tensor 2 %", "bursts 10 %")
    losses = {}
    for result in Store(ROOT / "results/arena").results("language"):
        trial, condition = result.trial, result.trial.condition
        if condition["model"] == "bytes" and condition["lr"] == 3e-3 and is_tuning(trial.seed):
            key = f"arena.{trial.method}", condition["noise"]
            losses.setdefault(key, []).append(result.outcome["loss"])
    for file in {*(ROOT / "results/robust_variants").glob("*.json")} - {ROOT / "results/robust_variants/12.json"}:
        for name, variant in load(f"robust_variants/{file.name}")["variants"].items():
            for run in variant["runs"]:
                losses.setdefault((f"{file.stem}.{name}", run["noise"]), []).append(run["loss"])
    rows = dict(re.findall(r"<!-- tried\.(.*?) -->(.*?)<!-- -->", page))
    shown = {f"{file}.{name.partition('.')[2]}" for name in rows for file in name.partition(".")[0].split("+")}
    assert {name for name, _ in losses if not name.startswith("arena.")} <= shown
    for name, row in rows.items():
        files, _, variant = name.partition(".")  # several files go on with each other's seeds
        keys = [f"{file}.{variant}" for file in files.split("+")]
        seeds = [[loss for key in keys for loss in losses.get((key, noise), [])] for noise in noises]
        cells = [f"{sum(values) / len(values):.3f} ({len(values)})" if values else "-" for values in seeds]
        assert row == " | ".join(cells), name


def test_the_page_of_choices_tells_how_far_variants_are_behind_the_best():
    page = (ROOT / "docs/robust_adamw_choices.md").read_text()
    variants = load("robust_variants/11.json")["variants"]
    losses = {
        name: [
            [run["loss"] for run in variant["runs"] if run["noise"] == noise]
            for noise in ("clean", "tokens 10 %", "targets 20 %", "tensor 2 %")
        ]
        for name, variant in variants.items()
        if not name.startswith("max_norm")
    }
    means = {name: [sum(values) / len(values) for values in columns] for name, columns in losses.items()}
    best = [min(column) for column in zip(*means.values(), strict=True)]
    behind = {name: max(a / b - 1.0 for a, b in zip(row, best, strict=True)) for name, row in means.items()}
    for name, lag in behind.items():
        assert f"<!-- behind.11.{name} -->{100 * lag:+.1f} %<!-- -->" in page
    assert min(behind, key=behind.get) == "the level is judged from 100 values on"
    clean = [
        {run["seed"]: run["loss"] for run in variants[name]["runs"] if run["noise"] == "clean"}
        for name in ("as it is", "the level is judged from 100 values on")
    ]
    assert [len(clean[0]), sum(clean[1][seed] < loss for seed, loss in clean[0].items())] == [6, 4]  # as it says
    text = " ".join(page.split())
    for name in re.findall(r"<!-- excluded\.(.*?) -->", text):
        shares = [run["good_excluded"] for run in variants[name]["runs"] if run["noise"] == "clean"]
        assert f"<!-- excluded.{name} -->{100 * sum(shares) / len(shares):.1f} %<!-- -->" in text


def test_the_page_of_choices_tells_what_costs_on_clean_data():
    """The present rule was run twice, on six seeds of eight."""

    def read_clean(runs, outcome):
        return {run["seed"]: run[outcome] for run in runs if run["noise"] == "clean"}

    runs = {f"12.{name}": variant["runs"] for name, variant in load("robust_variants/12.json")["variants"].items()}
    variants = load("robust_variants/11.json")["variants"]
    runs["before"] = variants["the level is judged from 100 values on"]["runs"]
    losses, shares, later = (
        {name: read_clean(of, outcome) for name, of in runs.items()}
        for outcome in ("loss", "good_excluded", "good_excluded_later")
    )
    for table in (losses, shares, later):
        now, before = table["12.as it is"], table["before"]
        table["both"] = {seed: np.mean([now[seed], before.get(seed, now[seed])]) for seed in now}
    wanted = {"model": "bytes", "noise": "clean", "lr": 3e-3}.items()
    clipped = {
        it.trial.seed: it.outcome["loss"]
        for it in Store(ROOT / "results/arena").results("language")
        if it.trial.method == "AdamW (clipped)" and wanted <= it.trial.condition.items()
    }

    def compare(first, second):
        return MEASURE.compare(*(np.array([side[seed] for seed in sorted(first)]) for side in (first, second)))

    apart = {name: compare(of, clipped) for name, of in losses.items()}
    shown = {f"clean.{name}": f"{np.mean([*of.values()]):.4f}" for name, of in losses.items()}
    shown |= {f"share.{name}": f"{100.0 * np.mean([*of.values()]):.1f} %" for name, of in shares.items()}
    shown |= {f"apart.{name}": format_difference(interval) for name, interval in apart.items()}
    excluding = compare(losses["both"], losses["12.no batch excluded"])
    again = [abs(losses["12.as it is"][seed] / loss - 1.0) for seed, loss in losses["before"].items()]
    shown["apart.excluding"] = format_difference(excluding)
    shown["again.12"] = f"{100.0 * max(again):.1f} %"
    shown["share.later"] = f"{100.0 * np.mean([*later['both'].values()]):.2f} %"
    assert_numbers("docs/robust_adamw_choices.md", shown)
    assert sorted(losses["both"]) == list(range(1000, 1008))
    assert sorted(losses["before"]) == list(range(1000, 1006))
    assert apart["both"].low > 0.0  # as it says
    assert 0.3 < apart["both"].estimate < apart["12.as it is"].estimate < 0.6
    assert excluding.low < 0.0 < excluding.high


def test_the_page_of_choices_has_final_runs_of_three_versions():
    page = (ROOT / "docs/robust_adamw_choices.md").read_text()
    results = Store(ROOT / "results/arena").results("language")
    chosen = [result for result in results if result.trial.method == "RobustAdamW"]
    now = [id(result) for result in keep_newest_equations(chosen)]
    for name, equations in {"before": "559bec6a8568", "after": "82671915e890", "now": None}.items():
        rows = [result for result in chosen if id(result) in now]
        if equations is not None:
            rows = [result for result in chosen if result.trial.condition["equations"] == equations]
        cells = []
        for noise in ("clean", "targets 20 %", "targets 30 %", "targets 40 %", "bursts 10 %", "trap"):
            wanted = {"noise": noise, "lr": 3e-3, "model": "bytes"}.items()
            runs = [r for r in rows if wanted <= r.trial.condition.items() and not is_tuning(r.trial.seed)]
            assert sorted(run.trial.seed for run in runs) == list(range(3 if name == "before" else 5))
            kinds = ("loss", "second_loss") if noise == "trap" else ("loss",)
            cells.append(" / ".join(f"{sum(run.outcome[kind] for run in runs) / len(runs):.3f}" for kind in kinds))
        assert f"<!-- changed.{name} -->{' | '.join(cells)}<!-- -->" in page


def test_robust_adamws_page_has_its_step_times():
    page, record = (ROOT / "docs/robust_adamw.md").read_text(), load("step_time/cuda.json")
    rivals = record["rivals"]
    for shape in ("mlp", "resnet18", "vit", "gpt2", "llama", "one", "gpt2, bf16", "llama, bf16"):
        ratio = rivals[shape]["RobustAdamW(max_norm=1.0) / clip_grad_norm_ + AdamW(fused=True)"]
        assert f"<!-- pair.{shape} -->{ratio['eager']:.2f} | {ratio['graph']:.2f}<!-- -->" in page
        alone = record["ratios"][shape]["RobustAdamW()"]
        assert f"<!-- alone.{shape} -->{alone['eager']:.2f} | {alone['graph']:.2f}<!-- -->" in page
    record = load("step_time/cpu.json")
    for shape in ("mlp", "resnet18"):
        ratio = record["rivals"][shape]["RobustAdamW(max_norm=1.0) / clip_grad_norm_ + AdamW(fused=True)"]
        assert f"<!-- pair.cpu.{shape} -->{ratio['eager']:.2f}<!-- -->" in page
        alone = record["ratios"][shape]["RobustAdamW()"]
        assert f"<!-- alone.cpu.{shape} -->{alone['eager']:.2f}<!-- -->" in page


def test_robust_adamw_works_as_its_page_says():
    """Its code runs, and its numbers are the measured ones."""
    shown = run_page("docs/robust_adamw.md")
    assert "batches excluded" in shown
    assert "trust in the second task 0.00" in shown
    page = " ".join((ROOT / "docs/robust_adamw.md").read_text().split())
    record = load("robust_options/robust_options.json")
    for name, row in record["table"].items():
        assert f"<!-- {name} -->{format_row(row)}<!-- -->" in page
    assert f"<!-- share -->{100 * record['settings']['share of bad batches']:g} %<!-- -->" in page
    assert f"<!-- seeds -->{record['settings']['seeds']}<!-- -->" in page


def test_the_monitors_page_has_what_was_measured_and_its_code_runs():
    shown = run_page("docs/monitor.md")
    assert "tensors that stood out" in shown
    assert "'adaterm/level'" in shown
    page, record = (ROOT / "docs/monitor.md").read_text(), load("monitor_quality/monitor_quality.json")
    signals = ("loss", "norm", "loss z", "SkipStep", "z", "score")
    assert f"| {' | '.join(signals)} |" in page
    for name, row in record["table"].items():
        cells = " | ".join(f"{row['auroc'][signal]:.2f} / {row['precision'][signal]:.2f}" for signal in signals)
        caught, wrongly = (100.0 * row[kind]["RobustAdamW"] for kind in ("caught", "false alarms"))
        told = f"<!-- caught.{name} -->{caught:.0f} %; {wrongly:.1f} %<!-- -->"
        assert f"| <!-- {name} -->{cells}<!-- --> | {told} |" in page
    assert f"<!-- seeds -->{record['settings']['seeds']}<!-- -->" in page
    for noise in ("targets 20 %", "targets 40 %"):
        area = record["table"][f"language, {noise}"]["auroc"]
        assert f"<!-- lead.{noise} -->{area['loss'] - area['score']:.2f}<!-- -->" in page
    for file in sorted((ROOT / "results/monitor_cost").glob("*.json")):
        for model, by_method in load(f"monitor_cost/{file.name}")["table"].items():
            for method, row in by_method.items():
                watched, read = row["per cent more"].values()
                assert f"<!-- {file.stem}.{model}.{method} -->{watched:.1f} | {read:.1f}<!-- -->" in page
    demo = load("monitor_cost/cpu.json")["table"]["demo"]["RobustAdamW"]
    assert demo["per cent more"]["watched"] <= 2.0
    assert f"<!-- cpu.step -->{demo['milliseconds']['alone']:.1f}<!-- -->" in page


JUDGES = ("judged", "judged by loss")
"""The kinds of runs with a judge, in the columns' order of the page on judges."""


def read_judged():
    """The losses of that page: by method, share of bad batches and kind, of all seeds."""
    return {
        (name, share, kind): np.array([run["loss"] for run in sorted(runs, key=lambda run: run["seed"])])
        for name, kinds in load("judged/judged.json")["table"].items()
        for kind, shares in kinds.items()
        for share, runs in shares.items()
    }


def format_judged(losses, name, share):
    """A method's row of a table of that page."""
    alone = losses[name, share, "alone"]
    cells = [f"{alone.mean():.3f}"]
    for kind in JUDGES:
        judged = losses.get((name, share, kind))
        apart = None if judged is None else format_difference(MEASURE.compare(judged, alone), 1)
        cells.append("-" if judged is None else f"{judged.mean():.3f}; {apart}")
    return " | ".join(cells)


def format_shares(table, kind, share, outcome):
    """Which share of the bad or good batches a judge left out, over all optimizers."""
    runs = [kinds[kind][share] for kinds in table.values() if kind in kinds]
    shares = [100.0 * np.mean([run[outcome] for run in each]) for each in runs]
    return f"{min(shares):.0f} to {max(shares):.0f} %" if share != "0 %" else f"{max(shares):.1f} %"


def test_the_page_on_judges_has_what_was_measured_and_its_code_runs():
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("torch has Muon since 2.9")
    printed = run_page("docs/batch_judge.md")
    assert "tensors that stood out" in printed
    assert str([*range(109, 300, 10)]) in printed  # what the LossJudge leaves out, once it knows what is usual
    record, losses = load("judged/judged.json"), read_judged()
    shown = {f"judged.{share}.{name}": format_judged(losses, name, share) for name, share, _ in losses}
    for kind in JUDGES:
        shown[f"judged.refused.{kind}"] = format_shares(record["table"], kind, "0 %", "good_excluded")
        shown[f"judged.caught.{kind}.20 %"] = format_shares(record["table"], kind, "20 %", "bad_excluded")
        ahead = MEASURE.compare(losses["Muon with AdamW", "20 %", kind], losses["RobustAdamW", "20 %", "alone"])
        shown["judged.muon" + kind.removeprefix("judged")] = format_difference(ahead, 1)
        assert ahead.high < 0.0
    assert_numbers("docs/batch_judge.md", shown | {"judged.seeds": str(record["settings"]["seeds"])})
    for name in record["table"].keys() - {"RobustAdamW"}:  # as it says
        alone = {share: losses[name, share, "alone"] for share in ("0 %", "20 %", "30 %")}
        for kind in JUDGES:
            apart = {share: MEASURE.compare(losses[name, share, kind], runs) for share, runs in alone.items()}
            assert apart["0 %"].low <= 0.0 <= apart["0 %"].high, (name, kind)
            assert apart["20 %"].high < 0.0, (name, kind)
            assert apart["30 %"].high < 0.0, (name, kind)
            cost = losses[name, "20 %", kind].mean() - losses[name, "0 %", kind].mean()
            assert cost < (alone["20 %"].mean() - alone["0 %"].mean()) / 3.0, (name, kind)
        apart = MEASURE.compare(losses[name, "20 %", "judged by loss"], losses[name, "20 %", "judged"])
        assert apart.estimate > 0.0
        assert (apart.low > 0.0) == name.startswith("SGD")
    for runs in (record["table"][name][kind]["30 %"] for kind in JUDGES):
        assert 0.45 < np.mean([run["bad_excluded"] for run in runs]) < 0.55
    ours = {
        share: MEASURE.compare(losses["RobustAdamW", share, "judged by loss"], losses["RobustAdamW", share, "alone"])
        for share in ("20 %", "30 %")
    }
    assert ours["30 %"].high < 0.0
    assert ours["20 %"].low < 0.0 < ours["20 %"].high


def test_the_tutorial_on_bad_data_has_what_was_found():
    page = (ROOT / "docs/finding_bad_data.md").read_text()
    for prefix, folder in (("", "find_bad_shards"), ("hard.", "find_bad_shards_scatter")):
        record = load(f"examples/{folder}/find_bad_shards.json")
        assert (record["settings"]["shards"], record["settings"]["mislabelled"]) == (5000, 50)
        for short, name in (("one", "one shard a batch"), ("four", "four shards a batch")):
            counts = record["table"][name]["found"]
            assert f"<!-- {prefix}{short} -->{counts['monitor']}<!-- -->" in page
            assert f"<!-- {prefix}loss.{short} -->{counts['mean loss']}<!-- -->" in page


def test_the_readmes_code_runs():
    """With a model, batches of which every tenth is wrong, and a loss."""
    given = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
inputs = [torch.randn(16, 8) for _ in range(200)]
batches = [(each, each.sum(1, keepdim=True) * (100.0 if n % 10 == 9 else 1.0)) for n, each in enumerate(inputs)]
loss = torch.nn.functional.mse_loss
"""
    assert "tensors that stood out" in run_page("README.md", given)


@pytest.mark.parametrize("page", ["index", "adaterm", "from_adam"])
def test_the_code_of_a_page_runs(page):
    assert {"index": "trust", "adaterm": "trust", "from_adam": "0.9"}[page] in run_page(f"docs/{page}.md")


@pytest.mark.parametrize("module", ["optimizers", "judge", "loss_judge", "monitor.monitor"])
def test_the_examples_of_the_reference_run(module):
    """And every optimizer has one."""
    module = f"adaterm.{module}"
    imported = importlib.import_module(module)
    assert doctest.testmod(imported).failed == 0
    for name in adaterm.__all__:
        described = getattr(adaterm, name)
        if described.__module__ == module:
            assert ">>> " in described.__doc__, name


def test_the_reference_names_what_is_public_before_the_site_is_built():
    """In a table, each with a sentence, so that the page is of use as a file; below it each has its docstring."""
    page = (ROOT / "docs/api.md").read_text()
    rows = [row.split("|") for row in page.splitlines() if row.startswith("| `")]
    assert all(sentence.strip() and "](" in link for _, _, sentence, link, _ in rows)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    described = set(re.findall(r"^::: adaterm\.[\w.]*?(\w+)$", page, re.MULTILINE))
    assert named == set(adaterm.__all__) <= described


def compare_in_pairs(example, base, measure, style):
    """Rows of a table: the mean of paired seeds for each condition, and its difference from the base's."""
    record = load(f"examples/{example}.json")
    seeds = record["settings"]["seeds"]
    reach = student.ppf(0.975, seeds - 1) / seeds**0.5
    shown, ends = {}, {}
    for method in record["table"]["clean"]:
        cells = []
        for condition, rows in record["table"].items():
            ours, theirs = (torch.tensor([measure(curve) for curve in rows[name]["curves"]]) for name in (method, base))
            apart = ours - theirs
            middle, half = apart.mean().item(), reach * apart.std().item()
            interval = f"; {middle:+{style}} ({middle - half:+{style}} to {middle + half:+{style}})"
            cells.append(f"{ours.mean().item():{style}}{interval if method != base else ''}".replace("-", "\u2212"))
            ends[method, condition] = middle - half, middle + half
        shown[method] = " | ".join(cells)
    return shown, {key: interval for key, interval in ends.items() if interval[0] * interval[1] > 0.0}


def test_the_arena_has_the_returns_with_a_glitching_sensor():
    """And the words below the table say what the intervals do."""
    shown, decided = compare_in_pairs("rl_sb3", "Adam, clipped to 0.5", lambda curve: sum(curve) / len(curve), ".0f")
    assert_numbers("docs/arena.md", {f"glitch.{method}": row for method, row in shown.items()})
    behind = {(method, "rewards") for method in ("Adam, not clipped", "AdaTerm", "RobustAdamW")}
    ahead = {(method, "clean") for method in ("Adam, not clipped", "AdaTerm")}
    assert decided.keys() == behind | ahead
    assert all(decided[pair][1] < 0.0 for pair in behind)
    assert all(decided[pair][0] > 0.0 for pair in ahead)


def test_the_arena_has_the_accuracies_of_the_fine_tuning():
    """RobustAdamW is shown to be behind without bad batches, and nobody to be ahead."""
    shown, decided = compare_in_pairs("finetune_trainer", "AdamW, clipped to 1", lambda curve: 100.0 * curve[-1], ".1f")
    assert_numbers("docs/arena.md", {f"finetune.{method}": row for method, row in shown.items()})
    assert all(high < 0.0 for _, high in decided.values())
    ours = {("RobustAdamW", "clean"), ("RobustAdamW, max_norm=1", "clean")}
    assert decided.keys() == ours | {("Adam", "wrong labels"), ("AdaTerm", "wrong labels")}


def read_slow_start():
    record = load("slow_start/slow_start.json")
    trusted, adapted = (value for key, value in record.items() if key.startswith("steps until"))
    steps = " / ".join(map(str, trusted["eps"].values()))
    return {"slow_start": steps, **{f"dof_{dof}": str(step) for dof, step in adapted.items()}}


def test_adaterms_page_has_the_measured_numbers():
    assert_numbers("docs/adaterm.md", read_slow_start())


def test_the_page_of_step_times_has_the_measured_numbers():
    shown, ratios = {}, load("step_time/cuda.json")["ratios"]
    for kind, shapes in {
        "graph": ("resnet18", "gpt2", "one", "gpt2, bf16"),
        "eager": ("resnet18", "gpt2", "one"),
    }.items():
        for shape in shapes:
            shown[f"{kind}.{shape}"] = f"{ratios[shape]['AdaTerm(fused=True)'][kind]:.2f}"
    on_cpu = load("step_time/cpu.json")
    shown["first"] = f"{on_cpu['first step, seconds']['compiled']:.1f}"
    for shape in ("mlp", "resnet18"):
        ratios = on_cpu["ratios"][shape]
        shown[f"cpu.{shape}"] = f"{ratios['AdaTerm(fused=True)']['eager']:.2f}"
        shown[f"cpu.plain.{shape}"] = f"{ratios['AdaTerm(foreach=False)']['eager']:.0f}"
    assert_numbers("docs/benchmarks.md", shown)


def read_from_adam():
    """What the pages for those who come from Adam show of `from_adam.json`, by the names of their marks."""
    record = load("from_adam/from_adam.json")
    errors = record["error on clean test data, by bad data"]
    shown = {"seeds": str(record["settings"]["seeds"])}
    for arm, row in errors.items():
        shown[f"error.{arm}"] = " | ".join(f"{row[bad]['mean']:.3f}" for bad in record["bad data"])
        shown |= {f"{bad}.{arm}": f"{row[bad]['mean']:.3f}" for bad in record["bad data"]}
    for task, arms in record["learning rates"].items():
        shown |= {f"rate.{task}.{arm}": f"{tuned['best']:g}" for arm, tuned in arms.items()}
    for arm, tuned in record["learning rates"]["regression"].items():
        shown[f"tenth.{arm}"] = f"{tuned['loss by learning rate'][str(tuned['best'] / 10.0)]:.3f}"
    moves = record["how far parameters moved, by step, lr 0.001"]
    arms = ("AdaTerm", "AdaTerm, init_dof=100", 'AdaTerm, init_scale="gradient"', "RobustAdamW")
    for mark, way in moves["Adam"].items():
        shown[f"moved.{mark}"] = " | ".join(f"{100.0 * moves[arm][mark] / way:.1f} %" for arm in arms)
    for arm, row in record["mean trust in the second half of a run, by bad data"].items():
        shown |= {f"trust.{arm}.{bad}": f"{trust:.2f}" for bad, trust in row.items()}
    return shown


def read_chosen_rates():
    """The learning rates that were chosen on clean data in the demo, the examples and the arena's tuning runs."""
    shown = {f"rate.demo.{name}": f"{lr:g}" for name, lr in load("demo/demo.json")["tuning"]["chosen"].items()}
    for example in ("finetune_trainer", "rl_sb3"):
        rows = load(f"examples/{example}.json")["table"]["clean"]
        shown |= {f"rate.{example}.{name}": f"{row['lr']:g}" for name, row in rows.items()}
    losses = {}
    for result in Store(ROOT / "results/arena").results("language"):
        condition = result.trial.condition
        if condition["noise"] == "clean" and condition["model"] == "bytes" and result.trial.seed == 1000:
            losses.setdefault(result.trial.method, {})[condition["lr"]] = result.outcome["loss"]
    return shown | {f"rate.arena.{method}": f"{min(row, key=row.get):g}" for method, row in losses.items()}


@pytest.mark.parametrize("page", ["README.md", "docs/from_adam.md", "docs/choosing.md"])
def test_the_pages_on_choosing_have_what_was_measured(page):
    shown = read_from_adam() | read_chosen_rates() | read_slow_start()
    used = {name: shown[name] for name in list_marks(page) & shown.keys()}
    assert_numbers(page, used)
    others = ("demo.", "regression.", "arena.", "hero", "end of hero")
    assert not [name for name in list_marks(page) - used.keys() if not name.startswith(others)]
    assert len(used) >= 9


def test_what_the_chooser_says_is_what_was_measured():
    """The words beside the numbers: who is ahead where."""
    errors = load("from_adam/from_adam.json")["error on clean test data, by bad data"]

    def error(arm, bad):
        return errors[arm][bad]["mean"]

    assert "@@" not in (ROOT / "docs/choosing.md").read_text()
    clipped = "RobustAdamW, max_norm=1"
    for rival in ("Adam", "Adam, clipped at 1", "Adam, Huber's loss", "AdaTerm", "RobustAdamW"):
        assert error(clipped, "bad batches") < error(rival, "bad batches")
    judged = "Adam, clipped at 1, LossJudge"
    assert min(errors, key=lambda arm: error(arm, "bad batches")) == judged
    assert error("Adam, LossJudge", "bad batches") < 0.4 * error("Adam", "bad batches")
    assert 0.5 < error("Adam, LossJudge", "heavy tails") / error("Adam", "heavy tails") < 0.6
    assert error("Adam, LossJudge", "spikes") > 0.5 * error("Adam", "spikes")
    for adam in ("Adam", "Adam, clipped at 1"):
        assert abs(error(f"{adam}, LossJudge", "clean") / error(adam, "clean") - 1.0) < 0.02
    for rival in ("Adam", "Adam, clipped at 1", "AdaTerm", "RobustAdamW", clipped):
        assert error("Adam, Huber's loss", "bad samples") < error(rival, "bad samples")
        assert error("Adam, Huber's loss", "heavy tails") < error(rival, "heavy tails")
    for arm in ("AdaTerm", "RobustAdamW", "Adam, clipped at 1"):
        assert error(arm, "heavy tails") < 0.55 * error("Adam", "heavy tails")
    for arm in ("Adam, clipped at 1", "RobustAdamW", "AdaTerm"):
        assert error(arm, "spikes") < 0.1 * error("Adam", "spikes")
    assert error("Adam, Huber's loss", "spikes") > 0.9 * error("Adam", "spikes")
    assert error(clipped, "bad samples") < error("Adam, clipped at 1", "bad samples")
    for bad in ("bad batches", "bad samples", "heavy tails"):
        assert error("AdaTerm, init_dof=100", bad) > error("AdaTerm", bad)


def test_on_most_tasks_adaterm_wants_adams_rate():
    shown = read_from_adam() | read_chosen_rates()
    pairs = [("regression", "Adam"), ("classification", "Adam"), ("demo", "AdamW, clipped at 1")]
    pairs += [("arena", "AdamW (clipped)"), ("finetune_trainer", "Adam"), ("rl_sb3", "Adam, not clipped")]
    same = [shown[f"rate.{task}.AdaTerm"] == shown[f"rate.{task}.{adam}"] for task, adam in pairs]
    assert same == [True] * 4 + [False, True]


def test_the_docs_name_every_method():
    table = (ROOT / "docs/paper.md").read_text().split("## Methods")[1].split("**As published.**")[0]
    listed = [line.split(" | ")[0].removeprefix("| ") for line in table.split("\n") if " | " in line]
    assert listed[1:] == list(PAPER_METHODS)


def test_numbers_do_not_begin_a_line():
    """A mark there would end the paragraph in Markdown."""
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        assert not re.findall(r"^\s*<!-- \S.* -->\S.*", page.read_text(), re.MULTILINE), page

"""What the README and its pages show works as it stands there."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

from adaterm_bench.arena.protocol import is_tuning, keep_newest_equations
from adaterm_bench.core.store import Store
from adaterm_bench.methods import PAPER_METHODS

ROOT = Path(__file__).parents[1]


def run_page(page):
    """Every Python block of a page, in order, as one program; what it prints."""
    blocks = (ROOT / page).read_text().split("```python\n")[1:]
    program = "\n".join(block.split("```")[0] for block in blocks)
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


def load(record):
    return json.loads((ROOT / "results" / record).read_text())


def test_the_demo_runs_and_records_where_its_numbers_come_from(tmp_path):
    command = [sys.executable, "examples/demo.py", "--steps", "20", "--seeds", "1", "--out", str(tmp_path)]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
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


def test_the_readme_has_the_demos_numbers():
    record = load("demo/demo.json")
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert (record["settings"]["seeds"], record["settings"]["share of bad batches"]) == (3, 0.2)
    for name in ("AdamW, clipped at 1", "AdaTerm", "RobustAdamW"):
        dirty, clean = (record["table"][name][f"loss, {kind}"] for kind in ("bad batches", "none bad"))
        assert f"<!-- lost.{name} -->{dirty - clean:.2f}<!-- -->" in readme
        assert f"<!-- clean.{name} -->{clean:.3f}<!-- -->" in readme


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
    noises = ("clean", "tokens 10 %", "targets 20 %", "tensor 2 %", "spike 1 %", "garbage 2 %")
    assert f"| | {' | '.join(noises)} |" in page
    for method in ("AdamW (clipped)", "RobustAdamW", "RobustAdamW (clipped)", "Oracle"):
        assert {len(losses[method, noise]) for noise in noises} == {3}
        row = " | ".join(f"{sum(losses[method, noise]) / 3:.3f}" for noise in noises)
        assert f"<!-- quick.{method} -->{row}<!-- -->" in page


def test_robust_adamws_page_has_the_losses_of_the_first_version():
    page, runs = (ROOT / "docs/robust_adamw.md").read_text(), load("language_check/language_check.json")["runs"]
    conditions = list(dict.fromkeys(run["condition"] for run in runs))
    for method in ("AdamW", "AdamW, clipped at 1", "RobustAdamW", "RobustAdamW, max_norm 1"):
        losses = [
            [run["loss"] for run in runs if (run["method"], run["condition"]) == (method, condition)]
            for condition in conditions
        ]
        assert {len(seeds) for seeds in losses} == {3}
        row = " | ".join(f"{sum(seeds) / 3:.3f}" for seeds in losses)
        assert f"<!-- language.{method} -->{row}<!-- -->" in page


def test_robust_adamws_page_has_what_was_tried():
    page, noises = (ROOT / "docs/robust_adamw.md").read_text(), ("clean", "tokens 10 %", "targets 20 %")
    losses = {}
    for result in Store(ROOT / "results/arena").results("language"):
        trial, condition = result.trial, result.trial.condition
        if condition["lr"] == 3e-3 and is_tuning(trial.seed):
            key = f"arena.{trial.method}", condition["noise"]
            losses.setdefault(key, []).append(result.outcome["loss"])
    for file in ("1", "2", "3"):
        for name, variant in load(f"robust_variants/{file}.json")["variants"].items():
            for run in variant["runs"]:
                losses.setdefault((f"{file}.{name}", run["noise"]), []).append(run["loss"])
    rows = dict(re.findall(r"<!-- tried\.(.*?) -->(.*?)<!-- -->", page))
    assert {name for name, _ in losses if not name.startswith("arena.")} <= {*rows}
    for name, row in rows.items():
        seeds = [losses.get((name, noise), []) for noise in noises]
        cells = [f"{sum(values) / len(values):.3f} ({len(values)})" if values else "-" for values in seeds]
        assert row == " | ".join(cells), name


def test_robust_adamws_page_has_its_step_times():
    page, rivals = (ROOT / "docs/robust_adamw.md").read_text(), load("step_time/cuda.json")["rivals"]
    for shape in ("mlp", "resnet18", "vit", "gpt2", "llama", "one", "gpt2, bf16", "llama, bf16"):
        ratio = rivals[shape]["RobustAdamW(max_norm=1.0) / clip_grad_norm_ + AdamW(fused=True)"]
        assert f"<!-- pair.{shape} -->{ratio['eager']:.2f} | {ratio['graph']:.2f}<!-- -->" in page
    rivals = load("step_time/cpu.json")["rivals"]
    for shape in ("mlp", "resnet18"):
        ratio = rivals[shape]["RobustAdamW(max_norm=1.0) / clip_grad_norm_ + AdamW(fused=True)"]
        assert f"<!-- pair.cpu.{shape} -->{ratio['eager']:.2f}<!-- -->" in page


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
        assert f"| <!-- {name} -->{cells}<!-- --> |" in page
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


def test_the_tutorial_on_bad_data_has_what_was_found():
    page = (ROOT / "docs/finding_bad_data.md").read_text()
    for prefix, folder in (("", "find_bad_shards"), ("hard.", "find_bad_shards_scatter")):
        record = load(f"examples/{folder}/find_bad_shards.json")
        assert (record["settings"]["shards"], record["settings"]["mislabelled"]) == (5000, 50)
        for short, name in (("one", "one shard a batch"), ("four", "four shards a batch")):
            counts = record["table"][name]["found"]
            assert f"<!-- {prefix}{short} -->{counts['monitor']}<!-- -->" in page
            assert f"<!-- {prefix}loss.{short} -->{counts['mean loss']}<!-- -->" in page


def test_the_readme_code_runs():
    assert "trust" in run_page("README.md")


def test_the_readme_has_the_measured_numbers():
    record = json.loads((ROOT / "results/slow_start/slow_start.json").read_text())
    trusted, adapted = (value for key, value in record.items() if key.startswith("steps until"))
    shown = {
        "slow_start": " / ".join(map(str, trusted["eps"].values())),
        **{f"dof_{dof}": str(step) for dof, step in adapted.items()},
    }
    ratios = json.loads((ROOT / "results/step_time/cuda.json").read_text())["ratios"]
    for kind, shapes in {
        "graph": ("resnet18", "gpt2", "one", "gpt2, bf16"),
        "eager": ("resnet18", "gpt2", "one"),
    }.items():
        for shape in shapes:
            shown[f"{kind}.{shape}"] = f"{ratios[shape]['AdaTerm(fused=True)'][kind]:.2f}"
    on_cpu = json.loads((ROOT / "results/step_time/cpu.json").read_text())
    shown["first"] = f"{on_cpu['first step, seconds']['compiled']:.1f}"
    ratios = on_cpu["ratios"]
    for shape in ("mlp", "resnet18"):
        shown[f"cpu.{shape}"] = f"{ratios[shape]['AdaTerm(fused=True)']['eager']:.2f}"
        shown[f"cpu.plain.{shape}"] = f"{ratios[shape]['AdaTerm(foreach=False)']['eager']:.0f}"
    readme = (ROOT / "README.md").read_text()
    for name, numbers in shown.items():
        assert f"<!-- {name} -->{numbers}<!-- -->" in readme


def test_the_docs_name_every_method():
    table = (ROOT / "docs/paper.md").read_text().split("## Methods")[1].split("**As published.**")[0]
    listed = [line.split(" | ")[0].removeprefix("| ") for line in table.split("\n") if " | " in line]
    assert listed[1:] == list(PAPER_METHODS)

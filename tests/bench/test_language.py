"""Language models on clean and on dirty data: what noises do, that methods meet the same, and how rates are chosen."""

from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from adaterm_bench import equations, methods
from adaterm_bench.arena.loop import CaptureError, Loop, compile_loss, list_schedule
from adaterm_bench.arena.protocol import RATES, TUNING_SEEDS, NotTunedError
from adaterm_bench.core.store import Store
from adaterm_bench.datasets import sources
from adaterm_bench.datasets.data import DataError
from adaterm_bench.experiments.language import training
from adaterm_bench.experiments.language.course import (
    BURST,
    FACTOR,
    NOISES,
    SECOND,
    choose_steps,
    draw_course,
    draw_windows,
    rename_tokens,
)
from adaterm_bench.experiments.language.experiment import MODELS, Language
from adaterm_bench.experiments.language.training import Trainer, find_trainer, judge
from adaterm_bench.models.transformer import Sizes, Transformer, make_transformer, measure_loss

STEPS, BATCH, CONTEXT = 100, 3, 8
SIZES = (6, 4, 10)
SMOKE = Language(**Language.presets["smoke"])
OUTCOMES = {
    *("loss", "second_loss", "losses", "bad_excluded", "good_excluded", "bad_excluded_later", "good_excluded_later"),
    *("auroc", "auroc_loss", "steps_lost", "step_seconds", "captured", "parameters", "data"),
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    find_trainer.cache_clear()


def draw(name, seed=0):
    tokens = torch.arange(100, dtype=torch.uint8)
    return draw_course(tokens, 256, STEPS, BATCH, CONTEXT, NOISES[name], seed, SIZES)


def list_steps(struck):
    return struck.nonzero().flatten().tolist()


def run(method, noise="clean", seed=0, model="bytes", **changes):
    experiment = replace(SMOKE, models=(model,), noises=(noise,), **changes)
    (trial,) = experiment.trials([method], [seed])
    (outcome,) = experiment.run([trial], "cpu", lambda fraction: None)
    return outcome


def give_gradients(value=2.0):
    return [torch.full((size,), value) for size in SIZES]


def corrupt(course, step):
    grads = give_gradients()
    course.corrupt_gradients(grads, torch.tensor([step]))
    return grads


def test_a_later_token_does_not_change_earlier_logits():
    network = make_transformer(Sizes(50, 12, 16, 2, 2), seed=3)
    one = torch.randint(50, (2, 12), generator=torch.Generator().manual_seed(0))
    other = one.clone()
    other[:, 7] = (other[:, 7] + 1) % 50
    before, after = network(one), network(other)
    assert torch.equal(before[:, :7], after[:, :7])
    assert (before[:, 7:] != after[:, 7:]).any(-1).all()


def test_weights_begin_as_the_seed_says_and_models_have_their_sizes():
    network = make_transformer(Sizes(50, 12, 16, 2, 2), seed=3)
    wanted, kept = network.state_dict(), list(network.parameters())
    wanted = {name: tensor.clone() for name, tensor in wanted.items()}
    network.begin(4)
    assert not torch.equal(network.head.weight, wanted["head.weight"])
    network.begin(3)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in network.state_dict().items())
    assert all(one is other for one, other in zip(network.parameters(), kept, strict=True))
    with torch.device("meta"):
        sizes = {name: sum(it.numel() for it in Transformer(model).parameters()) for name, model in MODELS.items()}
    assert sizes == pytest.approx({"bytes": 3.4e6, "words": 7.5e6, "large": 30e6}, rel=0.02)


def test_files_are_for_training_or_validation(tmp_path):
    folder = Path(torch.__file__).parent
    training, validation = sources.list_files(folder)
    assert not set(training) & set(validation)
    assert 0.03 < len(validation) / (len(training) + len(validation)) < 0.07
    assert (training, validation) == sources.list_files(folder)
    loaded = sources.load(limit=5000)
    assert len(loaded.training) == len(loaded.validation) == 5000
    assert loaded.training.dtype == torch.uint8
    text = bytes(loaded.validation.tolist())
    assert text.startswith((folder / validation[0]).read_bytes()[:5000])
    assert loaded.fingerprint != sources.load(limit=4999).fingerprint
    with pytest.raises(DataError, match="no Python sources"):
        sources.load(tmp_path)


def test_words_are_the_most_frequent_of_the_training_files(tmp_path):
    for number in range(200):
        (tmp_path / f"{number}.py").write_bytes(b"def f(x):\n    return  x_1 + 2.5\n\n" + b"# rare%d" % number)
    training, validation = sources.list_files(tmp_path)
    assert training
    assert validation
    text = (tmp_path / training[0]).read_bytes()
    words = sources.split_words(text)
    assert b"".join(words) == text
    assert words[:8] == [b"def", b" ", b"f", b"(", b"x", b")", b":", b"\n    "]
    assert words[8:17] == [b"return", b"  ", b"x_1", b" ", b"+", b" ", b"2", b".", b"5"]
    found = sources.load_words(20, tmp_path)
    assert found.training.dtype == torch.int32
    length = len(words) + 1  # with the end of the file
    first, second = found.training[:length], found.training[length : 2 * length]
    assert torch.equal(first, second)  # but for the rare word, which is unknown
    assert first[-2] == sources.UNKNOWN
    assert first[[1, 3, 11]].tolist() == [1, first[3], 1]  # a space is the most frequent word
    assert len(set(first.tolist())) == len(set(words)) + 1
    assert torch.equal(found.validation[:length], first)
    fewer = sources.load_words(5, tmp_path)
    assert torch.equal(fewer.training, torch.where(found.training < 5, found.training, sources.UNKNOWN))
    assert fewer.fingerprint == sources.load(tmp_path).fingerprint


@pytest.mark.parametrize("name", NOISES)
def test_noises_strike_their_share_of_the_steps(name):
    noise = NOISES[name]
    struck = choose_steps(noise, 2000, 0)
    assert int(struck.sum()) == round(2000 * noise.share)
    assert name in ("clean", "trap") or name == f"{noise.kind} {100 * noise.share:.0f} %"
    assert torch.equal(struck, choose_steps(noise, 2000, 0))
    if name != "clean":
        assert not torch.equal(struck, choose_steps(noise, 2000, 1))
        assert 500 < struck.nonzero().double().mean() < 1500
        assert struck[choose_steps(noise._replace(share=noise.share / 2), 2000, 0)].all()


def test_clean_batches_are_pieces_of_the_text_and_those_of_the_seed():
    course = draw("clean")
    assert torch.equal(course.targets, course.inputs + 1)
    assert torch.equal(course.inputs, draw("clean").inputs)
    assert not torch.equal(course.inputs, draw("clean", seed=1).inputs)
    inputs, targets = course.select_batch(torch.tensor([7]))
    assert torch.equal(inputs, course.inputs[7])
    assert torch.equal(targets, course.targets[7])
    assert all(bool((gradient == 2.0).all()) for gradient in corrupt(course, 7))


@pytest.mark.parametrize("name", [name for name in NOISES if name != "clean"])
def test_noises_leave_other_steps_alone(name):
    course, clean = draw(name), draw("clean")
    struck = course.bad if course.second is None else course.second
    assert 0 < int(struck.sum()) < STEPS
    assert torch.equal(course.inputs[~struck], clean.inputs[~struck])
    assert torch.equal(course.targets[~struck], clean.targets[~struck])
    for step in list_steps(~struck)[:5]:
        assert all(bool((gradient == 2.0).all()) for gradient in corrupt(course, step))
        assert course.weigh_loss(torch.tensor(2.0), torch.tensor([step])) == 2.0


def test_noises_in_the_data_do_what_their_names_say():
    clean, tokens, targets, trap = draw("clean"), draw("tokens 10 %"), draw("targets 20 %"), draw("trap")
    for step in list_steps(tokens.bad):
        assert (tokens.inputs[step] != clean.inputs[step]).double().mean() > 0.8
        assert torch.equal(tokens.inputs[step, :, 1:], tokens.targets[step, :, :-1])
    assert torch.equal(targets.inputs, clean.inputs)
    for step in list_steps(targets.bad):
        assert not torch.equal(targets.targets[step], clean.targets[step])
        assert torch.equal(targets.targets[step].flatten().sort()[0], clean.targets[step].flatten().sort()[0])
    bursts = choose_steps(NOISES["bursts 10 %"], 2000, 0)
    assert bursts.sum() == 200
    assert all(len(set(row.tolist())) == 1 for row in bursts.view(-1, BURST))
    assert choose_steps(NOISES["bursts 10 %"], 24, 0).sum() in (4, 20)
    assert not trap.bad.any()
    for step in list_steps(trap.second):
        assert torch.equal(trap.inputs[step], rename_tokens(clean.inputs[step], 256))
        assert torch.equal(trap.targets[step], rename_tokens(clean.targets[step], 256))
        assert trap.weigh_loss(torch.tensor(2.0), torch.tensor([step])) == 2.0 * SECOND
    assert sorted(rename_tokens(torch.arange(256), 256).tolist()) == list(range(256))


def test_noises_in_the_gradients_do_what_their_names_say():
    tensor, spike = draw("tensor 2 %"), draw("spike 1 %")
    for step in list_steps(tensor.bad):
        assert sorted(float(gradient[0]) / 2.0 for gradient in corrupt(tensor, step)) == [1.0, 1.0, FACTOR]
    for step in list_steps(spike.bad):
        assert all(bool((gradient == 2.0 * FACTOR).all()) for gradient in corrupt(spike, step))
    garbage = draw_course(torch.arange(100), 256, 50, 1, 2, NOISES["garbage 2 %"], 0, (4000, 6000))
    grads = [torch.full((40, 100), 5.0), torch.full((6000,), 5.0)]
    garbage.corrupt_gradients(grads, garbage.bad.nonzero().flatten()[:1])
    noise = torch.cat([gradient.flatten() for gradient in grads])
    assert abs(float(noise.mean())) < 0.05
    assert abs(float(noise.std()) - 1.0) < 0.05
    overflow = draw("overflow 1 %")
    grads = [torch.tensor([1.0, -4.0, 2.1, 0.0]), torch.zeros(2), torch.tensor([[1e-30, 1e-31]])]
    overflow.corrupt_gradients(grads, overflow.bad.nonzero().flatten()[:1])
    inf = torch.inf
    assert [it.tolist() for it in grads[:2]] == [[1.0, -inf, inf, 0.0], [0.0, 0.0]]
    assert grads[2].isinf().tolist() == [[True, False]]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("spike 1 %", "_foreach_mul_.Tensor"), ("tensor 2 %", "_foreach_mul_.List"), ("overflow 1 %", "div_.Tensor")],
)
def test_what_corrupts_gradients_stays_on_the_device(name, wanted):
    """What takes numbers would wait for them, which a capture refuses."""
    called = []

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.append(str(func).removeprefix("aten."))
            return func(*args, **(kwargs or {}))

    course, grads = draw(name), give_gradients()
    with Listen():
        course.corrupt_gradients(grads, torch.tensor([0]))
    assert wanted in called
    assert not [name for name in called if "_local_scalar_dense" in name or "_foreach_mul_.Scalar" in name]


def test_a_trap_has_shares_of_both_tasks_and_nothing_bad():
    course = draw("trap")
    notes = torch.stack([torch.rand(STEPS), torch.where(course.second, 0.0, 1.0)], 1)
    found = judge(torch.where(course.second, 30.0, 3.0), notes, course, settled=10)
    shares = ("bad_excluded", "good_excluded", "bad_excluded_later", "good_excluded_later")
    assert [found[name] for name in shares] == [1.0, 0.0, 1.0, 0.0]
    assert [found[name] for name in ("auroc", "auroc_loss", "steps_lost")] == [None] * 3
    assert set(found["losses"]) == {3.0}


def test_methods_meet_the_same_weights_and_batches(monkeypatch):
    seen = {}

    def watch(network, inputs, targets, bf16):
        if torch.is_grad_enabled():
            weights = float(network.head.weight.detach().sum()) if not seen[method] else None
            seen[method].append((weights, inputs.tolist(), targets.tolist()))
        return measure_loss(network, inputs, targets, bf16)

    monkeypatch.setattr(training, "measure_loss", watch)
    for method in ("AdamW", "Muon", "RobustAdamW"):
        for seed in (3, 4):
            seen[method] = []
            run(method, "targets 20 %", seed)
    assert len(seen["AdamW"]) == SMOKE.steps
    assert seen["AdamW"] == seen["Muon"] == seen["RobustAdamW"]


def test_a_trial_is_a_loop_that_anyone_would_write(monkeypatch):
    found, size = run("AdamW", "trap", seed=3), Sizes(256, 16, 16, 1, 2)
    network, text = make_transformer(size, 3), sources.load(limit=1 << 16)
    course = draw_course(text.training, 256, 24, 4, 16, NOISES["trap"], 3, [])
    optimizer = torch.optim.AdamW(network.parameters(), betas=(0.9, 0.95), weight_decay=0.1)
    losses = []
    for rate, second, *batch in zip(
        list_schedule(24, 4, 0.1), course.second, course.inputs, course.targets, strict=True
    ):
        optimizer.param_groups[0]["lr"] = 3e-3 * rate
        optimizer.zero_grad()
        loss = measure_loss(network, *batch, False)
        (loss * 10.0 if second else loss).backward()
        optimizer.step()
        losses.append(loss.item())
    parts = torch.tensor(losses, dtype=torch.float64).tensor_split(20)
    assert found["losses"] == pytest.approx([float(part.mean()) for part in parts], rel=1e-4)
    held_out = draw_windows(text.validation, 2, 4, 16, torch.Generator().manual_seed(0))
    for name, windows in {"loss": held_out, "second_loss": rename_tokens(held_out, 256)}.items():
        wanted = [measure_loss(network, it[:, :-1], it[:, 1:], False).item() for it in windows]
        assert found[name] == pytest.approx(sum(wanted) / 2, rel=1e-4)
    tuning = run("AdamW", seed=TUNING_SEEDS[0])
    monkeypatch.setattr(training, "is_tuning", lambda seed: False)
    assert tuning["losses"] == (final := run("AdamW", seed=TUNING_SEEDS[0]))["losses"]
    assert tuning["loss"] != final["loss"]  # of other windows
    assert found["parameters"] == sum(parameter.numel() for parameter in network.parameters())
    assert found["data"] == text.fingerprint


@pytest.mark.parametrize("model", ["words", "large"])
def test_models_of_words_learn(model):
    found = run("AdamW (clipped)", model=model, lrs=(1e-2,))
    assert found["losses"][-1] < found["losses"][0] - 0.5
    assert found["parameters"] > 16 * MODELS[model].vocabulary


def test_a_run_that_is_lost_has_no_loss():
    found = run("AdamW", "overflow 1 %", seed=1)
    assert isnan(found["loss"])
    assert isnan(found["losses"][-1])
    assert run("RobustAdamW", "overflow 1 %", seed=1)["bad_excluded"] == 1.0


def test_a_method_of_ones_own_is_an_arm():
    methods.register("Own SGD", lambda params, lr: torch.optim.SGD(params, lr))
    try:
        found = run("Own SGD", "trap")
        assert found["loss"] < 5.6
        assert found["auroc"] is None
    finally:
        methods.unregister("Own SGD")


def test_a_step_that_cannot_be_captured_runs_without(monkeypatch, capsys):
    causes = [torch.OutOfMemoryError("for once"), None]

    def refuse(self, steps, advance=Loop.advance):
        if self.wanted:
            raise CaptureError("no graph here") from causes.pop(0)
        advance(self, steps)

    def make(self, *arguments, begin=Loop.__init__):
        begin(self, *arguments)
        self.wanted = arguments[-1]

    monkeypatch.setattr(Loop, "advance", refuse)
    monkeypatch.setattr(Loop, "__init__", make)
    assert [run("AdamW", seed=seed)["captured"] for seed in (0, 1, 2)] == [False] * 3
    assert capsys.readouterr().err.count("AdamW is not captured: no graph here") == 2  # then it is remembered


def test_a_loss_that_cannot_be_compiled_runs_as_it_is(monkeypatch, capsys):
    def refuse(function, **options):
        return lambda *arguments: 1 / 0

    monkeypatch.setattr(torch, "compile", refuse)
    assert compile_loss(torch.square, torch.ones((), requires_grad=True)) is torch.square
    assert "not compiled: ZeroDivisionError" in capsys.readouterr().err


def test_a_call_goes_on_where_the_last_one_stopped(main, tmp_path, monkeypatch):
    words = ["run", "language", "--preset", "smoke", "--workers", 0, "--out", tmp_path / "out", "--seeds"]
    assert main(*words, 1, "--methods", "AdamW,RobustAdamW")[0] == 0
    first = Store(tmp_path / "out").results()
    assert {(it.trial.method, it.trial.condition["noise"]) for it in first} == {
        (method, noise) for method in ("AdamW", "RobustAdamW") for noise in SMOKE.noises
    }
    assert all(set(result.outcome) == OUTCOMES for result in first)
    ran = []
    monkeypatch.setattr(Trainer, "train", lambda self, *key: ran.append(key) or first[0].outcome)
    assert main(*words, 2, "--methods", "AdamW,RobustAdamW")[0] == 0
    assert [(method, noise, seed, lr) for method, _, noise, seed, lr, _ in ran] == [
        (method, noise, 1, 3e-3) for noise in SMOKE.noises for method in ("AdamW", "RobustAdamW")
    ]


def test_results_of_other_sources_are_not_added_to(main, tmp_path, monkeypatch):
    words = ["run", "language", "--preset", "smoke", "--workers", 0, "--out", tmp_path / "out", "--methods", "AdamW"]
    assert main(*words)[0] == 0
    monkeypatch.setattr(sources, "load", lambda limit: sources.Sources(None, None, "other"))
    code, text = main(*words, "--seeds", 2)
    assert code == 2
    assert "(other)" in text


def tune(folder, method, costs, noise="clean", model="bytes", **changes):
    """Results of tuning seeds, with these losses at the rates of the grid."""
    experiment = replace(SMOKE, lrs=tuple(costs), noises=(noise,), models=(model,), **changes)
    trials = experiment.trials([method], TUNING_SEEDS)
    Store(folder).add(trials, [{"loss": costs[trial.condition["lr"]]} for trial in trials], {"seconds": 1.0})


def test_rates_are_those_that_tuning_chose(main, tmp_path):
    costs = dict(zip(RATES, (3.0, 2.0, 1.0, 2.0, 3.0, float("nan")), strict=True))
    tune(tmp_path / "tuned", "AdamW", costs)
    tune(tmp_path / "tuned", "RobustAdamW", costs | {1e-2: 0.5})
    tune(tmp_path / "tuned", "AdamW", costs | {3e-4: 0.5}, noise="trap")
    tune(tmp_path / "tuned", "AdamW", costs | {1e-4: 0.1}, steps=25)  # other settings do not count
    chosen = replace(SMOKE, lrs=RATES, noises=("clean", "trap"), tuned=str(tmp_path / "tuned"))
    found = [(it.seed, it.condition["noise"], it.method, it.condition["lr"]) for it in chosen.trials(["AdamW"], [0, 1])]
    assert found == [(seed, noise, "AdamW", 1e-3) for seed in (0, 1) for noise in ("clean", "trap")]
    both = chosen.trials(["AdamW", "RobustAdamW"], [0])
    assert [(it.method, it.condition["lr"]) for it in both] == [("AdamW", 1e-3), ("RobustAdamW", 1e-2)] * 2
    track = replace(chosen, track="noise").trials(["AdamW"], [0])
    assert [it.condition["lr"] for it in track] == [1e-3, 3e-4]
    words = ["run", "language", "--preset", "smoke", "--tuned", tmp_path / "tuned", "--methods"]
    for method, more in (("Muon", ()), ("AdamW", ("--models", "words")), ("RobustAdamW", ("--track", "noise"))):
        code, text = main(*words, method, "--lrs", "1e-3,1e-2", *more)
        assert code == 2
        assert "adaterm-bench run language" in text
        assert f"--models {more[1] if '--models' in more else 'bytes'} " in text
        assert method in text
        assert "Traceback" not in text


def test_rates_that_other_equations_chose_do_not_count(tmp_path, monkeypatch):
    chosen = replace(SMOKE, lrs=(1e-3, 1e-2), noises=("clean",), tuned=str(tmp_path))
    tune(tmp_path, "AdamW", {1e-3: 1.0, 1e-2: 2.0})
    tune(tmp_path, "RobustAdamW", {1e-3: 1.0, 1e-2: 2.0})
    before = chosen.trials(["AdamW", "RobustAdamW"], [0])
    assert [(it.condition["lr"], "equations" in it.condition) for it in before] == [(1e-3, False), (1e-3, True)]
    monkeypatch.setattr(equations, "write_equations", lambda family: "other")
    with pytest.raises(NotTunedError, match="RobustAdamW"):
        chosen.trials(["AdamW", "RobustAdamW"], [0])
    tune(tmp_path, "RobustAdamW", {1e-3: 2.0, 1e-2: 1.0})
    after = chosen.trials(["AdamW", "RobustAdamW"], [0])
    assert [it.condition["lr"] for it in after] == [1e-3, 1e-2]
    assert (before[0].key == after[0].key, before[1].key == after[1].key) == (True, False)


def test_where_all_rates_were_lost_none_is_chosen(tmp_path):
    tune(tmp_path, "AdamW", dict.fromkeys(RATES, float("nan")))
    with pytest.raises(NotTunedError, match=r"lost.* AdamW \(bytes; clean\)"):
        replace(SMOKE, lrs=RATES, tuned=str(tmp_path)).trials(["AdamW"], [0])


def test_a_variant_of_ours_runs(main, tmp_path):
    words = ["run", "language", "--preset", "smoke", "--workers", 0, "--noises", "clean", "--out", tmp_path / "out"]
    code, text = main(*words, "--methods", "RobustAdamW dof=10 max_norm=1,RobustAdamW")
    assert code == 0, text
    one, other = Store(tmp_path / "out").results()
    assert {one.trial.method, other.trial.method} == {"RobustAdamW dof=10 max_norm=1", "RobustAdamW"}
    assert one.trial.condition["equations"] != other.trial.condition["equations"]
    assert one.outcome["loss"] != other.outcome["loss"]
    code, text = main(*words, "--methods", "RobustAdamW doff=10")
    assert (code, "'doff'" in text, "Did you mean 'dof'?" in text) == (2, True, True), text
    code, text = main("run", "regression", "--preset", "smoke", "--methods", "RobustAdamW dof=10")
    assert (code, "No method 'RobustAdamW dof=10'" in text) == (2, True), text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--noises", "targets 20"], "targets 20 %"),
        (["--models", "byte"], "bytes"),
        (["--width", 15], "width=15"),
        (["--limit", 100], "limit=100"),
        (["--track", "dirty"], "--track dirty"),
    ],
)
def test_settings_that_cannot_be_are_refused(main, words, says):
    code, text = main("run", "language", "--preset", "smoke", *words)
    assert code == 2
    assert says in text


def test_the_full_preset_is_the_arenas():
    full = Language(**Language.presets["full"])
    assert (full.steps, full.batch, full.context, full.warm_up, full.last, full.settled) == (
        2000,
        64,
        256,
        200,
        0.1,
        500,
    )
    assert (full.noises, full.models, full.lrs) == (tuple(NOISES), ("bytes", "words", "large"), RATES)
    trials = full.trials(["AdamW"])
    assert [trial.condition["model"] for trial in trials] == sorted(
        (trial.condition["model"] for trial in trials), key=full.models.index
    )

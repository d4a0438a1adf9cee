"""The parts of the language experiment, and benchmarks/language_check.py, which puts them together."""

import importlib
import json
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from adaterm_bench.datasets import sources
from adaterm_bench.datasets.data import DataError
from adaterm_bench.experiments.language.course import CONDITIONS, FACTOR, choose_bad_steps, draw_course
from adaterm_bench.experiments.language.training import Settings, Trainer, judge_verdicts, list_rates, measure_auroc
from adaterm_bench.models.transformer import BYTES, Sizes, Transformer, make_transformer

ROOT = Path(__file__).parents[2]
STEPS, BATCH, CONTEXT = 50, 3, 8
SIZES = (6, 4, 10)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def check(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("language_check")


def draw(name, seed=0):
    tokens = torch.arange(100, dtype=torch.uint8)
    return draw_course(tokens, 256, STEPS, BATCH, CONTEXT, CONDITIONS[name], seed, SIZES)


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


def test_weights_begin_as_the_seed_says_and_the_model_of_bytes_has_its_size():
    network = make_transformer(Sizes(50, 12, 16, 2, 2), seed=3)
    wanted, kept = network.state_dict(), list(network.parameters())
    wanted = {name: tensor.clone() for name, tensor in wanted.items()}
    network.begin(4)
    assert not torch.equal(network.head.weight, wanted["head.weight"])
    network.begin(3)
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in network.state_dict().items())
    assert all(one is other for one, other in zip(network.parameters(), kept, strict=True))
    assert 3.2e6 < sum(parameter.numel() for parameter in Transformer(BYTES).parameters()) < 3.5e6


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


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_have_their_share_of_bad_steps(name):
    bad = choose_bad_steps(CONDITIONS[name], 2000, 0)
    assert int(bad.sum()) == round(2000 * CONDITIONS[name].share)
    assert torch.equal(bad, choose_bad_steps(CONDITIONS[name], 2000, 0))
    if name != "clean":
        assert not torch.equal(bad, choose_bad_steps(CONDITIONS[name], 2000, 1))
        assert 500 < bad.nonzero().double().mean() < 1500


def test_clean_batches_are_pieces_of_the_text_and_those_of_the_seed():
    course = draw("clean")
    assert torch.equal(course.targets, course.inputs + 1)
    assert torch.equal(course.inputs, draw("clean").inputs)
    assert not torch.equal(course.inputs, draw("clean", seed=1).inputs)
    inputs, targets = course.select_batch(torch.tensor([7]))
    assert torch.equal(inputs, course.inputs[7])
    assert torch.equal(targets, course.targets[7])
    assert all(bool((gradient == 2.0).all()) for gradient in corrupt(course, 7))


@pytest.mark.parametrize("name", [name for name in CONDITIONS if name != "clean"])
def test_corruption_leaves_good_steps_alone(name):
    course, clean = draw(name), draw("clean")
    good = ~course.bad
    assert 0 < int(course.bad.sum()) < STEPS
    assert torch.equal(course.inputs[good], clean.inputs[good])
    assert torch.equal(course.targets[good], clean.targets[good])
    for step in good.nonzero().flatten().tolist()[:5]:
        assert all(bool((gradient == 2.0).all()) for gradient in corrupt(course, step))


def test_corruption_does_what_its_name_says():
    clean = draw("clean")
    tokens = draw("tokens")
    for step in tokens.bad.nonzero().flatten().tolist():
        assert (tokens.inputs[step] != clean.inputs[step]).double().mean() > 0.8
        assert torch.equal(tokens.inputs[step, :, 1:], tokens.targets[step, :, :-1])
    targets = draw("targets")
    assert torch.equal(targets.inputs, clean.inputs)
    for step in targets.bad.nonzero().flatten().tolist():
        assert not torch.equal(targets.targets[step], clean.targets[step])
        assert torch.equal(targets.targets[step].flatten().sort()[0], clean.targets[step].flatten().sort()[0])
    tensor = draw("tensor")
    for step in tensor.bad.nonzero().flatten().tolist():
        factors = sorted(float(gradient[0]) / 2.0 for gradient in corrupt(tensor, step))
        assert factors == [1.0, 1.0, FACTOR]
    spike = draw("spike")
    for step in spike.bad.nonzero().flatten().tolist():
        assert all(bool((gradient == 2.0 * FACTOR).all()) for gradient in corrupt(spike, step))
    garbage = draw_course(torch.arange(100), 256, 50, 1, 2, CONDITIONS["garbage"], 0, (4000, 6000))
    step = garbage.bad.nonzero().flatten()[:1]
    grads = [torch.full((40, 100), 5.0), torch.full((6000,), 5.0)]
    garbage.corrupt_gradients(grads, step)
    noise = torch.cat([gradient.flatten() for gradient in grads])
    assert abs(float(noise.mean())) < 0.05
    assert abs(float(noise.std()) - 1.0) < 0.05


@pytest.mark.parametrize(("name", "wanted"), [("spike", "_foreach_mul_.Tensor"), ("tensor", "_foreach_mul_.List")])
def test_factors_stay_on_the_device(name, wanted):
    """The overload that takes numbers would wait for them, which a capture refuses."""
    called = []

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            called.append(str(func).removeprefix("aten."))
            return func(*args, **(kwargs or {}))

    course, grads = draw(name), give_gradients()
    with Listen():
        course.corrupt_gradients(grads, torch.tensor([0]))
    assert wanted in called
    assert not [name for name in called if "_local_scalar_dense" in name or ".Scalar" in name]


def test_rates_rise_and_fall():
    rates = list_rates(Settings())
    assert rates[0] == pytest.approx(3e-3 / 200)
    assert max(rates) == pytest.approx(3e-3)
    assert rates.index(max(rates)) in (199, 200)
    assert rates[-1] == pytest.approx(3e-4)


def test_verdicts_count_what_was_excluded():
    bad = torch.tensor([True, False, False, True, True, False])
    notes = torch.tensor([[9.0, 0, 0.1], [0, 0, 1], [1, 0, 0.4], [2, 0, 0.2], [torch.inf, 0, 0.9], [1.5, 0, 1]])
    found = judge_verdicts(notes, bad, settled=2)
    assert found == pytest.approx((2 / 3, 1 / 3, 0.5, 0.5, 1.0))
    assert measure_auroc(torch.tensor([1.0]), torch.tensor([1.0, 0.0])) == 0.75
    assert judge_verdicts(notes, torch.zeros(6, dtype=torch.bool), 2)[4] is None


def test_methods_meet_the_same_batches(check, monkeypatch, tmp_path):
    seen = {}

    def watch(trainer, optimizer, course, step=Trainer._step):
        loss = int(trainer.position), course.inputs.sum().item(), course.bad.sum().item()
        begin = [float(parameter.detach().sum()) for parameter in trainer.params] if not loss[0] else None
        seen.setdefault(type(optimizer).__name__, []).append((loss, begin))
        step(trainer, optimizer, course)

    monkeypatch.setattr(Trainer, "_step", watch)
    words = ["--device", "cpu", "--smoke", "--conditions", "tokens", "tensor", "--steps", "3", "--out"]
    check.main([*words, str(tmp_path), "--methods", "AdamW", "AdamW, clipped at 1", "RobustAdamW"])
    assert set(seen) == {"AdamW", "ClippedAdamW", "RobustAdamW"}
    assert seen["AdamW"] == seen["ClippedAdamW"] == seen["RobustAdamW"]


def test_a_call_goes_on_where_the_last_one_stopped(check, tmp_path, capsys):
    words = ["--device", "cpu", "--smoke", "--out", str(tmp_path), "--conditions", "garbage"]
    check.main([*words, "--minutes", "0"])
    assert "4 runs are missing" in capsys.readouterr().out
    check.main([*words, "--methods", "RobustAdamW, max_norm 1"])
    first = json.loads((tmp_path / "language_check.json").read_text())
    assert [run["method"] for run in first["runs"]] == ["RobustAdamW, max_norm 1"]
    assert {"command", "commit", "device", "versions", "settings", "data", "conditions"} <= set(first)
    check.main(words)
    second = json.loads((tmp_path / "language_check.json").read_text())
    assert second["runs"][0] == first["runs"][0]
    assert [run["method"] for run in second["runs"][1:]] == [it for it in check.METHODS if "max_norm" not in it]
    robust = second["runs"][-1]
    assert 0.0 < robust["loss"] < 6.0
    assert robust["good_excluded"] is not None
    printed = capsys.readouterr().out
    assert printed.count("RobustAdamW, max_norm 1          garbage") == 1
    assert f"| AdamW | {second['runs'][1]['loss']:.4f} |" in printed
    with pytest.raises(SystemExit, match="other settings"):
        check.main([*words, "--steps", "5"])


def test_a_captured_run_is_the_same_as_an_eager_one(check, monkeypatch):
    """With CUDA's calls pretended: steps before the capture count, and the captured one is only replayed."""
    trainer = Trainer(check.TINY, sources.load(limit=1 << 14), "cpu", compiled=False)
    course, make = trainer.draw(CONDITIONS["spike"], 0), check.METHODS["AdamW"]
    wanted = trainer.train(make, course, 0, captured=False)
    state = SimpleNamespace(capturing=False, step=None, ended=[])

    def step(self, optimizer, course, step=Trainer._step):
        if state.capturing:
            state.step = lambda: step(self, optimizer, course)
        else:
            step(self, optimizer, course)

    @contextmanager
    def capture(graph, stream):
        assert stream is trainer.stream
        state.capturing = True
        yield
        state.capturing = False

    graph = SimpleNamespace(replay=lambda: state.step(), reset=lambda: state.ended.append(True))
    monkeypatch.setattr(Trainer, "_step", step)
    for name, value in {"CUDAGraph": lambda: graph, "graph": capture, "stream": lambda it: nullcontext()}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    trainer.stream = object()
    found = trainer.train(make, course, 0, captured=True)
    assert (found.loss, found.losses) == (wanted.loss, wanted.losses)
    assert found.captured
    assert state.ended == [True]
    assert all(parameter.grad is None for parameter in trainer.params)


def test_a_step_that_cannot_be_captured_runs_without(check, monkeypatch, tmp_path, capsys):
    def fail(self, optimizer, course):
        raise check.CaptureError("no graph here")

    monkeypatch.setattr(Trainer, "_repeat_graph", fail)
    monkeypatch.setattr(Trainer, "_on_stream", lambda self: nullcontext())
    monkeypatch.setattr(Trainer, "_wait", lambda self: None)
    trainer = Trainer(check.TINY, sources.load(limit=1 << 14), "cpu", compiled=False)
    trainer.stream = object()
    record = check.Record(tmp_path / "runs.json", {}, "cpu")
    keys = [("AdamW", "clean", 0), ("AdamW", "clean", 1)]
    check.run_all(trainer, record, keys, until=float("inf"), capture=True)
    assert [run["captured"] for run in record.runs.values()] == [False, False]
    assert capsys.readouterr().out.count("no graph here") == 1

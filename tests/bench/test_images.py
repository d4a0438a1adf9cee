"""Images with bad batches: what noises do, that methods meet the same, how rates are chosen, and what is measured."""

from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import isnan
from types import SimpleNamespace

import pytest
import torch

from adaterm_bench.arena.arm import Arm, Observed, Recipe
from adaterm_bench.arena.loop import CaptureError, Course, Loop, list_schedule
from adaterm_bench.arena.protocol import NotTunedError
from adaterm_bench.arena.verdicts import count_steps_lost, judge_run
from adaterm_bench.core.store import Store
from adaterm_bench.datasets import cifar
from adaterm_bench.experiments.classification.experiment import load_images, objective
from adaterm_bench.experiments.images import experiment as images
from adaterm_bench.experiments.images.course import NOISES, Noise, choose_bad_steps, draw_course, swap_nibbles
from adaterm_bench.experiments.images.experiment import Images, Trainer, measure_loss
from adaterm_bench.models.resnet import make_network

SMOKE = Images(**Images.presets["smoke"])
COUNT, SIZE, EPOCHS = 100, 16, 5
STEPS = COUNT // SIZE * EPOCHS


def draw(name, seed=0):
    return draw_course(NOISES[name], COUNT, EPOCHS, SIZE, seed)


def run(experiment, method, noise="clean", seed=0):
    (trial,) = replace(experiment, noises=(noise,)).trials([method], [seed])
    (outcome,) = experiment.run([trial], "cpu", lambda fraction: None)
    return outcome


@pytest.mark.parametrize("name", NOISES)
def test_noises_leave_good_batches_and_all_crops_alone(name):
    found, clean = draw(name), draw("clean")
    assert int(found.bad.sum()) == round(NOISES[name].share * STEPS)
    assert torch.equal(found.batches[~found.bad], clean.batches[~found.bad])
    assert torch.equal(found.batches[..., 1:4], clean.batches[..., 1:4])
    assert torch.equal(found.batches, draw(name).batches)
    other = draw(name, seed=1)
    assert not torch.equal(found.batches, other.batches)
    assert not found.bad.any() or not torch.equal(found.bad, other.bad)


def test_noises_do_what_their_names_say():
    clean = draw("clean").batches
    assert torch.equal(clean[..., 0], clean[..., 4])
    labels = draw("labels 20 %")
    for step in labels.bad.nonzero()[:, 0].tolist():
        assert torch.equal(labels.batches[step, :, 0], clean[step, :, 0])
        assert not torch.equal(labels.batches[step, :, 4], clean[step, :, 4])
        assert labels.batches[step, :, 4].sort()[0].tolist() == clean[step, :, 4].sort()[0].tolist()
    frozen = draw("frozen 10 %")
    assert (frozen.batches[frozen.bad][..., 0] == clean[frozen.bad][:, :1, 0]).all()
    assert torch.equal(frozen.batches[..., 4], clean[..., 4])
    swapped = draw("swapped 10 %")
    assert torch.equal(swapped.batches[swapped.bad][..., 0], clean[swapped.bad][..., 0] + COUNT)
    assert torch.equal(swapped.batches[..., 4], clean[..., 4])
    bank = swap_nibbles(torch.tensor([[0x00, 0xF3], [0x81, 0x7A]], dtype=torch.uint8))
    assert bank.tolist() == [[0x00, 0xF3], [0x81, 0x7A], [0x00, 0x3F], [0x18, 0xA7]]


def test_a_small_share_is_one_step_at_least():
    assert int(choose_bad_steps(Noise("frozen", 0.1), 3, 0).sum()) == 1


def test_people_s_labels_are_learnt_from_and_right_ones_are_tested_with():
    trainer = Trainer(SMOKE, "cpu")
    train, test = load_images("synthetic", "", SMOKE.images)
    given = trainer._choose_labels("human")
    assert 0.3 < float((given != train.labels[: len(given)]).double().mean()) < 0.5
    assert torch.equal(trainer._choose_labels("labels"), train.labels[: len(given)])
    assert torch.equal(trainer.held_out.labels, train.labels[-SMOKE.held_out :])
    assert torch.equal(trainer.held_out.pixels, train.pixels[-SMOKE.held_out :])
    assert torch.equal(trainer.test.labels, test.labels)


def test_the_loss_of_a_clean_batch_is_that_of_classification():
    trainer = Trainer(SMOKE, "cpu")
    row = draw("clean").batches[3]
    fixed = (trainer.network.eval(), trainer.images, trainer.right, trainer.colours)
    assert torch.equal(measure_loss(*fixed, row, 0.2, False), objective(*fixed, row[:, :4], 0.2, False))


@pytest.mark.parametrize("noise", ["labels 20 %", "swapped 10 %"])
def test_a_trial_is_a_loop_that_anyone_would_write(noise):
    found = run(SMOKE, "AdamW", noise, seed=3)
    network, trainer = make_network(3, 100, SMOKE.width), Trainer(SMOKE, "cpu")
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3, (0.9, 0.999), weight_decay=0.05)
    rates = [0.25, 0.5, 0.75, 1.0, 1.0, 0.775, 0.325, 0.1]  # an epoch up, then a cosine
    losses = []
    for rate, batch in zip(rates, draw_course(NOISES[noise], 128, 2, 32, 3).batches, strict=True):
        optimizer.param_groups[0]["lr"] = 1e-3 * rate
        optimizer.zero_grad()
        loss = measure_loss(network, trainer.images, trainer.right, trainer.colours, batch, 0.2, False)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert found["losses"] == pytest.approx(losses, rel=1e-4)
    assert found["parameters"] == sum(parameter.numel() for parameter in network.parameters())
    assert (len(found["accuracies"]), found["accuracies"][-1]) == (2, found["accuracy"])


def test_methods_meet_the_same_weights_batches_and_accidents(monkeypatch):
    seen = {}

    def watch(network, images, labels, colours, batch, *fixed):
        weights = sum(float(parameter.detach().abs().sum()) for parameter in network.parameters())
        seen[method].append((weights, batch.tolist()))
        return measure_loss(network, images, labels, colours, batch, *fixed)

    monkeypatch.setattr(images, "measure_loss", watch)
    monkeypatch.setattr(images, "_make_trainer", Trainer)
    for method in ("AdamW", "RobustAdamW", "RobustAdamW dof=10", "Oracle"):
        seen[method] = []
        outcome = run(SMOKE, method, "labels 20 %")
        assert (outcome["auroc"] is not None) == (method != "AdamW")
        assert outcome["auroc_loss"] is not None
    assert (outcome["bad_excluded"], outcome["good_excluded"], outcome["auroc"]) == (1.0, 0.0, 1.0)
    first, *others = seen.values()
    for other in others:
        assert other[0] == first[0]
        assert [batch for _, batch in other] == [batch for _, batch in first]


def test_it_learns_what_can_be_learnt():
    settings = {"images": 640, "held_out": 128, "epochs": 8, "width": 4, "lrs": (1e-2,), "smoothing": 0.0, "checks": 1}
    found = run(Images(**{**Images.presets["smoke"], **settings}), "AdamW")
    assert found["losses"][-1] < 0.8 * found["losses"][0]
    assert min(found["accuracy"], found["validation_accuracy"]) > 0.05  # where chance has 0.01


def test_a_run_that_is_lost_has_no_accuracy():
    found = run(replace(SMOKE, lrs=(1e30,)), "AdamW")
    assert isnan(found["accuracy"])
    assert isnan(found["validation_accuracy"])


class Walk(torch.optim.SGD):
    """An optimizer that has all that a loop may meet, and notes what it meets."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.met, self.mode = [], ""

    def inform(self, loss, bad):
        self.told = float(loss), bool(bad)

    def observe(self):
        return Observed(torch.tensor(self.told[0]), torch.tensor(0.0 if self.told[1] else 1.0))

    def train(self):
        self.mode = "train"

    def eval(self):
        self.mode = "eval"

    def step(self, closure=None):
        assert self.mode == "train"
        (parameter,) = self.param_groups[0]["params"]
        self.met.append((float(self.param_groups[0]["lr"]), *self.told, parameter.grad.item()))
        super().step()
        parameter.grad = parameter.grad * 2.0  # as some do that clip


def walk(captured, scheduled=True, corrupt=None):
    weight = torch.tensor(1.0, requires_grad=True)
    arm = Arm(lambda params, lr, recipe: Walk([it for _, it in params], lr), captured, scheduled)
    course = Course(lambda position: (weight - position[0]).square(), torch.tensor([False, True] * 3), corrupt)
    return weight, Loop(
        arm, [("weight", weight)], Recipe((0.9, 0.999), 0.0, 2, 6), 0.1, list_schedule(6, 2, 0.1), course
    )


@pytest.mark.parametrize("captured", [True, False])
def test_a_loop_tells_an_optimizer_what_it_must_know(captured):
    weight, loop = walk(captured, corrupt=lambda grads, position: torch._foreach_mul_(grads, position[0] + 1.0))
    loop.advance(4)
    with loop.evaluate():
        assert loop.optimizer.mode == "eval"
    loop.advance(2)
    loop.close()
    value = 1.0
    for step, (rate, met) in enumerate(zip(list_schedule(6, 2, 0.1), loop.optimizer.met, strict=True)):
        gradient = 2.0 * (value - step) * (step + 1.0)
        assert met == pytest.approx((0.1 * rate, (value - step) ** 2, step % 2, gradient), rel=1e-5)
        value -= 0.1 * rate * gradient
    assert weight.item() == pytest.approx(value, rel=1e-5)
    assert loop.losses.tolist() == loop.notes[:, 0].tolist() == [loss for _, loss, *_ in loop.optimizer.met]
    assert loop.notes[:, 1].tolist() == [1.0, 0.0] * 3
    assert loop.step_seconds > 0.0


def test_a_method_with_a_schedule_of_its_own_has_one_rate():
    _, loop = walk(captured=False, scheduled=False)
    loop.advance(6)
    assert {rate for rate, *_ in loop.optimizer.met} == {0.1}


@pytest.mark.parametrize("captured", [True, False])
def test_a_replayed_run_is_the_same_as_an_eager_one(captured, monkeypatch):
    """With CUDA's calls pretended: steps before the capture count, and what is captured is only replayed."""
    (wanted, eager), (found, loop) = walk(captured), walk(captured)
    eager.advance(6)
    recorded, state = [], SimpleNamespace(capturing=False, ended=[])

    def record(name):
        own = getattr(Loop, name)
        monkeypatch.setattr(Loop, name, lambda self: recorded.append(own) if state.capturing else own(self))

    @contextmanager
    def capture(graph, stream):
        state.capturing = True
        yield
        state.capturing = False

    def replay():
        for part in recorded:
            part(loop)

    record("_differentiate")
    record("_move")
    graph = SimpleNamespace(replay=replay, reset=lambda: state.ended.append(True))
    for name, value in {"CUDAGraph": lambda: graph, "graph": capture, "stream": lambda it: nullcontext()}.items():
        monkeypatch.setattr(torch.cuda, name, value)
    loop.stream = object()
    loop.advance(2)
    assert loop.graph is None
    loop.advance(4)
    loop.close()
    assert (len(recorded), loop.is_captured, state.ended) == (2 if captured else 1, captured, [True])
    assert (found.item(), found.grad) == (wanted.item(), None)
    assert loop.optimizer.met == eager.optimizer.met


def test_a_run_whose_step_cannot_be_captured_goes_without(monkeypatch, capsys):
    def refuse(self, steps, advance=Loop.advance):
        if self.wanted:
            raise CaptureError("no graph here")
        advance(self, steps)

    def make(self, *arguments, begin=Loop.__init__):
        begin(self, *arguments)
        self.wanted = arguments[-1]

    monkeypatch.setattr(Loop, "advance", refuse)
    monkeypatch.setattr(Loop, "__init__", make)
    images._make_trainer.cache_clear()
    assert [run(SMOKE, "AdamW", seed=seed)["captured"] for seed in (0, 1)] == [False, False]
    assert capsys.readouterr().err.count("AdamW is not captured: no graph here") == 1
    images._make_trainer.cache_clear()


def test_verdicts_count_what_was_excluded():
    bad = torch.tensor([True, False, False, True, True, False])
    losses = torch.tensor([1.0, 1.0, 2.0, 5.0, torch.nan, 3.0])
    notes = torch.tensor([[9.0, 0.1], [0.0, 1.0], [1.0, 0.4], [2.0, 0.2], [torch.inf, 0.9], [2.0, 1.0]])
    found = judge_run(losses, notes, bad, settled=2)
    shares = [found[name] for name in ("bad_excluded", "good_excluded", "bad_excluded_later", "good_excluded_later")]
    assert shares == pytest.approx([2 / 3, 1 / 3, 0.5, 0.5])
    assert (found["auroc"], found["auroc_loss"]) == (0.875, 1.0)
    clean = judge_run(losses, None, torch.zeros(6, dtype=torch.bool), settled=2)
    assert {name for name, value in clean.items() if value is not None} == {"losses"}


@pytest.mark.parametrize(
    ("after", "lost"),
    [([1.0, 1.0, 1.0, 1.0], 0), ([3.0, 2.0, 1.0, 1.0, 1.0], 2), ([3.0] * 5, 5), ([torch.nan] * 150, 100)],
)
def test_steps_are_lost_until_the_loss_is_back(after, lost):
    losses = torch.tensor([1.0] * 20 + [9.0] + after, dtype=torch.float64)
    assert count_steps_lost(losses, losses == 9.0) == lost


BEST = {"AdamW": 1e-2, "Oracle": 1e-3}  # and the other rate where batches are frozen
RATES = (1e-3, 1e-2)


@pytest.fixture
def tuned(tmp_path):
    """A directory with made-up results of tuning seeds, in which test accuracies would choose the other rates."""
    experiment, store = replace(SMOKE, noises=("clean", "frozen 10 %"), lrs=RATES), Store(tmp_path / "tuned")
    for trial in experiment.trials(["AdamW", "Oracle"], [1000, 1001]):
        best = trial.condition["lr"] == BEST[trial.method]
        share = 0.5 if best == (trial.condition["noise"] == "clean") else 0.4
        outcome = {"validation_accuracy": share, "accuracy": 1.0 - share}
        store.add([trial], [outcome], {"seconds": 1.0})
    return str(tmp_path / "tuned")


@pytest.mark.parametrize("track", ["clean", "noise"])
def test_rates_that_were_tuned_are_kept_for_other_seeds(tuned, track):
    experiment = replace(SMOKE, noises=("clean", "frozen 10 %"), lrs=RATES, tuned=tuned, track=track, seeds=2)
    trials = experiment.trials(["AdamW", "Oracle"])
    assert len(trials) == len({trial.key for trial in trials}) == 8
    for trial in trials:
        best = BEST[trial.method]
        other = next(rate for rate in RATES if rate != best)
        is_other = track == "noise" and trial.condition["noise"] != "clean"
        assert trial.condition["lr"] == (other if is_other else best)
    assert [trial.seed for trial in trials] == [0] * 4 + [1] * 4


@pytest.mark.parametrize(
    ("changed", "methods", "says"),
    [
        (
            {},
            ["AdamW", "Lion", "ADOPT"],
            "--methods Lion,ADOPT --models resnet18 --noises clean --lrs 0.001,0.01 --seeds 1000,1001",
        ),
        ({"lrs": (*RATES, 0.1)}, ["AdamW"], "--models resnet18 --noises clean --lrs 0.1 "),
        ({"track": "noise", "noises": ("clean", "human")}, ["AdamW"], "--noises human"),
        ({"weight_decay": 0.0}, ["AdamW"], "--methods AdamW --models resnet18"),
        ({"tuned": "nowhere"}, ["AdamW"], "--out nowhere"),
    ],
)
def test_without_results_to_choose_by_the_error_says_what_to_run(tuned, changed, methods, says):
    experiment = replace(SMOKE, **{"lrs": RATES, "tuned": tuned, **changed})
    with pytest.raises(NotTunedError) as error:
        experiment.trials(methods)
    assert "adaterm-bench run images" in str(error.value)
    assert says in str(error.value)
    offered = str(error.value).partition(". Or choose among the rates that have results: ")[2]
    assert offered == ("--lrs 0.001,0.01" if 0.1 in experiment.lrs else "")


def test_it_runs_and_reports(main, tuned, tmp_path):
    words = ["--preset", "smoke", "--workers", 0, "--methods", "AdamW,Oracle", "--out", tmp_path / "out"]
    code, text = main("run", "images", *words, "--noises", "clean,frozen 10 %", "--lrs", "1e-3,1e-2", "--tuned", tuned)
    assert code == 0, text
    results = Store(tmp_path / "out").results("images")
    assert len(results) == 4
    assert {(result.trial.method, result.trial.condition["lr"]) for result in results} == set(BEST.items())
    assert len({result.outcome["data"] for result in results}) == 1
    code, text = main("report", tmp_path / "out")
    assert code == 0, text


def test_without_data_the_error_says_where_to_get_it(main, tmp_path, monkeypatch):
    monkeypatch.delenv(cifar.VARIABLE, raising=False)
    code, text = main("run", "images", "--methods", "AdamW", "--out", tmp_path)
    assert (code, cifar.VARIABLE in text, "Traceback" in text) == (2, True, False), text


def test_the_settings_of_the_arena():
    full = Images(**Images.presets["full"])
    assert (full.epochs, full.batch_size, full.weight_decay, full.betas) == (30, 256, 0.05, (0.9, 0.999))
    assert (full.images, full.held_out, full.width, full.precision) == (50_000, 5_000, 64, "bfloat16")
    assert len(full.trials(full.methods)) == len(full.methods) * 5 * 6 * 3
    assert "Muon" not in full.methods
    with pytest.raises(ValueError, match="images=300"):
        Images(images=300, held_out=100)

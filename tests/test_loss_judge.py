"""LossJudge: what it says of losses, and that this is what RobustAdamW's equations say of its levels."""

import io
import pickle
from copy import deepcopy
from math import exp, inf, log, nan

import numpy as np
import pytest
import torch

from adaterm import LossJudge

pytestmark = pytest.mark.filterwarnings("ignore:a LossJudge left out")


def draw_losses(steps, share=0.0, ratio=4.0, seed=0):
    """A falling loss that scatters, and which of the batches are bad."""
    rng = np.random.default_rng(seed)
    losses = 3.0 * np.exp(-np.arange(steps) / steps) * np.exp(rng.normal(0.0, 0.05, steps))
    bad = rng.random(steps) < share
    return np.where(bad, ratio * losses, losses), bad


def ask(judge, losses):
    return np.array([judge.accepts(float(loss)) for loss in losses])


class Plain:
    """The rule in plain numbers, as docs/robust_adamw.md has it for levels."""

    def __init__(self, window=100, threshold=3.0, minority=0.25):
        self.window, self.threshold, self.minority = window, threshold, minority
        self.levels, self.far, self.count = [], 0.0, 0.0

    def trust(self, loss):
        level, known = 2.0 * log(loss), self.levels[-self.window :]
        self.levels.append(level)
        if len(known) < self.window:
            return 1.0
        usual = np.median(known)
        spread = max(0.35, usual - np.quantile(known, 0.159))
        before, self.count = self.count, min(self.count + 1.0, 4.0 * self.window)
        self.far = (self.far * (self.count - 1.0) / before if before else 0.0) + (
            level > usual + 0.75 * self.threshold * spread
        )
        bound = self.threshold
        if self.count >= self.window and self.far >= self.minority * self.count:
            bound = max(bound, (max(known) - usual) / spread + 1.0)
        row = next(place for place, past in enumerate(reversed(known)) if past <= usual + bound * spread)
        if row % 8 == 7:
            return 1.0
        z = max(0.0, (level - usual) / spread)
        return (1.0 + exp(-(bound**2) / 2.0)) / (1.0 + exp(min(700.0, (z**2 - bound**2) / 2.0)))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.2, 0.35])
@pytest.mark.parametrize("options", [{}, {"window": 20}, {"threshold": 4.0, "minority": 0.4}], ids=str)
def test_it_says_what_the_rule_says(share, options):
    losses, _ = draw_losses(900, share)
    losses[500:530] *= 5.0  # a row of them
    judge, plain, answers = LossJudge(**options), Plain(**options), []
    for loss in losses:
        wanted = plain.trust(float(loss))
        answers.append(judge.accepts(torch.tensor(loss)))
        assert answers[-1] == (wanted >= 0.5)
        assert judge.batch_statistics().trust == pytest.approx(wanted, rel=1e-9, abs=1e-12)
        assert judge.batch_statistics().level == pytest.approx(2.0 * log(loss))
    assert {True, False} == set(answers)


def test_bad_batches_are_refused_and_good_ones_are_not():
    losses, bad = draw_losses(1000, share=0.15)
    accepted = ask(LossJudge(), losses)
    assert accepted[:100].all()  # nothing is usual yet
    assert not accepted[100:][bad[100:]].any()
    assert accepted[~bad].all()


def test_a_loss_that_is_less_than_1_69_times_the_usual_one_is_never_refused():
    """Hard batches are no bad ones; and losses in other units are judged alike."""
    rng = np.random.default_rng(1)
    losses = np.where(rng.random(600) < 0.1, 1.689, 1.0)
    for scale in (1e-6, 1.0, 1e6):
        assert ask(LossJudge(), scale * losses).all()
        assert not ask(LossJudge(), scale * np.where(losses > 1.0, 1.695, 1.0))[100:][losses[100:] > 1.0].any()


def test_what_lasts_becomes_usual():
    judge = LossJudge(window=20)
    ask(judge, np.full(100, 1.0))
    answers = ask(judge, np.full(40, 10.0))
    assert answers[:7].tolist() == [False] * 7
    assert answers[7]  # of a row one is taken: only a step shows whether the batches are bad, or the place
    assert answers[11:].all()


def test_a_minority_is_accepted_unless_told_otherwise():
    losses, bad = draw_losses(1500, share=0.35, ratio=3.0)
    later = slice(400, None)
    assert ask(LossJudge(), losses)[later][bad[later]].mean() > 0.9
    assert ask(LossJudge(minority=0.5), losses)[later][bad[later]].mean() < 0.1


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_a_loss_that_is_not_finite_is_refused_and_forgotten(value):
    judge, other = LossJudge(window=20), LossJudge(window=20)
    for step in range(60):
        if step in (0, 5, 40):
            assert not judge.accepts(torch.tensor(value))
            assert judge.batch_statistics().trust == 0.0
        assert judge.accepts(1.0 + 0.01 * step) == other.accepts(1.0 + 0.01 * step)
    assert judge.batch_statistics() == other.batch_statistics()


def test_a_loss_of_0_is_accepted_and_forgotten():
    """It has no logarithm: else a few would hide what is bad, and many make all others look bad."""
    losses, bad = draw_losses(1000, share=0.15)
    zeros = np.random.default_rng(2).random(1000) < 0.3
    judge, spared = LossJudge(), LossJudge()
    accepted = ask(judge, np.where(zeros, 0.0, losses))
    assert accepted[zeros].all()
    assert (accepted[~zeros] == ask(spared, losses[~zeros])).all()
    assert not accepted[300:][(bad & ~zeros)[300:]].any()
    mostly = np.where(np.random.default_rng(3).random(1000) < 0.9, 0.0, 1.0 + losses / 100.0)
    assert ask(LossJudge(), mostly).all()


def test_it_warns_once_of_many_batches_left_out():
    judge = LossJudge(window=10)
    with pytest.warns(UserWarning, match="left out 10 of the last 10 batches: the last loss is nan") as seen:
        assert not ask(judge, [nan] * 30).any()
    assert len(seen) == 1
    with pytest.warns(UserWarning, match="left out 20 of the last 100 batches: .* pass a larger threshold") as seen:
        ask(LossJudge(), [*[1.0] * 400, *[4.0, 1.0, 1.0, 1.0] * 20])
    assert len(seen) == 1


@pytest.mark.parametrize("make", [float, np.float32, torch.tensor, lambda loss: torch.tensor([[loss]]).bfloat16()])
def test_losses_of_any_kind(make):
    judge = LossJudge(window=10)
    assert all(judge.accepts(make(loss)) for loss in [1.0] * 11)
    assert not judge.accepts(make(1e9))


def test_it_keeps_no_graph_and_changes_no_loss():
    loss = torch.ones(3, requires_grad=True).sum()
    assert LossJudge().accepts(loss)
    loss.backward()
    assert loss.item() == 3.0


def test_a_bad_batch_leaves_no_trace():
    """The run is the same to the bit as one that never met the bad batches."""

    def train(steps):
        torch.manual_seed(0)
        model, judge = torch.nn.Linear(4, 1), LossJudge(window=20)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for step in steps:
            inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
            loss = (model(inputs) - (100.0 if step in bad else inputs.sum(1, keepdim=True))).square().mean() + 1.0
            if judge.accepts(loss):
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return model.weight

    bad = (40, 55)
    assert torch.equal(train(range(80)), train([step for step in range(80) if step not in bad]))


def test_it_goes_on_from_a_checkpoint():
    losses, _ = draw_losses(300, share=0.2)
    judge, resumed = LossJudge(window=20), LossJudge(window=20)
    ask(judge, losses[:150])
    resumed.load_state_dict(deepcopy(judge.state_dict()))
    assert (ask(judge, losses[150:]) == ask(resumed, losses[150:])).all()
    assert judge.batch_statistics() == resumed.batch_statistics()


def test_its_state_is_plain():
    judge = LossJudge(window=20)
    ask(judge, draw_losses(150, share=0.2)[0])
    file = io.BytesIO()
    torch.save(judge.state_dict(), file)
    file.seek(0)
    resumed = LossJudge(window=20)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    copies = [resumed, deepcopy(judge), pickle.loads(pickle.dumps(judge))]
    losses, _ = draw_losses(100, share=0.3, seed=1)
    wanted = ask(judge, losses)
    assert all((ask(copy, losses) == wanted).all() for copy in copies)


def test_it_runs_under_other_modes_and_devices():
    judge = LossJudge(window=10)
    with torch.device("meta"):
        assert all(judge.accepts(1.0) for _ in range(12))
    with torch.inference_mode():
        assert not judge.accepts(torch.tensor(9.0))
    assert judge.accepts(torch.tensor(1))


def test_another_window_keeps_the_newest_losses():
    judge = LossJudge(window=40)
    ask(judge, [*[100.0] * 30, *[1.0] * 30])
    smaller, larger = LossJudge(window=20), LossJudge(window=100)
    for other in (smaller, larger):
        other.load_state_dict(judge.state_dict())
    assert not smaller.accepts(50.0)
    assert larger.accepts(50.0)  # whose window is not full yet


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (
            lambda judge: judge.accepts(-0.5),
            r"cannot judge a negative one, -0\.5: judge gradients .* with a BatchJudge",
        ),
        (lambda judge: judge.accepts({"loss": 1.0}), "a loss is a number, or a tensor that has one, not dict"),
        (lambda judge: judge.accepts(torch.ones(3)), r"one number, and not of shape \(3,\): pass its mean"),
        (lambda judge: judge.load_state_dict({"state": {}, "param_groups": []}), "has the keys state, param_groups"),
        (lambda judge: judge.load_state_dict(None), "not the state of a LossJudge, but None"),
        (lambda judge: LossJudge(window=3), "window=3 is not possible"),
        (lambda judge: LossJudge(threshold=-1.0), "threshold"),
        (lambda judge: LossJudge(minority=2.0), "minority"),
    ],
)
def test_mistakes_are_answered(act, message):
    with pytest.raises((TypeError, ValueError), match=message):
        act(LossJudge())


def test_it_says_what_it_is():
    assert repr(LossJudge(minority=0.4)) == "LossJudge(window=100, threshold=3.0, minority=0.4)"

"""Recurrent networks are torch's, batched trials are what they are alone, and the data is found, made or asked for."""

import json
import sys
from dataclasses import replace
from itertools import product
from math import inf, nan

import numpy as np
import pytest
import torch
from bench_command import read_report
from recorded import tried
from torch.distributions import Normal
from torch.nn.functional import softplus

import adaterm
from adaterm_bench.core import scratch
from adaterm_bench.core.trial import Result
from adaterm_bench.datasets import hexapod, trajectories
from adaterm_bench.datasets.data import DataError
from adaterm_bench.datasets.hexapod.simulation import STEPS, mujoco
from adaterm_bench.experiments.prediction import experiment as prediction
from adaterm_bench.experiments.prediction import training as truncated
from adaterm_bench.experiments.prediction.experiment import TEST, Prediction
from adaterm_bench.experiments.prediction.report import is_unstable
from adaterm_bench.experiments.prediction.training import (
    UNIT,
    Training,
    cut_segments,
    find_chance,
    list_factors,
    make_generator,
)
from adaterm_bench.methods import OUR_METHODS, PAPER_METHODS
from adaterm_bench.models import gru
from adaterm_bench.reporting.report import write

SMOKE = Prediction(**Prediction.presets["smoke"])
EXACT = replace(SMOKE, dtype="float64", epochs=1, long_epochs=1, hidden=4)
SIZE = trajectories.SIZE
METHODS = PAPER_METHODS | OUR_METHODS


def quiet(_):
    """No progress."""


def alone(method, params, lr):
    name, options = METHODS[method]
    if hasattr(adaterm, name):
        return getattr(adaterm, name)(params, lr=lr, foreach=False, **options)
    return getattr(torch.optim, name)(params, lr=lr)


def modules(seed, hidden):
    """Torch's own layers with the weights of a seed."""
    params = [it[0].detach() for it in gru.make_weights([seed], SIZE, hidden, torch.float64, "cpu")]
    layers, head = torch.nn.GRU(SIZE, hidden, 2).double(), torch.nn.Linear(hidden, 2 * SIZE).double()
    with torch.no_grad():
        for mine, theirs in zip(params, [*layers.parameters(), *head.parameters()], strict=True):
            theirs.copy_(mine.T.reshape(theirs.shape))
    return layers, head


def plain(layers, head, states, noise, memory, sample, horizon, place=0, factors=None):
    """One step after the other: the Gaussians of all next states, as torch has them, and what is remembered.

    Gradients that flow from one step back to another are multiplied by hooks.
    """
    found = []
    for step, (state, draw) in enumerate(zip(states, noise, strict=True), place):
        out, memory = layers((state if step % horizon == 0 else sample)[None], memory)
        mean, width = head(out[0]).chunk(2, -1)
        found.append(Normal(mean, softplus(width) + gru.FLOOR))
        sample = mean + found[-1].scale * draw
        if factors:
            memory, sample = memory * 1.0, sample * 1.0  # what the next step takes, and nothing else
            for tensor in (memory, sample):
                tensor.register_hook(lambda gradient, factor=factors[step - place]: factor * gradient)
    return found, memory, sample


@pytest.mark.parametrize("horizon", [1, 7])
def test_the_network_is_torchs(horizon):
    """The same path of samples and the same likelihoods, with torch's layers and distributions."""
    draws = torch.Generator().manual_seed(0)
    states, noise = torch.randn(2, 21, 1, 3, SIZE, dtype=torch.float64, generator=draws)
    params = gru.make_weights([5], SIZE, 16, torch.float64, "cpu")
    begins = torch.arange(20) % horizon == 0
    means, stds, memory = gru.walk(params, states[:-1], noise[:-1], begins, gru.make_memory(params, 3))
    layers, head = modules(5, 16)
    zeros = torch.zeros(2, 3, 16, dtype=torch.float64)
    found, last, sample = plain(layers, head, states[:-1, 0], noise[:-1, 0], zeros, None, horizon)
    torch.testing.assert_close(means[:, 0], torch.stack([it.mean for it in found]))
    torch.testing.assert_close(stds[:, 0], torch.stack([it.stddev for it in found]))
    torch.testing.assert_close(torch.cat(memory[:2]), last)
    torch.testing.assert_close(memory[2][0], sample)
    wanted = torch.stack([-it.log_prob(state[0]) for it, state in zip(found, states[1:], strict=True)])
    torch.testing.assert_close(gru.measure_surprise(means, stds, states[1:])[:, 0], wanted)


def test_weights_begin_as_torchs_and_go_with_the_seed():
    both, one = (gru.make_weights(seeds, SIZE, 64, torch.float64, "cpu") for seeds in ([3, 8], [8]))
    for pair, single in zip(both, one, strict=True):
        assert torch.equal(pair[1:], single)
        assert 0.9 / 8 < single.abs().max() < 1 / 8


@pytest.mark.parametrize("horizon", [1, 30])
@pytest.mark.parametrize("method", METHODS)
def test_trials_are_what_they_are_alone(method, horizon):
    """With torch's layers, the real optimizer and a loop that anyone would write."""
    trials = replace(EXACT, horizons=(horizon,)).trials([method])
    outcome, trial = EXACT.run(trials, "cpu", quiet)[-1], trials[-1]
    data = trajectories.make_synthetic(EXACT.trajectories)
    training = Training(method, [trial.seed], data.train, horizon, 4, EXACT.batch_size, EXACT.lr)
    layers, head = modules(trial.seed, 4)
    optimizer = alone(method, [*layers.parameters(), *head.parameters()], EXACT.lr)
    order, noise = training.draw_epoch(0)
    total = 0.0
    for batch, chosen in enumerate(order):
        states, memory, sample = data.train[:, chosen[0]], torch.zeros(2, 8, 4, dtype=torch.float64), None
        draws = torch.zeros_like(states) if noise is None else noise[batch, :, 0]
        place = 0
        for length in cut_segments(60, 0, batch):
            parts = (it[place : place + length] for it in (states, draws))
            found, memory, sample = plain(layers, head, *parts, memory, sample, horizon, place, list_factors(length))
            place += length
            after = states[place - length + 1 : place + 1]
            loss = -sum(it.log_prob(state).sum(1).mean() for it, state in zip(found, after, strict=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            memory, sample, total = memory.detach(), sample.detach(), total + loss.item()
    assert outcome["losses"][-1] == pytest.approx(total / 120, rel=1e-6)
    test, draws = data.test, torch.randn(data.test.shape, generator=make_generator(trial.seed, TEST)).double()
    with torch.no_grad():
        found, *_ = plain(layers, head, test[:60], draws[:60], torch.zeros(2, 8, 4).double(), None, horizon)
    last = range(horizon - 1, 60, horizon)
    error = torch.stack([found[step].mean + found[step].stddev * draws[step] - test[step + 1] for step in last])
    assert outcome["mse"] == pytest.approx(error.square().mean().item(), rel=1e-6)


@pytest.mark.parametrize("method", ["RAdam", "At-Adam", "AdaTerm2", "AdaTerm (gradient init)"])
def test_a_batch_of_one_is_the_same(method):
    trials = replace(EXACT, horizons=(30,)).trials([method], [0, 3, 4])
    together = EXACT.run(trials, "cpu", quiet)
    for trial, outcome in zip(trials, together, strict=True):
        (one,) = EXACT.run([trial], "cpu", quiet)
        for name in ("mse", "mse_mean", "best_mse", "best_epoch", "mses", "losses"):
            assert outcome[name] == pytest.approx(one[name], rel=1e-6)


def test_segments_are_thirty_steps_long_on_average_but_for_the_last():
    for batch in range(50):
        lengths = cut_segments(240, 7, batch)
        assert sum(lengths) == 240
        assert all(length % UNIT == 0 for length in lengths)
    assert np.mean(cut_segments(1_000_000, 0, 0)) == pytest.approx(30, abs=0.5)
    assert cut_segments(240, 1, 2) == cut_segments(240, 1, 2) != cut_segments(240, 2, 1)


def test_segments_end_with_the_chances_that_are_compensated_for():
    """Else the mean of compensated gradients is not that of whole trajectories, whatever the factors."""
    lengths = np.array(cut_segments(400_000, 3, 1)[:-1])
    for length in range(UNIT, 9 * UNIT, UNIT):
        reached = np.sum(lengths >= length)
        chance, factor = find_chance(length), list_factors(length + UNIT)[length - 1]
        assert np.mean(lengths[lengths >= length] == length) == pytest.approx(
            chance, abs=4.0 * np.sqrt(chance * (1.0 - chance) / reached)
        )
        assert factor == pytest.approx(1.0 / (1.0 - chance))


def test_compensated_gradients_are_those_of_whole_trajectories_in_the_mean():
    """Over all ways to cut five units, each with its chance: exactly, as Tallec and Ollivier say."""
    steps = 5 * UNIT
    draws = torch.Generator().manual_seed(1)
    states, noise = torch.randn(2, steps + 1, 1, 2, 3, dtype=torch.float64, generator=draws)
    params = gru.make_weights([0], 3, 4, torch.float64, "cpu")
    begins = torch.arange(steps) % 7 == 0

    def differentiate(lengths, compensated):
        memory, place, total = gru.make_memory(params, 2), 0, [torch.zeros_like(parameter) for parameter in params]
        for length in lengths:
            part = slice(place, place + length)
            factors = list_factors(length) if compensated else ()
            means, stds, memory = gru.walk(params, states[part], noise[part], begins[part], memory, factors=factors)
            loss = gru.measure_surprise(means, stds, states[1:][part]).sum()
            total = [a + b for a, b in zip(total, torch.autograd.grad(loss, params), strict=True)]
            memory, place = [tensor.detach() for tensor in memory], place + length
        return torch.cat([tensor.flatten() for tensor in total])

    mean = biased = 0.0
    for cuts in product((False, True), repeat=4):
        lengths, chance = [UNIT], 1.0
        for cut in cuts:
            ends = find_chance(lengths[-1])
            chance *= ends if cut else 1.0 - ends
            if cut:
                lengths.append(UNIT)
            else:
                lengths[-1] += UNIT
        mean = mean + chance * differentiate(lengths, True)
        biased = biased + chance * differentiate(lengths, False)
    whole = differentiate([steps], False)
    torch.testing.assert_close(mean, whole, rtol=1e-9, atol=1e-9)
    assert (biased - whole).norm() > 1e-3 * whole.norm()


def test_the_best_network_is_that_of_the_best_validation_error():
    """Of each trial its own; one that diverges afterwards keeps it."""
    study = replace(SMOKE, epochs=12, checks=12, lr=0.05, horizons=(1,))
    for outcome in study.run(study.trials(["Adam"]), "cpu", quiet):
        assert len(outcome["losses"]) == 12
        assert outcome["best_epoch"] == 1 + int(np.argmin(outcome["mses"]))
        assert (outcome["best_epoch"] == 12) == (outcome["best_mse"] == outcome["mse"])
    params = [torch.zeros(2, 3)]
    best = prediction.Best(params)
    best.note(torch.tensor([1.0, nan]), 1, [torch.ones(2, 3)])
    best.note(torch.tensor([nan, 2.0]), 2, [torch.full((2, 3), nan)])
    assert best.epoch.tolist() == [1, 2]
    assert best.params[0][0].tolist() == [1.0] * 3


def test_every_epoch_has_its_own_order_and_noise_whatever_the_method():
    data = trajectories.make_synthetic(20)
    first, second = (Training(it, [0, 1], data.train, 30, 4, 8, 1e-3) for it in ("Adam", "AdaTerm"))
    (order, noise), (same, too), (other, _) = first.draw_epoch(0), second.draw_epoch(0), first.draw_epoch(1)
    assert torch.equal(order, same)
    assert torch.equal(noise, too)
    assert not torch.equal(order, other)
    assert order.shape == (2, 2, 8)  # four trajectories fill no batch
    assert all(len(set(order[:, trial].flatten().tolist())) == 16 for trial in (0, 1))


def test_what_a_graph_is_tried_out_on_is_restored(monkeypatch):
    """As on a GPU, where a step runs a few times before it is recorded: all that it changes is named."""
    for method in ("AdaTerm", "Adam", "RAdam", "At-Adam"):
        trials = replace(EXACT, horizons=(30,)).trials([method])
        wanted = EXACT.run(trials, "cpu", quiet)
        with monkeypatch.context() as patched:
            patched.setattr(truncated, "make_repeatable", tried)
            assert EXACT.run(trials, "cpu", quiet) == wanted


@pytest.mark.parametrize("method", ["AdaTerm", "Adam", "AdaTerm (gradient init)"])
def test_what_is_interrupted_goes_on_as_if_it_were_not(method, tmp_path, monkeypatch):
    study = replace(EXACT, long_epochs=4, horizons=(30,))
    trials = study.trials([method])
    whole = study.run(trials, "cpu", quiet)
    monkeypatch.setattr(prediction, "EVERY", 0.0)

    def interrupt(fraction):
        if fraction > 0.5:
            raise KeyboardInterrupt

    with scratch.use_folder(str(tmp_path), "batch"):
        with pytest.raises(KeyboardInterrupt):
            study.run(trials, "cpu", interrupt)
        assert scratch.load()["epoch"] == 2
        assert study.run(trials, "cpu", quiet) == whole


def test_other_walks_do_not_go_with_the_results_there_are(tmp_path, monkeypatch):
    """Neither those that are named nor those that have been made in the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(trajectories.VARIABLE, raising=False)
    results = [Result(Prediction().trials(["Adam"], [0])[0], {"data": "of others"}, {})]
    Prediction().check(results)  # there are none yet
    saved(tmp_path / "adaterm" / trajectories.CACHED)
    for study in (Prediction(), Prediction(data=str(tmp_path / "adaterm" / trajectories.CACHED))):
        with pytest.raises(DataError, match=r"of others.*give another --out"):
            study.check(results)


def test_it_learns():
    """To predict waves better than by holding the last value, near and far ahead."""
    study = replace(SMOKE, seeds=1, hidden=32, epochs=80, long_epochs=30, lr=7e-3)
    for horizon in study.horizons:
        (outcome,) = study.run(replace(study, horizons=(horizon,)).trials(["Adam"]), "cpu", quiet)
        assert outcome["mse"] < 0.9 * outcome["held"]
        assert outcome["losses"][-1] < outcome["losses"][0]
        assert len(outcome["mses"]) == len(outcome["checked"]) == len(outcome["losses"])


def test_a_run_that_diverges_has_numbers_too(tmp_path):
    results = []
    for method in ("Adam", "AdaTerm", "AdaTerm2"):
        for horizon in SMOKE.horizons:
            trials = replace(SMOKE, horizons=(horizon,)).trials([method])
            lr = 1e30 if method == "AdaTerm2" else SMOKE.lr
            outcomes = replace(SMOKE, lr=lr).run(trials, "cpu", quiet)
            results += [Result(trial, it, {}) for trial, it in zip(trials, outcomes, strict=True)]
    shown = [it.outcome["example"] for it in results if it.trial.seed == 0]
    assert [np.shape(shown[0][name]) for name in ("true", "mean", "std")] == [(2, 60)] * 3
    assert all(it.outcome["example"] is None for it in results if it.trial.seed)
    assert any(not np.isfinite(it.outcome["mse"]) for it in results)
    section = SMOKE.section(results)
    assert [table.title for table in section.tables][-1] == "Unstable runs"
    assert section.tables[2].rows[1][:3:2] == ["AdaTerm", "1.00 ± 0.23"]  # the paper's
    assert [claim.text for claim in section.claims if "Adam" in claim.text] == [
        "With 1 step, Adam has a lower error than AdaTerm.",
        "With 30 steps, AdaTerm has a lower error than Adam.",
    ]
    assert all("Where networks validate best" in claim.note for claim in section.claims[:2])
    write([section], results, tmp_path)
    assert "diverged" in read_report(tmp_path)


def test_what_is_unstable():
    assert not is_unstable([3.0, 1.0, 1.9, 1.0])
    assert is_unstable([1.0, 1.0, 2.1, 1.0])
    assert is_unstable([1.0, nan])
    assert is_unstable([inf, 1.0])


def saved(folder):
    """A data set of random numbers in a folder."""
    draws = np.random.default_rng(0)
    shapes = [(STEPS, 18), (STEPS, 18), (STEPS, 5), (8,)]
    kinds = [hexapod.Recording(*(draws.normal(2, 3, (n, *it)).astype(np.float32) for it in shapes)) for n in (4, 1, 2)]
    hexapod.save(hexapod.Dataset(*kinds), folder, seed=0)
    return kinds


def test_states_are_standardised_by_the_training_set(tmp_path):
    kinds = saved(tmp_path)
    found = trajectories.load(tmp_path)
    assert json.loads((tmp_path / "hexapod.json").read_text())["fingerprint"] == found.fingerprint
    assert found.test.shape == (STEPS, 2, SIZE)
    std, mean = torch.std_mean(found.train, (0, 1))
    torch.testing.assert_close(mean, torch.zeros(SIZE).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(std, torch.ones(SIZE).double())
    angles = found.test[7, 1, :18] * found.std[:18] + found.mean[:18]
    np.testing.assert_allclose(angles, kinds[2].angles[1, 7], atol=1e-12)
    study = Prediction(data=str(tmp_path), trajectories=4)
    with pytest.raises(DataError, match="4 training trajectories do not fill a batch of 32"):
        study.run(study.trials(["Adam"], [0])[:1], "cpu", quiet)
    with pytest.raises(DataError, match="There are 4 training trajectories, not 5"):
        replace(study, trajectories=5, batch_size=2).prepare()
    study = replace(study, batch_size=2, horizons=(250,))
    with pytest.raises(DataError, match="horizon of 250 steps"):
        study.run(study.trials(["Adam"], [0]), "cpu", quiet)


@pytest.mark.parametrize("layout", ["folders", "one folder"])
@pytest.mark.parametrize("suffix", [".csv", ".txt", ".npy"])
def test_recordings_of_ones_own_are_read(tmp_path, layout, suffix):
    """A stand-in for the paper's recording: numbers of which we know the place, in files as users may have them."""
    names = ["train"] * 12 + ["val"] * 2 + ["test"] * 2
    for number, kind in enumerate(names):
        folder = tmp_path / kind if layout == "folders" else tmp_path
        folder.mkdir(exist_ok=True)
        states = np.random.default_rng(number).normal(number, 1.0, (70 + number, SIZE)).astype(np.float32)
        file = folder / f"walk{number}{suffix}"
        if suffix == ".npy":
            np.save(file, states)
        else:
            separator = "," if suffix == ".csv" else " "
            heading = separator.join(f"joint{place}" for place in range(SIZE))
            np.savetxt(file, states, delimiter=separator, header=heading, comments="")
    found = trajectories.load(tmp_path)
    assert [part.shape for part in found[:3]] == [(70, 12, SIZE), (70, 2, SIZE), (70, 2, SIZE)]
    first = np.random.default_rng(14).normal(14, 1.0, (84, SIZE)).astype(np.float32)[:70]
    np.testing.assert_allclose(found.test[:, 0] * found.std + found.mean, first, atol=1e-4)
    study = replace(SMOKE, source="hexapod", data=str(tmp_path), trajectories=12, batch_size=4, epochs=1, horizons=(1,))
    study.check([])
    (outcome,) = study.run(study.trials(["AdaTerm"], [0]), "cpu", quiet)
    assert outcome["data"] == found.fingerprint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,2,3\n", "line 1: 3 numbers, not 36"),
        ("a,b\n" + ",".join(["1"] * 36) + "\nno row\n", "line 3: 'no row' is not a row"),
        (",".join(["1"] * 35 + ["nan"]) + "\n", "nan in step 0, number 35"),
        ("nothing\n", "has the shape"),
        ("a,b\n" + ",".join(["1"] * 35 + ["x"]) + "\n" + ",".join(["1"] * 36), "line 2: '1,1.* nor a heading"),
    ],
)
def test_a_recording_that_is_none(tmp_path, text, message):
    (tmp_path / "walk0.csv").write_text(text)
    with pytest.raises(DataError, match="no trajectories for validation"):
        trajectories.load(tmp_path)
    for number in range(1, 8):
        (tmp_path / f"walk{number}.csv").write_text(",".join(["1"] * 36))
    with pytest.raises(DataError, match=message):
        trajectories.load.__wrapped__(tmp_path)


def _write_walks(folder, count):
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / f"walk{number}.csv").write_text(f"{','.join(['angle'] * SIZE)}\n{','.join([str(number)] * SIZE)}\n")


@pytest.mark.parametrize("note", ["README.txt", "license.txt", "readme.md"])
@pytest.mark.parametrize("layout", ["folders", "one folder", "simulated"])
def test_notes_beside_the_data_are_not_read(tmp_path, layout, note):
    (tmp_path / note).write_text("Walks of 2026, 36 numbers in a row.")
    if layout == "one folder":
        _write_walks(tmp_path, 8)
    elif layout == "folders":
        for kind, count in {"train": 6, "validation": 1, "test": 1}.items():
            _write_walks(tmp_path / kind, count)
    else:
        (tmp_path / hexapod.DESCRIPTION).write_text("{}")
        with pytest.raises(DataError, match=hexapod.DESCRIPTION):
            trajectories.load(tmp_path)
        return
    assert trajectories.load(tmp_path).train.shape == (1, 6, SIZE)


def test_data_of_two_kinds_in_one_folder_is_refused(tmp_path):
    """Rather than one of them taken without a word."""
    for name in ("simulated", "both"):
        _write_walks(tmp_path / name, 8)
    (tmp_path / "simulated" / hexapod.DESCRIPTION).write_text("{}")
    with pytest.raises(DataError, match=r"has both hexapod.json.* and walk0.csv.*: move one of them"):
        trajectories.load(tmp_path / "simulated")
    _write_walks(tmp_path / "both/train", 6)
    with pytest.raises(DataError, match=r"has walk0.csv beside train/walk0.csv: move all trajectories"):
        trajectories.load(tmp_path / "both")


def test_where_the_data_is(tmp_path, monkeypatch):
    """As given, else as the environment says, else made once in the cache; without MuJoCo one is told what to do."""
    made = []
    monkeypatch.setattr(hexapod, "generate", lambda seed: made.append(seed))
    monkeypatch.setattr(hexapod, "save", lambda _, folder, seed: folder.mkdir())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(trajectories.VARIABLE, "elsewhere")
    assert [str(trajectories.find_folder(it)) for it in ("here", "")] == ["here", "elsewhere"]
    monkeypatch.delenv(trajectories.VARIABLE)
    place = trajectories.find_folder("")
    assert trajectories.find_folder("") == place == tmp_path / "cache/adaterm" / trajectories.CACHED
    assert made == [0]
    assert list(place.parent.iterdir()) == [place]


def test_another_process_may_be_faster(tmp_path, monkeypatch):
    place = tmp_path / "adaterm" / trajectories.CACHED

    def save(_, folder, seed):
        for it in (folder, place):
            it.mkdir(parents=True)
            (it / "file").write_text(str(it))

    monkeypatch.setattr(hexapod, "generate", lambda seed: None)
    monkeypatch.setattr(hexapod, "save", save)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(trajectories.VARIABLE, raising=False)
    assert trajectories.find_folder("") == place
    assert (place / "file").read_text() == str(place)
    assert list(place.parent.iterdir()) == [place]


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv(trajectories.VARIABLE, raising=False)
    with pytest.raises(DataError, match=r"--data DIR or set .* cannot be written"):
        trajectories.find_folder("")


def test_without_data_and_without_mujoco(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    mujoco.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(trajectories.VARIABLE, raising=False)
    with pytest.raises(DataError, match=rf"--data DIR or set {trajectories.VARIABLE}.*pip install"):
        trajectories.find_folder("")
    assert list((tmp_path / "adaterm").iterdir()) == []

"""Demonstrations that are whole or refused, and students that learn from them."""

import json

import numpy as np
import pytest
import torch

from adaterm_bench.core import scratch, store
from adaterm_bench.core.trial import Result
from adaterm_bench.datasets import demonstrations
from adaterm_bench.datasets.data import DataError, fingerprint
from adaterm_bench.experiments.distillation import experiment as distillation
from adaterm_bench.experiments.distillation.experiment import Distillation, apply_student, measure_surprise
from adaterm_bench.experiments.rl.experiment import Reinforcement
from adaterm_bench.methods import make_optimizer
from adaterm_bench.models.networks import make_weights

FILE = demonstrations.FILE


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A data set of four policies that `rl` has just begun to learn."""
    folder = tmp_path_factory.mktemp("demonstrations")
    settings = Reinforcement(tasks=("Swing",), episodes=1, test_episodes=1, batches=2, hidden=(8,), seeds=2)
    trials = settings.trials(["Adam", "AdaTerm"])
    for method in ("Adam", "AdaTerm"):
        with scratch.use_folder(str(folder), method):
            settings.run([it for it in trials if it.method == method], "cpu", lambda fraction: None)
    files = [folder / "kept" / f"{it.key}.npz" for it in trials]
    found = demonstrations.record("Swing", files, [2, 2, 2, 1], 5)
    demonstrations.save("Swing", [{"key": it.stem, "what": it.stem} for it in files], found, folder, 5)
    return folder, files, found


def test_what_is_recorded_can_be_loaded_and_repeats(recorded):
    folder, files, found = recorded
    loaded = demonstrations.load(folder)
    assert loaded.task == "Swing"
    assert loaded.states.shape == (len(found["steps"]), 2)
    assert loaded.actions.shape == (len(found["steps"]), 1)
    assert int(loaded.amateur.sum()) == found["episodes"][-1]["steps"]
    assert np.abs(loaded.actions).max() > 1.0  # as they were drawn; the environment clips them
    assert [told.partition(" ")[0] for told in loaded.policies] == [it.stem for it in files]
    assert f"in 1 episodes of {found['episodes'][-1]['steps']} steps" in loaded.policies[-1]
    rows = np.concatenate([loaded.states, loaded.actions], 1)
    assert loaded.fingerprint == fingerprint([rows])  # of the numbers, however they were compressed
    again = demonstrations.record("Swing", files, [2, 2, 2, 1], 5)
    np.testing.assert_array_equal(again["steps"], found["steps"])


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / FILE).unlink(), "There is no .*demonstrations.npy.gz"),
        (lambda folder: (folder / FILE).write_bytes((folder / FILE).read_bytes()[:200]), "cannot be read"),
        (lambda folder: _describe(folder, states=40), "has the shape"),
        (lambda folder: _describe(folder, file={"sha256": "0"}), "does not have the SHA-256"),
        (lambda folder: _spoil(folder), "row 3: number 1 is nan"),
    ],
)
def test_what_is_wrong_is_refused(recorded, tmp_path, damage, says):
    for name in (FILE, demonstrations.DESCRIPTION):
        (tmp_path / name).write_bytes((recorded[0] / name).read_bytes())
    damage(tmp_path)
    with pytest.raises(DataError, match=says):
        demonstrations.load(tmp_path)


def _describe(folder, **changed):
    file = folder / demonstrations.DESCRIPTION
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))


def _spoil(folder):
    import gzip
    import io

    rows = np.load(io.BytesIO(gzip.decompress((folder / FILE).read_bytes())))
    rows[3, 1] = np.nan
    array = io.BytesIO()
    np.save(array, rows)
    (folder / FILE).write_bytes(gzip.compress(array.getvalue()))


@pytest.mark.parametrize("content", [b"nothing", b"", b"PK\x03\x04 and no more"])
def test_a_file_that_is_no_policy(tmp_path, content):
    (tmp_path / "policy.npz").write_bytes(content)
    with pytest.raises(DataError, match="is not a policy"):
        demonstrations.Policy(tmp_path / "policy.npz")


def test_the_best_teach_and_the_worst_is_the_amateur(tmp_path, capsys):
    settings = Reinforcement(tasks=("Swing",), episodes=1, test_episodes=1, batches=2, hidden=(8,), seeds=5)
    trials = settings.trials(["Adam"])
    with scratch.use_folder(str(tmp_path), "batch"):
        outcomes = settings.run(trials, "cpu", lambda fraction: None)
    words = [str(tmp_path), "--task", "Swing", "--out", str(tmp_path / "data"), "--variant", "specified"]
    _refused(words, capsys, "there are 0)", "Variants: none")
    _refused([str(tmp_path / "none"), *words[1:]], capsys, "There is no directory")
    store.Store(tmp_path).add(trials, outcomes, {})
    _refused([*words[:-1], "tuned"], capsys, "there are 0)", "Variants: specified")
    _refused([*words, "--amateur", "nobody"], capsys, "choose from", f"{trials[0].key}: Adam, specified, 1 episodes")
    demonstrations.main(words)
    order = sorted(range(5), key=lambda place: -outcomes[place]["return"])
    about = json.loads((tmp_path / "data" / demonstrations.DESCRIPTION).read_text())
    assert [it["key"] for it in about["policies"]] == [trials[it].key for it in (*order[:3], order[-1])]
    assert "33 episodes" in capsys.readouterr().out
    stuck = Reinforcement(tasks=("Swing",), episodes=1, test_episodes=2, batches=1, hidden=(8,), seeds=1)
    with scratch.use_folder(str(tmp_path / "stuck"), "stuck"):
        learnt = stuck.run(stuck.trials(["Adam"]), "cpu", lambda _: None)
        store.Store(tmp_path / "stuck").add(stuck.trials(["Adam"]), learnt, {})
    demonstrations.main([*words, "--amateurs", str(tmp_path / "stuck")])
    about = json.loads((tmp_path / "data" / demonstrations.DESCRIPTION).read_text())
    assert about["policies"][-1]["key"] == stuck.trials(["Adam"])[0].key
    _refused([*words, "--amateurs", str(tmp_path / "nowhere")], capsys, "There is no directory")
    found = demonstrations.load(tmp_path / "data")
    assert np.abs(found.actions).max() > 1.0  # as the policies drew them, not as the environment clipped them
    del about["actions"]
    (tmp_path / "data" / demonstrations.DESCRIPTION).write_text(json.dumps(about))
    with pytest.raises(DataError, match="clipped actions"):
        demonstrations.load(tmp_path / "data")
    other = Reinforcement(tasks=("Swing",), episodes=2, test_episodes=1, batches=2, hidden=(8,), seeds=1)
    with scratch.use_folder(str(tmp_path), "other"):
        store.Store(tmp_path).add(other.trials(["Adam"]), other.run(other.trials(["Adam"]), "cpu", lambda _: None), {})
    _refused(words, capsys, "different settings")


def _refused(words, capsys, *says):
    with pytest.raises(SystemExit) as raised:
        demonstrations.main(words)
    assert raised.value.code == 2
    told = capsys.readouterr().err
    assert all(it in told for it in says), told


def test_the_loss_is_that_of_a_gaussian():
    params = [torch.randn(2, *shape, dtype=torch.float64) for shape in ((3, 4), (1, 4), (4, 4), (1, 4))]
    mean, std = apply_student(params, torch.randn(2, 5, 3, dtype=torch.float64))
    actions = torch.randn_like(mean)
    wanted = -torch.distributions.Normal(mean, std).log_prob(actions).sum(-1)
    torch.testing.assert_close(measure_surprise((mean, std), actions), wanted)


def test_students_learn_and_are_tested():
    experiment = Distillation(source="synthetic", epochs=30, test_episodes=2, seeds=3, lr=1e-2)
    results = []
    for method in ("Adam", "AdaTerm"):
        for amateur in ("without", "with"):
            trials = [it for it in experiment.trials([method]) if it.condition["amateur"] == amateur]
            outcomes = experiment.run(trials, "cpu", lambda fraction: None)
            results += [Result(trial, outcome, {}) for trial, outcome in zip(trials, outcomes, strict=True)]
            if method == "Adam":
                assert all(it["losses"][-1] < it["losses"][0] for it in outcomes)
            if (method, amateur) == ("Adam", "without"):
                assert min(it["return"] for it in outcomes) > 25.0  # who does nothing has far less
    section = experiment.section(results)
    assert "The amateur: one that pushes the wrong way." in section.text
    assert any(it.title == "With the amateur: return" for it in section.tables)
    costs = section.tables[-1]
    assert [row[0] for row in costs.rows] == ["Adam", "AdaTerm"]
    left, held = (np.mean([it.outcome["return"] for it in own]) for own in (results[:3], results[3:6]))
    shown = costs.rows[0][3].removesuffix(" %").replace("\N{MINUS SIGN}", "-")
    assert float(shown) == pytest.approx(100.0 * (held / left - 1.0), rel=0.1, abs=0.1)
    assert {it.text for it in section.claims} == {
        f"{name} the amateur, AdaTerm has a higher return than Adam." for name in ("Without", "With")
    }
    for figure in section.figures:
        figure.draw()


def test_students_are_compared_by_how_often_they_walk():
    """Seed by seed, where means of two humps would say little; the difference is that of the two means."""
    study = Distillation(source="synthetic", seeds=6, amateur=("without",))
    walks = {"Adam": [4, 4, 4, 0, 0, 0], "AdaTerm": [4, 1, 1, 1, 1, 1]}
    tests = {name: [[3000.0] * it + [900.0] * (4 - it) for it in walked] for name, walked in walks.items()}
    results = [
        Result(
            trial,
            {
                "return": float(np.mean(tests[trial.method][trial.seed])),
                "test_returns": tests[trial.method][trial.seed],
                "losses": [1.0],
                "policies": ["a teacher", "an amateur"],
                "data": "x",
            },
            {},
        )
        for trial in study.trials(["Adam", "AdaTerm"])
    ]
    (table,) = (it for it in study.section(results).tables if it.title.endswith("returns of single episodes"))
    assert table.columns[-2:] == ["mean % that walk", "its difference from AdaTerm"]
    shown = {row[0]: [cell.partition(" ")[0] for cell in (row[1], *row[-2:])] for row in table.rows}
    assert shown == {"Adam": ["24", "50.0", "12.5"], "AdaTerm": ["24", "37.5", ""]}


@pytest.mark.parametrize("method", ["Adam", "RAdam", "AdaTerm"])
def test_students_are_those_of_a_plain_loop(method):
    """Every sample once an epoch in a drawn order, a Gaussian's likelihood, and the optimizer's own weight decay."""
    experiment = Distillation(
        source="synthetic", epochs=2, test_episodes=1, seeds=1, amateur=("with",), weight_decay=0.05, lr=1e-2
    )
    (found,) = experiment.run(experiment.trials([method]), "cpu", lambda fraction: None)
    data = demonstrations.make_synthetic()
    states = torch.from_numpy(((data.states - data.states.mean(0)) / data.states.std(0)).astype(np.float32))
    params = [it[0].detach().clone().requires_grad_() for it in make_weights([0], (2, 32, 32, 2), torch.float32, "cpu")]
    optimizer = make_optimizer(method, params, 1e-2)
    optimizer.param_groups[0]["weight_decay"] = 0.05
    generator, losses = torch.Generator().manual_seed(0), []
    for _ in range(2):
        order, total = torch.randperm(len(states), generator=generator), []
        for batch in order.split(32)[: len(states) // 32]:
            hidden = torch.tanh(torch.tanh(states[batch] @ params[0] + params[1]) @ params[2] + params[3])
            mean, std = (hidden @ params[4] + params[5]).chunk(2, -1)
            policy = torch.distributions.Normal(mean, torch.nn.functional.softplus(std) + 1e-3)
            loss = -policy.log_prob(torch.from_numpy(data.actions)[batch]).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total.append(loss.item())
        losses.append(np.mean(total))
    assert found["losses"] == pytest.approx(losses, rel=1e-3)


def test_students_side_by_side_are_those_alone():
    experiment = Distillation(source="synthetic", epochs=1, test_episodes=1, seeds=2)
    trials = [it for it in experiment.trials(["AdaTerm"]) if it.condition["amateur"] == "with"]
    together = experiment.run(trials, "cpu", lambda fraction: None)
    for trial, found in zip(trials, together, strict=True):
        (alone,) = experiment.run([trial], "cpu", lambda fraction: None)
        assert alone["losses"] == pytest.approx(found["losses"], rel=1e-5)


@pytest.mark.parametrize("method", ["Adam", "RAdam", "t-Adam", "AdaTerm", "AdaTerm (gradient init)"])
def test_what_is_interrupted_goes_on_as_if_it_were_not(tmp_path, monkeypatch, method):
    experiment = Distillation(source="synthetic", epochs=4, test_episodes=1, seeds=2, amateur=("with",))
    trials = experiment.trials([method])
    whole = experiment.run(trials, "cpu", lambda fraction: None)
    monkeypatch.setattr(distillation, "EVERY", 0.0)

    def interrupt(fraction):
        if fraction > 0.5:
            raise KeyboardInterrupt

    with scratch.use_folder(str(tmp_path), "batch"):
        with pytest.raises(KeyboardInterrupt):
            experiment.run(trials, "cpu", interrupt)
        assert len(scratch.load()["losses"]) == 2
        assert experiment.run(trials, "cpu", lambda fraction: None) == whole
        assert len(scratch.load()["losses"]) == 4  # of whom only tests were left, if it had been killed in them
        assert experiment.run(trials, "cpu", lambda fraction: None) == whole


def test_other_demonstrations_do_not_go_with_the_results_there_are(recorded, tmp_path, monkeypatch):
    monkeypatch.delenv(demonstrations.VARIABLE, raising=False)
    folder, _, found = recorded
    experiment = Distillation(data=str(folder))
    (trial, *_) = experiment.trials(["Adam"])
    results = [Result(trial, {"data": demonstrations.load(folder).fingerprint}, {})]
    experiment.check(results)
    Distillation().check(results)  # none are named
    demonstrations.save("Swing", [], {**found, "steps": found["steps"] * 0.5}, tmp_path, 5)
    with pytest.raises(DataError, match="give another --out"):
        Distillation(data=str(tmp_path)).check(results)


def test_too_few_steps_for_a_batch_are_refused():
    experiment = Distillation(source="synthetic", batch_size=100_000)
    with pytest.raises(DataError, match="do not fill a batch of 100000"):
        experiment.run(experiment.trials(["Adam"])[:1], "cpu", lambda fraction: None)


def test_without_demonstrations_it_says_how_to_make_them(monkeypatch):
    monkeypatch.delenv(demonstrations.VARIABLE, raising=False)
    with pytest.raises(DataError, match=r"python -m adaterm_bench.datasets.demonstrations RESULTS --task"):
        Distillation().prepare()

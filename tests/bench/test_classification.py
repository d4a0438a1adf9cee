"""CIFAR-100 as published or not at all, wrong labels that can be verified, and a ResNet-18 that learns."""

import hashlib
from collections import Counter

import numpy as np
import pytest
import torch
from bench_command import read_report
from recorded import tried

from adaterm_bench.datasets import cifar
from adaterm_bench.datasets.cifar import DataError, Labelled
from adaterm_bench.experiments.classification import experiment as classification
from adaterm_bench.experiments.classification.experiment import Classification, Training, draw_batches, objective
from adaterm_bench.methods import make_optimizer
from adaterm_bench.models.resnet import ResNet18, make_network

TINY = {"source": "synthetic", "images": 64, "batch_size": 32, "width": 2, "precision": "float32", "epochs": 2}


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A folder with two small files in the official layout, which pass for the published ones."""
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, rows in (("train.bin", 20), ("test.bin", 10)):
        table = rng.integers(0, 256, (rows, cifar.ROW), dtype=np.uint8)
        table[:, 0], table[:, 1] = 3, np.arange(rows)
        (folder / name).write_bytes(table.tobytes())
        monkeypatch.setitem(cifar.ROWS, name, rows)
        monkeypatch.setitem(cifar.SHA1, name, hashlib.sha1(table.tobytes()).hexdigest())
    for function in (cifar.load, cifar.load_human_labels):
        function.cache_clear()
    yield folder
    for function in (cifar.load, cifar.load_human_labels):
        function.cache_clear()


def test_rows_are_planes_of_colours_after_two_labels(published):
    train, test = cifar.load(cifar.find_folder(str(published.parent)))
    assert (train.labels.tolist(), len(test.labels)) == (list(range(20)), 10)
    row = np.frombuffer((published / "train.bin").read_bytes(), np.uint8).reshape(20, -1)[7, 2:]
    assert train.pixels[7, 5, 9].tolist() == [int(row[plane * 1024 + 5 * 32 + 9]) for plane in range(3)]


def test_the_folder_comes_by_option_or_environment(published, monkeypatch):
    monkeypatch.setenv(cifar.VARIABLE, str(published))
    assert cifar.find_folder("") == published
    assert cifar.find_folder(str(published.parent)) == published
    monkeypatch.delenv(cifar.VARIABLE)
    with pytest.raises(DataError, match=r"--data DIR or set ADATERM_CIFAR100.*SHA-1 of train.bin must be"):
        cifar.find_folder("")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda file: file.unlink(), "There is no .*train.bin"),
        (
            lambda file: file.write_bytes(file.read_bytes()[: 5 * cifar.ROW + 9]),
            "ends in the middle of row 5, not 20 rows",
        ),
        (lambda file: file.write_bytes(file.read_bytes()[: 5 * cifar.ROW]), "has 5 rows, not 20 rows"),
        (
            lambda file: _change(file, 3 * cifar.ROW + 1, 111),
            r"not the published file \(row 3, for one, has the label 111",
        ),
        (lambda file: _change(file, 99, 0), "is not the published file. Get"),
    ],
)
def test_files_that_are_not_as_published_are_refused(published, damage, says):
    damage(published / "train.bin")
    with pytest.raises(DataError, match=says) as error:
        cifar.load(published)
    assert cifar.SITE in str(error.value)
    assert cifar.SHA1["train.bin"] in str(error.value)


def _change(file, place, value):
    content = bytearray(file.read_bytes())
    content[place] = value
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("form", ["npy", "pt"])
def test_human_labels_of_either_form(published, form, monkeypatch):
    labels = np.where(np.arange(20) < 8, 50, np.arange(20))
    if form == "npy":
        np.save(published.parent / "cifar100n_fine.npy", labels.astype(np.uint8))
    else:
        torch.save({"clean_label": labels, "noisy_label": labels}, published / "CIFAR-100_human.pt")
    with pytest.raises(DataError, match=r"(npy|pt) does not have the fine labels of CIFAR-100N in their order"):
        cifar.load_human_labels(published)
    monkeypatch.setattr(cifar, "HUMAN", cifar.fingerprint(torch.from_numpy(labels)))
    assert cifar.load_human_labels(published).tolist() == labels.tolist()


def test_human_labels_pickled_by_an_older_numpy(published, monkeypatch):
    monkeypatch.setattr(cifar, "HUMAN", cifar.fingerprint(torch.arange(20)))
    labels = np.arange(20)
    torch.save({"noisy_label": labels}, published / "CIFAR-100_human.pt")
    content = (published / "CIFAR-100_human.pt").read_bytes()
    import zipfile

    with zipfile.ZipFile(published / "CIFAR-100_human.pt") as packed:
        files = {name: packed.read(name) for name in packed.namelist()}
    with zipfile.ZipFile(published / "CIFAR-100_human.pt", "w") as packed:
        for name, data in files.items():
            packed.writestr(name, data.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    assert content != (published / "CIFAR-100_human.pt").read_bytes()
    assert cifar.load_human_labels(published).tolist() == labels.tolist()


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (None, "no labels of CIFAR-100N"),
        (np.zeros(19), "has the shape"),
        (np.where(np.arange(20) == 4, 100, 0), "row 4: the label 100"),
        (np.where(np.arange(20) == 6, np.nan, 0.0), "row 6: the label nan"),
        (np.full(20, "cat"), "type <U3"),
        ("text", "cannot be read"),
    ],
)
def test_human_labels_that_are_wrong(published, labels, says):
    file = published / "cifar100n_fine.npy"
    if isinstance(labels, str):
        file.write_text(labels)
    elif labels is not None:
        np.save(file, labels)
    with pytest.raises(DataError, match=says):
        cifar.load_human_labels(published)


@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_as_many_labels_as_asked_are_wrong_and_the_seed_decides_which(share):
    labels = torch.arange(1000) % 100
    wrong = cifar.corrupt_labels(labels, share, 100, 5)
    assert int((wrong != labels).sum()) == round(1000 * share)
    assert 0 <= wrong.min() <= wrong.max() < 100
    assert torch.equal(wrong, cifar.corrupt_labels(labels, share, 100, 5))
    if share:
        assert cifar.fingerprint(wrong) != cifar.fingerprint(cifar.corrupt_labels(labels, share, 100, 6))
        counts = np.bincount(((wrong - labels) % 100)[wrong != labels], minlength=100)
        assert counts[0] == 0


def test_the_network_is_resnet_18_for_small_images():
    network = ResNet18(100)
    assert sum(it.numel() for it in network.parameters()) == 11_220_132
    assert sum(isinstance(it, torch.nn.Conv2d) for it in network.modules()) == 20
    shapes = []
    for block in network.blocks:
        block.register_forward_hook(lambda _, __, out: shapes.append(tuple(out.shape[1:])))
    assert network(torch.zeros(2, 3, 32, 32)).shape == (2, 100)
    assert shapes[1::2] == [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]
    std = network.blocks[0].first.weight.detach().std()
    assert float(std) == pytest.approx((2 / (9 * 64)) ** 0.5, rel=0.02)


def test_the_seed_decides_the_initial_weights():
    first = make_network(3, 10, 2).state_dict()
    torch.rand(5)
    assert all(torch.equal(it, first[name]) for name, it in make_network(3, 10, 2).state_dict().items())


def test_batches_are_crops_of_padded_images_some_flipped():
    """The loss of a batch drawn in the objective is that of the same batch cut by hand."""
    data = cifar.make_synthetic(8, 100, 0)
    training = Training(Classification(**{**TINY, "images": 32}), "Adam", _repeated(data, 4), 0, "cpu")
    draws = torch.tensor([[3, 0, 8, 0], [5, 4, 4, 1], [0, 7, 2, 1]])
    by_hand = []
    for index, top, left, flip in draws.tolist():
        padded = torch.nn.functional.pad(data.pixels[index].permute(2, 0, 1), (4, 4, 4, 4))
        crop = padded[:, top : top + 32, left : left + 32]
        by_hand.append(crop.flip(2) if flip else crop)
    scale, centre = training.colours
    batch = (torch.stack(by_hand).float() - centre.view(3, 1, 1)) / scale.view(3, 1, 1)
    network = training.network.eval()
    wanted = torch.nn.functional.cross_entropy(network(batch), data.labels[draws[:, 0]], label_smoothing=0.2)
    found = objective(network, training.images, training.labels, training.colours, draws, 0.2, False)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-5)


def _repeated(data, times):
    return Labelled(data.pixels.repeat(times, 1, 1, 1), data.labels.repeat(times))


def test_an_epoch_takes_every_image_at_most_once_in_an_order_of_its_own():
    first, second = (draw_batches(100, 3, 32, [7, epoch]) for epoch in (0, 1))
    assert len(first[..., 0].unique()) == 96
    assert not torch.equal(first, second)
    assert first[..., 1:3].min() >= 0
    assert first[..., 1:3].max() <= 8
    assert torch.equal(first, draw_batches(100, 3, 32, [7, 0]))


def test_it_learns_what_can_be_learnt():
    settings = Classification(**{**TINY, "images": 512, "epochs": 6, "width": 4, "lr": 1e-2, "smoothing": 0.0})
    data = cifar.make_synthetic(512, 4, 0)
    training = Training(settings, "Adam", data, 0, "cpu")  # AdaTerm would still be starting
    losses = [training.epoch(number) for number in range(6)]
    assert losses[-1] < 0.6 * losses[0]
    test = cifar.make_synthetic(200, 4, 1)
    assert (training.predicted(test.pixels) == test.labels).double().mean() > 0.6


def test_a_file_of_torch_without_the_labels(published):
    torch.save({"clean_label": np.arange(20)}, published / "CIFAR-100_human.pt")
    with pytest.raises(DataError, match=r"cannot be read \(it has no noisy_label\)"):
        cifar.load_human_labels(published)


def test_a_broken_file_of_torch_is_refused_in_one_line(published):
    (published / "CIFAR-100_human.pt").write_bytes(b"not a file of torch")
    with pytest.raises(DataError, match="cannot be read") as raised:
        cifar.load_human_labels(published)
    assert len(str(raised.value).splitlines()) == 1
    assert "weights_only" not in str(raised.value)


@pytest.mark.parametrize("method", ["Adam", "AdaTerm", "At-Adam"])
def test_a_trial_is_a_loop_that_anyone_would_write(method, monkeypatch):
    """The given labels are learnt, smoothed, from crops in an order of the seed's; right ones of other images test."""
    experiment = Classification(**{**TINY, "images": 96, "labels": ("10 %",)})
    (trial,) = experiment.trials([method], [3])
    looked = []

    def predicted(self, pixels, plain=Training.predicted):
        looked.append((pixels, [it.clone() for it in self.network.buffers()]))
        return plain(self, pixels)

    monkeypatch.setattr(Training, "predicted", predicted)
    (found,) = experiment.run([trial], "cpu", lambda fraction: None)
    train, test = cifar.make_synthetic(96, 100, 0), cifar.make_synthetic(96, 100, 1)
    given = cifar.corrupt_labels(train.labels, 0.1, 100, 3)
    network = make_network(3, 100, 2)
    optimizer = make_optimizer(method, list(network.parameters()), 1e-3)
    centre, scale = (it(train.pixels.float().reshape(-1, 3), 0).view(3, 1, 1) for it in (torch.mean, torch.std))
    padded = torch.nn.functional.pad(train.pixels.permute(0, 3, 1, 2), (4, 4, 4, 4))
    losses = []
    for epoch in range(2):
        for batch in draw_batches(96, 3, 32, [3, epoch]):
            crops = [padded[it, :, top : top + 32, left : left + 32] for it, top, left, _ in batch.tolist()]
            pixels = torch.stack([crop.flip(2) if it[3] else crop for crop, it in zip(crops, batch, strict=True)])
            out = network((pixels.float() - centre) / scale)
            loss = torch.nn.functional.cross_entropy(out, given[batch[:, 0]], label_smoothing=0.2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert found["losses"] == pytest.approx(np.reshape(losses, (2, 3)).mean(1), rel=1e-3)
    with torch.no_grad():
        seen = network.eval()((test.pixels.permute(0, 3, 1, 2).float() - centre) / scale).argmax(1)
    assert found["accuracy"] == pytest.approx((seen == test.labels).double().mean().item(), abs=0.03)
    assert found["labels"] == cifar.fingerprint(given)
    for (pixels, _), wanted in zip(looked, (test, test, train), strict=True):
        assert torch.equal(pixels, wanted.pixels)
    monkeypatch.setattr(classification, "make_repeatable", tried)
    (again,) = experiment.run([trial], "cpu", lambda fraction: None)
    assert again["losses"] == pytest.approx(found["losses"], rel=1e-5)
    for mine, other in zip(looked[2][1], looked[5][1], strict=True):
        torch.testing.assert_close(mine, other)


def test_the_paper_s_settings():
    paper = Classification(**Classification.presets["paper"])
    assert (paper.epochs, paper.batch_size, paper.lr, paper.smoothing, paper.seeds) == (100, 256, 1e-3, 0.2, 24)
    assert (paper.images, paper.width, paper.precision) == (50_000, 64, "bfloat16")
    with pytest.raises(ValueError, match="at most 50000"):
        Classification(images=60_000)


def test_methods_with_one_seed_see_the_same_labels():
    experiment = Classification(**TINY)
    outcomes = {}
    for trial in experiment.trials(["Adam", "AdaTerm", "AdamW (clipped)"], [1]):
        (outcome,) = experiment.run([trial], "cpu", lambda fraction: None)
        outcomes[trial.method, trial.condition["labels"]] = outcome
        assert len(outcome["accuracies"]) == len(outcome["losses"]) == 2
        assert (outcome["dof"] is not None) == (trial.method == "AdaTerm")
    for labels, wrong in (("0 %", 0), ("10 %", 6), ("human", 26)):
        seen = [outcomes[method, labels] for method in ("Adam", "AdaTerm", "AdamW (clipped)")]
        assert {it["wrong"] for it in seen} == {wrong}
        assert len({it["labels"] for it in seen}) == 1


def test_it_runs_and_reports(main, tmp_path):
    words = ["--preset", "smoke", "--methods", "Adam,AdaTerm,t-Adam", "--seeds", 1, "--workers", 0, "--out", tmp_path]
    code, text = main("run", "classification", *words, "--labels", "10 %,0 %")
    assert code == 0, text
    assert main("report", tmp_path)[0] == 0
    page = read_report(tmp_path / "report")
    assert "72.05 ± 0.43" in page
    assert "With 10 % wrong labels, AdaTerm is more accurate than t-Adam." in page


def test_without_data_the_error_says_where_to_get_it(main, tmp_path, monkeypatch):
    monkeypatch.delenv(cifar.VARIABLE, raising=False)
    code, text = main("run", "classification", "--preset", "quick", "--out", tmp_path)
    assert (code, cifar.VARIABLE in text, "Traceback" in text) == (2, True, False), text


def test_what_is_named_less_often_has_fewer_seeds():
    settings = Classification(labels=("0 %",), fewer=3)
    trials = settings.trials(["Adam", "Large init", "AdaTerm (Uncentered)", "At-Adam (as published)"], range(8))
    counts = Counter(trial.method for trial in trials)
    assert counts == {"Adam": 8, "Large init": 8, "At-Adam (as published)": 8, "AdaTerm (Uncentered)": 3}
    assert Classification(labels=("0 %",)).trials(["AdaTerm"], [5]) == settings.trials(["AdaTerm"], [5])

"""The hexapod really walks, its data set is the same each time, and a broken one is refused with the place named."""

import gzip
import hashlib
import json
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

from adaterm_bench.datasets.data import DataError
from adaterm_bench.datasets.hexapod import (
    Dataset,
    MissingError,
    Recording,
    __main__,
    dataset,
    generate,
    load,
    robot,
    save,
)
from adaterm_bench.datasets.hexapod.gait import RANGES, Walk, draw_walk, keep_course, plan_angles
from adaterm_bench.datasets.hexapod.ground import HIGHEST, PUSH_FORCE, draw_ground
from adaterm_bench.datasets.hexapod.simulation import COLUMNS, NOISE, STEPS, TICK, model, mujoco, simulate
from adaterm_bench.datasets.hexapod.walking import fit_linear, measure

simulated = pytest.mark.skipif(find_spec("mujoco") is None, reason="MuJoCo is not installed: pip install '.[dev]'")
STRAIGHT = Walk(stride=0.06, lift=0.03, frequency=1.0, phase=0.0, direction=0.0, turn=0.0, height=0.1, friction=0.8)
COUNTS = (2, 1, 1)
WALKS = {
    "straight ahead": STRAIGHT,
    "to the left": STRAIGHT._replace(direction=np.pi / 4),
    "to the right, on ice": STRAIGHT._replace(direction=-np.pi / 4, friction=RANGES["friction"].low),
    "turning": STRAIGHT._replace(turn=RANGES["turn"].high),
    "slowly": STRAIGHT._replace(stride=RANGES["stride"].low, frequency=RANGES["frequency"].low),
    "fast": STRAIGHT._replace(stride=RANGES["stride"].high, frequency=RANGES["frequency"].high),
}


@pytest.fixture(scope="module")
def made():
    return generate(0, COUNTS)


@pytest.fixture
def folder(tmp_path):
    """A whole data set of numbers without meaning, which needs no simulation."""
    draws = np.random.default_rng(0)
    shapes = [(STEPS, 18), (STEPS, 18), (STEPS, 5), (8,)]
    kinds = (Recording(*(draws.normal(size=(n, *it)).astype(np.float32) for it in shapes)) for n in COUNTS)
    save(Dataset(*kinds), tmp_path, seed=0)
    return tmp_path


def test_every_walk_stays_within_the_joints_limits():
    draws = np.random.default_rng(0)
    angles = np.stack([plan_angles(draw_walk(draws), np.arange(0, 2, 0.02), ramp=0.1) for _ in range(500)])
    low, high = np.tile(np.array(list(robot.LIMITS.values())), (6, 1)).T
    assert np.all((angles > low) & (angles < high))  # which no NaN is


def test_the_tripods_are_in_antiphase():
    """Half a period later each leg does what the opposite one did, in the mirror."""
    angles = plan_angles(STRAIGHT, 2.0 + np.arange(50) / 50, ramp=1.0).reshape(50, 6, 3)
    mirrored = angles[:, ::-1] * [-1, 1, 1]  # leg 1 is the mirror image of leg 6, 2 of 5, 3 of 4
    np.testing.assert_allclose(np.roll(angles, 25, 0), mirrored, atol=1e-9)


@simulated
def test_the_angles_put_the_feet_where_they_should_be():
    feet = np.pad(robot.STANCE, ((0, 0), (0, 1))) + np.array([0.02, -0.01, -0.09])
    data = mujoco().MjData(model())
    data.qpos[7:] = robot.solve_angles(feet)
    data.qpos[2] = 0.0
    mujoco().mj_forward(model(), data)
    found = [data.geom(f"{leg.name}_foot").xpos for leg in robot.LEGS]
    np.testing.assert_allclose(found, feet, atol=1e-9)


@simulated
@pytest.mark.parametrize("name", WALKS)
def test_it_walks_as_it_is_told(name):
    """Speed, direction and turning are those of the gait; the body neither sinks nor tilts."""
    walk = WALKS[name]
    it = {key: value[0] for key, value in measure(many(simulate(walk, np.random.default_rng(0)))).items()}
    assert it["speed"] > 0.05
    assert it["speed"] == pytest.approx(it["asked_speed"], rel=0.1)
    assert abs(it["sideways_speed"]) < 0.01
    assert it["turn_rate"] == pytest.approx(it["asked_turn_rate"], abs=0.02)
    assert walk.height < it["lowest"] < it["highest"] < walk.height + 0.03
    assert it["tilt"] < 0.05


@simulated
@pytest.mark.parametrize("name", WALKS)
def test_servos_follow_and_lag(name):
    """What is measured is neither far from what was told nor the same: there is something to predict."""
    recorded = simulate(WALKS[name], np.random.default_rng(0))
    assert 3 * NOISE < measure(many(recorded))["tracking_error"][0] < 0.15
    lags = [np.square(recorded.angles[lag:] - recorded.references[: STEPS - lag]).mean() for lag in range(6)]
    assert np.argmin(lags) in (1, 2, 3)  # 20 to 60 ms


@simulated
def test_on_rough_ground_it_walks_on(made):
    """Nobody falls; body and servos do what they did not do on flat ground."""
    walked, flat = measure(made.train), measure(generate(0, COUNTS, flat=True).train)
    assert walked["tilt"].max() < 0.3
    assert walked["tilt"].min() > flat["tilt"].max()
    assert walked["lowest"].min() > 0.07
    assert walked["speed"].min() > 0.0


def test_what_is_hard_to_predict_is_told_by_a_linear_predictor():
    """Waves are easy, noise is not, however far ahead."""
    draws = np.random.default_rng(0)
    phases = draws.uniform(size=(60, 1, 1)) + draws.uniform(size=(1, 1, 3))
    waves = np.sin(2 * np.pi * (np.arange(80)[:, None] / 40 + phases)).astype(np.float32)
    noise = draws.normal(3.0, 2.0, waves.shape).astype(np.float32)
    for horizon in (1, 30):
        assert fit_linear(waves[:50], waves[50:], horizon) < 0.01
        assert fit_linear(noise[:50], noise[50:], horizon) == pytest.approx(1.0, abs=0.2)


def test_a_course_that_is_kept_is_the_walk_itself():
    times = np.arange(0, 2, 0.02)
    walk = STRAIGHT._replace(turn=0.1, direction=0.3)
    np.testing.assert_array_equal(
        plan_angles(walk, times, 1.0), plan_angles(walk, times, 1.0, keep_course(walk, times))
    )
    ground = draw_ground(walk, 350, 50.0, np.random.default_rng(0))
    assert 0.0 <= ground.heights.min() < ground.heights.max() <= HIGHEST
    assert ground.ice.any()
    assert 0.0 < np.abs(ground.pushes).max() <= PUSH_FORCE
    angles = plan_angles(walk, np.arange(350) / 50, 1.0, ground.course)
    assert np.isfinite(angles).all()


@simulated
def test_what_is_recorded(made):
    assert [kind.angles.shape for kind in made] == [(count, STEPS, 18) for count in COUNTS]
    for kind in made:
        for name in ("angles", "references"):
            ticks = getattr(kind, name) / TICK
            assert ticks.dtype == np.float32
            np.testing.assert_allclose(ticks, np.round(ticks), atol=1e-3)
        for name, column in zip(Walk._fields, kind.walk.T, strict=True):
            assert np.all((column >= np.float32(RANGES[name].low)) & (column <= np.float32(RANGES[name].high)))
    assert len(np.unique(np.concatenate([kind.walk for kind in made]), axis=0)) == sum(COUNTS)


@simulated
def test_the_same_seed_gives_the_same_bytes(made, tmp_path):
    """In another process, after other walks, and however many there are; another seed gives others."""
    save(made, tmp_path / "here", 0)
    code = (
        "from pathlib import Path; from adaterm_bench.datasets.hexapod import generate, save; "
        f"generate(1, (1, 1, 1)); save(generate(0, {COUNTS}), Path('there'), 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    for name in (dataset.FILE, dataset.DESCRIPTION):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    assert (tmp_path / "here" / dataset.FILE).read_bytes()[4:8] == bytes(4)  # no date
    fewer, other = generate(0, (1, 1, 1)), generate(1, (1, 1, 1))
    assert np.array_equal(fewer.train.angles, made.train.angles[:1])
    assert np.array_equal(fewer.test.angles, made.test.angles)
    assert not np.array_equal(other.train.angles, fewer.train.angles)


@simulated
def test_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(__main__, "COUNTS", COUNTS)
    assert __main__.main(["--seed", "0", "--out", str(tmp_path / "new/folder")]) == 0
    said = capsys.readouterr()
    assert said.err == "4/4 trajectories\n"  # no bar, for this is no terminal
    assert "m/s" in said.out
    about = json.loads((tmp_path / "new/folder" / dataset.DESCRIPTION).read_text())
    content = (tmp_path / "new/folder" / dataset.FILE).read_bytes()
    assert about["file"] == {
        "name": dataset.FILE,
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    assert about["seed"] == 0
    assert about["walking"]["train"]["speed"]["min"] > 0.05
    assert set(about["versions"]) == {"mujoco", "numpy"}
    (tmp_path / "file").write_text("")
    assert __main__.main(["--out", str(tmp_path / "file")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_without_mujoco(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    mujoco.cache_clear()
    model.cache_clear()
    with pytest.raises(MissingError, match=r"pip install '\.\[prediction\]'"):
        generate(0, COUNTS)
    assert __main__.main(["--out", str(tmp_path)]) == 2
    assert "pip install" in capsys.readouterr().err


def test_what_was_saved_is_loaded(folder):
    """By us, and by NumPy without us."""
    found = load(folder)
    assert [len(kind.walk) for kind in found] == list(COUNTS)
    rows = rows_of(folder)
    for name in COLUMNS:
        whole = np.concatenate([getattr(kind, name) for kind in found])
        assert whole.dtype == np.float32
        assert np.array_equal(whole, rows[name])


@pytest.mark.parametrize("name", [dataset.FILE, dataset.DESCRIPTION])
def test_a_missing_file(folder, name):
    (folder / name).unlink()
    refused(folder, f"There is no {folder / name}", f"python -m adaterm_bench.datasets.hexapod --seed 0 --out {folder}")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("field", COLUMNS)
def test_no_number(folder, field, value):
    """Also where the checksum fits, as in a recording of one's own."""
    rows = rows_of(folder)
    rows[field][(2, 1) if field == "walk" else (2, 31, 1)] = value
    replace(folder, rows)
    place = "row 2" if field == "walk" else "row 2, step 31"
    refused(folder, str(folder / dataset.FILE), place, f"{COLUMNS[field][1]} in {field} is {value}")


@pytest.mark.parametrize(("share", "row"), [(0.999, 3), (0.6, 2), (0.1, 0)])
def test_a_file_that_is_cut_short(folder, share, row):
    content = (folder / dataset.FILE).read_bytes()
    (folder / dataset.FILE).write_bytes(content[: int(share * len(content))])
    refused(folder, str(folder / dataset.FILE), "cut short", f"in row {row} of 4")


@pytest.mark.parametrize("other", [b"", b"\x1f\x8b", b"no gzip", gzip.compress(b"no array", mtime=0)])
def test_a_file_that_is_something_else(folder, other):
    (folder / dataset.FILE).write_bytes(other)
    refused(folder, str(folder / dataset.FILE), "before row 0")


def test_flipped_bytes(folder):
    content = bytearray((folder / dataset.FILE).read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8] = bytes(8)
    (folder / dataset.FILE).write_bytes(content)
    refused(folder, str(folder / dataset.FILE), " in row ")


def test_wrong_shapes(folder):
    rows = rows_of(folder)
    replace(folder, rows[:3])
    refused(folder, str(folder / dataset.FILE), "(3,)", "(4,)")
    replace(folder, np.empty(4, [("angles", "<f4", (STEPS, 17))]))
    refused(folder, str(folder / dataset.FILE), "angles float32[250, 17]", "angles float32[250, 18]")
    replace(folder, np.empty((4, STEPS, 36), np.float32))
    refused(folder, str(folder / dataset.FILE), "each row is float32")


def test_other_numbers(folder):
    """The file of another seed, beside this one's description."""
    rows = rows_of(folder)
    rows["angles"][0, 0, 0] += 0.1
    replace(folder, rows, checksum=False)
    refused(folder, str(folder / dataset.FILE), "SHA-256")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"trajectories": {"train": "many"}}'])
def test_a_broken_description(folder, text):
    (folder / dataset.DESCRIPTION).write_text(text)
    refused(folder, str(folder / dataset.DESCRIPTION), "damaged")


def many(recorded):
    return Recording(*(field[None] for field in recorded))


def rows_of(folder):
    with gzip.open(folder / dataset.FILE) as file:
        return np.load(file)


def replace(folder, rows, checksum=True):
    """Write other rows, with a checksum that fits or without."""
    with gzip.open(folder / dataset.FILE, "wb") as file:
        np.save(file, rows)
    if checksum:
        about = json.loads((folder / dataset.DESCRIPTION).read_text())
        about["file"]["sha256"] = hashlib.sha256((folder / dataset.FILE).read_bytes()).hexdigest()
        (folder / dataset.DESCRIPTION).write_text(json.dumps(about))


def refused(folder, *parts):
    with pytest.raises(DataError) as error:
        load(folder)
    assert all(part in str(error.value) for part in parts), error.value

"""A monitor's numbers reach the tools that people log to; each is tested with the real package."""

import importlib.util
import sys
import warnings
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from adaterm import AdaTerm, Monitor, RobustAdamW

pytestmark = pytest.mark.filterwarnings("ignore")  # what the frameworks warn of is theirs
STEPS = 30


@pytest.fixture
def wanted(request):
    """Skip the test where the package is not installed."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed: pip install 'adaterm[frameworks]'")


def needs(package):
    return pytest.mark.parametrize("wanted", [package], indirect=True)


def train(log=lambda metrics, step: None):
    """A run with one bad batch, whose numbers are logged at every step."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = RobustAdamW(model.parameters(), window=20)
    monitor = Monitor(optimizer, model)
    for step in range(1, STEPS + 1):
        monitor.mark(f"batch {step}")
        inputs = torch.randn(16, 8)
        optimizer.zero_grad()
        (model(inputs) - inputs[:, :4]).square().mean().mul(1e3 if step == 25 else 1.0).backward()
        optimizer.step()
        log(monitor.metrics(), step)
    return monitor


def list_warnings(work):
    """What we warn of, in the course of this work."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    messages = [str(warning.message) for warning in caught]
    return [message for message in messages if message.startswith("adaterm.")]


@needs("tensorboard")
def test_tensorboard(wanted, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:

        def log(metrics, step):
            for name, value in metrics.items():
                writer.add_scalar(name, value, step)

        train(log)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert len(events.Scalars("adaterm/trust")) == STEPS
    assert events.Scalars("adaterm/trust")[24].value < 0.1


@needs("wandb")
def test_weights_and_biases(wanted, tmp_path):
    import wandb

    with wandb.init(mode="offline", dir=str(tmp_path), project="adaterm") as run:
        train(lambda metrics, step: run.log(metrics, step=step))
        assert run.step == STEPS
        assert run.summary["adaterm/trust"] > 0.5
        assert run.summary["adaterm/excluded"] == pytest.approx(
            1 / 20, abs=0.005
        )  # it tells of a step when the next one comes


@needs("mlflow")
def test_mlflow(wanted, tmp_path):
    import mlflow

    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    with mlflow.start_run() as run:
        train(lambda metrics, step: mlflow.log_metrics(metrics, step=step))
    kept = mlflow.MlflowClient().get_metric_history(run.info.run_id, "adaterm/trust")
    assert len(kept) == STEPS
    assert min(kept, key=lambda metric: metric.value).step == 25


@needs("pandas")
def test_pandas(wanted):
    monitor = train()
    frame = monitor.to_pandas()
    assert len(frame) == STEPS
    assert frame["score"].idxmax() == 25
    assert frame.loc[25, "mark"] == "batch 25"
    assert {"trust weight", "distance bias"} <= set(frame.columns)
    for parameter in monitor.optimizer.param_groups[0]["params"]:
        parameter.grad.fill_(torch.nan)
    for _ in range(20):
        monitor.optimizer.step()
    with pytest.warns(UserWarning, match="each of the last 20 steps") as caught:
        monitor.to_pandas()
    assert caught[0].filename == __file__


@needs("transformers")
def test_hugging_face_trainer(wanted, tmp_path, monkeypatch):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from adaterm.integrations.huggingface import MonitorCallback

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x, labels):
            return {"loss": (self.layer(x) - labels).square().mean()}

    class Reporter(TrainerCallback):
        """Sees what the callbacks of TensorBoard and others see."""

        seen = ()

        def on_log(self, args, state, control, logs=None, **kwargs):
            self.seen = (*self.seen, dict(logs))

    class InSubfolder(Trainer):
        """Saves where a trial of a hyperparameter search does."""

        def _get_output_dir(self, trial):
            return f"{self.args.output_dir}/run-0"

    def make(kind=Trainer, folder=tmp_path, seed=0, **options):
        torch.manual_seed(seed)
        data = [{"x": row, "labels": row[:4]} for row in torch.randn(96, 8)]
        arguments = TrainingArguments(
            str(folder),
            max_steps=24,
            save_steps=12,
            logging_steps=4,
            disable_tqdm=True,
            report_to="none",
            use_cpu=True,
            **options,
        )
        trainer = kind(
            Model(), arguments, train_dataset=data, optimizer_cls_and_kwargs=(RobustAdamW, {}), callbacks=[Reporter()]
        )
        return trainer, MonitorCallback(length=100).attach(trainer)

    trainer, watch = make(max_grad_norm=0.0)
    assert not list_warnings(trainer.train)
    assert list(watch.monitor.layers()) == ["layer.weight", "layer.bias"]
    reporter = next(each for each in trainer.callback_handler.callbacks if type(each) is Reporter)
    for logs in (trainer.state.log_history, reporter.seen):
        assert len([entry for entry in logs if "adaterm/trust" in entry]) == 6
    resumed, again = make(max_grad_norm=0.0)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-12"))
    assert {layer.steps for layer in again.monitor.layers().values()} == {24}
    assert again.monitor.layers() == watch.monitor.layers()

    other, again = make(folder=tmp_path / "other", seed=1, max_grad_norm=0.0)
    other.train()
    first = again.monitor
    other.train()  # with the same optimizer
    assert first.columns()["step"] == list(range(1, 25))
    assert again.monitor.columns()["step"] == list(range(25, 49))

    for folder in (tmp_path / "search", tmp_path):  # of which the second has checkpoints of another run
        make(InSubfolder, folder, seed=1, max_grad_norm=0.0)[0].train()
        assert (folder / "run-0/checkpoint-12/trainer_state.json").exists()
        assert not (folder / "run-0/checkpoint-12/monitor.pt").exists()

    checkpoint = str(tmp_path / "checkpoint-12")
    for folder in ("new", "other"):  # of which the second has the history of another run
        resumed, again = make(folder=tmp_path / folder, max_grad_norm=0.0)
        (message,) = list_warnings(lambda: resumed.train(resume_from_checkpoint=checkpoint))  # noqa: B023
        assert "there is no history of this run in " in message
        assert again.monitor.columns()["step"] == list(range(13, 25))
        resumed, again = make(folder=tmp_path / folder, max_grad_norm=0.0, resume_from_checkpoint=checkpoint)
        assert not list_warnings(lambda: resumed.train(resume_from_checkpoint=checkpoint))  # noqa: B023
        assert again.monitor.layers() == watch.monitor.layers()

    (message,) = list_warnings(make()[0].train)  # Trainer clips if it is not told otherwise
    assert "clips gradients to a norm of 1 before" in message
    assert "max_grad_norm=0.0 in TrainingArguments and pass max_norm=1 to RobustAdamW" in message


@needs("lightning")
def test_lightning(wanted, tmp_path, monkeypatch):
    import lightning
    from lightning.pytorch.loggers import CSVLogger

    from adaterm.integrations.lightning import MonitorCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def training_step(self, batch, index):
            return (self.layer(batch[0]) - batch[0][:, :4]).square().mean()

        def configure_optimizers(self):
            return RobustAdamW(self.parameters())

    lightning.seed_everything(0, verbose=False)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(128, 8)), batch_size=16)

    def make(epochs, clip=None, every=2, accumulate=1, **options):
        return lightning.Trainer(
            gradient_clip_val=clip,
            accumulate_grad_batches=accumulate,
            max_epochs=epochs,
            accelerator="cpu",
            logger=CSVLogger(str(tmp_path)),
            callbacks=[MonitorCallback(**options)],
            log_every_n_steps=every,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )

    trainer = make(3)
    assert trainer.callbacks[0].state_dict() == {}
    assert not list_warnings(lambda: trainer.fit(Module(), loader))
    monitor = trainer.callbacks[0].monitor
    assert list(monitor.layers()) == ["layer.weight", "layer.bias"]
    assert monitor.aberrant(30)[0].mark.startswith("epoch ")
    rows = (tmp_path / "lightning_logs/version_0/metrics.csv").read_text().splitlines()
    assert "adaterm/trust" in rows[0]
    assert len(rows) == 1 + 12
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    resumed = make(4, mark=lambda batch, index: batch[0][:, 0])
    module = Module()
    resumed.fit(module, loader, ckpt_path=tmp_path / "last.ckpt")
    assert {layer.steps for layer in resumed.callbacks[0].monitor.layers().values()} == {32}
    assert len(resumed.callbacks[0].monitor.aberrant_samples(None)) > 128

    first = resumed.callbacks[0].monitor
    resumed.fit_loop.max_epochs = 5
    with monkeypatch.context() as patch:
        patch.setattr(Module, "configure_optimizers", lambda self: first.optimizer)
        resumed.fit(module, loader)
    assert resumed.callbacks[0].monitor.columns()["step"] == list(range(33, 41))
    assert first.columns()["step"] == list(range(1, 33))

    logged = []
    monkeypatch.setattr(CSVLogger, "log_metrics", lambda self, metrics, step: logged.append((step, metrics)))
    make(3, accumulate=4).fit(Module(), loader)
    assert [step for step, metrics in logged if "adaterm/trust" in metrics] == [2, 4, 6]
    assert all(metrics for _, metrics in logged)
    make(1, every=0).fit(Module(), loader)
    assert len(logged) == 3
    (message,) = list_warnings(lambda: make(1, clip=0.5).fit(Module(), loader))
    assert "gradient_clip_val=0.5, before" in message
    assert "pass max_norm=0.5 to RobustAdamW" in message


class Stand:
    """In place of a framework's own callback."""


def import_with_stand_in(monkeypatch, name, package, callback):
    """An integration's callback, whether its framework is installed or not."""
    module = ModuleType(package)
    setattr(module, callback, Stand)
    monkeypatch.setitem(sys.modules, package, module)
    monkeypatch.delitem(sys.modules, f"adaterm.integrations.{name}", raising=False)
    imported = importlib.import_module(f"adaterm.integrations.{name}")
    monkeypatch.delitem(sys.modules, f"adaterm.integrations.{name}")  # those who want the real one get it
    return imported.MonitorCallback()


@pytest.mark.parametrize("kind", [RobustAdamW, AdaTerm])
def test_a_trainer_that_clips_is_warned_of_where_batches_are_judged(kind, monkeypatch, tmp_path):
    watch = import_with_stand_in(monkeypatch, "huggingface", "transformers", "TrainerCallback")
    model = nn.Linear(8, 4)
    for norm in (None, 0.0, 0.5):
        args, state = SimpleNamespace(max_grad_norm=norm, output_dir=str(tmp_path)), SimpleNamespace(global_step=0)
        objects = {"optimizer": kind(model.parameters()), "model": model}
        messages = list_warnings(lambda: watch.on_train_begin(args, state, None, **objects))  # noqa: B023
        assert len(messages) == (norm == 0.5 and kind is RobustAdamW)
        assert all("pass max_norm=0.5 to RobustAdamW" in message for message in messages)


@pytest.mark.parametrize("algorithm", [None, "norm", "value"])
@pytest.mark.parametrize("kind", [RobustAdamW, AdaTerm])
def test_lightning_that_clips_is_warned_of_where_batches_are_judged(kind, algorithm, monkeypatch):
    watch = import_with_stand_in(monkeypatch, "lightning", "lightning", "Callback")
    model = nn.Linear(8, 4)
    for limit in (None, 0.0, 0.5):
        settings = {"gradient_clip_val": limit, "gradient_clip_algorithm": algorithm}
        trainer = SimpleNamespace(optimizers=[kind(model.parameters())], global_step=0, **settings)
        messages = list_warnings(lambda: watch.on_train_start(trainer, model))  # noqa: B023
        assert len(messages) == (limit == 0.5 and kind is RobustAdamW)
        wanted = "pass max_norm to RobustAdamW" if algorithm == "value" else "pass max_norm=0.5 to RobustAdamW"
        assert all(wanted in message for message in messages)


@pytest.mark.parametrize("name", ["huggingface", "lightning"])
def test_what_is_missing_is_named(name, monkeypatch):
    for package in ("transformers", "lightning"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"adaterm.integrations.{name}", raising=False)
    with pytest.raises(ImportError, match="pip install"):
        importlib.import_module(f"adaterm.integrations.{name}")

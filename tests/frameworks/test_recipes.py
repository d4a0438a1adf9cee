"""The code on the pages of docs/recipes runs as it stands there, and with AdaTerm, and does what the pages say."""

import importlib.util
import inspect
import re
import subprocess
import sys
import textwrap
import types
import warnings
from importlib.metadata import version
from math import inf
from pathlib import Path

import pytest
import torch

from adaterm import AdaTerm, RobustAdamW

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/recipes"
pytestmark = pytest.mark.filterwarnings("ignore")  # what the frameworks warn of is theirs


WITH_ADATERM = {
    r", max_norm=1\.0": "",
    r"(RobustAdamW\b.*?, lr=1e-\d)": r'\1, init_scale="gradient"',
    r'"max_norm": 1\.0': '"init_scale": "gradient", "decoupled_weight_decay": True',  # Hugging Face Trainer
    r'\{"max_norm": 0\.5.*?\}': '{"init_scale": "gradient"}',  # Stable-Baselines3
    r"has_betas=True": 'has_betas=False, defaults={"init_scale": "gradient", "decoupled_weight_decay": True}',  # timm
    r"robustadamw": "adaterm",
    r"RobustAdamW": "AdaTerm",
}
"""What the pages say is to be written for AdaTerm, in place of what they show."""
CLIPS = pytest.mark.parametrize("clips", [False, True], ids=["as shown", "clipping before"])
STEP = re.compile(r"^( *)(?:optimizer|scaler)\.step\(.*\n", re.MULTILINE)


@pytest.fixture(params=[RobustAdamW, AdaTerm], ids=lambda kind: kind.__name__)
def kind(request):
    """The optimizer on the page, and the other one in its place."""
    return request.param


def read_blocks(page):
    """The page's Python blocks, in order."""
    return re.findall(r"^```python\n(.*?)^```$", (PAGES / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL)


def adapt(code, kind):
    """The code as it stands for RobustAdamW, and with AdaTerm as the pages say."""
    for pattern, replacement in WITH_ADATERM.items() if kind is AdaTerm else ():
        code = re.sub(pattern, replacement, code)
    return code


def clip(page, code):
    """The code with the framework's clipping: a setting, or the page's last block, which clips and steps."""
    if "gradient_clip_val" in code:
        return code.replace("gradient_clip_val=None", "gradient_clip_val=1.0")
    block = read_blocks(page)[-1]
    assert "clip_grad_norm_" in block
    assert len(STEP.findall(code)) == 1
    return STEP.sub(lambda step: textwrap.indent(block, step[1]), code)


def record(monkeypatch, owner):
    """What `clip_grad_norm_` will return."""
    norms, real = [], owner.clip_grad_norm_

    def clip_grad_norm_(*args, **options):
        norms.append(real(*args, **options))
        return norms[-1]

    monkeypatch.setattr(owner, "clip_grad_norm_", clip_grad_norm_)
    return norms


def wanted(package, source="'adaterm[frameworks]'"):
    """Skip the test where the package is not installed."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {source}")


@pytest.fixture
def execute(tmp_path, monkeypatch, kind):
    """Runs a page's first block in an empty folder, and gives the names it leaves; nothing of ours warns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true" if not torch.cuda.is_available() else "false")

    def run(page, clips=False):
        code = adapt(read_blocks(page)[0], kind)
        names = {"__name__": "recipe"}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            exec(compile(clip(page, code) if clips else code, f"{page}.md", "exec"), names)
        ours = [message for message in (str(each.message) for each in caught) if message.startswith("adaterm.")]
        assert bool(ours) == (clips and kind is RobustAdamW and "MonitorCallback" in code), ours
        return names

    yield run
    if "accelerate" in sys.modules:  # it keeps what it was told for the whole process
        from accelerate.state import AcceleratorState, GradientState, PartialState

        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()


def tensors(optimizer_or_state):
    """All tensors of an optimizer's state, in the order of its parameters."""
    state = optimizer_or_state if isinstance(optimizer_or_state, dict) else optimizer_or_state.state_dict()
    return [value for entry in state["state"].values() for value in entry.values()]


def assert_equal_states(left, right):
    left, right = tensors(left), tensors(right)
    assert left
    for one, other in zip(left, right, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def assert_as_shown(optimizer, kind, **options):
    """The optimizer has the options that its page shows, or says it needs with AdaTerm."""
    assert type(optimizer) is kind
    options = {"init_scale": "gradient"} if kind is AdaTerm else options
    assert all(options.items() <= group.items() for group in optimizer.param_groups)


def steps(optimizer):
    return {int(entry["step"]) for entry in optimizer.state_dict()["state"].values()}


def assert_learned(losses):
    tail = losses[-len(losses) // 4 :]
    assert torch.tensor(losses).isfinite().all()
    assert sum(tail) / len(tail) < losses[0]


def test_swa(execute, kind):
    names = execute("swa")
    assert_as_shown(names["optimizer"], kind, max_norm=None)
    assert steps(names["optimizer"]) == {12 * 8}
    assert names["optimizer"].param_groups[0]["lr"] == pytest.approx(2e-3)
    assert int(names["swa"].n_averaged) == 6
    assert int(names["ema"].n_averaged) == 96
    assert_learned(names["losses"])
    inputs, first = names["inputs"], names["losses"][0]
    for averaged in (names["swa"], names["ema"]):
        averaged.eval()
        assert torch.nn.functional.mse_loss(averaged(inputs), inputs.sum(1, keepdim=True)) < first / 4


@CLIPS
def test_gradscaler(execute, kind, clips, monkeypatch):
    norms = record(monkeypatch, torch.nn.utils)
    names = execute("gradscaler", clips)
    optimizer, scaler = names["optimizer"], names["scaler"]
    assert_as_shown(optimizer, kind, max_norm=1.0)
    assert 0 < max(steps(optimizer)) <= 60
    assert scaler.get_scale() > 1.0
    assert len(norms) == clips * 60
    assert not clips or torch.stack(norms).median() < 1e3  # of gradients, not of gradients times 65,536
    if kind is RobustAdamW:  # so is the limit: gradients times 65,536 would be clipped to next to nothing
        means = [entry["exp_avg"] for entry in optimizer.state_dict()["state"].values()]
        assert 1e-3 < torch.nn.utils.get_total_norm(means) <= 1.0
    assert_learned(names["losses"])
    loaded = torch.load("checkpoint.pt")
    again = kind(names["model"].named_parameters())
    again.load_state_dict(loaded["optimizer"])
    assert_equal_states(again, optimizer)


@pytest.mark.parametrize("fused", [False, True])
def test_gradscaler_with_both_kinds_of_engine_skips_and_goes_on(fused, kind):
    """What the page says of unscaling, clipping and skipped steps."""
    if fused:
        wanted("numba", "'adaterm[cpu]'")
    parameter = torch.nn.Parameter(torch.ones(4))
    optimizer = kind([parameter], fused=fused, **({"init_scale": "gradient"} if kind is AdaTerm else {"max_norm": 1.0}))
    assert optimizer._step_supports_amp_scaling == fused
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for factor, clip in ((float("inf"), False), (1.0, False), (1.0, True), (float("inf"), True)):
        before = parameter.detach().clone()
        optimizer.zero_grad()
        scaler.scale((parameter * factor).sum()).backward()
        if clip:
            scaler.unscale_(optimizer)
            if factor == 1.0:
                assert torch.equal(parameter.grad, torch.ones(4))
        scaler.step(optimizer)
        scaler.update()
        assert torch.equal(before, parameter) == (factor != 1.0)
    assert steps(optimizer) == {2}
    assert optimizer.statistics()[parameter].trust.isnan() == fused
    if kind is RobustAdamW:
        assert optimizer.batch_statistics().trust.isnan() == fused


def test_huggingface_trainer(execute, kind):
    wanted("transformers")
    names = execute("huggingface-trainer")
    straight, resumed = names["trainer"], names["resumed"]
    for trainer in (straight, resumed):
        inner = trainer.optimizer.optimizer
        assert_as_shown(inner, kind, max_norm=1.0)
        assert trainer.args.max_grad_norm == 0.0
        assert steps(inner) == {12}
        assert [group["weight_decay"] for group in inner.param_groups] == [0.01, 0.0]
        assert inner.param_groups[0]["decoupled_weight_decay"]
        assert inner.param_groups[0]["initial_lr"] == 1e-3
        assert all(torch.tensor(e["loss"]).isfinite() for e in trainer.state.log_history if "loss" in e)
    saved = torch.load("run/checkpoint-6/optimizer.pt")
    assert {int(entry["step"]) for entry in saved["state"].values()} == {6}
    assert_equal_states(straight.optimizer.optimizer, resumed.optimizer.optimizer)
    for one, other in zip(straight.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    first, again = straight.callback_handler.callbacks[0].monitor, names["watch"].monitor
    assert {layer.steps for layer in first.layers().values()} == {12}
    assert again.layers() == first.layers()
    assert {sample.sample for sample in first.aberrant_samples(None)} <= set(range(128))


@CLIPS
def test_accelerate(execute, kind, clips, monkeypatch):
    wanted("accelerate")
    from accelerate import Accelerator

    norms = record(monkeypatch, Accelerator)
    names = execute("accelerate", clips)
    inner = names["optimizer"].optimizer
    assert_as_shown(inner, kind, max_norm=1.0)
    assert len(norms) == clips * 4 * 8
    assert not clips or max(norms) > 1.0  # some were clipped
    assert_learned(names["losses"])
    assert set(names["trust"]) == set(names["model"].parameters())
    assert steps(inner) == {2 * 8}  # the checkpoint's, after load_state
    saved = torch.load("checkpoint/optimizer.bin")
    assert_equal_states(saved, inner)


FSDP_ON_CPU = """
import accelerate, accelerate.state as state, torch
# Accelerate shards on accelerators alone; here two processes on a CPU are to pass for two of them.
state.PartialState._prepare_backend = lambda self, *a, **k: ("gloo", state.DistributedType.MULTI_GPU)
def set_device(self):
    self.device = torch.device("cpu")
state.PartialState.set_device = set_device
norms, clip = [], accelerate.Accelerator.clip_grad_norm_
accelerate.Accelerator.clip_grad_norm_ = lambda *args: norms.append(clip(*args))
"""
FSDP_CHECKS = """
from torch.distributed.tensor import DTensor
assert accelerator.is_fsdp2
assert type(optimizer.optimizer).__name__ == KIND
assert len(norms) == CLIPPED, norms
assert all(isinstance(p, DTensor) for group in optimizer.param_groups for p in group["params"])
assert {int(entry["step"]) for entry in optimizer.state.values()} == {32}, optimizer.state
assert all(torch.tensor(losses).isfinite()) and sum(losses[-4:]) < sum(losses[:4]), losses
local = lambda tensor: tensor.to_local() if isinstance(tensor, DTensor) else tensor
kept = [{name: local(value).clone() for name, value in entry.items()} for entry in optimizer.state.values()]

x, y = next(iter(loader))
accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
optimizer.step()
trust = torch.stack([seen.trust for seen in optimizer.optimizer.statistics().values()])
both = [torch.empty_like(trust) for _ in range(2)]
torch.distributed.all_gather(both, trust)
assert torch.equal(*both), both  # a matter of whole tensors, not of shards
assert {int(entry["step"]) for entry in optimizer.state.values()} == {33}

accelerator.load_state("sharded")
for entry, saved in zip(optimizer.state.values(), kept, strict=True):
    assert all(torch.equal(local(value), saved[name]) for name, value in entry.items())
accelerator.wait_for_everyone()
accelerator.print("sharded and stepped")
torch.distributed.destroy_process_group()
"""


@CLIPS
def test_accelerate_fsdp2(tmp_path, kind, clips):
    wanted("accelerate")
    script = tmp_path / "sharded.py"
    code = adapt(read_blocks("accelerate")[1], kind)
    code = clip("accelerate", code) if clips else code
    known = f"KIND, CLIPPED = {kind.__name__!r}, {clips * 32}\n"
    script.write_text(FSDP_ON_CPU + known + code + FSDP_CHECKS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "sharded and stepped" in done.stdout


def test_lightning(execute, kind):
    wanted("lightning")
    names = execute("lightning")
    straight, resumed = names["trainer"], names["resumed"]
    assert_as_shown(straight.optimizers[0], kind, max_norm=1.0)
    assert steps(resumed.optimizers[0]) == {48}
    assert straight.callback_metrics["loss"].isfinite()
    saved = torch.load("half.ckpt")["optimizer_states"][0]
    assert {int(entry["step"]) for entry in saved["state"].values()} == {24}
    assert_equal_states(saved, names["first_half"].optimizers[0])


@CLIPS
def test_lightning_resumes_exactly_and_clips_if_told_to(execute, clips):
    wanted("lightning")
    import lightning

    norms = []

    class Watch(lightning.Callback):
        def on_train_start(self, trainer, module):
            def look(*_):
                norms.append(torch.nn.utils.get_total_norm([p.grad for p in module.parameters()]))

            trainer.optimizers[0].register_step_post_hook(look)

    names = execute("lightning", clips)
    make_trainer, loader, module = (names[name] for name in ("make_trainer", "loader", "Regression"))
    first, second = module(), module()
    second.load_state_dict(first.state_dict())
    straight, half, resumed = make_trainer(6), make_trainer(3), make_trainer(6)
    straight.callbacks.append(Watch())
    straight.fit(first, loader)
    half.fit(second, loader)
    half.save_checkpoint("again.ckpt")
    resumed.fit(module(), loader, ckpt_path="again.ckpt")
    assert_equal_states(straight.optimizers[0], resumed.optimizers[0])
    assert 0.999 < max(norms) < 1.001 if clips else max(norms) > 1.1


def test_lightning_clips_unless_fused_was_asked_for(kind):
    """What the page says of "16-mixed"."""
    wanted("lightning")
    wanted("numba", "'adaterm[cpu]'")
    from lightning.pytorch.plugins.precision import MixedPrecision

    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))
    parameter = torch.nn.Parameter(torch.zeros(4))
    parameter.grad = torch.full((4,), 100.0)
    plugin.clip_gradients(kind([parameter]), clip_val=1.0)
    assert parameter.grad.norm() == pytest.approx(1.0, rel=1e-3)
    with pytest.raises(RuntimeError, match="does not allow for gradient clipping"):
        plugin.clip_gradients(kind([parameter], fused=True), clip_val=1.0)


def test_timm(execute, kind, monkeypatch):
    wanted("timm", "--no-deps timm, or with torchvision: pip install timm")
    if importlib.util.find_spec("torchvision") is None:
        # timm.optim wants nothing of torchvision, but the package around it does: leave that out
        bare, models = types.ModuleType("timm"), types.ModuleType("timm.models")
        bare.__path__ = importlib.util.find_spec("timm").submodule_search_locations
        models.group_parameters = None  # for layer_decay, which the page does not use
        monkeypatch.setitem(sys.modules, "timm", bare)
        monkeypatch.setitem(sys.modules, "timm.models", models)
    names = execute("timm")
    optimizer = names["optimizer"]
    assert_as_shown(optimizer, kind, max_norm=None)
    assert sorted(group["weight_decay"] for group in optimizer.param_groups) == [0.0, 0.05]
    assert all(group["decoupled_weight_decay"] for group in optimizer.param_groups)
    assert {group.get("init_scale") for group in optimizer.param_groups} == {"gradient" if kind is AdaTerm else None}
    assert steps(optimizer) == {20}
    assert_learned(names["losses"])


def test_stable_baselines3(execute, kind):
    wanted("stable_baselines3")
    names = execute("stable-baselines3")
    model, loaded = names["model"], names["loaded"]
    for algorithm in (model, loaded):
        assert_as_shown(algorithm.policy.optimizer, kind, max_norm=0.5, eps=1e-5, weight_decay=0.0)
        assert algorithm.max_grad_norm == inf
        assert algorithm.policy.optimizer.param_groups[0]["lr"] == 3e-4
    assert steps(model.policy.optimizer) == {4 * 2 * 10}  # rollouts, batches, epochs
    assert steps(loaded.policy.optimizer) == {(4 + 2) * 2 * 10}
    again = type(model).load("cartpole", device="cpu")
    assert_equal_states(again.policy.optimizer, model.policy.optimizer)
    assert loaded.num_timesteps == 512 + 256
    assert all(parameter.isfinite().all() for parameter in loaded.policy.parameters())
    assert {layer.steps for layer in names["monitor"].layers().values()} == {80}


def test_torchao(execute, kind):
    wanted("torchao")
    from torchao.optim import CPUOffloadOptimizer

    parameters = inspect.signature(CPUOffloadOptimizer).parameters
    assert list(parameters)[:2] == ["params", "optimizer_class"]
    assert parameters["minimal_size"].default == 4096
    assert parameters["kwargs"].kind is inspect.Parameter.VAR_KEYWORD
    if not torch.cuda.is_available():
        pytest.skip(f"the signature of torchao {version('torchao')} is as used; CPUOffloadOptimizer needs CUDA to run")
    names = execute("torchao")
    inner = [*names["optimizer"].optim_dict.values(), names["optimizer"].d_opt]
    assert len(inner) == 1 + 1  # one for the large tensor, one for the others
    for optimizer in inner:
        assert_as_shown(optimizer, kind, max_norm=None)
    assert all(steps(optimizer) == {20} for optimizer in inner)
    assert_learned(names["losses"])


@pytest.mark.parametrize("page", [page.stem for page in sorted(PAGES.glob("*.md")) if page.name != "README.md"])
def test_a_page_shows_robust_adamw_and_does_not_clip_before_it(page):
    """Clipping stands in a last block of its own, for AdaTerm."""
    shown = [block for block in read_blocks(page) if "import" in block]
    assert shown
    for block in shown:
        code = re.sub(r"#.*", "", block)
        assert "RobustAdamW" in code
        assert "AdaTerm" not in code
        limits = r"""gradient_clip_val=[^N]|max_grad_norm=(?!0\.0\b|float\("inf"\))"""
        assert not re.search(rf"clip_grad|unscale_|init_scale|{limits}", code)
        assert not re.search("RobustAdamW|max_norm", re.sub(r"#.*|max_grad_norm", "", adapt(block, AdaTerm)))


def test_every_page_is_in_the_index_and_tested():
    index = (PAGES / "README.md").read_text()
    tests = Path(__file__).read_text()
    for page in PAGES.glob("*.md"):
        if page.name != "README.md":
            assert f"({page.name})" in index
            assert re.search(rf'execute\("{page.stem}"[,)]', tests)

"""The arena's table of arms: what people use, each as its authors publish it.

Betas and weight decay are the task's, except for methods whose authors publish betas of their own. The numbers that
packages have as defaults are written out where they are what a method is known by. Packages are imported when an arm is
made, and not before.
"""

import ast
import inspect
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from math import inf
from typing import Any

import torch

from adaterm_bench.arena.arm import Arm, NamedParameters, Rate, Recipe
from adaterm_bench.arena.peers import (
    AdamWJudgedByLoss,
    ClippedAdamW,
    JudgedMuonWithAdamW,
    MuonJudgedByLoss,
    MuonWithAdamW,
    NormWatching,
    ObservingAdaTerm,
    ObservingRobustAdamW,
    ObservingTAdam,
    OracleAdamW,
    ZClippedAdamW,
)
from adaterm_bench.arena.skip_step import SkipStepAdamW
from adaterm_bench.core.flags import UsageError
from adaterm_bench.core.registry import suggest
from adaterm_bench.methods import make_optimizer

EMBEDDINGS = ("tokens", "positions")
"""How the names of embeddings begin in the models here."""
INSTALL = "pip install '.[arena]' in a clone of adaterm"


class MissingError(Exception):
    """A package of a peer is not installed; the message says what to do."""


def _make(
    kind: Callable[..., torch.optim.Optimizer], params: NamedParameters, lr: Rate, recipe: Recipe, **options: Any
) -> torch.optim.Optimizer:
    """An optimizer with the task's weight decay, unless the options have another."""
    return kind([parameter for _, parameter in params], **{"lr": lr, "weight_decay": recipe.weight_decay, **options})


def _make_adamw(
    kind: Callable[..., torch.optim.Optimizer], params: NamedParameters, lr: Rate, recipe: Recipe, **options: Any
) -> torch.optim.Optimizer:
    capturable = params[0][1].is_cuda
    return _make(kind, params, lr, recipe, betas=recipe.betas, fused=True, capturable=capturable, **options)


def _make_skip_step(params: NamedParameters, lr: Rate, recipe: Recipe) -> torch.optim.Optimizer:
    return _make(SkipStepAdamW, params, lr, recipe, betas=recipe.betas, window=128, sigmas=6.0, max_norm=1.0)


def _make_zclip(max_norm: float | None, params: NamedParameters, lr: Rate, recipe: Recipe) -> torch.optim.Optimizer:
    clipper = _load("zclip", "ZClip")(alpha=0.97, z_thresh=2.5, warmup_steps=25, max_grad_norm=max_norm)
    return _make_adamw(ZClippedAdamW, params, lr, recipe, clipper=clipper)


def _make_adagc(params: NamedParameters, lr: Rate, recipe: Recipe) -> torch.optim.Optimizer:
    kind = _watch_norms(_load("pytorch_optimizer", "AdaGC"))
    clipping = {"beta": 0.98, "lambda_abs": 1.0, "lambda_rel": 1.05, "warmup_steps": 100}
    return _make(kind, params, lr, recipe, betas=recipe.betas, **clipping)


def _make_stable_spam(params: NamedParameters, lr: Rate, recipe: Recipe) -> torch.optim.Optimizer:
    kind = _watch_norms(_load("pytorch_optimizer", "StableSPAM"))
    memory = {"gamma1": 0.7, "gamma2": 0.9, "theta": 0.999, "update_proj_gap": 1000, "t_max": recipe.steps}
    # foreach only saves it from waiting for the device several times a tensor
    return _make(kind, params, lr, recipe, betas=(0.9, 0.999), **memory, foreach=True)


def _make_stable_adamw(params: NamedParameters, lr: Rate, recipe: Recipe) -> torch.optim.Optimizer:
    kind, on_gpu = _load("optimi", "StableAdamW"), params[0][1].is_cuda
    # left to choose, it would try Triton on a CPU, too
    return _make(kind, params, lr, recipe, betas=(0.9, 0.99), eps=1e-6, triton=on_gpu)


def _make_adopt(params: NamedParameters, lr: Rate, recipe: Recipe) -> torch.optim.Optimizer:
    # It calls a check of captures by a name that not every release of torch has.
    kind = type("ADOPT", (_load("adopt", "ADOPT"),), {"_cuda_graph_capture_health_check": lambda optimizer: None})
    return _make(kind, params, lr, recipe, betas=(0.9, 0.9999), eps=1e-6, decouple=True)


def _make_lion(params: NamedParameters, lr: Rate, recipe: Recipe) -> torch.optim.Optimizer:
    """Lion, with ten times the decay: its authors take 3 to 10 times, as its rates are so much smaller."""
    decay = 10.0 * recipe.weight_decay
    return _make(_load("lion_pytorch", "Lion"), params, lr, recipe, betas=(0.9, 0.99), weight_decay=decay)


def _make_schedule_free(params: NamedParameters, lr: Rate, recipe: Recipe) -> torch.optim.Optimizer:
    kind = _load("schedulefree", "AdamWScheduleFree")
    return _make(kind, params, lr, recipe, betas=recipe.betas, warmup_steps=recipe.warm_up)


def _make_muon(kind: type[MuonWithAdamW], params: NamedParameters, lr: Rate, recipe: Recipe) -> torch.optim.Optimizer:
    outer = (recipe.head, *EMBEDDINGS)
    hidden = {name for name, parameter in params if parameter.dim() == 2 and not name.startswith(outer)}
    if not hidden:
        raise ValueError("Muon is for matrices of hidden layers, and this model has none: it takes no convolutions")
    matrices = [parameter for name, parameter in params if name in hidden]
    others = [parameter for name, parameter in params if name not in hidden]
    return kind(matrices, others, lr, recipe.betas, recipe.weight_decay)


def _make_t_adam(params: NamedParameters, lr: Rate, recipe: Recipe, **options: Any) -> torch.optim.Optimizer:
    modes = {"decoupled_weight_decay": True, "capturable": params[0][1].is_cuda}
    return _make(ObservingTAdam, params, lr, recipe, **{"betas": recipe.betas, **modes, **options})


def _make_adaterm(params: NamedParameters, lr: Rate, recipe: Recipe, **options: Any) -> torch.optim.Optimizer:
    modes = {"decoupled_weight_decay": True, "capturable": params[0][1].is_cuda}
    return _make(ObservingAdaTerm, params, lr, recipe, **{**modes, **options})


def _make_robust(params: NamedParameters, lr: Rate, recipe: Recipe, **options: Any) -> torch.optim.Optimizer:
    modes = {"capturable": params[0][1].is_cuda}
    return _make(ObservingRobustAdamW, params, lr, recipe, **{"betas": recipe.betas, **modes, **options})


def _watch_norms(kind: type[Any]) -> Callable[..., torch.optim.Optimizer]:
    """A class of another package that also measures the norm of gradients."""
    return type(kind.__name__, (NormWatching, kind), {})


def _load(module: str, name: str) -> Any:
    """A class of a package that may not be installed."""
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise MissingError(f"{error.name} is not installed: {INSTALL}") from error


def list_available() -> list[str]:
    """The arms that can run here."""
    return [name for name in ARMS if name not in find_unavailable()]


def find_unavailable() -> dict[str, str]:
    """The arms for which a package is missing here, and how to get it."""
    return {name: INSTALL for name, arm in ARMS.items() if arm.module and find_spec(arm.module) is None}


def find_arm(name: str) -> Arm:
    """The arm of a name: one of the table, a variant of ours, or one of a method that a user has registered.

    A variant has options behind its name, as "RobustAdamW dof=10 max_norm=auto" has.
    """
    if name in ARMS:
        return ARMS[name]
    if is_variant(name):
        base, options = _split_options(name)
        return ARMS[base]._replace(make=partial(ARMS[base].make, **options))
    return Arm(
        lambda named, rate, recipe: make_optimizer(name, [parameter for _, parameter in named], float(rate)),
        captured=False,
    )


def is_variant(name: str) -> bool:
    """Whether this names an arm of ours with other options; those that are not possible raise."""
    base, options = _split_options(name)
    if base not in OURS or not options:
        return False
    known = [option for option in inspect.signature(OURS[base].__init__).parameters if option not in NO_OPTIONS]
    for option in options:
        if option not in known:
            raise UsageError(f"{name}: {base} has no option {option!r}. {suggest(option, known)}")
    try:
        make_on_nothing(ARMS[base]._replace(make=partial(ARMS[base].make, **options)))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}: {error}") from error
    return True


def make_on_nothing(arm: Arm) -> torch.optim.Optimizer:
    """The optimizer of an arm for one number, to be looked at."""
    return arm.make([("weight", torch.zeros(1, requires_grad=True))], 1e-3, Recipe((0.9, 0.999), 0.0, 1, 1))


def _split_options(name: str) -> tuple[str, dict[str, Any]]:
    words = name.split(" ")
    end = next((place for place, word in enumerate(words) if "=" in word), len(words))
    pairs = [word.partition("=") for word in words[end:]]
    return " ".join(words[:end]), {option: _read_value(text) for option, _, text in pairs}


def _read_value(text: str) -> Any:
    """A number, or else a word such as auto."""
    if text == "inf":
        return inf
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


OURS: dict[str, type[torch.optim.Optimizer]] = {
    "t-Adam": ObservingTAdam,
    "AdaTerm": ObservingAdaTerm,
    "AdaTerm (gradient init)": ObservingAdaTerm,
    "RobustAdamW": ObservingRobustAdamW,
    "RobustAdamW (clipped)": ObservingRobustAdamW,
}
"""The arms of this project, which may have other options."""
NO_OPTIONS = ("self", "params", "lr", "modes", "capturable", "differentiable", "foreach", "fused", "maximize")
"""What the loop, the grid or the device decides."""
ARMS: dict[str, Arm] = {
    "AdamW": Arm(partial(_make_adamw, torch.optim.AdamW), captured=True),
    "AdamW (clipped)": Arm(partial(_make_adamw, ClippedAdamW), captured=True),
    "SkipStepAdamW": Arm(_make_skip_step, captured=True),
    "ZClip": Arm(partial(_make_zclip, 1.0), captured=False, module="zclip"),
    "ZClip (alone)": Arm(partial(_make_zclip, None), captured=False, module="zclip"),
    "AdaGC": Arm(_make_adagc, captured=False, module="pytorch_optimizer"),
    "Stable-SPAM": Arm(_make_stable_spam, captured=False, module="pytorch_optimizer"),
    "StableAdamW": Arm(_make_stable_adamw, captured=False, module="optimi"),
    "ADOPT": Arm(_make_adopt, captured=False, module="adopt"),
    "Lion": Arm(_make_lion, captured=False, module="lion_pytorch"),
    "Schedule-Free AdamW": Arm(_make_schedule_free, captured=False, scheduled=False, module="schedulefree"),
    "Muon": Arm(partial(_make_muon, MuonWithAdamW), captured=False),
    "t-Adam": Arm(_make_t_adam, captured=True),
    "AdaTerm": Arm(_make_adaterm, captured=True),
    "AdaTerm (gradient init)": Arm(partial(_make_adaterm, init_scale="gradient"), captured=True),
    "RobustAdamW": Arm(_make_robust, captured=True),
    "RobustAdamW (clipped)": Arm(partial(_make_robust, max_norm=1.0), captured=True),
    "Muon (judged)": Arm(partial(_make_muon, JudgedMuonWithAdamW), captured=False),
    "AdamW (judged by loss)": Arm(partial(_make_adamw, AdamWJudgedByLoss), captured=False),
    "Muon (judged by loss)": Arm(partial(_make_muon, MuonJudgedByLoss), captured=False),
    "Oracle": Arm(partial(_make_adamw, OracleAdamW), captured=True),
}
"""Every arm under its name in reports and legends, in their order. Those with numbers that the host counts or looks at
from step to step (learning rates, bias corrections, thresholds) cannot be captured. The last one is told which batches
are bad: a bound, not a peer."""

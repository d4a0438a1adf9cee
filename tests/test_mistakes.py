"""Common mistakes are answered with what to do instead."""

import pytest
import torch
from catalogue import OPTIMIZERS
from torch import nn

import adaterm
from adaterm import AdaTerm, AtAdam, Monitor, RobustAdamW, TAdam


def model(**options):
    return nn.Linear(3, 2, **options)


def spent():
    """A generator that was used before, as by an optimizer."""
    parameters = model().parameters()
    torch.optim.SGD(parameters)
    return parameters


def save(kind, **options):
    """The state of an optimizer that took a step."""
    layer = model()
    optimizer = kind(layer.parameters(), **options)
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return optimizer.state_dict()


def step_sparse():
    table = nn.Embedding(4, 2, sparse=True)
    optimizer = RobustAdamW(table.parameters())
    table(torch.tensor([1])).sum().backward()
    optimizer.step()


def step_before_materializing():
    layer = model(device="meta")
    optimizer = RobustAdamW(layer.parameters())
    layer.to_empty(device="cpu")
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()


def step_without_values():
    parameter = model(device="meta").weight
    parameter.grad = torch.ones_like(parameter)
    RobustAdamW([parameter]).step()


class Subclass(torch.Tensor):
    """Tensors of a kind that kernels do not know."""


def step_subclass():
    parameter = torch.zeros(3).as_subclass(Subclass).requires_grad_()
    parameter.grad = torch.ones(3)
    RobustAdamW([parameter], fused=True).step()


def load(kind, state):
    kind(model().parameters()).load_state_dict(state)


class Counted(RobustAdamW):
    """A user's own, which overrides how it is made."""

    def __new__(cls, *args, **options):
        return super().__new__(cls, *args, **options)


MISTAKES = {
    "a misspelt option": (
        lambda: RobustAdamW(model().parameters(), tresh=3),
        TypeError,
        r"RobustAdamW got an unexpected keyword argument 'tresh': did you mean 'threshold'\? Its options are lr,",
    ),
    "a misspelt mode": (
        lambda: TAdam(model().parameters(), maximise=True),
        TypeError,
        r"TAdam got an unexpected keyword argument 'maximise': did you mean 'maximize'\?",
    ),
    "an option that is near one of AdamW's": (
        lambda: RobustAdamW(model().parameters(), amsgard=True),
        TypeError,
        r"'amsgard'\. Its options are lr, betas, eps, weight_decay, dof, (?!.*(amsgrad|decoupled))",
    ),
    "AdaTerm's switch for AdamW's decay": (
        lambda: RobustAdamW(model().parameters(), decoupled_weight_decay=True),
        TypeError,
        r"'decoupled_weight_decay': its weight decay is decoupled in any case\.",
    ),
    "a misspelt option of a user's own optimizer": (
        lambda: Counted(model().parameters(), lr=1e-3, treshold=3),
        TypeError,
        r"Counted got an unexpected keyword argument 'treshold': did you mean 'threshold'\?",
    ),
    "an option of another name": (
        lambda: AdaTerm(model().parameters(), learning_rate=1e-3),
        TypeError,
        r"'learning_rate': did you mean 'lr'\?",
    ),
    "an option of another optimizer": (
        lambda: AdaTerm(model().parameters(), nesterov=True),
        TypeError,
        r"AdaTerm got an unexpected keyword argument 'nesterov'\. Its options are lr, beta, eps, .*init_scale",
    ),
    "another name of an option that there is not": (
        lambda: AdaTerm(model().parameters(), max_grad_norm=1.0),
        TypeError,
        r"'max_grad_norm': it does not clip\. Call clip_grad_norm_ right before optimizer\.step\(\), or use Rob",
    ),
    "amsgrad where there is none": (
        lambda: AdaTerm(model().parameters(), amsgrad=True),
        TypeError,
        r"'amsgrad': there is no amsgrad here\. Its options are",
    ),
    "amsgrad": (
        lambda: RobustAdamW(model().parameters(), amsgrad=True),
        ValueError,
        r"amsgrad must be False: it never forgets the largest gradients",
    ),
    "AdaTerm's option": (
        lambda: RobustAdamW(model().parameters(), init_scale="gradient"),
        TypeError,
        r"'init_scale': only AdaTerm has it",
    ),
    "a misspelt option of another name": (
        lambda: RobustAdamW(model().parameters(), lerning_rate=1e-3),
        TypeError,
        r"'lerning_rate': did you mean 'lr'\?",
    ),
    "a key of another name": (
        lambda: RobustAdamW([{"params": model().parameters(), "learning_rate": 1e-3}]),
        UserWarning,
        r"'learning_rate' in a parameter group has no effect on RobustAdamW: did you mean 'lr'\?",
    ),
    "a key of an option that there is not": (
        lambda: AdaTerm([{"params": model().parameters(), "max_norm": 1.0}]),
        UserWarning,
        r"'max_norm' in a parameter group has no effect on AdaTerm: it does not clip",
    ),
    "windows that differ": (
        lambda: RobustAdamW([{"params": [model().weight], "window": 50}, {"params": [model().weight], "window": 100}]),
        ValueError,
        r"window=50 and window=100 are not possible in one .* Pass it once, as a constructor argument",
    ),
    "betas where there is one decay": (
        lambda: AdaTerm(model().parameters(), betas=(0.9, 0.999)),
        TypeError,
        r"AdaTerm has one decay for all averages: pass beta=0\.9, not betas",
    ),
    "betas by position": (
        lambda: AdaTerm(model().parameters(), 1e-3, (0.9, 0.999)),
        ValueError,
        r"beta=\(0\.9, 0\.999\) is not possible: beta must be one number in \[0, 1\), the decay of all",
    ),
    "beta where there are two": (
        lambda: RobustAdamW(model().parameters(), beta=0.9),
        TypeError,
        r"'beta': did you mean 'betas'\?",
    ),
    "a negative learning rate": (
        lambda: RobustAdamW(model().parameters(), lr=-1e-3),
        ValueError,
        r"lr=-0\.001 is not possible: lr must be a non-negative number",
    ),
    "a number as a string": (
        lambda: RobustAdamW(model().parameters(), lr="1e-3"),
        ValueError,
        r"lr='1e-3' is not possible: lr must be a non-negative number",
    ),
    "a model": (
        lambda: RobustAdamW(model()),
        TypeError,
        r"RobustAdamW takes parameters, not a module: .*parameters\(\)",
    ),
    "a model's state": (
        lambda: RobustAdamW(model().state_dict()),
        TypeError,
        r"RobustAdamW takes parameters, or a list of groups, not a dict: pass model\.parameters\(\)",
    ),
    "a tensor": (lambda: RobustAdamW(model().weight), TypeError, r"should be an iterable of Tensors or dicts"),
    "a string": (lambda: RobustAdamW("weights"), TypeError, r"only optimize Tensors, but one of the params is str"),
    "a generator used twice": (
        lambda: RobustAdamW(spent()),
        ValueError,
        r"used before\. Call model\.parameters\(\) again",
    ),
    "a spent generator in a group": (
        lambda: RobustAdamW([{"params": spent()}]),
        UserWarning,
        r"group of RobustAdamW is empty: .*used before",
    ),
    "an empty list": (lambda: RobustAdamW([]), ValueError, r"optimizer got an empty parameter list"),
    "a parameter twice": (
        lambda: RobustAdamW([model().weight] * 2),
        UserWarning,
        r"parameter group with duplicate parameters",
    ),
    "a parameter in two groups": (
        lambda: RobustAdamW([{"params": group} for group in [[model().weight]] * 2]),
        ValueError,
        r"some parameters appear in more than one parameter group",
    ),
    "what is not a leaf": (lambda: RobustAdamW([model().weight * 2]), ValueError, r"can't optimize a non-leaf Tensor"),
    "sparse gradients": (step_sparse, RuntimeError, r"sparse_coo.*sparse=False.*SparseAdam"),
    "an optimizer made before its model": (
        step_before_materializing,
        UserWarning,
        r"RobustAdamW has parameters on the meta device.*make the optimizer after model\.to_empty",
    ),
    "gradients of parameters without values": (
        step_without_values,
        UserWarning,
        r"RobustAdamW has parameters on the meta device.*make the optimizer after model\.to_empty",
    ),
    "fused steps of a subclass of Tensor": (
        step_subclass,
        RuntimeError,
        r"requires all the params to be plain Tensors, but one is a Subclass, a subclass: use fused=False",
    ),
    "Adam's checkpoint": (
        lambda: load(AdaTerm, save(torch.optim.Adam)),
        ValueError,
        r"not of AdaTerm: .*betas, amsgrad.*begin with a new AdaTerm",
    ),
    "Adam's checkpoint with amsgrad": (
        lambda: load(RobustAdamW, save(torch.optim.Adam, amsgrad=True)),
        ValueError,
        r"amsgrad=True does not fit RobustAdamW, .*: load only the model's parameters, and begin with a new optimizer",
    ),
    "a checkpoint of SGD": (
        lambda: load(RobustAdamW, save(torch.optim.SGD)),
        ValueError,
        r"not of RobustAdamW: .*momentum, .*begin with a new RobustAdamW",
    ),
    "a checkpoint of a relative": (lambda: load(AtAdam, save(AdaTerm)), ValueError, r"not of AtAdam: .*min_dof"),
    "the model's checkpoint": (
        lambda: load(RobustAdamW, model().state_dict()),
        ValueError,
        r"not the state of an optimizer, but has the keys weight, bias",
    ),
    "the path of a checkpoint": (
        lambda: load(RobustAdamW, "checkpoint.pt"),
        TypeError,
        r"takes what optimizer\.state_dict\(\) gave, not a str: pass .* torch\.load\(path\)\['optimizer'\]",
    ),
    "a monitor of another optimizer": (
        lambda: Monitor(torch.optim.AdamW(model().parameters())),
        TypeError,
        r"a Monitor watches an optimizer of adaterm, not AdamW: watch a BatchJudge beside it",
    ),
    "a monitor of a model": (
        lambda: Monitor(model(), RobustAdamW(model().parameters())),
        TypeError,
        r"not Linear: call Monitor\(optimizer, model\)",
    ),
    "watching another model": (
        lambda: Monitor(RobustAdamW(model().parameters()), model()),
        UserWarning,
        r"the optimizer trains no parameter of this Linear.*give it that one",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_what_to_do(mistake):
    make, kind, answer = MISTAKES[mistake]
    with pytest.warns(kind, match=answer) if issubclass(kind, Warning) else pytest.raises(kind, match=answer):
        make()


def test_adams_checkpoint_continues_in_robust_adamw():
    load(RobustAdamW, save(torch.optim.AdamW))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_subclass_may_have_options_of_its_own(name):
    class Named(getattr(adaterm, name)):
        def __init__(self, params, **options):
            self.title = options.pop("title")
            super().__init__(params, **options)

    assert Named(model().parameters(), title="mine", lr=0.1).title == "mine"

"""What users do between two steps; every engine must notice, on every device. Run by test_repeat and gpu_check."""

import torch
from catalogue import measure_error

import adaterm

SHAPES = [(64, 64), (8, 4, 3, 3), (3,), (1,), (), (2, 3, 4)]


def nothing(optimizer, params):
    pass


def new_lr(optimizer, params):
    optimizer.param_groups[0]["lr"] = 0.5


def tensor_lr(optimizer, params):
    optimizer.param_groups[0]["lr"] = torch.tensor(0.5)


def weight_decay(optimizer, params):
    optimizer.param_groups[0]["weight_decay"] = 0.3


def new_beta(optimizer, params):
    optimizer.param_groups[0] |= {"betas": (0.8, 0.95)} if judges(optimizer) else {"beta": 0.8}


def another_rule(optimizer, params):
    optimizer.param_groups[0] |= {"dof": 7.0, "threshold": 2.0} if judges(optimizer) else {"min_dof": 7.0}


def another_kind_of_rule(optimizer, params):
    optimizer.param_groups[0] |= {"max_norm": "auto"} if judges(optimizer) else {"scale_update": "analytic"}


def maximize(optimizer, params):
    optimizer.param_groups[0]["maximize"] = True


def a_missing_gradient(optimizer, params):
    params[1].grad = None


def state_cleared(optimizer, params):
    optimizer.state.clear()


def an_entry_replaced(optimizer, params):
    optimizer.state[params[0]] = {name: value.clone() for name, value in optimizer.state[params[0]].items()}


def a_state_tensor_replaced(optimizer, params):
    optimizer.state[params[0]]["exp_avg"] = optimizer.state[params[0]]["exp_avg"] * 2.0


def a_scalar_replaced(optimizer, params):
    name = "scale_correction" if judges(optimizer) else "excess_dof"
    optimizer.state[params[0]][name] = optimizer.state[params[0]][name] * 0.5


def a_users_own_entry(optimizer, params):
    optimizer.state[params[0]]["ema"] = params[0].detach().clone()


def a_state_tensors_data_swapped(optimizer, params):
    mean = optimizer.state[params[0]]["exp_avg"]
    mean.data = mean.data * 2.0


def a_state_transposed_in_place(optimizer, params):
    mean = optimizer.state[params[0]]["exp_avg"]
    mean.data = mean.data.t()


def a_states_precision_changed(optimizer, params):
    entry = optimizer.state[params[0]]
    for name in entry.keys() - {"step"}:
        entry[name].data = entry[name].data.double()


def a_parameters_data_swapped(optimizer, params):
    params[0].data = params[0].data * 2.0


def a_parameter_transposed_in_place(optimizer, params):
    params[0].data = params[0].data.t()


def a_parameter_reshaped(optimizer, params):
    params[0].data = params[0].data.view(32, 128).t().contiguous().view(64, 64)


def channels_last(optimizer, params):
    params[1].data = params[1].data.to(memory_format=torch.channels_last)


def channels_last_on_the_old_address(optimizer, params):
    for layout in (torch.channels_last, torch.contiguous_format, torch.channels_last):
        params[1].data = params[1].data.to(memory_format=layout).clone(memory_format=layout)


def a_transposed_copy_on_the_old_address(optimizer, params):
    params[0].data = params[0].data.clone()
    params[0].data = params[0].data.t().contiguous().t()


def a_parameter_in_another_precision(optimizer, params):
    params[0].data = params[0].data.half()
    params[0].grad = params[0].grad.half()


def a_gradient_in_another_order(optimizer, params):
    params[0].grad = params[0].grad.mT.contiguous().mT


def a_gradient_with_gaps(optimizer, params):
    params[0].grad = torch.stack([params[0].grad, params[0].grad], dim=-1)[..., 0]


def a_gradient_in_place(optimizer, params):
    params[0].grad.neg_()


def a_negative_view(optimizer, params):
    params[0].grad = torch._neg_view(params[0].grad.clone())


def a_group_added(optimizer, params):
    generator = torch.Generator().manual_seed(5)
    more = torch.randn(4, 4, generator=generator).to(params[0].device).requires_grad_()
    more.grad = torch.ones_like(more)
    params.append(more)
    optimizer.add_param_group({"params": [more], "lr": 0.2})


def state_loaded(optimizer, params):
    optimizer.load_state_dict(optimizer.state_dict())


CHANGES = [value for value in list(vars().values()) if getattr(value, "__module__", None) == __name__]
"""What concerns every optimizer."""


def another_window(optimizer, params):
    for group in optimizer.param_groups:
        group["window"] = 15 if group["window"] == 11 else 11


def another_window_where_its_keeper_has_no_gradient(optimizer, params):
    another_window(optimizer, params)
    params[0].grad = None


def a_window_replaced(optimizer, params):
    optimizer.state[params[1]]["log_distances"] = optimizer.state[params[1]]["log_distances"] + 1.0


def a_window_in_place(optimizer, params):
    optimizer.state[params[1]]["log_distances"] += 1.0


def a_windows_data_swapped(optimizer, params):
    window = optimizer.state[params[1]]["log_distances"]
    window.data = window.data + 1.0


def the_batches_replaced(optimizer, params):
    optimizer.state[params[0]]["batches"] = optimizer.state[params[0]]["batches"] - 1.0


def the_batches_in_place(optimizer, params):
    optimizer.state[params[0]]["batches"] -= 1.0


def the_batches_data_swapped(optimizer, params):
    batches = optimizer.state[params[0]]["batches"]
    batches.data = batches.data - 1.0


def the_batches_forgotten(optimizer, params):
    for entry in optimizer.state.values():
        entry.pop("batches", None)


def the_keeper_of_the_batches_forgotten(optimizer, params):
    optimizer.state.pop(params[0], None)


def the_keeper_of_the_batches_without_gradient(optimizer, params):
    params[0].grad = None


def no_more_clipping(optimizer, params):
    optimizer.param_groups[0]["max_norm"] = 1.0 if optimizer.param_groups[0]["max_norm"] is None else None


CHANGES_OF_JUDGEMENT = [
    value for value in list(vars().values()) if getattr(value, "__module__", None) == __name__ and value not in CHANGES
]
"""What concerns an optimizer that judges batches by what it remembers."""


def judges(optimizer):
    return isinstance(optimizer, adaterm.RobustAdamW)


def is_allowed(change, engine):
    """foreach wants a number as lr, as torch's does."""
    return (change, engine) != (tensor_lr, "foreach")


RUNS = {"AdaTerm": ({}, 9, (3, 4, 7)), "RobustAdamW": ({"window": 10}, 20, (3, 4, 13, 16))}
"""For each optimizer: options, how many steps, and before which of them something changes."""


def run(change, device, name="AdaTerm", **flags):
    """Steps with a change before some of them; the parameters and the optimizer."""
    options, steps, changed = RUNS[name]
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(shape, generator=generator).to(device).requires_grad_() for shape in SHAPES]
    optimizer = getattr(adaterm, name)(params, lr=0.1, **options, **flags)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        for parameter in params:
            gradient = torch.randn(parameter.shape, generator=generator).to(parameter)
            if parameter.grad is not None and parameter.grad.dtype == parameter.dtype and step % 3:
                parameter.grad.copy_(gradient)  # in place, as training without set_to_none has it
            else:
                parameter.grad = gradient
        if step in changed:
            change(optimizer, params)
        optimizer.step()
    return params, optimizer


def compare(change, device, name="AdaTerm", **flags):
    """The largest relative difference from the reference engine, of parameters and of state."""
    (params, tested), (others, wanted) = run(change, device, name, **flags), run(change, device, name, foreach=False)
    worst = 0.0
    for a, b in zip(params, others, strict=True):
        pairs = [(tested.state[a][name], value) for name, value in wanted.state[b].items()]
        pairs += [] if a.dtype == torch.float16 else [(a, b)]
        for one, other in pairs:
            worst = max(worst, measure_error(one.cpu(), other.cpu()))
    return worst

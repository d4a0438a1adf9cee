"""torch.compile takes a whole step as one graph, and keeps it when the learning rate changes."""

import pytest
import torch
from catalogue import ENGINES, assert_close, give_gradients, make, parameters, train
from torch._dynamo.utils import counters

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", ["AdaTerm", "AdaTerm2 + AdaBias", "AdaTerm + decoupled decay", "At-Adam", "AdaBelief"])
def test_a_step_is_one_graph(rule, engine):
    torch._dynamo.reset()
    counters.clear()
    flags = ENGINES[engine] | {"capturable": True}
    params, eager = parameters(), parameters()
    rates = [torch.tensor(0.01), torch.tensor(0.01)]
    optimizers = [make(rule, p, lr=lr, **flags) for p, lr in zip((params, eager), rates, strict=True)]
    step = torch.compile(optimizers[0].step, fullgraph=True, backend="aot_eager")
    for count in range(5):
        give_gradients(params, count)
        give_gradients(eager, count)
        step()
        optimizers[1].step()
        for lr in rates:
            lr.mul_(0.5)
    assert counters["stats"]["unique_graphs"] == 1
    for a, b in zip(params, eager, strict=True):
        assert_close(a, b, 1e-5)
    trusted, wanted = (list(optimizer.statistics().values()) for optimizer in optimizers)
    for seen, known in zip(trusted, wanted, strict=True):
        assert_close(seen.trust, known.trust, 1e-3)


def test_a_number_becomes_dynamic_after_its_first_change():
    torch._dynamo.reset()
    counters.clear()
    params = parameters()
    optimizer = make("AdaTerm", params, lr=0.01)
    step = torch.compile(optimizer.step, fullgraph=True, backend="aot_eager")
    for count in range(6):
        give_gradients(params, count)
        step()
        optimizer.param_groups[0]["lr"] *= 0.5
    assert counters["stats"]["unique_graphs"] <= 2


def test_eager_steps_before_do_not_matter():
    torch._dynamo.reset()
    counters.clear()
    params, eager = parameters(), parameters()
    tested, plain = make("AdaTerm", params), make("AdaTerm", eager)
    train(tested, params, 2)
    train(plain, eager, 7)
    tested.step = torch.compile(tested.step, fullgraph=True, backend="aot_eager")
    train(tested, params, 5, start=2)
    assert counters["stats"]["unique_graphs"] == 1
    for a, b in zip(params, eager, strict=True):
        assert_close(a, b, 1e-5)


def test_inductor_agrees():
    torch._dynamo.reset()
    params, eager = parameters(), parameters()
    compiled, plain = make("AdaTerm", params, lr=0.1), make("AdaTerm", eager, lr=0.1)
    compiled.step = torch.compile(compiled.step, fullgraph=True)
    train(compiled, params, 3)
    train(plain, eager, 3)
    for a, b in zip(params, eager, strict=True):
        assert_close(a, b, 1e-5)

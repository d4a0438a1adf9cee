"""torch.compile takes a whole step as one graph, and keeps it when the learning rate changes."""

import pytest
import torch
from catalogue import ENGINES, JUDGING, assert_close, give_gradients, make, parameters, train
from torch._dynamo.utils import counters

import adaterm

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own
FEW = [(7, 5), (3,), ()]
"""Shapes of parameters; tracing takes as much time for each."""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "rule",
    ["AdaTerm", "AdaTerm2 + AdaBias", "AdaTerm + decoupled decay", "At-Adam", "AdaBelief", "RobustAdamW, usual norm"],
)
def test_a_step_is_one_graph(rule, engine):
    torch._dynamo.reset()
    counters.clear()
    flags = ENGINES[engine] | {"capturable": True}
    params, eager = parameters(FEW), parameters(FEW)
    rates = [torch.tensor(0.01), torch.tensor(0.01)]
    optimizers = [make(rule, p, lr=lr, **flags) for p, lr in zip((params, eager), rates, strict=True)]
    step = torch.compile(optimizers[0].step, fullgraph=True, backend="aot_eager")
    for count in range(14 if rule in JUDGING else 5):
        give_gradients(params, count)
        give_gradients(eager, count)
        step()
        optimizers[1].step()
        for lr in rates:
            lr.mul_(0.8)
    assert counters["stats"]["unique_graphs"] == 1
    for a, b in zip(params, eager, strict=True):
        assert_close(a, b, 1e-5)
    trusted, wanted = (list(optimizer.statistics().values()) for optimizer in optimizers)
    for seen, known in zip(trusted, wanted, strict=True):
        assert_close(seen.trust, known.trust, 1e-3)
    if rule in JUDGING:
        for seen, known in zip(*(optimizer.batch_statistics() for optimizer in optimizers), strict=True):
            assert known.isfinite()
            assert_close(seen, known, 1e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_monitor_is_part_of_the_graph(engine):
    torch._dynamo.reset()
    counters.clear()
    params, eager = parameters(FEW), parameters(FEW)
    flags = ENGINES[engine] | {"capturable": True, "lr": torch.tensor(0.01)}
    optimizers = [make("RobustAdamW, usual norm", each, **flags) for each in (params, eager)]
    monitors = [adaterm.Monitor(optimizer, length=8) for optimizer in optimizers]
    step = torch.compile(optimizers[0].step, fullgraph=True, backend="aot_eager")
    for count in range(13):
        for monitor, some in zip(monitors, (params, eager), strict=True):
            monitor.mark(f"batch {count}")
            give_gradients(some, count)
        step()
        optimizers[1].step()
    assert counters["stats"]["unique_graphs"] == 1
    for compiled, plain in zip(*(monitor._ring.read(100) for monitor in monitors), strict=True):
        assert_close(compiled.nan_to_num(), plain.nan_to_num(), 1e-5)
    assert [batch.mark for batch in monitors[0].aberrant()] == [batch.mark for batch in monitors[1].aberrant()]


def test_a_number_becomes_dynamic_after_its_first_change():
    torch._dynamo.reset()
    counters.clear()
    params = parameters(FEW)
    optimizer = make("AdaTerm", params, lr=0.01)
    step = torch.compile(optimizer.step, fullgraph=True, backend="aot_eager")
    for count in range(6):
        give_gradients(params, count)
        step()
        optimizer.param_groups[0]["lr"] *= 0.5
    assert counters["stats"]["unique_graphs"] <= 2


either = pytest.mark.parametrize("rule", ["AdaTerm", pytest.param("RobustAdamW, usual norm", marks=pytest.mark.slow)])


@either
def test_eager_steps_before_do_not_matter(rule):
    torch._dynamo.reset()
    counters.clear()
    params, eager = parameters(), parameters()
    tested, plain = make(rule, params), make(rule, eager)
    train(tested, params, 9)
    train(plain, eager, 14)
    tested.step = torch.compile(tested.step, fullgraph=True, backend="aot_eager")
    train(tested, params, 5, start=9)
    assert counters["stats"]["unique_graphs"] == 1
    for a, b in zip(params, eager, strict=True):
        assert_close(a, b, 1e-5)


@either
def test_inductor_agrees(rule):
    torch._dynamo.reset()
    params, eager = parameters(), parameters()
    compiled, plain = make(rule, params, lr=0.1), make(rule, eager, lr=0.1)
    compiled.step = torch.compile(compiled.step, fullgraph=True)
    steps = 13 if rule in JUDGING else 3
    train(compiled, params, steps)
    train(plain, eager, steps)
    for a, b in zip(params, eager, strict=True):
        assert_close(a, b, 1e-5)

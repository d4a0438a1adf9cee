"""What the ranks of the distributed tests do; every function runs on all of them, and checks what it does."""

import os
from copy import deepcopy
from functools import cache

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from catalogue import ENGINE_TOLERANCE, ENGINES, JUDGING, assert_close, give_gradients, make, parameters, train
from interpreter import patch_once
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import adaterm
from adaterm.state import share_out

SHAPES = [(7, 5), (3,), (1,), (), (2, 3, 4), (9, 2)]
"""None divides by the number of ranks, and some have fewer rows than there are ranks."""


def _first(tensor):
    return Shard(0) if tensor.dim() else Replicate()


def _last(tensor):
    return Shard(tensor.dim() - 1) if tensor.dim() > 1 else Replicate()


LAYOUTS = {
    "fsdp": ((-1,), ("dp",), lambda tensor, index: [_first(tensor)]),
    "tensor parallel": ((-1,), ("tp",), lambda tensor, index: [_last(tensor)]),
    "hsdp": ((2, -1), ("replicate", "shard"), lambda tensor, index: [Replicate(), _first(tensor)]),
    "fsdp and tensor parallel": ((2, -1), ("dp", "tp"), lambda tensor, index: [_first(tensor), _last(tensor)]),
    "with plain tensors": ((-1,), ("dp",), lambda tensor, index: [_first(tensor)] if index % 2 else None),
}
"""The mesh's shape and names, and a tensor's placements on it, or None if it is left as it is."""


def mesh_of(layout, device="cpu"):
    shape, names, _ = LAYOUTS[layout]
    world = dist.get_world_size()
    rest = world // (shape[0] if len(shape) > 1 else 1)
    return init_device_mesh(device, tuple(rest if size < 0 else size for size in shape), mesh_dim_names=names)


def spread(tensors, mesh, layout):
    """The same tensors as the ranks share them."""
    placements = [LAYOUTS[layout][2](tensor, index) for index, tensor in enumerate(tensors)]
    return [
        tensor.detach().clone() if places is None else part_of(tensor, mesh, places)
        for tensor, places in zip(tensors, placements, strict=True)
    ]


def part_of(tensor, mesh, placements):
    """A tensor that every rank has, shared."""
    return share_out(tensor.detach().clone(), mesh, placements)


def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assert_same_everywhere(tensor, what):
    """The same bits on all ranks."""
    found = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(found, tensor)
    for other in found:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0, equal_nan=True, msg=what)


def assert_part(ours, wanted, tolerance, what):
    """This rank's part is that of the tensor wanted, within a tolerance relative to its largest entry."""
    if isinstance(ours, DTensor):
        largest = wanted.detach().abs().max()
        wanted = part_of(wanted, ours.device_mesh, ours.placements).to_local()
        ours, wanted = (torch.cat([tensor.detach().flatten(), largest.view(1)]) for tensor in (ours.to_local(), wanted))
    assert_close(ours, wanted, tolerance, what)


def assert_follows(tested, shards, right, params, tolerance, what):
    for shard, parameter in zip(shards, params, strict=True):
        assert_part(shard, parameter, tolerance, f"{what}, parameter")
        assert tested.state[shard].keys() == right.state[parameter].keys()
        for name, value in right.state[parameter].items():
            assert_part(tested.state[shard][name], value, tolerance, f"{what}, {name}")
            if not isinstance(tested.state[shard][name], DTensor):
                assert_same_everywhere(tested.state[shard][name].cpu(), f"{what}, {name}")


class Messages(TorchDispatchMode):
    """The names of the collectives that ranks take part in; torch's CommDebugMode takes far longer than they do."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # its own operations come next
        if "c10d" in function.namespace and "wait" not in str(function):
            self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@cache
def train_alone(rule, dtype, steps, poison, device):
    """Parameters that one process trains, its optimizer, and every step's gradients; `poison` is as in `follow`."""
    params = [parameter.detach().to(device).requires_grad_() for parameter in parameters(SHAPES, dtype)]
    right = make(rule, [{"params": params[:3]}, {"params": params[3:], "lr": 3e-3}], foreach=False)
    gradients = []
    for step in range(steps):
        give_gradients(params, step)
        for parameter in params:
            if step == poison:
                (parameter.grad[-1:] if parameter.dim() else parameter.grad).fill_(float("nan"))
        right.step()
        gradients.append([parameter.grad for parameter in params])
    return params, right, gradients


def follow(layout, engine, rules, dtype, steps=11, poison=None, device="cpu"):
    """Train shards beside whole tensors; `poison` names a step in which only one rank's part of a gradient has NaN."""
    mesh = mesh_of(layout, device)
    for rule in rules:
        params, right, gradients = train_alone(rule, dtype, steps, poison, device)
        begin = [parameter.to(device) for parameter in parameters(SHAPES, dtype)]
        shards = [shard.requires_grad_() for shard in spread(begin, mesh, layout)]
        halves = [{"params": shards[:3]}, {"params": shards[3:], "lr": 3e-3}]  # two groups, one exchange
        tested = make(rule, halves, **ENGINES[engine])
        for step, given in enumerate(gradients):
            for shard, gradient in zip(shards, spread(given, mesh, layout), strict=True):
                shard.grad = gradient
            with Messages() as counted:
                tested.step()
            if step:  # the first one may exchange the first scales, too
                messages = {"fsdp and tensor parallel": 2}.get(layout, 1)  # however many tensors
                assert len(counted.names) == messages, counted.names
        assert_follows(tested, shards, right, params, ENGINE_TOLERANCE[dtype], f"{rule}, {layout}")
        for shard, parameter in zip(shards, params, strict=True):
            for ours, wanted in zip(tested.statistics()[shard], right.statistics()[parameter], strict=True):
                tolerance = 10 * ENGINE_TOLERANCE[dtype]
                torch.testing.assert_close(ours.to(wanted), wanted, rtol=tolerance, atol=0, msg=f"{rule}, statistics")
        if rule in JUDGING:
            for ours, wanted in zip(tested.batch_statistics(), right.batch_statistics(), strict=True):
                assert_same_everywhere(ours.cpu(), f"{rule}, the batch")
                torch.testing.assert_close(ours.to(wanted), wanted, rtol=1e-3, atol=1e-6, equal_nan=True)
            assert steps < 12 or right.batch_statistics().zscore.isfinite(), "nothing was judged: this shows little"


class Network(torch.nn.Module):
    """Its first layer has fewer rows than there are ranks, and none of its sizes divides by them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.narrow = torch.nn.Linear(6, 3)
        self.up = torch.nn.Linear(3, 8)
        self.down = torch.nn.Linear(8, 5)
        self.gain = torch.nn.Parameter(torch.ones(5))
        self.double()

    def forward(self, inputs):
        return self.down(torch.tanh(self.up(torch.tanh(self.narrow(inputs))))) * self.gain


def batch_of(step, part=0, parts=1):
    """A part of a step's batch; every fifth batch is corrupt."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(16, 6, generator=generator, dtype=torch.float64)
    targets = torch.randn(16, 5, generator=generator, dtype=torch.float64) * (100.0 if step % 5 == 4 else 1.0)
    return inputs.chunk(parts)[part], targets.chunk(parts)[part]


def train_model(model, optimizer, steps, part=0, parts=1):
    for step in steps:
        inputs, targets = batch_of(step, part, parts)
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()


def sharded_model(kind):
    """A model as torch shards it, which part of a batch it sees here, and of how many."""
    world, rank, model = dist.get_world_size(), dist.get_rank(), Network()
    if kind == "fsdp":
        mesh = init_device_mesh("cpu", (world,))
        for layer in (model.up, model.down):
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh), rank, world
    if kind == "hsdp":
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
        return fully_shard(model, mesh=mesh), rank, world
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    parallelize_module(model, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if kind == "tensor parallel":
        return model, 0, 1
    return fully_shard(model, mesh=mesh["dp"]), rank // 2, world // 2


def assert_same_model(model, wanted, tolerance=1e-12):
    for (name, ours), theirs in zip(model.named_parameters(), wanted.parameters(), strict=True):
        assert_close(whole(ours), theirs, tolerance, name)


def split(model):
    """Its matrices and the rest, as two groups."""
    matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) is wide] for wide in (True, False))
    return [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]


@cache
def train_single(rule):
    """The model that one process trains on whole batches."""
    single = Network()
    train_model(single, make(rule, split(single), lr=1e-2, foreach=False), range(20))
    return single


def train_as_torch_shards(rule, kind, engine):
    """A real model under torch's own sharding does what it does in one process on the whole batch."""
    single = train_single(rule)
    model, part, parts = sharded_model(kind)
    tested = make(rule, split(model), lr=1e-2, **ENGINES[engine])
    train_model(model, tested, range(20), part, parts)
    assert_same_model(model, single)


def state_on_disk(folder, kind, begin, end, rule, load):
    """Train from a checkpoint, or from nothing, to a checkpoint; what a process alone would have comes out."""
    single = Network()
    train_model(single, make(rule, single.parameters(), lr=1e-2), range(end))
    if dist.get_world_size() > 1:
        model, part, parts = sharded_model(kind)
    else:
        model, part, parts = Network(), 0, 1
    tested = make(rule, model.parameters(), lr=1e-2)
    path = os.path.join(folder, str(begin))
    if load:
        parameters_now, state = get_state_dict(model, tested)
        dcp.load({"model": parameters_now, "optimizer": state}, checkpoint_id=path)
        set_state_dict(model, tested, model_state_dict=parameters_now, optim_state_dict=state)
    train_model(model, tested, range(begin, end), part, parts)
    assert_same_model(model, single, 1e-11)
    parameters_now, state = get_state_dict(model, tested)
    dcp.save({"model": parameters_now, "optimizer": state}, checkpoint_id=os.path.join(folder, str(end)))


def ask_for_state_first(name, options):
    """`get_optimizer_state_dict` before the first step, which takes a step of its own, changes nothing after."""
    ends = []
    for asked in (False, "asked", "loaded"):
        model, part, parts = sharded_model("fsdp")
        tested = getattr(adaterm, name)(model.parameters(), lr=1e-2, **options)
        monitor = adaterm.Monitor(tested)
        if asked:
            parameters_now, state = get_state_dict(model, tested)
            assert state["state"]
        if asked == "loaded":  # as from a checkpoint of the beginning
            set_state_dict(model, tested, model_state_dict=parameters_now, optim_state_dict=state)
        train_model(model, tested, range(5), part, parts)
        ends.append([whole(parameter) for parameter in model.parameters()])
        assert all(tested.state[parameter]["step"] == 5 for parameter in model.parameters())
        assert {layer.steps for layer in monitor.layers().values()} == {5}
    assert all(torch.equal(a, b) for end in ends[1:] for a, b in zip(end, ends[0], strict=True))


def replicate(rule, engine):
    """Replicas under DDP stay the same to the bit, and no step sends a message."""
    model = DistributedDataParallel(Network().float())
    tested = make(rule, model.parameters(), lr=1e-2, **ENGINES[engine])
    for step in range(30 if rule in JUDGING else 100):
        inputs, targets = (tensor.float() for tensor in batch_of(step, dist.get_rank(), dist.get_world_size()))
        tested.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        with Messages() as counted:
            tested.step()
        assert not counted.names
    for parameter in model.parameters():
        assert_same_everywhere(parameter.detach(), "a replica")
        for name, value in tested.state[parameter].items():
            assert_same_everywhere(value, name)


def share_state(bucket_view, name, options):
    """ZeroRedundancyOptimizer, which gives each rank whole tensors to step."""
    single, optimizer_class = Network(), getattr(adaterm, name)
    train_model(single, optimizer_class(single.parameters(), lr=1e-2, **options), range(20))
    model = DistributedDataParallel(Network())
    tested = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=optimizer_class, lr=1e-2, parameters_as_bucket_view=bucket_view, **options
    )
    train_model(model, tested, range(20), dist.get_rank(), dist.get_world_size())
    assert_same_model(model, single)


def refuse_flat_parameters(rule):
    """FSDP1's flat parameters and pieces of tensors are refused, and whole tensors are not."""
    import pytest

    for original in (False, True):
        model = FullyShardedDataParallel(Network(), use_orig_params=original, device_id=torch.device("cpu"))
        tested = make(rule, model.parameters())
        with pytest.raises(RuntimeError, match="fully_shard"):
            train_model(model, tested, range(1))
    single = Network()
    train_model(single, make(rule, split(single), lr=1e-2), range(13))
    strategy = ShardingStrategy.NO_SHARD
    model = FullyShardedDataParallel(
        Network(), use_orig_params=True, sharding_strategy=strategy, device_id=torch.device("cpu")
    )
    tested = make(rule, split(model), lr=1e-2)
    train_model(model, tested, range(13), dist.get_rank(), dist.get_world_size())
    assert_same_model(model, single)


def step_in_the_interpreter():
    """The GPU's kernels on shards."""
    from adaterm.engines.gpu import engine as gpu

    gpu.interpreted = True
    patch_once()
    try:
        follow("fsdp", "fused", ["AdaTerm", "At-Adam", "RobustAdamW, usual norm"], torch.float64, steps=4)
    finally:
        gpu.interpreted = False


def give_gradients_of_other_placements(rule):
    """Gradients that are sums yet to be made, or whole, are what a single process sees."""
    from torch.distributed.tensor import Partial

    mesh, world = mesh_of("fsdp"), dist.get_world_size()
    params = parameters([(7, 5), (3,)], torch.float64)
    shards = [shard.requires_grad_() for shard in spread(params, mesh, "fsdp")]
    tested, right = make(rule, shards), make(rule, params, foreach=False)
    for step in range(13 if rule in JUDGING else 4):
        give_gradients(params, step)
        for shard, parameter, placement in zip(shards, params, (Partial(), Replicate()), strict=True):
            share = parameter.grad / world if placement == Partial() else parameter.grad
            # such a gradient does not come from autograd: it gives gradients the parameters' placements
            shard.grad = DTensor.from_local(share.clone(), mesh, [placement])
        tested.step()
        right.step()
    assert_follows(tested, shards, right, params, 1e-12, "other placements")


def shards_of(*shapes):
    mesh = mesh_of("fsdp")
    return [shard.requires_grad_() for shard in spread(parameters(shapes), mesh, "fsdp")]


def give_ones(*params):
    for parameter in params:
        parameter.grad = torch.ones_like(parameter)


def survive_awkward_steps(rule):
    """Groups without gradients, skipped steps, and errors, after which the next step is as good as any."""
    import pytest

    for flags in ({}, {"fused": True}, {"foreach": True}, {"foreach": False}):
        a, b = shards_of((4, 3), (4,))
        tested = make(rule, [{"params": [a]}, {"params": [b]}], **flags)
        give_ones(a)
        tested.step()
        tested.grad_scale, tested.found_inf = torch.tensor(1.0), torch.tensor(1.0)
        tested.step()
        assert tested.state[a]["step"] == 1
    a, b = shards_of((4, 3), (4,))
    tested = make(rule, [a, b])
    a.grad = torch.ones(4, 3)  # not the parameter's kind: torch lets it
    with pytest.raises(RuntimeError, match="plain tensor"):
        tested.step()
    assert not tested.state
    a.grad = None
    give_ones(b)
    tested.step()
    assert tested.state[b]["step"] == 1
    version = b._version
    give_ones(b)
    tested.step()
    assert b._version > version  # autograd must know that it changed
    beside = torch.zeros(3, requires_grad=True)
    tested.add_param_group({"params": [beside], "differentiable": True})
    give_ones(b, beside)
    with pytest.raises(RuntimeError, match="differentiable"):
        tested.step()


def remember_nothing_that_ranks_share():
    """A plain tensor that moves on one rank only must not keep that rank from the exchange, or the others in it."""
    (a,), b = shards_of((4,)), torch.ones(5, requires_grad=True)
    tested = adaterm.AdaTerm([a, b], fused=True)
    for step in range(4):
        give_ones(b)
        if step == 2 and dist.get_rank() == 1:
            b.data = b.data.clone()
        tested.step()
    a.grad = part_of(torch.tensor([1.0, 2.0, 3.0, 4.0]), a.device_mesh, a.placements)
    tested.step()
    assert_same_everywhere(tested.statistics()[a].distance, "distance")
    assert_close(tested.statistics()[a].distance, torch.tensor(7.5e10), 1e-6)


def meet_without_gradients(rule):
    """A rank that has no gradients in a step meets the others, with a message as long as theirs."""
    (a,) = shards_of((4,))
    tested = make(rule, [a])
    for step in range(3):
        a.grad = None
        if step != 1 or dist.get_rank() == 0:
            give_ones(a)
        tested.step()
    assert tested.state[a]["step"] == (3 if dist.get_rank() == 0 else 2)


def skip_together(rule):
    """GradScaler finds infinity on one rank alone, in a sharded gradient behind a replicated one: all ranks skip."""
    mesh = mesh_of("fsdp")
    replicated = DTensor.from_local(torch.ones(3), mesh, [Replicate()]).requires_grad_()
    (sharded,) = shards_of((4, 3))
    for flags in ({}, {"fused": True}, {"foreach": True}, {"foreach": False}):
        tested = make(rule, [replicated, sharded], **flags)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        scaler.scale(torch.ones(()))
        for poison, steps in ((1.0, 1), (float("inf"), 1), (1.0, 2)):
            replicated.grad = DTensor.from_local(torch.ones(3), mesh, [Replicate()])
            mine = torch.ones_like(sharded.to_local().detach()) * (poison if dist.get_rank() == 1 else 1.0)
            sharded.grad = DTensor.from_local(
                mine, mesh, sharded.placements, shape=sharded.shape, stride=sharded.stride()
            )
            before = list_state(tested)
            scaler.step(tested)
            scaler.update(8.0)
            if poison != 1.0:  # nothing changes, and nothing is remembered
                assert all(torch.equal(a, b) for a, b in zip(list_state(tested), before, strict=True))
            assert all(tested.state[p]["step"] == steps for p in (replicated, sharded)), (flags, poison)


def list_state(optimizer):
    """Copies of this rank's part of the state."""
    values = [value for entry in optimizer.state.values() for value in entry.values()]
    return [(value.to_local() if isinstance(value, DTensor) else value).clone() for value in values]


def compile_with_shards(rule):
    """One graph for a step on DTensors."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    ends = []
    for compiled in (False, True):
        params = parameters([(8, 5), (4,)])  # torch.compile loses changes of 0-dim float64 tensors on a CPU
        shards = [shard.requires_grad_() for shard in spread(params, mesh_of("fsdp"), "fsdp")]
        tested = make(rule, shards, lr=torch.tensor(0.01), capturable=True, foreach=False)
        step = torch.compile(tested.step, fullgraph=True, backend="aot_eager") if compiled else tested.step
        for count in range(13 if rule in JUDGING else 3):
            give_gradients(params, count)
            for shard, gradient in zip(shards, spread([p.grad for p in params], mesh_of("fsdp"), "fsdp"), strict=True):
                shard.grad = gradient
            step()
        ends.append([whole(shard) for shard in shards])
    assert counters["stats"]["unique_graphs"] == 1
    for a, b in zip(*ends, strict=True):
        assert_close(a, b, 1e-6)


def load_plain_state(rule):
    """The state of a single process can be loaded as it is, and what does not fit says what to do, on every rank."""
    import pytest

    params = parameters([(7, 5), (3,)], torch.float64)
    right = make(rule, params)
    train(right, params, 12)
    mesh = mesh_of("fsdp")
    shards = [shard.requires_grad_() for shard in spread(params, mesh, "fsdp")]
    tested = make(rule, shards)
    tested.load_state_dict(deepcopy(right.state_dict()))
    give_gradients(params, 12)
    for shard, gradient in zip(shards, spread([p.grad for p in params], mesh, "fsdp"), strict=True):
        shard.grad = gradient
    right.step()
    tested.step()
    assert_follows(tested, shards, right, params, 1e-12, "loaded")
    others = shards_of((7, 5), (4,))
    with pytest.raises(ValueError, match="set_optimizer_state_dict"):
        make(rule, others).load_state_dict(right.state_dict())


def round_parts_differently(rule):
    """Parts of a bfloat16 tensor draw noise of their own, and replicas the same."""
    for layout, same in (("fsdp", False), ("hsdp", True)):
        mesh = mesh_of(layout) if layout == "fsdp" else init_device_mesh("cpu", (2, 1), mesh_dim_names=("r", "s"))
        parameter = part_of(torch.ones(1000, 4, dtype=torch.bfloat16), mesh, LAYOUTS[layout][2](torch.ones(2, 2), 0))
        parameter.requires_grad_()
        tested = make(rule, [parameter], lr=1e-4, stochastic_rounding=True)
        for _ in range(5):
            give_ones(parameter)
            tested.step()
        mine = parameter.detach().to_local().float()
        found = [torch.empty_like(mine) for _ in range(2)]
        dist.all_gather(found, mine)
        assert torch.equal(*found) is same


def monitor_shards(rule):
    """Every rank remembers what a process alone does, and marks of all ranks can be brought together."""
    single = Network()
    alone = make(rule, single.parameters(), lr=1e-2)
    wanted = adaterm.Monitor(alone, single)
    train_model(single, alone, range(20))
    model, part, parts = sharded_model("fsdp")
    tested = make(rule, model.parameters(), lr=1e-2)
    monitor = adaterm.Monitor(tested, model)
    for step in range(20):
        monitor.mark([2 * step + dist.get_rank()])
        train_model(model, tested, range(step, step + 1), part, parts)
    rows, known = monitor._ring.read(100), wanted._ring.read(100)
    assert torch.equal(rows.steps, known.steps)
    for table, whole_table in ((rows.tensors, known.tensors), (rows.batches, known.batches)):
        assert_close(table.nan_to_num(), whole_table.nan_to_num(), 1e-5)
    assert list(monitor.layers()) == list(wanted.layers())
    for _ in range(2):  # the second time there is nothing new
        monitor.gather_marks()
    assert {batch.step: batch.mark for batch in monitor.aberrant(20)} == {
        batch.step: [2 * batch.step - 2, 2 * batch.step - 1] for batch in wanted.aberrant(20)
    }


def learn_judged(wrap, steps):
    """Where a small network ends, of whose losses one is far."""
    torch.manual_seed(0)
    model = wrap(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)))
    optimizer, judge = torch.optim.SGD(model.parameters(), lr=0.1), adaterm.LossJudge(window=10)
    for step in steps:
        inputs = torch.randn(
            8, 4, generator=torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
        )
        loss = (model(inputs) - (100.0 if step == 12 else 1.0)).square().mean() + 1.0
        if judge.accepts(loss):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        else:
            assert step == 12
    return [whole(parameter).detach().clone() for parameter in model.parameters()]


def judge_losses():
    """Every rank has a loss of its own, and all get the answer that their mean gets; without a number all refuse."""
    rank, world = dist.get_rank(), dist.get_world_size()
    first = dist.new_group([0])
    judge, alone = adaterm.LossJudge(window=10), adaterm.LossJudge(window=10, process_group=first)
    answers, wanted = [], []
    for step in range(24):
        loss = (5.0 if step % 5 == 4 else 1.0) + 0.1 * rank
        answers.append(judge.accepts(torch.tensor(torch.nan if (step, rank) == (17, 1) else loss)))
        if rank == 0:
            mean = loss + 0.1 * (world - 1) / 2
            wanted.append(alone.accepts(torch.nan if step == 17 else mean))
    assert not any(answers[step] for step in (14, 17, 19))
    assert rank or answers == wanted
    mesh = init_device_mesh("cpu", (world,))
    part = DTensor.from_local(torch.tensor([20.0 if rank else 0.0]), mesh, [Partial()])  # whose sum is far
    assert not judge.accepts(part)
    for wrap in (DistributedDataParallel, fully_shard):  # a batch without backward leaves no trace
        ends = [learn_judged(wrap, steps) for steps in (range(16), [step for step in range(16) if step != 12])]
        assert all(map(torch.equal, *ends))
    if rank:
        with pytest.raises(RuntimeError, match="this rank is not in the LossJudge's process_group"):
            alone.accepts(1.0)


def judge_shards():
    """A judge of shards says what one of whole tensors says, on all ranks, and moves none of them."""
    tensors = parameters(SHAPES)
    shards = [part.requires_grad_() for part in spread(tensors, mesh_of("fsdp"), "fsdp")]
    before = [whole(part).detach().clone() for part in shards]
    alone, judge = adaterm.BatchJudge(tensors, window=10), adaterm.BatchJudge(shards, window=10)
    answers = []
    for step in range(24):  # every fifth has far larger gradients
        give_gradients(tensors, step)
        for part, gradient in zip(shards, [tensor.grad for tensor in tensors], strict=True):
            part.grad = part_of(gradient, part.device_mesh, part.placements)
        if step == 17:  # of one tensor, on one rank
            tensors[0].grad[-1] = torch.nan
            if dist.get_rank() == 1:
                shards[0].grad.to_local()[-1] = torch.nan
        answers.append((alone.accepts(), judge.accepts()))
        assert_close(judge.batch_statistics().level.nan_to_num(), alone.batch_statistics().level.nan_to_num(), 1e-5)
    assert len({accepted for accepted, _ in answers}) == 2
    assert answers[17] == (False, False)
    assert all(mine == other for mine, other in answers)
    assert all(torch.equal(whole(part), old) for part, old in zip(shards, before, strict=True))

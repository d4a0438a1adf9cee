"""Parameters that ranks share follow a single process, on every mesh, with every engine; real processes, over gloo."""

import json
import sys
from math import inf
from pathlib import Path
from types import ModuleType

import pytest
import torch
from catalogue import ENGINES, JUDGING, SEPARATE, give_gradients
from on_ranks import (
    LAYOUTS,
    ask_for_state_first,
    compile_with_shards,
    follow,
    give_gradients_of_other_placements,
    judge_losses,
    judge_shards,
    load_plain_state,
    meet_without_gradients,
    refuse_flat_parameters,
    remember_nothing_that_ranks_share,
    replicate,
    round_parts_differently,
    share_state,
    skip_together,
    state_on_disk,
    step_in_the_interpreter,
    survive_awkward_steps,
    train_as_torch_shards,
)

import adaterm
from adaterm.engines.gpu import engine as gpu

either = pytest.mark.parametrize("rule", ["AdaTerm (gradient init)", "RobustAdamW, usual norm"])
FEW = ["AdaTerm", "AdaTerm2", "At-Adam", "t-AdaBelief", "AdaTerm + L2 decay", "AdaTerm (gradient init)"]
"""Rules that between them go through every stage; the fused engines compile each."""
FEW_JUDGING = ["RobustAdamW, soon judging", "RobustAdamW, usual norm"]
"""The same for rules that judge batches, which takes more steps."""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("engine", ENGINES)
def test_four_ranks_follow_one_process(ranks, layout, engine):
    ranks.run(4, follow, layout, engine, FEW, torch.float64)
    if engine == "fused":
        ranks.run(4, follow, layout, engine, FEW_JUDGING, torch.float64, 14)


@pytest.mark.parametrize("engine", ["reference", "foreach"])
def test_every_rule_follows_one_process(ranks, engine):
    ranks.run(2, follow, "fsdp", engine, sorted(set(SEPARATE) - set(FEW)), torch.float64)
    if engine == "foreach":
        ranks.run(2, follow, "fsdp", engine, sorted(set(JUDGING) - set(FEW_JUDGING)), torch.float64, 13)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("layout", ["fsdp", "tensor parallel"])
def test_two_ranks_follow_one_process_in_single_precision(ranks, layout, engine):
    ranks.run(2, follow, layout, engine, FEW, torch.float32)
    if engine == "fused":
        ranks.run(2, follow, layout, engine, FEW_JUDGING[1:], torch.float32, 14)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_gradient_that_is_nan_on_one_rank_is_excluded_on_all(ranks, engine):
    ranks.run(4, follow, "fsdp", engine, ["AdaTerm", "At-Adam"], torch.float64, 8, 3)
    ranks.run(4, follow, "fsdp", engine, FEW_JUDGING[:1], torch.float64, 15, 13)


@pytest.mark.skipif(not gpu.available, reason="the GPU's engine is off: it needs Triton 3.6 or newer")
def test_kernels_for_gpus(ranks):
    ranks.run(2, step_in_the_interpreter)


@pytest.mark.parametrize("kind", ["fsdp", "hsdp", "tensor parallel", "fsdp and tensor parallel"])
@pytest.mark.parametrize("engine", ENGINES)
def test_models_that_torch_shards(ranks, kind, engine):
    rules = ["AdaTerm", "RobustAdamW, usual norm"] if engine == "fused" or kind == "fsdp" else ["AdaTerm"]
    for rule in rules:
        ranks.run(4, train_as_torch_shards, rule, kind, engine)


@pytest.mark.parametrize("rule", ["AdaTerm", "Gradient init + AdaBias", "RobustAdamW, usual norm"])
def test_a_checkpoint_of_four_ranks_goes_on_with_two_and_with_one(ranks, tmp_path, rule):
    ranks.run(4, state_on_disk, str(tmp_path), "fsdp and tensor parallel", 0, 4, rule, False)
    ranks.run(2, state_on_disk, str(tmp_path), "fsdp", 4, 8, rule, True)
    ranks.run(1, state_on_disk, str(tmp_path), "", 8, 12, rule, True)
    ranks.run(4, state_on_disk, str(tmp_path), "hsdp", 12, 16, rule, True)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("AdaTerm", {}),
        ("AdaTerm", {"init_scale": "gradient", "weight_decay": 0.1}),
        ("AtAdam", {"weight_decay": 0.1}),
        ("AdaBelief", {"weight_decay": 0.1}),
        ("RobustAdamW", {"max_norm": "auto", "window": 10}),
    ],
    ids=str,
)
def test_asking_for_the_state_before_the_first_step_does_no_harm(ranks, name, options):
    ranks.run(2, ask_for_state_first, name, options)


@pytest.mark.parametrize(
    "what",
    [
        survive_awkward_steps,
        meet_without_gradients,
        load_plain_state,
        round_parts_differently,
        skip_together,
        give_gradients_of_other_placements,
    ],
)
@either
def test_awkward_use(ranks, rule, what):
    ranks.run(2, what, rule)


def test_ranks_judge_alike(ranks):
    """Else one would wait for another that steps alone."""
    ranks.run(2, judge_shards)


def test_ranks_judge_losses_alike(ranks):
    ranks.run(2, judge_losses)


def test_what_one_rank_does_alone(ranks):
    ranks.run(2, remember_nothing_that_ranks_share)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rule", ["AdaTerm", "AdaTerm (gradient init)", "RobustAdamW, usual norm"])
def test_a_step_on_shards_is_one_graph(ranks, rule):
    ranks.run(2, compile_with_shards, rule)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("rule", ["AdaTerm", "RobustAdamW, usual norm"])
def test_replicas_stay_the_same_to_the_bit(ranks, rule, engine):
    ranks.run(2, replicate, rule, engine)


@pytest.mark.parametrize("bucket_view", [False, True])
@pytest.mark.parametrize(
    ("name", "options"),
    [("AdaTerm", {}), ("RobustAdamW", {"window": 10, "threshold": inf})],  # ranks with other tensors judge by others
)
def test_zero_redundancy_optimizer(ranks, bucket_view, name, options):
    ranks.run(2, share_state, bucket_view, name, options)


@either
def test_flat_parameters_are_refused(ranks, rule):
    ranks.run(2, refuse_flat_parameters, rule)


def test_partitions_of_deepspeed_are_refused(monkeypatch):
    """Its ZeRO puts one flat tensor in the place of a group's parameters; other ones are the user's business."""
    params = [torch.zeros(3, 2, requires_grad=True), torch.zeros(2, requires_grad=True)]
    optimizer = adaterm.AdaTerm(params)
    optimizer.param_groups[0]["params"] = [torch.zeros(8, requires_grad=True)]
    give_gradients(optimizer.param_groups[0]["params"], 0)
    optimizer.step()
    monkeypatch.setitem(sys.modules, "deepspeed", ModuleType("deepspeed"))
    optimizer.param_groups[0]["params"][0].grad *= 2
    with pytest.raises(RuntimeError, match="ZeRO stage 0"):
        adaterm.AdaTerm.step(_fresh(optimizer))
    give_gradients(params, 0)
    adaterm.AdaTerm(params).step()


def _fresh(optimizer):
    """The same optimizer, with no step remembered."""
    optimizer.load_state_dict(optimizer.state_dict())
    return optimizer


def test_the_docs_have_the_counted_numbers():
    root = Path(__file__).parents[1]
    page = (root / "docs/distributed.md").read_text()
    for ranks, row in json.loads((root / "results/exchange/exchange.json").read_text())["ranks"].items():
        robust, plain, exchange = row["RobustAdamW"], row["AdaTerm"], row["exchange, microseconds"]
        assert robust["collectives"] == plain["collectives"]
        traffic, share = row["traffic of FSDP, milliseconds"], row["share"] * 100
        numbers = f"{robust['collectives']} | {robust['bytes']:,} | {plain['bytes']:,} | {exchange:.0f} µs"
        assert f"<!-- {ranks} -->{numbers} | {traffic:,.0f} ms | {share:.4f} %<!-- -->" in page
        more = [count["bytes with GradScaler"] - count["bytes"] for count in (robust, plain)]
        assert f"<!-- scaler -->{more[0]} bytes to RobustAdamW's message and {more[1]} to AdaTerm's<!-- -->" in page

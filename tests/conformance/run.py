"""Run PyTorch's own optimizer tests on our optimizers.

The tests are not in torch's wheel. Set TORCH_TEST_SOURCES to the `test` folder of a checkout of PyTorch, at the tag of
the installed release, then run `make conformance`. Tests run in as many processes as --jobs says; --without leaves out
those whose name holds a word, such as those of 64 GB, and --only runs no others; --out names a file for the outcome.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import unittest
from math import inf
from pathlib import Path

import torch
from torch.testing._internal import common_optimizers
from torch.testing._internal.common_methods_invocations import DecorateInfo
from torch.testing._internal.common_optimizers import (
    ErrorOptimizerInput,
    OptimizerInfo,
    OptimizerInput,
    get_error_inputs_for_all_optims,
)

import adaterm
from adaterm.engines.cpu import engine as cpu

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from provenance import provenance

VARIABLE = "TORCH_TEST_SOURCES"

SKIPS = {
    "test_complex_2d": "one complex tensor is one t-distribution; its real and imaginary parts as two tensors are two",
    "test_defaults_changed_to_foreach": "patches a function per optimizer; our one engine serves all of them",
}
"""Every test that does not apply, and why."""

DECAYS = {
    "test_step_is_noop_for_zero_grads": "decay moves parameters: the test knows AdamW, whose default has it, by name"
}
"""What does not apply where weight decay is on by default."""

DEVICES = "CPU and GPU round half-precision gradients differently, and our state is float32, so that it shows"
"""Why `test_fused_cpu_matches_cuda` does not apply in half precision; Adam's state is as coarse as its parameters."""

PROGRESS = (
    "test_forloop_goes_right_direction",
    "test_param_groups_lr",
    "test_param_groups_weight_decay",
    "test_param_group_with_lrscheduler_goes_right_direction",
)
"""The tests that AdaTerm's slow start cannot pass."""


class AdaTermFromGradient(adaterm.AdaTerm):
    """AdaTerm without its slow start, for the tests that want progress within 20 steps, one of them without options."""

    def __init__(self, *args, init_scale="gradient", **kwargs):
        super().__init__(*args, init_scale=init_scale, **kwargs)


COMMON = {
    "default": {},
    "non-default lr": {"lr": 0.01},
    "weight decay": {"weight_decay": 0.1},
    "maximize": {"weight_decay": 0.1, "maximize": True},
}
DECOUPLED = {"decoupled weight decay": {"weight_decay": 0.1, "decoupled_weight_decay": True}}
VARIANTS = {
    "no adaptiveness": {"adaptive_dof": False},
    "no robustness": {"min_dof": inf},
    "large init": {"init_dof": 100.0},
    "uncentered": {"uncentered": True},
    "adaptive bias correction": {"adaptive_bias_correction": True},
    "analytic scale": {"scale_update": "analytic"},
}
T_VARIANTS = {"as published": {"as_published": True}, "large dof": {"dof": 10.0}}
ROBUST_VARIANTS = {
    "no batch excluded": {"threshold": inf},
    "no weights": {"dof": inf},
    "clipped": {"max_norm": 1.0},
    "clipped at the usual norm": {"max_norm": "auto"},
}
BAD_T = {"betas": (1.0, 0.999), "eps": -1.0, "weight_decay": -0.1, "lr": -0.1}
BAD = {"beta": 1.0, "min_dof": 0.0, "scale_update": "exact", **{k: v for k, v in BAD_T.items() if k != "betas"}}
BAD_ROBUST = {
    "dof": 0.0,
    "window": 9,
    "threshold": 0.0,
    "minority": 1.1,
    "max_norm": "median",
    "amsgrad": True,
    **BAD_T,
}


def info(optimizer, variants, bad, skips=SKIPS):
    def inputs(device, dtype=None):
        found = COMMON | variants
        if torch.device(device).type == "cuda":
            found = found | {
                "capturable": {"capturable": True},
                "capturable, weight decay": {"capturable": True, "weight_decay": 0.1},
                "capturable, tensor lr": {"capturable": True, "lr": torch.tensor(0.001)},
            }
        return [OptimizerInput(None, dict(kwargs), desc=name) for name, kwargs in found.items()]

    def errors(device, dtype):
        wrong = [OptimizerInput(params=None, kwargs={name: value}, desc=name) for name, value in bad.items()]
        own = [ErrorOptimizerInput(w, error_type=ValueError, error_regex=f"{w.desc}=.*must be") for w in wrong]
        return get_error_inputs_for_all_optims(device, dtype) + own

    return OptimizerInfo(
        optimizer,
        optim_inputs_func=inputs,
        optim_error_inputs_func=errors,
        supported_impls=("foreach", "differentiable", "fused"),
        supports_fused_on=("cuda", "cpu") if cpu.is_available() else ("cuda",),
        has_capturable_arg=True,
        skips=(
            *(DecorateInfo(unittest.skip(why), "TestOptimRenewed", name) for name, why in skips.items()),
            DecorateInfo(
                unittest.skip(DEVICES),
                "TestOptimRenewed",
                "test_fused_cpu_matches_cuda",
                dtypes=(torch.bfloat16, torch.float16),
            ),
        ),
    )


INFOS = [
    info(adaterm.AdaTerm, DECOUPLED | VARIANTS, BAD, SKIPS | dict.fromkeys(PROGRESS, "done with AdaTermFromGradient")),
    info(AdaTermFromGradient, DECOUPLED | VARIANTS, BAD),
    info(adaterm.TAdam, DECOUPLED | T_VARIANTS, BAD_T),
    info(adaterm.AtAdam, DECOUPLED | T_VARIANTS, BAD_T),
    info(adaterm.TAdaBelief, DECOUPLED | T_VARIANTS, BAD_T),
    info(adaterm.AtAdaBelief, DECOUPLED | T_VARIANTS, BAD_T),
    info(adaterm.AdaBelief, DECOUPLED, BAD_T),
    info(adaterm.RobustAdamW, ROBUST_VARIANTS, BAD_ROBUST, SKIPS | DECAYS),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--without", nargs="*", default=[], metavar="WORD")
    parser.add_argument("--only", nargs="*", default=[""], metavar="WORD")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--part", type=int, help="run this one of the jobs only")
    args = parser.parse_args()
    folder = os.environ.get(VARIABLE)
    if not folder or not (Path(folder) / "test_optim.py").is_file():
        found = f"{VARIABLE} is {folder!r}, which has no test_optim.py" if folder else f"{VARIABLE} is not set"
        sys.exit(f"{found}: it must be the `test` folder of a checkout of PyTorch, at the tag of {torch.__version__}")
    if args.jobs > 1 and args.part is None:
        outcome = divided(args.jobs, args.without, args.only)
    else:
        outcome = run(folder, args.jobs, args.part or 0, args.without, args.only)
    if args.out:
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({**outcome, **provenance(device)}, indent=1) + "\n")
    sys.exit(bool(outcome["failed"]))


def run(folder, jobs, part, without, only):
    """Every test of which it is this part's turn."""
    sys.path.insert(0, folder)
    common_optimizers.optim_db[:] = INFOS
    import test_optim  # reads the list while it is imported

    cases = [getattr(test_optim, name) for name in dir(test_optim) if name.startswith("TestOptimRenewed")]
    tests = [test for case in cases for test in unittest.defaultTestLoader.loadTestsFromTestCase(case)]
    tests = [test for test in tests if not any(word in test.id() for word in without)]
    tests = [test for test in tests if any(word in test.id() for word in only)]
    large = [test for test in tests if "large_tensor" in test.id()]
    if jobs > 1:
        tests = large if part == jobs else [test for test in tests if test not in large][part::jobs]
    result = unittest.TextTestRunner(verbosity=1).run(unittest.TestSuite(tests))
    return {
        "run": result.testsRun,
        "skipped": len(result.skipped),
        "failed": [case.id() for case, _ in result.failures + result.errors],
        "left out": without,
        **({"only": only} if only != [""] else {}),
        "reasons to skip": sorted({reason for _, reason in result.skipped}),
    }


def divided(jobs, without, only):
    """The outcome of all parts, each in a process of its own; the last, which needs the memory, after the others."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"{part}.json" for part in range(jobs + 1)]
        base = [sys.executable, __file__, "--jobs", str(jobs), "--without", *without, "--only", *only]
        commands = [[*base, "--part", str(part), "--out", str(file)] for part, file in enumerate(files)]
        for process in [subprocess.Popen(command) for command in commands[:-1]]:
            process.wait()
        subprocess.run(commands[-1], check=False)
        missing = [f"part {part} of {jobs}" for part, file in enumerate(files) if not file.exists()]  # it died
        found = [json.loads(file.read_text()) for file in files if file.exists()]
    return {
        "run": sum(each["run"] for each in found),
        "skipped": sum(each["skipped"] for each in found),
        "failed": sum((each["failed"] for each in found), missing),
        "left out": without,
        **({"only": only} if only != [""] else {}),
        "reasons to skip": sorted({reason for each in found for reason in each["reasons to skip"]}),
    }


if __name__ == "__main__":
    main()

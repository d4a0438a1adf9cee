"""`python -m adaterm_bench.datasets.hexapod`: make the data set."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from adaterm_bench.datasets.hexapod.dataset import COUNTS, DESCRIPTION, FILE, generate, save
from adaterm_bench.datasets.hexapod.simulation import MissingError
from adaterm_bench.datasets.hexapod.walking import summarise


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 if the data set is there, 1 if it cannot be written, 2 if MuJoCo is missing."""
    parser = argparse.ArgumentParser(
        "python -m adaterm_bench.datasets.hexapod", description="Simulate walks of a hexapod."
    )
    parser.add_argument("--seed", type=int, default=0, help="decides every number (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help=f"for {FILE} and {DESCRIPTION}")
    parser.add_argument(
        "--flat", action="store_true", help="flat ground, and walks that are easy to predict: as version 1 had them"
    )
    arguments = parser.parse_args(argv)
    if arguments.seed < 0:
        parser.error(f"--seed must be 0 or more, not {arguments.seed}")
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)  # before the work, not after it
        dataset = generate(arguments.seed, COUNTS, _show, arguments.flat)
        save(dataset, arguments.out, arguments.seed, arguments.flat)
    except MissingError as error:
        print(f"hexapod: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"hexapod: Cannot write {error.filename or arguments.out}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    walked = summarise(dataset.train)
    print(
        f"{arguments.out / FILE}: {(arguments.out / FILE).stat().st_size / 1e6:.1f} MB. "
        f"Speed {walked['speed']['min']:.2f} to {walked['speed']['max']:.2f} m/s, "
        f"tilt up to {walked['tilt']['max']:.3f} rad, "
        f"servos off by {walked['tracking_error']['mean']:.3f} rad (root mean square)."
    )
    return 0


def _show(done: int) -> None:
    """A bar in a terminal, and elsewhere a line now and then."""
    total = sum(COUNTS)
    if sys.stderr.isatty():
        bar = "█" * (30 * done // total)
        print(f"\r{bar:30} {done}/{total} trajectories", end="\n" if done == total else "", file=sys.stderr, flush=True)
    elif done % 50 == 0 or done == total:
        print(f"{done}/{total} trajectories", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

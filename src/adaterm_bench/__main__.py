"""`python -m adaterm_bench`."""

import sys

from adaterm_bench.cli import main

if __name__ == "__main__":  # not in the workers, which import this
    sys.exit(main())

"""What the report shows of the classification."""

from adaterm_bench.report import Section
from adaterm_bench.trial import Result


def section(results: list[Result]) -> Section:
    """Stub."""
    return Section("Classification", "")

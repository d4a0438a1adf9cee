"""Where a benchmark's result comes from, as `adaterm_bench` records it; ADATERM_COMMIT names the commit of a copy."""

from adaterm_bench.core.provenance import describe_run as provenance

__all__ = ["provenance"]

"""Write the table of docs/jax.md, from what benchmarks/jax_step_time.py found on a GPU.

python benchmarks/jax_table.py
"""

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE, RECORD = ROOT / "docs/jax.md", ROOT / "results/jax_step_time/cuda.json"
BASE = "clip_by_global_norm + adamw"
"""What all methods are compared with."""
BEGIN, END = "<!-- speed -->\n", "<!-- end of speed -->"
NOTHING = "No table of a GPU is stored yet.\n"


def make_table(cases: dict[str, Any]) -> str:
    """A row for each case: milliseconds of the rival, and of all others their time and memory in the rival's."""
    names = [name for name in dict.fromkeys(name for case in cases.values() for name in case["ratios"]) if name != BASE]
    heads = ["shapes", "tensors", "elements", f"`{BASE}`", *(f"`{name}`" for name in names)]
    lines = [heads, ["---"] * len(heads)]
    for title, case in cases.items():
        found = [
            f"{case['ratios'][name]:.2f}; {case['memory ratios'][name]:.3f}" if name in case["ratios"] else ""
            for name in names
        ]
        size = f"{case['elements'] / 1e6:,.1f} M"
        lines.append([title, f"{case['tensors']}", size, f"{case['times'][BASE]:.3f} ms", *found])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def fill_page(page: str, record: dict[str, Any] | None) -> str:
    """The page with the table of a record, or without one."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    words = NOTHING
    if record:
        words = (
            f"On an {record['device']}, [measured](../results/jax_step_time/cuda.json): the time of Optax's step,\n"
            "and then time and memory of the others in Optax's. Cases with bf16 have bfloat16 parameters.\n\n"
            f"{make_table(record['cases'])}"
        )
    return before + BEGIN + words + END + after


def read_record() -> dict[str, Any] | None:
    return json.loads(RECORD.read_text()) if RECORD.exists() else None


if __name__ == "__main__":
    PAGE.write_text(fill_page(PAGE.read_text(), read_record()))

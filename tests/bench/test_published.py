"""The paper's numbers are the paper's."""

import json
from pathlib import Path

import pytest

from adaterm_bench.reporting.published import PUBLISHED

TABLES = Path(__file__).parents[3] / "shared" / "paper" / "tables.json"


@pytest.mark.skipif(not TABLES.is_file(), reason="the paper's tables are not here")
def test_every_number_is_that_of_the_tables():
    tables = json.loads(TABLES.read_text())
    found = {
        (column, method, value["mean"], value["std"])
        for name in ("table_experiments", "table_ablation", "table_variants")
        for method, row in tables[name].items()
        for column, value in row.items()
    }
    assert found == {(column, method, *it) for column, row in PUBLISHED.items() for method, it in row.items()}

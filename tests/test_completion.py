"""An editor shows the options and documentation of the public classes, although they are imported when first used."""

import inspect
from pathlib import Path

import pytest

import adaterm

jedi = pytest.importorskip("jedi", reason="jedi is not installed: pip install 'adaterm[dev]'")
SOURCES = Path(adaterm.__file__).parents[1]
CLASSES = [name for name in adaterm.__all__ if not hasattr(getattr(adaterm, name), "_fields")]


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("text", ["from adaterm import {0}\n{0}(", "import adaterm\nadaterm.{0}("])
def test_an_editor_shows_options_and_documentation(name, text):
    project = jedi.Project(SOURCES, added_sys_path=[str(SOURCES)])
    (shown,) = jedi.Script(text.format(name), project=project).get_signatures()
    described = getattr(adaterm, name)
    wanted = [
        each.name for each in inspect.signature(described).parameters.values() if each.kind is not each.VAR_KEYWORD
    ]
    names = [parameter.name for parameter in shown.params]
    assert names[: len(wanted)] == wanted
    assert shown.docstring(raw=True) == inspect.getdoc(described)
    if name in ("AdaTerm", "BatchJudge", "LossJudge", "RobustAdamW"):
        assert all(f"{option}: " in shown.docstring(raw=True) for option in wanted if option != "amsgrad")
    else:
        assert name == "Monitor" or {"fused", "maximize", "stochastic_rounding"} <= set(names)


def test_an_editor_completes_the_public_names():
    project = jedi.Project(SOURCES, added_sys_path=[str(SOURCES)])
    completed = {each.name for each in jedi.Script("import adaterm\nadaterm.", project=project).complete()}
    assert set(adaterm.__all__) <= completed
    assert not {"Any", "TYPE_CHECKING", "find_spec", "import_module"} & completed

"""The text of a family's equations: what changes with them, and with nothing else."""

import ast
import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from adaterm import equations
from adaterm.optimizer import RobustOptimizer
from adaterm.torch_primitives import PRIMITIVES


def hash_equations(optimizer: torch.optim.Optimizer) -> str:
    """Changes with the equations, the class and the defaults of an optimizer of ours."""
    assert isinstance(optimizer, RobustOptimizer)
    return hash_method(optimizer.rule_of().family, type(optimizer).__name__, optimizer.defaults)


def hash_method(family: str, name: str, defaults: Mapping[str, Any]) -> str:
    """The same of anything that has a family's equations, a name and defaults."""
    content = f"{write_equations(family)} {name} {sorted(defaults.items())}"
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def write_function(function: Callable[..., Any]) -> str:
    """The text of a function without its words."""
    return ast.unparse(next(_list_definitions(textwrap.dedent(inspect.getsource(function))))[1])


@cache
def write_equations(family: str) -> str:
    """All equations and constants that a family needs, in one order; words, imports and files change nothing here."""
    sources = sorted(Path(str(equations.__file__)).parent.glob("*.py"))
    definitions = dict(pair for source in sources for pair in _list_definitions(source.read_text()))
    needed: dict[str, ast.stmt] = {}
    waiting = [name for name in definitions if name.startswith(f"{family}_")]
    while waiting:
        name = waiting.pop()
        if name in definitions and name not in needed:
            needed[name] = definitions[name]
            waiting += [node.id for node in ast.walk(needed[name]) if isinstance(node, ast.Name)]
    return "\n".join(ast.unparse(needed[name]) for name in sorted(needed))


def _list_definitions(source: str) -> Iterator[tuple[str, ast.stmt]]:
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            yield statement.targets[0].id, statement
        elif isinstance(statement, ast.FunctionDef) and statement.name not in PRIMITIVES:  # libraries bring those
            statement.body = statement.body[1:] if ast.get_docstring(statement) else statement.body
            statement.returns = None
            for argument in statement.args.args:
                argument.annotation = None
            yield statement.name, statement

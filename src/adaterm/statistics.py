"""What a step made of every gradient, by parameter."""

from collections.abc import Iterator, Mapping
from functools import cached_property

from torch import Tensor

from adaterm.equations import Statistics


class ParameterStatistics(Mapping[Tensor, Statistics]):
    """The statistics of parameters, as tensors on their devices; those of one are cut out when they are asked for."""

    def __init__(self, blocks: list[tuple[list[Tensor], Tensor]]) -> None:
        self._blocks = blocks

    @cached_property
    def _places(self) -> dict[Tensor, tuple[Tensor, int]]:
        return {parameter: (table, column) for params, table in self._blocks for column, parameter in enumerate(params)}

    def __getitem__(self, parameter: Tensor) -> Statistics:
        table, column = self._places[parameter]
        return Statistics(*table[:, column].unbind())

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __repr__(self) -> str:
        shapes = [str(tuple(parameter.shape)) for parameter in self]
        shown = ", ".join(shapes[:4] + ["..."] * (len(shapes) > 4))
        return f"{type(self).__name__}({len(shapes)} parameters of shapes [{shown}])"

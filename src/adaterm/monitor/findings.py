"""Answers to questions about a history: which batches, which samples, which tensors."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from adaterm.monitor.history import RULE, History

SHOWN = 3  # tensors of a batch
STANDS_OUT = 3.0  # the least z-score of a tensor, and score of a batch, that is not ordinary

Marks = Mapping[int, Any]
_SEVERAL = (list, tuple, range, set, frozenset)
_PLAIN = (int, float, bool, str, type(None))


class Aberrant(NamedTuple):
    """A batch: what it was called, and the tensors that stood out most, with their z-scores.

    The mark is a list if there were several before the step. The norm is that of all gradients; None if the optimizer
    does not know it. `nonfinite` counts tensors; their z-scores are infinite.
    """

    step: int
    mark: Any
    score: float
    level: float
    zscore: float
    trust: float
    norm: float | None
    nonfinite: int
    tensors: dict[str, float]


class Layer(NamedTuple):
    """A tensor's steps, how many had less than half its usual trust, and how many gradients were not finite."""

    steps: int
    distrusted: int
    nonfinite: int
    mean_trust: float
    least_trust: float
    dof: float


class Sample(NamedTuple):
    """A sample: how many batches it was in, how many of these were excluded, their mean score, and a z-score.

    The z-score is that of the sum of their ranks: the larger it is, the less it is chance that they rank high.
    """

    sample: Any
    batches: int
    excluded: int
    score: float
    zscore: float


def find_aberrant(history: History, names: list[str], marks: Marks, count: int | None) -> list[Aberrant]:
    """The batches that rank highest, even if none of them stood out."""
    scores = history.score(torch.arange(len(history)))
    return _describe(history, names, marks, scores, _rank(history, scores)[:count])


def _rank(history: History, scores: Tensor) -> list[int]:
    """Places of the history: gradients that are not finite, then what else stood out, then the rest; each by score."""
    outstanding = _find_outstanding(history, scores)
    # Not all that was excluded before the rest: it would bury a fault in one tensor under what was excluded by chance.
    kinds = torch.stack([history.nonfinite.any(1), outstanding, scores.nan_to_num(-1.0)], dim=1).tolist()
    known = (outstanding | (scores > 0.0)).nonzero()[:, 0].tolist()
    return sorted(known, key=kinds.__getitem__, reverse=True)


def _find_outstanding(history: History, scores: Tensor) -> Tensor:
    return history.excluded | history.early | history.nonfinite.any(1) | (scores >= STANDS_OUT)


def _describe(history: History, names: list[str], marks: Marks, scores: Tensor, places: list[int]) -> list[Aberrant]:
    described, nonfinite = [], history.nonfinite.sum(1)
    for place, zscores in zip(places, history.stand_out(torch.tensor(places, dtype=torch.int64)), strict=True):
        largest = zscores.nan_to_num(-1.0, posinf=torch.inf).topk(min(SHOWN, len(names)))
        tensors = {names[column]: value for value, column in zip(*map(Tensor.tolist, largest), strict=True)}
        score, level, zscore, trust, norm = (
            values[place].item() for values in (scores, history.level, history.zscore, history.trust, history.norm)
        )
        known = norm if norm == norm else None
        standing = {name: value for name, value in tensors.items() if value >= STANDS_OUT}
        mark = find_mark(history, marks, place)
        step, broken = int(history.steps[place]), int(nonfinite[place])
        described.append(Aberrant(step, mark, score, level, zscore, trust, known, broken, standing))
    return described


def find_mark(history: History, marks: Marks, place: int) -> Any:
    """The mark of a step, a list of several, or None."""
    several = list_marks(history, marks, place)
    return several if len(several) > 1 else next(iter(several), None)


def list_marks(history: History, marks: Marks, place: int) -> list[Any]:
    """The marks before a step, and after the step before it."""
    numbers = range(int(history.marks_before[place]) + 1, int(history.last_marks[place]) + 1)
    return [marks[number] for number in numbers if number in marks]


def list_samples(mark: Any) -> list[Any]:
    """The indices that a mark has, or the mark itself, as the only one."""
    mark = _list_numbers(mark)
    return list(map(_list_numbers, mark)) if isinstance(mark, _SEVERAL) else [mark]


def _list_numbers(array: Any) -> Any:
    """What an array or a tensor of torch, NumPy or others holds; anything else as it is."""
    return array.tolist() if hasattr(array, "tolist") else array


def make_plain(mark: Any) -> Any:
    """A mark that torch.load takes by default: what is not of numbers, text, lists and dicts becomes text."""
    mark = _list_numbers(mark)
    if isinstance(mark, Mapping):
        return {make_plain(key): make_plain(value) for key, value in mark.items()}
    if isinstance(mark, _SEVERAL):
        plain = map(make_plain, mark)
        return tuple(plain) if isinstance(mark, tuple) else list(plain)
    return mark if type(mark) in _PLAIN else str(mark)


def _find_key(sample: Any) -> Any:
    """What a sample is known by: itself, or its text if it cannot be a key of a dict."""
    try:
        hash(sample)
    except TypeError:
        return repr(sample)
    return sample


def rank_samples(history: History, marks: Marks) -> list[Sample]:
    """All samples, those first whose batches have the highest scores: a test of rank sums, one sample against all."""
    scores = history.score(torch.arange(len(history)))
    scores = torch.where(history.nonfinite.any(1), torch.inf, scores)
    known = (~scores.isnan()).nonzero()[:, 0]
    rank = torch.zeros(len(history))  # from 0 to 1
    rank[known[scores[known].argsort()]] = (torch.arange(len(known)) + 0.5) / len(known)
    values = torch.stack([rank, scores, history.excluded.float()], dim=1).tolist()
    samples: dict[Any, Any] = {}
    batches = defaultdict[Any, list[list[float]]](list)
    for place in known.tolist():
        listed = [sample for mark in list_marks(history, marks, place) for sample in list_samples(mark)]
        keyed = {_find_key(sample): sample for sample in listed}
        samples |= keyed
        for key in keyed:
            batches[key].append(values[place])
    ranked = []
    for key, rows in batches.items():
        count, (height, score, excluded) = len(rows), map(sum, zip(*rows, strict=True))
        zscore = (height - 0.5 * count) * (12.0 / count) ** 0.5
        ranked.append(Sample(samples[key], count, int(excluded), score / count, zscore))
    return sorted(ranked, key=lambda sample: -sample.zscore)


def sum_up_layers(history: History, names: list[str]) -> dict[str, Layer]:
    """A record of each tensor that had a gradient."""
    taken = ~history.trusts.isnan()
    steps, nonfinite = taken.sum(0), history.nonfinite.sum(0)
    usual = history.trusts.nanmedian(0).values if len(history) else history.trusts.new_empty(len(names))
    distrusted = (history.trusts < 0.5 * usual).sum(0)
    layers = {}
    for column, name in enumerate(names):
        if steps[column]:
            given = history.trusts[taken[:, column], column]
            dof = history.dofs[taken[:, column], column][-1]
            few, broken = int(distrusted[column]), int(nonfinite[column])
            layers[name] = Layer(len(given), few, broken, given.mean().item(), given.min().item(), dof.item())
    return layers


def list_columns(history: History, names: list[str], marks: Marks) -> dict[str, list[Any]]:
    """A row for each step."""
    places = range(len(history))
    columns: dict[str, list[Any]] = {
        "step": history.steps.tolist(),
        "mark": [find_mark(history, marks, place) for place in places],
        "level": history.level.tolist(),
        "zscore": history.zscore.tolist(),
        "score": history.score(torch.arange(len(history))).tolist(),
        "trust": history.trust.tolist(),
        "norm": history.norm.tolist(),
        "excluded": history.excluded.tolist(),
        "nonfinite": history.nonfinite.sum(1).tolist(),
    }
    for kind, values in (("trust", history.trusts), ("distance", history.distances)):
        columns |= {f"{kind} {name}": column for name, column in zip(names, values.T.tolist(), strict=True)}
    return columns


class Text(str):
    """Text that a prompt shows as it would be printed."""

    __slots__ = ()
    __repr__ = str.__str__


def format_findings(
    history: History, names: list[str], marks: Marks, count: int, title: str, clipped: bool = False
) -> Text:
    """The worst of the batches that stood out, and the tensors with the least trust."""
    if not len(history):
        return Text(f"{title}: no step was seen yet")
    scores = history.score(torch.arange(len(history)))
    chosen = _rank(history, scores)[: int(_find_outstanding(history, scores).sum())]
    last = int(history.steps[-1])
    seen = f"{len(history):,} steps" + (f" up to step {last:,}" if last > len(history) else "")
    verdict = "excluded" if history.judged else "aberrant"  # other optimizers exclude none
    lines = [f"{title}: {seen}, {int(history.excluded.sum()):,} {verdict}"]
    if clipped:
        lines.append("Gradients seem to be clipped before the step, which hides bad batches: see the warning.")
    window, early = f"a window of {history.window} levels", int(history.early.sum())
    if early:
        used = "was" if early == 1 else "were"
        lines.append(f"{early:,} had a z-score above {RULE.threshold:g} before {window} was full, and {used} used.")
    elif history.judged and int(history.level.isfinite().sum()) < history.window:
        lines.append(f"No batch with a finite gradient is excluded before {window} is full.")
    lines.append("")
    if chosen:
        kinds = "excluded, used early" if history.early.any() else "excluded"
        stood_out = f"{len(chosen):,} stood out: {kinds}, not finite, or with a score of {STANDS_OUT:g} or more"
        more = f"; the worst {count}, and table({len(chosen)}) has all" if len(chosen) > count else ""
        lines.append(stood_out + more)
        numbers = f"{'score':>6}  {'level':>6}  {'z':>6}  {'trust':>5}"
        lines.append(f"{'step':>8}  {numbers}  mark; tensors that stood out, with their z-scores")
    elif history.zscore.isnan().all():
        lines.append("Nothing to tell yet: too few steps to know what is usual.")
    else:
        lines.append(f"No batch stood out: none was excluded or not finite, or had a score of {STANDS_OUT:g} or more.")
    for batch in _describe(history, names, marks, scores, chosen[:count]):
        tensors = ", ".join(f"{name} {zscore:.0f}" for name, zscore in batch.tensors.items())
        numbers = f"{batch.score:6.1f}  {batch.level:6.2f}  {batch.zscore:6.1f}  {batch.trust:5.2f}"
        mark = "" if batch.mark is None else f"{_shorten(batch.mark)}; "
        lines.append(f"{batch.step:8,}  {numbers.replace('nan', '  -')}  {mark}{tensors or 'no single tensor'}")
    layers = sum_up_layers(history, names)
    width = max(map(len, ("tensor", *layers)))
    shown = "the least trusted first" if len(layers) <= count else f"the {count} least trusted"
    tensors = "tensor" if len(layers) == 1 else "tensors"
    lines += ["", f"{len(layers):,} {tensors} had gradients; {shown}"]
    lines.append(f"{'tensor':{width}}  {'steps':>7}  distrusted  not finite  mean trust  least trust     dof")
    for name, layer in sorted(layers.items(), key=lambda item: (-item[1].nonfinite, item[1].mean_trust))[:count]:
        counts = f"{layer.steps:7,}  {layer.distrusted:10,}  {layer.nonfinite:10,}"
        lines.append(f"{name:{width}}  {counts}  {layer.mean_trust:10.2f}  {layer.least_trust:11.2f}  {layer.dof:6.1f}")
    return Text("\n".join(lines))


def _shorten(mark: Any) -> str:
    samples = ", ".join(map(str, list_samples(mark)))
    return samples if len(samples) <= 40 else f"{samples[:37]}..."

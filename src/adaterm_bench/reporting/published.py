"""The numbers of the paper's tables: mean and standard deviation of 24 trials, by outcome and method.

And what they show: Welch's test needs no more than these numbers.
"""

from collections.abc import Sequence
from math import isnan, nan, sqrt

from scipy.special import stdtr

from adaterm_bench.reporting.text import format_chance, format_spread

TRIALS = 24
LOWER = ("prediction_1", "prediction_30")
"""The outcomes of which lower is better."""

AS_PUBLISHED = "The paper's t-Adam and At-Adam are probably of the released code, which ours are with (as published)."

PUBLISHED: dict[str, dict[str, tuple[float, float]]] = {
    "classification_0": {
        "Adam": (0.7205, 0.00433),
        "AdaBelief": (0.7227, 0.00556),
        "RAdam": (0.7192, 0.00428),
        "t-Adam": (0.7174, 0.00567),
        "At-Adam": (0.7178, 0.00421),
        "AdaTerm": (0.7315, 0.00366),
        "No adaptiveness": (0.733, 0.0032),
        "No robustness": (0.733, 0.0032),
        "Large init": (0.735, 0.0035),
        "t-AdaBelief": (0.7231, 0.00423),
        "At-AdaBelief": (0.7223, 0.0045),
        "AdaTerm (Uncentered)": (0.7309, 0.0026),
        "AdaTerm (AdaBias)": (0.7294, 0.00426),
        "AdaTerm (Uncentered + AdaBias)": (0.7299, 0.0037),
    },
    "classification_10": {
        "Adam": (0.6811, 0.00493),
        "AdaBelief": (0.6799, 0.00394),
        "RAdam": (0.6797, 0.00341),
        "t-Adam": (0.6803, 0.0031),
        "At-Adam": (0.6811, 0.00403),
        "AdaTerm": (0.6815, 0.00446),
        "No adaptiveness": (0.684, 0.0042),
        "No robustness": (0.681, 0.0038),
        "Large init": (0.683, 0.0039),
        "t-AdaBelief": (0.6827, 0.00402),
        "At-AdaBelief": (0.6815, 0.00346),
        "AdaTerm (Uncentered)": (0.6815, 0.00477),
        "AdaTerm (AdaBias)": (0.681, 0.00313),
        "AdaTerm (Uncentered + AdaBias)": (0.68, 0.00376),
    },
    "prediction_1": {
        "Adam": (0.0321, 0.000448),
        "AdaBelief": (0.032, 0.000567),
        "RAdam": (0.0328, 0.000355),
        "t-Adam": (0.032, 0.000409),
        "At-Adam": (0.0319, 0.000314),
        "AdaTerm": (0.0335, 0.000309),
        "No adaptiveness": (0.0336, 0.00043),
        "No robustness": (0.0328, 0.000414),
        "Large init": (0.0332, 0.000447),
        "t-AdaBelief": (0.0318, 0.000442),
        "At-AdaBelief": (0.0318, 0.000502),
        "AdaTerm (Uncentered)": (0.0338, 0.000523),
        "AdaTerm (AdaBias)": (0.0336, 0.000465),
        "AdaTerm (Uncentered + AdaBias)": (0.0336, 0.000431),
    },
    "prediction_30": {
        "Adam": (1.1591, 0.104),
        "AdaBelief": (1.241, 0.134),
        "RAdam": (1.1218, 0.136),
        "t-Adam": (1.1048, 0.266),
        "At-Adam": (1.1075, 0.197),
        "AdaTerm": (1.0016, 0.231),
        "No adaptiveness": (1.0718, 0.275),
        "No robustness": (1.2553, 0.209),
        "Large init": (1.2966, 0.236),
        "t-AdaBelief": (1.1517, 0.117),
        "At-AdaBelief": (1.1306, 0.117),
        "AdaTerm (Uncentered)": (0.9085, 0.121),
        "AdaTerm (AdaBias)": (1.0342, 0.253),
        "AdaTerm (Uncentered + AdaBias)": (1.131, 0.643),
    },
    "rl_hopper": {
        "Adam": (1539.06, 564.0),
        "AdaBelief": (1152.1, 548.0),
        "RAdam": (1373.85, 755.0),
        "t-Adam": (1634.2, 452.0),
        "At-Adam": (1523.37, 548.0),
        "AdaTerm": (1550.25, 588.0),
        "No adaptiveness": (496.75, 619.0),
        "No robustness": (1666.3, 657.0),
        "Large init": (1750.63, 547.0),
        "t-AdaBelief": (1104.87, 448.0),
        "At-AdaBelief": (1214.47, 377.0),
        "AdaTerm (Uncentered)": (1688.59, 542.0),
        "AdaTerm (AdaBias)": (1595.1, 645.0),
        "AdaTerm (Uncentered + AdaBias)": (1552.83, 672.0),
    },
    "rl_ant": {
        "Adam": (863.31, 401.0),
        "AdaBelief": (692.68, 117.0),
        "RAdam": (871.23, 357.0),
        "t-Adam": (2272.58, 320.0),
        "At-Adam": (2213.75, 231.0),
        "AdaTerm": (2021.37, 387.0),
        "No adaptiveness": (2192.21, 418.0),
        "No robustness": (1412.93, 652.0),
        "Large init": (1902.63, 387.0),
        "t-AdaBelief": (2185.45, 483.0),
        "At-AdaBelief": (2196.84, 229.0),
        "AdaTerm (Uncentered)": (2113.81, 401.0),
        "AdaTerm (AdaBias)": (2017.69, 321.0),
        "AdaTerm (Uncentered + AdaBias)": (1960.78, 374.0),
    },
    "distillation_without_amateur": {
        "Adam": (1686.94, 234.0),
        "AdaBelief": (1731.51, 188.0),
        "RAdam": (1574.13, 286.0),
        "t-Adam": (1586.99, 206.0),
        "At-Adam": (1611.23, 225.0),
        "AdaTerm": (1770.17, 217.0),
        "No adaptiveness": (1701.63, 232.0),
        "No robustness": (1625.05, 261.0),
        "Large init": (1655.4, 171.0),
        "t-AdaBelief": (1639.93, 319.0),
        "At-AdaBelief": (1671.65, 332.0),
        "AdaTerm (Uncentered)": (1649.53, 248.0),
        "AdaTerm (AdaBias)": (1672.71, 250.0),
        "AdaTerm (Uncentered + AdaBias)": (1624.56, 221.0),
    },
    "distillation_with_amateur": {
        "Adam": (1401.01, 239.0),
        "AdaBelief": (1344.23, 275.0),
        "RAdam": (1258.1, 270.0),
        "t-Adam": (1347.29, 211.0),
        "At-Adam": (1347.51, 267.0),
        "AdaTerm": (1411.02, 192.0),
        "No adaptiveness": (1437.18, 226.0),
        "No robustness": (1403.92, 256.0),
        "Large init": (1442.24, 284.0),
        "t-AdaBelief": (1303.19, 258.0),
        "At-AdaBelief": (1325.7, 272.0),
        "AdaTerm (Uncentered)": (1372.08, 248.0),
        "AdaTerm (AdaBias)": (1400.88, 245.0),
        "AdaTerm (Uncentered + AdaBias)": (1302.55, 247.0),
    },
}


def find_published(outcome: str, method: str, scale: float = 1.0) -> str:
    """What the paper has for a method, as a text, or nothing; a method as published is the paper's too."""
    numbers = PUBLISHED.get(outcome, {}).get(method.removesuffix(" (as published)"))
    return format_spread(scale * numbers[0], scale * numbers[1]) if numbers else ""


def apply_welch(
    first: Sequence[tuple[float, float]], second: Sequence[tuple[float, float]], trials: int = TRIALS
) -> tuple[float, float]:
    """The difference of two means, or means of means, and its chance (p-value): each is a mean and a deviation.

    For more than one on a side it is the same test of a contrast, with Welch and Satterthwaite's degrees of freedom.
    """
    parts = [(1.0 / len(side), std) for side in (first, second) for _, std in side]
    variances = [(weight * std) ** 2 / trials for weight, std in parts]
    apart = sum(mean for mean, _ in first) / len(first) - sum(mean for mean, _ in second) / len(second)
    if not sum(variances):
        return apart, nan
    dof = sum(variances) ** 2 / sum(variance**2 / (trials - 1) for variance in variances)
    return apart, 2.0 * float(stdtr(dof, -abs(apart) / sqrt(sum(variances))))


def weigh_evidence(outcome: str, ahead: Sequence[str], behind: Sequence[str]) -> tuple[float, float]:
    """How far ahead the paper's own table has these methods, and the chance of that; NaN where it has no numbers."""
    row = PUBLISHED.get(outcome, {})
    if not all(name in row for name in (*ahead, *behind)):
        return nan, nan
    apart, chance = apply_welch([row[name] for name in ahead], [row[name] for name in behind])
    return -apart if outcome in LOWER else apart, chance


def describe_evidence(outcome: str, ahead: Sequence[str], behind: Sequence[str]) -> str:
    """What the paper's own table has for methods that it says are ahead of others, and whether that shows it."""
    gain, chance = weigh_evidence(outcome, ahead, behind)
    if isnan(gain):
        return "figures without numbers"
    sides = [[PUBLISHED[outcome][name] for name in side] for side in (ahead, behind)]
    texts = [
        format_spread(*side[0]) if len(side) == 1 else f"{sum(mean for mean, _ in side) / len(side):.4g} (their mean)"
        for side in sides
    ]
    if gain <= 0.0:
        verdict = "its own table has it the other way round" if gain < 0.0 else "its own table has a tie"
    else:
        verdict = "shown in the paper" if chance < 0.05 else "not shown in the paper either"
    return f"{texts[0]} against {texts[1]}: {verdict} (Welch, {format_chance(chance)})"

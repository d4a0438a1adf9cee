"""What the report shows of the images."""

from adaterm_bench.arena.measure import Measure
from adaterm_bench.arena.report import make_section
from adaterm_bench.core.section import Section
from adaterm_bench.core.trial import Result

DIRTY = ("labels 20 %", "frozen 10 %", "swapped 10 %", "human")
HELD_OUT = ("validation_accuracy", "accuracy on held-out images")
MEASURE = Measure("accuracy", "test accuracy", "higher", DIRTY, chosen_by=HELD_OUT[0], chosen_noun=HELD_OUT[1])
MODELS = ("resnet18",)


def section(results: list[Result]) -> Section:
    """Accuracies under every noise, ranks, what was made of bad batches, and our claims."""
    return make_section(
        "Images with bad batches",
        "A ResNet-18 learns CIFAR-100. In some runs a share of the batches is bad: labels are permuted, all images are "
        "one, or the halves of all bytes are exchanged; “human” are the labels of CIFAR-100N, of which 40 % are wrong, "
        "in every batch alike. Accuracy is that of right labels. Methods with the same seed have the same weights, "
        "batches and faults. The learning rate of each method is chosen on clean data, by images that are held out, "
        "and kept.",
        results,
        MEASURE,
        MODELS,
    )

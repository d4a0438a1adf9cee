"""What the paper says of the test functions, and where; those without a place are ours."""

from adaterm_bench.reporting.claims import Sentence

FIGURE = "a figure without numbers"
DOF_FALLS = Sentence("AdaTerm's degrees of freedom fall as noise rises.", "section 5.1, figure 9", FIGURE)
DOF_STAYS = Sentence(
    "At-Adam's degrees of freedom are nearly constant, whatever the noise.", "section 5.1, figure 9", FIGURE
)
ADAM_DEGRADES = Sentence("Adam gets much worse when noise comes in.", "section 5.1, figure 8", FIGURE)
MITIGATED = Sentence(
    "On Rosenbrock and Michalewicz AdaTerm mitigates the effects of noise.", "section 5.1, figure 8", FIGURE
)
UNDISTURBED = Sentence(
    "On Rosenbrock and Michalewicz AdaTerm keeps the standard update performance.", "section 5.1, figure 8", FIGURE
)
MCCORMICK = Sentence(
    "On McCormick with little noise AdaTerm is less accurate.", "section 5.1, figure 8; appendix C", FIGURE
)
MCCORMICK_CLEAN = MCCORMICK._replace(place="sections 5.1 and 7.1, figure 8; appendix C")  # both say so of no noise
DRAWBACK = Sentence("Without noise, Adam, which is not robust, is ahead of AdaTerm.", "section 7.1, figure 8", FIGURE)
ALIKE = Sentence("AdaBelief is similar to Adam.", "appendix C", "stated, and left out of figures")
AT_ADAM_MISSES = Sentence(
    "At-Adam does not find the minimum of Michalewicz.", "section 5.1, figure 8; appendix C", FIGURE
)
AT_ADAM_FINDS = Sentence("With noise, At-Adam finds the minimum of Michalewicz.", "appendix C", FIGURE)
ADATERM_FINDS = Sentence("AdaTerm finds the minimum of Michalewicz in the end.", "appendix C", FIGURE)
FASTER = Sentence("AdaTerm is faster than the others.", "appendix C", "figures of single paths")
OUR_MCCORMICK = Sentence("On McCormick, too, AdaTerm mitigates the effects of noise.")
OURS_WRITTEN = Sentence("At-Adam as written finds the minimum of Michalewicz without noise.")
OURS_MISSES = Sentence("At-Adam as written misses the minimum of Rosenbrock without noise.")

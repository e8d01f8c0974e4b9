"""The claims of the paper's text, each a function of stored records with a threshold and a verdict.

A claim quotes the paper, states beforehand what would count as true and why, and returns what was measured. Numbers are
means over the repetitions of a run where there are several. Measures that were added after a first look at the runs
bear a dagger (`later`). `check(records)` is the table of all of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from induction_memory.reproduction import plan
from induction_memory.reproduction.records import MissingRunError, Record, Records, tuned_run
from induction_memory.theory.checks import Check, at_least, at_most, near
from induction_memory.theory.first_step_recall import one_step

HALF = 0.5
THAWED = 300  # the step until which Figure 3 freezes
DAGGER = "†"
DROP = 0.9  # a loss is learned when it has fallen by this share of its whole fall


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, why the thresholds are where they are, the measurement, and why it may fail."""

    name: str
    figure: int
    says: str
    reason: str
    measure: Callable[[Records], Sequence[Check]]
    if_not: str


CLAIMS: dict[str, Claim] = {}


def claim(figure: int, reason: str, if_not: str = "") -> Callable[[Callable[[Records], Sequence[Check]]], Callable]:
    """Add a claim: the docstring quotes the paper, the name is the function's with hyphens.

    `if_not` is what explains a measure beyond its threshold in the runs that ship.
    """

    def add(measure: Callable[[Records], Sequence[Check]]) -> Callable:
        name, says = measure.__name__.replace("_", "-"), " ".join(str(measure.__doc__).split())
        CLAIMS[name] = Claim(name, figure, says, reason, measure, if_not)
        return measure

    return add


def check(records: Records, names: Sequence[str] | None = None) -> pd.DataFrame:
    """One row a measurement: claim, figure, measure, value, threshold, verdict.

    The verdict is "holds", "does not hold", or "no run" where what it needs has not been trained.
    """
    rows = []
    for entry in CLAIMS.values():
        if names is not None and entry.name not in names:
            continue
        try:
            found = [(c.statement, c.measured, _bound(c), _verdict(c)) for c in entry.measure(records)]
        except MissingRunError as missing:
            found = [(str(missing), np.nan, "", "no run")]
        rows += [(entry.name, entry.figure, *row) for row in found]
    return pd.DataFrame(rows, columns=["claim", "figure", "measure", "value", "threshold", "verdict"])


def later(*checks: Check) -> list[Check]:
    """Measures that were added after a first look at the runs, marked so."""
    return [replace(found, statement=f"{found.statement} {DAGGER}") for found in checks]


def _bound(found: Check) -> str:
    bound = f"{found.predicted:.3g}"
    return f"{bound} {found.tolerance}" if "±" in found.tolerance else f"{found.tolerance} {bound}"


def _verdict(found: Check) -> str:
    return "holds" if found.verdict else "does not hold"


@claim(
    2,
    "the paper's own numbers; mean of the last 20 batches",
    "what is wrong is mostly on triggers that come late for the first time, where layer 1 does not look back; accuracy "
    "still rises when training ends, by less and less",
)
def two_layers(records: Records) -> list[Check]:
    """with fixed (resp. random) triggers and uniform outputs, the model achieves over 99% accuracy (resp. 95%) on
    output tokens after the first occurrence.
    """
    checks = []
    for kind, mark in (("fixed", 0.99), ("random", 0.95)):
        run = records.one(plan.TWO_LAYERS[kind])
        early = f"the same on triggers that come first before position {plan.LETTERS}, {kind} triggers"
        checks.append(at_least(f"in-context accuracy, two layers, {kind} triggers", mark, run.accuracy()))
        checks += later(at_least(early, mark, run.last["accuracy_in_context_drawn"]))
    return checks


@claim(2, "'around' is read as within 0.1")
def one_layer(records: Records) -> list[Check]:
    """versus around 55% for one layer."""
    found = {kind: records.one(name).accuracy() for kind, name in plan.ONE_LAYER.items()}
    return [near(f"in-context accuracy, one layer, {kind} triggers", 0.55, value, 0.1) for kind, value in found.items()]


@claim(
    2,
    "the most attended key, corrected for chance; 0.9 for 'always', since late positions need not be learned",
    "early positions look back, as in the picture, late ones seldom do",
)
def looks_back(records: Records) -> list[Check]:
    """The first layer head always attends to the previous token."""
    checks = []
    for kind, name in plan.TWO_LAYERS.items():
        last, measure = records.one(name).last, f"layer 1's most attended is the previous token, {kind} triggers"
        drawn = f"the same over the {plan.LETTERS} positions of the picture, {kind} triggers"
        checks.append(at_least(measure, 0.9, last["previous_token_argmax1"]))
        checks += later(at_least(drawn, 0.9, last["previous_token_argmax1_drawn"]))
    return checks


@claim(
    2,
    "attention to tokens after earlier occurrences, corrected for chance; 'only' is at most a fifth of that "
    "on triggers, 'every' at least half",
)
def active_on(records: Records) -> list[Check]:
    """For fixed triggers, the induction head is only active for the triggers used in training [...] For random
    triggers, it is active on every repeated token.
    """
    fixed, random = (records.one(plan.TWO_LAYERS[kind]).last for kind in ("fixed", "random"))
    return [
        at_least("fixed triggers: layer 2's induction attention on triggers", HALF, fixed["induction_mass2"]),
        at_most(
            "fixed triggers: that on other repeated tokens, as a share of it",
            0.2,
            fixed["induction_other_mass2"] / fixed["induction_mass2"],
        ),
        at_least(
            "random triggers: that on other repeated tokens, as a share of that on triggers",
            HALF,
            random["induction_other_mass2"] / random["induction_mass2"],
        ),
    ]


@claim(3, "recall by chance is 1/64 and 1/65; up to 0.1 is not learning")
def keys_wait(records: Records) -> list[Check]:
    """training key-query matrices does not lead to any learning unless W_O^2 is learned first."""
    frozen = records.of("figure-3-freeze-output")
    return [
        at_most(f"{_called(name)} recall at step {THAWED}, W_O2 frozen until then", 0.1, _mean(frozen, name, THAWED))
        for name in ("W_K1_first64", "W_K2")
    ]


@claim(3, "nearly all of 65 associations, and right less than half of the time")
def output_alone(records: Records) -> list[Check]:
    """W_O^2 can learn the correct associations even when trained by itself [...] While such a model has poor
    prediction accuracy.
    """
    frozen = records.of("figure-3-freeze-keys")
    accuracy = float(np.mean([run.accuracy(THAWED - 19, THAWED) for run in frozen]))
    return [
        at_least(f"W_O2 recall at step {THAWED}, both W_K frozen until then", 0.95, _mean(frozen, "W_O2", THAWED)),
        at_most("in-context accuracy of the steps just before", HALF, accuracy),
    ]


@claim(3, "copying what followed the last time is always right here; 'near-perfect' is read as 0.9 after 600 steps")
def near_perfect(records: Records) -> list[Check]:
    """which eventually recovers the desired induction head behavior and leads to near-perfect accuracy."""
    return [
        at_least(
            f"in-context accuracy at the end, {name}", 0.9, float(np.mean([run.accuracy() for run in records.of(name)]))
        )
        for name in plan.FREEZING.values()
    ]


@claim(3, "a tenth is six associations of 65")
def second_before_first(records: Records) -> list[Check]:
    """the second layer is learned before the first, in the sense that W_K^2 is easier to learn when W_K^1 is frozen
    compared to the reverse, yet learning them together seems beneficial.
    """
    second = _mean(records.of("figure-3-freeze-first-key"), "W_K2", THAWED)
    first = _mean(records.of("figure-3-freeze-second-key"), "W_K1_first64", THAWED)
    both = records.of("figure-3")
    gain_second, gain_first = _mean(both, "W_K2", THAWED) - second, _mean(both, "W_K1_first64", THAWED) - first
    return [
        at_least(
            f"W_K2 recall at {THAWED} with W_K1 frozen, above W_K1's (t < 64) with W_K2 frozen", 0.1, second - first
        ),
        *later(
            at_least(f"W_K2 recall at {THAWED} with nothing frozen, above that with W_K1 frozen", 0.1, gain_second),
            at_least("W_K1's (t < 64) with nothing frozen, above that with W_K2 frozen", 0.1, gain_first),
        ),
    ]


@claim(
    3,
    "half of the associations, for good, in every run with nothing frozen",
    "the first 64 positions of W_K1 are half recalled before W_K2 is; over all positions W_K1 never is",
)
def top_down(records: Records) -> list[Check]:
    """Emergence of the induction head via top-down learning."""
    order = ("W_O2", "W_K2", "W_K1_first64")
    births = [[run.reaches(name, HALF) for name in order] for run in records.of("figure-3")]
    in_order = float(np.mean([b[0] <= b[1] <= b[2] < np.inf for b in births]))
    return [at_least("share of runs that recall half of W_O2, then of W_K2, then of W_K1 (t < 64)", 1.0, in_order)]


@claim(3, "'much' is read as a fifth of all associations")
def early_positions(records: Records) -> list[Check]:
    """W_K^1 fits previous token associations for early positions much faster than later positions."""
    runs = records.of("figure-3")
    if runs[0].config.task.length <= 64:  # there are no later positions
        return []
    return [
        at_least(
            f"W_K1 recall of the first 64 positions above that of all, {when}",
            0.2,
            _mean(runs, "W_K1_first64", step) - _mean(runs, "W_K1", step),
        )
        for when, step in (("step 200", 200), ("at the end", None))
    ]


@claim(4, "steps until a loss has made nine tenths of its fall; a ratio above 1")
def global_first(records: Records) -> list[Check]:
    """the global bigram statistics tend to be learned more quickly than the induction head, as seen from the quick
    drop in loss and KL in early iterations.
    """
    found = []
    for label, name in plan.SETTINGS.items():
        run = records.one(name)
        ratio = learned(run, "loss_in_context") / learned(run, "loss_global")
        found.append(at_least(f"steps to learn in context / steps to learn globally, {label}", 1.0, ratio))
    run = records.one(plan.OUTPUTS["uniform"])
    fall = _fallen(run.probes.index.to_numpy(), run.probes["W_F_kl"].to_numpy())
    ratio = learned(run, "loss_in_context") / fall
    return found + later(at_least("steps to learn in context / steps until the KL of W_F has fallen", 1.0, ratio))


@claim(
    4, "'initially' is until W_O2's recall is at half of its maximum; 'mild' and 'longer' are half of the last value"
)
def output_first(records: Records) -> list[Check]:
    """The W_O^2 probe also seems to improve quickly initially, but only leads to mild improvements to in-context
    predictions. The full learning of the in-context mechanism takes longer, likely due to slower dynamics of the
    key-query matrices.
    """
    run = records.one(plan.OUTPUTS["uniform"])
    recalls, steps = run.probes["W_O2"].to_numpy(), run.probes.index.to_numpy()
    early = int(steps[np.argmax(recalls >= recalls.max() / 2)])
    accuracy = _share(run.accuracy(early, early + 4), run.accuracy())
    return later(
        at_most("in-context accuracy when W_O2 is at half of its best recall, as a share of the last", HALF, accuracy),
        *(
            at_most(
                f"{_called(name)} recall then, as a share of the last",
                HALF,
                _share(run.recall(name, early), run.recall(name)),
            )
            for name in ("W_K2", "W_K1_first64")
        ),
    )


@claim(
    4,
    "means over training, so that no crossing point has to be chosen; 0.02 is beyond the noise of a batch",
    "with fewer triggers the keys lose more than W_O2 does",
)
def slower(records: Records) -> list[Check]:
    """the following may slow down in-context learning: (i) a smaller number of triggers K, (ii) using only rare
    fixed triggers, and (iii) using random triggers instead of fixed triggers [...] we hypothesize that (i) and (ii)
    are due to slow learning of W_O^2, while (iii) is more related to slow learning of key-query matrices.
    """
    few, many = (records.one(plan.SETTINGS[f"K={k}, random"]) for k in (1, 5))
    rare, frequent = (records.one(plan.SETTINGS[f"K=5, fixed {kind}"]) for kind in ("rare", "frequent"))
    pairs = {
        "one trigger instead of five": (few, many, "W_O2"),
        "rare triggers instead of frequent ones": (rare, frequent, "W_O2"),
        "random triggers instead of fixed ones": (many, frequent, "W_K2"),
    }
    found = []
    for what, (slow, fast, cause) in pairs.items():
        easier = " (fixed: among the triggers alone, an easier task)" if cause == "W_K2" else ""
        found.append(at_least(f"{what}: fall of in-context accuracy, mean over training", 0.02, _lead(fast, slow)))
        found.append(
            at_least(f"{what}: fall of {cause} recall{easier}, mean over training", 0.02, _fall(fast, slow, cause))
        )
    more = _fall(many, few, "W_O2") - _fall(many, few, "W_K2")
    early = _fall(frequent, many, "W_K1_first64")
    return found + later(
        at_least("one trigger instead of five: fall of W_O2 recall, above that of W_K2 recall", 0.0, more),
        at_least("random triggers instead of fixed ones: fall of W_K1 recall (t < 64)", 0.02, early),
        at_most("random triggers instead of fixed ones: fall of W_O2 recall", 0.02, _fall(frequent, many, "W_O2")),
    )


@claim(4, "'reduces' is a loss of a tenth or more, 'performs well' one of a twentieth at most")
def generalises(records: Records) -> list[Check]:
    """changing the output token distribution to bigram distributions at training time reduces the in-context
    accuracy when using out-of-distribution output tokens, while training on uniform outputs performs well on both
    distributions.
    """
    gaps = {}
    for kind, name in plan.OUTPUTS.items():
        run = records.one(name)
        gaps[kind] = run.accuracy() - float(run.curve("out_of_distribution_accuracy")[1][-3:].mean())
    return [
        at_most("trained on uniform outputs: in-context accuracy lost on bigram outputs", 0.05, gaps["uniform"]),
        at_least("trained on bigram outputs: in-context accuracy lost on uniform outputs", 0.1, gaps["bigram"]),
    ]


@claim(4, "'slight': two hundredths of recall (more than one association of 65), a twentieth of the divergence")
def compete(records: Records) -> list[Check]:
    """a tension between W_O^2 and W_F later in training, leading to slight degradations of our probe metrics."""
    run = records.one(plan.OUTPUTS["uniform"])
    output, kl, reverse = (run.probes[name].to_numpy() for name in ("W_O2", "W_F_kl", "W_F_kl_reverse"))
    return [
        at_least("W_O2 recall: its maximum less its last value", 0.02, float(output.max() - output[-1])),
        at_least("KL(bigrams || W_F): its last value over its minimum", 1.05, float(kl[-1] / kl.min())),
        *later(
            at_least("KL(W_F || bigrams): its last value over its minimum", 1.05, float(reverse[-1] / reverse.min()))
        ),
    ]


@claim(6, "means over the steps that both runs have; 'better' is a tenth more, 'comparable' within a tenth")
def outputs_fit(records: Records) -> list[Check]:
    """using uniform output tokens can lead to better fitting of W_O^2 and W_K^2 compared to using output tokens
    sampled from bigrams [...] the recall accuracy for W_K^1 is comparable for both settings.
    """
    uniform, bigram = (records.one(plan.OUTPUTS[kind]) for kind in ("uniform", "bigram"))
    until = min(uniform.steps, bigram.steps)
    gains = {
        name: uniform.mean_recall(name, until) - bigram.mean_recall(name, until) for name in ("W_O2", "W_K2", "W_K1")
    }
    return later(
        *(at_least(f"{name} recall: uniform outputs above bigram ones", 0.1, gains[name]) for name in ("W_O2", "W_K2")),
        near("W_K1 recall: uniform outputs above bigram ones", 0.0, gains["W_K1"], 0.1),
    )


@claim(
    7,
    "the right scores twice the size of the others; rank correlations of a half; W_O2's relative spread at "
    "most half of W_K2's",
    "all of it holds in the middle of training; late, W_O2's diagonal weakens for the frequent tokens, and W_K1's "
    "slowly loses its edge, the cause of which was not looked for",
)
def diagonals(records: Records) -> list[Check]:
    """diagonal elements dominate in the plots [...] some of the diagonal elements are weaker than others,
    particularly for late positions in W_K^1, and for some of the trigger tokens in W_K^2, while the diagonal for
    W_O^2 seems to be roughly uniform [...] The association patterns found in W_K^2 then seem related to frequencies
    of appearance of triggers.
    """
    last = records.one(plan.OUTPUTS["uniform"]).last
    found = [
        at_least(f"{name}: mean of the right scores / rms of the others", 2.0, last[f"{name}_sir"])
        for name in ("W_K1", "W_K2", "W_O2")
    ]
    return [
        *found,
        at_least(
            "W_K2: rank correlation of its diagonal with the tokens' frequency", HALF, last["W_K2_diagonal_frequency"]
        ),
        at_most("W_K1: rank correlation of its diagonal with the position", -HALF, last["W_K1_diagonal_position"]),
        at_most(
            "W_O2: spread of its diagonal over its mean, as a share of W_K2's",
            HALF,
            last["W_O2_diagonal_spread"] / last["W_K2_diagonal_spread"],
        ),
    ]


@claim(
    8,
    "mean recall over 100 steps never falls with d, tuned by at most 0.01 for the coarse grid of step sizes; 'a few' "
    "is ten steps, 'sufficient' nine tenths recalled; a tenth more is 'further'",
    "nine tenths take d = 128 about twice as many steps, at the best of the step sizes that were tried",
)
def higher_dimension(records: Records) -> list[Check]:
    """higher dimension leads to faster learning of the memory, in particular d = 128 seems sufficient for fast
    learning after just a few iterations with a tuned learning rate. If the learning rate isn't tuned, we notice that
    there is a further slowdown for low dimension.
    """
    fixed = [records.one(f"figure-8-d{d}").mean_recall("W_O2") for d in plan.DIMENSIONS]
    best = {d: tuned_run(records, d) for d in plan.DIMENSIONS}
    tuned = [run.mean_recall("W_O2") for run in best.values()]
    lost = (fixed[-1] - fixed[0]) - (tuned[-1] - tuned[0])
    low, high = plan.DIMENSIONS[0], plan.DIMENSIONS[-1]
    return [
        at_least("least gain in mean recall from one d to the next, one step size", 0.0, float(np.diff(fixed).min())),
        at_least("least gain in mean recall from one d to the next, tuned", -0.01, float(np.diff(tuned).min())),
        at_least("recall at d = 128 after 10 steps, tuned", 0.9, best[128].recall("W_O2", 10)),
        *later(at_least(f"what d = {low} lacks of d = {high}: with one step size above tuned", 0.1, lost)),
    ]


@claim(
    9,
    "eight batches are a handful, nine tenths of the associations are signal; at d = 16 even 128 batches do not give "
    "seven tenths; 'easier': recall falls by at most a tenth from one d to the next",
)
def one_step_suffices(records: Records) -> list[Check]:
    """this simple one-step model is already able to extract relevant signal from the noisy average attention, after
    a handful of batches of data [...] and that this gets easier as the dimension increases.
    """
    high, _, low, _, fall = one_step().checks
    return [high, low, *later(fall)]


@claim(
    10,
    "marks of Figure 3's model: accuracy 0.9, half of each memory recalled; 'similar' to Figure 4's is within 0.1",
    "accuracy still rises when training ends; W_O2 is recalled better than in the simplified model, W_K2 less well",
)
def behaves_alike(records: Records) -> list[Check]:
    """The loss, in-context accuracy and memory recall probes are similar to the simplified architecture."""
    run, like = records.one(plan.REALISTIC), records.one(plan.OUTPUTS["uniform"])
    memories = ("W_O2", "W_K2", "W_K1_first64")
    return [
        at_least("in-context accuracy at the end", 0.9, run.accuracy()),
        *(at_least(f"{_called(name)} recall at the end", HALF, run.recall(name)) for name in memories),
        at_least(
            "steps to learn in context / steps to learn globally",
            1.0,
            learned(run, "loss_in_context") / learned(run, "loss_global"),
        ),
        *later(
            near(
                "in-context accuracy at the end, above the simplified model's",
                0.0,
                run.accuracy() - like.accuracy(),
                0.1,
            ),
            *(
                near(f"{_called(name)} recall, above its", 0.0, run.recall(name) - like.recall(name), 0.1)
                for name in memories
            ),
        ),
    ]


@claim(11, "participation ratio of exact Shapley values: up to 1.5 is one head's work, from 2 on it is shared")
def heads_share(records: Records) -> list[Check]:
    """only one of the first layer heads learns the previous token behavior, while the induction behavior is shared
    across different heads at the second layer.
    """
    runs = records.of(plan.FOUR_HEADS)
    previous, induction = (
        float(np.mean([run.last[f"effective_heads_{role}"] for run in runs]))
        for role in ("previous-token", "induction")
    )
    return [
        at_most("layer 1: effective number of heads of the previous-token work", 1.5, previous),
        at_least("layer 2: effective number of heads of the induction work", 2.0, induction),
    ]


def learned(run: Record, column: str) -> float:
    """First step at which a loss has made nine tenths of its fall from the first value to the least, at least 1."""
    steps, losses = run.curve(column)
    return _fallen(steps, np.convolve(np.pad(losses, 2, mode="edge"), np.full(5, 0.2), "valid"))


def _fallen(steps: np.ndarray, values: np.ndarray) -> float:
    return max(float(steps[np.argmax(values <= values[0] - DROP * (values[0] - values.min()))]), 1.0)


def _lead(fast: Record, slow: Record) -> float:
    """How much higher the in-context accuracy of one run is, on the average of all steps."""
    fast_accuracy, slow_accuracy = (run.curve("accuracy_in_context")[1].mean() for run in (fast, slow))
    return float(fast_accuracy - slow_accuracy)


def _fall(fast: Record, slow: Record, memory: str) -> float:
    """The same of a recall; W_K2 is asked about the triggers alone where they are fixed, as in the paper's figure."""
    asked = ["W_K2_triggers" if memory == "W_K2" and "W_K2_triggers" in run.probes else memory for run in (fast, slow)]
    return fast.mean_recall(asked[0]) - slow.mean_recall(asked[1])


def _mean(runs: Sequence[Record], name: str, step: int | None) -> float:
    return float(np.mean([run.recall(name, step) for run in runs]))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")


def _called(memory: str) -> str:
    return "W_K1 (t < 64)" if memory == "W_K1_first64" else memory

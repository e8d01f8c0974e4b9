"""Section 3, Figure 2: what the vanilla transformers attend to, and how well they predict."""

from collections.abc import Iterator

from induction_memory.reproduction import plan
from induction_memory.reproduction.claims.claim import HALF, claim, later
from induction_memory.reproduction.records import Records
from induction_memory.theory.checks import Check, at_least, at_most, near


@claim(
    2,
    "the paper's own numbers; mean of the last 20 batches",
    "most errors are at triggers first seen late in the sequence, where layer 1 does not attend to the previous token; "
    "accuracy still rises when training ends, by less and less",
)
def two_layers(records: Records) -> Iterator[Check]:
    """with fixed (resp. random) triggers and uniform outputs, the model achieves over 99% accuracy (resp. 95%) on
    output tokens after the first occurrence.
    """
    for kind, mark in (("fixed", 0.99), ("random", 0.95)):
        run = records.one(plan.TWO_LAYERS[kind])
        early = f"the same at triggers first seen before position {plan.LETTERS}, {kind} triggers"
        yield at_least(f"in-context accuracy, two layers, {kind} triggers", mark, run.accuracy())
        yield later(at_least(early, mark, run.final("accuracy_in_context_drawn")))


@claim(2, "'around' is read as within 0.1")
def one_layer(records: Records) -> Iterator[Check]:
    """versus around 55% for one layer."""
    for kind, name in plan.ONE_LAYER.items():
        yield near(f"in-context accuracy, one layer, {kind} triggers", 0.55, records.one(name).accuracy(), 0.1)


@claim(
    2,
    "the most attended key, corrected for chance; 0.9 for 'always', since late positions need not be learned",
    "early positions attend to the previous token, as in the picture, late ones seldom do",
)
def looks_back(records: Records) -> Iterator[Check]:
    """The first layer head always attends to the previous token."""
    for kind, name in plan.TWO_LAYERS.items():
        run, measure = records.one(name), f"layer 1's most attended is the previous token, {kind} triggers"
        drawn = f"the same over the {plan.LETTERS} positions of the picture, {kind} triggers"
        yield at_least(measure, 0.9, run.final("previous_token_argmax1"))
        yield later(at_least(drawn, 0.9, run.final("previous_token_argmax1_drawn")))


@claim(
    2,
    "attention to tokens after earlier occurrences, corrected for chance; 'only' is at most a fifth of that "
    "on triggers, 'every' at least half",
)
def active_on(records: Records) -> Iterator[Check]:
    """For fixed triggers, the induction head is only active for the triggers used in training [...] For random
    triggers, it is active on every repeated token.
    """
    fixed, random = (records.one(plan.TWO_LAYERS[kind]) for kind in ("fixed", "random"))
    yield at_least("fixed triggers: layer 2's induction attention on triggers", HALF, fixed.final("induction_mass2"))
    share = fixed.final("induction_other_mass2") / fixed.final("induction_mass2")
    yield at_most("fixed triggers: that on other repeated tokens, as a share of it", 0.2, share)
    share = random.final("induction_other_mass2") / random.final("induction_mass2")
    yield at_least("random triggers: that on other repeated tokens, as a share of that on triggers", HALF, share)

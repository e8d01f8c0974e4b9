"""The verdict on each head: its role, where the votes disagree, and the confidence in it.

A vote supports a role by min(1, score / (2 threshold)), so by one half at its threshold. The rest, 1 minus its largest
support, goes to "none". If the vote's score for a role is unknown, the rest is shared equally between "none" and the
roles with unknown scores. The supports of a vote are scaled to add up to one. A vote without any known score abstains.

The confidence in a verdict is its mean support over the three votes. A vote that abstains supports nothing, so with one
abstention the confidence is at most 2/3.

The effect of a head decides whether it has a role at all. A head without effect by any route has the role "none". If
its weights or its attention name a role, it is a *distractor*. A head with an effect gets the best supported role, even
if some votes for that role are below their thresholds: with long sequences few positions are ever learned. If the votes
support no role more than "none", the head is "other". If the effects are unknown (sharing.py), the two other votes name
the role, or "unknown" if they support none. The same holds if an effect is large but not clearly above zero: the vote
of the causes abstains, and the column `disagreement` says so.
"""

import numpy as np
import pandas as pd
from jaxtyping import Float

from induction_memory.heads.games import ROUTES
from induction_memory.heads.selection import listed, rows_of
from induction_memory.heads.sharing import CLEARLY, LEAST, UNKNOWN
from induction_memory.heads.votes import ROLES

VOTES = ("weights", "attention", "causes")
THRESHOLD = {"weights": 0.25, "attention": 0.25, "causes": LEAST}
NONE, OTHER = "none", "other"
UNCLEAR = "causes: effect not clear, more sequences would decide"


def support(scores: Float[np.ndarray, " role"], threshold: float) -> Float[np.ndarray, " role_and_none"]:
    """How far a vote's scores support each role and, last, "none". Sums to one; nan if the vote abstains."""
    unknown = np.isnan(scores)
    if unknown.all():
        return np.full(len(scores) + 1, np.nan)
    known = np.clip(np.nan_to_num(scores) / (2 * threshold), 0, 1)
    rest = (1 - known.max()) / (1 + unknown.sum())
    every = np.append(np.where(unknown, rest, known), rest)
    return every / every.sum()


def choice(scores: Float[np.ndarray, " role"], threshold: float) -> str:
    """The role with the best score, if above the threshold; "unknown" where the vote abstains."""
    if np.isnan(scores).all():
        return UNKNOWN
    best = int(np.nanargmax(scores))
    return ROLES[best] if scores[best] > threshold else NONE


def verdicts(votes: pd.DataFrame, shares: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """One row per head: role, confidence, each vote's choice, share of its layer's effect, and what is unusual."""
    rows = []
    effective, partners = with_effect(shares), redundant_partners(pairs)
    for head in listed(votes, "head"):
        of_layer = rows_of(shares, game="layer", head=head)
        scores = {vote: rows_of(votes, head=head, vote=vote)["score"].to_numpy() for vote in VOTES}
        supports = np.array([support(scores[vote], THRESHOLD[vote]) for vote in VOTES])
        choices = {vote: choice(scores[vote], THRESHOLD[vote]) for vote in VOTES}
        role, confidence = verdict(supports, head in effective)
        differ = [f"{vote}: {named}" for vote, named in choices.items() if named not in (role, UNKNOWN)]
        if role != NONE and head not in effective and choices["causes"] in ROLES:
            differ = [*(one for one in differ if not one.startswith("causes")), UNCLEAR]
        rows.append(
            {
                "layer": of_layer["layer"].tolist()[0],
                "head": head,
                "role": role,
                "confidence": confidence,
                **choices,
                "share": of_layer["share"].tolist()[0],
                "distractor": role == NONE and any(choices[vote] in ROLES for vote in ("weights", "attention")),
                "redundant_with": ", ".join(partners.get(head, [])),
                "disagreement": "; ".join(differ),
            }
        )
    return pd.DataFrame(rows)


def verdict(supports: Float[np.ndarray, "vote role_and_none"], has_effect: bool) -> tuple[str, float]:
    """The role and the confidence in it. `supports` has one row per vote, in the order of VOTES; nan: abstains."""
    causes = supports[VOTES.index("causes")]
    if not has_effect and causes[-1] >= causes[:-1].max():
        return NONE, float(causes[-1])
    known = np.nan_to_num(supports)
    if not has_effect:
        known[VOTES.index("causes")] = 0
    mean = known.mean(axis=0)
    best = int(np.argmax(mean))
    return (*ROLES, OTHER if has_effect else UNKNOWN)[best], float(mean[best])


def with_effect(shares: pd.DataFrame) -> set[str]:
    """The heads whose effect by some route is at least LEAST in size and clearly not zero."""
    routes = rows_of(shares, game=(*ROUTES, "layer"))
    size, error = np.abs(routes["effect"].to_numpy()), routes["effect_se"].to_numpy()
    clear = (size > LEAST) & (size > CLEARLY * error)
    return set(routes["head"].to_numpy()[clear].tolist())


def redundant_partners(pairs: pd.DataFrame) -> dict[str, list[str]]:
    """Head -> the heads that are mostly or fully redundant with it."""
    strong = rows_of(pairs, relation=("mostly redundant", "fully redundant"))
    partners: dict[str, list[str]] = {}
    for a, b in zip(strong["a"], strong["b"], strict=True):
        partners.setdefault(a, []).append(b)
        partners.setdefault(b, []).append(a)
    return partners

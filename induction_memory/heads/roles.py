"""The verdict on each head: its role, where the votes disagree, and how sure that is.

A vote supports a role by min(1, score / (2 threshold)), so by one half at its threshold, and "none" by what is left
over by the role it supports most; these are scaled to add up to one a vote. The confidence in a verdict is its mean
support over the votes.

What a head does decides whether it has a role at all. One without effect by any route has none, whatever it looks like:
if its weights or its attention name a role it is a *distractor*. Among those with an effect the best supported role
wins, even where a vote that leans the same way falls short of its threshold: with long sequences few positions are ever
learned. A head with an effect for which the votes support no role more than "none" is "other".
"""

import numpy as np
import pandas as pd
from jaxtyping import Float

from induction_memory.heads.games import ROUTES
from induction_memory.heads.selection import listed, rows_of
from induction_memory.heads.sharing import CLEARLY, LEAST
from induction_memory.heads.votes import ROLES

VOTES = ("weights", "attention", "causes")
THRESHOLD = {"weights": 0.25, "attention": 0.25, "causes": LEAST}
NONE, OTHER = "none", "other"


def support(scores: Float[np.ndarray, " role"], threshold: float) -> Float[np.ndarray, " role_and_none"]:
    """What a vote's scores for the roles give to each role and, last, to none. Sums to one; nan where it abstains."""
    if np.isnan(scores).all():
        return np.full(len(scores) + 1, np.nan)
    roles = np.clip(np.nan_to_num(scores) / (2 * threshold), 0, 1)
    every = np.append(roles, 1 - roles.max())
    return every / every.sum()


def choice(scores: Float[np.ndarray, " role"], threshold: float) -> str:
    """The role that a vote names: its best score, if above the threshold; nothing where it abstains."""
    if np.isnan(scores).all():
        return ""
    best = int(np.nanargmax(scores))
    return ROLES[best] if scores[best] > threshold else NONE


def verdicts(votes: pd.DataFrame, shares: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """One row a head: role, confidence, each vote's own choice, share of its layer's work, and what is odd about it."""
    rows = []
    matter, partners = who_matters(shares), redundant_partners(pairs)
    for head in listed(votes, "head"):
        of_layer = rows_of(shares, game="layer", head=head)
        scores = {vote: rows_of(votes, head=head, vote=vote)["score"].to_numpy() for vote in VOTES}
        supports = {vote: support(scores[vote], THRESHOLD[vote]) for vote in VOTES}
        choices = {vote: choice(scores[vote], THRESHOLD[vote]) for vote in VOTES}
        looks = any(choices[vote] in ROLES for vote in ("weights", "attention"))
        if head not in matter:
            role, confidence = NONE, float(supports["causes"][-1])
        else:
            mean = np.mean([given for given in supports.values() if not np.isnan(given).all()], axis=0)
            best = int(np.argmax(mean))
            role, confidence = (*ROLES, OTHER)[best], float(mean[best])
        differ = [f"{vote}: {named}" for vote, named in choices.items() if named not in (role, "")]
        rows.append(
            {
                "layer": of_layer["layer"].tolist()[0],
                "head": head,
                "role": role,
                "confidence": confidence,
                **choices,
                "share": of_layer["share"].tolist()[0],
                "distractor": role == NONE and looks,
                "redundant_with": ", ".join(partners.get(head, [])),
                "disagreement": "; ".join(differ),
            }
        )
    return pd.DataFrame(rows)


def who_matters(shares: pd.DataFrame) -> set[str]:
    """The heads with an effect by any route: of LEAST or more in size, and clearly not zero."""
    routes = rows_of(shares, game=(*ROUTES, "layer"))
    size, error = np.abs(routes["effect"].to_numpy()), np.nan_to_num(routes["effect_se"].to_numpy())
    clear = (size > LEAST) & (size > CLEARLY * error)
    return set(routes["head"].to_numpy()[clear].tolist())


def redundant_partners(pairs: pd.DataFrame) -> dict[str, list[str]]:
    """Head -> the heads that can stand in for it, mostly or fully."""
    strong = rows_of(pairs, relation=("mostly redundant", "fully redundant"))
    partners: dict[str, list[str]] = {}
    for a, b in zip(strong["a"], strong["b"], strict=True):
        partners.setdefault(a, []).append(b)
        partners.setdefault(b, []).append(a)
    return partners

"""From votes to roles: the role of a head, the agreement of its votes, changes of role, and the carriers of each role.

A vote supports a role by min(1, score / (2 threshold)), so by one half at the threshold. The rest, 1 minus its largest
support, goes to "none". If some scores of the vote are unknown, the rest is shared equally between "none" and the roles
with unknown scores. The supports of a vote are scaled to sum to one. A vote without any known score abstains.

The agreement on a role is its mean support over the three votes. A vote that abstains supports nothing, so with one
abstention the agreement is at most 2/3. For a head without effect, the agreement is the support of the vote `causes`
for "none".

The effect of a head decides whether it has a role at all. A head without effect by any route has the role "none". If
its weights or its attention name a role, it is a *distractor*. A head with an effect gets the best supported role, even
if some votes for that role are below their thresholds: with long sequences few positions are ever learned. If the votes
support no role more than "none", the head is "other". If the effects are unknown (sharing.py), the two other votes
decide the role, or "unknown" if they support none. The same holds if an effect is large but not clearly above zero:
`causes` abstains, and the column `disagreement` says so.

Over training:

born      the first step from which a head keeps its last role to the end; nan if only one step was examined
emerged   the first step from which the effect of a role's route is at least half of its final effect
decided   the first step from which the heads' shares s_t of that route stay near the final ones,
          1/2 sum |s_t - s_T| <= NEAR (shares of the heads with positive values, summing to one)

The carriers of a role are all heads with a share of its route (votes.py), in the layer where that route has most
effect, whatever their own role. The effective number of heads is the participation ratio of the shares.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from induction_memory.heads.games import ROUTES
from induction_memory.heads.sharing import CLEARLY, LEAST, UNKNOWN
from induction_memory.heads.votes import ROLES, ROUTE_OF
from induction_memory.memory.recall import first_lasting


def rows_of(table: pd.DataFrame, **columns: Any) -> pd.DataFrame:
    """The rows where every named column has this value (or, for a list or tuple, one of the values)."""
    keep = np.ones(len(table), dtype=bool)
    for name, wanted in columns.items():
        values = table[name].to_numpy()
        keep &= np.isin(values, list(wanted)) if isinstance(wanted, list | tuple) else values == wanted
    return table.loc[keep]


def listed(table: pd.DataFrame, column: str) -> list[Any]:
    """The different values of a column, in the order of their first appearance."""
    return list(dict.fromkeys(table[column].tolist()))


def at_last_step(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of each run's last step."""
    return table.loc[table["step"] == table.groupby("run")["step"].transform("max")]


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
    """The role with the best score, if above the threshold; "unknown" if the vote abstains."""
    if np.isnan(scores).all():
        return UNKNOWN
    best = int(np.nanargmax(scores))
    return ROLES[best] if scores[best] > threshold else NONE


def verdicts(votes: pd.DataFrame, shares: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """One row per head: role, agreement, each vote's choice, share of its layer's effect, and remarks.

    A head has an effect if by some route it is at least LEAST in size and clearly not zero.
    """
    rows = []
    routes = rows_of(shares, game=(*ROUTES, "layer"))
    size, error = np.abs(routes["effect"].to_numpy()), routes["effect_se"].to_numpy()
    effective = set(routes["head"].to_numpy()[(size > LEAST) & (size > CLEARLY * error)].tolist())
    redundant = rows_of(pairs, relation=("mostly redundant", "fully redundant"))
    for head in listed(votes, "head"):
        supports, choices = [], {}
        for vote in VOTES:
            scores = rows_of(votes, head=head, vote=vote)["score"].to_numpy()
            supports.append(support(scores, THRESHOLD[vote]))
            choices[vote] = choice(scores, THRESHOLD[vote])
        role, agreement = verdict(np.array(supports), head in effective)
        unclear = role != NONE and head not in effective and choices["causes"] in ROLES
        differ = []
        for vote, named in choices.items():
            if named not in (role, UNKNOWN) and not (unclear and vote == "causes"):
                differ.append(f"{vote}: {named}")
        of_layer = rows_of(shares, game="layer", head=head)
        partners = [*rows_of(redundant, b=head)["a"], *rows_of(redundant, a=head)["b"]]
        rows.append(
            {
                "layer": of_layer["layer"].tolist()[0],
                "head": head,
                "role": role,
                "agreement": agreement,
                **choices,
                "share": of_layer["share"].tolist()[0],
                "distractor": role == NONE and (choices["weights"] in ROLES or choices["attention"] in ROLES),
                "redundant_with": ", ".join(partners),
                "disagreement": "; ".join([*differ, UNCLEAR] if unclear else differ),
            }
        )
    return pd.DataFrame(rows)


def verdict(supports: Float[np.ndarray, "vote role_and_none"], has_effect: bool) -> tuple[str, float]:
    """The role and the agreement on it. `supports` has one row per vote, in the order of VOTES; nan: abstains."""
    causes = supports[VOTES.index("causes")]
    if not has_effect and causes[-1] >= causes[:-1].max():
        return NONE, float(causes[-1])
    known = np.nan_to_num(supports)
    if not has_effect:
        known[VOTES.index("causes")] = 0
    mean = known.mean(axis=0)
    best = int(np.argmax(mean))
    return (*ROLES, OTHER if has_effect else UNKNOWN)[best], float(mean[best])


NEAR = 0.1


def role_births(roles: pd.DataFrame) -> pd.DataFrame:
    """One row per run and head that ends with a role: run, head, role, born."""
    rows = []
    for run, head, steps, held in _histories(roles):
        if held[-1] in ROLES:
            born = float(first_lasting(held == held[-1], steps)) if len(steps) > 1 else np.nan
            rows.append((run, head, held[-1], born))
    return pd.DataFrame(rows, columns=["run", "head", "role", "born"])


def changes(roles: pd.DataFrame) -> pd.DataFrame:
    """One row per change of role: run, head, step (the first with the new role), before, after."""
    rows = []
    for run, head, steps, held in _histories(roles):
        for i in np.flatnonzero(held[1:] != held[:-1]):
            rows.append((run, head, int(steps[i + 1]), held[i], held[i + 1]))
    return pd.DataFrame(rows, columns=["run", "head", "step", "before", "after"])


def decisions(shares: pd.DataFrame) -> pd.DataFrame:
    """One row per run and role, in the layer with the largest effect at the end: run, role, layer, emerged, decided."""
    rows = []
    for run in listed(shares, "run"):
        for role in ROLES:
            own = rows_of(shares, run=run, game=ROUTE_OF[role])
            work = {layer: work_over_steps(rows_of(own, layer=layer)) for layer in listed(own, "layer")}
            if not work:
                continue
            layer = max(work, key=lambda one: work[one][1][-1].sum())
            steps, parts = work[layer]
            total = parts.sum(1)
            emerged = decided = np.nan
            if total[-1] > 0:
                emerged = float(first_lasting(total >= total[-1] / 2, steps))
                distance = 0.5 * np.abs(normalised(parts) - normalised(parts[-1:])).sum(1)
                decided = float(first_lasting(distance <= NEAR, steps))
            rows.append((run, role, layer, emerged, decided))
    return pd.DataFrame(rows, columns=["run", "role", "layer", "emerged", "decided"])


def work_over_steps(shares: pd.DataFrame) -> tuple[Int[np.ndarray, " step"], Float[np.ndarray, "step head"]]:
    """The steps, and the heads' Shapley values at each step, of one run, game and layer."""
    steps, heads = listed(shares, "step"), listed(shares, "head")
    return np.array(steps), shares["shapley"].to_numpy().reshape(len(steps), len(heads))


def normalised(parts: Float[np.ndarray, "step head"]) -> Float[np.ndarray, "step head"]:
    """Shares of the heads with positive values, summing to one; zeros where there are none."""
    helping = np.clip(parts, 0, None)
    total = helping.sum(1, keepdims=True)
    return np.divide(helping, total, out=np.zeros_like(helping), where=total > 0)


def _histories(roles: pd.DataFrame) -> Iterator[tuple[str, str, np.ndarray, np.ndarray]]:
    """Run, head, steps, and the role at each step."""
    by_head: Any = roles.groupby(["run", "head"], sort=False)
    for (run, head), own in by_head:
        yield run, head, own["step"].to_numpy(), own["role"].to_numpy()


def carriers(shares: pd.DataFrame, totals: pd.DataFrame) -> pd.DataFrame:
    """One row per run, role and head: layer, share, share_se, effective (the same for all heads). One step per run.

    The heads are in the layer in which the role's route has most effect. A role without an effect has no rows.
    """
    rows = []
    for run in listed(totals, "run"):
        for role in ROLES:
            of_route = rows_of(totals, run=run, game=ROUTE_OF[role])
            with_heads = of_route.loc[np.isfinite(of_route["effective"])]
            if with_heads.empty:
                continue
            strongest = with_heads.loc[with_heads["effect"].idxmax()]
            own = rows_of(shares, run=run, game=ROUTE_OF[role], layer=strongest["layer"])
            error = (own["shapley_se"] * own["share"] / own["shapley"]).abs()
            for head, share, se in zip(own["head"], own["share"], error, strict=True):
                rows.append((run, role, strongest["layer"], head, share, se, strongest["effective"]))
    return pd.DataFrame(rows, columns=["run", "role", "layer", "head", "share", "share_se", "effective"])

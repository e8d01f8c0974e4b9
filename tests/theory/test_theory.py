"""Every check holds, and turns when its closed form is broken on purpose."""

import pandas as pd
import pytest
import torch

from analyses import theory_page
from induction_memory.errors import InputError
from induction_memory.memory import gradients
from induction_memory.paper import theory, verdicts
from induction_memory.paper.theory import (
    architectures,
    checks,
    first_step_recall,
    lemmas,
    random_vectors,
    theorem,
    theorem_model,
)
from induction_memory.paper.theory.checks import CATALOGUE, find
from induction_memory.paper.theory.pictures import draw

KEY_QUERY, FIRST_LAYER = gradients.key_query_gradient, gradients.first_layer_gradient
RECURSION, PREDICTED_RECALL = lemmas.recursion, random_vectors.predicted_recall
GAMMA, CONSTANTS, ATTENDED_CONTENT = theorem.gamma, theorem.output_constants, theorem.attended_content
POSITION_SIGNAL, ONE_STEP_RECALL = theorem.position_signal, first_step_recall.one_step_recall


def wrong_sign(closed_form):
    return lambda *args: -closed_form(*args)


def without_predictions(W, w_E, w_U, joint):
    return -w_U.mT @ joint.mT @ w_E  # Lemma 1 without p_hat


def without_mu_hat(W, x, labels, weights, w_U):
    mass, mu = gradients.class_means(x, labels, weights, len(w_U))
    return -w_U.mT @ (mass.unsqueeze(-1) * mu)


def without_centring(w_E, w_U, eta):
    return eta / len(w_E) * w_U.mT @ w_E


def uncentred_keys(data, Phi_2, w_U, keys):
    shifted = torch.cat([keys, -keys.sum(1, keepdim=True)], 1)  # the mean of these is zero: nothing is subtracted
    values = torch.cat([data.X, data.X[:, -1:]], 1)
    return KEY_QUERY(gradients.Sequences(values, data.labels, data.weights), Phi_2, w_U, shifted)


def without_average_value(data, p, W_2, Phi_1, Phi_2, w_U):
    return FIRST_LAYER(data, p, W_2, Phi_1, 0.5 * Phi_2, w_U)


def unprojected(W, x, conditional, weights, w_U):
    h = x @ W.mT
    norm = h.norm(dim=-1, keepdim=True)
    error = (h / norm @ w_U.mT).softmax(-1) - conditional
    return (error @ w_U / norm * weights.unsqueeze(-1)).mT @ x


def without_decay(alpha_0, alpha, p_hat, joint, decay):
    return RECURSION(alpha_0, alpha, p_hat, joint, 0.0)


def without_mean_position(N, T):
    u, v = theorem.label_law(N, T), theorem.trigger_places(T)
    t = torch.arange(1, T + 1, dtype=torch.float64).unsqueeze(-1)
    return (u.mT @ v / (T - 1) / (T * t)).mT.triu()


def wide_interference(n, d):
    return PREDICTED_RECALL(n, max(2, int(d**0.5)))


def independent_terms(n, d, rank):
    return ((4 / rank + 2 / d + 4 * n / (d * rank)) / 4) ** 0.5


def wrong_recall(contrasts, V):
    return ONE_STEP_RECALL(-contrasts, V)


def another_case(N, T):
    return ATTENDED_CONTENT(N, T) | {"i = j = k": 2 / T}


BROKEN = {
    "Lemma 1, sign": (lemmas.lemma_1, gradients, "token_gradient", wrong_sign(gradients.token_gradient)),
    "Lemma 1, no p_hat": (lemmas.lemma_1, gradients, "token_gradient", without_predictions),
    "Lemma 2, no mu_hat": (lemmas.lemma_2, gradients, "noisy_gradient", without_mu_hat),
    "example, not centred": (lemmas.example, lemmas, "example_step", without_centring),
    "Lemma 4, sign": (lemmas.lemma_4, gradients, "key_query_gradient", wrong_sign(KEY_QUERY)),
    "Lemma 4, keys not centred": (lemmas.lemma_4, gradients, "key_query_gradient", uncentred_keys),
    "Lemma 5, sign": (lemmas.lemma_5, gradients, "first_layer_gradient", wrong_sign(FIRST_LAYER)),
    "Lemma 5, half the values": (lemmas.lemma_5, gradients, "first_layer_gradient", without_average_value),
    "iterates, no decay": (lemmas.iterates, lemmas, "recursion", without_decay),
    "remapping, half the pairs": (
        random_vectors.random_vectors,
        random_vectors,
        "remapped_variance",
        random_vectors.printed_variance,
    ),
    "capacity, sqrt(n/d)": (random_vectors.capacity, random_vectors, "predicted_recall", wide_interference),
    "step 1, no tau": (theorem.theorem_step_1, theorem, "output_constants", lambda N, T: (CONSTANTS(N, T)[0], 0.0)),
    "step 1, as printed": (theorem.theorem_step_1, theorem, "output_constants", lambda N, T: (1.0, theorem.tau(T))),
    "step 2, sign": (theorem.theorem_step_2, theorem, "gamma", lambda T: -GAMMA(T)),
    "step 2, no mean key": (theorem.theorem_step_2, theorem, "match_constant", lambda N, T: GAMMA(T) + 1 / T),
    "step 2, one case": (theorem.theorem_step_2, theorem, "attended_content", another_case),
    "step 3, no mean position": (theorem.theorem_step_3, theorem, "position_constants", without_mean_position),
    "step 3, next position": (theorem.theorem_step_3, theorem, "position_signal", lambda T: -POSITION_SIGNAL(T)),
    "factorisation, no U_0": (architectures.factorisation, architectures, "expanded", architectures.printed_product),
    "factorisation, no coherence": (architectures.factorisation, architectures, "factorised_noise", independent_terms),
    "layer norm, not projected": (architectures.layer_norm, gradients, "normalised_gradient", unprojected),
    "sets, orthogonal": (architectures.set_memory, architectures, "shared_elements", lambda size: 0.0),
    "one step, sign": (
        lambda: first_step_recall.one_step(repeats=1),
        first_step_recall,
        "one_step_recall",
        wrong_recall,
    ),
}
"""Check, and the closed form that is replaced by a wrong one."""


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_closed_form_turns_the_verdict(name, monkeypatch):
    check, *place, broken = BROKEN[name]
    monkeypatch.setattr(*place, broken)
    assert not all(row.expected for row in check().checks)


LONG = {"theorem-accuracy", "theorem-order", "theorem-simplifications", "one-step"}
QUICK = [entry.name for entry in CATALOGUE if entry.name not in LONG]
ROWS_ALONE = {
    "conditioning",
    "feature-learning",
    "frequencies",
    "initial-attention",
    "ignored-residual",
    "initial-matrix",
    "row-space",
    "starved-outputs",
    "theorem-terms",
    "trigger-prediction",
    "lemma-1",
    "lemma-2",
    "lemma-4",
    "theorem-data",
    "theorem-step-1",
    "theorem-step-2",
    "layer-norm",
    "set-memory",
}


@pytest.fixture(scope="module")
def quick_results():
    return {entry.name: (entry, result) for entry, result in theory.measure(QUICK)}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_each_statement_comes_out_as_expected(name, quick_results):
    entry, result = quick_results[name]
    table = theory.table(entry, result)
    assert all(table["expected"]), table[~table["expected"]].to_string()


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_each_picture_is_drawn_from_the_tables_alone(name, quick_results):
    figure = draw(name, quick_results[name][1].tables)
    assert (figure is None) == (name in ROWS_ALONE)
    if figure is not None:
        assert all(axes.has_data() for axes in figure.axes)


@pytest.mark.slow
def test_the_page_holds_every_row_and_marks_slips_and_failures(quick_results, tmp_path):
    entry, result = quick_results["random-vectors"]
    text = theory_page.section(entry, result, tmp_path)
    assert all(check.statement.replace("|", "\\|") in text for check in result.checks)
    assert "*slip*" in text
    bad = checks.Result((verdicts.at_least("too much", 1.0, 0.5),))
    assert "**fails**" in theory_page.section(entry, bad, tmp_path)
    assert "and 1 are not as expected" in " ".join(theory_page.summary([(entry, bad.checks[0])]).split())


@pytest.mark.slow
def test_one_step_recall_grows_with_dimension_and_data():
    result = first_step_recall.one_step(repeats=1)
    assert all(row.expected for row in result.checks)
    assert draw("one-step", result.tables) is not None


@pytest.mark.slow
def test_three_steps_in_the_right_order_and_in_no_other_make_an_induction_head():
    result = theorem_model.theorem_order()
    assert len(result.checks) == 12
    assert all(row.expected for row in result.checks)
    assert draw("theorem-order", result.tables) is not None


@pytest.mark.hard
@pytest.mark.parametrize("name", sorted(LONG))
def test_the_longer_statements_come_out_as_expected(name, tmp_path):
    table = theory.run([name], out=tmp_path)
    assert all(table["expected"]), table[~table["expected"]].to_string()
    assert (tmp_path / f"{name}.png").exists()


def test_run_returns_one_table_and_writes_it(tmp_path):
    table = theory.run(["lemma-5", "lemma-1"], out=tmp_path)
    assert list(dict.fromkeys(table["check"])) == ["lemma-1", "lemma-5"]  # the paper's order
    assert {"statement", "predicted", "measured", "tolerance", "verdict"} <= set(table.columns)
    assert all(table["verdict"])
    assert (tmp_path / "lemma-5.png").exists()
    assert len(pd.read_csv(tmp_path / "theory.csv")) == len(table)


def test_an_unknown_check_is_refused_with_the_known_names():
    with pytest.raises(InputError, match=r"check: expected one of lemma-1, .*one-step, got 'lemma-9'"):
        find(["lemma-9"])


def test_verdicts_by_hand():
    assert verdicts.within("", 2.0, 2.05, 0.05).holds
    assert not verdicts.within("", 2.0, 2.11, 0.05).holds
    assert verdicts.near("", 0.0, -0.1, 0.1).holds
    assert verdicts.sampled("", 1.0, 1.3, 0.1).holds
    assert not verdicts.sampled("", 1.0, 1.5, 0.1).holds
    slip = verdicts.known_slip(verdicts.at_most("", 1.0, 2.0))
    assert not slip.holds
    assert slip.expected
    assert not verdicts.known_slip(verdicts.at_least("", 1.0, 2.0)).expected

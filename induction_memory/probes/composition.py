"""Composition between the layers' heads, and copying, read from the weights (Elhage et al., 2021).

With Phi_1 the value-output matrix of a layer-1 head and W_K2, Phi_2 two matrices of a layer-2 head (`memories`):

    K-composition  |W_K2 Phi_1|_F / (|W_K2| |Phi_1|)        its keys read what layer 1 wrote
    Q-composition  |W_K2^T Phi_1|_F / (|W_K2| |Phi_1|)      its queries read it
    V-composition  |Phi_2 Phi_1|_F / (|Phi_2| |Phi_1|)      its values read it

The baseline keeps the singular values of both matrices and rotates one against the other at random. For a Haar-random
rotation R, the square of |A R B|_F / (|A| |B|) is sum_ij a_i R_ij^2 b_j, with a and b the squared singular values
divided by their sums. Its mean is 1/d. `_baseline` and `_spread` are the mean and the standard deviation of the score
over rotations, and `_z` = (score - baseline) / spread.

Copying: the eigenvalues l of the map from tokens to logits, w_U Phi w_E^T: sum l / sum |l|, which is 1 when every
token raises its own logit, and near 0 for a random map.

With several heads, compositions are for pairs `L1H3>L2H1`: layer-1 head 3 read by layer-2 head 1.
"""

from functools import lru_cache, partial

import torch
from jaxtyping import Float
from torch import Tensor

from induction_memory.errors import UnsupportedError
from induction_memory.memory.edits import where_finite
from induction_memory.probes.registry import Probe
from induction_memory.source.sources import Stack

ROTATIONS = 32  # random rotations for a baseline
ROTATION_SEED = 0
_LETTERS = {
    "K": "|W_K2 Phi_1| / (|W_K2| |Phi_1|)",
    "Q": "|W_K2^T Phi_1| / (|W_K2| |Phi_1|)",
    "V": "|Phi_2 Phi_1| / (|Phi_2| |Phi_1|)",
}
_READINGS = {
    "": "",
    "_baseline": ": its mean when Phi_1 is turned at random",
    "_spread": ": its standard deviation when Phi_1 is turned at random",
    "_z": ": (score - baseline) / spread",
}


def composition(A: Float[Tensor, "*#lead m d"], B: Float[Tensor, "*#lead d n"]) -> Float[Tensor, "*lead"]:
    """|A B| / (|A| |B|) by Frobenius norms."""
    norm = torch.linalg.matrix_norm
    return norm(A @ B) / (norm(A) * norm(B))


def squared_spectrum(A: Float[Tensor, "*lead m n"], d: int) -> Float[Tensor, "*lead d"]:
    """Squared singular values, scaled to sum to one and padded with zeros to length d."""
    gram = A.mT @ A if A.shape[-1] <= A.shape[-2] else A @ A.mT
    values = where_finite(torch.linalg.eigvalsh, gram.double()).clamp(min=0)
    values = values / values.sum(-1, keepdim=True)
    return torch.nn.functional.pad(values, (0, d - values.shape[-1]))


@lru_cache(maxsize=4)
def squared_rotations(d: int) -> Float[Tensor, "rotation d d"]:
    """Squared entries of Haar-random rotations, from a fixed seed."""
    generator = torch.Generator().manual_seed(ROTATION_SEED)
    gaussian = torch.randn(ROTATIONS, d, d, generator=generator, dtype=torch.float64)
    return torch.linalg.qr(gaussian).Q.square()


def turned(
    a: Float[Tensor, "*#lead d"], b: Float[Tensor, "*#lead d"], rotations: Float[Tensor, "rotation d d"]
) -> Float[Tensor, "*lead rotation"]:
    """The composition of two matrices with these spectra, one value per rotation between them."""
    return torch.einsum("...i,rij,...j->...r", a, rotations, b).sqrt()


def copying(logits: Float[Tensor, "*lead n n"]) -> Float[Tensor, "*lead"]:
    """sum l / sum |l| over the eigenvalues."""
    values = where_finite(torch.linalg.eigvals, logits.double())
    return values.real.sum(-1) / values.abs().sum(-1)


def composed(letter: str, reading: str, stack: Stack) -> Float[Tensor, "step head head2"]:
    """The composition score of each pair of heads, or its baseline, spread or z."""
    stack.require_layers(2)
    reader = stack.memory("Phi_2" if letter == "V" else "W_K2")
    if letter == "Q":
        reader = reader.mT
    reader, writer = reader.unsqueeze(1), stack.memory("Phi_1").unsqueeze(2)
    score = composition(reader, writer)
    if not reading:
        return score
    null = stack.once(f"turned {letter}", lambda: _null(stack, letter)).expand(*score.shape, -1)
    baseline, spread = null.mean(-1), null.std(-1)
    if reading == "_baseline":
        return baseline
    return spread if reading == "_spread" else (score - baseline) / spread


def _null(stack: Stack, letter: str) -> Float[Tensor, "step head head2 rotation"]:
    d = stack.d_model
    reader = "Phi_2" if letter == "V" else "W_K2"  # a transpose has the same singular values
    a, b = (
        stack.once(f"squared spectrum of {name}", lambda name=name: squared_spectrum(stack.memory(name), d))
        for name in (reader, "Phi_1")
    )
    return turned(a.unsqueeze(1), b.unsqueeze(2), squared_rotations(d).to(a.device))


def copied(layer: int, stack: Stack) -> Float[Tensor, "step head"]:
    """The copying score of each head of a layer."""
    stack.require_layers(layer)
    w_U, Phi, w_E = stack.embedding("w_U"), stack.memory(f"Phi_{layer}"), stack.embedding("w_E")
    if w_U.shape[-2] != w_E.shape[-2]:
        raise UnsupportedError("needs outputs that are tokens, the model has a separate output vocabulary")
    if stack.vocab_size <= stack.d_model:
        return copying(w_U @ Phi @ w_E.mT)
    return copying(Phi @ w_E.mT @ w_U)  # the same non-zero eigenvalues, from a smaller matrix


def copying_probe(layer: int) -> Probe:
    about = f"eigenvalues l of W_U Phi_{layer} W_E: sum l / sum |l|"
    return Probe(f"copying{layer}", about, partial(copied, layer), "weights", (layer,), "composition")


NUMBERED = {"copying": copying_probe}
PROBES = {
    f"{letter}_composition{reading}": Probe(
        f"{letter}_composition{reading}",
        formula + what,
        partial(composed, letter, reading),
        "weights",
        (1, 2),
        "composition",
    )
    for letter, formula in _LETTERS.items()
    for reading, what in _READINGS.items()
} | {f"copying{layer}": copying_probe(layer) for layer in (1, 2)}

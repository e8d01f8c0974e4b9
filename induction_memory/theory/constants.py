"""The constants of Theorem 3, as the paper predicts them and exactly (Appendix B.3).

With orthonormal embeddings and p_hat = 1/N the three gradient steps depend only on two tables over t_q = 1 .. T - 1:

    u[t_q, t] = P(z_t = y | t_q)        v[t_q, t] = 1{z_t = q}, which t_q decides.

Write E for the mean over t_q, v_t for the running mean of v over s <= t, and alpha, alpha' for the contrasts
(diagonal minus off-diagonal) of the first two memories. The gradient steps of size eta then give, exactly,

    W_O2:  alpha  = eta/(N T) c_0,   c_0 = sum_t D_t,  and c_1 = sum_t D_t sum_{s >= t} 1/s through Phi_1,
                    D_t = P(z_t = k | y = k) - P(z_t = j | y = k) = (N E[u_t] - 1) / (N - 1)
    W_K2:  alpha' = alpha eta/(N T) g,  g = N/(N - 1) E[ sum_t u_t (v_t - mean_t v_t) ]
    W_K1:  coefficient of p_s p_t^T = eta alpha alpha' / (T t) E[ (u_t - mean u) (v[s] - v_t) ]  for s <= t.

The paper's 1, tau, gamma_T and P(t_q = t - 1)/t are their leading terms. The second half of W_K2's gradient, the mean
over all y, vanishes: sum_k 1{z_t = k} = 1 leaves sum_t (x_{t,1} - x_bar) = 0. So the only noise in W_K2 is
-1/(N - 1) of the signal. The paper bounds it by O(T/N).
"""

import torch
from jaxtyping import Float
from torch import Tensor


def tau(T: int) -> float:
    """The paper's tau = E[sum_{t >= t_o} 1/t], with t_o uniform on 2 .. T."""
    return 1 - (_harmonic(T) - 1) / (T - 1)


def gamma(T: int) -> float:
    """The paper's gamma_T = E[1/t_o - 1/T sum_{t >= t_o - 1} 1/t] - 1/T^2, with t_o uniform on 2 .. T."""
    return (_harmonic(T) - 1) / (T - 1) - (1 + 1 / T) / T - 1 / T**2


def position_signal(T: int) -> Float[Tensor, "key query"]:
    """The paper's W_K1 over eta alpha alpha': (T - 1) / (T^2 t) P(t_q = t - 1) (1{s = t - 1} - 1/t 1{s <= t})."""
    t = torch.arange(1, T + 1, dtype=torch.float64)
    previous = torch.eye(T, dtype=torch.float64).roll(-1, 0)
    previous[-1] = 0
    signal = (T - 1) / (T**2 * t) / (T - 1) * (previous - 1 / t)
    signal[:, 0] = 0  # t = 1 has no position before it
    return signal.triu()


def label_law(N: int, T: int) -> Float[Tensor, "first pos"]:
    """u: the output is at t_o, at a free position by chance, and at a trigger's position only if o = q."""
    u = torch.full((T - 1, T), 1 / (N - 1), dtype=torch.float64)
    u[:, -1] = 0
    rows = torch.arange(T - 1)
    u[rows, rows] = 0
    u[rows, rows + 1] = 1
    u[-1] = 0
    u[-1, -2:] = 1
    return u


def trigger_places(T: int) -> Float[Tensor, "first pos"]:
    """v: the trigger stands at t_q and at T."""
    v = torch.eye(T, dtype=torch.float64)[:-1]
    v[:, -1] = 1
    return v


def output_constants(N: int, T: int) -> tuple[float, float]:
    """c_0 and c_1, whose leading terms are 1 and tau."""
    excess = (N * label_law(N, T).mean(0) - 1) / (N - 1)
    tail = (1 / torch.arange(1, T + 1, dtype=torch.float64)).flip(0).cumsum(0).flip(0)
    return excess.sum().item(), (excess * tail).sum().item()


def match_constant(N: int, T: int) -> float:
    """g, whose leading term is gamma_T."""
    running = running_mean(trigger_places(T))
    centred = running - running.mean(-1, keepdim=True)
    return N / (N - 1) * (label_law(N, T) * centred).sum(-1).mean().item()


def position_constants(N: int, T: int) -> Float[Tensor, "key query"]:
    """The exact W_K1 in units of eta alpha alpha', to compare with `position_signal`."""
    u, v = label_law(N, T), trigger_places(T)
    worth = u - u.mean(-1, keepdim=True)
    expected = worth.mT @ v / (T - 1) - (worth * running_mean(v)).mean(0).unsqueeze(-1)  # [query t, key s]
    t = torch.arange(1, T + 1, dtype=torch.float64).unsqueeze(-1)
    return (expected / (T * t)).mT.triu()


def attended_content(N: int, T: int) -> dict[str, float]:
    """a_{k,j,i}: the weight of Phi_1 w_E(i) in E[x_{t_o,1} - x_bar_1 | y = k, q = j], by the paper's cases.

    The fourth case is averaged over k != j, as in the paper. gamma here is conditioned on k != j, hence t_o < T.
    """
    t_o = torch.arange(2, T, dtype=torch.float64)
    tail = torch.tensor([sum(1 / t for t in range(int(o) - 1, T + 1)) for o in t_o], dtype=torch.float64)
    own = (1 / t_o - tail / T).mean().item() - 1 / T**2
    return {
        "j != k, i = j": own,
        "i = j = k": 2 / T - 1 / (T * (T - 1)) - 2 / T**2,
        "i != j = k": (T - 2) / (T * (N - 1)) - (T - 2) * (1 + 1 / (T - 1) + 1 / T) / (T * (N - 1)),
        "i != j, j != k": -own / (N - 1),
    }


def running_mean(v: Float[Tensor, "first pos"]) -> Float[Tensor, "first pos"]:
    return v.cumsum(-1) / torch.arange(1, v.shape[-1] + 1, dtype=v.dtype)


def _harmonic(T: int) -> float:
    return sum(1 / t for t in range(1, T + 1))

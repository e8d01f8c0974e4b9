"""The paper on one screen, in plain torch: task, simplified model, three memories, recall. Nothing of the package.

    python analyses/paper.py        # trains for half a minute

`docs/paper.md` explains each line; `tests/test_paper.py` holds each function equal to the package.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot


def sample(n: int, T: int, K: int, pi_u: Tensor, pi_b: Tensor) -> tuple[Tensor, Tensor]:
    """Section 3: z_1 ... z_{T+1}, and the positions whose trigger was seen before, so that its output is known."""
    N = len(pi_u)
    q = torch.multinomial(pi_u.expand(n, N), K)  # triggers, drawn without replacement
    o = torch.randint(N, (n, K))  # their outputs, the same throughout a sequence
    p = pi_b.expand(n, N, N).scatter(1, q[..., None].expand(n, K, N), one_hot(o, N).to(pi_b.dtype))
    z = [torch.multinomial(pi_u, n, replacement=True)]
    for _ in range(T):
        z.append(torch.multinomial(p[torch.arange(n), z[-1]], 1)[:, 0])
    z = torch.stack(z, 1)
    is_q = z[:, :-1, None] == q[:, None, :]
    return z, (is_q & (is_q.cumsum(1) >= 2)).any(-1)


def initial(N: int, T: int, d: int) -> dict[str, Tensor]:
    """Section 4.2: everything random. W_K1, W_K2 and W_O2 will be trained, the others never."""
    maps = {
        name: (2 * torch.rand(d, d) - 1) / math.sqrt(d) for name in ("W_K1", "W_V1", "W_O1", "W_K2", "W_V2", "W_O2")
    }
    return {"w_E": torch.randn(N, d), "p": torch.randn(T, d), "w_U": (2 * torch.rand(N, d) - 1) / math.sqrt(d), **maps}


def logits(w: dict[str, Tensor], z: Tensor) -> Tensor:
    """Section 2 with W_Q = I: x_t + sum_s softmax_s(x_t^T W_K x_s / sqrt(d)) W_O W_V x_s, in two layers."""
    x = w["w_E"][z] + w["p"][: z.shape[1]]
    future = torch.full((z.shape[1], z.shape[1]), -torch.inf).triu(1)
    for layer in "12":
        attention = (x @ w["W_K" + layer] @ x.mT / math.sqrt(x.shape[-1]) + future).softmax(-1)
        x = x + attention @ x @ (w["W_O" + layer] @ w["W_V" + layer]).T
    return x @ w["w_U"].T


def pairs(w: dict[str, Tensor]) -> dict[str, tuple[Tensor, Tensor]]:
    """Section 4.2: what each memory should store. W = sum_i v_i u_i^T for the rows u_i (inputs) and v_i (outputs)."""
    remapped = w["w_E"] @ (w["W_O1"] @ w["W_V1"]).T  # Phi_1 w_E(k): what layer 1 leaves of the token before
    return {
        "W_K1": (w["p"][:-1], w["p"][1:]),  # a position looks at the one before it
        "W_K2": (remapped, w["w_E"]),  # a token looks at positions that come after itself
        "W_O2": (w["w_E"] @ w["W_V2"].T, w["w_U"]),  # the token there is what comes next
    }


def recall(W: Tensor, u: Tensor, v: Tensor, given: str) -> float:
    """Section 5: the share of pairs with the best score v_j^T W u_i. Keys compete for a query, outputs for an input."""
    scores = v @ W @ u.T
    best = scores.argmax(1 if given == "query" else 0)
    return (best == torch.arange(len(best))).float().mean().item()


def main(steps: int = 200, n: int = 128, N: int = 65, T: int = 64, K: int = 5, d: int = 128) -> None:
    """Train the three memories by SGD on the outputs of triggers, and print what each recalls."""
    torch.manual_seed(0)
    pi_u = torch.randn(N).mul(2).softmax(0)  # some tokens are frequent, as in a text
    pi_b = (torch.randn(N, N) + pi_u.log()).softmax(1)
    w = initial(N, T, d)
    trained = [w[name].requires_grad_() for name in ("W_K1", "W_K2", "W_O2")]
    optimizer = torch.optim.SGD(trained, lr=0.5, momentum=0.9, weight_decay=1e-4)
    for step in range(steps + 1):
        z, known = sample(n, T, K, pi_u, pi_b)
        out, target = logits(w, z[:, :-1])[known], z[:, 1:][known]
        if step % 40 == 0:
            sides = {"W_K1": "query", "W_K2": "query", "W_O2": "input"}
            found = {name: recall(w[name], *pairs(w)[name], given=side) for name, side in sides.items()}
            right = (out.argmax(-1) == target).float().mean().item()
            print(f"step {step:4}  accuracy {right:.2f}  " + "  ".join(f"{k} {v:.2f}" for k, v in found.items()))
        optimizer.zero_grad()
        cross_entropy(out, target).backward()
        optimizer.step()


if __name__ == "__main__":
    main()

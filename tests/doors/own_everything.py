"""A user's script: a task, a model, a probe, a kind of ablation and a hook of one's own, with the package as it is.

`python own_everything.py train WHOLE KILLED` trains one run to its end and another until it kills itself, with no
warning, in the middle of a step. `python own_everything.py look WHOLE KILLED` resumes the second one and prints, as
JSON, whether both have the same bits and what the analyses give.
"""

import json
import os
import signal
import sys
from dataclasses import dataclass
from typing import ClassVar

import torch
from transformer_lens import HookedTransformerConfig

import induction_memory as im


@im.task.register
@dataclass(frozen=True)
class AfterTheMark:
    """The sequence `.. M x .. M` asks for x: copy what followed the mark the last time."""

    name: ClassVar[str] = "after-the-mark"
    main: ClassVar[str] = "second mark"
    symbols: int = 6
    length: int = 12

    @property
    def n_inputs(self):
        return self.symbols + 1

    n_outputs = n_inputs

    def sample(self, n, rng):
        Unlucky.look()
        tokens = torch.from_numpy(rng.integers(self.symbols, size=(n, self.length)))
        first = torch.from_numpy(rng.integers(1, self.length - 3, size=n))
        rows = torch.arange(n)
        tokens[rows, first] = self.symbols
        tokens[:, -1] = self.symbols
        targets = torch.zeros_like(tokens)
        targets[:, -1] = tokens[rows, first + 1]
        asked = torch.zeros_like(tokens, dtype=torch.bool)
        asked[:, -1] = True
        return im.task.Batch(tokens, targets, asked, {self.main: asked}, self.main, {"first": first})

    def predictors(self):
        def uniform(tokens):
            even = torch.full((*tokens.shape, self.n_outputs), 1 / self.symbols, dtype=torch.float64)
            even[..., self.symbols] = 0
            return even

        def copied(tokens):
            marks = tokens[:, :-1] == self.symbols
            answer = tokens.gather(1, marks.int().argmax(1, keepdim=True) + 1)
            sure = torch.nn.functional.one_hot(answer, self.n_outputs).double()
            return torch.where(
                torch.arange(tokens.shape[1])[None, :, None] == tokens.shape[1] - 1, sure, uniform(tokens)
            )

        return {"uniform": uniform, "bayes": copied}

    def sources(self, batch):
        rows = torch.arange(len(batch))
        wanted = torch.zeros(*batch.tokens.shape, batch.tokens.shape[1], dtype=torch.bool)
        wanted[rows, -1, batch.latents["first"] + 1] = True
        return {"induction": wanted}


class Unlucky:
    """Kills the process when the given number of batches has been drawn."""

    left = -1

    @classmethod
    def look(cls):
        if cls.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        cls.left -= 1


TASK = AfterTheMark()
MODEL = HookedTransformerConfig(
    n_layers=3,
    d_model=24,
    n_heads=2,
    d_head=12,
    d_mlp=48,
    n_ctx=TASK.length,
    d_vocab=TASK.n_inputs,
    act_fn="gelu",
    positional_embedding_type="rotary",
    rotary_dim=12,
)
STEPS = 40


def train(out, resume=False):
    return im.train(
        TASK,
        MODEL,
        out=out,
        steps=STEPS,
        frozen=["unembed.b_U", "blocks.0.ln1"],
        resume=resume,
        progress=False,
        batch_size=32,
        optimizer="adamw",
        learning_rate=3e-3,
        checkpoints="every 10",
        resume_every=7,
        threads=1,
    )


@im.probes.register("size_of_attention", about="Frobenius norm of every W_K together")
def size_of_attention(stack):
    parts = [stack.parameter(f"blocks.{layer}.attn.W_K").flatten(1) for layer in range(stack.n_layers)]
    return torch.cat(parts, 1).norm(dim=1)


@im.interventions.register("median")
def median(run, site):
    return run.at(site).median(-2, keepdim=True).values


def look(whole, killed):
    torch.set_num_threads(1)
    before = im.load(killed).steps.tolist()
    resumed, whole = train(killed, resume=True), im.load(whole)
    same = all(torch.equal(v, resumed.state(s)[n]) for s in whole.steps for n, v in whole.state(int(s)).items())
    same &= whole.metrics.equals(resumed.metrics) and whole.optimizer_state(STEPS).keys() > {"count/embed.W_E"}
    probes = im.probes.table(resumed, ["size_of_attention", "entropy3", "W_K1"])
    distances = im.probes.predictor_distances(resumed)
    view = im.attention(resumed, step=STEPS)
    lost = im.ablate(resumed, components=["heads", "FF3"], kind=["mean", "median"])
    by_hooks = im.ablate(resumed, components=["heads", "FF3"], kind=["mean", "median"], via="hooks")
    roles = im.heads.identify([resumed])
    model, batch = resumed.model(), TASK.sample(16, im.task.step_rng(5, 0))
    mine = ("blocks.1.hook_mlp_out", lambda value, hook: 0 * value)
    hooks = im.hooks.ablate(model, "L3H1", kind="median", batch=batch)
    both = model.run_with_hooks(batch.tokens, fwd_hooks=[*hooks, mine])
    return {
        "steps before": before,
        "same": bool(same),
        "frozen": list(resumed.config.model.frozen),
        "loss": resumed.metrics["loss"].iloc[[0, -1]].tolist(),
        "probes": sorted(set(probes["probe"])),
        "skipped": probes.attrs["skipped"],
        "distances": distances.iloc[-1].to_dict(),
        "heads": list(view.heads),
        "map": [len(view._repr_html_()) > 1000, float(view.patterns.sum(-1).min())],
        "ablated": len(lost),
        "hooks agree": float((lost["kl"] - by_hooks["kl"]).abs().max()),
        "roles": roles.roles["head"].tolist(),
        "combined": bool((both - model(batch.tokens)).abs().max() > 1e-4),
    }


if __name__ == "__main__":
    command, whole, killed = sys.argv[1:]
    if command == "train":
        train(whole)
        Unlucky.left = 24
        train(killed)
    print(json.dumps(look(whole, killed)))

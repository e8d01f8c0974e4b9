"""Every analysis on every model, compared with plain code: `python -m tests.architectures.matrix` writes the table.

A cell is "exact" (for edges also "exact in part": some are refused), "refused" (the check says why), or "not compared"
(the model has no such thing).
"""

import tempfile
from pathlib import Path

import pytest
import torch

import induction_memory as im
from induction_memory.errors import InputError, UnsupportedError
from induction_memory.runner.checked import UNGROUPED
from induction_memory.runner.choice import runner
from tests.architectures import models, plain

ANALYSES = ("heads", "keys and values", "edges", "hooks", "patterns", "attribution", "recall")
EXACT, IN_PART, REFUSED, NOT_COMPARED = "exact", "exact in part", "refused", "not compared"
ROWS = [3, 5, 8, 9, 12]
"""Tokens between which recall is measured."""
PAGE = Path(__file__).parents[2] / "docs" / "revisions.md"
START, END = "<!-- matrix -->", "<!-- end of the matrix -->"


class Case:
    """A model, and the plain code for it."""

    def __init__(self, name):
        self.name, self.tokens, self.refused = name, models.tokens_of(), None
        if name in models.CONFIGURATIONS:
            self.model, twin = models.hooked(name)
            self.plain = plain.Hooked(twin if twin is not self.model else models.hooked(name)[1], self.tokens)
        else:
            from induction_memory.model.bridge import boot

            inner, twin = models.transformer(name)
            self.plain = plain.Transformers(name, twin, self.tokens)
            with tempfile.TemporaryDirectory() as folder:
                inner.save_pretrained(folder)
                try:
                    self.model = boot(Path(folder))
                except UnsupportedError as reason:
                    self.model, self.refused = None, reason
        self.layers = range(self.plain.n_layers)

    def cell(self, analysis):
        """(what it is, the reason or the largest deviation)."""
        try:
            if self.refused is not None:
                raise self.refused
            found, expected = getattr(self, analysis.replace(" ", "_"))()
        except UnsupportedError as reason:
            why = str(reason)
            assert any(said in why for said in ("largest deviation", "heads share keys", "hook point")), why
            return REFUSED, why
        except NotImplementedError as reason:
            return NOT_COMPARED, str(reason)
        assert len(found) == len(expected) > 0
        found, expected = torch.tensor(found).double(), torch.tensor(expected).double()
        worst = float((found - expected).abs().max() / expected.abs().max())
        assert worst < 2e-3, f"{self.name}, {analysis}: {found.tolist()} and not {expected.tolist()}"
        assert expected.abs().max() > 1e-4
        return IN_PART if analysis == "edges" and self.left_out else EXACT, worst

    def ablated(self, names):
        table = im.ablate(self.model, self.tokens, components=names, kind="zero").set_index("component")
        return table.loc[names, "kl"].tolist()

    def heads(self):
        names = [f"L{layer + 1}H{head}" for layer in self.layers for head in (1, 3)]
        return self.ablated(names), [self.plain.head(int(name[1]) - 1, int(name[3]) - 1) for name in names]

    def keys_and_values(self):
        sites = [(layer, head, letter) for layer in self.layers for head in (1, 2) for letter in "kvq"]
        names = [f"L{layer + 1}H{head + 1}.{letter}" for layer, head, letter in sites]
        return self.ablated(names), [self.plain.part(*site) for site in sites]

    def edges(self):
        graph = runner(self.model).graph
        wanted = [("L1H2", "L2H3.q"), ("L1H2", "L2H3.k"), ("L1H4", "L2H2.v"), ("embed", "L1H2.k"), ("embed", "FF1")]
        wanted += [
            ("L1H1", "FF2"),
            ("pos", "L2H1.v"),
            ("FF1", "L2H3.k"),
            ("FF1", "FF2"),
            ("L1H3", "out"),
            ("FF2", "out"),
        ]
        known = [pair for pair in wanted if pair[0] in graph.writers and pair[1] in graph.inputs]
        known = [(writer, reader) for writer, reader in known if writer in graph.writers_before(reader)]
        allowed = [pair for pair in known if graph.allows("->".join(pair))]
        self.left_out = len(known) - len(allowed)
        if not allowed:
            graph.resolve("->".join(known[0]))
        return self.ablated(["->".join(pair) for pair in allowed]), [self.plain.edge(*pair) for pair in allowed]

    def hooks(self):
        """Ablations by lists of hooks, with the flags that their messages ask for."""
        last = len(self.layers)
        names, found, flags = ["L1H2", f"L{last}H3", f"L{last}H3.k"], [], ("use_attn_result", UNGROUPED)
        shares = getattr(self.model.cfg, "n_key_value_heads", None) not in (None, 4)
        flags = [flag for flag in flags if hasattr(self.model, f"set_{flag}") and (flag != UNGROUPED or shares)]
        if shares and UNGROUPED not in flags:
            with pytest.raises(InputError, match=f"set_{UNGROUPED}|heads share keys"):
                im.hooks.ablate(self.model, names.pop(), kind="zero", batch=self.tokens)
        with torch.no_grad():
            intact = self.model(self.tokens[:, :-1])
            for name in names:
                if self.asks(name):
                    for flag in flags:
                        getattr(self.model, f"set_{flag}")(True)
                hooks = im.hooks.ablate(self.model, name, kind="zero", batch=self.tokens)
                found.append(plain.kl(intact, self.model.run_with_hooks(self.tokens[:, :-1], fwd_hooks=hooks)))
                for flag in flags:
                    getattr(self.model, f"set_{flag}")(False)
        return found, [self.by_hand(name) for name in names]

    def asks(self, name):
        """Whether a flag is asked for."""
        try:
            im.hooks.ablate(self.model, name, kind="zero", batch=self.tokens)
        except UnsupportedError:
            raise
        except InputError as message:
            return "(True) for hooks at" in str(message)
        return False

    def by_hand(self, name):
        layer, head = int(name[1]) - 1, int(name[3]) - 1
        return self.plain.part(layer, head, name[-1]) if "." in name else self.plain.head(layer, head)

    def patterns(self):
        found = runner(self.model).patterns(self.tokens[:, :-1])
        return torch.stack(found).flatten().tolist(), torch.stack(self.plain.patterns()).flatten().tolist()

    def attribution(self):
        names = [f"dla_heads{layer + 1}" for layer in self.layers]
        table = im.probes.table(self.model, names, batch=self.tokens)
        for reason in table.attrs["skipped"].values():
            raise UnsupportedError(reason)
        return table["value"].tolist(), [value for layer in self.layers for value in self.plain.attribution(layer)]

    def recall(self):
        table = im.probes.recall(self.model, tokens=ROWS)
        margin = table.set_index(["circuit", "head"])["margin"]
        expected = [self.plain.recall(layer, ROWS) for layer in self.layers]
        return [*margin["OV"], *margin["QK"]], [
            value for which in (0, 1) for layer in expected for value in layer[which]
        ]


def page(rows):
    """The table of the documentation."""
    lines = ["| model | " + " | ".join(ANALYSES) + " |", "| --- |" + " --- |" * len(ANALYSES)]
    lines += [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows.items()]
    return "\n".join(lines)


def row(name):
    """What each analysis of a model is."""
    case = Case(name)
    return [case.cell(analysis)[0] for analysis in ANALYSES]


def written():
    """The rows of the table in the documentation."""
    lines = PAGE.read_text(encoding="utf-8").partition(START)[2].partition(END)[0].splitlines()[3:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: found for name, *found in cells}


def main():
    rows = {name: row(name) for name in (*models.FAMILIES, *models.CONFIGURATIONS)}
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    PAGE.write_text(f"{before}{START}\n{page(rows)}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()

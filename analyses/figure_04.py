"""Figure 4: global against in-context learning, and what the distribution of the data changes.

Left: five kinds of triggers. Centre: other outputs in the test than in training. Right: W_O2 and W_F compete late.

    python analyses/figure_04.py                    at a reduced scale, in minutes
    python analyses/figure_04.py --scale paper      at the paper's own
"""

from tools.figure_script import run

if __name__ == "__main__":
    run(4, __doc__)

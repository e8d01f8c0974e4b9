"""Figure 2: attention of a vanilla two-layer transformer, with fixed and with random triggers.

The first layer looks back one token. With fixed triggers the second is active after those alone, with random ones
after any repeated token. One-layer controls are trained beside it for the accuracies.

    python analyses/figure_02.py                    at a reduced scale, in minutes
    python analyses/figure_02.py --scale paper      at the paper's own
"""

from tools.figure_script import run

if __name__ == "__main__":
    run(2, __doc__)

"""Figure 9: recall of W_O2 after one gradient step, by dimension and number of batches.

Nothing is trained: both scales give the same figure.

    python analyses/figure_09.py                    at a reduced scale, in minutes
    python analyses/figure_09.py --scale paper      at the paper's own
"""

from tools.figure_script import run

if __name__ == "__main__":
    run(9, __doc__)

"""Figure 8: recall of W_O2 trained alone, by dimension, with one step size and with the best of several.

Higher dimension learns faster.

    python analyses/figure_08.py                    at a reduced scale, in minutes
    python analyses/figure_08.py --scale paper      at the paper's own
"""

from tools.figure_script import run

if __name__ == "__main__":
    run(8, __doc__)

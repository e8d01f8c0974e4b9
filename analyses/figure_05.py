"""Figure 5: memory recall in the five settings of Figure 4, left.

With fixed triggers W_K2 is asked about the triggers alone, as in the paper.

    python analyses/figure_05.py                    at a reduced scale, in minutes
    python analyses/figure_05.py --scale paper      at the paper's own
"""

from tools.figure_script import run

if __name__ == "__main__":
    run(5, __doc__)

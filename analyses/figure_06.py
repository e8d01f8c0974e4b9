"""Figure 6: memory recall with uniform and with bigram outputs, the settings of Figure 4, centre.

Uniform outputs fit W_O2 and W_K2 better; W_K1 is about the same.

    python analyses/figure_06.py                    at a reduced scale, in minutes
    python analyses/figure_06.py --scale paper      at the paper's own
"""

from tools.figure_script import run

if __name__ == "__main__":
    run(6, __doc__)

"""Figure 3: the induction head alone, with some matrices frozen until step 300.

W_O2 can and must be learned before the keys; W_K2 is easier to learn before W_K1 than the reverse; early positions
come first.

    python analyses/figure_03.py                    at a reduced scale, in minutes
    python analyses/figure_03.py --scale paper      at the paper's own
"""

from tools.figure_script import run

if __name__ == "__main__":
    run(3, __doc__)

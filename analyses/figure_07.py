"""Figure 7: the three memories of a trained model as tables of v_j^T W u_i.

Diagonals dominate; W_K1's fades with the position, W_K2's follows the tokens' frequency, W_O2's is nearly flat.

    python analyses/figure_07.py                    at a reduced scale, in minutes
    python analyses/figure_07.py --scale paper      at the paper's own
"""

from tools.figure_script import run

if __name__ == "__main__":
    run(7, __doc__)

"""Figure 10: everything trained, LayerNorm and a ReLU feed-forward.

The paper finds loss, accuracy and recalls similar to those of the simplified model.

    python analyses/figure_10.py                    at a reduced scale, in minutes
    python analyses/figure_10.py --scale paper      at the paper's own
"""

from tools.figure_script import run

if __name__ == "__main__":
    run(10, __doc__)

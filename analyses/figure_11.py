"""Figure 11: attention of a model with four heads per layer.

Which head does what, and whether one can know, is the subject of multihead.py.

    python analyses/figure_11.py                    at a reduced scale, in minutes
    python analyses/figure_11.py --scale paper      at the paper's own
"""

from tools.figure_script import run

if __name__ == "__main__":
    run(11, __doc__)

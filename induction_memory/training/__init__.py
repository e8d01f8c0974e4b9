"""Training: the fast forward and backward, the loop, and runs that keep their trajectory."""

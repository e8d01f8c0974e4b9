"""Trajectories on the disk: training writes them once, and every analysis reads them."""

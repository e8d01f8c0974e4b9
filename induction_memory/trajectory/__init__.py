"""Trajectories on the disk: training writes them, and analyses read them."""

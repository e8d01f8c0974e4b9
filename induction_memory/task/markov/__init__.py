"""Markov chains that are drawn anew for each sequence, or from a finite pool."""

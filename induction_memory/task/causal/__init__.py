"""Induction over a causal graph: each position has a parent."""

"""Attention maps, memory maps, and the page of a whole run."""

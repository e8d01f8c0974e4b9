"""Attention maps, and the page that shows a whole run."""

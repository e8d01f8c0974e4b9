"""Noisy triggers: distributional associations against in-context recall."""

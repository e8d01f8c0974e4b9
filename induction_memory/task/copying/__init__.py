"""Copying what followed a trigger, with the distances under control."""

"""Colours of attention maps, on paper and in pages; importing them loads no drawing library."""

RIGHT, OTHER = "#e5343d", "#2da44e"
"""Boxes: keys after an earlier occurrence of the query that are the right output, and the others."""
TRIGGER, OUTPUT = "#8250df", "#d1242f"
"""Tokens on the axes."""
BEYOND = "#f2f3f5"
"""What lies above the diagonal."""
ATTENTION = ("#f7fbff", "#c6dbef", "#6baed6", "#2171b5", "#08306b")
"""From no attention to all of it, in even steps."""

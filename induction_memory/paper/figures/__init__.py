"""The figures of the paper, from tables and arrays."""

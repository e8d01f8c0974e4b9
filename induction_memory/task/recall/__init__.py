"""Factual recall: a subject and a relation among noise, and the answer that belongs to both."""

"""The paper's architectures as HookedTransformers, and their weights as memories."""

"""The hand-written forward and backward that `training/forward.py` takes: no autograd, no copies of the parameters.

From the outside in: `parallel` spreads micro-batches over threads, `network` takes one through the model, `block` and
`tail` are its layers, `attention_layer` and `attention` what happens in them, `scores` and `lookup` the first layer's
short cuts.
"""

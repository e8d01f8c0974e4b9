"""The hand-written forward and backward that `training/forward.py` takes: no autograd, no copies of the parameters.

From the outside in: `parallel` spreads micro-batches over threads, `network` takes one through the model, `block` and
`last_block` are its layers, `attention_layer` and `attention` compute their attention, `attention_scores` and `lookup`
are the short cuts of the first layer.
"""

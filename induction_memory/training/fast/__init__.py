"""The hand-written forward and backward that `training/forward.py` takes: no autograd, no copies of the parameters.

From the outside in: `micro_batches` cuts a batch in pieces and spreads them over threads, `network` takes one piece
through the model and has its last part, `block` is a layer, `attention_layer` and `attention` compute their attention.
"""

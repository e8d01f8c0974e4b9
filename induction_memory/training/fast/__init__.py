"""The hand-written forward and backward that `training/forward.py` takes: no autograd, no copies of the parameters.

From the outside in: `micro_batches` cuts a batch in pieces and spreads them over threads, `network` takes one piece
through the model, `block` and `last_block` are its layers, `attention_layer` and `attention` compute their attention.
"""

"""The hand-written forward and backward that `training/forward.py` uses: no autograd, no copies of the parameters.

From the outside in: `micro_batches` cuts a batch in pieces and spreads them over threads, `network` runs one piece
through the model and implements its end, `block` is a layer, and `attention_layer` and `attention` compute its
attention.
"""

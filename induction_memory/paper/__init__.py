"""The paper's figures and claims, from runs that are trained when missing and from records that ship.

reproduce.reproduce([3], "quick")     train, draw, judge and write a page
audit.audit()                         judge all claims from what ships
claims.CLAIMS                         the sentences of the paper, each with its measurement
"""

"""The paper's figures and claims, from runs that are trained when missing and from records that ship."""

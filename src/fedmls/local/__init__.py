"""What a client computes on its rows.

client.py    all that an algorithm may ask of a client (:class:`fedmls.types.Local`)
descent.py   local subgradient steps, the one hot loop
prox.py      proximal steps, with compiled loops in prox_rows.py
cut_rows.py  values and subgradients of parts of the rows;  curvature.py: the curvature, kinks blurred
"""

"""What a client computes on its rows.

client.py       all that an algorithm may ask of a client (:class:`fedmls.types.Local`)
rows.py         the rows as compiled loops take them, dense and CSR: products with one row, sums
random.py       the random numbers: a hash of seed, round, client and call
descent.py      local subgradient steps, the one hot loop
prox.py         proximal steps, with compiled loops in prox_rows.py
cut_rows.py     values and subgradients of parts of the rows;  curvature_rows.py: the curvature, kinks blurred (curvature.py)
compressors.py  vectors made smaller to send
"""

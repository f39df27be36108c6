"""What a client computes on its rows.

client.py       all that an algorithm may ask of a client (:class:`fedmls.types.Local`)
rows.py         the rows as compiled loops take them, dense and CSR: products with one row, sums
random.py       the random numbers: a hash of seed, round, client and call
descent.py      local subgradient steps, the one hot loop
prox.py         proximal steps, with compiled loops in prox_rows.py
clients.py      a round of all clients of a problem, some of them at a time
cut_rows.py     values and subgradients of parts of the rows
curvature.py    the curvature, kinks blurred, with compiled loops in curvature_rows.py
compressors.py  vectors made smaller to send
"""

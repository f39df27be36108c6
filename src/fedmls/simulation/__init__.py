"""Engine 1: all clients in one process.

run.py         one run, :func:`fedmls.simulate`;  sweeps.py: many, :func:`fedmls.sweep`
recorder.py    from the state after a round to a row of the history
checkpoint.py  a run between two exchanges, on disk;  store.py: finished runs
"""

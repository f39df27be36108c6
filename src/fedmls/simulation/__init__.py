"""Engine 1: all clients in one process.

config.py      the settings of a run, :class:`~fedmls.simulation.config.RunConfig`
run.py         one run, :func:`fedmls.simulate`;  sweeps.py: many, :func:`fedmls.sweep`
observers.py   what watches a run and may stop it: targets, proofs, callbacks, progress
recorder.py    from the state after a round to a row of the history;  cost.py: what has been spent
checkpoint.py  a run between two exchanges, on disk;  store.py: finished runs
"""

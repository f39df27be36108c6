"""The comparison: every method, tuned alike, on problems that nothing was tuned on.

suite.py    the problems;  collected.py: those of other people's data
methods.py  the methods and their grids
compare.py  the runs, and exchanges, bytes and passes to a target
tables.py   as tables;  claims.py: as sentences;  profile.py: as a figure
"""

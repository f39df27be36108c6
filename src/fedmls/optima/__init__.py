"""The certified optimum of a problem, :func:`fedmls.optimum`.

solve.py        which method is taken, and the check of what it returns
programs.py     small problems: HiGHS and Clarabel
multipliers.py  many rows and columns, with compiled loops in multiplier_rows.py
"""

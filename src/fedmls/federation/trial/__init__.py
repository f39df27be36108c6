"""``fedmls federate``: a whole federation on this machine.

prepare  the trial's job, its nodes with their rows, its folder
execute  deploy, run, take down, and compare with the simulation
"""

"""What is proved about f*: lower bounds from what clients send.

certificate.py  from slopes of the rows, in a ball
cut_bound.py    from the cuts of FedMLS-B, over all x, with cut_steps.py: where it takes the next;  rounding.py: what
                that may cost;  bundle_master.py: from cuts of the bundle method, in a box
mixtures.py     from cuts of several rounds, for the estimators
"""

"""What is proved about f*: lower bounds from what clients send.

certificate.py  from slopes of the rows, in a ball
cut_model.py    from the cuts of FedMLS-B, over all x;  bundle_master.py: from those of the bundle method, in a box
mixtures.py     from cuts of several rounds, for the estimators
"""

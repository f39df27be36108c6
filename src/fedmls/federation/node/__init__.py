"""A node of a federation, which keeps its rows to itself.

node             hands each message to what answers its kind
first_exchanges  answers before round 1: to the survey, for column sums, when the run begins
rounds           answers with rounds, and keeps the client's state before the reply leaves
last_exchange    answers after the last round: with scores on held-out rows;  held_out: which rows these are
masks            puts uploads under masks, if sums are secure
site             what the node has at hand: configuration, limits, state folder, rows, problem
limits           what the node's own configuration forbids, and its ledger of privacy
rows             reads the node's file, sums it up, prepares it
state            what the node keeps of each run on disk, and which questions it therefore answers
"""

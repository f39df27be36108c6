"""The server of a federation.

driver           runs the algorithm of a job, exchange by exchange
first_exchanges  the exchanges before round 1;  survey: what the server learns from them
round_exchanges  the exchanges of the rounds: who is asked, who stands in, what the server sees
last_exchange    the exchange after the last round: scores on held-out rows
exchange         sends messages over a transport, again where a node does not answer
replies          checks every reply before it is used
snapshot         the run between two exchanges;  folder: the files of a run;  outcome: how an engine's attempt ended
"""

"""A node of a federation, which keeps its rows to itself.

node    answers messages
rows    reads the node's file, sums it up, prepares it
rounds  what a client does in a round
state   what the node keeps of each run on disk, and which questions it therefore answers
"""

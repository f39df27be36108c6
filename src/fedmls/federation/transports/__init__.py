"""What carries messages between the server and the nodes.

base       the interface, of two members
inprocess  nodes in the server's own process
nvflare    what runs inside NVFlare's processes, with timers of shared_timer
flower     what runs inside Flower's processes
"""

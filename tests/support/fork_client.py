"""Hand the standard streams to the collector whose socket is named, and wait until its fork ends.

xdist starts this in place of Python: what follows the first argument is for Python, and the fork
does the same (forks.py).
"""

import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as collector:
    collector.connect(sys.argv[1])
    socket.send_fds(collector, [b"\0"], [0, 1])
    os.close(0)
    os.close(1)  # else nobody would see when the fork has closed it
    collector.recv(1)

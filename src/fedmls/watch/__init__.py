"""A page that follows a run, a sweep or a federation as it goes, from its results folder alone.

look.py    what the folder tells now, as plain values made for people
server.py  serves the page on this machine, to this machine only: page.html, watch.css and watch.js, with the chart and
           the style of the report
"""

from fedmls.watch.server import Server

__all__ = ["Server"]

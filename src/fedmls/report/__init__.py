"""One page of HTML from results folders: curves to play with, tables, the clients, how to reproduce it.

read.py    the files of a folder, in one plain form
build.py   curves and tables of one folder or several;  about.py: the clients and the set-up
words.py   numbers as people write them
page.py    all of that into the template: page.html.j2, with report.css, report.js and plotly inside
"""

from fedmls.report.build import summarise
from fedmls.report.page import write

__all__ = ["summarise", "write"]

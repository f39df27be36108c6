"""One page of HTML from results folders: curves to play with, tables, the clients, how to reproduce it.

build.py     curves and tables of one folder or several, as :mod:`fedmls.results.read` reads them
curves.py    the curves, and what is measured along them;  chart.py: their points and looks;  tables.py: how they ended
about.py     the clients and the set-up;  model.py: a federation's scores and coefficients
numerals.py  numbers as people write them
page.py      all of that into the template: page.html.j2, with report.css, chart.js, report.js and plotly inside
figure.py    a figure for a paper
"""

from fedmls.report.build import summarise
from fedmls.report.page import write

__all__ = ["summarise", "write"]

"""FedExP, an algorithm that is not in the package: the first file of the page on algorithms of one's own."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "own-algorithm.md"


def written(file):
    """The file, with the algorithm in it."""
    code = re.search(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S).group(1)
    file.write_text(code.replace("print(FedExP(eta=0.1))", ""), encoding="utf-8")
    return file

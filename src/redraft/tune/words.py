"""Tokens that the vocabulary "python" has beyond "records": words of the tasks, and Python.

The Python tokens are the most frequent words, operators and indentations of the standard library, without those that
would change how records are encoded. Their order is part of every checkpoint.
"""

_WORDS = """
edit repair Set Change Drop true false null self return if def except append raise import else class args
path value context encoding try object other from elif kwargs type call format default options result init
source string join exception address False str True for msg print protocol property version write option
timeout message get obj offset list errors error command index continue count sys handler bytes action flags
prefix parser int assert cls os info start stream indent read check buffer getattr setattr output exc and
compile headers break code text dict pass with spec parent group add repr handle split arg loop close socket
items header len is key func target cache build while extra parts end sock all set token lines root state
debug in dir level parse src frame cmd dirs test tuple help new or pos fd kw not del id isinstance hasattr
ValueError TypeError OSError KeyError lambda yield range data name
"""

WORDS = tuple(_WORDS.split())

SPACED = ("▁not", "▁is", "▁and", "▁or", "▁if", "▁else", "▁the", "▁as", "▁import")

SIGNS = (
    *("\n" + "▁" * width for width in (20, 16, 12, 8, 4)),
    *("▁+=▁", "▁==▁", "▁!=▁", "▁=▁", "▁+▁", "▁-▁", "▁<▁", "▁>▁", "',▁'", "':▁'"),
    *("'):", "():", "())", "__(", ".__", "):", "()", "))", "('", "')", "['", "']", "[:", "])", "[]", "._", "__", "**"),
)
"""Longer before shorter where one begins another."""

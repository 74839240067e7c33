"""All kinds of drafting heads: one file each in this folder, its name the key everywhere.

f_t is the target's final normed hidden state at token t, E its embedding, x_n the last known
token, d_i the i-th drafted one.
"""

import importlib
import pkgutil

from specscope.engine.heads.kind import Kind

KINDS: dict[str, Kind] = {
    name: importlib.import_module(f"{__name__}.{name}").KIND
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__))
}

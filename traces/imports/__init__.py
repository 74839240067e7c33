"""Files of other engines and tools as traces, one module per form."""

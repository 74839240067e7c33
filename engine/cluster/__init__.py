"""Which worker sits on which device, and one run on them from its request to its footer."""

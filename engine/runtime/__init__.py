"""Devices, workers, clocks and the rows a run leaves behind."""

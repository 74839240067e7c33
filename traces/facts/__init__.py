"""What a trace tells: waiting, acceptance, figures, settings. Pure functions on its rows."""

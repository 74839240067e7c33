"""The engine: one decoder, one runtime and one trace for every decoding method."""
